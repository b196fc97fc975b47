/* avx512: all kernels, from its vocabulary, under its own compiler flags. */
#define ISA_NAME avx512
#include "vec_avx512.h"
#include "body.h"
