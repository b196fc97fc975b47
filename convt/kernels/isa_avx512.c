/* avx512: all kernels (body.h) with the vector operations of vec_avx512.h, compiled with the flags of avx512 in setup.py. */
#define ISA_NAME avx512
#include "vec_avx512.h"
#include "body.h"
