/* The avx512 kernel table: its vocabulary and the shared bodies, under its own compiler flags. */
#define ISA_NAME avx512
#include "vec_avx512.h"
#include "body.h"
