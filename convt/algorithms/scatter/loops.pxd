# scatter's loops: see loops.pyx.

from libc.stdint cimport int32_t, int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport convt_kernels, convt_overlap, convt_tile
from convt._memory cimport Table
from convt.algorithms.indexing cimport Cut
from convt.algorithms.packing cimport PackClass
from convt.algorithms.scatter.weights cimport ScatterRecipe

cdef enum:
    PREFETCHED = 128  # bytes of input that a step of a tile prefetches at most: the first of two lines, as the second comes with it

cdef struct PackedRow:
    # A stretch of an input row as packed, kept for the output rows of the task that read it too.
    int64_t at            # its offset in the input
    int64_t used          # the last row that read it, -1 if nothing is packed here

cdef struct ScatterChunk:
    # Depth that is multiplied at a time.
    int64_t first, depth  # of the class's
    int64_t tap, channel  # where it starts
    int64_t panel         # first depth of the panel
    int64_t at            # across: bytes to where it starts in the weights
    int64_t prefetches    # lines that a tile prefetches

cdef struct ScatterClass:
    # A row of the class: one j of every axis but the last, where all its taps are inside the input.
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd - 1] input index at the first row
    int64_t nchunks
    ScatterChunk *chunks
    int64_t parts         # chunks of a tap, or 0 where a chunk has several taps
    int64_t nphases
    int64_t *phases       # [nphases][1 + 2 (nd - 1)]: output offset at the first row, then (low, high) of valid per axis
    int64_t npanels, ld
    Cut by_tile[3]        # across: columns, by the vectors of a tile
    int64_t tiles[3]
    PackClass *pack


cdef class ScatterPlan(Plan):
    cdef ScatterRecipe recipe
    cdef ScatterClass *classes
    cdef list keep
    cdef int64_t j_whole  # of blocks of stride outputs: the first one behind which the window does not show whole
    cdef int64_t j0, j1, block, blocks, begin, window, taps_x, terms, lanes, max_rows, sums, slab
    cdef bint far  # the input does not stay in L2
    cdef bint fused  # across: where columns are few, pixels are transposed as they are multiplied
    cdef bint across, in_place  # whether the GEMM takes pixels from where they lie, where chunks have a single tap
    cdef object gathers
    cdef int32_t *gather_index  # what outputs of an image sum, by vectors: indices of bias and of products; NULL: overlap-add by rows
    cdef int64_t outputs
    cdef int gather_terms
    cdef bint joined  # rows of a task that follow each other in the input are multiplied as one
    cdef Table order  # [rows of an image, or of all][1 + nd]: class, image, j of every axis but the last
    cdef Table first  # [tasks of the rows + 1]: the first row of each
    cdef int64_t row_tasks
    cdef int64_t slots, lda  # input rows kept packed, elements between their pixels
    cdef size_t chunk_size, slot_size  # bytes

    cdef ScatterChunk *chunks_of(self, chunks, int64_t ncols) except NULL
    cdef _gather(self, columns, pixels)
    cdef size_t _packed(self) noexcept nogil
    cdef void place(self, Py_ssize_t task, int64_t *group, int64_t *image, int64_t *first, int64_t *last,
                    int64_t *j_lo) noexcept nogil
    cdef const int64_t *row_at(self, int64_t n) noexcept nogil
    cdef int64_t pixels_between(self, const int64_t *row, const int64_t *other) noexcept nogil
    cdef int64_t run_rows(self, Py_ssize_t task, int64_t group, int64_t first_image, int64_t first, int64_t last, int64_t j_lo,
                          const Call *call, char *ws) noexcept nogil
    cdef void run_images(self, int64_t first, int64_t last, const Call *call, char *ws) noexcept nogil
    cdef void overlap_row(self, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil
    cdef void products(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                       char *ws, char *col, const char *next, int64_t ahead, char *refused) noexcept nogil
    cdef void multiply_pixels(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t i_lo, int64_t m,
                              char *col) noexcept nogil
    cdef void multiply_across(self, ScatterClass *c, int64_t chunk, convt_tile *t, char *panel, char *weights, int64_t first,
                              int64_t m, char *col, char *zeros) noexcept nogil
    cdef const char *next_pixels(self, Py_ssize_t task, int64_t n, int64_t last, int64_t image, int64_t j_lo, const Call *call,
                                 int64_t *bytes) noexcept nogil
    cdef int64_t tap_at(self, ScatterClass *c, int64_t tap, const int64_t *j) noexcept nogil
    cdef char *packed(self, ScatterClass *c, int64_t chunk, char *src, const int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                      char *ws, char *refused) noexcept nogil
    cdef char *slot(self, char *ws, int64_t n) noexcept nogil
    cdef void pack_pixels(self, ScatterClass *c, const ScatterChunk *chunk, char *src, const int64_t *j, int64_t i_lo,
                          int64_t m, char *to, char *refused) noexcept nogil
