/* `across` and `overlap_across` of the contract: a GEMM of few columns with pixels in lanes, and the overlap-add of its
 * products. The includer defines the macros listed in body_memory.h.
 *
 * `across`. Register tile: mr <= 8 rows by 1, 2 or 4 vectors of pixels (ACROSS_NV, PLANES_NV; more with the 32 registers of
 * AVX-512). Loop order: tiles of pixels, then depth, then rows; an element of A is broadcast and multiplied by vectors of
 * pixels. If channels are contiguous (rs = 1), VL pixels by PART channels at a time are transposed in registers. If pixels
 * are contiguous (cs = 1, planes), they are loaded directly.
 *
 * `overlap_across`. Loop order: vectors of j, then lanes, then terms. Lanes whose outputs are contiguous are interleaved before
 * the store.
 */

/* Store vector v as elements [at, at + VL) of an array of `count` contiguous elements. Elements from `count` on are left
 * out. */
INLINE void FN(store_first)(S *out, V v, int at, int count)
{
    if (at + VL <= count)
        S_STORE(out + at, v);
    else if (at < count)
        S_STOREN(out + at, v, count - at);
}

/* Store the sums of nv vectors of pixels from pixel `first` on, or add them to `out` (add). */
INLINE void FN(across_store)(const int mr, const int nv, const convt_across *t, int first, V acc[][4])
{
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            T *to = (T *)t->out + m * t->ld + first + v * VL;
            if (t->add)
                acc[m][v] += V_(load)(to);
            V_(store)(to, acc[m][v]);
        }
}

#define PLANES_AHEAD 32 /* elements of a plane between the last read and the prefetch */

/* `across` with contiguous channels (rs = 1), for nv vectors of pixels from pixel `first` on; if not `full`, for one vector of
 * n pixels. */
INLINE void FN(across_mn)(const int mr, const int nv, const int full, const convt_across *t, int first, int n)
{
    const ptrdiff_t cs = t->cs;
    const S *from = (const S *)t->src + first * cs;
    ptrdiff_t at[PART][VL / PART];
    V acc[CONVT_ACROSS_MR][4];
    FN(place_parts)(full, at, cs, n);
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)((T)-0.0);
    for (int r = 0; r < t->kc; r += PART) {
        /* The last PART rows end at the depth, so they may overlap the rows before: the first `again` of them are skipped. */
        const int again = r + PART <= t->kc ? 0 : r + PART - t->kc;
        const T *a = (const T *)t->a + r - again;
        V x[2][PART];
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const S *pixels = from + v * VL * cs + r - again;
#pragma GCC unroll 4
            for (int p = 0; p < PART; p++) {
                if (full)
                    __builtin_prefetch(from + (4 * VL) * cs + (v * t->kc + r + p) * VL);
                x[v][p] = FN(load_parts)(pixels + p * cs, at[p]);
            }
            FN(transpose_parts)(x[v]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < PART; p++)
            if (p >= again)
#pragma GCC unroll 8
                for (int m = 0; m < mr; m++) {
                    const V weight = V_(set1)(a[m * CONVT_LDA + p]);
#pragma GCC unroll 2
                    for (int v = 0; v < nv; v++)
                        acc[m][v] = V_(fma)(weight, x[v][p], acc[m][v]);
                }
    }
    FN(across_store)(mr, nv, t, first, acc);
}

/* `across` with contiguous pixels (cs = 1), channel by channel: no transposition. Arguments as for across_mn. */
INLINE void FN(planes_mn)(const int mr, const int nv, const int full, const convt_across *t, int first, int n)
{
    const S *from = (const S *)t->src + first;
    const T *a = t->a;
    V acc[CONVT_ACROSS_MR][4];
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)((T)-0.0);
    for (int k = 0; k < t->kc; k++, from += t->rs, a++) {
        V x[4];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            if (full)
                __builtin_prefetch(from + (nv + v) * VL + PLANES_AHEAD);
            x[v] = full ? S_LOAD(from + v * VL) : S_LOADN(from, n);
        }
#pragma GCC unroll 8
        for (int m = 0; m < mr; m++) {
            const V weight = V_(set1)(a[m * CONVT_LDA]);
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(fma)(weight, x[v], acc[m][v]);
        }
    }
    FN(across_store)(mr, nv, t, first, acc);
}

/* Vectors of pixels per register tile: twice as many with 64 bytes, because AVX-512 has twice as many registers. Planes need no
 * registers for transpositions. Few rows take 4 vectors, to have as many accumulators as multiply-adds in flight. */
#define ACROSS_NV (sizeof(V) == 64 ? 2 : 1)
#define PLANES_NV(mr) ((mr) <= 3 ? 4 : (mr) <= 6 || sizeof(V) == 64 ? 2 : 1)
#define EACH(function, nv)                                 \
    for (; p + (nv) * VL <= t->pixels; p += (nv) * VL)     \
        function(mr, nv, 1, t, p, VL);                     \
    for (; p < t->pixels; p += VL)                         \
        function(mr, 1, 0, t, p, t->pixels - p < VL ? t->pixels - p : VL);
#define ACROSS(n)                                          \
    static void FN(across_##n)(const convt_across *t)      \
    {                                                      \
        const int mr = n;                                  \
        int p = 0;                                         \
        EACH(FN(across_mn), ACROSS_NV)                     \
    }                                                      \
    static void FN(planes_##n)(const convt_across *t)      \
    {                                                      \
        const int mr = n;                                  \
        int p = 0;                                         \
        EACH(FN(planes_mn), PLANES_NV(n))                  \
    }
ACROSS(1) ACROSS(2) ACROSS(3) ACROSS(4) ACROSS(5) ACROSS(6) ACROSS(7) ACROSS(8)
static void FN(across)(int mr, const convt_across *t)
{
    static void (*const some[2][CONVT_ACROSS_MR])(const convt_across *) = {
        {FN(across_1), FN(across_2), FN(across_3), FN(across_4), FN(across_5), FN(across_6), FN(across_7), FN(across_8)},
        {FN(planes_1), FN(planes_2), FN(planes_3), FN(planes_4), FN(planes_5), FN(planes_6), FN(planes_7), FN(planes_8)},
    };
    const int planes = t->cs == 1;
    CONVT_ASSERT(mr >= 1 && mr <= CONVT_ACROSS_MR && t->kc <= CONVT_KC && (planes || (t->kc >= PART && t->rs == 1)));
    some[planes][mr - 1](t);
}
#undef ACROSS
#undef EACH
#undef ACROSS_NV
#undef PLANES_NV
#undef PLANES_AHEAD

/* Return lane `l` of `overlap_across` for VL values of j, before the activation. `inside`: all pixels that are summed exist. */
INLINE V FN(across_sum)(const convt_overlap *o, const int inside, int l, int64_t j, V lane)
{
    const ptrdiff_t next = o->lanes * o->ld - 1;
    const T *from = (const T *)o->col + l * o->ld + (j - o->i0);
    V sum = V_(set1)(((const T *)o->init)[l]);
    for (int u = 0, c = l; u < o->terms && c < o->cols; u++, c += o->lanes, from += next) {
        const int64_t i = j - u;
        if (inside)
            sum += V_(load)(from);
        else if (i > o->i0 - VL && i < o->i1) /* lanes of other pixels are -0, the neutral element of addition */
            sum += V_(select)((lane >= V_(set1)((T)(o->i0 - i))) & (lane < V_(set1)((T)(o->i1 - i))), V_(load)(from),
                              V_(set1)((T)-0.0));
    }
    return sum;
}

/* Store lanes first, first + step, ..., n (1, 2 or 4) of them, interleaved: `count` contiguous elements. */
INLINE void FN(across_zipped)(const int n, int first, int step, const convt_overlap *o, const int inside, int64_t j, V lane,
                              S *out, int count)
{
    V v[4];
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        v[i] = FN(across_sum)(o, inside, first + i * step, j, lane);
    V_(act_all)(v, n, o->act);
    FN(zip)(n, v);
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        FN(store_first)(out, v[i], i * VL, count);
}

#define ACROSS_CURVED 8 /* vectors whose curved activations are computed together */

/* across_zipped for so many j that their outputs are ACROSS_CURVED vectors. All pixels must exist. */
INLINE void FN(across_curved)(const int n, int first, int step, const convt_overlap *o, int64_t j, V lane, S *out)
{
    V v[ACROSS_CURVED];
#pragma GCC unroll 8
    for (int i = 0; i < ACROSS_CURVED; i++)
        v[i] = FN(across_sum)(o, 1, first + i % n * step, j + i / n * VL, lane);
    V_(act_all)(v, ACROSS_CURVED, o->act);
#pragma GCC unroll 8
    for (int i = 0; i < ACROSS_CURVED; i += n)
        FN(zip)(n, v + i);
#pragma GCC unroll 8
    for (int i = 0; i < ACROSS_CURVED; i++)
        S_STORE(out + i * VL, v[i]);
}

/* across_zipped for any n. If n is not 1, 2 or 4, the outputs are gathered by `index`. */
INLINE void FN(across_lanes)(int n, int first, int step, const convt_overlap *o, const int inside, int64_t j, V lane,
                             const int32_t *index, S *out, int count)
{
    T sums[CONVT_ACROSS * VL];
    if (n == 1)
        FN(across_zipped)(1, first, step, o, inside, j, lane, out, count);
    else if (n == 2)
        FN(across_zipped)(2, first, step, o, inside, j, lane, out, count);
    else if (n == 4)
        FN(across_zipped)(4, first, step, o, inside, j, lane, out, count);
    else {
        const int curved = o->act->code > CONVT_LEAKY;
        for (int i = 0; i < n; i++) {
            const V sum = FN(across_sum)(o, inside, first + i * step, j, lane);
            V_(store)(sums + i * VL, curved ? sum : V_(act_simple)(sum, o->act));
        }
        for (int i = 0, some; curved && i < n; i += some) {
            V v[ACROSS_CURVED];
            some = n - i < ACROSS_CURVED ? n - i : ACROSS_CURVED;
            for (int e = 0; e < some; e++)
                v[e] = V_(load)(sums + (i + e) * VL);
            V_(act_all)(v, some, o->act);
            for (int e = 0; e < some; e++)
                V_(store)(sums + (i + e) * VL, v[e]);
        }
        for (int i = 0; i < n; i++)
            FN(store_first)(out, V_(gather)(sums, index + i * VL), i * VL, count);
    }
}

static void FN(overlap_across)(const convt_overlap *run)
{
    convt_overlap mine = *run;
    if (mine.i0 >= mine.i1) /* without pixels, `col` need not have room for the vectors that would be read */
        mine.terms = 0;
    const convt_overlap *const o = &mine; /* a local copy, which no store can alias */
    int32_t index[CONVT_ACROSS * VL];
    CONVT_ASSERT(o->lanes <= CONVT_ACROSS);
    const int channels = o->channels, all = o->lane_lo == 0 && o->lane_hi == o->lanes;
    /* Sets of lanes with contiguous outputs: one set of all channels if channels are adjacent, else one set for each
     * channel. */
    const int together = all && (channels == 1 || o->out_c == 1) && o->out_x == channels && o->out_j == o->lanes;
    const int runs = together ? 1 : channels, set = o->lanes / runs;
    const int whole = together || (all && o->out_x == 1 && o->out_j == set);
    if (set != 1 && set != 2 && set != 4)
        for (int e = 0, j = 0, l = 0; whole && e < set * VL; e++) {
            index[e] = l * VL + j;
            if (++l == set)
                l = 0, j++;
        }
    const V lane = FN(lanes)();
    const int curved = whole && o->act->code > CONVT_LEAKY && (set == 1 || set == 2 || set == 4) ? ACROSS_CURVED / set * VL : 0;
    for (int64_t j = o->j0; j < o->j1; j += VL) {
        S *out = (S *)o->out + (j - o->j0) * o->out_j;
        if (curved && o->i0 < o->i1 && j - (o->terms - 1) >= o->i0 && j + curved <= o->i1 && j + curved <= o->j1) {
            for (int c = 0; c < runs; c++)
                if (set == 1)
                    FN(across_curved)(1, c, runs, o, j, lane, out + c * o->out_c);
                else if (set == 2)
                    FN(across_curved)(2, c, runs, o, j, lane, out + c * o->out_c);
                else
                    FN(across_curved)(4, c, runs, o, j, lane, out + c * o->out_c);
            j += curved - VL;
            continue;
        }
        const int n = o->j1 - j < VL ? (int)(o->j1 - j) : VL;
        const int inside = o->i0 < o->i1 && j - (o->terms - 1) >= o->i0 && j + n <= o->i1;
        for (int c = 0; whole && c < runs; c++) {
            if (inside)
                FN(across_lanes)(set, c, runs, o, 1, j, lane, index, out + c * o->out_c, n * set);
            else
                FN(across_lanes)(set, c, runs, o, 0, j, lane, index, out + c * o->out_c, n * set);
        }
        if (whole)
            continue;
        for (int l = o->lane_lo, c = l % channels, x = l / channels; l < o->lane_hi; l++) {
            S some[VL];
            S_STORE(some, V_(act)(FN(across_sum)(o, inside, l, j, lane), o->act));
            for (int i = 0; i < n; i++)
                out[i * o->out_j + x * o->out_x + c * o->out_c] = some[i];
            if (++c == channels)
                c = 0, x++;
        }
    }
}
#undef ACROSS_CURVED
