/* The operations of vec_parts.h in NEON. */
#include "vec_neon.h"

static inline vf vf_upper(vf x)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff0000)));
}
static inline vf vf_upper_rounded(vf x)
{
    return vf_upper(vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x8000))));
}
static inline void vf_store_upper(uint16_t *p, vf x) { vst1_u16(p, vshrn_n_u32(vreinterpretq_u32_f32(x), 16)); }
static inline void vf_storen_upper(uint16_t *p, vf x, int n)
{
    uint16_t all[VF];
    vf_store_upper(all, x);
    memcpy(p, all, (size_t)n * sizeof *p);
}
static inline vf vf_pairs(vf a, vf b)
{
    return vreinterpretq_f32_u32(vorrq_u32(vshrq_n_u32(vreinterpretq_u32_f32(a), 16), vreinterpretq_u32_f32(b)));
}
typedef struct {
    uint32x4_t least, most;
} v_range;
static inline v_range v_range_none(void) { return (v_range){vdupq_n_u32(~0u), vdupq_n_u32(0)}; }
static inline void v_range_add(v_range *range, vf x)
{
    const uint32x4_t size = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x7fffffff));
    range->least = vminq_u32(range->least, vsubq_u32(size, vdupq_n_u32(1)));
    range->most = vmaxq_u32(range->most, size);
}
static inline uint32_t v_range_least(const v_range *range) { return vminvq_u32(range->least); }
static inline uint32_t v_range_most(const v_range *range) { return vmaxvq_u32(range->most); }
