/* avx512_bf16: avx512, whose GEMM of bfloat16 multiplies pairs of elements as they are. */
#include "vec_bf16.h"
#include "vec_common.h"
#include "body_pairs.h"
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
#include "body_tile.h"

static const uint16_t half_pair[2] = {0x3f00, 0x3e80};
#define STEP_DOT(x) vdot_fma(vdot_set1(half_pair), vdot_set1(half_pair), x)
PEAK(peak_dot, vf, vf_set1, STEP_DOT, 4.0 * VF)

static double (*peak_vectors)(int dtype, double seconds);

static double peak(int dtype, double seconds)
{
    return dtype == CONVT_BF16 ? peak_dot(seconds) : peak_vectors(dtype, seconds);
}

CONVT_ANY_CPU void convt_improve_avx512_bf16(convt_isa *isa)
{
    convt_kernels *k = &isa->set[CONVT_BF16];
    k->kstep = KSTEP;
    k->pace = 2 * KSTEP;
    k->e_size = sizeof(E);
    k->tile = dot_tile;
    k->pack = k->pack_far = pack_pairs_a;
    k->pack_b = pack_pairs_b;
    peak_vectors = isa->peak;
    isa->peak = peak;
}
