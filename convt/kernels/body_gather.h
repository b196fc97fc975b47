/* `gather` of the contract: rows of user memory (S) as T, by a map of columns. The includer defines the macros listed in
 * body_memory.h.
 *
 * Loop order: vectors of columns, then rows, because the indices of a vector serve all rows. Contiguous columns are copied
 * (`widen`). If S is T, columns within one or two vectors are permuted in registers (HAVE_PERMUTE_2: AVX2, AVX-512), those
 * within eight vectors too (HAVE_PERMUTE: AVX-512), and others take a gather instruction. If S is not T, elements are copied
 * one by one.
 */

#ifdef S_IS_T
#define EACH_ROW(value)                              \
    for (int r = 0; r < rows; r++) {                 \
        const S *row = from + r * rs;                \
        __builtin_prefetch(row + 8 * rs);            \
        const V v = value;                           \
        if (whole)                                   \
            V_(store)(to + r * ld, v);               \
        else                                         \
            V_(storen)(to + r * ld, v, n);           \
    }
#ifdef HAVE_PERMUTE
INLINE int FN(clamp_lanes)(int n) { return n < 0 ? 0 : n < VL ? n : VL; }

/* Return lanes of a row's first `span` elements by index, permuted from pairs of vectors. `has[p]` marks the lanes of pair
 * p. */
INLINE V FN(permute_pairs)(const int pairs, const T *row, int span, const int32_t *index, const V *has)
{
    V v = V_(permute_2)(V_(load)(row), V_(load)(row + VL), index); /* indices count modulo two vectors */
#pragma GCC unroll 4
    for (int p = 1; p < pairs; p++) {
        const int at = 2 * p * VL, left = span - at;
        const V low = V_(loadn)(row + at, FN(clamp_lanes)(left)), high = V_(loadn)(row + at + VL, FN(clamp_lanes)(left - VL));
        v = V_(select)(has[p] > V_(set1)(0), V_(permute_2)(low, high, index), v);
    }
    return v;
}

/* Gather a vector of columns within eight vectors of a row: faster than a gather instruction. */
static __attribute__((noinline)) void FN(gather_pairs)(T *to, ptrdiff_t ld, const S *from, ptrdiff_t rs, int span,
                                                       const int32_t *index, int rows, int n, int whole)
{
    V has[4];
    for (int p = 0; p < 4; p++) {
        T lanes[VL];
        for (int i = 0; i < VL; i++)
            lanes[i] = index[i] / (2 * VL) == p;
        has[p] = V_(load)(lanes);
    }
    if (span <= 4 * VL)
        EACH_ROW(FN(permute_pairs)(2, row, span, index, has))
    else
        EACH_ROW(FN(permute_pairs)(4, row, span, index, has))
}
#endif
#endif

/* Gather one vector of columns, or its first n lanes; with `whole` the other lanes may be overwritten. */
INLINE void FN(gather_vector)(T *to, ptrdiff_t ld, const S *from, ptrdiff_t rs, const int64_t *map, int rows, int n, int whole)
{
#ifdef S_IS_T
    /* 32-bit indices relative to the lowest column; a vector that is not full repeats its last lane. */
    int32_t index[VL];
    int64_t low = map[0], high = map[0];
    for (int i = 1; i < n; i++) {
        low = map[i] < low ? map[i] : low;
        high = map[i] > high ? map[i] : high;
    }
    for (int i = 0; i < VL; i++)
        index[i] = (int32_t)(map[i < n ? i : n - 1] - low);
    from += low;
    high -= low;
#ifdef HAVE_PERMUTE_2
    const int span = high < 8 * VL ? (int)high + 1 : 0;
    if (span && span <= VL) {
        EACH_ROW(V_(permute_2)(V_(loadn)(row, span), V_(set1)(0), index));
        return;
    }
    if (span && span <= 2 * VL) {
        EACH_ROW(V_(permute_2)(V_(load)(row), V_(loadn)(row + VL, span - VL), index));
        return;
    }
#ifdef HAVE_PERMUTE
    if (span) {
        FN(gather_pairs)(to, ld, from, rs, span, index, rows, n, whole);
        return;
    }
#endif
#endif
    if (high == (int32_t)high) {
        EACH_ROW(V_(gather)(row, index));
        return;
    }
    from -= low;
#endif
    (void)whole;
    for (int r = 0; r < rows; r++) {
        S some[VL];
        for (int i = 0; i < n; i++)
            some[i] = from[r * rs + map[i]];
        V_(storen)(to + r * ld, S_LOADN(some, n), n);
    }
}

#undef EACH_ROW

/* The least number of contiguous elements that are copied, not gathered. */
#if defined(S_IS_T) && defined(HAVE_PERMUTE)
#define MIN_COPIED VL
#else
#define MIN_COPIED (VL / 2)
#endif
static void FN(gather)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, const int64_t *map, int rows, int cols,
                       int cols_writable)
{
    for (int c = 0, n; c < cols; c += n) {
        T *to = (T *)dst + c;
        n = 1;
        while (c + n < cols && map[c + n] == map[c] + n)
            n++;
        if (n >= MIN_COPIED) {
            FN(widen)(to, ld, (const S *)src + map[c], rs, 1, rows, n, n);
            continue;
        }
        n = cols - c < VL ? cols - c : VL;
        FN(gather_vector)(to, ld, src, rs, map + c, rows, n, c + VL <= cols_writable);
    }
}
#undef MIN_COPIED
