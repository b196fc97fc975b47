/* `tile` of the contract on vectors, for one type of panel: C = act(A B + init). The includer defines
 *
 *   T, V, VL, V_(op)    type of accumulators, its vector, lanes, vector operations
 *   E, KSTEP            element of panels, products per multiply-add (1; 2 for dot products)
 *   BV, B_LOAD, A_SET, MUL_ADD    a vector of B, its load, the broadcast of an element (pair) of A, the multiply-add
 *   FN(name)            the name of an instance
 *   NARROWS             if defined (T is float), rows may be of 16-bit types
 *   TILE_NV, TILE_MR, TILE_ROWS, TILE_WIDE, WIDE_ROWS    the register blocks of the ISA, see vec_*.h
 *
 * Register tile: mr rows by nv vectors of columns, with mr <= 14 (AVX-512) or 6 (others); or few rows by two panels
 * (TILE_WIDE). Loop order: tiles (`more`), then depth, then rows, then vectors: each step of depth loads nv vectors of B and
 * broadcasts mr elements of A. HAVE_ROW (AVX2) multiplies a row of two vectors in one assembly statement.
 */
/* The position in depth: pointers to A at row 0 and row 7, to B, and to the data that is prefetched. */
typedef struct {
    const char *a[2];
    ptrdiff_t ld, ld3, ld5; /* bytes between rows of A, and 3 and 5 times as many */
    const E *b;
    ptrdiff_t apart; /* bytes from the panel to the second one */
    const char *ahead;
    ptrdiff_t ahead_step;
} FN(tile_place);

/* Return the address of A's element in row m, k steps of depth on. An x86 address is a register plus another one times 1, 2, 4
 * or 8, so few registers reach all rows. */
INLINE const E *FN(tile_a)(const int m, const FN(tile_place) *p, const int k)
{
    const int r = m % 7;
    return (const E *)(p->a[m / 7] + (r == 3 ? p->ld3 : r == 5 ? p->ld5 : r == 6 ? 2 * p->ld3 : r * p->ld)) + k * KSTEP;
}

#define TILE_SHALLOW 32 /* steps of depth */

/* Vectors of the first panel. */
#define FIRST(nv) ((nv) < TILE_NV ? (nv) : TILE_NV)

INLINE void FN(tile_step)(const int mr, const int nv, V acc[][2 * TILE_NV], const FN(tile_place) *p, const int k)
{
    BV bv[2 * TILE_NV];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        const E *row = p->b + (k * FIRST(nv) + v % TILE_NV) * VL * KSTEP;
        bv[v] = B_LOAD(v < TILE_NV ? row : (const E *)((const char *)row + p->apart));
        if (mr > 1)
            IN_REGISTER(bv[v]);
    }
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++) {
#ifdef HAVE_ROW
        if (nv == 2) {
            V_(row)(acc[m], FN(tile_a)(m, p, k), bv);
            continue;
        }
#endif
        const BV av = A_SET(FN(tile_a)(m, p, k));
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[m][v] = MUL_ADD(av, bv[v], acc[m][v]);
    }
}

/* Return the offset of vector v in a row of the output. */
INLINE ptrdiff_t FN(tile_at)(const convt_tile *t, const int v)
{
    return (v < TILE_NV ? t->at : t->at2) + v % TILE_NV * VL;
}

#ifdef NARROWS
#define TILE_NARROWS(t) ((t)->narrow)
/* Define the store of a tile whose rows are of a 16-bit type, from mr rows of nv vectors in `sums`, one after the other. It is
 * a function of its own, because the tile has no registers to spare. */
#define TILE_NARROW(name)                                                                                        \
    static __attribute__((noinline)) void FN(tile_##name)(int mr, int nv, const convt_tile *t, const T *sums, T *const *rows) \
    {                                                                                                            \
        const int rest = t->cols - (nv - 1) * VL;                                                                \
        for (int m = 0; m < mr; m++)                                                                             \
            for (int v = 0; v < nv; v += 2, sums += 2 * VL) {                                                    \
                uint16_t *to = (uint16_t *)rows[m] + FN(tile_at)(t, v);                                          \
                const V a = V_(load)(sums);                                                                      \
                if (v + 1 == nv) { /* the only vector */                                                         \
                    if (rest == VL)                                                                              \
                        vf_store_##name(to, a);                                                                  \
                    else                                                                                         \
                        vf_storen_##name(to, a, rest);                                                           \
                    sums -= VL;                                                                                  \
                    continue;                                                                                    \
                }                                                                                                \
                const V b = V_(load)(sums + VL);                                                                 \
                if (v + 2 < nv || rest == VL) {                                                                  \
                    if (t->stream)                                                                               \
                        vf_stream2_##name(to, a, b);                                                             \
                    else                                                                                         \
                        vf_store2_##name(to, a, b);                                                              \
                } else {                                                                                         \
                    vf_store_##name(to, a);                                                                      \
                    vf_storen_##name(to + VL, b, rest);                                                          \
                }                                                                                                \
            }                                                                                                    \
    }
TILE_NARROW(f16)
TILE_NARROW(bf16)
#undef TILE_NARROW
#else
#define TILE_NARROWS(t) 0
#endif

/* Compute count * steps steps of depth. Every second step prefetches as many lines of `ahead` as two steps read of A, and, if
 * `t` is not NULL, one of the rows that the tile will store. */
INLINE void FN(tile_steps)(const int mr, const int nv, const int steps, V acc[][2 * TILE_NV], FN(tile_place) *p,
                           const convt_tile *t, T *const *rows, int count)
{
    for (; count > 0; count--) {
        FORGET(p->a[0]);
        FORGET(p->ld);
        if (mr > 6)
            FORGET(p->ld3);
        if (mr > 7)
            FORGET(p->a[1]);
#pragma GCC unroll 4
        for (int k = 0; k < steps; k++) {
            if (k % 2) {
#pragma GCC unroll 4
                for (int at = 0; at < 2 * mr * KSTEP * (int)sizeof(E); at += 64)
                    __builtin_prefetch(p->ahead + at, 0, 2);
                p->ahead += p->ahead_step;
                const char *row = t ? (const char *)*rows++ : NULL;
                const ptrdiff_t size = t && TILE_NARROWS(t) ? sizeof(uint16_t) : sizeof(T);
#pragma GCC unroll 4
                for (int v = 0; t && v < nv; v++)
                    __builtin_prefetch(row + (FN(tile_at)(t, v) + VL - 1) * size, 1);
            }
            FN(tile_step)(mr, nv, acc, p, k);
        }
        p->a[0] += steps * KSTEP * (ptrdiff_t)sizeof(E);
        p->a[1] += steps * KSTEP * (ptrdiff_t)sizeof(E);
        p->b += steps * FIRST(nv) * VL * KSTEP;
    }
}

INLINE void FN(tile_one)(const int mr, const int nv, const convt_tile *t, FN(tile_place) p, T *const *rows, const T *init)
{
    V acc[14][2 * TILE_NV];
    const T *const inits[2] = {init, nv > TILE_NV ? t->init2 : NULL};
    /* Accumulators start from the bias, or from -0, the neutral element of addition. */
    const int biased = init && !t->init_ld;
    if (biased)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(load)(inits[v / TILE_NV] + v % TILE_NV * VL);
    else
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(set1)(-0.0f);

    /* The rows to store are also prefetched, one at a time, so that they are in L1 at the end. A shallow tile of one vector
     * does not: it loads as often as it multiplies, so the prefetches would cost more than they save. */
    const int kc = t->kc / KSTEP, pairs = kc / 2, none = t->stream || (nv == 1 && kc <= TILE_SHALLOW);
    const int prefetched = none ? 0 : pairs < mr ? pairs : mr, left = kc - 2 * prefetched;
    FN(tile_steps)(mr, nv, 2, acc, &p, t, rows, prefetched);
    /* Few accumulators take four steps per iteration, which is faster if B comes from L2. More steps gain nothing. */
    const int steps = mr * nv <= 20 ? 4 : 2;
    FN(tile_steps)(mr, nv, steps, acc, &p, NULL, NULL, left / steps);
    FN(tile_steps)(mr, nv, 1, acc, &p, NULL, NULL, left % steps);

    /* Partial sums of earlier depth chunks are added last, because adding up chunks loses less than one long chain. */
    if (init && !biased)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] += V_(load)(inits[v / TILE_NV] + m * t->init_ld + v % TILE_NV * VL);
    else if (!init)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] += V_(load)(rows[m] + FN(tile_at)(t, v));

    if (t->act->code != CONVT_NONE)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(act_simple)(acc[m][v], t->act);

#ifdef NARROWS
    if (TILE_NARROWS(t)) {
        T sums[14 * 2 * TILE_NV * VL] __attribute__((aligned(64)));
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                V_(store)(sums + (m * nv + v) * VL, acc[m][v]);
        (t->narrow == CONVT_F16 ? FN(tile_f16) : FN(tile_bf16))(mr, nv, t, sums, rows);
        return;
    }
#endif
    if (t->stream && t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                V_(stream)(rows[m] + FN(tile_at)(t, v), acc[m][v]);
    } else if (t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                V_(store)(rows[m] + FN(tile_at)(t, v), acc[m][v]);
    } else {
        const int rest = t->cols - (nv - 1) * VL;
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++) {
#pragma GCC unroll 4
            for (int v = 0; v < nv - 1; v++)
                V_(store)(rows[m] + FN(tile_at)(t, v), acc[m][v]);
            V_(storen)(rows[m] + FN(tile_at)(t, nv - 1), acc[m][nv - 1], rest);
        }
    }
}

INLINE void FN(tile_mn)(const int mr, const int nv, const convt_tile *t)
{
    const ptrdiff_t ld = t->lda * (ptrdiff_t)sizeof(E), apart = nv > TILE_NV ? (const char *)t->b2 - (const char *)t->b : 0;
    FN(tile_place) p = {{t->a, (const char *)t->a + 7 * ld}, ld, 3 * ld, 5 * ld, t->b, apart, t->ahead, t->ahead_step};
    T *const *rows = (T *const *)t->rows;
    const T *init = t->init;
    for (int more = t->more; more >= 0; more--) {
        FN(tile_one)(mr, nv, t, p, rows, init);
        p.a[0] += mr * ld;
        p.a[1] += mr * ld;
        p.ahead += t->kc / KSTEP / 2 * t->ahead_step;
        rows += mr;
        init += init ? mr * t->init_ld : 0;
    }
}

#define TILE(m, n) \
    static void FN(tile_##m##_##n)(const convt_tile *t) { FN(tile_mn)(m, n, t); }
#define ENTRY(m, n) FN(tile_##m##_##n),
#define ROWS_2(X, n) X(1, n) X(2, n)
#define ROWS_6(X, n) X(1, n) X(2, n) X(3, n) X(4, n) X(5, n) X(6, n)
#define ROWS_14(X, n) ROWS_6(X, n) X(7, n) X(8, n) X(9, n) X(10, n) X(11, n) X(12, n) X(13, n) X(14, n)
TILE_ROWS(TILE, 1) TILE_ROWS(TILE, 2)
static void (*const FN(tiles)[TILE_NV][14])(const convt_tile *) = {{TILE_ROWS(ENTRY, 1)}, {TILE_ROWS(ENTRY, 2)}};
WIDE_ROWS(TILE, 4)
static void (*const FN(wide_tiles)[TILE_WIDE])(const convt_tile *) = {WIDE_ROWS(ENTRY, 4)};
#undef TILE
#undef ENTRY
#undef FIRST
#undef TILE_NARROWS
#undef TILE_SHALLOW
#undef ROWS_2
#undef ROWS_6
#undef ROWS_14

static void FN(tile)(int mr, const convt_tile *t)
{
    CONVT_ASSERT(t->kc >= 0 && t->kc <= CONVT_KC && t->kc % KSTEP == 0);
    CONVT_ASSERT(t->act->code <= CONVT_LEAKY && mr >= 1);
    if (t->nv > TILE_NV) {
        CONVT_ASSERT(t->nv == 2 * TILE_NV && t->cols == t->nv * VL && mr <= TILE_WIDE);
        FN(wide_tiles)[mr - 1](t);
        return;
    }
    CONVT_ASSERT(t->nv >= 1 && mr <= (const int[])TILE_MR[t->nv]);
    CONVT_ASSERT(t->cols > (t->nv - 1) * VL && t->cols <= t->nv * VL);
    FN(tiles)[t->nv - 1][mr - 1](t);
}
