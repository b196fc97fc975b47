# What it takes to multiply by tiles: see tiles.pyx.

from libc.stdint cimport int64_t


cdef struct TileCounts:
    double cycles        # of the ports (AMX: products of tiles)
    double calls         # of a micro-kernel (AMX: of accumulators)
    double accumulators  # vectors that are started and stored


cdef struct TileSizes:
    # Those of a unit (unit.py).
    int64_t vl, nr, kstep, grain, parts, products, most_one, most


cdef TileSizes tile_sizes(unit)
cdef TileCounts count_tiles(TileSizes *unit, double rows, int64_t columns, double depth, int64_t chain,
                            int64_t wide) noexcept nogil
