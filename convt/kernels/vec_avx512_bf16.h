/* The vector operations of AVX-512, and the dot product of AVX512_BF16 on pairs of bfloat16. */
#ifndef CONVT_VEC_AVX512_BF16_H
#define CONVT_VEC_AVX512_BF16_H
#include "vec_parts.h"

/* A vector of pairs of bfloat16. vdot_fma returns c + a0 * b0 + a1 * b1 in each lane; vdot_set1 broadcasts a pair. */
typedef __m512bh vdot;
static inline vdot vdot_load(const uint16_t *p) { return (vdot)_mm512_loadu_si512(p); }
static inline vdot vdot_set1(const uint16_t *p)
{
    int pair;
    memcpy(&pair, p, 4);
    return (vdot)_mm512_set1_epi32(pair);
}
static inline vf vdot_fma(vdot a, vdot b, vf c) { return _mm512_dpbf16_ps(c, a, b); }
#endif
