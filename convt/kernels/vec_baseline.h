/* The vector operations in portable C (vector extensions of GCC and Clang, 16 bytes), which compile to SSE2, NEON or whatever
 * the target has. vf is a vector of VF floats, vd one of VD doubles. loadn and storen access the first n lanes. A multiply-add
 * has two roundings, because no FMA instruction can be assumed. */
#ifndef CONVT_VEC_H
#define CONVT_VEC_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VF 4
#define VD 2
#define TILE_NV 2
#define TILE_MR {0, 6, 6}
#define TILE_MOST 6
#define TILE_ROWS ROWS_6
/* Most accumulators that leave registers for the operands. */
#define ACCUMULATORS 12
#define TILE_WIDE 2
#define WIDE_ROWS ROWS_2

/* baseline is a fallback: it has one depthwise kernel for each purpose, not one for each shape. */
#define FEW_SHAPES

#define IN_REGISTER(v) ((void)0)

typedef float vf __attribute__((vector_size(16)));
typedef double vd __attribute__((vector_size(16)));

static inline vf vf_set1(float x) { return (vf){x, x, x, x}; }
static inline vd vd_set1(double x) { return (vd){x, x}; }
static inline vf vf_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vd vd_fma(vd a, vd b, vd c) { return a * b + c; }

static inline vf vf_load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
static inline vd vd_load(const double *p) { vd v; memcpy(&v, p, sizeof v); return v; }
static inline void vf_store(float *p, vf v) { memcpy(p, &v, sizeof v); }
static inline void vd_store(double *p, vd v) { memcpy(p, &v, sizeof v); }

/* set2: two adjacent elements, repeated. */
static inline vf vf_set2(const void *p)
{
    float pair[2];
    memcpy(pair, p, sizeof pair);
    return (vf){pair[0], pair[1], pair[0], pair[1]};
}
static inline vd vd_set2(const void *p) { return vd_load(p); }
/* load_half: half a vector, repeated. load_halves: half a vector from p and half from q. store_halves: the inverse of
 * load_halves. */
static inline vf vf_load_half(const float *p) { return (vf){p[0], p[1], p[0], p[1]}; }
static inline vd vd_load_half(const double *p) { return (vd){p[0], p[0]}; }
static inline vf vf_load_halves(const float *p, const float *q) { return (vf){p[0], p[1], q[0], q[1]}; }
static inline vd vd_load_halves(const double *p, const double *q) { return (vd){p[0], q[0]}; }
static inline void vf_store_halves(float *p, float *q, vf v) { p[0] = v[0], p[1] = v[1], q[0] = v[2], q[1] = v[3]; }
static inline void vd_store_halves(double *p, double *q, vd v) { p[0] = v[0], q[0] = v[1]; }
/* halves: the first half of a and the second half of b. crossed: the second half of a and the first half of b, adjacent lanes
 * swapped (a half of a vd has one lane). */
static inline vf vf_halves(vf a, vf b) { return (vf){a[0], a[1], b[2], b[3]}; }
static inline vd vd_halves(vd a, vd b) { return (vd){a[0], b[1]}; }
static inline vf vf_crossed(vf a, vf b) { return (vf){a[3], a[2], b[1], b[0]}; }
static inline vd vd_crossed(vd a, vd b) { return (vd){a[1], b[0]}; }

static inline vf vf_gather(const float *p, const int32_t *i) { return (vf){p[i[0]], p[i[1]], p[i[2]], p[i[3]]}; }
static inline vd vd_gather(const double *p, const int32_t *i) { return (vd){p[i[0]], p[i[1]]}; }
/* zip_low, zip_high: the lanes of a and b interleaved; the first and the second half of the result. */
static inline vf vf_zip_low(vf a, vf b) { return (vf){a[0], b[0], a[1], b[1]}; }
static inline vf vf_zip_high(vf a, vf b) { return (vf){a[2], b[2], a[3], b[3]}; }
static inline vd vd_zip_low(vd a, vd b) { return (vd){a[0], b[0]}; }
static inline vd vd_zip_high(vd a, vd b) { return (vd){a[1], b[1]}; }
/* zip_low_segments, zip_high_segments: zip_low and zip_high within each 16 bytes, which is the whole vector here.
 * load_segments: 16 bytes from each p + at[i]. */
#define vf_zip_low_segments vf_zip_low
#define vf_zip_high_segments vf_zip_high
#define vd_zip_low_segments vd_zip_low
#define vd_zip_high_segments vd_zip_high
static inline vf vf_load_segments(const float *p, const ptrdiff_t *at) { return vf_load(p + at[0]); }
static inline vd vd_load_segments(const double *p, const ptrdiff_t *at) { return vd_load(p + at[0]); }
static inline void vf_stream(float *p, vf v) { vf_store(p, v); } /* there is no portable non-temporal store */
static inline void vd_stream(double *p, vd v) { vd_store(p, v); }
static inline void v_fence(void) {}

static inline vf vf_loadn(const float *p, int n)
{
    vf v = {0};
    for (int i = 0; i < n; i++)
        v[i] = p[i];
    return v;
}
static inline vd vd_loadn(const double *p, int n)
{
    vd v = {0};
    for (int i = 0; i < n; i++)
        v[i] = p[i];
    return v;
}
static inline void vf_storen(float *p, vf v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = v[i];
}
static inline void vd_storen(double *p, vd v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = v[i];
}

/* float16 by integer operations. Conversion to float32 is exact; conversion from float32 rounds to nearest even, subnormals
 * included. */
typedef uint32_t f16_bits __attribute__((vector_size(16)));
typedef uint16_t f16_half __attribute__((vector_size(8)));
static inline f16_bits f16_select(f16_bits mask, f16_bits a, f16_bits b) { return (mask & a) | (~mask & b); }

static inline vf vf_load_f16(const uint16_t *p)
{
    f16_half h;
    memcpy(&h, p, sizeof h);
    const f16_bits bits = __builtin_convertvector(h, f16_bits), mag = bits & 0x7fff;
    const f16_bits special = mag << 13 | 0x7f800000; /* Inf and NaN; NaN becomes quiet and keeps its payload */
    const f16_bits quiet = special | ((f16_bits)(mag > 0x7c00) & 0x400000);
    const f16_bits normal = (mag << 13) + (112u << 23);
    const f16_bits small = (f16_bits)(__builtin_convertvector(mag, vf) * 0x1p-24f); /* zero and subnormals: mag * 2^-24 */
    const f16_bits f = f16_select((f16_bits)(mag >= 0x7c00), quiet, f16_select((f16_bits)(mag >= 0x400), normal, small));
    return (vf)(f | (bits & 0x8000) << 16);
}
static inline void vf_store_f16(uint16_t *p, vf v)
{
    const f16_bits bits = (f16_bits)v, mag = bits & 0x7fffffff;
    const f16_bits nan = 0x7e00 | (mag >> 13 & 0x3ff);
    const f16_bits normal = (mag + 0xfff + (mag >> 13 & 1) - (112u << 23)) >> 13;
    /* adding 0.5 leaves the rounded multiple of 2^-24 in the low bits */
    const f16_bits small = (f16_bits)((vf)mag + 0.5f) - 0x3f000000;
    const f16_bits above = f16_select((f16_bits)(mag > 0x7f800000), nan, (f16_bits){0} + 0x7c00); /* infinity from 65520 on */
    const f16_bits finite = f16_select((f16_bits)(mag < 0x38800000), small, normal);
    const f16_bits h = f16_select((f16_bits)(mag >= 0x477ff000), above, finite) | (bits >> 16 & 0x8000);
    const f16_half half = __builtin_convertvector(h, f16_half);
    memcpy(p, &half, sizeof half);
}
#endif
