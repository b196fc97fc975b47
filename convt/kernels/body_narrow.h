/* `narrow` of the contract: accumulators (T) rounded to user memory (S), the inverse of `widen`. The includer defines the
 * macros listed in body_memory.h, and
 *
 *   T_TRANSPOSE    `transpose` of T
 *
 * Contiguous rows are converted two vectors at a time. Other layouts go through squares of SQUARE x SQUARE elements on the
 * stack, which are transposed as T. AVX-512 converts and stores two vectors as one cache line.
 */

#define SQUARE 64 /* rows and columns that are transposed at a time; they stay in L1 */

INLINE void FN(narrow_row)(S *to, const T *from, int cols, int stream)
{
    int c = 0;
    if (stream && ((uintptr_t)to & (2 * VL * sizeof(S) - 1)) == 0)
        for (; c + 2 * VL <= cols; c += 2 * VL)
            S_STREAM_2(to + c, V_(load)(from + c), V_(load)(from + c + VL));
    for (; c + 2 * VL <= cols; c += 2 * VL)
        S_STORE_2(to + c, V_(load)(from + c), V_(load)(from + c + VL));
    for (; c + VL <= cols; c += VL)
        S_STORE(to + c, V_(load)(from + c));
    if (c < cols)
        S_STOREN(to + c, V_(loadn)(from + c, cols - c), cols - c);
}

static void FN(narrow)(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                       int stream)
{
    T square[SQUARE * SQUARE];
    S *to = dst;
    const T *from = src;
    if (dc == 1 && cs == 1) {
        for (int r = 0; r < rows; r++)
            FN(narrow_row)(to + r * ld, from + r * rs, cols, stream);
        return;
    }
    for (int r = 0; r < rows; r += SQUARE)
        for (int c = 0; c < cols; c += SQUARE) {
            const int m = rows - r < SQUARE ? rows - r : SQUARE, n = cols - c < SQUARE ? cols - c : SQUARE;
            T_TRANSPOSE(square, SQUARE, 1, from + r * rs + c * cs, rs, cs, m, n, 0);
            for (int i = 0; i < m; i++) {
                S *row = to + (r + i) * ld + c * dc, some[SQUARE];
                FN(narrow_row)(dc == 1 ? row : some, square + i * SQUARE, n, dc == 1 && stream);
                for (int j = 0; dc != 1 && j < n; j++)
                    row[j * dc] = some[j];
            }
        }
}
#undef SQUARE
