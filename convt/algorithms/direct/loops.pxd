# Tables and tasks of the loops of `direct` (loops.pyx). WinogradPlan extends DirectPlan.

from libc.stdint cimport int64_t

from convt._core cimport Call, NativePlan
from convt._run.kernels cimport MOST_ROWS, convt_act, convt_pending_stores, convt_tile
from convt.algorithms.packing cimport PackClass, PanelRecipe

cdef struct DirectClass:
    # One class: a run per axis, in all channel groups.
    # Rows of the GEMM: all positions of the runs, the batch as the outermost index.
    int64_t *count        # [nd]
    int64_t rows
    int64_t block, blocks # rows of a task, and number of row blocks
    # Depth of the GEMM.
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd] input index that a tap reads at the first row
    int64_t *follows_previous  # [ntaps] whether the tap reads the memory right after the input of the previous tap
    int64_t nchunks
    int64_t *chunks       # [nchunks][4]: first depth in the class, depth, first depth in the panel, lines a tile prefetches
    int64_t span          # depth chunks that are packed at once
    bint sparse           # each chunk has one tap; all but the first and the last chunk skip rows that the tap does not reach
    int64_t strided_rows  # this many rows have a constant stride in the input, from each multiple of `strided_rows` on;
                          # 0: none
    int64_t lda           # stride of these rows in elements
    bint in_place         # the GEMM reads these rows without packing
    int64_t strip         # rows of a strip, which all panels multiply before the next strip; used if the panels stay in L2
    int64_t pair_rows     # tasks of at most this many rows multiply two panels at once
    # Columns of the GEMM.
    int64_t npanels, panel_block, panel_blocks
    int64_t *panels       # [npanels][5]: columns, whether they are adjacent in the output, output offset, first piece, end of
                          # pieces; there are no pieces if the window shows none of the columns
    int64_t *pieces       # [..][3 + 2 nd]: first column in the panel, columns, output offset, then per axis the positions
                          # [low, high) at which the piece is inside the window
    int64_t *boxes        # [npanels][nd][2]: positions [low, high) at which all pieces of a panel are inside the window
    int64_t *inner        # [nd][2]: positions [low, high) at which every phase is inside the window
    bint all_inside       # every phase is inside the window at all positions
    PackClass *pack
    int64_t first_panel   # first panel of the class among the panels of `pack`
    int64_t first_task, ntasks

cdef struct DirectTask:
    # A task: rows [m0, m0 + m) and panels [p0, p1) of one class and channel group, with its operands, the regions of the
    # workspace, and the arguments of the next register tile.
    DirectClass *c
    int64_t m0, m, p0, p1
    char *src
    char *dst
    char *weights
    char *bias
    char *source          # the filter of the channel group, if the task packs weights on the fly; else NULL
    char *panel           # weights packed on the fly
    char *refused         # flag: `direct` on vectors must repeat the call
    char *a               # packed rows; depth chunks are stride_a bytes apart
    char **chunk_inputs   # [nchunks] input address of a chunk's rows if they have a constant stride and no zeros, else NULL
    void **out_rows       # [m] address of each row in the output
    void **sum_rows       # [m] address of each row in the partial sums
    void **reached_rows   # addresses in the partial sums of the rows that a sparse chunk reaches, c.block for each chunk
    int64_t *reached_counts  # number of rows that each sparse chunk reaches
    int64_t *coords       # [m][nd] position of each row
    int64_t *next_outside # [m + 1] the next row where some phase is outside the window
    char *scratch         # accumulators of a tile that does not store into the output itself
    char *sums            # partial sums between depth chunks; panels are stride_sums elements apart
    int64_t stride_a, stride_sums
    int64_t max_tile_rows # the most rows of a tile
    void *scratch_rows[MOST_ROWS]  # the rows of `scratch`
    bint in_place         # the GEMM reads all rows of the task without packing
    bint can_store_direct, far_weights  # tiles may store into the output; weights do not stay in L2
    const char *next_input  # address in the next task's input that the next tile prefetches
    int64_t input_step      # bytes of it per step of prefetching
    convt_tile t
    convt_pending_stores pending


cdef struct DirectRegions:
    # Offsets of the regions of a thread's workspace (schedule.book).
    size_t rows, chunk_inputs, out_rows, sum_rows, reached_rows, reached_counts, coords, next_outside, scratch, sums


cdef class DirectPlan(NativePlan):
    cdef PanelRecipe recipe
    cdef DirectClass *classes
    cdef Py_ssize_t nclasses
    cdef int64_t direct_tasks  # number of tasks of `classes`; a subclass may have more tasks
    cdef bint panel_major  # a panel multiplies all rows of a task before the next panel
    cdef int64_t near_bytes  # weights of a task up to this size stay in L2 beside its rows
    cdef int64_t far_bytes  # larger weights of a channel group do not stay in L2
    cdef size_t tile_non_temporal  # `non_temporal` if register tiles use non-temporal stores, else 0
    cdef list keep  # references to the tables that the structures point into
    cdef int64_t lda  # elements between packed rows
    cdef int64_t max_block
    cdef DirectRegions region_at

    cdef open_direct(self, str name, problem, PanelRecipe recipe, in_strides, out_strides, execution, classes, tiles)
    cdef bint taps_contiguous(self, DirectClass *c, int64_t *chunk, int64_t *low, int64_t *high, int64_t *at) noexcept nogil
    cdef bint find_strided_rows(self, DirectClass *c, int64_t m0, int64_t m, char *src, char **chunk_inputs) noexcept nogil
    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil
    cdef void open_task(self, DirectTask *w, Py_ssize_t task, const Call *call, char *ws) noexcept nogil
    cdef void pack_chunks(self, DirectTask *w, int64_t start, int64_t end, int64_t s0, int64_t s1, char *refused) noexcept nogil
    cdef void multiply_panels(self, DirectTask *w, int64_t start, int64_t end, int64_t s0, int64_t s1, bint back) noexcept nogil
    cdef void compute_output_tile(self, DirectTask *w, int64_t p, int64_t panel_count, int64_t r0, int64_t r1) noexcept nogil
    cdef void prefetch_pieces(self, DirectClass *c, int64_t first, int64_t last, void **out_rows, int64_t r0,
                              int64_t r1) noexcept nogil
    cdef void locate_task(self, Py_ssize_t task, DirectClass **class_out, int64_t *group, int64_t *m0, int64_t *m, int64_t *p0,
                          int64_t *p1) noexcept nogil
    cdef const char *next_input(self, Py_ssize_t task, const Call *call, int64_t *step) noexcept nogil
    cdef void locate_rows(self, DirectClass *c, int64_t m0, int64_t m, char *dst, void **out_rows, int64_t *coords,
                          int64_t *next_outside, bint all_strided) noexcept nogil
    cdef int64_t pack_rows(self, DirectClass *c, int64_t k0, int64_t kc, int64_t m0, int64_t m, int64_t *coords,
                           char *src, char *a, void **sum_rows, void **reached_rows, char *refused) noexcept nogil
    cdef void store_pieces(self, DirectClass *c, int64_t *panel, int64_t r0, int64_t r1, void **out_rows, int64_t *coords,
                           bint inside, char *scratch, const convt_act *act) noexcept nogil
