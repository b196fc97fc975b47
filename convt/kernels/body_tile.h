/* The GEMM register tile, for one type of panel. The includer defines
 *   T, V, VL, v_*      sum type, its vector, lanes, vocabulary prefix as V_(op)
 *   E, KSTEP           panel element, products per multiply-add
 *   BV, B_LOAD, A_SET, MUL_ADD   a vector of B, its load, the broadcast of A, the multiply-add
 *   FN(name)           the name with a suffix of its own
 */
INLINE void FN(tile_step)(const int mr, const int nv, V acc[][TILE_NV], const E *a, const E *b)
{
    BV bv[TILE_NV];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++)
        bv[v] = B_LOAD(b + v * VL * KSTEP);
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++) {
        const BV av = A_SET(a + m * CONVT_LDA);
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] = MUL_ADD(av, bv[v], acc[m][v]);
    }
}

INLINE void FN(tile_mn)(const int mr, const int nv, const convt_tile *t)
{
    V acc[14][TILE_NV];
    const E *a = t->a, *b = t->b;
    const T *init = t->init;
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)(-0.0f); /* the sum of nothing that keeps the sign of zero */

    /* Where the results go is asked for too, a row at a time, and is in the cache when the sums are done. */
    const void *nothing = a;
    const void *const *asked = t->stream ? &nothing : (const void *const *)t->rows;
    const int last = t->stream ? 0 : mr - 1;
    const char *ahead = t->ahead;
    const int kc = t->kc / KSTEP;
    for (int k = 0; k < kc / 2; k++) {
        __builtin_prefetch(ahead, 0, 2);
        ahead += t->ahead_step;
        const T *row = asked[k < last ? k : last];
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            __builtin_prefetch(row + v * VL, 1);
        FN(tile_step)(mr, nv, acc, a, b);
        FN(tile_step)(mr, nv, acc, a + KSTEP, b + nv * VL * KSTEP);
        a += 2 * KSTEP;
        b += 2 * nv * VL * KSTEP;
    }
    if (kc % 2)
        FN(tile_step)(mr, nv, acc, a, b);

    /* What was summed before is added last: sums of chunks, added up, lose less than one long chain. */
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] += V_(load)(init + m * t->init_ld + v * VL);

    if (t->act->code != CONVT_NONE)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(act_simple)(acc[m][v], t->act);

    T *const *rows = (T *const *)t->rows;
    if (t->stream && t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                V_(stream)(rows[m] + v * VL, acc[m][v]);
    } else if (t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                V_(store)(rows[m] + v * VL, acc[m][v]);
    } else {
        const int rest = t->cols - (nv - 1) * VL;
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++) {
#pragma GCC unroll 2
            for (int v = 0; v < nv - 1; v++)
                V_(store)(rows[m] + v * VL, acc[m][v]);
            V_(storen)(rows[m] + (nv - 1) * VL, acc[m][nv - 1], rest);
        }
    }
}

#define TILE(m, n) \
    static void FN(tile_##m##_##n)(const convt_tile *t) { FN(tile_mn)(m, n, t); }
#define ENTRY(m, n) FN(tile_##m##_##n),
#define ROWS_6(X, n) X(1, n) X(2, n) X(3, n) X(4, n) X(5, n) X(6, n)
#define ROWS_14(X, n) ROWS_6(X, n) X(7, n) X(8, n) X(9, n) X(10, n) X(11, n) X(12, n) X(13, n) X(14, n)
TILE_ROWS(TILE, 1) TILE_ROWS(TILE, 2)
static void (*const FN(tiles)[TILE_NV][14])(const convt_tile *) = {{TILE_ROWS(ENTRY, 1)}, {TILE_ROWS(ENTRY, 2)}};
#undef TILE
#undef ENTRY
#undef ROWS_6
#undef ROWS_14

static void FN(tile)(int mr, const convt_tile *t)
{
    CONVT_ASSERT(t->nv >= 1 && t->nv <= TILE_NV && mr >= 1 && mr <= (const int[])TILE_MR[t->nv]);
    CONVT_ASSERT(t->kc >= 0 && t->kc <= CONVT_KC && t->kc % KSTEP == 0);
    CONVT_ASSERT(t->cols > (t->nv - 1) * VL && t->cols <= t->nv * VL && t->act->code <= CONVT_LEAKY);
    FN(tiles)[t->nv - 1][mr - 1](t);
}
