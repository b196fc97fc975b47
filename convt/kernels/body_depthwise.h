/* One run of a depthwise convolution. The includer defines T, V, VL, V_(op), FN(name). */
#define DW_MOST 8   /* values of j at once: sums that hide the latency of multiply-adds and share a load of weights */
#define DW_LONG 16  /* vectors of channels side by side that are a stretch of memory worth writing as one */
#define DW_SHARED 4 /* taps of phases whose inputs can stay in registers, for half as many j */
#define DW_SLIDING 3 /* terms that share what is picked from a pixel */

/* Where the inputs of a vector of lanes are: side by side, all of them or the first ones, or picked from as many elements
 * as a number, a vector or two vectors hold; or from no more than there are, which takes masks. */
#ifndef DW_ENUM
#define DW_ENUM
enum { DW_WHOLE, DW_PART, DW_ONE, DW_PICK, DW_PICK_2, DW_PICK_LAST };
#endif

INLINE V FN(dw_load)(const int how, const T *p, int lanes, const int32_t *index)
{
    if (how == DW_WHOLE)
        return V_(load)(p);
    if (how == DW_ONE)
        return V_(set1)(*p);
#ifdef HAVE_PICK
    if (how == DW_PICK)
        return V_(pick_1)(V_(load)(p), index);
    if (how == DW_PICK_2)
        return V_(pick)(V_(load)(p), V_(load)(p + VL), index);
    if (how == DW_PICK_LAST) {
        const int span = index[VL - 1] + 1, low = span < VL ? span : VL;
        return V_(pick)(V_(loadn)(p, low), V_(loadn)(p + low, span - low), index);
    }
#else
    (void)index;
#endif
    return V_(loadn)(p, lanes);
}

/* Below, sums are `count` values of j, so that these share a load of weights; or, `across`, of one j so many vectors of
 * channels, all whole. Pointers move from one to the next: a distance for each would take all the registers that there are.
 * Elements from one to the next: */
#define STEP(ld) (across ? VL : (ld))

/* The i-th vector of weights or the like, of which every j has the same: `first`. */
#define EACH(p, i, first) (across ? V_(load)((p) + (i) * VL) : (first))

/* acc[i] to out + i steps, as T. */
INLINE void FN(dw_finish)(const int count, const int across, const int how, const convt_dw *d, V *acc, T *out, int lanes)
{
    const convt_act act = *d->act;
    const ptrdiff_t ld = STEP(d->out_ld), ahead = d->ahead;
    if (act.code != CONVT_NONE)
#pragma GCC unroll 8
        for (int i = 0; i < count; i++)
            acc[i] = V_(act_simple)(acc[i], &act);
    if (d->stream) {
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, out += ld)
            V_(stream)(out, acc[i]);
        return;
    }
    if (ahead) {
        const T *next = out + ahead;
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, next += ld)
            __builtin_prefetch(next, 1);
    }
#pragma GCC unroll 8
    for (int i = 0; i < count; i++, out += ld) {
        if (how == DW_WHOLE)
            V_(store)(out, acc[i]);
        else
            V_(storen)(out, acc[i], lanes);
    }
}

/* One phase, or two that share an input as it is loaded: `from` and `out` are at channel c of the first j. */
INLINE void FN(dw_some)(const int phases, const int count, const int across, const int how, const convt_dw *d,
                        const void *const *in, const void *const *w, const convt_dw_phase *phase, ptrdiff_t from, T *out, int c,
                        int lanes)
{
    V acc[2][DW_MOST];
    const ptrdiff_t in_ld = STEP(d->in_ld);
    const int32_t *index = d->index + c;
    const int taps = phase->taps, whole = taps - (c + (across ? count * VL : lanes) <= d->all ? 0 : phase->cut);
    const T *init = (const T *)d->init + c;
    const V start = V_(load)(init);
    int t = 0;
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[0][i] = acc[1][i] = EACH(init, i, start);
    if (phases == 2)
        for (; t < phase[1].taps; t++) {
            const T *x = (const T *)in[t] + from;
            const T *low = (const T *)w[t] + c, *high = (const T *)w[taps + t] + c;
            const V first = V_(load)(low), second = V_(load)(high);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++, x += in_ld) {
                const V some = FN(dw_load)(how, x, lanes, index);
                acc[0][i] = V_(fma)(some, EACH(low, i, first), acc[0][i]);
                acc[1][i] = V_(fma)(some, EACH(high, i, second), acc[1][i]);
            }
        }
    for (; t < whole; t++) {
        const T *x = (const T *)in[t] + from;
        const T *weights = (const T *)w[t] + c;
        const V wt = V_(load)(weights);
#pragma GCC unroll 8
        for (int i = 0; i < count; i++, x += in_ld)
            acc[0][i] = V_(fma)(FN(dw_load)(how, x, lanes, index), EACH(weights, i, wt), acc[0][i]);
    }
    /* What the other lanes would add is not 0 where the input is not finite. */
    if (phases == 1 && whole < taps && c < d->none) {
        const T *masks = (const T *)d->mask + c;
        const V mask = V_(load)(masks);
        for (t = whole; t < taps; t++) {
            const T *x = (const T *)in[t] + from, *weights = (const T *)w[t] + c;
            const V wt = V_(load)(weights);
#pragma GCC unroll 8
            for (int i = 0; i < count; i++, x += in_ld)
                acc[0][i] = V_(fma_where)(EACH(masks, i, mask), FN(dw_load)(how, x, lanes, index), EACH(weights, i, wt),
                                          acc[0][i]);
        }
    }
    FN(dw_finish)(count, across, how, d, acc[0], out + phase->out, lanes);
    if (phases == 2)
        FN(dw_finish)(count, across, how, d, acc[1], out + phase[1].out, lanes);
}

/* The same for phases of a few taps that read the same inputs: these stay in registers. */
INLINE void FN(dw_together)(const int count, const int across, const int taps, const int how, const convt_dw *d,
                            const void *const *in, const void *const *w, const convt_dw_phase *phase, int phases,
                            ptrdiff_t from, T *out, int c, int lanes)
{
    V x[DW_SHARED][DW_MOST / 2], acc[DW_MOST / 2];
    const ptrdiff_t in_ld = STEP(d->in_ld);
    const T *init = (const T *)d->init + c;
    const V start = V_(load)(init);
#pragma GCC unroll 4
    for (int t = 0; t < taps; t++) {
        const T *at = (const T *)in[t] + from;
#pragma GCC unroll 4
        for (int i = 0; i < count; i++, at += in_ld)
            x[t][i] = FN(dw_load)(how, at, lanes, d->index + c);
    }
    for (int p = 0; p < phases; p++, w += taps) {
#pragma GCC unroll 4
        for (int i = 0; i < count; i++)
            acc[i] = EACH(init, i, start);
#pragma GCC unroll 4
        for (int t = 0; t < taps; t++) {
            const T *weights = (const T *)w[t] + c;
            const V wt = V_(load)(weights);
#pragma GCC unroll 4
            for (int i = 0; i < count; i++)
                acc[i] = V_(fma)(x[t][i], EACH(weights, i, wt), acc[i]);
        }
        FN(dw_finish)(count, across, how, d, acc, out + phase[p].out, lanes);
    }
}

/* One phase, or two that read the same pixels: `terms` and `second` terms, each of which reads the pixel before that of the
 * term before. What is loaded or picked from a pixel serves all j's that read it. The order of a sum is the same `across`,
 * where nothing is shared and loops over the terms do. */
INLINE void FN(dw_slide)(const int phases, const int count, const int across, const int terms, const int second, const int how,
                         const convt_dw *d, const void *const *in, const void *const *w, const convt_dw_phase *phase,
                         ptrdiff_t from, T *out, int c, int lanes)
{
    V acc[2][DW_MOST];
    const int each = phase->each;
    const T *init = (const T *)d->init + c;
    const V start = V_(load)(init);
#pragma GCC unroll 8
    for (int i = 0; i < count; i++)
        acc[0][i] = acc[1][i] = EACH(init, i, start);
    for (int t = 0; t < each; t++) {
        if (across) {
#pragma GCC unroll 1
            for (int u = terms - 1; u >= 0; u--) {
                const T *x = (const T *)in[u * each + t] + from;
                const T *low = (const T *)w[u * each + t] + c, *high = low;
                const int both = phases == 2 && u < second;
                if (both)
                    high = (const T *)w[(terms + u) * each + t] + c;
#pragma GCC unroll 8
                for (int i = 0; i < count; i++)
                    acc[0][i] = V_(fma)(V_(load)(x + i * VL), V_(load)(low + i * VL), acc[0][i]);
                if (both)
#pragma GCC unroll 8
                    for (int i = 0; i < count; i++)
                        acc[1][i] = V_(fma)(V_(load)(x + i * VL), V_(load)(high + i * VL), acc[1][i]);
            }
            continue;
        }
        const T *x = (const T *)in[t] + from - (terms - 1) * d->in_ld;
        V weights[2][DW_SLIDING];
#pragma GCC unroll 4
        for (int u = 0; u < terms; u++)
            weights[0][u] = V_(load)((const T *)w[u * each + t] + c);
#pragma GCC unroll 4
        for (int u = 0; u < second; u++)
            weights[1][u] = V_(load)((const T *)w[(terms + u) * each + t] + c);
#pragma GCC unroll 16
        for (int i = 1 - terms; i < count; i++, x += d->in_ld) {
            const V some = FN(dw_load)(how, x, lanes, d->index + c);
#pragma GCC unroll 4
            for (int u = 0; u < terms; u++) {
                if (i + u < 0 || i + u >= count)
                    continue;
                acc[0][i + u] = V_(fma)(some, weights[0][u], acc[0][i + u]);
                if (u < second)
                    acc[1][i + u] = V_(fma)(some, weights[1][u], acc[1][i + u]);
            }
        }
    }
    FN(dw_finish)(count, across, how, d, acc[0], out + phase->out, lanes);
    if (phases == 2)
        FN(dw_finish)(count, across, how, d, acc[1], out + phase[1].out, lanes);
}

/* All phases of `count` sums from j and c on. */
INLINE void FN(dw_vector)(const int count, const int across, const int how, const convt_dw *d, int j, int c, int lanes)
{
    const void *const *in = d->in, *const *w = d->w;
    const ptrdiff_t from = j * d->in_ld + (how < DW_ONE ? c : d->at[c]);
    const int most = sizeof(V) < 64 && count == DW_MOST ? count / 2 : count; /* of a pair: there are half as many registers */
    T *out = (T *)d->out + j * d->out_ld + c;
    for (int p = 0, next; p < d->phases; p = next) {
        const convt_dw_phase *phase = d->phase + p;
        const int taps = phase->taps, half = (count + 1) / 2;
        next = p + phase->sharing;
#define SLIDES(n) (how != DW_ONE && phase->each && phase->taps == n * phase->each)
#define SLIDE(n, terms, second)                                                                                               \
    for (int i = 0; i < count; i += n == 2 ? most : count)                                                                    \
    FN(dw_slide)(n, n == 2 ? most : count, across, terms, second, how, d, in, w, phase, from + i * STEP(d->in_ld),            \
                 out + i * STEP(d->out_ld), c + i * STEP(0), lanes)
#define TOGETHER(n)                                                                                                           \
    for (int i = 0; i < count; i += half)                                                                                     \
    FN(dw_together)(half, across, n, how, d, in, w, phase, next - p, from + i * STEP(d->in_ld), out + i * STEP(d->out_ld),    \
                    c + i * STEP(0), lanes)
        if (next - p == 1 || how >= DW_ONE || taps > DW_SHARED || taps == 0 || !phase->even) {
            for (; p + 1 < next; phase += 2, p += 2) {
                const int second = phase[1].taps == phase->each ? 1 : phase[1].taps == phase->taps ? 2 : 0;
                if (across && SLIDES(2) && second)
                    SLIDE(2, 2, second);
                else if (SLIDES(2) && second == 1)
                    SLIDE(2, 2, 1);
                else if (SLIDES(2) && second == 2)
                    SLIDE(2, 2, 2);
                else
                    for (int i = 0; i < count; i += most)
                        FN(dw_some)(2, most, across, how, d, in, w, phase, from + i * STEP(d->in_ld), out + i * STEP(d->out_ld),
                                    c + i * STEP(0), lanes);
                w += phase->taps + phase[1].taps;
            }
            if (p < next) {
                if (across && (SLIDES(2) || SLIDES(3)))
                    SLIDE(1, SLIDES(2) ? 2 : 3, 0);
                else if (SLIDES(2))
                    SLIDE(1, 2, 0);
                else if (SLIDES(3))
                    SLIDE(1, 3, 0);
                else
                    FN(dw_some)(1, count, across, how, d, in, w, phase, from, out, c, lanes);
                w += phase->taps;
            }
        } else {
            if (taps == 1) {
                TOGETHER(1);
            } else if (taps == 2) {
                TOGETHER(2);
            } else if (taps == 3) {
                TOGETHER(3);
            } else {
                TOGETHER(4);
            }
            w += (next - p) * taps;
        }
#undef TOGETHER
#undef SLIDES
#undef SLIDE
        in = d->in + (w - d->w);
    }
}

/* A vector of n sums that is not whole, or does not lie as it is. Of a single one it matters little how much is picked from. */
#ifdef HAVE_PICK
#define DW_PICKED(n)                                             \
    else if (n == 1 && !d->room)                                 \
        FN(dw_vector)(1, 0, DW_PICK_LAST, d, j, c, lanes);       \
    else if (!d->room)                                           \
        for (int i = 0; i < n; i++)                              \
            FN(dw_other_1)(d, j + i, c);                         \
    else if (n > 1 && d->index[c + VL - 1] < VL)                 \
        FN(dw_vector)(n, 0, DW_PICK, d, j, c, lanes);            \
    else                                                         \
        FN(dw_vector)(n, 0, DW_PICK_2, d, j, c, lanes);
#else
#define DW_PICKED(n)
#endif
#define DW_OTHER(n)                                                            \
    static __attribute__((noinline)) void FN(dw_other_##n)(const convt_dw *d, int j, int c) \
    {                                                                          \
        const int lanes = d->cols - c < VL ? d->cols - c : VL;                 \
        if (!d->at)                                                            \
            FN(dw_vector)(n, 0, DW_PART, d, j, c, lanes);                      \
        else if (d->index[c + VL - 1] == 0)                                    \
            FN(dw_vector)(n, 0, DW_ONE, d, j, c, lanes);                       \
        DW_PICKED(n)                                                           \
    }
static void FN(dw_other_1)(const convt_dw *d, int j, int c);
DW_OTHER(1) DW_OTHER(4) DW_OTHER(8)
#undef DW_OTHER
#undef DW_PICKED
static void FN(dw_other_2)(const convt_dw *d, int j, int c)
{
    FN(dw_other_1)(d, j, c);
    FN(dw_other_1)(d, j + 1, c);
}

#define DW_COLUMNS(n)                                                        \
    static void FN(dw_columns_##n)(const convt_dw *d, int j)                 \
    {                                                                        \
        int c = 0;                                                           \
        /* Of few j, channels side by side are enough sums. */               \
        for (; n == 1 && !d->at && c + 8 * VL <= d->cols; c += 8 * VL)       \
            FN(dw_vector)(8, 1, DW_WHOLE, d, j, c, VL);                      \
        for (; n == 1 && !d->at && c + 4 * VL <= d->cols; c += 4 * VL)       \
            FN(dw_vector)(4, 1, DW_WHOLE, d, j, c, VL);                      \
        for (; !d->at && c + VL <= d->cols; c += VL)                         \
            FN(dw_vector)(n, 0, DW_WHOLE, d, j, c, VL);                      \
        for (; c < d->cols; c += VL)                                         \
            FN(dw_other_##n)(d, j, c);                                       \
    }
DW_COLUMNS(1) DW_COLUMNS(2) DW_COLUMNS(4) DW_COLUMNS(8)
#undef DW_COLUMNS
#undef STEP
#undef EACH

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
        /* Their channels are enough, and lie in one stretch; which is also the order that memory likes, where it is long. */
        if (!d->at && ((size < 3 && d->cols >= 4 * VL) || (d->ahead && d->cols >= DW_LONG * VL)))
            size = 0;
        const int count = 1 << size;
        columns[size](d, j + count <= d->n ? j : d->n - count);
        j += count;
    }
}
#undef DW_MOST
#undef DW_LONG
#undef DW_SHARED
#undef DW_SLIDING
