/* The vector operations of AVX-512, and those of AMX: eight tile registers of 16 rows of 64 bytes. */
#ifndef CONVT_VEC_AMX_H
#define CONVT_VEC_AMX_H
#include "vec_parts.h"

/* Rows and columns of an AMX tile of accumulators, and the depth of one AMX product. */
#define MATRIX_ROWS 16
#define MATRIX_DEPTH 32

/* The configuration: eight whole tiles. A thread calls matrix_configure before it multiplies, and matrix_release, which
 * releases the tiles, afterwards. */
static void matrix_configure(void)
{
    static const struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shapes = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&shapes);
}
static void matrix_release(void) { _tile_release(); }

#define MATRIX_ZERO(c) _tile_zero(c)
#define MATRIX_LOAD(c, from, step) _tile_loadd(c, from, step)
#define MATRIX_STORE(c, to, step) _tile_stored(c, to, step)
/* c += a b on bfloat16, accumulated in float: row m of a holds the depth in pairs; row k of b holds depth 2k and 2k + 1 of each
 * column. */
#define MATRIX_MUL_ADD(c, a, b) _tile_dpbf16ps(c, a, b)
#endif
