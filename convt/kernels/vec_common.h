/* Operations that all instruction sets share, written with vector extensions: bfloat16, partial vectors of 16-bit types,
 * simple activations. Included after vec_<name>.h, which may define HAVE_... to replace some of them. */
#ifndef CONVT_VEC_COMMON_H
#define CONVT_VEC_COMMON_H
#include "convt_kernels.h"
#include <math.h>

#define INLINE static inline __attribute__((always_inline))

/* X(m, n) for m up to a number of rows: a function or a table entry for each register tile. */
#define ROWS_2(X, n) X(1, n) X(2, n)
#define ROWS_4(X, n) ROWS_2(X, n) X(3, n) X(4, n)
#define ROWS_6(X, n) ROWS_4(X, n) X(5, n) X(6, n)
#define ROWS_10(X, n) ROWS_6(X, n) X(7, n) X(8, n) X(9, n) X(10, n)
#define ROWS_14(X, n) ROWS_10(X, n) X(11, n) X(12, n) X(13, n) X(14, n)

/* Hide the value of x from the compiler, which would otherwise keep values derived from x in more registers than there are. */
#define HIDE_VALUE(x) __asm__("" : "+r"(x))

/* Return the bits low to high - 1, of n bits. */
INLINE unsigned range_bits(int64_t low, int64_t high, int n)
{
    if (low >= n || high <= 0)
        return 0;
    return (high >= n ? ~0u : (1u << high) - 1) & (low <= 0 ? ~0u : ~0u << low);
}

typedef int32_t vi __attribute__((vector_size(VF * 4)));
typedef uint32_t vu __attribute__((vector_size(VF * 4)));
typedef int64_t vl __attribute__((vector_size(VD * 8)));
typedef uint16_t vh __attribute__((vector_size(VF * 2)));

INLINE vf vf_from_bf16(vh h) { return (vf)(__builtin_convertvector(h, vu) << 16); }
INLINE vf vf_load_bf16(const uint16_t *p)
{
    vh h;
    memcpy(&h, p, sizeof h);
    return vf_from_bf16(h);
}
/* Return the bfloat16 in the upper halves, rounded to nearest even; NaN becomes quiet. */
#ifndef HAVE_BF16
INLINE vu vf_bf16_bits(vf v)
{
    const vu bits = (vu)v;
    const vu nan = (vu)((bits & 0x7fffffff) > 0x7f800000);
    return (nan & (bits | 0x400000)) | (~nan & (bits + 0x7fff + (bits >> 16 & 1)));
}
#endif
INLINE vh vf_to_bf16(vf v) { return __builtin_convertvector((vu)vf_bf16_bits(v) >> 16, vh); }
INLINE void vf_store_bf16(uint16_t *p, vf v)
{
    const vh h = vf_to_bf16(v);
    memcpy(p, &h, sizeof h);
}

/* Copy memory; write whole cache lines of dst by non-temporal stores. */
static __attribute__((unused)) void copy_non_temporal(void *dst, const void *src, size_t bytes)
{
    char *to = dst;
    const char *from = src;
    const size_t head = bytes < 128 ? bytes : -(uintptr_t)to & 63, end = head + ((bytes - head) & ~(size_t)63);
    memcpy(to, from, head);
    for (size_t n = head; n < end; n += VF * sizeof(float))
        vf_stream((float *)(to + n), vf_load((const float *)(from + n)));
    memcpy(to + end, from + end, bytes - end);
}

/* Return 1 if no exponent is all ones, that is, no element is infinite or NaN. The compiler vectorises these loops. */
#define FINITE(name, word, exponent)                              \
    static __attribute__((unused)) int name(const void *p, size_t bytes) \
    {                                                             \
        const word *w = p;                                        \
        word found = 0;                                           \
        for (size_t i = 0; i < bytes / sizeof(word); i++)         \
            found |= (word)-((w[i] & (exponent)) == (exponent));  \
        return !found;                                            \
    }
FINITE(finite_f32, uint32_t, 0x7f800000u)
FINITE(finite_f64, uint64_t, 0x7ff0000000000000u)
FINITE(finite_f16, uint16_t, 0x7c00u)
FINITE(finite_bf16, uint16_t, 0x7f80u)

/* Loads and stores of n < VF 16-bit elements. Without HAVE_PARTIAL_16 they go through a whole vector on the stack. */
#define PARTIAL_16(name)                                                    \
    INLINE vf vf_loadn_##name(const uint16_t *p, int n)                     \
    {                                                                       \
        uint16_t whole[VF] = {0};                                           \
        for (int i = 0; i < n; i++)                                         \
            whole[i] = p[i];                                                \
        return vf_load_##name(whole);                                       \
    }                                                                       \
    INLINE void vf_storen_##name(uint16_t *p, vf v, int n)                  \
    {                                                                       \
        uint16_t whole[VF];                                                 \
        vf_store_##name(whole, v);                                          \
        for (int i = 0; i < n; i++)                                         \
            p[i] = whole[i];                                                \
    }
#ifdef HAVE_PARTIAL_16
INLINE vf vf_loadn_f16(const uint16_t *p, int n) { return vf_from_f16(vh_loadn(p, n)); }
INLINE vf vf_loadn_bf16(const uint16_t *p, int n) { return vf_from_bf16((vh)vh_loadn(p, n)); }
INLINE void vf_storen_f16(uint16_t *p, vf v, int n) { vh_storen(p, vf_to_f16(v), n); }
INLINE void vf_storen_bf16(uint16_t *p, vf v, int n) { vh_storen(p, (__m256i)vf_to_bf16(v), n); }
INLINE void vf_stream_f16(uint16_t *p, vf v) { _mm256_stream_si256((__m256i *)p, vf_to_f16(v)); }
INLINE void vf_stream_bf16(uint16_t *p, vf v) { _mm256_stream_si256((__m256i *)p, (__m256i)vf_to_bf16(v)); }
#else
PARTIAL_16(f16)
PARTIAL_16(bf16)
#define vf_stream_f16 vf_store_f16
#define vf_stream_bf16 vf_store_bf16
#endif
/* Stores of two vectors as 16-bit elements, and the same by non-temporal stores of whole cache lines. */
#ifdef HAVE_BF16
INLINE void vf_store2_f16(uint16_t *p, vf a, vf b) { _mm512_storeu_si512(p, vf_to_f16_2(a, b)); }
INLINE void vf_store2_bf16(uint16_t *p, vf a, vf b) { _mm512_storeu_si512(p, vf_to_bf16_2(a, b)); }
INLINE void vf_stream2_f16(uint16_t *p, vf a, vf b) { _mm512_stream_si512((void *)p, vf_to_f16_2(a, b)); }
INLINE void vf_stream2_bf16(uint16_t *p, vf a, vf b) { _mm512_stream_si512((void *)p, vf_to_bf16_2(a, b)); }
#else
#define STORE_2(op, name)                                  \
    INLINE void vf_##op##2_##name(uint16_t *p, vf a, vf b) \
    {                                                      \
        vf_##op##_##name(p, a);                            \
        vf_##op##_##name(p + VF, b);                       \
    }
STORE_2(store, f16)
#ifdef HAVE_STORE2_BF16
INLINE void vf_store2_bf16(uint16_t *p, vf a, vf b)
{
    if (!__builtin_expect(vf_some_nan(a, b), 0)) {
        vf_store2_bf16_numbers(p, a, b);
        return;
    }
    vf_store_bf16(p, a);
    vf_store_bf16(p + VF, b);
}
#else
STORE_2(store, bf16)
#endif
INLINE void vf_stream2_f16(uint16_t *p, vf a, vf b) { vf_store2_f16(p, a, b); }
INLINE void vf_stream2_bf16(uint16_t *p, vf a, vf b) { vf_store2_bf16(p, a, b); }
#endif

/* select: a in lanes whose mask is all ones, else b. */
#define SELECT(v_, V, I) \
    INLINE V v_##_select(I mask, V a, V b) { return (V)((mask & (I)a) | (~mask & (I)b)); }
SELECT(vf, vf, vi)
SELECT(vd, vd, vl)
/* min: a < b ? a : b. max: a > b ? a : b. Both return b if a or b is NaN. leaky: x < 0 ? x * slope : x. */
#ifndef HAVE_MIN
#define MIN(v_, V)                                                                                        \
    INLINE V v_##_min(V a, V b) { return v_##_select(a < b, a, b); }                                      \
    INLINE V v_##_max(V a, V b) { return v_##_select(a > b, a, b); }                                      \
    INLINE V v_##_leaky(V x, V slope) { return v_##_select(x < v_##_set1(0), x * slope, x); }
MIN(vf, vf)
MIN(vd, vd)
#endif
/* The activations that cost an instruction or two (none, clip, leaky), applied to registers. NaN stays NaN. */
#define ACT_SIMPLE(v_, V, T)                                                              \
    INLINE V v_##_act_simple(V x, const convt_act *act)                                   \
    {                                                                                     \
        if (act->code == CONVT_CLIP)                                                      \
            return v_##_min(v_##_set1((T)act->b), v_##_max(v_##_set1((T)act->a), x));     \
        return act->code == CONVT_LEAKY ? v_##_leaky(x, v_##_set1((T)act->a)) : x;        \
    }
ACT_SIMPLE(vf, vf, float)
ACT_SIMPLE(vd, vd, double)
/* select_ne: x in lanes whose mask is not 0, else 0. */
#define SELECT_NE(v_, V, I) \
    INLINE V v_##_select_ne(V mask, V x) { return (V)((mask != v_##_set1(0)) & (I)x); }
SELECT_NE(vf, vf, vi)
SELECT_NE(vd, vd, vl)
/* fma_where: c + a * b in lanes whose mask bits are set, else c. */
#ifndef HAVE_FMA_WHERE
INLINE vf vf_fma_where(vf mask, vf a, vf b, vf c) { return vf_select((vi)mask, vf_fma(a, b, c), c); }
INLINE vd vd_fma_where(vd mask, vd a, vd b, vd c) { return vd_select((vl)mask, vd_fma(a, b, c), c); }
#endif

#include "activations.h"
/* act_all: the activation of up to eight vectors. act: the activation of one. A transcendental activation gets a copy, so that
 * without one the vectors stay in registers. */
#define ACT_ALL(v_, V)                                                    \
    INLINE void v_##_act_all(V *x, const int count, const convt_act *act) \
    {                                                                     \
        V copy[8];                                                        \
        if (act->code > CONVT_LEAKY) {                                    \
            _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)       \
                copy[i] = x[i];                                           \
            v_##_act_transcendental(copy, count, act);                    \
            _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)       \
                x[i] = copy[i];                                           \
        } else                                                            \
            _Pragma("GCC unroll 8") for (int i = 0; i < count; i++)       \
                x[i] = v_##_act_simple(x[i], act);                        \
    }                                                                     \
    INLINE V v_##_act(V x, const convt_act *act)                          \
    {                                                                     \
        v_##_act_all(&x, 1, act);                                         \
        return x;                                                         \
    }
ACT_ALL(vf, vf)
ACT_ALL(vd, vd)
#endif
