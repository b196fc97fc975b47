/* `transpose` of the contract: a matrix of user memory (S) copied with other strides. The includer has included body_widen.h,
 * and defines its macros and S_STORE, S_STOREN.
 *
 * Columns that are contiguous in memory become contiguous rows in registers: tiles of SEGMENT rows by VL columns (if S is T, by
 * a cache line of columns). Loop order: blocks of rows, then vectors of columns, then rows. The vector width decides how many
 * columns a tile has. Other layouts are copied row by row.
 */

/* Transpose up to VL columns (`full`: VL), SEGMENT rows at a time. The last rows may be copied twice. */
INLINE void FN(transpose_columns)(const int full, S *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int cols)
{
    ptrdiff_t at[SEGMENT][VL / SEGMENT];
    FN(segment_offsets)(full, at, cs, cols);
    for (int r = 0; r < rows; r += SEGMENT) {
        V v[SEGMENT];
        r = r + SEGMENT <= rows ? r : rows - SEGMENT;
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++)
            v[p] = FN(load_segments)(from + p * cs + r, at[p]);
        FN(transpose_segments)(v);
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++)
            if (full)
                S_STORE(to + (r + p) * ld, v[p]);
            else
                S_STOREN(to + (r + p) * ld, v[p], cols);
    }
}

#ifdef S_IS_T
/* Transpose as many columns as a cache line has elements. Rows may be so far apart that their lines fall into few sets of L1,
 * which would evict a line that is half written. With `stream`, rows that are aligned to lines take non-temporal stores. */
INLINE void FN(transpose_lines)(S *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int stream)
{
    enum { VECTORS = 64 / sizeof(V) };
    ptrdiff_t at[SEGMENT][VL / SEGMENT];
    FN(segment_offsets)(1, at, cs, VL);
    for (int r = 0; r < rows; r += SEGMENT) {
        V v[VECTORS][SEGMENT];
        r = r + SEGMENT <= rows ? r : rows - SEGMENT;
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) {
#pragma GCC unroll 4
            for (int p = 0; p < SEGMENT; p++)
                v[i][p] = FN(load_segments)(from + (i * VL + p) * cs + r, at[p]);
            FN(transpose_segments)(v[i]);
        }
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++) {
            S *row = to + (r + p) * ld;
            const int aligned = stream && ((uintptr_t)row & 63) == 0;
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++)
                if (aligned)
                    V_(stream)(row + i * VL, v[i][p]);
                else
                    S_STORE(row + i * VL, v[i][p]);
        }
    }
}
#endif

#define BLOCK_ROWS 64 /* rows per block, a multiple of a cache line of elements */

/* Columns at a distance of a multiple of this many bytes fall into few sets of L1, which do not hold a block of them; a block
 * is copied first. */
#define SAME_SETS 1024

/* Transpose a block of at least SEGMENT rows. */
static void FN(transpose_block)(S *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int cols, int stream)
{
    enum { LINE = 64 / sizeof(S) > VL ? 64 / sizeof(S) : VL };
    S lines[BLOCK_ROWS * LINE];
    const int same_sets = cs * (ptrdiff_t)sizeof(S) % SAME_SETS == 0;
#ifdef S_IS_T
    const int most = LINE;
#else
    const int most = VL;
    (void)stream;
#endif
    for (int c = 0, n; c < cols; c += n, from += n * cs) {
        n = cols - c < most ? cols - c < VL ? cols - c : VL : most;
        if (same_sets)
            for (int i = 0; i < n; i++)
                memcpy(lines + i * BLOCK_ROWS, from + i * cs, (size_t)rows * sizeof(S));
        const S *block = same_sets ? lines : from;
        const ptrdiff_t col_stride = same_sets ? BLOCK_ROWS : cs;
#ifdef S_IS_T
        if (n == LINE)
            FN(transpose_lines)(to + c, ld, block, col_stride, rows, stream);
        else
#endif
        if (n == VL)
            FN(transpose_columns)(1, to + c, ld, block, col_stride, rows, VL);
        else
            FN(transpose_columns)(0, to + c, ld, block, col_stride, rows, n);
    }
}

/* Copy a row of columns that are contiguous on both sides, 64 bytes at a time. The last columns may be copied twice. */
INLINE void FN(copy_row)(S *to, const S *from, int cols)
{
    const int line = 64 / sizeof(S);
    int c = 0;
    for (; c + line <= cols; c += line)
        memcpy(to + c, from + c, 64);
    if (c == cols)
        return;
    if (cols >= line)
        memcpy(to + cols - line, from + cols - line, 64);
    else
        for (; c < cols; c++)
            to[c] = from[c];
}

static void FN(transpose)(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows,
                          int cols, int stream)
{
    S *to = dst;
    const S *from = src;
    if (dc == 1 && rs == 1 && cs != 1 && rows >= SEGMENT) {
        for (int r = 0; r < rows; r += BLOCK_ROWS) {
            const int first = rows - r < SEGMENT ? rows - SEGMENT : r; /* no block has fewer than SEGMENT rows */
            const int some = rows - first < BLOCK_ROWS ? rows - first : BLOCK_ROWS;
            FN(transpose_block)(to + first * ld, ld, from + first, cs, some, cols, stream);
        }
        return;
    }
    for (int r = 0; r < rows; r++, to += ld, from += rs)
        if (dc == 1 && cs == 1)
            FN(copy_row)(to, from, cols);
        else
            for (int c = 0; c < cols; c++)
                to[c * dc] = from[c * cs];
}
#undef BLOCK_ROWS
#undef SAME_SETS
