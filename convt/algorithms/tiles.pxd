# Counts of a GEMM in tiles (tiles.pyx).

from libc.stdint cimport int64_t


cdef struct TileCounts:
    double cycles        # cycles of the ports (on AMX: AMX products)
    double calls         # calls of a micro-kernel (on AMX: AMX tiles of accumulators)
    double accumulators  # vectors of accumulators that are loaded and stored


cdef struct TileSizes:
    # Fields of a Unit (unit.py). `most_one` and `most` are the most rows of a tile with one and two vectors of columns.
    int64_t vl, nr, kstep, m_step, parts, products, most_one, most


cdef TileSizes tile_sizes(unit)
cdef TileCounts count_tiles(TileSizes *unit, double rows, int64_t columns, double depth, int64_t chain,
                            int64_t wide) noexcept nogil
