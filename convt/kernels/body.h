/* Everything a kernel table holds, from one vocabulary: included by each isa_<name>.c after its vec_*.h. */
#include "vec_common.h"
#include <time.h>

/* -- sums in float -- */
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
#include "body_groups.h"
#include "body_dots.h"
#include "body_ordered.h"
#include "body_depthwise.h"
#include "body_winograd.h"
#include "body_tile.h"
#undef FN
#undef E
#undef KSTEP
#undef BV
#undef B_LOAD
#undef A_SET
#undef MUL_ADD

#ifdef HAVE_DOT
#define FN(name) dot_##name
#define E uint16_t
#define KSTEP 2
#define BV vdot
#define B_LOAD vdot_load
#define A_SET(p) vdot_set1(p)
#define MUL_ADD vdot_fma
#include "body_pairs.h"
#include "body_tile.h"
#undef FN
#undef E
#undef KSTEP
#undef BV
#undef B_LOAD
#undef A_SET
#undef MUL_ADD
#endif

#define FN(name) f32_##name
#define S_IS_T
#define S float
#define S_LOAD vf_load
#define S_LOADN vf_loadn
#define S_STORE vf_store
#define S_STOREN vf_storen
#include "body_memory.h"
#ifdef HAVE_MATRIX
#define PARTS 3
#include "body_matrix.h"
#undef PARTS
#endif
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
#include "body_memory.h"
#ifdef HAVE_MATRIX
#define PARTS 2
#include "body_matrix.h"
#undef PARTS
#endif
#undef FN
#undef S
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN

#define FN(name) bf16_##name
#define S uint16_t
#define S_LOAD vf_load_bf16
#define S_LOADN vf_loadn_bf16
#define S_STORE vf_store_bf16
#define S_STOREN vf_storen_bf16
#include "body_memory.h"
#ifdef HAVE_MATRIX
#define PARTS 1
#include "body_matrix.h"
#undef PARTS
#endif
#undef FN
#undef S
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN
#undef T
#undef V
#undef VL
#undef V_

/* -- sums in double -- */
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
#define S double
#define S_LOAD vd_load
#define S_LOADN vd_loadn
#define S_STORE vd_store
#define S_STOREN vd_storen
#include "body_groups.h"
#include "body_dots.h"
#include "body_ordered.h"
#include "body_depthwise.h"
#include "body_winograd.h"
#include "body_memory.h"
#include "body_tile.h"
#undef FN
#undef E
#undef KSTEP
#undef BV
#undef B_LOAD
#undef A_SET
#undef MUL_ADD
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

/* -- the machine's own limit: independent chains of multiply-adds, as many as hide the latency -- */
#define CHAINS 12
#define PEAK(name, V, set1, step, flops_per_step)                                            \
    static double name(double seconds)                                                       \
    {                                                                                        \
        V acc[CHAINS];                                                                       \
        for (int i = 0; i < CHAINS; i++)                                                     \
            acc[i] = set1(i);                                                                \
        struct timespec start, now;                                                          \
        clock_gettime(CLOCK_MONOTONIC, &start);                                              \
        double flops = 0, elapsed;                                                           \
        do {                                                                                 \
            for (int n = 0; n < 20000; n++)                                                  \
                _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++) acc[i] = step(acc[i]); \
            flops += 20000.0 * CHAINS * (flops_per_step);                                    \
            clock_gettime(CLOCK_MONOTONIC, &now);                                            \
            elapsed = (double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec); \
        } while (elapsed < seconds);                                                         \
        volatile V sink;                                                                     \
        for (int i = 0; i < CHAINS; i++)                                                     \
            sink = acc[i]; /* keeps the sums alive */                                        \
        (void)sink;                                                                          \
        return flops / elapsed;                                                              \
    }
#define STEP_F32(x) vf_fma(x, vf_set1(0.999f), vf_set1(0.001f))
#define STEP_F64(x) vd_fma(x, vd_set1(0.999), vd_set1(0.001))
PEAK(peak_f32, vf, vf_set1, STEP_F32, 2.0 * VF)
PEAK(peak_f64, vd, vd_set1, STEP_F64, 2.0 * VD)
#ifdef HAVE_DOT
static const uint16_t half_pair[2] = {0x3f00, 0x3e80};
#define STEP_DOT(x) vdot_fma(vdot_set1(half_pair), vdot_set1(half_pair), x)
PEAK(peak_dot, vf, vf_set1, STEP_DOT, 4.0 * VF)
#else
#define peak_dot peak_f32
#endif

static double peak(int dtype, double seconds)
{
    return dtype == CONVT_F64 ? peak_f64(seconds) : dtype == CONVT_BF16 ? peak_dot(seconds) : peak_f32(seconds);
}

/* -- the table -- */
#ifdef HAVE_PICK
#define REACH(vl) (2 * (vl))
#else
#define REACH(vl) 1
#endif
#define SET_F32(mem, s_bytes, direct)                                                                              \
    {                                                                                                              \
        .mr = TILE_MR, .wide = TILE_WIDE, .nr = TILE_NV * VF, .vl = VF, .kstep = 1, .grain = 1, .pace = 2, .lda = CONVT_LDA, .s_size = s_bytes, .e_size = 4, .t_size = 4,            \
        .direct_store = direct, .reach = REACH(VF), .finite = finite_##mem, .tile = f32_tile, .stream = stream_f32, .fence = v_fence, .depthwise = f32_depthwise, .wino_in = f32_wino_in, .wino_rows = f32_wino_in, .wino_out = f32_wino_out, .wino_filter = f32_wino_filter, .pack = mem##_widen, .pack_far = mem##_widen,                 \
        .widen = mem##_widen, .gather = mem##_gather, .overlap = mem##_overlap, .overlap_across = mem##_overlap_across, .across = mem##_across, .overlap_picked = mem##_overlap_picked, .pack_b = mem##_pack_b, .store = mem##_store                                         \
    }
#ifdef HAVE_MATRIX
/* A matrix's depth more than CONVT_KC between rows: an odd number of cache lines with one or three parts. */
#define SET_MATRIX(mem, n, s_bytes, direct, ...)                                                                       \
    {                                                                                                               \
        .mr = {0, 2 * MATRIX, 2 * MATRIX}, .nr = TILE_NV * VF, .vl = VF, .kstep = MATRIX_DEPTH, .grain = MATRIX, .pace = 2,  \
        .lda = CONVT_KC + MATRIX_DEPTH, .parts = n, .s_size = s_bytes, .e_size = 2 * n, .t_size = 4, .direct_store = direct,  \
        .reach = 1, .finite = finite_##mem, .tile = mem##_matrix_tile, .flush = mem##_matrix_flush, .stream = stream_f32, .fence = v_fence,       \
        .enter = matrix_enter, .leave = matrix_leave, .pack = mem##_matrix_pack, .pack_far = mem##_matrix_pack_far, .widen = mem##_widen,               \
        .pack_b = mem##_matrix_pack_b, .store = mem##_store, .overlap = mem##_overlap, __VA_ARGS__                     \
    }
#define MATRIX_WINOGRAD .wino_in = f32_wino_in, .wino_rows = f32_matrix_wino_rows, .wino_out = f32_wino_out, \
    .wino_filter = f32_matrix_wino_filter
#endif
#define NAME_(isa) convt_isa_##isa
#define NAME(isa) NAME_(isa)
#define STRING_(x) #x
#define STRING(x) STRING_(x)

__attribute__((visibility("hidden"))) const convt_isa NAME(ISA_NAME) = {
    .name = STRING(ISA_NAME),
    .peak = peak,
    .set = {
        [CONVT_F32] = SET_F32(f32, 4, 1),
        [CONVT_F64] = {.mr = TILE_MR, .wide = TILE_WIDE, .nr = TILE_NV * VD, .vl = VD, .kstep = 1, .grain = 1, .pace = 2, .lda = CONVT_LDA, .s_size = 8, .e_size = 8, .t_size = 8,
                       .direct_store = 1, .reach = REACH(VD), .finite = finite_f64, .tile = f64_tile, .stream = stream_f32, .fence = v_fence, .depthwise = f64_depthwise, .wino_in = f64_wino_in, .wino_rows = f64_wino_in, .wino_out = f64_wino_out, .wino_filter = f64_wino_filter, .pack = f64_widen, .pack_far = f64_widen,
                       .widen = f64_widen, .gather = f64_gather, .overlap = f64_overlap, .overlap_across = f64_overlap_across, .across = f64_across, .overlap_picked = f64_overlap_picked, .pack_b = f64_pack_b, .store = f64_store},
        [CONVT_F16] = SET_F32(f16, 2, 0),
#ifdef HAVE_DOT
        [CONVT_BF16] = {.mr = TILE_MR, .wide = TILE_WIDE, .nr = TILE_NV * VF, .vl = VF, .kstep = 2, .grain = 1, .pace = 4, .lda = CONVT_LDA, .s_size = 2, .e_size = 2, .t_size = 4,
                        .direct_store = 0, .reach = REACH(VF), .finite = finite_bf16, .tile = dot_tile, .stream = stream_f32, .fence = v_fence, .depthwise = f32_depthwise, .wino_in = f32_wino_in, .wino_rows = f32_wino_in, .wino_out = f32_wino_out, .wino_filter = f32_wino_filter, .pack = pack_pairs_a, .pack_far = pack_pairs_a,
                        .widen = bf16_widen, .gather = bf16_gather, .overlap = bf16_overlap, .overlap_across = bf16_overlap_across, .across = bf16_across, .overlap_picked = bf16_overlap_picked, .pack_b = pack_pairs_b, .store = bf16_store},
#else
        [CONVT_BF16] = SET_F32(bf16, 2, 0),
#endif
    },
#ifdef HAVE_MATRIX
    .matrix = {
        [CONVT_F32] = SET_MATRIX(f32, 3, 4, 1, MATRIX_WINOGRAD),
        [CONVT_F16] = SET_MATRIX(f16, 2, 2, 0, ),
        [CONVT_BF16] = SET_MATRIX(bf16, 1, 2, 0, ),
    },
#endif
};
