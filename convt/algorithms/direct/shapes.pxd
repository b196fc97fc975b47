# Classes of direct in numbers: see shapes.pyx.

from libc.stdint cimport int64_t

from convt.algorithms.tiles cimport TileSizes

cdef enum:
    COUNTS = 14
    LEVELS = 16  # of a sparse class: taps that reach about as many rows count as alike


cdef class Terms:
    cdef readonly object problem, unit, here
    cdef TileSizes tile
    cdef double prices[COUNTS]
    cdef readonly bint traced  # cycles know where they come from
    cdef readonly int64_t groups
    cdef int64_t rank, batch, ci, co, filled  # in-channels in whole steps of depth
    cdef int64_t e_size, t_size, s_size, item, lda, wide, highest, task_rows, input_bytes, shallow_depth, same_set, strip_bytes
    cdef int64_t common  # columns after which phases and panels begin together again
    cdef int64_t in_sizes[64]
    cdef double weights  # bytes of those that the window shows
    cdef double l2  # bytes of the cache
    cdef double whole, rest  # vectors of a packed row (steps of depth on AMX), and whether some channels are left
    cdef double call, pack  # cycles of a row for calling a tile, per panel, and of a row and tap for packing it


cdef struct Cut:
    int64_t block, blocks, panel_block, panel_blocks, span
    double work


cdef class Shape:
    cdef readonly Terms terms
    cdef readonly int64_t rows, columns, taps, chunks, deepest
    cdef readonly int64_t window  # depth chunks keep to so many taps, which follow each other in memory; 0 where they need not
    cdef readonly bint sparse  # each depth chunk is of one tap, and leaves out the rows that the tap does not reach
    cdef readonly double packed  # the share of rows times taps that is packed; the others are read where they lie, if data is contiguous
    cdef readonly double total  # cycles of the class, in all groups
    cdef readonly int64_t most_tasks  # in all groups
    cdef int64_t of  # taps of its phase groups, which its panels hold
    cdef int64_t along  # rows of a run along the last axis
    cdef int64_t together  # columns that are adjacent in the output
    cdef int64_t levels
    cdef double share[LEVELS]  # of the rows that are multiplied,
    cdef double depth[LEVELS]  # and through how much depth
    cdef double reached  # of what is packed, the share that is no zeros
    cdef double shown  # the share of panels that the window shows
    cdef double outside, edge  # the share of rows with a phase outside the window, and of tiles with such a row

    cdef void read(self, kinds, given) except *
    cdef void find_depths(self, kinds) except *
    cdef void count(self, int64_t rows, int64_t columns, double *found) noexcept
    cdef double value(self, int64_t rows, int64_t columns) noexcept
    cdef Cut cut(self, double target, int64_t least_rows, int64_t threads) noexcept
    cdef int64_t most_rows(self) noexcept
