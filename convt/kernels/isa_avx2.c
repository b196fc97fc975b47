/* avx2: all kernels (body.h) with the vector operations of vec_avx2.h, compiled with the flags of avx2 in setup.py. */
#define ISA_NAME avx2
#include "vec_avx2.h"
#include "body.h"
