/* avx2: all kernels, from its vocabulary, under its own compiler flags. */
#define ISA_NAME avx2
#include "vec_avx2.h"
#include "body.h"
