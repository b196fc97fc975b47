# cython: language_level=3, cdivision=True
"""Counts of a GEMM in register tiles or AMX tiles, for the cost models of all algorithms that multiply with tiles.

The counts follow from rows, columns, depth and the tile sizes of a unit (unit.py). costs.py defines them.
"""

from libc.math cimport ceil
from libc.stdint cimport int64_t

from convt._run.kernels cimport CONVT_KC
from convt._model import costs

cdef double FMA_PORTS = costs.FMA_PORTS, LOAD_PORTS = costs.LOAD_PORTS, FMA_LATENCY = costs.FMA_LATENCY


cdef TileSizes tile_sizes(unit):
    """Return the sizes of a Unit as a C structure."""
    cdef TileSizes s
    s.vl, s.nr, s.kstep, s.m_step, s.parts = unit.vl, unit.nr, unit.kstep, unit.m_step, unit.parts
    s.products = unit.products if s.parts else 0
    s.most_one, s.most = unit.mr[1], unit.mr[2]
    return s


cdef TileCounts count_tiles(TileSizes *unit, double rows, int64_t columns, double depth, int64_t chain,
                            int64_t wide) noexcept nogil:
    """Return the counts of a GEMM of ``rows`` x ``columns`` x ``depth``.

    A kernel call multiplies ``chain`` of depth, and loads and stores its accumulators. At most ``wide`` rows are multiplied by
    two panels at once.
    """
    cdef TileCounts found
    cdef double calls = max(1.0, ceil(depth / chain)), tiles, height
    cdef int64_t nr = unit.nr, pairs = 0, n, count, vectors, most
    found.cycles = found.calls = found.accumulators = 0
    if unit.parts:
        tiles = ceil(rows / unit.m_step) * ((columns + unit.vl - 1) // unit.vl)
        found.cycles, found.calls = tiles * ceil(depth / unit.kstep) * unit.products, tiles * calls
        return found
    if 0 < rows <= wide:
        pairs, columns = columns // (2 * nr), columns % (2 * nr)
    for n in range(3):
        if n == 0:
            count, vectors, most = pairs, 2 * nr // unit.vl, wide
        elif n == 1:
            count, vectors, most = columns // nr, nr // unit.vl, unit.most
        else:
            count, vectors = columns % nr > 0, (columns % nr + unit.vl - 1) // unit.vl
            most = unit.most_one if vectors <= 1 else unit.most
        if count:
            tiles = max(1.0, ceil(rows / most))
            height, tiles = rows / tiles, count * tiles
            found.cycles += tiles * max(max(height * vectors / FMA_PORTS, (height + vectors) / LOAD_PORTS), FMA_LATENCY)
            found.calls += tiles * calls
            found.accumulators += tiles * calls * height * vectors
    found.cycles *= depth / unit.kstep
    return found


def tile_counts(rows, columns, depth, unit, chain=CONVT_KC, wide=0):
    """Return the counts of a GEMM by name (costs.NAMES)."""
    cdef TileSizes sizes = tile_sizes(unit)
    cdef TileCounts found = count_tiles(&sizes, rows, <int64_t>ceil(columns), depth, chain, wide)
    if sizes.parts:
        return {"amx_product": found.cycles, "amx_call": found.calls}
    name = "tile_cycle" if sizes.kstep == 1 else "dot_cycle"
    return {name: found.cycles, "tile_call": found.calls, "tile_accumulator": found.accumulators}
