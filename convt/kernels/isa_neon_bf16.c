/* neon_bf16: the kernels of neon, and second kernel sets for dot products of bfloat16 pairs (FEAT_BF16). */
#define ISA_NAME neon_bf16
#include "vec_neon_bf16.h"
#include "body_dot_unit.h"
