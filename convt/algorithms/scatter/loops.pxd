# scatter's loops: see loops.pyx.

from libc.stdint cimport int32_t, int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport convt_kernels, convt_overlap, convt_tile
from convt.algorithms.indexing cimport Cut
from convt.algorithms.packing cimport PackClass
from convt.algorithms.scatter.weights cimport ScatterRecipe

cdef enum:
    PREFETCHED = 128  # bytes of input that a step of a tile prefetches at most: the first of two lines, as the second comes with it
    MOST_AXES = 64    # as NumPy's arrays
    PLANE_PANELS = 8  # panels of pixels that are packed at a time, a plane after the other: few streams, whose stores stay in L1

cdef struct PackedRow:
    # A stretch of an input row as packed, kept for the output rows of the task that read it too.
    int64_t at            # its offset in the input
    int64_t used          # the last row that read it, -1 if nothing is packed here

cdef struct ScatterRun:
    # A run of an axis but the last: see phases.AxisClass.
    int64_t start, count
    int64_t taps, first_in, gap  # tap n reads input first_in + n * gap at the run's start
    int64_t group, first_tap, of_group  # of the group's taps, so many, they are those from the first on
    int64_t phases
    int64_t *shown        # [phases][3]: first output, then (low, high) of valid

cdef struct ScatterPlace:
    # A row of an axis. Rows lie in order of j; those of the same j, of different groups, are together.
    int64_t j, run        # j from the start of the run
    int64_t first, together  # the first of the rows of this j, and how many they are

cdef struct ScatterAxis:
    int64_t nruns, ngroups, low, span  # j of all runs are in [low, low + span)
    ScatterRun *runs
    int64_t taps, phases  # of all runs
    int64_t nplaces, after  # rows of this axis, and of all axes after it
    ScatterPlace *places

cdef struct ScatterChunk:
    # Depth that is multiplied at a time.
    int64_t depth
    int64_t tap, channel  # where it starts
    int64_t panel         # first depth of the panel
    int64_t at            # across: bytes to where it starts in the weights
    int64_t prefetches    # lines that a tile prefetches

cdef struct ScatterClass:
    # Rows with a run of each axis but the last, whose taps are all inside the input.
    ScatterRun **runs     # [nd - 1]
    int64_t rows          # of an image
    int64_t ntaps
    int64_t nchunks
    ScatterChunk *chunks
    int64_t nphases
    int64_t *phases       # [nphases][1 + 2 (nd - 1)]: output offset at the first row, then (low, high) of valid per axis
    int64_t npanels, ld
    Cut by_tile[3]        # across: columns, by the vectors of a tile
    int64_t tiles[3]
    PackClass *pack

cdef struct Coming:
    # The planes that tiles prefetch, a line of each at a time.
    int64_t lines    # that are left of each plane; 0 if nothing is prefetched
    int64_t planes   # bytes from the first plane to behind the last one
    const char *end  # the line behind those of the last plane

cdef struct Row:
    int64_t image
    int64_t j[MOST_AXES]  # of every axis but the last, from the start of its run


cdef class ScatterPlan(Plan):
    cdef ScatterRecipe recipe
    cdef Py_ssize_t nclasses
    cdef ScatterClass *classes
    cdef ScatterAxis *axes
    cdef list keep
    cdef int64_t j_whole  # of blocks of stride outputs: the first one behind which the window does not show whole
    cdef int64_t j0, j1, block, blocks, begin, window, taps_x, terms, lanes, max_rows, slab, panels
    cdef bint prefetch    # the input does not stay in L2
    cdef bint fused  # across: where columns are few, pixels are read as they are multiplied, and not packed
    cdef bint across, in_place  # whether the GEMM takes pixels from where they lie, where chunks have a single tap
    cdef object gathers
    cdef int32_t *gather_index  # what outputs of an image sum, by vectors: indices of bias and of products; NULL: overlap-add by rows
    cdef int64_t outputs
    cdef int gather_terms
    cdef bint joined  # a task does all rows in a range of j, of all images, class by class
    cdef bint dense   # rows of joined tasks that follow each other in the input are multiplied as one
    cdef int64_t rows, places, row_tasks  # of an image, or for joined rows of all; its j; tasks that they are
    cdef int64_t chunks_of_tap  # or 0 where a chunk has several taps
    cdef int64_t slots, lda  # input rows kept packed, elements between their pixels
    cdef size_t chunk_size, slot_size  # bytes
    cdef size_t at_kept, at_packed, at_products  # in the workspace

    cdef open_axis(self, ScatterAxis *axis, groups, runs)
    cdef place_rows(self, ScatterAxis *axis)
    cdef open_classes(self)
    cdef void open_class(self, ScatterClass *c) noexcept nogil
    cdef void cut_depth(self, ScatterClass *c) noexcept nogil
    cdef void add_chunks(self, ScatterClass *c, int64_t first, int64_t panel, int64_t depth) noexcept nogil
    cdef _gather(self, columns, pixels)
    cdef void place(self, Py_ssize_t task, int64_t *group, int64_t *image, int64_t *first, int64_t *last,
                    int64_t *j_lo) noexcept nogil
    cdef ScatterClass *find_row(self, int64_t n, Row *row) noexcept nogil
    cdef void row_of_class(self, const ScatterClass *c, int64_t n, Row *row) noexcept nogil
    cdef int64_t rows_before(self, const ScatterClass *c, int64_t place) noexcept nogil
    cdef int64_t pixels_between(self, const ScatterClass *c, const Row *row, const Row *other) noexcept nogil
    cdef int64_t run_rows(self, Py_ssize_t task, ScatterClass *c, Row *row, int64_t group, int64_t first, int64_t last, int64_t j_lo,
                          const Call *call, char *ws) noexcept nogil
    cdef void run_images(self, int64_t first, int64_t last, const Call *call, char *ws) noexcept nogil
    cdef void overlap_row(self, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil
    cdef void products(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                       char *ws, char *col, const char *next, int64_t ahead, char *refused) noexcept nogil
    cdef void multiply_pixels(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t i_lo, int64_t m,
                              char *col) noexcept nogil
    cdef void multiply_across(self, ScatterClass *c, int64_t chunk, convt_tile *t, char *panel, char *weights, int64_t first,
                              int64_t m, char *col, char *zeros, Coming *coming) noexcept nogil
    cdef void look_ahead(self, ScatterClass *c, int64_t chunk, convt_tile *t, Coming *coming, char *src, const int64_t *j, int64_t i,
                         int64_t some) noexcept nogil
    cdef const char *next_pixels(self, Py_ssize_t task, ScatterClass *c, int64_t n, int64_t last, int64_t image, int64_t j_lo,
                                 const Call *call, int64_t *bytes) noexcept nogil
    cdef int64_t tap_at(self, const ScatterClass *c, int64_t tap, const int64_t *j) noexcept nogil
    cdef char *packed(self, ScatterClass *c, int64_t chunk, char *src, const int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                      char *ws, char *refused) noexcept nogil
    cdef char *slot(self, char *ws, int64_t n) noexcept nogil
    cdef void pack_pixels(self, ScatterClass *c, const ScatterChunk *chunk, char *src, const int64_t *j, int64_t i_lo,
                          int64_t m, char *to, char *refused) noexcept nogil
