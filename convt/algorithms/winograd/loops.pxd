# Tables and tasks of the loops of `winograd` (loops.pyx).

from libc.stdint cimport int64_t

from convt._core cimport Call
from convt.algorithms.direct.loops cimport DirectPlan
from convt.algorithms.packing cimport PackClass
from convt.algorithms.winograd.weights cimport WinogradRecipe

cdef enum:
    WINOGRAD_MOST_POINTS = 216  # the most points of a tile: six on each of three axes
    WINOGRAD_CHAIN = 128  # the most depth of a chain if two or more axes are transformed, which amplifies rounding errors
    WINOGRAD_PLACE = 4  # numbers of a tile in `places` before its position on each axis (see `locate_tiles`)
    WINOGRAD_PREFETCH = 2  # while tile r is transformed, the input tile r + WINOGRAD_PREFETCH is prefetched
    WINOGRAD_KINDS = 27  # kinds of tiles: first, last or between on each of three axes
    ALL_POINTS = 64  # a bit of `end_bits` that every point has; bits 0 to 5 are those of three axes
    WINOGRAD_BRIDGE = 4  # a gap of fewer tiles is multiplied and its products ignored: cheaper than another kernel call

cdef enum:  # regions of a thread's workspace
    ROWS, SUMS, SUM_ROWS, STAGE, PLACES, UNSORTED_PLACES, ZEROS, MINUS_ZEROS, CHECK, TILE_BUFFER, INTERMEDIATE, PACKED_PANEL, \
        REGION_COUNT

cdef struct WinogradClass:
    # One transformed class: a run per axis, in all channel groups.
    int64_t *tiles        # [nd] tiles along each axis
    int64_t *outputs      # [nd] outputs of a tile along each axis
    int64_t noutputs      # outputs of a tile
    int64_t depth_outputs # outputs of a tile along the first of three transformed axes; 1 if fewer axes are transformed
    int64_t plane         # outputs of a tile along the other axes
    int64_t *out_j        # [noutputs][nd] position of each output, relative to the first
    int64_t *out_at       # [noutputs] offset of each output in the output array, relative to the first
    int64_t axes[3]       # the transformed axes; the first items are -1 if there are fewer than three
    int64_t points[3]     # points of a tile along each of these axes, 1 for axis -1
    int64_t kind[3]       # Transform.kind of each of these axes
    int64_t rows          # tiles of the batch
    int64_t block, blocks # tiles of a task, and number of tile blocks
    int64_t *window_starts # [windows][nd] first input index that a tap window reads for the first tile
    int64_t *reads        # [windows][npoints] input offsets that a tap window reads, relative to the offset of the tile
    int64_t *reads_inside # [nd][2] positions [low, high) of a tile's first output at which all reads are inside the input
    int64_t *in_step      # [nd] input elements between consecutive positions
    int64_t *out_step     # [nd] output elements between consecutive positions
    int64_t depth         # depth of a point
    int64_t nchunks, span # depth chunks, and depth chunks that are transformed at once
    int64_t *chunks       # [nchunks][2]: first depth, depth
    int64_t chains_per_chunk
    int64_t *chains       # [nchunks][chains_per_chunk][4]: chunk, first depth in the chunk, depth, first depth in the point
    int64_t npanels, panel_block, panel_blocks
    int64_t *panels       # DirectClass.panels
    int64_t *pieces       # DirectClass.pieces
    int64_t *boxes        # DirectClass.boxes
    int64_t *inner        # DirectClass.inner
    int64_t npoints       # points of a tile
    int64_t *end_bits     # [npoints] bit 2n: the first point on axes[n]; bit 2n + 1: the last one; ALL_POINTS: always set
    bint sorted           # tiles of a kind are adjacent, and points that a kind does not need are left out
    int64_t *shown        # [npanels][nd][2] positions [low, high) at which some piece of a panel is inside the window
    int64_t *prefetch_from        # [npoints + 1] number of outputs of a tile that are prefetched before each point
    int64_t staged_panels # panels whose outputs are gathered for non-temporal stores; 0: outputs are stored at once
    int64_t *parts        # [panel_blocks][..][2], for each `staged_panels` panels: first run, end of runs
    int64_t *runs         # [..][3]: first column in the part, number of columns that are adjacent in the output, output offset
    bint point_major      # a point is multiplied for all panels before the next point; else a panel for all points
    bint separate_sums    # each panel of a task has separate sums
    int64_t lda           # elements between transformed rows
    size_t point_rows, point_sums  # bytes between the transformed rows of points, elements between the sums of points
    PackClass *pack       # packed weights, whose rows are (point, tap window, in-channel)
    int64_t first_task, ntasks

cdef struct WinogradTask:
    # A task: m tiles and panels [p0, p1) of one class and channel group, with its operands and the regions of the workspace.
    WinogradClass *c
    char *src
    char *dst
    char *weights
    char *bias
    char *source          # the filter of the channel group, if the task packs weights on the fly; else NULL
    char *packed_panel    # weights packed on the fly: all points of a panel, on AMX one point
    char *widened_taps    # taps before their transform
    int64_t next_panel, next_depth  # panel and first depth that are packed next
    char *refused         # flag: `direct` must repeat the call
    int64_t m, p0, p1     # number of tiles; panels [p0, p1)
    int64_t start, end    # depth chunks [start, end) that are transformed
    int64_t *places       # [m][WINOGRAD_PLACE + nd] places of the tiles (see `locate_tiles`)
    int64_t nkinds        # kinds of tiles that the task has
    int64_t kind_start[WINOGRAD_KINDS + 1] # first tile of each kind, and the end
    int64_t left_out[WINOGRAD_KINDS]    # points of the panel that a kind leaves out, as bits of `end_bits`
    char *a               # transformed rows
    char *sums            # products
    void **sum_rows       # for each tile, the address of its sums of the first point of the first panel
    char *stage           # outputs gathered for non-temporal stores, or NULL
    char *zeros           # a row of zeros
    char *minus_zeros     # a row of -0.0
    char *check           # not zero if some output is not finite
    char *tile_buffer     # an input tile before its transform, or outputs before they are stored in pieces
    char *intermediate    # intermediate results of transforms of three axes


cdef class WinogradPlan(DirectPlan):
    cdef WinogradRecipe winograd_recipe
    cdef WinogradClass *winograd
    cdef Py_ssize_t nwinograd
    cdef bint prefetches  # tasks prefetch input tiles, because L2 does not hold the input
    cdef size_t[REGION_COUNT] regions  # offsets of the workspace regions

    cdef void locate_tiles(self, WinogradClass *c, int64_t t0, int64_t m, int64_t *place) noexcept nogil
    cdef void sort_tiles(self, WinogradTask *t, int64_t *unsorted) noexcept nogil
    cdef void mark_left_out(self, WinogradTask *t, int64_t p) noexcept nogil
    cdef void transform_tile(self, const WinogradTask *t, int64_t chunk, int64_t r) noexcept nogil
    cdef void zero_outside_inputs(self, const WinogradTask *t, int64_t *place, int64_t *first_in,
                                  const void **rows) noexcept nogil
    cdef int64_t tile_ranges(self, const WinogradTask *t, int64_t q, int64_t *ranges) noexcept nogil
    cdef void multiply_panel(self, WinogradTask *t, int64_t p, int64_t *chain, int64_t *end) noexcept nogil
    cdef void multiply_point(self, const WinogradTask *task, int64_t p, int64_t q, int64_t *chain, int64_t *last) noexcept nogil
    cdef void prefetch_outputs(self, const WinogradTask *t, int64_t *panel, int64_t first, int64_t last,
                               int64_t q) noexcept nogil
    cdef void finish_panel(self, const WinogradTask *t, int64_t p) noexcept nogil
    cdef void finish_tile(self, const WinogradTask *t, int64_t p, int64_t r, char *stage) noexcept nogil
    cdef void write_stage(self, const WinogradTask *t, int64_t first, int64_t last) noexcept nogil
    cdef bint stores_vectors(self, int64_t *panel) noexcept nogil
    cdef bint shows(self, WinogradClass *c, int64_t *box, int64_t *place, int64_t n) noexcept nogil
