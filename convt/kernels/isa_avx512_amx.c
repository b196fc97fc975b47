/* The avx512_amx kernel table: AVX-512's vocabulary, and the GEMM on AMX's matrices. */
#define ISA_NAME avx512_amx
#include "vec_amx.h"
#include "body.h"
