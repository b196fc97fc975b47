/* neon: all kernels (body.h) with the vector operations of vec_neon.h, compiled with the flags of neon in setup.py. */
#define ISA_NAME neon
#include "vec_neon.h"
#include "body.h"
