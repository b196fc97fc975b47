/* All kernels of an instruction set, and their entries in its table. isa_<name>.c includes this file after its vector operations
 * (vec_<name>.h), and defines ISA_NAME. setup.py compiles isa_<name>.c once for each of these parts, with the macro
 * PART_<part>, so that all cores share the work:
 *
 *   f32      float32, and the measurement of the peaks of float32 and float64
 *   f64      float64
 *   narrow   float16 and bfloat16. It is set after f32, because it takes all other kernels from there
 *
 * Each body_*.h is included once per type of accumulators or of user memory; the macros defined before it are its parameters.
 * T is the type of accumulators, V a vector of VL lanes of T, V_(op) a vector operation of vec_*.h, FN(name) the name of a
 * function of this instance. S is the type of user memory, and E, KSTEP, BV, B_LOAD, A_SET, MUL_ADD describe the panels of
 * body_tile.h.
 */
#include "vec_common.h"

#ifdef PART_f64
#define T double
#define V vd
#define VL VD
#define V_(op) vd_##op
#else
#define T float
#define V vf
#define VL VF
#define V_(op) vf_##op
#endif
#define E T
#define KSTEP 1
#define BV V
#define B_LOAD V_(load)
#define A_SET(p) V_(set1)(*(p))
#define MUL_ADD V_(fma)
#define MUL_ADD_LANE(a, i, b, c) V_(fma)(V_(set1)((a)[i]), b, c)

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define SET_KERNELS(part) JOIN(JOIN(convt_set_kernels, ISA_NAME), part)
/* `transpose` of float32, which the part `narrow` calls too. */
#define T_TRANSPOSE JOIN(convt_f32_transpose, ISA_NAME)
void T_TRANSPOSE(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                 int stream);

/* Set the kernels of *k that read or write user memory, of type S. s: the prefix of their functions. */
#define SET_MEMORY_KERNELS(s, S)                                                                                   \
    do {                                                                                                           \
        k->s_size = sizeof(S), k->pack = k->pack_uncached = k->widen = s##_widen, k->pack_b = s##_pack_b;          \
        k->gather = s##_gather, k->transpose = s##_transpose, k->finite = finite_##s, k->store = s##_store;        \
        k->add = s##_add, k->interleave = s##_interleave, k->pixel_gemm = s##_pixel_gemm, k->overlap = s##_overlap; \
        k->overlap_pixels = s##_overlap_pixels, k->overlap_gather = s##_overlap_gather;                            \
    } while (0)

#ifdef PART_narrow

/* The tiles of float32 are separate (part f32), because they have no registers to spare. */
#define FN(name) narrow_##name
#define HAS_NARROW
#include "body_tile.h"
#undef FN

#define S uint16_t
#define FN(name) f16_##name
#define S_LOAD vf_load_f16
#define S_LOADN vf_loadn_f16
#define S_STORE vf_store_f16
#define S_STOREN vf_storen_f16
#define S_STORE_2 vf_store2_f16
#define S_STREAM_2 vf_stream2_f16
#include "body_memory.h"
#undef FN
#undef S_LOAD
#undef S_LOADN
#undef S_STORE
#undef S_STOREN
#undef S_STORE_2
#undef S_STREAM_2

#define FN(name) bf16_##name
#define S_LOAD vf_load_bf16
#define S_LOADN vf_loadn_bf16
#define S_STORE vf_store_bf16
#define S_STOREN vf_storen_bf16
#define S_STORE_2 vf_store2_bf16
#define S_STREAM_2 vf_stream2_bf16
#include "body_memory.h"

#define SET_NARROW_KERNELS(s, dtype)                                                                          \
    do {                                                                                                      \
        convt_kernels *k = &isa->set[CONVT_ON_VECTORS][dtype];                                                \
        *k = isa->set[CONVT_ON_VECTORS][CONVT_F32];                                                           \
        k->direct_store = 0, k->narrow_dtype = dtype, k->narrow = s##_narrow, k->tile = narrow_tile;          \
        SET_MEMORY_KERNELS(s, S);                                                                             \
    } while (0)

CONVT_ANY_CPU void SET_KERNELS(narrow)(convt_isa *isa)
{
    SET_NARROW_KERNELS(f16, CONVT_F16);
    SET_NARROW_KERNELS(bf16, CONVT_BF16);
}

#else /* f32 or f64: S is T */

#ifdef PART_f64
#define FN(name) f64_##name
#else
#define FN(name) f32_##name
#endif
#define S_IS_T
#define S T
#define S_LOAD V_(load)
#define S_LOADN V_(loadn)
#define S_STORE V_(store)
#define S_STOREN V_(storen)
#include "body_depthwise.h"
#include "body_winograd.h"
#include "body_rows.h"
#include "body_memory.h"
#include "body_tile.h"

#ifdef HAVE_PERMUTE
#define REACH (2 * VL)
#else
#define REACH 1
#endif

/* Set all kernels of a dtype, whose functions have the prefix s. */
#define SET_ALL_KERNELS(s, dtype)                                                                                        \
    do {                                                                                                                 \
        convt_kernels *k = &isa->set[CONVT_ON_VECTORS][dtype];                                                           \
        *k = (convt_kernels){                                                                                            \
            .mr = TILE_MR, .wide = TILE_WIDE, .nr = TILE_NV * VL, .vl = VL, .kstep = 1, .m_step = 1, .lda = CONVT_LDA,   \
            .prefetch_interval = 2, .e_size = sizeof(E), .t_size = sizeof(T), .direct_store = 1, .reach = REACH,         \
            .copy_non_temporal = copy_non_temporal, .fence = v_fence, .tile = s##_tile, .depthwise = s##_depthwise,      \
            .rows = s##_rows, .wino_in = s##_wino_in, .wino_rows = s##_wino_in, .wino_out = s##_wino_out,                \
            .wino_filter = s##_wino_filter,                                                                              \
        };                                                                                                               \
        SET_MEMORY_KERNELS(s, S);                                                                                        \
    } while (0)

#ifdef PART_f64

CONVT_ANY_CPU void SET_KERNELS(f64)(convt_isa *isa)
{
    SET_ALL_KERNELS(f64, CONVT_F64);
}

#else

void T_TRANSPOSE(void *dst, ptrdiff_t ld, ptrdiff_t dc, const void *src, ptrdiff_t rs, ptrdiff_t cs, int rows, int cols,
                 int stream)
{
    f32_transpose(dst, ld, dc, src, rs, cs, rows, cols, stream);
}

#include "body_peak.h"
#define STEP_F32(x) vf_fma(vf_set1(0.001f), vf_set1(0.001f), x)
#define STEP_F64(x) vd_fma(vd_set1(0.001), vd_set1(0.001), x)
PEAK(peak_f32, vf, vf_set1, STEP_F32, 2.0 * VF)
PEAK(peak_f64, vd, vd_set1, STEP_F64, 2.0 * VD)

static double peak(int dtype, double seconds)
{
    return dtype == CONVT_F64 ? peak_f64(seconds) : peak_f32(seconds);
}

CONVT_ANY_CPU void SET_KERNELS(f32)(convt_isa *isa)
{
    SET_ALL_KERNELS(f32, CONVT_F32);
    isa->peak[CONVT_ON_VECTORS] = peak;
}

#endif
#endif
