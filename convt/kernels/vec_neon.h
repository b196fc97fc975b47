/* The vector operations in NEON (AArch64, Armv8.0-A): vf is a vector of VF floats, vd one of VD doubles. loadn and storen
 * access the first n lanes. */
#ifndef CONVT_VEC_H
#define CONVT_VEC_H
#include <arm_neon.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define VF 4
#define VD 2
/* Most rows of a register tile with 1 and 2 vectors: 20 accumulators, a vector of A, and four rows of B fit 32 registers. */
#define TILE_NV 2
#define TILE_MR {0, 10, 10}
#define TILE_MOST 10
#define TILE_ROWS ROWS_10
/* Most accumulators that leave registers for the operands. */
#define ACCUMULATORS 28
#define TILE_WIDE 4
#define WIDE_ROWS ROWS_4

/* A multiply-add takes a lane of a vector as its factor, so a tile loads A by whole vectors. A load that broadcasts an element
 * would occupy a multiply-add pipe of Neoverse CPUs. */
#define HAVE_LANES

/* Keep a loaded vector in a register; otherwise the compiler may repeat the load for each use. */
#define IN_REGISTER(v) __asm__("" : "+w"(v))

typedef float32x4_t vf;
typedef float64x2_t vd;

static inline vf vf_set1(float x) { return vdupq_n_f32(x); }
static inline vd vd_set1(double x) { return vdupq_n_f64(x); }
/* set2: two adjacent elements, repeated. */
static inline vf vf_set2(const void *p)
{
    double pair;
    memcpy(&pair, p, sizeof pair);
    return vreinterpretq_f32_f64(vdupq_n_f64(pair));
}
static inline vd vd_set2(const void *p) { return vld1q_f64(p); }
static inline vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vd vd_fma(vd a, vd b, vd c) { return vfmaq_f64(c, a, b); }

static inline vf vf_load(const float *p) { return vld1q_f32(p); }
static inline vd vd_load(const double *p) { return vld1q_f64(p); }
static inline void vf_store(float *p, vf v) { vst1q_f32(p, v); }
static inline void vd_store(double *p, vd v) { vst1q_f64(p, v); }

static inline vf vf_gather(const float *p, const int32_t *i) { return (vf){p[i[0]], p[i[1]], p[i[2]], p[i[3]]}; }
static inline vd vd_gather(const double *p, const int32_t *i) { return (vd){p[i[0]], p[i[1]]}; }
/* permute_2: lanes of low and high permuted by index; indices from VF (VD) on mean high. If two vectors hold all elements, this
 * is cheaper than a gather. */
#define HAVE_PERMUTE_2
static inline vf vf_permute_2(vf low, vf high, const int32_t *index)
{
    const uint8x16x2_t both = {{vreinterpretq_u8_f32(low), vreinterpretq_u8_f32(high)}};
    const uint32x4_t bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100), vreinterpretq_u32_s32(vld1q_s32(index)), 0x04040404);
    return vreinterpretq_f32_u8(vqtbl2q_u8(both, vreinterpretq_u8_u32(bytes)));
}
static inline vd vd_permute_2(vd low, vd high, const int32_t *index)
{
    const int32_t halves[4] = {2 * index[0], 2 * index[0] + 1, 2 * index[1], 2 * index[1] + 1};
    return vreinterpretq_f64_f32(vf_permute_2(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high), halves));
}
/* zip_low, zip_high: the lanes of a and b interleaved; the first and the second half of the result. */
static inline vf vf_zip_low(vf a, vf b) { return vzip1q_f32(a, b); }
static inline vf vf_zip_high(vf a, vf b) { return vzip2q_f32(a, b); }
static inline vd vd_zip_low(vd a, vd b) { return vzip1q_f64(a, b); }
static inline vd vd_zip_high(vd a, vd b) { return vzip2q_f64(a, b); }
/* zip_low_segments, zip_high_segments: zip_low and zip_high within each 16 bytes, which is the whole vector here.
 * load_segments: 16 bytes from each p + at[i]. */
#define vf_zip_low_segments vf_zip_low
#define vf_zip_high_segments vf_zip_high
#define vd_zip_low_segments vd_zip_low
#define vd_zip_high_segments vd_zip_high
static inline vf vf_load_segments(const float *p, const ptrdiff_t *at) { return vld1q_f32(p + at[0]); }
static inline vd vd_load_segments(const double *p, const ptrdiff_t *at) { return vld1q_f64(p + at[0]); }
/* load_half: half a vector, repeated. load_halves: half a vector from p and half from q. store_halves: the inverse of
 * load_halves. */
static inline vf vf_load_half(const float *p) { return vf_set2(p); }
static inline vd vd_load_half(const double *p) { return vld1q_dup_f64(p); }
static inline vf vf_load_halves(const float *p, const float *q) { return vcombine_f32(vld1_f32(p), vld1_f32(q)); }
static inline vd vd_load_halves(const double *p, const double *q) { return vcombine_f64(vld1_f64(p), vld1_f64(q)); }
static inline void vf_store_halves(float *p, float *q, vf v)
{
    vst1_f32(p, vget_low_f32(v));
    vst1_f32(q, vget_high_f32(v));
}
static inline void vd_store_halves(double *p, double *q, vd v)
{
    vst1_f64(p, vget_low_f64(v));
    vst1_f64(q, vget_high_f64(v));
}
/* halves: the first half of a and the second half of b. crossed: the second half of a and the first half of b, adjacent lanes
 * swapped (a half of a vd has one lane). */
static inline vf vf_halves(vf a, vf b) { return vcombine_f32(vget_low_f32(a), vget_high_f32(b)); }
static inline vd vd_halves(vd a, vd b) { return vcombine_f64(vget_low_f64(a), vget_high_f64(b)); }
static inline vf vf_crossed(vf a, vf b) { return vrev64q_f32(vextq_f32(a, b, 2)); }
static inline vd vd_crossed(vd a, vd b) { return vextq_f64(a, b, 1); }
/* Non-temporal stores of single vectors do not exist. Neoverse CPUs stop reading lines for long runs of ordinary stores. */
static inline void vf_stream(float *p, vf v) { vst1q_f32(p, v); }
static inline void vd_stream(double *p, vd v) { vst1q_f64(p, v); }
static inline void v_fence(void) {}

static inline vf vf_loadn(const float *p, int n)
{
    if (n >= 4)
        return vld1q_f32(p);
    const float32x2_t none = vdup_n_f32(0);
    if (n & 2)
        return vcombine_f32(vld1_f32(p), n & 1 ? vld1_lane_f32(p + 2, none, 0) : none);
    return vcombine_f32(n & 1 ? vld1_lane_f32(p, none, 0) : none, none);
}
static inline vd vd_loadn(const double *p, int n)
{
    if (n >= 2)
        return vld1q_f64(p);
    return vcombine_f64(n ? vld1_f64(p) : vdup_n_f64(0), vdup_n_f64(0));
}
static inline void vf_storen(float *p, vf v, int n)
{
    if (n >= 4) {
        vst1q_f32(p, v);
        return;
    }
    float32x2_t rest = vget_low_f32(v);
    if (n & 2) {
        vst1_f32(p, rest);
        rest = vget_high_f32(v);
        p += 2;
    }
    if (n & 1)
        vst1_lane_f32(p, rest, 0);
}
static inline void vd_storen(double *p, vd v, int n)
{
    if (n >= 2)
        vst1q_f64(p, v);
    else if (n)
        vst1q_lane_f64(p, v, 0);
}

static inline vf vf_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline void vf_store_f16(uint16_t *p, vf v) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v))); }
#endif
