/* The baseline kernel table: its vocabulary and the shared bodies, under its own compiler flags. */
#define ISA_NAME baseline
#include "vec_baseline.h"
#include "body.h"
