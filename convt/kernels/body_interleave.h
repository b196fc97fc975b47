/* Rows of phases (T), which alternate in a row of outputs (S). The includer defines what body_memory.h says. */

/* `phases` vectors that alternate lane by lane, 1, 2, 4 or 8, at `to`. */
INLINE void FN(interleave_vectors)(const int phases, const convt_interleave *w, int64_t j, S *to)
{
    V v[8], u[8];
#pragma GCC unroll 8
    for (int p = 0; p < phases; p++)
        v[p] = V_(act)(V_(load)((const T *)w->row[p] + j), w->act);
#pragma GCC unroll 3
    for (int step = 1; step < phases; step *= 2) {
#pragma GCC unroll 4
        for (int p = 0; p < phases / 2; p++) {
            u[2 * p] = V_(zip_low)(v[p], v[p + phases / 2]);
            u[2 * p + 1] = V_(zip_high)(v[p], v[p + phases / 2]);
        }
#pragma GCC unroll 8
        for (int p = 0; p < phases; p++)
            v[p] = u[p];
    }
#ifdef S_IS_T
    if (w->stream && ((uintptr_t)to & (sizeof(V) - 1)) == 0) {
#pragma GCC unroll 8
        for (int p = 0; p < phases; p++)
            V_(stream)(to + p * VL, v[p]);
        return;
    }
#endif
#pragma GCC unroll 8
    for (int p = 0; p < phases; p++)
        S_STORE(to + p * VL, v[p]);
}

/* Outputs first to last, one by one. */
static void FN(interleave_some)(const convt_interleave *w, int64_t first, int64_t last)
{
    for (int64_t e = first; e < last;) {
        T some[VL];
        S stored[VL];
        const int n = last - e < VL ? (int)(last - e) : VL;
        int64_t j = e / w->phases, p = e % w->phases;
        for (int i = 0; i < VL; i++) {
            some[i] = i < n ? ((const T *)w->row[p])[j] : 0;
            if (++p == w->phases)
                p = 0, j++;
        }
        S_STORE(stored, V_(act)(V_(load)(some), w->act));
        for (int i = 0; i < n; i++)
            ((S *)w->out)[(e + i) * w->step] = stored[i];
        e += n;
    }
}

#define INTERLEAVE(n)                                                                 \
    for (; j + VL <= end; j += VL, to += (n) * VL)                                    \
        FN(interleave_vectors)(n, w, j, to);
static void FN(interleave)(const convt_interleave *w)
{
    const int64_t phases = w->phases, end = w->last / phases;
    int64_t j = (w->first + phases - 1) / phases;
    S *to = (S *)w->out + j * phases;
    if (w->step != 1 || j >= end) {
        FN(interleave_some)(w, w->first, w->last);
        return;
    }
    FN(interleave_some)(w, w->first, j * phases);
    if (phases == 1) {
        INTERLEAVE(1)
    } else if (phases == 2) {
        INTERLEAVE(2)
    } else if (phases == 4) {
        INTERLEAVE(4)
    } else if (phases == 8) {
        INTERLEAVE(8)
    }
#ifdef S_IS_T
    else if (phases <= CONVT_INTERLEAVED) { /* each vector of outputs is gathered from the phases' rows */
        int32_t index[CONVT_INTERLEAVED * VL];
        const T *base = w->row[0];
        int near = 1;
        for (int64_t e = 0; e < phases * VL; e++) {
            const int64_t at = (const T *)w->row[e % phases] - base + e / phases;
            near &= at == (int32_t)at;
            index[e] = (int32_t)at;
        }
        for (; near && j + VL <= end; j += VL, to += phases * VL)
            for (int v = 0; v < phases; v++)
                S_STORE(to + v * VL, V_(act)(V_(gather)(base + j, index + v * VL), w->act));
    }
#endif
    FN(interleave_some)(w, j * phases, w->last);
}
#undef INTERLEAVE
