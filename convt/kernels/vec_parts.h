/* Floats as bfloat16 parts, for units that multiply bfloat16 (dot products, AMX).
 *
 * vf_upper            the upper half of each float, which is a bfloat16, as a float: truncated
 * vf_upper_rounded    the same, rounded with halves away from zero
 * vf_store_upper      stores the upper halves; vf_storen_upper those of the first n lanes
 * vf_pairs            pairs (upper half of a, upper half of b) in each lane; the lower halves of b must be zero
 * v_range             the range of the values seen so far: the smallest nonzero magnitude, as the bits of a float minus 1, so
 *                     that zero becomes the largest integer (v_range_least), and the largest magnitude (v_range_most)
 */
#ifndef CONVT_VEC_PARTS_H
#define CONVT_VEC_PARTS_H
#include "convt_kernels.h"
#ifdef __aarch64__
#include "vec_parts_neon.h"
#else
#include "vec_parts_avx512.h"
#endif

/* Check whether all values are zero or have a magnitude from 2^low to 2^high. */
static inline int v_range_within(const v_range *range, int low, int high)
{
    return v_range_least(range) >= ((unsigned)(low + 127) << 23) - 1
           && v_range_most(range) <= (unsigned)(high + 127) << 23;
}

/* Check whether the unit multiplies values of this range with the precision that it promises; the result is that of `pack`
 * (convt_kernels.h). Units flush subnormals to zero, so no part and no product may be that small. No accumulator may overflow,
 * in any order of additions: this holds for 2^31 products of values up to 2^HIGH. */
#define LOW_DATA -64
#define LOW_WEIGHTS -39
#define HIGH 48
static inline int v_range_fits(const v_range *range)
{
    return v_range_within(range, LOW_WEIGHTS, HIGH) ? CONVT_FITS_WEIGHTS : v_range_within(range, LOW_DATA, HIGH);
}
#endif
