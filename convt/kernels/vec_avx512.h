/* The vector operations in AVX-512 (F, BW, DQ, VL): vf is a vector of VF floats, vd one of VD doubles. loadn and storen access
 * the first n lanes. */
#ifndef CONVT_VEC_H
#define CONVT_VEC_H
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VF 16
#define VD 8
/* Most rows of a register tile with 1 and 2 vectors: accumulators, a row of B and a broadcast fit 32 registers. 9 rows of 3
 * vectors multiply slightly faster, but 48 columns straddle the phases of the usual 64 or 128 channels. */
#define TILE_NV 2
#define TILE_MR {0, 14, 14}
#define TILE_MOST 14
#define TILE_ROWS ROWS_14
/* Most accumulators that leave registers for the operands. */
#define ACCUMULATORS 28
#define TILE_WIDE 6
#define WIDE_ROWS ROWS_6

/* Keep a loaded vector in a register; otherwise the compiler may repeat the load as an operand of each use. */
#ifdef __AVX512F__
#define IN_REGISTER(v) __asm__("" : "+v"(v))
#else /* emulated (tools/emulate.py) */
#define IN_REGISTER(v)
#endif

typedef __m512 vf;
typedef __m512d vd;

static inline vf vf_set1(float x) { return _mm512_set1_ps(x); }
static inline vd vd_set1(double x) { return _mm512_set1_pd(x); }
/* set2: two adjacent elements, repeated. It is a single load. */
static inline vf vf_set2(const void *p)
{
    double pair;
    memcpy(&pair, p, sizeof pair);
    return _mm512_castpd_ps(_mm512_set1_pd(pair));
}
static inline vd vd_set2(const void *p) { return _mm512_broadcast_f64x2(_mm_loadu_pd(p)); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vd vd_fma(vd a, vd b, vd c) { return _mm512_fmadd_pd(a, b, c); }

#define HAVE_MIN
static inline vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vd vd_min(vd a, vd b) { return _mm512_min_pd(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vd vd_max(vd a, vd b) { return _mm512_max_pd(a, b); }
static inline vf vf_leaky(vf x, vf slope)
{
    return _mm512_mask_mul_ps(x, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), x, slope);
}
static inline vd vd_leaky(vd x, vd slope)
{
    return _mm512_mask_mul_pd(x, _mm512_cmp_pd_mask(x, _mm512_setzero_pd(), _CMP_LT_OQ), x, slope);
}

#define HAVE_FMA_WHERE
static inline vf vf_fma_where(vf mask, vf a, vf b, vf c)
{
    return _mm512_mask3_fmadd_ps(a, b, c, _mm512_movepi32_mask(_mm512_castps_si512(mask)));
}
static inline vd vd_fma_where(vd mask, vd a, vd b, vd c)
{
    return _mm512_mask3_fmadd_pd(a, b, c, _mm512_movepi64_mask(_mm512_castpd_si512(mask)));
}

static inline vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
static inline vd vd_load(const double *p) { return _mm512_loadu_pd(p); }
static inline void vf_store(float *p, vf v) { _mm512_storeu_ps(p, v); }
static inline void vd_store(double *p, vd v) { _mm512_storeu_pd(p, v); }

static inline vf vf_gather(const float *p, const int32_t *index)
{
    return _mm512_i32gather_ps(_mm512_loadu_si512(index), p, 4);
}
static inline vd vd_gather(const double *p, const int32_t *index)
{
    return _mm512_i32gather_pd(_mm256_loadu_si256((const __m256i *)index), p, 8);
}
/* permute_2: lanes of low and high permuted by index; indices from VF (VD) on mean high. If two vectors hold all elements, this
 * is cheaper than a gather. */
#define HAVE_PERMUTE_2
static inline vf vf_permute_2(vf low, vf high, const int32_t *index)
{
    return _mm512_permutex2var_ps(low, _mm512_loadu_si512(index), high);
}
static inline vd vd_permute_2(vd low, vd high, const int32_t *index)
{
    return _mm512_permutex2var_pd(low, _mm512_cvtepi32_epi64(_mm256_loadu_si256((const __m256i *)index)), high);
}
/* permute: lanes of one vector permuted by index. This is as cheap as a load, so kernels permute their operands. */
#define HAVE_PERMUTE
static inline vf vf_permute(vf v, const int32_t *index) { return _mm512_permutexvar_ps(_mm512_loadu_si512(index), v); }
static inline vd vd_permute(vd v, const int32_t *index)
{
    return _mm512_permutexvar_pd(_mm512_cvtepi32_epi64(_mm256_loadu_si256((const __m256i *)index)), v);
}
/* zip_low, zip_high: the lanes of a and b interleaved; the first and the second half of the result. */
static inline vf vf_zip_low(vf a, vf b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23), b);
}
static inline vf vf_zip_high(vf a, vf b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31), b);
}
static inline vd vd_zip_low(vd a, vd b)
{
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), b);
}
static inline vd vd_zip_high(vd a, vd b)
{
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), b);
}
/* zip_low_segments, zip_high_segments: zip_low and zip_high within each 16 bytes. */
static inline vf vf_zip_low_segments(vf a, vf b) { return _mm512_unpacklo_ps(a, b); }
static inline vf vf_zip_high_segments(vf a, vf b) { return _mm512_unpackhi_ps(a, b); }
static inline vd vd_zip_low_segments(vd a, vd b) { return _mm512_unpacklo_pd(a, b); }
static inline vd vd_zip_high_segments(vd a, vd b) { return _mm512_unpackhi_pd(a, b); }
/* load_segments: 16 bytes from each p + at[i]. Broadcasts under a mask need no shuffle. */
static inline vf vf_load_segments(const float *p, const ptrdiff_t *at)
{
    vf v = _mm512_castps128_ps512(_mm_loadu_ps(p + at[0]));
    v = _mm512_mask_broadcast_f32x4(v, 0x00f0, _mm_loadu_ps(p + at[1]));
    v = _mm512_mask_broadcast_f32x4(v, 0x0f00, _mm_loadu_ps(p + at[2]));
    return _mm512_mask_broadcast_f32x4(v, 0xf000, _mm_loadu_ps(p + at[3]));
}
static inline vd vd_load_segments(const double *p, const ptrdiff_t *at)
{
    vd v = _mm512_castpd128_pd512(_mm_loadu_pd(p + at[0]));
    v = _mm512_mask_broadcast_f64x2(v, 0x0c, _mm_loadu_pd(p + at[1]));
    v = _mm512_mask_broadcast_f64x2(v, 0x30, _mm_loadu_pd(p + at[2]));
    return _mm512_mask_broadcast_f64x2(v, 0xc0, _mm_loadu_pd(p + at[3]));
}
/* load_half: half a vector, repeated. load_halves: half a vector from p and half from q. store_halves: the inverse of
 * load_halves. */
static inline vf vf_load_half(const float *p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }
static inline vd vd_load_half(const double *p) { return _mm512_broadcast_f64x4(_mm256_loadu_pd(p)); }
static inline vf vf_load_halves(const float *p, const float *q)
{
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)), _mm256_loadu_ps(q), 1);
}
static inline vd vd_load_halves(const double *p, const double *q)
{
    return _mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_loadu_pd(p)), _mm256_loadu_pd(q), 1);
}
static inline void vf_store_halves(float *p, float *q, vf v)
{
    _mm256_storeu_ps(p, _mm512_castps512_ps256(v));
    _mm256_storeu_ps(q, _mm512_extractf32x8_ps(v, 1));
}
static inline void vd_store_halves(double *p, double *q, vd v)
{
    _mm256_storeu_pd(p, _mm512_castpd512_pd256(v));
    _mm256_storeu_pd(q, _mm512_extractf64x4_pd(v, 1));
}
/* halves: the first half of a and the second half of b. crossed: the second half of a and the first half of b, adjacent lanes
 * swapped. */
static inline vf vf_halves(vf a, vf b) { return _mm512_mask_blend_ps(0xff00, a, b); }
static inline vd vd_halves(vd a, vd b) { return _mm512_mask_blend_pd(0xf0, a, b); }
static inline vf vf_crossed(vf a, vf b)
{
    return _mm512_permutex2var_ps(a, _mm512_setr_epi32(9, 8, 11, 10, 13, 12, 15, 14, 17, 16, 19, 18, 21, 20, 23, 22), b);
}
static inline vd vd_crossed(vd a, vd b)
{
    return _mm512_permutex2var_pd(a, _mm512_setr_epi64(5, 4, 7, 6, 9, 8, 11, 10), b);
}
static inline void vf_stream(float *p, vf v) { _mm512_stream_ps(p, v); }
static inline void vd_stream(double *p, vd v) { _mm512_stream_pd(p, v); }
static inline void v_fence(void) { _mm_sfence(); }

static inline __mmask16 vf_mask(int n) { return (__mmask16)((1u << n) - 1); }
static inline __mmask8 vd_mask(int n) { return (__mmask8)((1u << n) - 1); }
static inline vf vf_loadn(const float *p, int n) { return _mm512_maskz_loadu_ps(vf_mask(n), p); }
static inline vd vd_loadn(const double *p, int n) { return _mm512_maskz_loadu_pd(vd_mask(n), p); }
static inline void vf_storen(float *p, vf v, int n) { _mm512_mask_storeu_ps(p, vf_mask(n), v); }
static inline void vd_storen(double *p, vd v, int n) { _mm512_mask_storeu_pd(p, vd_mask(n), v); }

static inline vf vf_from_f16(__m256i h) { return _mm512_cvtph_ps(h); }
static inline __m256i vf_to_f16(vf v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf vf_load_f16(const uint16_t *p) { return vf_from_f16(_mm256_loadu_si256((const __m256i *)p)); }
static inline void vf_store_f16(uint16_t *p, vf v) { _mm256_storeu_si256((__m256i *)p, vf_to_f16(v)); }
static inline __m512i vf_to_f16_2(vf a, vf b)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(vf_to_f16(a)), vf_to_f16(b), 1);
}
/* vf_bf16_bits: bfloat16 in the upper halves, rounded to nearest even; NaN becomes quiet. */
#define HAVE_BF16
static inline __m512i vf_bf16_bits(vf v)
{
    const __m512i bits = _mm512_castps_si512(v), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), bits, _mm512_set1_epi32(0x400000));
}
static inline __m512i vf_to_bf16_2(vf a, vf b)
{
    static const uint16_t upper[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                       33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    return _mm512_permutex2var_epi16(vf_bf16_bits(a), _mm512_loadu_si512(upper), vf_bf16_bits(b));
}
/* Loads and stores of the first n lanes of 16-bit elements. */
#define HAVE_PARTIAL_16
static inline __m256i vh_loadn(const uint16_t *p, int n) { return _mm256_maskz_loadu_epi16(vf_mask(n), p); }
static inline void vh_storen(uint16_t *p, __m256i h, int n) { _mm256_mask_storeu_epi16(p, vf_mask(n), h); }
#endif
