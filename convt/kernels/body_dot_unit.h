/* The kernels of the unit `dots`, whose GEMM multiplies pairs of bfloat16 by dot products, and its table. isa_<name>.c includes
 * this file after its vector operations, which define vdot, and defines ISA_NAME. */
#include "vec_common.h"
#include "body_peak.h"

#define T float
#define V vf
#define VL VF
#define V_(op) vf_##op
#define FN(name) dot_##name
#define E uint16_t
#define KSTEP 2
#define BV vdot
#define B_LOAD vdot_load
#define A_SET(p) vdot_set1(p)
#define MUL_ADD vdot_fma
#define MUL_ADD_LANE vdot_fma_lane
#define HAS_NARROW
#include "body_tile.h"
#undef HAS_NARROW
#undef FN

#define FN(name) f32_##name
#define S_IS_T
#define S float
#define S_LOAD vf_load
#define S_LOADN vf_loadn
#include "body_pairs.h"
#undef FN
#undef S_IS_T
#undef S
#undef S_LOAD
#undef S_LOADN

#define FN(name) bf16_##name
#define S uint16_t
#define S_LOAD vf_load_bf16
#define S_LOADN vf_loadn_bf16
#include "body_pairs.h"

static const uint16_t half_pair[2] = {0x3f00, 0x3e80};
#define STEP_DOT(x) vdot_fma(vdot_set1(half_pair), vdot_set1(half_pair), x)
PEAK(peak_dot, vf, vf_set1, STEP_DOT, 4.0 * VF)

static double peak(int dtype, double seconds)
{
    (void)dtype;
    return peak_dot(seconds);
}

#define SET_DOT_KERNELS(mem, dtype)                                                                           \
    do {                                                                                                      \
        convt_kernels *k = &isa->set[CONVT_ON_DOTS][dtype];                                                   \
        *k = isa->set[CONVT_ON_VECTORS][dtype];                                                               \
        k->kstep = KSTEP, k->prefetch_interval = 2 * KSTEP, k->e_size = sizeof(E), k->tile = dot_tile;        \
        k->pack = k->pack_uncached = mem##_pack_pairs_a, k->pack_b = mem##_pack_pairs_b;                      \
    } while (0)

#define SET_KERNELS_(isa) convt_set_kernels_##isa
#define SET_KERNELS(isa) SET_KERNELS_(isa)

CONVT_ANY_CPU void SET_KERNELS(ISA_NAME)(convt_isa *isa)
{
    SET_DOT_KERNELS(f32, CONVT_F32);
    SET_DOT_KERNELS(bf16, CONVT_BF16);
    isa->peak[CONVT_ON_DOTS] = peak;
}
