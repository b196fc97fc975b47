/* `interleave` of the contract: rows of phases (T), which alternate in rows of outputs (S). The includer defines the macros
 * listed in body_memory.h.
 *
 * Loop order: rows, then VL outputs of each phase. 1, 2, 4 or 8 phases are interleaved in registers (zip); other numbers are
 * gathered by index. Every ISA has these operations; only float32 and float64 take non-temporal stores.
 */

/* Interleave n vectors (1, 2, 4 or 8) lane by lane. */
INLINE void FN(zip)(const int n, V *v)
{
    V u[8];
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

#define EACH_ROW(known)                                                                                         \
    for (int r = 0; r < w->rows; r++)                                                                           \
        if (w->out[r])                                                                                          \
            FN(interleave_row)(known, w, (const T *)w->row + r * w->phases * w->ld,                             \
                               V_(set1)(w->bias ? ((const T *)w->bias)[r] : (T)-0.0), w->out[r], index);
static void FN(interleave)(const convt_interleave *run)
{
    /* local copies, which no store can alias */
    const convt_act act = *run->act;
    convt_interleave local = *run;
    local.act = &act;
    const convt_interleave *const w = &local;
    int32_t index[CONVT_INTERLEAVED * VL];
    CONVT_ASSERT(w->phases <= CONVT_INTERLEAVED && w->phases * w->ld < INT32_MAX);
    if (w->phases == 1) {
        EACH_ROW(1)
    } else if (w->phases == 2) {
        EACH_ROW(2)
    } else if (w->phases == 4) {
        EACH_ROW(4)
    } else if (w->phases == 8) {
        EACH_ROW(8)
    } else {
        for (int e = 0; e < w->phases * VL; e++)
            index[e] = (int32_t)(e % w->phases * w->ld + e / w->phases);
        EACH_ROW(0)
    }
}
#undef EACH_ROW
