/* The vector operations in AVX2, FMA and F16C: vf is a vector of VF floats, vd one of VD doubles. loadn and storen access the
 * first n lanes. */
#ifndef CONVT_VEC_H
#define CONVT_VEC_H
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VF 8
#define VD 4
/* Most rows of a register tile with 1 and 2 vectors, for 16 registers. */
#define TILE_NV 2
#define TILE_MR {0, 6, 6}
#define TILE_MOST 6
#define TILE_ROWS ROWS_6
/* Most accumulators that leave registers for the operands. */
#define ACCUMULATORS 12
#define TILE_WIDE 2
#define WIDE_ROWS ROWS_2

/* Keep a loaded vector in a register; otherwise the compiler may repeat the load as an operand of each use. */
#define IN_REGISTER(v) __asm__("" : "+x"(v))

typedef __m256 vf;
typedef __m256d vd;

static inline vf vf_set1(float x) { return _mm256_set1_ps(x); }
static inline vd vd_set1(double x) { return _mm256_set1_pd(x); }
/* set2: two adjacent elements, repeated. */
static inline vf vf_set2(const void *p)
{
    double pair;
    memcpy(&pair, p, sizeof pair);
    return _mm256_castpd_ps(_mm256_set1_pd(pair));
}
static inline vd vd_set2(const void *p) { return _mm256_broadcast_pd((const __m128d *)p); }
static inline vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vd vd_fma(vd a, vd b, vd c) { return _mm256_fmadd_pd(a, b, c); }

#define HAVE_MIN
static inline vf vf_min(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline vd vd_min(vd a, vd b) { return _mm256_min_pd(a, b); }
static inline vf vf_max(vf a, vf b) { return _mm256_max_ps(a, b); }
static inline vd vd_max(vd a, vd b) { return _mm256_max_pd(a, b); }
static inline vf vf_leaky(vf x, vf slope)
{
    return _mm256_blendv_ps(x, _mm256_mul_ps(x, slope), _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
}
static inline vd vd_leaky(vd x, vd slope)
{
    return _mm256_blendv_pd(x, _mm256_mul_pd(x, slope), _mm256_cmp_pd(x, _mm256_setzero_pd(), _CMP_LT_OQ));
}

/* row: c[v] += *p * b[v] for two vectors, a row of a register tile. It is one assembly statement, because GCC otherwise keeps
 * some of the twelve accumulators on the stack, and going through the stack takes longer than the multiply-adds. */
#define HAVE_ROW
static inline void vf_row(vf *c, const float *p, const vf *b)
{
    vf a;
    __asm__("vbroadcastss %3, %2\n\tvfmadd231ps %4, %2, %0\n\tvfmadd231ps %5, %2, %1"
            : "+x"(c[0]), "+x"(c[1]), "=&x"(a) : "m"(*p), "x"(b[0]), "x"(b[1]));
}
static inline void vd_row(vd *c, const double *p, const vd *b)
{
    vd a;
    __asm__("vbroadcastsd %3, %2\n\tvfmadd231pd %4, %2, %0\n\tvfmadd231pd %5, %2, %1"
            : "+x"(c[0]), "+x"(c[1]), "=&x"(a) : "m"(*p), "x"(b[0]), "x"(b[1]));
}

static inline vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
static inline vd vd_load(const double *p) { return _mm256_loadu_pd(p); }
static inline void vf_store(float *p, vf v) { _mm256_storeu_ps(p, v); }
static inline void vd_store(double *p, vd v) { _mm256_storeu_pd(p, v); }

static inline vf vf_gather(const float *p, const int32_t *index)
{
    return _mm256_i32gather_ps(p, _mm256_loadu_si256((const __m256i *)index), 4);
}
static inline vd vd_gather(const double *p, const int32_t *index)
{
    return _mm256_i32gather_pd(p, _mm_loadu_si128((const __m128i *)index), 8);
}
/* permute_2: lanes of low and high permuted by index; indices from VF (VD) on mean high. If two vectors hold all elements, this
 * is cheaper than a gather. */
#define HAVE_PERMUTE_2
static inline vf vf_permute_2(vf low, vf high, const int32_t *index)
{
    const __m256i at = _mm256_loadu_si256((const __m256i *)index);
    const vf a = _mm256_permutevar8x32_ps(low, at), b = _mm256_permutevar8x32_ps(high, at);
    return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(at, 28)));
}
static inline vd vd_permute_2(vd low, vd high, const int32_t *index)
{
    const __m256i at = _mm256_cvtepi32_epi64(_mm_loadu_si128((const __m128i *)index)), twice = _mm256_slli_epi64(at, 1);
    const __m256i halves = _mm256_or_si256(twice, _mm256_slli_epi64(_mm256_or_si256(twice, _mm256_set1_epi64x(1)), 32));
    const __m256 a = _mm256_permutevar8x32_ps(_mm256_castpd_ps(low), halves);
    const __m256 b = _mm256_permutevar8x32_ps(_mm256_castpd_ps(high), halves);
    return _mm256_blendv_pd(_mm256_castps_pd(a), _mm256_castps_pd(b), _mm256_castsi256_pd(_mm256_slli_epi64(at, 61)));
}
/* zip_low, zip_high: the lanes of a and b interleaved; the first and the second half of the result. */
static inline vf vf_zip_low(vf a, vf b)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
static inline vf vf_zip_high(vf a, vf b)
{
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}
static inline vd vd_zip_low(vd a, vd b)
{
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x20);
}
static inline vd vd_zip_high(vd a, vd b)
{
    return _mm256_permute2f128_pd(_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b), 0x31);
}
/* zip_low_segments, zip_high_segments: zip_low and zip_high within each 16 bytes. */
static inline vf vf_zip_low_segments(vf a, vf b) { return _mm256_unpacklo_ps(a, b); }
static inline vf vf_zip_high_segments(vf a, vf b) { return _mm256_unpackhi_ps(a, b); }
static inline vd vd_zip_low_segments(vd a, vd b) { return _mm256_unpacklo_pd(a, b); }
static inline vd vd_zip_high_segments(vd a, vd b) { return _mm256_unpackhi_pd(a, b); }
/* load_segments: 16 bytes from each p + at[i]. */
static inline vf vf_load_segments(const float *p, const ptrdiff_t *at)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p + at[0])), _mm_loadu_ps(p + at[1]), 1);
}
static inline vd vd_load_segments(const double *p, const ptrdiff_t *at)
{
    return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p + at[0])), _mm_loadu_pd(p + at[1]), 1);
}
/* load_half: half a vector, repeated. load_halves: half a vector from p and half from q. store_halves: the inverse of
 * load_halves. */
static inline vf vf_load_half(const float *p) { return _mm256_broadcast_ps((const __m128 *)p); }
static inline vd vd_load_half(const double *p) { return _mm256_broadcast_pd((const __m128d *)p); }
static inline vf vf_load_halves(const float *p, const float *q)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(q), 1);
}
static inline vd vd_load_halves(const double *p, const double *q)
{
    return _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), _mm_loadu_pd(q), 1);
}
static inline void vf_store_halves(float *p, float *q, vf v)
{
    _mm_storeu_ps(p, _mm256_castps256_ps128(v));
    _mm_storeu_ps(q, _mm256_extractf128_ps(v, 1));
}
static inline void vd_store_halves(double *p, double *q, vd v)
{
    _mm_storeu_pd(p, _mm256_castpd256_pd128(v));
    _mm_storeu_pd(q, _mm256_extractf128_pd(v, 1));
}
/* halves: the first half of a and the second half of b. crossed: the second half of a and the first half of b, adjacent lanes
 * swapped. */
static inline vf vf_halves(vf a, vf b) { return _mm256_blend_ps(a, b, 0xf0); }
static inline vd vd_halves(vd a, vd b) { return _mm256_blend_pd(a, b, 0xc); }
static inline vf vf_crossed(vf a, vf b) { return _mm256_permute_ps(_mm256_permute2f128_ps(a, b, 0x21), 0xb1); }
static inline vd vd_crossed(vd a, vd b) { return _mm256_permute_pd(_mm256_permute2f128_pd(a, b, 0x21), 0x5); }
static inline void vf_stream(float *p, vf v) { _mm256_stream_ps(p, v); }
static inline void vd_stream(double *p, vd v) { _mm256_stream_pd(p, v); }
static inline void v_fence(void) { _mm_sfence(); }

static inline __m256i vf_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m256i vd_mask(int n)
{
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(n), _mm256_setr_epi64x(0, 1, 2, 3));
}
static inline vf vf_loadn(const float *p, int n) { return _mm256_maskload_ps(p, vf_mask(n)); }
static inline vd vd_loadn(const double *p, int n) { return _mm256_maskload_pd(p, vd_mask(n)); }
/* storen stores in parts, because a masked store takes twelve cycles on AMD Zen. */
static inline void vf_storen(float *p, vf v, int n)
{
    if (n >= 8) {
        _mm256_storeu_ps(p, v);
        return;
    }
    __m128 rest = _mm256_castps256_ps128(v);
    if (n & 4) {
        _mm_storeu_ps(p, rest);
        rest = _mm256_extractf128_ps(v, 1);
        p += 4;
    }
    if (n & 2) {
        _mm_storel_pi((__m64 *)p, rest);
        rest = _mm_movehl_ps(rest, rest);
        p += 2;
    }
    if (n & 1)
        _mm_store_ss(p, rest);
}
static inline void vd_storen(double *p, vd v, int n)
{
    if (n >= 4) {
        _mm256_storeu_pd(p, v);
        return;
    }
    __m128d rest = _mm256_castpd256_pd128(v);
    if (n & 2) {
        _mm_storeu_pd(p, rest);
        rest = _mm256_extractf128_pd(v, 1);
        p += 2;
    }
    if (n & 1)
        _mm_store_sd(p, rest);
}

static inline vf vf_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void vf_store_f16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* vf_upper_half: the upper half of each float, rounded to nearest even, in a vector without NaN. */
#define HAVE_STORE2_BF16
static inline __m256i vf_upper_half(vf v)
{
    const __m256i bits = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
}
static inline void vf_store2_bf16_numbers(uint16_t *p, vf a, vf b)
{
    const __m256i both = _mm256_packus_epi32(vf_upper_half(a), vf_upper_half(b)); /* 16-byte parts of a and b alternate */
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(both, 0xd8));
}
static inline int vf_some_nan(vf a, vf b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)); }
#endif
