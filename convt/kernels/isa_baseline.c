/* baseline: all kernels (body.h) with the vector operations of vec_baseline.h, compiled with the flags of baseline in
 * setup.py. */
#define ISA_NAME baseline
#include "vec_baseline.h"
#include "body.h"
