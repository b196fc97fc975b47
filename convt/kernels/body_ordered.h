/* Depthwise runs of few terms whose outputs are stored in memory order (convt_dw.ordered). The includer defines T, V, VL,
 * V_(op), FN(name).
 *
 * A register tile has 2 j (DW_PAIR) by one vector of channels; registers also hold the pixels of up to 4 vectors (2 with
 * vectors of less than 64 bytes). Loop order: blocks of j, then sets of phases, then pieces of up to DW_VECTORS vectors; in
 * a piece, pairs of j, then phases, vectors, sources and terms. Memory takes outputs in this order twice as fast as in
 * blocks of j, phase by phase. Only the vector width matters.
 */
#define DW_PAIR 2    /* j of a register tile */
#define DW_VECTORS (sizeof(V) < 64 ? 2 : 4) /* vectors of channels that fit the registers with their pixels */
#define DW_ORDERED_J 8    /* j at a time, if there are more vectors than DW_VECTORS */
#define DW_OUTPUT_PREFETCH 4096  /* prefetch distance in bytes, into L2: in L1 these lines would displace pixels */

/* Compute all phases of a set for `vectors` adjacent vectors of channels from c on, `count` j at a time. Their pixels stay in
 * registers; each weight is loaded from L1 once for all of them. */
INLINE void FN(dw_ordered_piece)(const int count, const int sources, const int terms, const int vectors, const convt_dw *d,
                                 const convt_dw_phase *phase, int c, int j, int n, int skipped)
{
    const convt_act act = *d->act;
    const convt_dw_phase *const first = phase, *const end = phase + phase->set_size;
    int some = count > 1;
    for (const convt_dw_phase *p = first; p < end; p++)
        some |= skipped ? p->outputs_after : p->outputs_before;
    if (!some) /* no phase has these outputs, so their pixel may be outside the input */
        return;
    /* The last vector overlaps the one before if it is not whole. */
    const int rest = d->cols - c, whole = vectors * VL;
    const ptrdiff_t in_ld = d->in_ld, out_ld = d->out_ld, last = (rest < whole ? rest : whole) - VL;
    const ptrdiff_t prefetched = c ? 0 : count * out_ld * (ptrdiff_t)sizeof(T); /* bytes prefetched per iteration */
    T *const outs = (T *)d->out + c + j * out_ld;
    const T *inputs[CONVT_DW_ORDERED], *weights[CONVT_DW_ORDERED];
    V start[4];
    V pixel[CONVT_DW_ORDERED][DW_PAIR + CONVT_DW_ORDERED - 1][4]; /* the pixel of j and term u is in place j - u + terms - 1 */
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++)
        start[v] = V_(load)((const T *)d->init + c + (v < vectors - 1 ? v * VL : last));
#pragma GCC unroll 2
    for (int s = 0; s < sources; s++) {
        inputs[s] = (const T *)d->in[s] + d->in_offset + phase->term->in + c + (j - skipped) * in_ld;
        weights[s] = (const T *)d->w[s] + c;
    }
    for (int i = 0; i < n; i += count) {
        const int repeats = i > n - count; /* 1 if fewer than `count` j are left: some of the last ones are computed twice */
        i = repeats ? n - count : i;
        T *const out = outs + i * out_ld;
        for (ptrdiff_t at = 0; at < prefetched; at += 64)
            __builtin_prefetch((const char *)out + DW_OUTPUT_PREFETCH + at, 0, 2);
#pragma GCC unroll 2
        for (int s = 0; s < sources; s++) {
            const T *x = inputs[s] + i * in_ld;
            if (terms > 1 && (i == 0 || repeats))
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    pixel[s][0][v] = V_(load)(x - in_ld + (v < vectors - 1 ? v * VL : last));
#pragma GCC unroll 2
            for (int u = terms - 1; u < terms - 1 + count; u++, x += in_ld)
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    pixel[s][u][v] = V_(load)(x + (v < vectors - 1 ? v * VL : last));
        }
        for (phase = first; phase < end; phase++) {
            if (count == 1 && !(skipped ? phase->outputs_after : phase->outputs_before))
                continue;
            const convt_dw_term *term = phase->term + skipped;
            const int remaining = phase->terms - skipped;
            T *const to = out + phase->out, *const next = to + out_ld;
            const T *w[CONVT_DW_ORDERED][CONVT_DW_ORDERED];
#pragma GCC unroll 2
            for (int u = 0; u < terms; u++)
#pragma GCC unroll 2
                for (int s = 0; s < sources; s++)
                    w[s][u] = weights[s] + term[u < remaining ? u : 0].w;
#define DW_SUMS(sums)                                                                                                    \
    _Pragma("GCC unroll 4") for (int v = 0; v < vectors; v++)                                                            \
    {                                                                                                                    \
        const ptrdiff_t at = v < vectors - 1 ? v * VL : last;                                                            \
        V acc[DW_PAIR];                                                                                                  \
        acc[0] = acc[count - 1] = start[v];                                                                              \
        _Pragma("GCC unroll 2") for (int s = 0; s < sources; s++)                                                        \
            _Pragma("GCC unroll 2") for (int u = 0; u < (sums); u++)                                                     \
            {                                                                                                            \
                V wt = V_(load)(w[s][u] + at);                                                                           \
                IN_REGISTER(wt); /* else GCC repeats the load for each use */                                            \
                _Pragma("GCC unroll 2") for (int k = 0; k < count; k++)                                                  \
                    acc[k] = V_(fma)(pixel[s][k - u + terms - 1][v], wt, acc[k]);                                        \
            }                                                                                                            \
        if (act.code != CONVT_NONE)                                                                                      \
            _Pragma("GCC unroll 2") for (int k = 0; k < count; k++)                                                      \
                acc[k] = V_(act_simple)(acc[k], &act);                                                                   \
        V_(store)(to + at, acc[0]);                                                                                      \
        if (count > 1)                                                                                                   \
            V_(store)(next + at, acc[count - 1]);                                                                        \
    }
            if (remaining >= terms) {
                DW_SUMS(terms)
            } else if (terms > 1) {
                DW_SUMS(terms - 1)
            }
#undef DW_SUMS
        }
#pragma GCC unroll 2
        for (int s = 0; terms > 1 && s < sources; s++)
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                pixel[s][0][v] = pixel[s][count][v];
    }
}

/* Functions by sources and vectors; none has more vectors than DW_VECTORS. They compute n outputs from j on; or, with n = 1,
 * one output before or after the run from a single term: the first one, or the one after `skipped` terms. */
#define DW_PIECE(sources, vectors)                                                                                        \
    static void FN(dw_ordered_##sources##_##vectors)(const convt_dw *d, const convt_dw_phase *phase, int c, int j, int n, \
                                                     int skipped)                                                         \
    {                                                                                                                     \
        if (vectors > DW_VECTORS)                                                                                         \
            return;                                                                                                       \
        if (n == 1)                                                                                                       \
            FN(dw_ordered_piece)(1, sources, 1, vectors, d, phase, c, j, 1, skipped);                                     \
        else if (phase->terms == 2)                                                                                       \
            FN(dw_ordered_piece)(DW_PAIR, sources, 2, vectors, d, phase, c, j, n, 0);                                     \
        else                                                                                                              \
            FN(dw_ordered_piece)(DW_PAIR, sources, 1, vectors, d, phase, c, j, n, 0);                                     \
    }
DW_PIECE(1, 1) DW_PIECE(1, 2) DW_PIECE(1, 3) DW_PIECE(1, 4) DW_PIECE(2, 1) DW_PIECE(2, 2) DW_PIECE(2, 3) DW_PIECE(2, 4)
#undef DW_PIECE

/* Compute all j, and the outputs before and after the run. With more vectors than DW_VECTORS, a few j at a time. */
static void FN(dw_run_ordered)(const convt_dw *d)
{
    static void (*const order[][4])(const convt_dw *, const convt_dw_phase *, int, int, int, int) = {
        {FN(dw_ordered_1_1), FN(dw_ordered_1_2), FN(dw_ordered_1_3), FN(dw_ordered_1_4)},
        {FN(dw_ordered_2_1), FN(dw_ordered_2_2), FN(dw_ordered_2_3), FN(dw_ordered_2_4)},
    };
    const int all = (d->cols + VL - 1) / VL, pieces = (all + DW_VECTORS - 1) / DW_VECTORS;
    const int vectors = (all + pieces - 1) / pieces;
    const int step = pieces == 1 && d->phase->set_size == d->phases ? d->n : d->n < DW_ORDERED_J ? d->n : DW_ORDERED_J;
    for (int j = d->has_before ? -1 : 0; j < d->n + (d->has_after ? 1 : 0);) {
        const int n = j < 0 || j >= d->n ? 1 : step, at = n > 1 && j + n > d->n ? d->n - n : j;
        for (const convt_dw_phase *phase = d->phase; phase < d->phase + d->phases; phase += phase->set_size)
            for (int c = 0; c < d->cols; c += vectors * VL) {
                const int left = (d->cols - c + VL - 1) / VL;
                order[d->sources - 1][(left < vectors ? left : vectors) - 1](d, phase, left == 1 && c > 0 ? d->cols - VL : c,
                                                                             at, n, j >= d->n);
            }
        j = n > 1 && j + n > d->n ? d->n : j + n;
    }
}
#undef DW_PAIR
#undef DW_VECTORS
#undef DW_ORDERED_J
#undef DW_OUTPUT_PREFETCH
