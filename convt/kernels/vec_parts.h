/* Floats as bfloat16 parts, with AVX-512, for units that multiply bfloat16 (dot products, AMX). */
#ifndef CONVT_VEC_PARTS_H
#define CONVT_VEC_PARTS_H
#include "convt_kernels.h"
#include "vec_avx512.h"

/* The upper half of each float, which is a bfloat16, as a float: truncated (vf_upper), or rounded with halves away from zero
 * (vf_upper_rounded). */
static inline vf vf_upper(vf x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}
static inline vf vf_upper_rounded(vf x)
{
    return vf_upper(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))));
}
/* Store the upper halves of the first n lanes. */
static inline void vf_storen_upper(uint16_t *p, vf x, int n)
{
    const __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16));
    _mm256_mask_storeu_epi16(p, vf_mask(n), h);
}
static inline void vf_store_upper(uint16_t *p, vf x) { vf_storen_upper(p, x, 16); }
/* Return pairs (upper half of a, upper half of b) in each lane. The lower halves of b must be zero. */
static inline vf vf_pairs(vf a, vf b)
{
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b)));
}
/* The range of the values seen so far. least: the smallest nonzero magnitude, as the bits of a float minus 1, so that zero
 * becomes the largest integer. most: the largest magnitude. */
typedef struct {
    __m512i least, most;
} v_range;
static inline v_range v_range_none(void) { return (v_range){_mm512_set1_epi32(-1), _mm512_setzero_si512()}; }
static inline void v_range_add(v_range *range, vf x)
{
    const __m512i size = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    range->least = _mm512_min_epu32(range->least, _mm512_sub_epi32(size, _mm512_set1_epi32(1)));
    range->most = _mm512_max_epu32(range->most, size);
}
/* Check whether all values are zero or have a magnitude from 2^low to 2^high. */
static inline int v_range_within(const v_range *range, int low, int high)
{
    return _mm512_reduce_min_epu32(range->least) >= ((unsigned)(low + 127) << 23) - 1
           && _mm512_reduce_max_epu32(range->most) <= (unsigned)(high + 127) << 23;
}

/* Check whether the unit multiplies values of this range with the precision that it promises; the result is that of `pack`
 * (convt_kernels.h). Units flush subnormals to zero, so no part and no product may be that small. No accumulator may overflow,
 * in any order of additions: this holds for 2^31 products of values up to 2^HIGH. */
#define LOW_DATA -64
#define LOW_WEIGHTS -39
#define HIGH 48
static inline int v_range_fits(const v_range *range)
{
    return v_range_within(range, LOW_WEIGHTS, HIGH) ? CONVT_FITS_WEIGHTS : v_range_within(range, LOW_DATA, HIGH);
}
#endif
