/* AVX-512 and AMX intrinsics in software. tools/emulate.py includes this file before the kernels.
 *
 * SIMDe implements most intrinsics. This file adds those that its release in Debian 12 lacks, and AMX, whose tiles are
 * thread-local memory. */
#ifndef CONVT_EMULATED_H
#define CONVT_EMULATED_H
#include <assert.h>
#include <immintrin.h>
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <stdint.h>
#include <string.h>

#define LANES(i, n) for (int i = 0; i < (n); i++)

/* Masked loads and stores access no memory of elements whose mask bit is 0. */
#define MASKED(vector, element, lanes, mask_type, load, store)                                                     \
    static inline vector load(mask_type mask, const void *from)                                                          \
    {                                                                                                                    \
        element all[lanes] = {0};                                                                                        \
        LANES(i, lanes) if (mask >> i & 1) memcpy(&all[i], (const char *)from + i * sizeof(element), sizeof(element));     \
        vector v;                                                                                                        \
        memcpy(&v, all, sizeof v);                                                                                       \
        return v;                                                                                                        \
    }                                                                                                                    \
    static inline void store(void *to, mask_type mask, vector v)                                                         \
    {                                                                                                                    \
        element all[lanes];                                                                                              \
        memcpy(all, &v, sizeof v);                                                                                       \
        LANES(i, lanes) if (mask >> i & 1) memcpy((char *)to + i * sizeof(element), &all[i], sizeof(element));             \
    }
MASKED(__m512, float, 16, uint16_t, emulated_maskz_loadu_ps, emulated_mask_storeu_ps)
MASKED(__m512d, double, 8, uint8_t, emulated_maskz_loadu_pd, emulated_mask_storeu_pd)
MASKED(__m256i, uint16_t, 16, uint16_t, emulated_maskz_loadu_epi16, emulated_mask_storeu_epi16)
#define _mm512_maskz_loadu_ps emulated_maskz_loadu_ps
#define _mm512_maskz_loadu_pd emulated_maskz_loadu_pd
#define _mm256_maskz_loadu_epi16 emulated_maskz_loadu_epi16
#define _mm512_mask_storeu_ps emulated_mask_storeu_ps
#define _mm512_mask_storeu_pd emulated_mask_storeu_pd
#define _mm256_mask_storeu_epi16 emulated_mask_storeu_epi16

/* Non-temporal stores need an address that is a multiple of 64. */
static inline void emulated_stream(void *to, const void *from)
{
    assert((uintptr_t)to % 64 == 0);
    memcpy(to, from, 64);
}
#define STREAM(name, vector) \
    static inline void emulated_stream_##name(void *to, vector v) { emulated_stream(to, &v); }
STREAM(ps, __m512)
STREAM(pd, __m512d)
STREAM(si512, __m512i)
#define _mm512_stream_ps emulated_stream_ps
#define _mm512_stream_pd emulated_stream_pd
#define _mm512_stream_si512 emulated_stream_si512

static inline __m512 emulated_mask3_fmadd_ps(__m512 a, __m512 b, __m512 c, uint16_t mask)
{
    return _mm512_mask_mov_ps(c, mask, _mm512_fmadd_ps(a, b, c));
}
static inline __m512d emulated_mask3_fmadd_pd(__m512d a, __m512d b, __m512d c, uint8_t mask)
{
    return _mm512_mask_mov_pd(c, mask, _mm512_fmadd_pd(a, b, c));
}
#define _mm512_mask3_fmadd_ps emulated_mask3_fmadd_ps
#define _mm512_mask3_fmadd_pd emulated_mask3_fmadd_pd

static inline __m512 emulated_cvtph_ps(__m256i h)
{
    __m256 half[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
    __m512 v;
    memcpy(&v, half, sizeof v);
    return v;
}
static inline __m256i emulated_cvtps_ph(__m512 v)
{
    __m256 half[2];
    memcpy(half, &v, sizeof v);
    return _mm256_set_m128i(_mm256_cvtps_ph(half[1], _MM_FROUND_TO_NEAREST_INT), _mm256_cvtps_ph(half[0], _MM_FROUND_TO_NEAREST_INT));
}
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_cvtps_ph(v, rounding) emulated_cvtps_ph(v)

static inline __m512i emulated_cvtepi32_epi64(__m256i v)
{
    int32_t narrow[8];
    int64_t wide[8];
    memcpy(narrow, &v, sizeof v);
    LANES(i, 8) wide[i] = narrow[i];
    return _mm512_loadu_si512(wide);
}
static inline __m256i emulated_cvtepi32_epi16(__m512i v)
{
    int32_t wide[16];
    int16_t narrow[16];
    memcpy(wide, &v, sizeof v);
    LANES(i, 16) narrow[i] = (int16_t)wide[i];
    return _mm256_loadu_si256((const __m256i *)narrow);
}
#define _mm512_cvtepi32_epi64 emulated_cvtepi32_epi64
#define _mm512_cvtepi32_epi16 emulated_cvtepi32_epi16

static inline __m512 emulated_gather_ps(__m512i index, const float *p)
{
    int32_t at[16];
    float all[16];
    memcpy(at, &index, sizeof at);
    LANES(i, 16) all[i] = p[at[i]];
    return _mm512_loadu_ps(all);
}
static inline __m512d emulated_gather_pd(__m256i index, const double *p)
{
    int32_t at[8];
    double all[8];
    memcpy(at, &index, sizeof at);
    LANES(i, 8) all[i] = p[at[i]];
    return _mm512_loadu_pd(all);
}
static inline __m256 emulated_upper_half(__m512 v)
{
    __m256 half[2];
    memcpy(half, &v, sizeof v);
    return half[1];
}
#define _mm512_i32gather_ps(index, p, size) emulated_gather_ps(index, p)
#define _mm512_i32gather_pd(index, p, size) emulated_gather_pd(index, p)
#define _mm512_extractf32x8_ps(v, part) emulated_upper_half(v)

static inline uint32_t emulated_reduce_min_epu32(__m512i v)
{
    uint32_t all[16], least = UINT32_MAX;
    memcpy(all, &v, sizeof v);
    LANES(i, 16) least = all[i] < least ? all[i] : least;
    return least;
}
static inline uint32_t emulated_reduce_max_epu32(__m512i v)
{
    uint32_t all[16], most = 0;
    memcpy(all, &v, sizeof v);
    LANES(i, 16) most = all[i] > most ? all[i] : most;
    return most;
}
#define _mm512_reduce_min_epu32 emulated_reduce_min_epu32
#define _mm512_reduce_max_epu32 emulated_reduce_max_epu32

/* AMX: eight tiles of 16 rows of 64 bytes. convt always configures all eight at full size. */
static _Thread_local struct {
    int configured;
    union {
        float f32[16][16];
        uint16_t bf16[16][32];
        char bytes[16][64];
    } tile[8];
} amx;

static void emulated_tile_loadconfig(const void *config)
{
    uint8_t shapes[64]; /* palette, start row; bytes of each tile's rows from 16 on; rows from 48 on */
    memcpy(shapes, config, sizeof shapes);
    assert(shapes[0] == 1);
    LANES(i, 8) assert(shapes[16 + 2 * i] == 64 && shapes[48 + i] == 16);
    memset(&amx, 0, sizeof amx);
    amx.configured = 1;
}
static void emulated_tile_release(void) { amx.configured = 0; }
static void emulated_tile_zero(int c)
{
    assert(amx.configured);
    memset(&amx.tile[c], 0, sizeof amx.tile[c]);
}
static void emulated_tile_loadd(int c, const void *from, ptrdiff_t step)
{
    assert(amx.configured);
    LANES(row, 16) memcpy(amx.tile[c].bytes[row], (const char *)from + row * step, 64);
}
static void emulated_tile_stored(int c, void *to, ptrdiff_t step)
{
    assert(amx.configured);
    LANES(row, 16) memcpy((char *)to + row * step, amx.tile[c].bytes[row], 64);
}
/* Products of even and of odd elements have separate sums, which are added to the accumulator at the end. The function is not
 * inlined, so that the compiler moves no operation to where the control register does not have the values of AMX. */
__attribute__((noinline)) static void emulated_add_products(int c, int a, int b)
{
    LANES(m, 16) LANES(half, 2)
    {
        __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        LANES(pair, 16)
        {
            const __m256i y = _mm256_loadu_si256((const __m256i *)&amx.tile[b].bf16[pair][16 * half]);
            const __m256i both[2] = {_mm256_slli_epi32(y, 16), _mm256_and_si256(y, _mm256_set1_epi32((int)0xffff0000))};
            LANES(odd, 2)
            {
                const __m256i x = _mm256_set1_epi32((int)((uint32_t)amx.tile[a].bf16[m][2 * pair + odd] << 16));
                sums[odd] = _mm256_fmadd_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(both[odd]), sums[odd]);
            }
        }
        float *sum = &amx.tile[c].f32[m][8 * half];
        _mm256_storeu_ps(sum, _mm256_add_ps(_mm256_loadu_ps(sum), _mm256_add_ps(sums[0], sums[1])));
    }
}
/* The rules of AMX: round to nearest, treat denormal inputs and results as zero, leave the control register unchanged. */
static void emulated_tile_dpbf16ps(int c, int a, int b)
{
    assert(amx.configured);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x9fc0); /* denormals are zero, flush to zero, nothing traps */
    emulated_add_products(c, a, b);
    _mm_setcsr(before);
}
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig emulated_tile_loadconfig
#define _tile_release emulated_tile_release
#define _tile_zero emulated_tile_zero
#define _tile_loadd emulated_tile_loadd
#define _tile_stored emulated_tile_stored
#define _tile_dpbf16ps emulated_tile_dpbf16ps
#undef LANES
#undef MASKED
#undef STREAM
#endif
