/* `tile` of the contract on vectors, for one type of panel: C = act(A B + init). The includer defines
 *
 *   T, V, VL, V_(op)    type of accumulators, its vector, lanes, vector operations
 *   E, KSTEP            element of panels, products per multiply-add (1; 2 for dot products)
 *   BV, B_LOAD, A_SET, MUL_ADD    a vector of B, its load, the broadcast of an element (pair) of A, the multiply-add
 *   MUL_ADD_LANE        with HAVE_LANES (NEON): the multiply-add of a vector and one lane, an element (pair) of A
 *   FN(name)            the name of an instance
 *   HAS_NARROW          if defined (T is float), rows may be of 16-bit types
 *   TILE_NV, TILE_MR, TILE_ROWS, TILE_WIDE, WIDE_ROWS    the register blocks of the ISA, see vec_*.h
 *
 * Register tile: mr rows by nv vectors of columns, with mr <= 14 (AVX-512), 10 (NEON) or 6 (others); or few rows by two panels
 * (TILE_WIDE). Loop order: tiles (`more_tiles`), then depth, then rows, then vectors: each step of depth loads nv vectors of B
 * and broadcasts mr elements of A. HAVE_ROW (AVX2) multiplies a row of two vectors in one assembly statement. With HAVE_LANES,
 * VL steps together load a vector of A for each row instead.
 */
/* The position in depth: pointers to A at row 0 and row 7, to B, and to the data that is prefetched. */
typedef struct {
    const char *a[2];
    ptrdiff_t ld, ld3, ld5; /* bytes between rows of A, and 3 and 5 times as many */
    const E *b;
    ptrdiff_t panel_distance; /* bytes from the panel to the second one */
    const char *prefetch;
    ptrdiff_t prefetch_step;
} FN(tile_cursor);

/* Return the address of A's element in row m, k steps of depth on. An x86 address is a register plus another one times 1, 2, 4
 * or 8, so few registers reach all rows. */
INLINE const E *FN(tile_a_element)(const int m, const FN(tile_cursor) *p, const int k)
{
    const int r = m % 7;
    return (const E *)(p->a[m / 7] + (r == 3 ? p->ld3 : r == 5 ? p->ld5 : r == 6 ? 2 * p->ld3 : r * p->ld)) + k * KSTEP;
}

#define TILE_SHALLOW 32 /* steps of depth */

/* Vectors of the first panel. */
#define FIRST_PANEL_NV(nv) ((nv) < TILE_NV ? (nv) : TILE_NV)

INLINE void FN(tile_step)(const int mr, const int nv, V acc[][2 * TILE_NV], const FN(tile_cursor) *p, const int k)
{
    BV bv[2 * TILE_NV];
#pragma GCC unroll 4
    for (int v = 0; v < nv; v++) {
        const E *row = p->b + (k * FIRST_PANEL_NV(nv) + v % TILE_NV) * VL * KSTEP;
        bv[v] = B_LOAD(v < TILE_NV ? row : (const E *)((const char *)row + p->panel_distance));
        if (mr > 1)
            IN_REGISTER(bv[v]);
    }
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++) {
#ifdef HAVE_ROW
        if (nv == 2) {
            V_(row)(acc[m], FN(tile_a_element)(m, p, k), bv);
            continue;
        }
#endif
        const BV av = A_SET(FN(tile_a_element)(m, p, k));
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++)
            acc[m][v] = MUL_ADD(av, bv[v], acc[m][v]);
    }
}

#ifdef HAVE_LANES
#define TILE_LANES VL
/* Compute VL steps of depth. The rows of A and a row of B are in registers. */
INLINE void FN(tile_lanes)(const int mr, const int nv, V acc[][2 * TILE_NV], const FN(tile_cursor) *p, const int k)
{
    BV av[14];
#pragma GCC unroll 14
    for (int m = 0; m < mr; m++)
        av[m] = B_LOAD(FN(tile_a_element)(m, p, k));
#pragma GCC unroll 4
    for (int i = 0; i < VL; i++) {
        BV bv[2 * TILE_NV];
#pragma GCC unroll 4
        for (int v = 0; v < nv; v++) {
            const E *row = p->b + ((k + i) * FIRST_PANEL_NV(nv) + v % TILE_NV) * VL * KSTEP;
            bv[v] = B_LOAD(v < TILE_NV ? row : (const E *)((const char *)row + p->panel_distance));
        }
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] = MUL_ADD_LANE(av[m], i, bv[v], acc[m][v]);
    }
}
#else
#define TILE_LANES 1
#endif

/* Return the offset of vector v in a row of the output. */
INLINE ptrdiff_t FN(tile_vector_offset)(const convt_tile *t, const int v)
{
    return (v < TILE_NV ? t->row_offset : t->row_offset2) + v % TILE_NV * VL;
}

#ifdef HAS_NARROW
#define TILE_NARROW_DTYPE(t) ((t)->narrow_dtype)
/* Define the store of a tile whose rows are of a 16-bit type, from mr rows of nv vectors in `sums`, one after the other. It is
 * a function of its own, because the tile has no registers to spare. */
#define TILE_NARROW(name)                                                                                                     \
    static __attribute__((noinline)) void FN(tile_##name)(int mr, int nv, const convt_tile *t, const T *sums, T *const *rows) \
    {                                                                                                                         \
        const int rest = t->cols - (nv - 1) * VL;                                                                             \
        for (int m = 0; m < mr; m++)                                                                                          \
            for (int v = 0; v < nv; v += 2, sums += 2 * VL) {                                                                 \
                uint16_t *to = (uint16_t *)rows[m] + FN(tile_vector_offset)(t, v);                                            \
                const V a = V_(load)(sums);                                                                                   \
                if (v + 1 == nv) { /* the only vector */                                                                      \
                    if (rest == VL)                                                                                           \
                        vf_store_##name(to, a);                                                                               \
                    else                                                                                                      \
                        vf_storen_##name(to, a, rest);                                                                        \
                    sums -= VL;                                                                                               \
                    continue;                                                                                                 \
                }                                                                                                             \
                const V b = V_(load)(sums + VL);                                                                              \
                if (v + 2 < nv || rest == VL) {                                                                               \
                    if (t->stream)                                                                                            \
                        vf_stream2_##name(to, a, b);                                                                          \
                    else                                                                                                      \
                        vf_store2_##name(to, a, b);                                                                           \
                } else {                                                                                                      \
                    vf_store_##name(to, a);                                                                                   \
                    vf_storen_##name(to + VL, b, rest);                                                                       \
                }                                                                                                             \
            }                                                                                                                 \
    }
TILE_NARROW(f16)
TILE_NARROW(bf16)
#undef TILE_NARROW
#else
#define TILE_NARROW_DTYPE(t) 0
#endif

/* Compute count * steps steps of depth. Every second step prefetches as many lines of `prefetch` as two steps read of A, and,
 * if `t` is not NULL, one of the rows that the tile will store. */
INLINE void FN(tile_steps)(const int mr, const int nv, const int steps, V acc[][2 * TILE_NV], FN(tile_cursor) *p,
                           const convt_tile *t, T *const *rows, int count)
{
    for (; count > 0; count--) {
        HIDE_VALUE(p->a[0]);
        HIDE_VALUE(p->ld);
        if (mr > 6)
            HIDE_VALUE(p->ld3);
        if (mr > 7)
            HIDE_VALUE(p->a[1]);
#pragma GCC unroll 4
        for (int k = 0; k < steps; k++) {
            if (k % 2) {
#pragma GCC unroll 4
                for (int at = 0; at < 2 * mr * KSTEP * (int)sizeof(E); at += 64)
                    __builtin_prefetch(p->prefetch + at, 0, 2);
                p->prefetch += p->prefetch_step;
                const char *row = t ? (const char *)*rows++ : NULL;
                const ptrdiff_t size = t && TILE_NARROW_DTYPE(t) ? sizeof(uint16_t) : sizeof(T);
#pragma GCC unroll 4
                for (int v = 0; t && v < nv; v++)
                    __builtin_prefetch(row + (FN(tile_vector_offset)(t, v) + VL - 1) * size, 1);
            }
            if (TILE_LANES == 1 || steps % TILE_LANES)
                FN(tile_step)(mr, nv, acc, p, k);
#ifdef HAVE_LANES
            else if (k % TILE_LANES == 0)
                FN(tile_lanes)(mr, nv, acc, p, k);
#endif
        }
        p->a[0] += steps * KSTEP * (ptrdiff_t)sizeof(E);
        p->a[1] += steps * KSTEP * (ptrdiff_t)sizeof(E);
        p->b += steps * FIRST_PANEL_NV(nv) * VL * KSTEP;
    }
}

INLINE void FN(tile_compute)(const int mr, const int nv, const convt_tile *t, FN(tile_cursor) p, T *const *rows, const T *init)
{
    V acc[14][2 * TILE_NV];
    const T *const inits[2] = {init, nv > TILE_NV ? t->init2 : NULL};
    /* Accumulators start from the bias, or from -0, the neutral element of addition. */
    const int from_bias = init && !t->init_ld;
    if (from_bias)
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
    const int kc = t->kc / KSTEP, pairs = kc / 2, no_prefetch = t->stream || (nv == 1 && kc <= TILE_SHALLOW);
    const int most = no_prefetch ? 0 : pairs < mr ? pairs : mr, first = TILE_LANES > 2 ? TILE_LANES : 2;
    const int prefetched = most / (first / 2), left = kc - first * prefetched;
    FN(tile_steps)(mr, nv, first, acc, &p, t, rows, prefetched);
    /* Few accumulators take four steps per iteration, which is faster if B comes from L2. More steps gain nothing. */
    const int steps = mr * nv <= 20 || TILE_LANES > 2 ? 4 : 2;
    FN(tile_steps)(mr, nv, steps, acc, &p, NULL, NULL, left / steps);
    FN(tile_steps)(mr, nv, 1, acc, &p, NULL, NULL, left % steps);

    /* Partial sums of earlier depth chunks are added last, because adding up chunks loses less than one long chain. */
    if (init && !from_bias)
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
                acc[m][v] += V_(load)(rows[m] + FN(tile_vector_offset)(t, v));

    if (t->act->code != CONVT_NONE)
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                acc[m][v] = V_(act_simple)(acc[m][v], t->act);

#ifdef HAS_NARROW
    if (TILE_NARROW_DTYPE(t)) {
        T sums[14 * 2 * TILE_NV * VL] __attribute__((aligned(64)));
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                V_(store)(sums + (m * nv + v) * VL, acc[m][v]);
        (t->narrow_dtype == CONVT_F16 ? FN(tile_f16) : FN(tile_bf16))(mr, nv, t, sums, rows);
        return;
    }
#endif
    if (t->stream && t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                V_(stream)(rows[m] + FN(tile_vector_offset)(t, v), acc[m][v]);
    } else if (t->cols == nv * VL) {
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++)
#pragma GCC unroll 4
            for (int v = 0; v < nv; v++)
                V_(store)(rows[m] + FN(tile_vector_offset)(t, v), acc[m][v]);
    } else {
        const int rest = t->cols - (nv - 1) * VL;
#pragma GCC unroll 14
        for (int m = 0; m < mr; m++) {
#pragma GCC unroll 4
            for (int v = 0; v < nv - 1; v++)
                V_(store)(rows[m] + FN(tile_vector_offset)(t, v), acc[m][v]);
            V_(storen)(rows[m] + FN(tile_vector_offset)(t, nv - 1), acc[m][nv - 1], rest);
        }
    }
}

INLINE void FN(tile_mn)(const int mr, const int nv, const convt_tile *t)
{
    const ptrdiff_t ld = t->lda * (ptrdiff_t)sizeof(E), panel_distance = nv > TILE_NV
        ? (const char *)t->b2 - (const char *)t->b : 0;
    FN(tile_cursor) p = {{t->a, (const char *)t->a + 7 * ld}, ld, 3 * ld, 5 * ld, t->b, panel_distance, t->prefetch,
                         t->prefetch_step};
    T *const *rows = (T *const *)t->rows;
    const T *init = t->init;
    for (int more = t->more_tiles; more >= 0; more--) {
        FN(tile_compute)(mr, nv, t, p, rows, init);
        p.a[0] += mr * ld;
        p.a[1] += mr * ld;
        p.prefetch += t->kc / KSTEP / 2 * t->prefetch_step;
        rows += mr;
        init += init ? mr * t->init_ld : 0;
    }
}

#define TILE(m, n) \
    static void FN(tile_##m##_##n)(const convt_tile *t) { FN(tile_mn)(m, n, t); }
#define ENTRY(m, n) FN(tile_##m##_##n),
TILE_ROWS(TILE, 1) TILE_ROWS(TILE, 2)
static void (*const FN(tiles)[TILE_NV][14])(const convt_tile *) = {{TILE_ROWS(ENTRY, 1)}, {TILE_ROWS(ENTRY, 2)}};
WIDE_ROWS(TILE, 4)
static void (*const FN(wide_tiles)[TILE_WIDE])(const convt_tile *) = {WIDE_ROWS(ENTRY, 4)};
#undef TILE
#undef ENTRY
#undef FIRST_PANEL_NV
#undef TILE_NARROW_DTYPE
#undef TILE_SHALLOW
#undef TILE_LANES

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
