# The loops of the GEMM turned round: see loops.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport convt_interleave, convt_kernels, convt_tile
from convt.algorithms.turned.weights cimport TurnedPack, TurnedRecipe


cdef struct TurnedClass:
    # A run on every axis.
    int64_t *count           # pixels along each axis
    int64_t pixels           # of all images
    int64_t block, blocks    # pixels of a task
    int64_t *tap_in          # [tap][axis]: the input that it reads at the first pixel
    int64_t ntaps, depth     # depth: taps times in-channels, as packed
    int64_t *chunks          # (first depth in a panel, depth, first depth of the weights) of what a tile multiplies at a time
    int64_t nchunks
    int64_t *unit            # [tile + 1]: its first unit. A unit is the x-phases of a channel and outer phase: rows of a tile
    int64_t tiles, tile_block, tile_blocks, together
    int64_t outer            # phases of the axes but the last
    int64_t *outer_at        # [outer phase]: its output at the first pixel, in elements
    int64_t *outer_valid     # [outer phase][axis but the last] (low, high): pixels that the window shows
    bint whole               # the window shows all pixels of all outer phases
    int64_t x_first          # output index of phase 0 at the first pixel of the last axis
    TurnedPack *pack
    bint nested              # some phase has not all taps: its weights there are zeros
    int64_t first_task, ntasks


cdef struct TurnedTask:
    TurnedClass *c
    int64_t m0, pixels       # of all images
    char *src
    char *dst
    const char *weights
    const char *bias
    char *panels
    char *lines              # S: what is packed next
    char *made               # T: the tiles of a call
    void **rows              # where the rows of these tiles begin,
    void **planes            # and those of the output that they are stored into as they are, or
    void **outs              # runs of outputs that they are interleaved into
    char *nothing            # T: what accumulators start from where interleaving adds the bias
    char *biases             # T: of each unit: a row of accumulators where tiles are stored as they are, else a number
    int64_t *unit_at         # how far each unit of the task is from a pixel's first output, in elements;
    int64_t first_unit       # the first of them
    char *coming             # the inputs of the thread's next task, prefetched plane by plane: the next line, and how many of
    int64_t coming_lines, coming_planes, lines_at_once  # its plane and planes there are from it on; before each tile so many
    int64_t *pieces          # runs along the last axis within a panel: column, pixels, image, position on each axis
    int64_t *first_piece     # [panel + 1]
    char *refused


cdef class TurnedPlan(Plan):
    cdef TurnedRecipe recipe
    cdef list keep
    cdef TurnedClass *classes
    cdef Py_ssize_t nclasses
    cdef int64_t phases      # of the last axis
    cdef int64_t ci_p, out_size
    cdef int64_t panels_at, lines_at, made_at, rows_at, planes_at, outs_at, units_at, biases_at, pieces_at, first_piece_at  # in the workspace of a thread
    cdef bint stream, fetch, far
    cdef const convt_kernels *wide  # of the numbers that E is on vectors
    cdef bint plain          # tiles are stored as they are: one phase, contiguous pixels

    cdef char *next_input(self, TurnedTask *w, Py_ssize_t task, const Call *call) noexcept nogil
    cdef void prefetch_input(self, TurnedTask *w) noexcept nogil
    cdef void find_pieces(self, TurnedTask *w) noexcept nogil
    cdef void pack_panel(self, TurnedTask *w, int64_t panel) noexcept nogil
    cdef void copy_piece(self, TurnedTask *w, int64_t *piece, int64_t *tap, int64_t c0, int64_t rows, char *to, int64_t ld,
                         bint packs) noexcept nogil
    cdef void find_units(self, TurnedTask *w, int64_t first, int64_t last) noexcept nogil
    cdef int64_t place_pixel(self, TurnedTask *w, int64_t *piece, int64_t x0) noexcept nogil
    cdef bint stores_plainly(self, TurnedTask *w, int64_t panel, ptrdiff_t *at) noexcept nogil
    cdef void prefetch_units(self, TurnedTask *w, int64_t first, int64_t units, int64_t panel) noexcept nogil
    cdef void store_units(self, TurnedTask *w, int64_t first, int64_t units, int64_t panel) noexcept nogil
