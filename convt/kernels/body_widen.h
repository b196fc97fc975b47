/* `widen` of the contract: rows of user memory (S) as T. On vectors it is also `pack`. The includer defines T, V, VL, V_(op),
 * FN(name), S, S_LOAD, S_LOADN, and S_IS_T if S is T.
 *
 * If rows are contiguous (cs = 1), vectors are converted in place. If columns are contiguous (rs = 1), SEGMENT rows by VL
 * columns at a time are transposed in registers; loop order: vectors of columns, then rows. Other strides go through the stack.
 */

/* Elements of T in a segment, 16 bytes of a vector. Shuffles within segments are the cheapest. */
#define SEGMENT ((int)(16 / sizeof(T)))

/* Load a vector whose segments start at from + at[i]. */
INLINE V FN(load_segments)(const S *from, const ptrdiff_t *at)
{
#ifdef S_IS_T
    return V_(load_segments)(from, at);
#else
    S some[VL];
#pragma GCC unroll 4
    for (int i = 0; i < VL / SEGMENT; i++)
        memcpy(some + i * SEGMENT, from + at[i], SEGMENT * sizeof(S));
    return S_LOAD(some);
#endif
}

/* Return the vector of lane numbers 0, 1, ..., VL - 1. */
INLINE V FN(lanes)(void)
{
    T number[VL];
    for (int i = 0; i < VL; i++)
        number[i] = (T)i;
    return V_(load)(number);
}

/* Transpose the SEGMENT x SEGMENT elements of each segment of SEGMENT vectors. */
INLINE void FN(transpose_segments)(V *v)
{
    V u[SEGMENT];
#pragma GCC unroll 2
    for (int step = 1; step < SEGMENT; step *= 2) {
#pragma GCC unroll 2
        for (int p = 0; p < SEGMENT / 2; p++) {
            u[2 * p] = V_(zip_low_segments)(v[p], v[p + SEGMENT / 2]);
            u[2 * p + 1] = V_(zip_high_segments)(v[p], v[p + SEGMENT / 2]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++)
            v[p] = u[p];
    }
}

/* Compute `at`, the start of each segment of SEGMENT vectors whose transpose has rows of `cols` columns, `cs` apart. Columns
 * beyond `cols` read the last one. */
INLINE void FN(segment_offsets)(const int full, ptrdiff_t at[SEGMENT][VL / SEGMENT], ptrdiff_t cs, int cols)
{
#pragma GCC unroll 4
    for (int p = 0; p < SEGMENT; p++)
#pragma GCC unroll 4
        for (int i = 0; i < VL / SEGMENT; i++)
            at[p][i] = (full || i * SEGMENT + p < cols ? i * SEGMENT : cols - 1 - p) * cs;
}

/* Widen up to VL contiguous columns (`full`: VL), SEGMENT rows at a time. The last rows may be written twice. */
INLINE void FN(widen_columns)(const int full, T *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int cols, int padded)
{
    const V lane = FN(lanes)();
    ptrdiff_t at[SEGMENT][VL / SEGMENT];
    FN(segment_offsets)(full, at, cs, cols);
    for (int r = 0; r < rows; r += SEGMENT) {
        V v[SEGMENT];
        r = r + SEGMENT <= rows ? r : rows - SEGMENT;
        if (full) /* the next columns */
#pragma GCC unroll 4
            for (int p = 0; p < SEGMENT; p++)
                __builtin_prefetch(from + 2 * VL * cs + (r + p) * VL);
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++)
            v[p] = FN(load_segments)(from + p * cs + r, at[p]);
        FN(transpose_segments)(v);
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++)
            if (full)
                V_(store)(to + (r + p) * ld, v[p]);
            else if (padded >= VL)
                V_(store)(to + (r + p) * ld, V_(select)(lane < V_(set1)((T)cols), v[p], V_(set1)(0)));
            else
                V_(storen)(to + (r + p) * ld, v[p], cols);
    }
}

/* Columns at a distance of a multiple of SAME_SETS bytes fall into few sets of L1, which do not hold a block of them. Their
 * lines are first copied next to each other. */
#define SAME_SETS 1024
#define AHEAD 6  /* rows are prefetched this many rows ahead; fewer rows are not prefetched */
#define LINES 64 /* rows that are copied at a time */

static void FN(widen_lines)(T *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int cols, int padded)
{
    S lines[LINES * VL];
    for (int c = 0; c < cols; c += VL) {
        const int n = cols - c < VL ? cols - c : VL;
        for (int i = 0; i < n; i++)
            memcpy(lines + i * LINES, from + (c + i) * cs, (size_t)rows * sizeof(S));
        FN(widen_columns)(0, to + c, ld, lines, LINES, rows, n, padded - c);
    }
}

static int FN(widen)(void *dst, ptrdiff_t ld, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                     int cols_padded)
{
    int whole = 0; /* columns that are already written */
    if (rs == 1 && cs != 1 && rows >= SEGMENT) {
        if (cs * (ptrdiff_t)sizeof(S) % SAME_SETS == 0 && rows > LINES) {
            for (int r = 0; r < rows; r += LINES) {
                const int first = rows - r < SEGMENT ? rows - SEGMENT : r, some = rows - first < LINES ? rows - first : LINES;
                FN(widen_lines)((T *)dst + first * ld, ld, (const S *)src + first, cs, some, cols, cols_padded);
            }
        } else {
            for (; whole + VL <= cols; whole += VL)
                FN(widen_columns)(1, (T *)dst + whole, ld, (const S *)src + whole * cs, cs, rows, VL, VL);
            if (whole < cols)
                FN(widen_columns)(0, (T *)dst + whole, ld, (const S *)src + whole * cs, cs, rows, cols - whole,
                                  cols_padded - whole);
        }
        if (cols_padded <= cols)
            return CONVT_FITS_WEIGHTS;
        whole = cols;
    }
    for (int r = 0; r < rows; r++) {
        T *to = (T *)dst + r * ld;
        const S *from = (const S *)src + r * rs;
        int c = whole;
        if (cs == 1) {
            if (rows >= AHEAD) {
                __builtin_prefetch(from + cols - 1 + AHEAD * rs); /* a row may be on one more line than it fills */
                for (; c + VL <= cols; c += VL) {
                    __builtin_prefetch(from + c + AHEAD * rs);
                    V_(store)(to + c, S_LOAD(from + c));
                }
            }
            for (; c + VL <= cols; c += VL)
                V_(store)(to + c, S_LOAD(from + c));
            if (c < cols)
                V_(storen)(to + c, S_LOADN(from + c, cols - c), cols - c);
        } else {
            for (; c < cols; c += VL) {
                const int n = cols - c < VL ? cols - c : VL;
                S some[VL];
                for (int i = 0; i < n; i++)
                    some[i] = from[(c + i) * cs];
                V_(storen)(to + c, S_LOADN(some, n), n);
            }
        }
        for (c = cols; c < cols_padded; c++)
            to[c] = 0;
    }
    return CONVT_FITS_WEIGHTS;
}
#undef SAME_SETS
#undef AHEAD
#undef LINES
