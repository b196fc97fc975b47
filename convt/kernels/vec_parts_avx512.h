/* The operations of vec_parts.h in AVX-512. */
#include "vec_avx512.h"

static inline vf vf_upper(vf x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}
static inline vf vf_upper_rounded(vf x)
{
    return vf_upper(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))));
}
static inline void vf_storen_upper(uint16_t *p, vf x, int n)
{
    const __m256i h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(x), 16));
    _mm256_mask_storeu_epi16(p, vf_mask(n), h);
}
static inline void vf_store_upper(uint16_t *p, vf x) { vf_storen_upper(p, x, 16); }
static inline vf vf_pairs(vf a, vf b)
{
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b)));
}
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
static inline uint32_t v_range_least(const v_range *range) { return _mm512_reduce_min_epu32(range->least); }
static inline uint32_t v_range_most(const v_range *range) { return _mm512_reduce_max_epu32(range->most); }
