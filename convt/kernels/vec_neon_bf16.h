/* The vector operations of NEON, and the dot product of FEAT_BF16 on pairs of bfloat16. */
#ifndef CONVT_VEC_NEON_BF16_H
#define CONVT_VEC_NEON_BF16_H
#include "vec_parts.h"

/* A vector of pairs of bfloat16. vdot_fma returns c + a0 * b0 + a1 * b1 in each lane; vdot_fma_lane takes one pair of a for all
 * lanes; vdot_set1 broadcasts a pair. */
typedef bfloat16x8_t vdot;
static inline vdot vdot_load(const uint16_t *p) { return vreinterpretq_bf16_u16(vld1q_u16(p)); }
static inline vdot vdot_set1(const uint16_t *p)
{
    uint32_t pair;
    memcpy(&pair, p, 4);
    return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
}
static inline vf vdot_fma(vdot a, vdot b, vf c) { return vbfdotq_f32(c, a, b); }
static inline __attribute__((always_inline)) vf vdot_fma_lane(vdot a, const int lane, vdot b, vf c)
{
    switch (lane) { /* the intrinsic requires a literal */
    case 0:
        return vbfdotq_laneq_f32(c, b, a, 0);
    case 1:
        return vbfdotq_laneq_f32(c, b, a, 1);
    case 2:
        return vbfdotq_laneq_f32(c, b, a, 2);
    default:
        return vbfdotq_laneq_f32(c, b, a, 3);
    }
}
#endif
