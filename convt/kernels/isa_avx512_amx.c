/* avx512_amx: the kernels of avx512, and second kernel sets whose GEMM multiplies AMX tiles. */
#include "vec_amx.h"
#include "vec_common.h"

#define T float
#define V vf
#define VL VF
#define V_(op) vf_##op

#define FN(name) f32_##name
#define S_IS_T
#define S float
#define S_LOAD vf_load
#define S_LOADN vf_loadn
#define BF16_PARTS 3
#include "body_widen.h"
#include "body_matrix.h"
#undef FN
#undef BF16_PARTS

#define BF16_PARTS 2
#define FN(name) f32_two_##name
#include "body_widen.h"
#include "body_matrix.h"
#undef FN
#undef BF16_PARTS

#define BF16_PARTS 1
#define FN(name) f32_one_##name
#include "body_widen.h"
#include "body_matrix.h"
#undef FN
#undef S_IS_T
#undef S
#undef S_LOAD
#undef S_LOADN
#undef BF16_PARTS

#define FN(name) f16_##name
#define S uint16_t
#define S_LOAD vf_load_f16
#define S_LOADN vf_loadn_f16
#define S_STORE vf_store_f16
#define S_STOREN vf_storen_f16
#define S_STREAM vf_stream_f16
#define S_STORE_2 vf_store2_f16
#define S_STREAM_2 vf_stream2_f16
#define BF16_PARTS 2
#include "body_widen.h"
#include "body_matrix.h"
#undef FN
#undef S
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN
#undef S_STREAM
#undef S_STORE_2
#undef S_STREAM_2
#undef BF16_PARTS

#define FN(name) bf16_##name
#define S uint16_t
#define S_LOAD vf_load_bf16
#define S_LOADN vf_loadn_bf16
#define S_STORE vf_store_bf16
#define S_STOREN vf_storen_bf16
#define S_STREAM vf_stream_bf16
#define S_STORE_2 vf_store2_bf16
#define S_STREAM_2 vf_stream2_bf16
#define BF16_PARTS 1
#include "body_widen.h"
#include "body_matrix.h"

/* Set the kernel set of a unit and a dtype, from functions with prefix `mem` and n parts. Packed rows of A are CONVT_KC plus
 * the depth of an AMX product apart, which is an odd number of cache lines for one or three parts. */
#define SET_AMX_KERNELS(unit, mem, dtype, n)                                                                         \
    do {                                                                                                             \
        convt_kernels *k = &isa->set[unit][dtype];                                                                   \
        *k = isa->set[CONVT_ON_VECTORS][dtype];                                                                      \
        k->mr[0] = 0, k->mr[1] = k->mr[2] = 2 * MATRIX_ROWS, k->wide = 0, k->kstep = MATRIX_DEPTH;                   \
        k->m_step = MATRIX_ROWS, k->lda = CONVT_KC + MATRIX_DEPTH, k->parts = n, k->e_size = 2 * n, k->reach = 1;    \
        k->begin_tiles = matrix_configure, k->end_tiles = matrix_release;                                            \
        k->tile = mem##_matrix_tile, k->flush_stores = mem##_matrix_flush;                                           \
        k->pack = mem##_matrix_pack, k->pack_uncached = mem##_matrix_pack_uncached, k->pack_b = mem##_matrix_pack_b; \
    } while (0)
#define SET_AMX_WINOGRAD(unit, mem)                                       \
    do {                                                                  \
        mem##_wino_in = isa->set[CONVT_ON_VECTORS][CONVT_F32].wino_in;    \
        isa->set[unit][CONVT_F32].wino_rows = mem##_matrix_wino_rows;     \
        isa->set[unit][CONVT_F32].wino_filter = mem##_matrix_wino_filter; \
    } while (0)

CONVT_ANY_CPU void convt_set_kernels_avx512_amx(convt_isa *isa)
{
    SET_AMX_KERNELS(CONVT_ON_AMX, f32, CONVT_F32, 3);
    SET_AMX_KERNELS(CONVT_ON_AMX, f16, CONVT_F16, 2);
    SET_AMX_KERNELS(CONVT_ON_AMX, bf16, CONVT_BF16, 1);
    SET_AMX_KERNELS(CONVT_ON_AMX_TWO, f32_two, CONVT_F32, 2);
    SET_AMX_KERNELS(CONVT_ON_AMX_ONE, f32_one, CONVT_F32, 1);
    SET_AMX_WINOGRAD(CONVT_ON_AMX, f32);
    SET_AMX_WINOGRAD(CONVT_ON_AMX_TWO, f32_two);
}
