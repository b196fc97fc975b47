/* The avx512_bf16 kernel table: AVX-512's vocabulary, which gains the dot product under this row's compiler flags. */
#define ISA_NAME avx512_bf16
#include "vec_avx512.h"
#include "body.h"
