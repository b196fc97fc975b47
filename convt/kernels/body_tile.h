/* The GEMM register tile, for one type of panel. The includer defines
 *   T, V, VL, v_*      sum type, its vector, lanes, vocabulary prefix as V_(op)
 *   E, KSTEP           panel element, products per multiply-add
 *   BV, B_LOAD, A_SET, MUL_ADD   a vector of B, its load, the broadcast of A, the multiply-add
 *   FN(name)           the name with a suffix of its own
 */
/* Where the loop over depth is: two starts of A's rows, B, and what is asked for. */
typedef struct {
    const char *a[2];
    ptrdiff_t ld, ld3, ld5; /* bytes between rows, and those of three and five */
    const E *b;
    const char *ahead;
    ptrdiff_t ahead_step;
} FN(tile_place);

/* The element of row m that is k steps ahead: an address takes one register, and another 1, 2 or 4 times. */
INLINE const E *FN(tile_a)(const int m, const FN(tile_place) *p, const int k)
{
    const int r = m % 7;
    return (const E *)(p->a[m / 7] + (r == 3 ? p->ld3 : r == 5 ? p->ld5 : r == 6 ? 2 * p->ld3 : r * p->ld)) + k * KSTEP;
}

INLINE void FN(tile_step)(const int mr, const int nv, V acc[][TILE_NV], const FN(tile_place) *p, const int k)
{
    BV bv[TILE_NV];
#pragma GCC unroll 2
    for (int v = 0; v < nv; v++) {
        bv[v] = B_LOAD(p->b + (k * nv + v) * VL * KSTEP);
        if (mr > 1)
            IN_REGISTER(bv[v]);
    }
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++) {
        const BV av = A_SET(FN(tile_a)(m, p, k));
#pragma GCC unroll 2
        for (int v = 0; v < nv; v++)
            acc[m][v] = MUL_ADD(av, bv[v], acc[m][v]);
    }
}

/* Makes the compiler forget what it knows of a value, which it would else keep in more registers than there are. */
#define FORGET(x) __asm__("" : "+r"(x))

/* So many times two steps of depth; with `rows`, each asks for one that will be written, `at` bytes on. */
INLINE void FN(tile_steps)(const int mr, const int nv, V acc[][TILE_NV], FN(tile_place) *p, const char *const *rows,
                           ptrdiff_t at, const int ask, int count)
{
    for (; count > 0; count--) {
        FORGET(p->a[0]);
        FORGET(p->ld);
        if (mr > 6)
            FORGET(p->ld3);
        if (mr > 7)
            FORGET(p->a[1]);
        __builtin_prefetch(p->ahead, 0, 2);
        p->ahead += p->ahead_step;
        if (ask) {
            const char *row = *rows++ + at;
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                __builtin_prefetch(row + v * VL * sizeof(T), 1);
        }
        FN(tile_step)(mr, nv, acc, p, 0);
        FN(tile_step)(mr, nv, acc, p, 1);
        p->a[0] += 2 * KSTEP * sizeof(E);
        p->a[1] += 2 * KSTEP * sizeof(E);
        p->b += 2 * nv * VL * KSTEP;
    }
}

INLINE void FN(tile_mn)(const int mr, const int nv, const convt_tile *t)
{
    V acc[14][TILE_NV];
    const T *init = t->init;
    const ptrdiff_t ld = t->lda * (ptrdiff_t)sizeof(E);
    FN(tile_place) p = {{t->a, (const char *)t->a + 7 * ld}, ld, 3 * ld, 5 * ld, t->b, t->ahead, t->ahead_step};
    /* A sum starts from the bias, or from nothing, the zero that keeps the sign of others. */
    const int biased = init && !t->init_ld;
    if (biased)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(load)(init + v * VL);
    else
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(set1)(-0.0f);

    /* Where the results go is asked for too, a row at a time, and is in the cache when the sums are done. */
    const int kc = t->kc / KSTEP, pairs = kc / 2, asked = t->stream ? 0 : pairs < mr ? pairs : mr;
    FN(tile_steps)(mr, nv, acc, &p, (const char *const *)t->rows, t->at * (ptrdiff_t)sizeof(T), 1, asked);
    FN(tile_steps)(mr, nv, acc, &p, NULL, 0, 0, pairs - asked);
    if (kc % 2)
        FN(tile_step)(mr, nv, acc, &p, 0);

    /* What was summed before is added last: sums of chunks, added up, lose less than one long chain. */
    T *const *rows = (T *const *)t->rows;
    if (init && !biased)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[m][v] += V_(load)(init + m * t->init_ld + v * VL);
    else if (!init)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[m][v] += V_(load)(rows[m] + t->at + v * VL);

    if (t->act->code != CONVT_NONE)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(act_simple)(acc[m][v], t->act);

    if (t->stream && t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                V_(stream)(rows[m] + t->at + v * VL, acc[m][v]);
    } else if (t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 2
            for (int v = 0; v < nv; v++)
                V_(store)(rows[m] + t->at + v * VL, acc[m][v]);
    } else {
        const int rest = t->cols - (nv - 1) * VL;
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++) {
#pragma GCC unroll 2
            for (int v = 0; v < nv - 1; v++)
                V_(store)(rows[m] + t->at + v * VL, acc[m][v]);
            V_(storen)(rows[m] + t->at + (nv - 1) * VL, acc[m][nv - 1], rest);
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
#undef FORGET

static void FN(tile)(int mr, const convt_tile *t)
{
    CONVT_ASSERT(t->nv >= 1 && t->nv <= TILE_NV && mr >= 1 && mr <= (const int[])TILE_MR[t->nv]);
    CONVT_ASSERT(t->kc >= 0 && t->kc <= CONVT_KC && t->kc % KSTEP == 0);
    CONVT_ASSERT(t->cols > (t->nv - 1) * VL && t->cols <= t->nv * VL && t->act->code <= CONVT_LEAKY);
    FN(tiles)[t->nv - 1][mr - 1](t);
}
