/* `rows` of the contract: rows of outputs (NCX planes) whose vectors are pixels. Each multiply-add has a broadcast weight and
 * adjacent inputs, loaded from the plane without a copy. The includer defines T, V, VL, V_(op), FN(name), ACCUMULATORS,
 * TILE_MOST, TILE_ROWS.
 *
 * Register tile: mr rows by 2, 4 or 8 vectors of pixels (ROWS_NV), and by fewer at the end of a row. Loop order: tiles of pixels,
 * then sources, then shifts, then rows.
 */

/* Vectors of pixels of a tile of mr rows: as many accumulators as hide the latency of a multiply-add, if there are enough
 * registers. */
#define ROWS_NV(mr) ((mr) * 8 <= ACCUMULATORS ? 8 : (mr) * 4 <= ACCUMULATORS ? 4 : 2)

/* Compute nv vectors of mr rows, from pixel i on. */
INLINE void FN(rows_block)(const int mr, const int nv, const convt_rows *r, int i)
{
    V acc[TILE_MOST][8];
    const T *init = r->init;
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)(init[m]);
    for (int s = 0; s < r->sources; s++) {
        const T *in = (const T *)r->in[s] + i, *w = r->w[s];
        for (int t = 0; t < r->shifts; t++, w += mr) {
            const T *from = in + r->shift[t];
            V x[8];
#pragma GCC unroll 8
            for (int v = 0; v < nv; v++) {
                x[v] = V_(load)(from + v * VL);
                if (mr > 1)
                    IN_REGISTER(x[v]);
            }
#pragma GCC unroll 14
            for (int m = 0; m < mr; m++) {
                const V weight = V_(set1)(w[m]);
#pragma GCC unroll 8
                for (int v = 0; v < nv; v++)
                    acc[m][v] = V_(fma)(weight, x[v], acc[m][v]);
            }
        }
    }
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 8
        for (int v = 0; v < nv; v++)
            V_(store)((T *)r->rows[m] + i + v * VL, acc[m][v]);
}

INLINE void FN(rows_m)(const int mr, const convt_rows *r)
{
    int i = 0;
    if (ROWS_NV(mr) == 8)
        for (; i + 7 * VL < r->n; i += 8 * VL)
            FN(rows_block)(mr, 8, r, i);
    if (ROWS_NV(mr) >= 4)
        for (; i + 3 * VL < r->n; i += 4 * VL)
            FN(rows_block)(mr, 4, r, i);
    for (; i + VL < r->n; i += 2 * VL)
        FN(rows_block)(mr, 2, r, i);
    if (i < r->n)
        FN(rows_block)(mr, 1, r, i);
}

#define ROWS(m, n) \
    static void FN(rows_##m)(const convt_rows *r) { FN(rows_m)(m, r); }
#define ENTRY(m, n) FN(rows_##m),
TILE_ROWS(ROWS, 0)
static void (*const FN(rows_of)[TILE_MOST])(const convt_rows *) = {TILE_ROWS(ENTRY, 0)};
#undef ROWS
#undef ENTRY
#undef ROWS_NV

static void FN(rows)(int mr, const convt_rows *r)
{
    CONVT_ASSERT(mr >= 1 && mr <= TILE_MOST && r->n > 0);
    FN(rows_of)[mr - 1](r);
}
