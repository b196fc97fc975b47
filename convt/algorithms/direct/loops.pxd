# The direct algorithm's loops: see loops.pyx. Winograd builds on them.

from libc.stdint cimport int64_t

from convt._core cimport Call, Plan
from convt._kernels cimport MOST_ROWS, convt_act, convt_late, convt_tile
from convt.algorithms.packing cimport PackClass, PanelRecipe

cdef struct DirectClass:
    # rows: pixels of the class's box, batch outermost
    int64_t *count        # [nd]
    int64_t rows
    int64_t block, blocks
    # depth
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd] input index at the box's first pixel
    int64_t *follows      # [ntaps] whether it reads what lies behind the input of the tap before
    int64_t nchunks
    int64_t *chunks       # [nchunks][4]: first depth of the class, depth, first depth of the panel, lines that a tile prefetches
    int64_t span          # how many of them are packed at once
    bint sparse           # a chunk has a single tap, and all but the first and the last leave out rows it does not reach
    int64_t run           # rows at a constant stride in the input, from each multiple of it on; 0: none
    int64_t lda           # that stride
    bint in_place         # the GEMM reads such rows unpacked
    int64_t strip         # rows that meet all panels before the next rows, where the panels stay in L2
    int64_t wide          # up to so many rows of a task meet two panels at once
    # columns
    int64_t npanels, panel_block, panel_blocks
    int64_t *panels       # [npanels][5]: columns, adjacent in the output?, its offset, first piece, one past the last; no piece
                          # if the window shows none
    int64_t *pieces       # [..][3 + 2 nd]: first column, columns, output offset, then (low, high) of valid per axis
    int64_t *boxes        # [npanels][nd][2]: where all pieces of a panel are valid
    int64_t *inner        # [nd][2]: where every phase is valid
    bint whole            # which is everywhere
    PackClass *pack
    int64_t first_panel   # of the class, among those of `pack`
    int64_t first_task, ntasks

cdef struct DirectTask:
    # A task's descriptor: its rows m0 to m0 + m and panels p0 to p1, operands, workspace, the tile to be.
    DirectClass *c
    int64_t m0, m, p0, p1
    char *src
    char *dst
    char *weights
    char *bias
    char *source          # the filter, where this task packs what it multiplies,
    char *panel           # to here
    char *refused
    char *a               # packed rows, stride_a bytes from a depth chunk to the next
    char **found          # of each chunk, where its rows start in the input if they are at a constant stride; else NULL
    void **to             # where each row goes in the output,
    void **lines          # and in the partial sums between depth chunks
    void **reached        # those of the rows that a sparse chunk reaches,
    int64_t *heights      # and how many
    int64_t *coords       # of each row
    int64_t *edge         # the next row where some phase is outside the window
    char *scratch         # a tile on its way to the store
    char *partial         # partial sums between depth chunks, stride_partial elements from a panel to the next
    int64_t stride_a, stride_partial
    int64_t most          # rows of a tile
    void *window[MOST_ROWS]  # the rows of `scratch`
    bint in_place         # the GEMM reads all its rows unpacked
    bint fast, far        # tiles may store into the output; weights do not stay in L2
    const char *next_input
    int64_t input_step
    convt_tile t
    convt_late late


cdef struct DirectRegions:
    # Where the regions of a thread's workspace start (schedule.book).
    size_t rows, found, to, lines, reached, heights, coords, edge, tile, sums


cdef class DirectPlan(Plan):
    cdef PanelRecipe recipe
    cdef DirectClass *classes
    cdef Py_ssize_t nclasses
    cdef int64_t direct_tasks  # those of these classes: plans that build on this one may have more
    cdef bint panel_major  # all rows of a task meet a panel before the next panel
    cdef int64_t near_bytes  # weights of a task up to this stay in L2 beside its rows
    cdef int64_t far_bytes  # weights of a group beyond this do not stay in L2
    cdef size_t tile_non_temporal  # `non_temporal`, where tiles use such stores
    cdef list keep  # the tables that the structures point into
    cdef int64_t lda  # from row to row that is packed
    cdef int64_t max_block
    cdef DirectRegions at

    cdef open_direct(self, str name, problem, PanelRecipe recipe, in_strides, out_strides, execution, classes, tiles)
    cdef bint taps_contiguous(self, DirectClass *c, int64_t *chunk, int64_t *low, int64_t *high, int64_t *at) noexcept nogil
    cdef bint find_rows(self, DirectClass *c, int64_t m0, int64_t m, char *src, char **found) noexcept nogil
    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil
    cdef void open(self, DirectTask *w, Py_ssize_t task, const Call *call, char *ws) noexcept nogil
    cdef void pack_chunks(self, DirectTask *w, int64_t start, int64_t end, int64_t s0, int64_t s1, char *refused) noexcept nogil
    cdef void multiply_panels(self, DirectTask *w, int64_t start, int64_t end, int64_t s0, int64_t s1, bint back) noexcept nogil
    cdef void last_tile(self, DirectTask *w, int64_t p, int64_t both, int64_t r0, int64_t r1) noexcept nogil
    cdef void prefetch_pieces(self, DirectClass *c, int64_t first, int64_t last, void **to, int64_t r0, int64_t r1) noexcept nogil
    cdef void place(self, Py_ssize_t task, DirectClass **which, int64_t *group, int64_t *m0, int64_t *m, int64_t *p0,
                    int64_t *p1) noexcept nogil
    cdef const char *next_input(self, Py_ssize_t task, const Call *call, int64_t *step) noexcept nogil
    cdef void locate(self, DirectClass *c, int64_t m0, int64_t m, char *dst, void **to, int64_t *coords,
                     int64_t *edge, bint unpacked) noexcept nogil
    cdef int64_t pack_rows(self, DirectClass *c, int64_t k0, int64_t kc, int64_t m0, int64_t m, int64_t *coords,
                           char *src, char *a, void **lines, void **reached, char *refused) noexcept nogil
    cdef void store_pieces(self, DirectClass *c, int64_t *panel, int64_t r0, int64_t r1, void **to, int64_t *coords,
                           bint inside, char *scratch, const convt_act *act) noexcept nogil
