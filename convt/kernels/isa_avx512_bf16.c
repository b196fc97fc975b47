/* avx512_bf16: the kernels of avx512, and second kernel sets for dot products of bfloat16 pairs. */
#define ISA_NAME avx512_bf16
#include "vec_avx512_bf16.h"
#include "body_dot_unit.h"
