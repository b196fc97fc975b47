/* `pixel_gemm` and `overlap_pixels` of the contract: a GEMM of few columns with pixels in lanes, and the overlap-add of its
 * products. The includer defines the macros listed in body_memory.h.
 *
 * `pixel_gemm`. Register tile: mr <= 8 rows by 1, 2 or 4 vectors of pixels (CHANNELS_NV, PLANES_NV). Loop order: tiles of
 * pixels, then depth, then rows; an element of A is broadcast and multiplied by vectors of pixels. If channels are contiguous
 * (rs = 1), VL pixels by SEGMENT channels at a time are transposed in registers. If pixels are contiguous (cs = 1, planes),
 * they are loaded directly, and copied if the caller asks for it.
 *
 * `overlap_pixels`. Loop order: vectors of j, then lanes, then terms. Lanes whose outputs are contiguous are interleaved before
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
INLINE void FN(pixel_gemm_store)(const int mr, const int nv, const convt_pixel_gemm *t, int first, V acc[][4])
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

/* `pixel_gemm` with contiguous channels (rs = 1), for nv vectors of pixels from pixel `first` on; if not `full`, for one vector
 * of n pixels. */
INLINE void FN(channels_mn)(const int mr, const int nv, const int full, const convt_pixel_gemm *t, int first, int n)
{
    const ptrdiff_t cs = t->cs;
    const S *from = (const S *)t->src + first * cs;
    ptrdiff_t at[SEGMENT][VL / SEGMENT];
    V acc[CONVT_PIXEL_MR][4];
    FN(segment_offsets)(full, at, cs, n);
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)((T)-0.0);
    for (int r = 0; r < t->kc; r += SEGMENT) {
        /* The last SEGMENT rows end at the depth, so they may overlap the rows before: the first `repeated` of them are
         * skipped. */
        const int repeated = r + SEGMENT <= t->kc ? 0 : r + SEGMENT - t->kc;
        const T *a = (const T *)t->a + r - repeated;
        V x[2][SEGMENT];
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++) {
            const S *pixels = from + v * VL * cs + r - repeated;
#pragma GCC unroll 4
            for (int p = 0; p < SEGMENT; p++) {
                if (full)
                    __builtin_prefetch(from + (4 * VL) * cs + (v * t->kc + r + p) * VL);
                x[v][p] = FN(load_segments)(pixels + p * cs, at[p]);
            }
            FN(transpose_segments)(x[v]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++)
            if (p >= repeated)
#pragma GCC unroll 8
                for (int m = 0; m < mr; m++) {
                    const V weight = V_(set1)(a[m * CONVT_LDA + p]);
#pragma GCC unroll 2
                    for (int v = 0; v < nv; v++)
                        acc[m][v] = V_(fma)(weight, x[v][p], acc[m][v]);
                }
    }
    FN(pixel_gemm_store)(mr, nv, t, first, acc);
}

/* `pixel_gemm` with contiguous pixels (cs = 1), channel by channel: no transposition. If not `full`, the last vector has n
 * pixels. `alone`: no copy, no pause, and next_rs = rs. Other arguments as for channels_mn. */
INLINE void FN(planes_mn)(const int mr, const int nv, const int full, const int alone, const convt_pixel_gemm *t, int first,
                          int n)
{
    const S *from = (const S *)t->src + first, *next = (const S *)t->next + first;
    const ptrdiff_t distance = (const char *)next - (const char *)from;
    S *copy = t->copy ? (S *)t->copy + first : NULL;
    const T *a = t->a;
    V acc[CONVT_PIXEL_MR][4];
#pragma GCC unroll 8
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)((T)-0.0);
    const int kc = t->kc, pause = alone ? 0 : t->pause;
    for (int k = 0, last; k < kc; next += t->next_rs) {
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            __builtin_prefetch((alone ? (const S *)((const char *)from + distance) : next) + (nv + v) * VL);
        last = k + pause < kc ? k + pause : kc - 1;
        for (; k <= last; k++, from += t->rs, a++) {
            V x[4];
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                x[v] = full || v < nv - 1 ? S_LOAD(from + v * VL) : S_LOADN(from + v * VL, n);
            if (!alone && copy) {
#pragma GCC unroll 4
                for (int v = 0; v < nv; v++)
                    S_STORE(copy + v * VL, x[v]);
                copy += t->copy_ld;
            }
#pragma GCC unroll 8
            for (int m = 0; m < mr; m++) {
                const V weight = V_(set1)(a[m * CONVT_LDA]);
#pragma GCC unroll 4
                for (int v = 0; v < nv; v++)
                    acc[m][v] = V_(fma)(weight, x[v], acc[m][v]);
            }
        }
    }
    FN(pixel_gemm_store)(mr, nv, t, first, acc);
}

/* Vectors of pixels per register tile: as many as there are registers for their accumulators. Contiguous channels need registers
 * for transpositions, too. */
#define CHANNELS_NV (ACCUMULATORS >= 3 * CONVT_PIXEL_MR ? 2 : 1)
#define PLANES_NV(mr) ((mr) * 4 <= ACCUMULATORS ? 4 : (mr) * 2 <= ACCUMULATORS ? 2 : 1)
#define PIXEL_GEMM(m)                                                                         \
    static void FN(channels_##m)(const convt_pixel_gemm *t)                                   \
    {                                                                                         \
        int p = 0;                                                                            \
        for (; p + CHANNELS_NV * VL <= t->pixels; p += CHANNELS_NV * VL)                      \
            FN(channels_mn)(m, CHANNELS_NV, 1, t, p, VL);                                     \
        for (; p < t->pixels; p += VL)                                                        \
            FN(channels_mn)(m, 1, 0, t, p, t->pixels - p < VL ? t->pixels - p : VL);          \
    }                                                                                         \
    INLINE void FN(planes_of_##m)(const int alone, const int nv, const convt_pixel_gemm *t)   \
    {                                                                                         \
        int p = 0;                                                                            \
        for (; p + nv * VL <= t->pixels; p += nv * VL)                                        \
            FN(planes_mn)(m, nv, 1, alone, t, p, VL);                                         \
        for (; nv > 2 && p + 2 * VL <= t->pixels; p += 2 * VL)                                \
            FN(planes_mn)(m, 2, 1, alone, t, p, VL);                                          \
        if (nv > 1 && p + VL < t->pixels)                                                     \
            FN(planes_mn)(m, 2, 0, alone, t, p, t->pixels - p - VL);                          \
        else                                                                                  \
            for (; p < t->pixels; p += VL)                                                    \
                FN(planes_mn)(m, 1, 0, alone, t, p, t->pixels - p < VL ? t->pixels - p : VL); \
    }                                                                                         \
    static void FN(planes_##m)(const convt_pixel_gemm *t)                                     \
    {                                                                                         \
        if (t->copy || t->pause)                                                              \
            FN(planes_of_##m)(0, PLANES_NV(m) < 2 ? 1 : 2, t);                                \
        else                                                                                  \
            FN(planes_of_##m)(1, PLANES_NV(m), t);                                            \
    }
PIXEL_GEMM(1) PIXEL_GEMM(2) PIXEL_GEMM(3) PIXEL_GEMM(4) PIXEL_GEMM(5) PIXEL_GEMM(6) PIXEL_GEMM(7) PIXEL_GEMM(8)
static void FN(pixel_gemm)(int mr, const convt_pixel_gemm *t)
{
    static void (*const kernels[2][CONVT_PIXEL_MR])(const convt_pixel_gemm *) = {
        {FN(channels_1), FN(channels_2), FN(channels_3), FN(channels_4), FN(channels_5), FN(channels_6), FN(channels_7),
         FN(channels_8)},
        {FN(planes_1), FN(planes_2), FN(planes_3), FN(planes_4), FN(planes_5), FN(planes_6), FN(planes_7), FN(planes_8)},
    };
    const int planes = t->cs == 1;
    CONVT_ASSERT(mr >= 1 && mr <= CONVT_PIXEL_MR && t->kc <= CONVT_KC && (planes || (t->kc >= SEGMENT && t->rs == 1)));
    kernels[planes][mr - 1](t);
}
#undef PIXEL_GEMM
#undef CHANNELS_NV
#undef PLANES_NV

/* Return lane `l` of `overlap_pixels` for VL values of j, before the activation. `inside`: all pixels that are summed exist. */
INLINE V FN(overlap_pixels_sum)(const convt_overlap *o, const int inside, const int terms, int l, int64_t j, V lane)
{
    const ptrdiff_t next = o->lanes * o->ld - 1;
    const T *from = (const T *)o->col + l * o->ld + (j - o->i0);
    V sum = V_(set1)(((const T *)o->init)[l]);
    for (int u = 0, c = l; u < terms && c < o->cols; u++, c += o->lanes, from += next) {
        const int64_t i = j - u;
        if (inside)
            sum += V_(load)(from);
        else if (i > o->i0 - VL && i < o->i1) /* lanes of other pixels are -0, the neutral element of addition */
            sum += V_(select)((lane >= V_(set1)((T)(o->i0 - i))) & (lane < V_(set1)((T)(o->i1 - i))), V_(load)(from),
                              V_(set1)((T)-0.0));
    }
    return sum;
}

#define ACT_VECTORS 8 /* vectors whose transcendental activations are computed together */

/* Store lanes first, first + step, ..., n (at most 8) of them, interleaved, for `count` values of j, `vectors` vectors at a
 * time. All pixels must exist. Return how many values of j are left, too few for so many vectors. */
INLINE int64_t FN(overlap_pixels_run)(const int n, const int vectors, const int terms, int first, int step,
                                      const convt_overlap *o, int64_t j, int64_t count, S *out)
{
    const int at_once = vectors / n * VL;
    for (; count >= at_once; count -= at_once, j += at_once, out += vectors * VL) {
        V v[ACT_VECTORS];
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            v[i] = FN(overlap_pixels_sum)(o, 1, terms, first + i % n * step, j + i / n * VL, V_(set1)(0));
        V_(act_all)(v, vectors, o->act);
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i += n)
            FN(zip)(n, v + i);
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            S_STORE(out + i * VL, v[i]);
    }
    return count;
}

/* overlap_pixels_run for whole vectors of j, with more vectors at a time for transcendental activations. */
INLINE void FN(overlap_pixels_inside)(const int n, int first, int step, const convt_overlap *o, int64_t j, int64_t count, S *out)
{
    if (n <= 4 && n != 3 && o->act->code > CONVT_LEAKY) {
        const int64_t done = count - FN(overlap_pixels_run)(n, ACT_VECTORS, o->terms, first, step, o, j, count, out);
        j += done, count -= done, out += done * n;
    }
    if (o->terms == 1)
        FN(overlap_pixels_run)(n, n, 1, first, step, o, j, count, out);
    else if (o->terms == 2)
        FN(overlap_pixels_run)(n, n, 2, first, step, o, j, count, out);
    else
        FN(overlap_pixels_run)(n, n, o->terms, first, step, o, j, count, out);
}

/* Store the same lanes for the first `count` elements of VL values of j, whose pixels need not exist. */
INLINE void FN(overlap_pixels_edge)(const int n, int first, int step, const convt_overlap *o, int64_t j, V lane, S *out, int count)
{
    V v[8];
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        v[i] = FN(overlap_pixels_sum)(o, 0, o->terms, first + i * step, j, lane);
    V_(act_all)(v, n, o->act);
    FN(zip)(n, v);
#pragma GCC unroll 8
    for (int i = 0; i < n; i++)
        FN(store_first)(out, v[i], i * VL, count);
}

/* Check whether `zip` interleaves the sums of n lanes. With vectors of less than a cache line, permuting 5 to 7 vectors takes
 * longer than gathering them from L1. */
#define ZIPS_SUMS(n) (CAN_ZIP(n) && (sizeof(V) == 64 || (n) < 5 || (n) == 8))

/* Store n lanes, which `zip` interleaves: for `vectors` whole vectors of j whose pixels exist or, if 0, for an edge. */
static __attribute__((noinline)) void FN(overlap_pixels_zip)(int n, int first, int step, const convt_overlap *o, int64_t j,
                                                             int64_t vectors, V lane, S *out, int count)
{
    switch (n) {
#define CASE(m)                                                                          \
    case m:                                                                              \
        if (vectors)                                                                     \
            FN(overlap_pixels_inside)(m, first, step, o, j, vectors * VL, out);          \
        else                                                                             \
            FN(overlap_pixels_edge)(m, first, step, o, j, lane, out, count);             \
        break;
        ZIPPED(CASE)
#undef CASE
    }
}

/* Store n lanes of VL values of j, more than `zip` interleaves: gathered. */
INLINE void FN(overlap_pixels_gather)(int n, int first, int step, const convt_overlap *o, const int inside, int64_t j, V lane,
                                      const int32_t *index, S *out, int count)
{
    T sums[CONVT_PIXEL_LANES * VL];
    for (int i = 0, some; i < n; i += some) {
        V v[ACT_VECTORS];
        some = n - i < ACT_VECTORS ? n - i : ACT_VECTORS;
        for (int e = 0; e < some; e++)
            v[e] = FN(overlap_pixels_sum)(o, inside, o->terms, first + (i + e) * step, j, lane);
        V_(act_all)(v, some, o->act);
        for (int e = 0; e < some; e++)
            V_(store)(sums + (i + e) * VL, v[e]);
    }
    for (int i = 0; i < n; i++)
        FN(store_first)(out, V_(gather)(sums, index + i * VL), i * VL, count);
}

static void FN(overlap_pixels)(const convt_overlap *run)
{
    convt_overlap local = *run;
    if (local.i0 >= local.i1) /* without pixels, `col` need not have room for the vectors that would be read */
        local.terms = 0;
    const convt_overlap *const o = &local; /* a local copy, which no store can alias */
    int32_t index[CONVT_PIXEL_LANES * VL];
    CONVT_ASSERT(o->lanes <= CONVT_PIXEL_LANES);
    const int channels = o->channels, all = o->lane_lo == 0 && o->lane_hi == o->lanes;
    /* Sets of lanes with contiguous outputs: one set of all channels if channels are adjacent, else one set for each
     * channel. */
    const int one_set = all && (channels == 1 || o->out_c == 1) && o->out_x == channels && o->out_j == o->lanes;
    const int sets = one_set ? 1 : channels, n = o->lanes / sets;
    const int whole = one_set || (all && o->out_x == 1 && o->out_j == n), zips = ZIPS_SUMS(n);
    if (whole && !zips)
        FN(interleaving)(n, VL, index);
    const V lane = FN(lanes)();
    const int64_t last = o->i1 < o->j1 ? o->i1 : o->j1;
    for (int64_t j = o->j0, vectors; j < o->j1; j += (vectors ? vectors : 1) * VL) {
        S *out = (S *)o->out + (j - o->j0) * o->out_j;
        const int js = o->j1 - j < VL ? (int)(o->j1 - j) : VL;
        const int inside = o->i0 < o->i1 && j - (o->terms - 1) >= o->i0 && j + js <= o->i1;
        vectors = whole && zips && inside ? (last - j) / VL : 0;
        for (int c = 0; whole && c < sets; c++) {
            S *to = out + c * o->out_c;
            if (zips)
                FN(overlap_pixels_zip)(n, c, sets, o, j, vectors, lane, to, js * n);
            else if (inside)
                FN(overlap_pixels_gather)(n, c, sets, o, 1, j, lane, index, to, js * n);
            else
                FN(overlap_pixels_gather)(n, c, sets, o, 0, j, lane, index, to, js * n);
        }
        if (whole)
            continue;
        for (int l = o->lane_lo, c = l % channels, x = l / channels; l < o->lane_hi; l++) {
            S some[VL];
            S_STORE(some, V_(act)(FN(overlap_pixels_sum)(o, inside, o->terms, l, j, lane), o->act));
            for (int i = 0; i < js; i++)
                out[i * o->out_j + x * o->out_x + c * o->out_c] = some[i];
            if (++c == channels)
                c = 0, x++;
        }
    }
}
#undef ACT_VECTORS
#undef ZIPS_SUMS
