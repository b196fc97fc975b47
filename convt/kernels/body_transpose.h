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

#define BLOCK_LINES 16 /* the most cache lines of columns per block: rows get so many that hardware prefetches the next ones */

#ifdef S_IS_T
#define LINE_VECTORS ((int)(64 / sizeof(V)))
#define NEAR_PLANES (1 << 19) /* bytes from the first to the last row up to which L2 holds them; they are not prefetched */

/* Transpose SEGMENT rows by as many columns as a cache line has elements. With `stream`, rows that are aligned to lines take
 * non-temporal stores. `at`: the offsets of the segments of the columns. */
INLINE void FN(transpose_line)(S *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, ptrdiff_t at[SEGMENT][VL / SEGMENT],
                               int stream)
{
    V v[LINE_VECTORS][SEGMENT];
#pragma GCC unroll 4
    for (int i = 0; i < LINE_VECTORS; i++) {
#pragma GCC unroll 4
        for (int p = 0; p < SEGMENT; p++)
            v[i][p] = FN(load_segments)(from + (i * VL + p) * cs, at[p]);
        FN(transpose_segments)(v[i]);
    }
#pragma GCC unroll 4
    for (int p = 0; p < SEGMENT; p++) {
        S *row = to + p * ld;
        const int aligned = stream && ((uintptr_t)row & 63) == 0;
#pragma GCC unroll 4
        for (int i = 0; i < LINE_VECTORS; i++)
            if (aligned)
                V_(stream)(row + i * VL, v[i][p]);
            else
                S_STORE(row + i * VL, v[i][p]);
    }
}

/* Transpose SEGMENT rows of `lines` times as many columns as a cache line has elements. Rows begin inside a line of memory:
 * they go through L1, and their whole lines take non-temporal stores. `at` as for transpose_line. */
INLINE void FN(transpose_staged)(S *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, ptrdiff_t at[SEGMENT][VL / SEGMENT], int lines)
{
    enum { LINE = 64 / sizeof(S) };
    S stage[SEGMENT * BLOCK_LINES * LINE] __attribute__((aligned(64)));
    for (int i = 0; i < lines; i++)
        FN(transpose_line)(stage + i * LINE, lines * LINE, from + i * LINE * cs, cs, at, 0);
    for (int p = 0; p < SEGMENT; p++)
        copy_non_temporal(to + p * ld, stage + p * lines * LINE, (size_t)lines * 64);
}

/* Transpose rows by whole cache lines of columns, SEGMENT rows at a time. Rows may be so far apart that their lines fall into
 * few sets of L1, which would evict a line that is half written, and that no hardware prefetches them: while lines are
 * written, those of the next rows are prefetched, unless these take non-temporal stores. The last rows may be copied twice. */
INLINE void FN(transpose_lines)(S *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int lines, int stream)
{
    enum { LINE = 64 / sizeof(S) };
    ptrdiff_t at[SEGMENT][VL / SEGMENT];
    const int far = rows * (ld < 0 ? -ld : ld) * (ptrdiff_t)sizeof(S) > NEAR_PLANES;
    const uintptr_t inside = ((uintptr_t)to | (uintptr_t)ld * sizeof(S)) & 63; /* 0 if all rows begin at a cache line */
    const int staged = stream && inside && lines * 64 >= CONVT_STAGED_BYTES;
    FN(segment_offsets)(1, at, cs, VL);
    for (int r = 0; r < rows; r += SEGMENT) {
        r = r + SEGMENT <= rows ? r : rows - SEGMENT;
        const S *next = to + (r + 2 * SEGMENT <= rows ? r + SEGMENT : r) * ld;
        const int prefetches = far && !(stream && ((uintptr_t)next & 63) == 0);
        if (staged) {
            FN(transpose_staged)(to + r * ld, ld, from + r, cs, at, lines);
            continue;
        }
        for (int i = 0; i < lines; i++) {
#pragma GCC unroll 4
            for (int p = 0; p < SEGMENT && prefetches; p++)
                __builtin_prefetch(next + p * ld + (i + 1) * LINE - 1, 1);
            FN(transpose_line)(to + r * ld + i * LINE, ld, from + i * LINE * cs + r, cs, at, stream);
        }
    }
}
#undef LINE_VECTORS
#undef NEAR_PLANES
#endif

#define BLOCK_ROWS 64 /* rows per block, a multiple of a cache line of elements */

/* Columns at a distance of a multiple of this many bytes fall into few sets of L1, which do not hold a block of them; a block
 * is copied first. */
#define SAME_SETS 1024

#define COPIED_LINES 4 /* the most cache lines of columns of a block that is copied first, so that the copy stays in L1 */

/* Transpose a block of at least SEGMENT rows. */
static void FN(transpose_block)(S *to, ptrdiff_t ld, const S *from, ptrdiff_t cs, int rows, int cols, int stream)
{
#ifdef S_IS_T
    enum { LINE = 64 / sizeof(S) };
#else
    enum { LINE = VL };
    (void)stream;
#endif
    S lines[BLOCK_ROWS * COPIED_LINES * LINE];
    const int same_sets = cs * (ptrdiff_t)sizeof(S) % SAME_SETS == 0;
    /* Columns that are far apart (planes) are read line by line instead. */
    const int most = sizeof(S) < sizeof(T) || cs > ld ? LINE : same_sets ? COPIED_LINES * LINE : BLOCK_LINES * LINE;
    for (int c = 0, n; c < cols; c += n, from += n * cs) {
        n = cols - c >= most ? most : cols - c >= LINE ? (cols - c) / LINE * LINE : cols - c < VL ? cols - c : VL;
        if (same_sets)
            for (int i = 0; i < n; i++)
                memcpy(lines + i * BLOCK_ROWS, from + i * cs, (size_t)rows * sizeof(S));
        const S *block = same_sets ? lines : from;
        const ptrdiff_t col_stride = same_sets ? BLOCK_ROWS : cs;
#ifdef S_IS_T
        if (n >= LINE)
            FN(transpose_lines)(to + c, ld, block, col_stride, rows, n / LINE, stream);
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
#undef BLOCK_LINES
#undef COPIED_LINES
