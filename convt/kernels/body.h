/* All kernels of an instruction set, for all dtypes, and its table. isa_<name>.c includes this file after its vector operations
 * (vec_<name>.h), and defines ISA_NAME. Each body_*.h is included once per type of accumulators or of user memory; the macros
 * defined before it are its parameters.
 *
 * T is the type of accumulators, V a vector of VL lanes of T, V_(op) a vector operation of vec_*.h, FN(name) the name of a
 * function of this instance. S is the type of user memory, and E, KSTEP, BV, B_LOAD, A_SET, MUL_ADD describe the panels of
 * body_tile.h.
 */
#include "vec_common.h"
#include "body_peak.h"

/* -- float accumulators: float32, float16, bfloat16 -- */
#define T float
#define V vf
#define VL VF
#define V_(op) vf_##op
#define FN(name) f32_##name
#define E float
#define KSTEP 1
#define BV vf
#define B_LOAD vf_load
#define A_SET(p) vf_set1(*(p))
#define MUL_ADD vf_fma
#define MUL_ADD_LANE(a, i, b, c) vf_fma(vf_set1((a)[i]), b, c)
#include "body_depthwise.h"
#include "body_winograd.h"
#include "body_rows.h"
#include "body_tile.h"
#undef FN
/* A second instance stores tiles as 16-bit types. The tiles of float32 are separate, because they have no registers to
 * spare. */
#define FN(name) narrow_##name
#define HAS_NARROW
#include "body_tile.h"
#undef HAS_NARROW
#undef FN
#undef E
#undef KSTEP
#undef BV
#undef B_LOAD
#undef A_SET
#undef MUL_ADD
#undef MUL_ADD_LANE

#define FN(name) f32_##name
#define S_IS_T
#define S float
#define S_LOAD vf_load
#define S_LOADN vf_loadn
#define S_STORE vf_store
#define S_STOREN vf_storen
#include "body_memory.h"
#undef FN
#undef S_IS_T
#undef S
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN

#define FN(name) f16_##name
#define S uint16_t
#define S_LOAD vf_load_f16
#define S_LOADN vf_loadn_f16
#define S_STORE vf_store_f16
#define S_STOREN vf_storen_f16
#define S_STORE_2 vf_store2_f16
#define S_STREAM_2 vf_stream2_f16
#define T_TRANSPOSE f32_transpose
#include "body_memory.h"
#undef FN
#undef S
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN
#undef S_STORE_2
#undef S_STREAM_2
#undef T_TRANSPOSE

#define FN(name) bf16_##name
#define S uint16_t
#define S_LOAD vf_load_bf16
#define S_LOADN vf_loadn_bf16
#define S_STORE vf_store_bf16
#define S_STOREN vf_storen_bf16
#define S_STORE_2 vf_store2_bf16
#define S_STREAM_2 vf_stream2_bf16
#define T_TRANSPOSE f32_transpose
#include "body_memory.h"
#undef FN
#undef S
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN
#undef S_STORE_2
#undef S_STREAM_2
#undef T_TRANSPOSE
#undef T
#undef V
#undef VL
#undef V_

/* -- double accumulators: float64 -- */
#define T double
#define V vd
#define VL VD
#define V_(op) vd_##op
#define FN(name) f64_##name
#define E double
#define S_IS_T
#define KSTEP 1
#define BV vd
#define B_LOAD vd_load
#define A_SET(p) vd_set1(*(p))
#define MUL_ADD vd_fma
#define MUL_ADD_LANE(a, i, b, c) vd_fma(vd_set1((a)[i]), b, c)
#define S double
#define S_LOAD vd_load
#define S_LOADN vd_loadn
#define S_STORE vd_store
#define S_STOREN vd_storen
#include "body_depthwise.h"
#include "body_winograd.h"
#include "body_rows.h"
#include "body_memory.h"
#include "body_tile.h"
#undef FN
#undef E
#undef KSTEP
#undef BV
#undef B_LOAD
#undef A_SET
#undef MUL_ADD
#undef MUL_ADD_LANE
#undef S
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN
#undef T
#undef V
#undef VL
#undef V_

#undef S_IS_T

#define STEP_F32(x) vf_fma(x, vf_set1(0.999f), vf_set1(0.001f))
#define STEP_F64(x) vd_fma(x, vd_set1(0.999), vd_set1(0.001))
PEAK(peak_f32, vf, vf_set1, STEP_F32, 2.0 * VF)
PEAK(peak_f64, vd, vd_set1, STEP_F64, 2.0 * VD)

static double peak(int dtype, double seconds)
{
    return dtype == CONVT_F64 ? peak_f64(seconds) : peak_f32(seconds);
}

/* -- the table -- */
#ifdef HAVE_PERMUTE
#define REACH(lanes) (2 * (lanes))
#else
#define REACH(lanes) 1
#endif
/* If S is T, `transpose` replaces `narrow`. */
#define f32_narrow NULL
#define TILE_f32 f32_tile
#define TILE_f64 f64_tile
#define TILE_f16 narrow_tile
#define TILE_bf16 narrow_tile
#define NARROW_DTYPE_f32 0
#define NARROW_DTYPE_f64 0
#define NARROW_DTYPE_f16 CONVT_F16
#define NARROW_DTYPE_bf16 CONVT_BF16
#define f64_narrow NULL
/* The kernel set of a dtype. t, T: prefix of functions, and type, of accumulators. s, S: prefix and type of user memory. lanes:
 * lanes of a vector of T. */
#define KERNEL_SET(t, T, lanes, s, S)                                                                                         \
    {                                                                                                                         \
        .mr = TILE_MR, .wide = TILE_WIDE, .nr = TILE_NV * lanes, .vl = lanes, .kstep = 1, .grain = 1, .prefetch_interval = 2, \
        .lda = CONVT_LDA, .s_size = sizeof(S), .e_size = sizeof(T), .t_size = sizeof(T),                                      \
        .direct_store = sizeof(S) == sizeof(T), .narrow_dtype = NARROW_DTYPE_##s, .reach = REACH(lanes), .tile = TILE_##s,    \
        .copy_non_temporal = copy_non_temporal, .fence = v_fence, .depthwise = t##_depthwise, .rows = t##_rows,               \
        .wino_in = t##_wino_in, .wino_rows = t##_wino_in,                                                                     \
        .wino_out = t##_wino_out, .wino_filter = t##_wino_filter, .pack = s##_widen, .pack_uncached = s##_widen,              \
        .gather = s##_gather, .transpose = s##_transpose, .widen = s##_widen, .narrow = s##_narrow, .pack_b = s##_pack_b,     \
        .finite = finite_##s,                                                                                                 \
        .interleave = s##_interleave, .pixel_gemm = s##_pixel_gemm,                                                           \
        .overlap = s##_overlap, .overlap_pixels = s##_overlap_pixels, .overlap_gather = s##_overlap_gather,                   \
        .store = s##_store, .add = s##_add                                                                                    \
    }
#define SET_KERNELS_(isa) convt_set_kernels_##isa
#define SET_KERNELS(isa) SET_KERNELS_(isa)

CONVT_ANY_CPU void SET_KERNELS(ISA_NAME)(convt_isa *isa)
{
    static const convt_kernels set[CONVT_DTYPES] = {
        [CONVT_F32] = KERNEL_SET(f32, float, VF, f32, float),
        [CONVT_F64] = KERNEL_SET(f64, double, VD, f64, double),
        [CONVT_F16] = KERNEL_SET(f32, float, VF, f16, uint16_t),
        [CONVT_BF16] = KERNEL_SET(f32, float, VF, bf16, uint16_t),
    };
    memcpy(isa->set[CONVT_ON_VECTORS], set, sizeof set);
    isa->peak[CONVT_ON_VECTORS] = peak;
}
