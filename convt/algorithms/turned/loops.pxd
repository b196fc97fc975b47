# The loops of turned: see loops.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport convt_interleave, convt_kernels, convt_tile
from convt.algorithms.turned.weights cimport TurnedPack, TurnedRecipe


cdef struct TurnedClass:
    # A run on each axis, and its division into tasks: see schedule.py.
    int64_t *count           # [axis] pixels
    int64_t pixels           # pixels of all images
    int64_t block, blocks    # pixels of a task; number of blocks
    int64_t *tap_in          # [tap][axis] input index that the first pixel reads
    int64_t ntaps, depth     # depth: taps times in-channels, as packed
    int64_t *chunks          # [chunk] (first depth in a panel, depth, first depth in the weights) of a depth chunk
    int64_t nchunks
    int64_t *unit            # [tile + 1] first unit of rows. A unit is the last axis's phases of a channel and outer phase
    int64_t tiles, tile_block, tile_blocks
    int64_t call_tiles       # the most tiles that one call multiplies by a panel
    int64_t outer            # number of outer phases: phases of the axes before the last
    int64_t *outer_at        # [outer phase] offset of its output at the first pixel, in elements
    int64_t *outer_valid     # [outer phase][axis before the last] (low, high) range of pixels that the window shows
    bint whole               # the window shows all pixels of all outer phases
    int64_t x_first          # output index of phase 0 at the first pixel of the last axis
    TurnedPack *pack
    bint nested              # some phases lack taps, and their weights there are zeros
    int64_t first_task, ntasks


cdef struct TurnedTask:
    # The state of a task. S is the dtype of the arrays, T that of accumulators.
    TurnedClass *c
    int64_t m0, pixels       # first pixel, and number of pixels, counted across all images
    char *src                # data of the channel group
    char *dst                # output of the channel group
    const char *weights
    const char *bias
    char *panels             # packed inputs
    char *staging            # S: inputs before they are converted to the elements of a unit
    char *sums               # T: the tiles of a call
    void **sum_rows          # [row of the tiles] address in `sums`
    void **plane_rows        # [row of the tiles] address in the output, for tiles that store directly
    void **unit_rows         # [unit] address in the output, for interleaving
    char *zeros              # T: a row of -0.0, from which accumulators start if interleaving adds the bias
    char *biases             # T: [unit] a row of equal values for tiles that store directly, else a number
    int64_t *unit_offsets    # [unit of the task] offset from a pixel's first output, in elements
    int64_t first_unit       # first unit of the task
    # The inputs of the thread's next task are prefetched plane by plane, some before each kernel call:
    char *prefetch_line      # next line to prefetch
    int64_t lines_left, planes_left, lines_per_call  # lines left of its plane; planes left; lines before each call
    int64_t *pieces          # [piece] (column, pixels, image, position on each axis) of a contiguous run within a panel
    int64_t *first_piece     # [panel + 1] index of its first piece
    char *refused            # set if the call must be repeated with another plan


cdef class TurnedPlan(Plan):
    cdef TurnedRecipe recipe
    cdef list keep
    cdef TurnedClass *classes
    cdef Py_ssize_t nclasses
    cdef int64_t phases      # phases of the last axis
    cdef int64_t ci_p, out_size  # in-channels as packed; outputs on the last axis
    # byte offsets of regions of the workspace
    cdef int64_t panels_at, staging_at, sums_at, sum_rows_at, plane_rows_at, unit_rows_at, unit_offsets_at, biases_at
    cdef int64_t pieces_at, first_piece_at
    cdef bint stream, prefetch_outputs, far  # see schedule.py
    cdef const convt_kernels *packed_kernels  # kernels of the dtype of packed inputs on vectors (float32 or float64)
    cdef bint direct_store   # tiles store directly if a panel is one piece: one phase, contiguous pixels

    cdef char *next_input(self, TurnedTask *w, Py_ssize_t task, const Call *call) noexcept nogil
    cdef void prefetch_input(self, TurnedTask *w) noexcept nogil
    cdef void find_pieces(self, TurnedTask *w) noexcept nogil
    cdef void pack_panel(self, TurnedTask *w, int64_t panel) noexcept nogil
    cdef void copy_piece(self, TurnedTask *w, int64_t *piece, int64_t *tap, int64_t c0, int64_t rows, char *dst, int64_t ld,
                         bint converts) noexcept nogil
    cdef void find_units(self, TurnedTask *w, int64_t first, int64_t last) noexcept nogil
    cdef int64_t output_offset(self, TurnedTask *w, int64_t *piece, int64_t x0) noexcept nogil
    cdef bint can_store_directly(self, TurnedTask *w, int64_t panel, ptrdiff_t *at) noexcept nogil
    cdef void prefetch_units(self, TurnedTask *w, int64_t first, int64_t units, int64_t panel) noexcept nogil
    cdef void store_units(self, TurnedTask *w, int64_t first, int64_t units, int64_t panel) noexcept nogil
