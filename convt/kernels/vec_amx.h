/* The vector vocabulary of AVX-512, and AMX's tiles: eight of 16 rows of 64 bytes. */
#ifndef CONVT_VEC_AMX_H
#define CONVT_VEC_AMX_H
#include "vec_avx512.h"

/* Rows and columns of a tile of accumulators, and the depth of one multiplication. */
#define MATRIX 16
#define MATRIX_DEPTH 32

/* The configuration: eight whole tiles. A thread loads it before it multiplies, and releases the tiles when it has. */
static void matrix_enter(void)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}
static void matrix_leave(void) { _tile_release(); }

#define MATRIX_ZERO(c) _tile_zero(c)
#define MATRIX_LOAD(c, from, step) _tile_loadd(c, from, step)
#define MATRIX_STORE(c, to, step) _tile_stored(c, to, step)
/* c += a b on bfloat16: a's row m holds the depth in pairs, b's row k the pairs 2k and 2k + 1 of each column. */
#define MATRIX_MUL_ADD(c, a, b) _tile_dpbf16ps(c, a, b)

/* The upper half of each float, which is a bfloat16: truncated, or rounded (halves away from zero). */
static inline vf vf_upper(vf x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}
static inline vf vf_upper_rounded(vf x)
{
    return vf_upper(_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x8000))));
}
/* Pairs of the upper halves of a and b; the lower halves of b are zero. */
static inline vf vf_pairs(vf a, vf b)
{
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_srli_epi32(_mm512_castps_si512(a), 16), _mm512_castps_si512(b)));
}
/* The smallest nonzero magnitude, as the bits of a float less one, and the largest magnitude. */
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
/* Whether all were zero or from low to high, powers of two. */
static inline int v_range_within(const v_range *range, int low, int high)
{
    return _mm512_reduce_min_epu32(range->least) >= ((unsigned)(low + 127) << 23) - 1
           && _mm512_reduce_max_epu32(range->most) <= (unsigned)(high + 127) << 23;
}
#endif
