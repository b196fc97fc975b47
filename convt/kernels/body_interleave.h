/* `interleave` of the contract: rows of phases (T), which alternate in rows of outputs (S). The includer defines the macros
 * listed in body_memory.h.
 *
 * Loop order: rows, then VL outputs of each phase. Up to 8 phases are interleaved in registers: 1, 2, 4 or 8 by zips, the
 * others by permutations (HAVE_PERMUTE_2: AVX2, AVX-512). Other numbers are gathered by index. Only float32 and float64 take
 * non-temporal stores.
 */

/* ZIPPED(X): X(n) for each number of vectors that `zip` interleaves. CAN_ZIP(n) checks a number. */
#undef ZIPPED
#undef CAN_ZIP
#ifdef HAVE_PERMUTE_2
#define CAN_ZIP(n) ((n) <= 8)
#define ZIPPED(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

/* Permutation p of vector i of n takes the lanes of row p, and keeps those of the rows before: zip_n[i][p - 1]. */
#define ROW(n, i, l) (((i) * VL + (l)) % (n))
#define AT(n, i, l) (((i) * VL + (l)) / (n))
#define LANE(n, i, p, l) (ROW(n, i, l) == (p) ? VL + AT(n, i, l) : (p) == 1 && ROW(n, i, l) == 0 ? AT(n, i, l) : (l))
#define LANES_4(n, i, p, l) LANE(n, i, p, l), LANE(n, i, p, l + 1), LANE(n, i, p, l + 2), LANE(n, i, p, l + 3)
#define LANES(n, i, p) {LANES_4(n, i, p, 0), LANES_4(n, i, p, 4), LANES_4(n, i, p, 8), LANES_4(n, i, p, 12)}
#define VECTOR(n, i) {LANES(n, i, 1), LANES(n, i, 2), LANES(n, i, 3), LANES(n, i, 4), LANES(n, i, 5), LANES(n, i, 6)}
#define ZIP_INDEX(n)                                      \
    static const int32_t FN(zip_##n)[7][6][16] = {        \
        VECTOR(n, 0), VECTOR(n, 1), VECTOR(n, 2), VECTOR(n, 3), VECTOR(n, 4), VECTOR(n, 5), VECTOR(n, 6)};
ZIP_INDEX(3) ZIP_INDEX(5) ZIP_INDEX(6) ZIP_INDEX(7)
#undef ROW
#undef AT
#undef LANE
#undef LANES_4
#undef LANES
#undef VECTOR
#undef ZIP_INDEX
#else
#define CAN_ZIP(n) ((n) <= 8 && !((n) & ((n) - 1)))
#define ZIPPED(X) X(1) X(2) X(4) X(8)
#endif

/* Interleave n vectors lane by lane. */
INLINE void FN(zip)(const int n, V *v)
{
    V u[8];
#ifdef HAVE_PERMUTE_2
    if (n & (n - 1)) {
        const int32_t(*const index)[6][16] = n == 3 ? FN(zip_3) : n == 5 ? FN(zip_5) : n == 6 ? FN(zip_6) : FN(zip_7);
#pragma GCC unroll 8
        for (int p = 0; p < n; p++)
            u[p] = v[p];
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
#pragma GCC unroll 8
            for (int p = 1; p < n; p++)
                v[i] = V_(permute_2)(p == 1 ? u[0] : v[i], u[p], index[i][p - 1]);
        return;
    }
#endif
#pragma GCC unroll 3
    for (int step = 1; step < n; step *= 2) {
#pragma GCC unroll 4
        for (int i = 0; i < n / 2; i++) {
            u[2 * i] = V_(zip_low)(v[i], v[i + n / 2]);
            u[2 * i + 1] = V_(zip_high)(v[i], v[i + n / 2]);
        }
#pragma GCC unroll 8
        for (int i = 0; i < n; i++)
            v[i] = u[i];
    }
}

/* Store VL outputs of each phase, interleaved: the first n of phases * VL elements, to `to`. With `stream`, non-temporal stores
 * to aligned vectors. */
INLINE void FN(interleave_vectors)(const int phases, const convt_interleave *w, const T *row, V bias, S *to, int n, int stream)
{
    V v[8];
#pragma GCC unroll 8
    for (int p = 0; p < phases; p++)
        v[p] = V_(load)(row + p * w->ld) + bias;
    V_(act_all)(v, phases, w->act);
    FN(zip)(phases, v);
    if (n < phases * VL) {
#pragma GCC unroll 8
        for (int p = 0; p < phases; p++)
            if (n >= (p + 1) * VL)
                S_STORE(to + p * VL, v[p]);
            else if (n > p * VL)
                S_STOREN(to + p * VL, v[p], n - p * VL);
        return;
    }
#ifdef S_IS_T
    if (stream) {
#pragma GCC unroll 8
        for (int p = 0; p < phases; p++)
            V_(stream)(to + p * VL, v[p]);
        return;
    }
#endif
    (void)stream;
#pragma GCC unroll 8
    for (int p = 0; p < phases; p++)
        S_STORE(to + p * VL, v[p]);
}

/* Fill the index that interleaves n rows, `ld` elements apart, by a gather. */
INLINE void FN(interleaving)(int n, ptrdiff_t ld, int32_t *index)
{
    for (int e = 0, row = 0, at = 0; e < n * VL; e++) {
        index[e] = (int32_t)(row * ld + at);
        if (++row == n)
            row = 0, at++;
    }
}

/* interleave_vectors for any number of phases: each vector of outputs is gathered from the rows by index. */
static void FN(interleave_gathered)(const convt_interleave *w, const T *row, V bias, S *to, const int32_t *index)
{
    for (int p = 0; p < w->phases; p++) {
#ifdef S_IS_T
        const V v = V_(gather)(row, index + p * VL);
#else
        T some[VL];
        for (int i = 0; i < VL; i++)
            some[i] = row[index[p * VL + i]];
        const V v = V_(load)(some);
#endif
        S_STORE(to + p * VL, V_(act)(v + bias, w->act));
    }
}

/* Check whether non-temporal stores may write `count` outputs: vectors are aligned, and this run writes all of the cache lines.
 * A line that is written in part takes memory as long as two. */
INLINE int FN(interleave_streams)(const convt_interleave *w, const S *out, const S *to, int64_t count)
{
    const uintptr_t low = (uintptr_t)to & ~(uintptr_t)63, high = ((uintptr_t)(to + count) + 63) & ~(uintptr_t)63;
    return w->stream && ((uintptr_t)to & (sizeof(V) - 1)) == 0 && low >= (uintptr_t)(out + w->first) &&
           high <= (uintptr_t)(out + w->last);
}

/* Store outputs first to last - 1 of a row, VL of each phase at a time. Outputs that cannot be stored in order go through the
 * stack. */
INLINE void FN(interleave_row)(const int phases, const convt_interleave *w, const T *row, V bias, S *out, const int32_t *index)
{
    S some[CONVT_INTERLEAVED * VL];
    const int64_t count = phases ? phases : w->phases, each = count * VL;
    for (int64_t at = w->first / count * count; at < w->last; at += each, row += VL) {
        const int64_t low = at < w->first ? w->first : at, high = at + each > w->last ? w->last : at + each;
        const int whole = high - low == each, direct = w->step == 1 && low == at && (whole || phases);
        S *to = direct ? out + at : some;
        const T *from = row + w->first / count;
        if (phases)
            FN(interleave_vectors)(phases, w, from, bias, to, direct ? (int)(high - at) : (int)each,
                                   direct && FN(interleave_streams)(w, out, to, each));
        else
            FN(interleave_gathered)(w, from, bias, to, index);
        if (direct)
            continue;
        if (w->step == 1)
            memcpy(out + low, some + (low - at), (size_t)(high - low) * sizeof(S));
        else
            for (int64_t e = low; e < high; e++)
                out[e * w->step] = some[e - at];
    }
}

/* A function for each number of phases that is known, and one for any number, 0. */
#define INTERLEAVE(known)                                                                                            \
    static __attribute__((noinline)) void FN(interleave_##known)(const convt_interleave *run, const int32_t *index)  \
    {                                                                                                                \
        /* local copies, which no store can alias */                                                                 \
        const convt_act act = *run->act;                                                                             \
        convt_interleave w = *run;                                                                                   \
        w.act = &act;                                                                                                \
        for (int r = 0; r < w.rows; r++)                                                                             \
            if (w.out[r])                                                                                            \
                FN(interleave_row)(known, &w, (const T *)w.row + r * w.phases * w.ld,                                \
                                   V_(set1)(w.bias ? ((const T *)w.bias)[r] : (T)-0.0), w.out[r], index);            \
    }
ZIPPED(INTERLEAVE) INTERLEAVE(0)
#undef INTERLEAVE
static void FN(interleave)(const convt_interleave *run)
{
    int32_t index[CONVT_INTERLEAVED * VL];
    CONVT_ASSERT(run->phases <= CONVT_INTERLEAVED && run->phases * run->ld < INT32_MAX);
    switch (run->phases) {
#define CASE(n)                             \
    case n:                                 \
        FN(interleave_##n)(run, NULL);      \
        break;
        ZIPPED(CASE)
#undef CASE
    default:
        FN(interleaving)((int)run->phases, run->ld, index);
        FN(interleave_0)(run, index);
    }
}
