/* One run of a depthwise convolution. The includer defines T, V, VL, V_(op), FN(name). */
#define DW_MOST 8   /* values of j at once: sums that hide the latency of multiply-adds and share a load of weights */
#define DW_SHARED 4 /* taps of phases whose inputs can stay in registers, for half as many j */

INLINE V FN(dw_load)(const int full, const T *p, int lanes) { return full ? V_(load)(p) : V_(loadn)(p, lanes); }

/* acc[i] to out + i * ld, as T. */
INLINE void FN(dw_finish)(const int count, const int full, const convt_dw *d, V *acc, T *out, int lanes)
{
    const convt_act act = *d->act;
    const ptrdiff_t ld = d->out_ld, ahead = d->ahead;
    if (act.code != CONVT_NONE)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            acc[i] = V_(act_simple)(acc[i], &act);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++, out += ld) {
        __builtin_prefetch(out + ahead, 1);
        if (full)
            V_(store)(out, acc[i]);
        else
            V_(storen)(out, acc[i], lanes);
    }
}

/* One phase of `count` values of j, a vector of channels: `from` and `out` are at the first of them. */
INLINE void FN(dw_alone)(const int count, const int full, const convt_dw *d, const void *const *in, const void *const *w,
                         const convt_dw_phase *phase, ptrdiff_t from, T *out, int c, int lanes)
{
    V acc[DW_MOST];
    const V start = V_(load)((const T *)d->init + c);
    const ptrdiff_t in_ld = d->in_ld;
    const int whole = phase->taps - (c + lanes <= d->all ? 0 : phase->cut);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[i] = start;
    for (int t = 0; t < whole; t++) {
        const T *x = (const T *)in[t] + from;
        const V wt = V_(load)((const T *)w[t] + c);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            acc[i] = V_(fma)(FN(dw_load)(full, x + i * in_ld, lanes), wt, acc[i]);
    }
    /* What the other lanes would add is not 0 where the input is not finite. */
    if (whole < phase->taps && c < d->none) {
        const V mask = V_(load)((const T *)d->mask + c);
        for (int t = whole; t < phase->taps; t++) {
            const T *x = (const T *)in[t] + from;
            const V wt = V_(load)((const T *)w[t] + c);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++)
                acc[i] = V_(fma_where)(mask, FN(dw_load)(full, x + i * in_ld, lanes), wt, acc[i]);
        }
    }
    FN(dw_finish)(count, full, d, acc, out, lanes);
}

/* The same for phases that read the same inputs: these stay in registers. */
INLINE void FN(dw_together)(const int count, const int taps, const int full, const convt_dw *d, const void *const *in,
                            const void *const *w, const convt_dw_phase *phase, int phases, ptrdiff_t from, T *out, int c,
                            int lanes)
{
    V x[DW_SHARED][DW_MOST / 2], acc[DW_MOST / 2];
    const V start = V_(load)((const T *)d->init + c);
    const ptrdiff_t in_ld = d->in_ld;
#pragma GCC unroll 4
    for (int t = 0; t < taps; t++)
#pragma GCC unroll 4
        for (int i = 0; i < count; i++)
            x[t][i] = FN(dw_load)(full, (const T *)in[t] + from + i * in_ld, lanes);
    for (int p = 0; p < phases; p++, w += taps) {
#pragma GCC unroll 4
        for (int i = 0; i < count; i++)
            acc[i] = start;
#pragma GCC unroll 4
        for (int t = 0; t < taps; t++) {
            const V wt = V_(load)((const T *)w[t] + c);
#pragma GCC unroll 4
            for (int i = 0; i < count; i++)
                acc[i] = V_(fma)(x[t][i], wt, acc[i]);
        }
        FN(dw_finish)(count, full, d, acc, out + phase[p].out, lanes);
    }
}

/* All phases of `count` values of j from j on, a vector of channels. */
INLINE void FN(dw_vector)(const int count, const int full, const convt_dw *d, int j, int c, int lanes)
{
    const void *const *in = d->in, *const *w = d->w;
    const ptrdiff_t from = j * d->in_ld + c;
    T *out = (T *)d->out + j * d->out_ld + c;
    for (int p = 0, next; p < d->phases; p = next) {
        const convt_dw_phase *phase = d->phase + p;
        const int taps = phase->taps, low = count / 2;
        for (next = p + 1; next < d->phases && d->phase[next].shared;)
            next++;
#define TOGETHER(n)                                                                                              \
    if (low)                                                                                                     \
        FN(dw_together)(low, n, full, d, in, w, phase, next - p, from, out, c, lanes);                           \
    FN(dw_together)(count - low, n, full, d, in, w, phase, next - p, from + low * d->in_ld, out + low * d->out_ld, c, lanes)
        if (next - p == 1 || taps > DW_SHARED || taps == 0) {
            for (int q = p; q < next; q++)
                FN(dw_alone)(count, full, d, in, w + (q - p) * taps, d->phase + q, from, out + d->phase[q].out, c, lanes);
        } else if (taps == 1) {
            TOGETHER(1);
        } else if (taps == 2) {
            TOGETHER(2);
        } else if (taps == 3) {
            TOGETHER(3);
        } else {
            TOGETHER(4);
        }
#undef TOGETHER
        in += (next - p) * taps;
        w += (next - p) * taps;
    }
}

#define DW_COLUMNS(n)                                            \
    static void FN(dw_columns_##n)(const convt_dw *d, int j)     \
    {                                                            \
        int c = 0;                                               \
        for (; c + VL <= d->cols; c += VL)                       \
            FN(dw_vector)(n, 1, d, j, c, VL);                    \
        if (c < d->cols)                                         \
            FN(dw_vector)(n, 0, d, j, c, d->cols - c);           \
    }
DW_COLUMNS(1) DW_COLUMNS(2) DW_COLUMNS(4) DW_COLUMNS(8)
#undef DW_COLUMNS

static void FN(depthwise)(const convt_dw *d)
{
    static void (*const columns[])(const convt_dw *, int) = {
        FN(dw_columns_1), FN(dw_columns_2), FN(dw_columns_4), FN(dw_columns_8),
    };
    CONVT_ASSERT(d->act->code <= CONVT_LEAKY);
    for (int j = 0; j < d->n;) {
        /* The fewest values of j that cover the rest, some of them once more; the most that there are, if none do. */
        int size = 0;
        while (size < 3 && 1 << size < d->n - j)
            size++;
        if (1 << size > d->n)
            size--;
        const int count = 1 << size;
        columns[size](d, j + count <= d->n ? j : d->n - count);
        j += count;
    }
}
#undef DW_MOST
#undef DW_SHARED
