/* The GEMM register tile, for one type of panel. The includer defines
 *   T, V, VL, v_*      sum type, its vector, lanes, vocabulary prefix as V_(op)
 *   E, KSTEP           panel element, products per multiply-add
 *   BV, B_LOAD, A_SET, MUL_ADD   a vector of B, its load, the broadcast of A, the multiply-add
 *   FN(name)           the name with a suffix of its own
 */
INLINE void FN(tile_mn)(const int mr, const int nv, const convt_tile *t)
{
    V acc[TILE_MR][2];
    const E *a = t->a, *b = t->b;
    const T *init = t->init;
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] = V_(set1)(-0.0f); /* the sum of nothing that keeps the sign of zero */

    const int kc = t->kc;
#pragma GCC unroll 2
    for (int k = 0; k < kc; k += KSTEP) {
        BV bv[2];
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            bv[v] = B_LOAD(b + v * VL * KSTEP);
        b += nv * VL * KSTEP;
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++) {
            const BV av = A_SET(a + m * CONVT_LDA);
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[m][v] = MUL_ADD(av, bv[v], acc[m][v]);
        }
        a += KSTEP;
    }

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
            if (nv == 2)
                V_(store)(rows[m], acc[m][0]);
            V_(storen)(rows[m] + (nv - 1) * VL, acc[m][nv - 1], rest);
        }
    }
}

#define TILE(m)                                                                                     \
    static void FN(tile_##m##_1)(const convt_tile *t) { FN(tile_mn)(m, 1, t); }                     \
    static void FN(tile_##m##_2)(const convt_tile *t) { FN(tile_mn)(m, 2, t); }
#define ENTRY(m) {FN(tile_##m##_1), FN(tile_##m##_2)},
#if TILE_MR == 14
#define EACH(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)
#else
#define EACH(X) X(1) X(2) X(3) X(4) X(5) X(6)
#endif
EACH(TILE)
static void (*const FN(tiles)[TILE_MR][2])(const convt_tile *) = {EACH(ENTRY)};
#undef EACH
#undef TILE
#undef ENTRY

static void FN(tile)(int mr, const convt_tile *t)
{
    CONVT_ASSERT(mr >= 1 && mr <= TILE_MR && t->kc >= 0 && t->kc <= CONVT_KC && t->kc % KSTEP == 0);
    CONVT_ASSERT(t->cols > (t->nv - 1) * VL && t->cols <= t->nv * VL && t->act->code <= CONVT_LEAKY);
    FN(tiles)[mr - 1][t->nv - 1](t);
}
