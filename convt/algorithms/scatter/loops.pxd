# Tables and tasks of the loops of `scatter` (loops.pyx).

from libc.stdint cimport int32_t, int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport convt_kernels, convt_overlap, convt_tile
from convt.algorithms.indexing cimport Cut
from convt.algorithms.packing cimport PackClass
from convt.algorithms.scatter.weights cimport ScatterRecipe

cdef enum:
    PREFETCHED = 128  # the most bytes by which a prefetch advances: two cache lines, because fetching one also fetches the next
    MOST_AXES = 64    # the most axes, as in NumPy
    PLANE_PANELS = 8  # panels of pixels that are packed at a time, plane by plane: few streams of loads, and stores stay in L1

cdef struct PackedRow:
    # Contents of a slot: a part of an input row, packed and kept for output rows of the task that read it later.
    int64_t at            # offset of the part in the input
    int64_t used          # the last output row that read it, -1 if the slot is empty

cdef struct ScatterRun:
    # A run of an axis other than the last (phases.AxisClass).
    int64_t start, count
    int64_t taps, first_in, gap  # tap n reads input first_in + n * gap at the first j of the run
    int64_t group, first_tap, group_taps  # phase group, number of the run's first tap in the group, taps of the group
    int64_t phases
    int64_t *phase_windows  # [phases][3]: first output, then the j [low, high) inside the window

cdef struct ScatterAxisRow:
    # A row of an axis. Rows are in order of j; rows of equal j and different phase groups are adjacent.
    int64_t j, run        # j relative to the start of the run
    int64_t first, rows_of_j  # the first of the rows with this j, and their number

cdef struct ScatterAxis:
    # An axis other than the last.
    int64_t nruns, ngroups, low, span  # the j of all runs are in [low, low + span)
    ScatterRun *runs
    int64_t taps, phases  # sums over all runs
    int64_t nrows, inner_rows  # rows of this axis, and rows of all later axes
    ScatterAxisRow *rows

cdef struct ScatterChunk:
    # A depth chunk.
    int64_t depth
    int64_t tap, channel  # its first tap and in-channel
    int64_t panel         # its first depth in the panel
    int64_t at            # across: its offset in the weights in bytes
    int64_t prefetches    # lines that a tile prefetches

cdef struct ScatterClass:
    # Rows of one choice of a run per axis other than the last. All taps of a row are inside the input.
    ScatterRun **runs     # [nd - 1]
    int64_t rows          # rows of an image
    int64_t ntaps
    int64_t nchunks
    ScatterChunk *chunks
    int64_t nphases
    int64_t *phases       # [nphases][1 + 2 (nd - 1)]: output offset at the first row, then per axis the j [low, high) inside
    int64_t npanels, ld   # ld: elements between pixels of products or, across, between columns
    Cut by_tile[3]        # across: division of the columns into tiles, for each number of vectors of pixels
    int64_t tiles[3]      # across: number of tiles, for each number of vectors of pixels
    PackClass *pack

cdef struct PlanePrefetch:
    # The planes that tiles prefetch, one cache line of each plane at a time.
    int64_t lines_left  # lines left of each plane; 0 if nothing is prefetched
    int64_t span_bytes  # bytes from the first plane to the end of the last one
    const char *end  # address at which the lines of all planes are prefetched

cdef struct Row:
    int64_t image
    int64_t j[MOST_AXES]  # j on each axis other than the last, relative to the start of its run


cdef class ScatterPlan(Plan):
    cdef ScatterRecipe recipe
    cdef Py_ssize_t nclasses
    cdef ScatterClass *classes
    cdef ScatterAxis *axes
    cdef list keep
    cdef int64_t j_whole  # from this j on, the window does not show all outputs of a j
    cdef int64_t j0, j1, block, blocks, begin, window, taps_x, terms, lanes, max_rows, slab, panels
    cdef bint prefetch    # the input does not stay in L2
    cdef bint across_in_place  # across: if columns are few, pixels are multiplied in place, without packing
    cdef bint across, in_place  # vectors run over pixels; the GEMM reads pixels in place, in depth chunks of one tap
    cdef object gathers
    cdef int32_t *gather_index  # for each vector of outputs, indices of its bias and products; NULL: overlap-add by rows
    cdef int64_t outputs
    cdef int gather_terms
    cdef bint joined  # a task computes all rows in a range of j, of all images, class by class
    cdef bint dense   # pixels have one constant stride, so that joined rows that are consecutive in the input are one GEMM
    cdef int64_t rows, row_js, row_tasks  # rows, j and tasks of an image; of all images if joined
    cdef int64_t chunks_of_tap  # depth chunks per tap; 0 if a chunk may have several taps
    cdef int64_t slots, lda  # number of packed input rows that are kept, elements between packed pixels
    cdef size_t chunk_size, slot_size  # bytes of a packed depth chunk, and of a slot
    cdef size_t at_kept, at_packed, at_products  # offsets of workspace regions

    cdef open_axis(self, ScatterAxis *axis, groups, runs)
    cdef list_axis_rows(self, ScatterAxis *axis)
    cdef open_classes(self)
    cdef void open_class(self, ScatterClass *c) noexcept nogil
    cdef void cut_depth(self, ScatterClass *c) noexcept nogil
    cdef void add_chunks(self, ScatterClass *c, int64_t first, int64_t panel, int64_t depth) noexcept nogil
    cdef make_gather_index(self, columns, pixels)
    cdef void locate_task(self, Py_ssize_t task, int64_t *group, int64_t *image, int64_t *first, int64_t *last,
                          int64_t *j_lo) noexcept nogil
    cdef ScatterClass *find_row(self, int64_t n, Row *row) noexcept nogil
    cdef void row_of_class(self, const ScatterClass *c, int64_t n, Row *row) noexcept nogil
    cdef int64_t rows_before(self, const ScatterClass *c, int64_t row_j) noexcept nogil
    cdef int64_t pixels_between(self, const ScatterClass *c, const Row *row, const Row *other) noexcept nogil
    cdef int64_t run_rows(self, Py_ssize_t task, ScatterClass *c, Row *row, int64_t group, int64_t first, int64_t last,
                          int64_t j_lo, const Call *call, char *ws) noexcept nogil
    cdef void run_images(self, int64_t first, int64_t last, const Call *call, char *ws) noexcept nogil
    cdef void overlap_row(self, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil
    cdef void compute_products(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t row_index,
                               int64_t i_lo, int64_t m, char *ws, char *col, const char *next, int64_t next_bytes,
                               char *refused) noexcept nogil
    cdef void multiply_pixels(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t i_lo, int64_t m,
                              char *col) noexcept nogil
    cdef void multiply_across(self, ScatterClass *c, int64_t chunk, convt_tile *t, char *panel, char *weights, int64_t first,
                              int64_t m, char *col, char *zeros, PlanePrefetch *plane_prefetch) noexcept nogil
    cdef void prefetch_planes(self, ScatterClass *c, int64_t chunk, convt_tile *t, PlanePrefetch *plane_prefetch, char *src,
                              const int64_t *j, int64_t i, int64_t some) noexcept nogil
    cdef const char *next_pixels(self, Py_ssize_t task, ScatterClass *c, int64_t n, int64_t last, int64_t image, int64_t j_lo,
                                 const Call *call, int64_t *bytes) noexcept nogil
    cdef int64_t tap_at(self, const ScatterClass *c, int64_t tap, const int64_t *j) noexcept nogil
    cdef char *packed_pixels(self, ScatterClass *c, int64_t chunk, char *src, const int64_t *j, int64_t row_index, int64_t i_lo,
                             int64_t m, char *ws, char *refused) noexcept nogil
    cdef char *slot(self, char *ws, int64_t n) noexcept nogil
    cdef void pack_pixels(self, ScatterClass *c, const ScatterChunk *chunk, char *src, const int64_t *j, int64_t i_lo,
                          int64_t m, char *dst, char *refused) noexcept nogil
