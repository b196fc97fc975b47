/* baseline: all kernels, from its vocabulary, under its own compiler flags. */
#define ISA_NAME baseline
#include "vec_baseline.h"
#include "body.h"
