# Per-class decisions and cycles of `direct` (shapes.pyx).

from libc.stdint cimport int64_t

from convt.algorithms.tiles cimport TileSizes

cdef enum:
    COUNTS = 14
    LEVELS = 16  # levels of a sparse class: taps that reach about as many rows are one level


cdef class Terms:
    cdef readonly object problem, unit, here
    cdef TileSizes tile
    cdef double prices[COUNTS]
    cdef readonly bint traced  # cycles carry their counts (costs.TracedCosts)
    cdef readonly int64_t groups
    cdef int64_t rank, batch, ci, co, filled  # `filled` is `ci` rounded up to whole steps of depth
    cdef int64_t e_size, t_size, s_size, item_size, lda, wide, max_tile_rows, task_rows, input_bytes, shallow_depth
    cdef int64_t same_set, strip_bytes
    cdef int64_t panel_period  # lcm of out-channels and n_r: at its multiples, a phase and a panel begin together
    cdef int64_t in_sizes[64]
    cdef double weight_bytes  # bytes of the weights that the window shows
    cdef double l2  # bytes of L2
    cdef double whole_vectors, has_rest  # whole vectors of in-channels (steps of depth on AMX), and 1 if in-channels remain
    cdef double call_cycles, pack_cycles  # cycles of kernel calls per row and panel, and of packing per row and tap


cdef struct ClassCut:
    # A division of a class into tasks: see schedule.Class.
    int64_t block, blocks, panel_block, panel_blocks, span
    double work


cdef class Shape:
    cdef readonly Terms terms
    cdef readonly int64_t rows, columns, taps, chunks, deepest
    cdef readonly int64_t window  # depth chunks stay within this many taps, which are adjacent in memory; 0: any number of taps
    cdef readonly bint sparse  # each depth chunk has one tap, and skips the rows that the tap does not reach
    cdef readonly double packed  # fraction of rows times taps that is packed; the rest is read in place if data is contiguous
    cdef readonly double total  # cycles of the class in all channel groups
    cdef readonly int64_t most_tasks  # the most tasks of the class in all channel groups
    cdef int64_t panel_taps  # taps of its phase groups, all of which its panels have
    cdef int64_t run_length  # positions of the run on the last axis
    cdef int64_t adjacent_columns  # columns that are adjacent in the output
    cdef int64_t levels  # used items of `level_share` and `level_depth`
    cdef double level_share[LEVELS]  # fraction of the rows that is multiplied ...
    cdef double level_depth[LEVELS]  # ... at this much depth
    cdef double inside_fraction  # fraction of packed elements that are inside the input
    cdef double shown_fraction  # fraction of panels that the window shows
    cdef double outside_fraction  # fraction of rows with a phase outside the window
    cdef double edge_fraction  # fraction of tiles that have such a row

    cdef void read_kinds(self, kinds, given) except *
    cdef void find_depths(self, kinds) except *
    cdef void count(self, int64_t rows, int64_t columns, double *values) noexcept
    cdef double untraced_cycles(self, int64_t rows, int64_t columns) noexcept
    cdef ClassCut cut(self, double target, int64_t least_rows, int64_t threads) noexcept
    cdef int64_t most_rows(self) noexcept
