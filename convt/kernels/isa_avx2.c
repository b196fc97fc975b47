/* The avx2 kernel table: its vocabulary and the shared bodies, under its own compiler flags. */
#define ISA_NAME avx2
#include "vec_avx2.h"
#include "body.h"
