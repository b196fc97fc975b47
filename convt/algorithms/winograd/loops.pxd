# Winograd's loops: see loops.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Call
from convt.algorithms.direct.loops cimport DirectPlan
from convt.algorithms.packing cimport PackClass
from convt.algorithms.winograd.weights cimport WinogradRecipe

cdef enum:
    WINOGRAD_MOST = 216  # points of a tile, of three axes of six
    WINOGRAD_CHAIN = 128  # depth of a chain of sums where two axes or more are transformed, whose errors add up to larger ones
    WINOGRAD_PLACE = 4  # numbers of where a tile is, before its place on each axis: see `locate_tiles`
    WINOGRAD_AHEAD = 2  # tiles from the one that is transformed to the one whose window is prefetched
    WINOGRAD_KINDS = 27  # of tiles: the first, the last, or between on each of three axes
    ALL_POINTS = 64  # a bit that all of them have, beside those of three axes
    WINOGRAD_BRIDGE = 4  # fewer tiles than these between two stretches are multiplied in vain, which costs no more than a cut there

cdef enum:  # regions of a thread's workspace
    ROWS, SUMS, LINES, STAGE, WHERE, UNSORTED, ZEROS, NOTHING, CHECK, WINDOW, BETWEEN, PANEL, REGION_COUNT

cdef struct WinogradClass:
    int64_t *tiles        # [nd] tiles along each axis
    int64_t *outputs      # [nd] outputs of a tile along each axis
    int64_t noutputs      # of a tile
    int64_t depth_outputs # of them along the first of three axes
    int64_t plane         # and along the others
    int64_t *out_j        # [noutputs][nd] where each is, from the first
    int64_t *out_at       # [noutputs] offset in the output from the first
    int64_t axes[3]       # the transformed axes, -1 before them where there are fewer than three
    int64_t points[3]     # points of a tile along each of them, 1 where -1
    int64_t kind[3]
    int64_t rows          # tiles of the batch
    int64_t block, blocks
    int64_t *split_in     # [..][nd] first input index of each split's window at the first tile
    int64_t *reads        # [..][npoints] offset in the input of what each split reads, from the tile's own
    int64_t *whole        # [nd][2] first and one past the last output at which a tile reads inside the input only
    int64_t *in_step      # [nd] elements of the input from an output's to the next one's
    int64_t *out_step     # [nd] and of the output
    int64_t depth         # of a point
    int64_t nchunks, span # depth chunks, and how many of them are transformed at once
    int64_t *chunks       # [nchunks][2]: first depth, depth
    int64_t chains        # sums of a chunk, added up
    int64_t *links        # [nchunks][chains][4]: chunk, first depth in it, depth, first depth of all
    int64_t npanels, panel_block, panel_blocks
    int64_t *panels       # as of DirectClass
    int64_t *pieces
    int64_t *boxes
    int64_t *inner
    int64_t npoints
    int64_t *ends         # [npoints] on which axes it is the first, and the last: a bit each, and ALL_POINTS
    bint sorted           # whether tiles at the ends of an axis lie side by side, and some points of them are left out
    int64_t *shown        # [npanels][nd][2] as boxes, but where some piece is shown
    int64_t *prefetch_from        # [npoints + 1] so many outputs are prefetched before each point
    int64_t staged        # panels whose outputs are gathered before non-temporal stores write them, 0: each is stored where it belongs
    int64_t *parts        # [panel_blocks][..][2] of so many panels each: first run, one past the last
    int64_t *runs         # [..][3]: first column of the part, columns that are adjacent in the output, its offset
    bint across           # a point of all panels after the other, instead of a panel of all points
    bint apart            # panels have sums of their own
    int64_t lda           # elements between the transformed rows of tiles
    size_t point_rows, point_sums  # bytes between the points of the transformed rows, elements between those of the sums
    PackClass *pack       # its taps are (point, window)
    int64_t first_task, ntasks


cdef struct WinogradTask:
    WinogradClass *c
    char *src
    char *dst
    char *weights
    char *bias
    char *source          # as of DirectTask
    char *panel           # of all points, or of one on AMX
    char *filter          # taps on their way to the transform,
    int64_t next_panel, next_depth  # those that come next
    char *refused
    int64_t m, p0, p1     # tiles, and panels
    int64_t start, end    # depth chunks that are transformed
    int64_t *where        # [m][WINOGRAD_PLACE + nd]
    int64_t nkinds
    int64_t first[WINOGRAD_KINDS + 1]   # tile of a kind, and the end
    int64_t left_out[WINOGRAD_KINDS]    # which of the panel's points, as bits of `ends`
    char *a               # transformed rows
    char *sums
    void **lines          # for each tile, where its sums of the first panel's first point begin
    char *stage           # outputs that non-temporal stores will write, or NULL
    char *zeros           # a row of them
    char *nothing         # zeros with a sign
    char *check
    char *window          # a window on its way to the transform, outputs to the store
    char *between         # the transforms of three axes


cdef class WinogradPlan(DirectPlan):
    cdef WinogradRecipe winograd_recipe
    cdef WinogradClass *winograd
    cdef Py_ssize_t nwinograd
    cdef bint prefetches  # windows ahead, of an input that L2 does not hold
    cdef size_t[REGION_COUNT] regions  # where they begin

    cdef void locate_tiles(self, WinogradClass *c, int64_t t0, int64_t m, int64_t *where) noexcept nogil
    cdef void sort_tiles(self, WinogradTask *t, int64_t *unsorted) noexcept nogil
    cdef void leave_points(self, WinogradTask *t, int64_t p) noexcept nogil
    cdef void transform_tile(self, const WinogradTask *t, int64_t chunk, int64_t r) noexcept nogil
    cdef void leave_out(self, const WinogradTask *t, int64_t *where, int64_t *first_in, const void **rows) noexcept nogil
    cdef int64_t stretches(self, const WinogradTask *t, int64_t q, int64_t *stretch) noexcept nogil
    cdef void multiply_panel(self, WinogradTask *t, int64_t p, int64_t *link, int64_t *end) noexcept nogil
    cdef void multiply_point(self, const WinogradTask *task, int64_t p, int64_t q, int64_t *link, int64_t *last) noexcept nogil
    cdef void prefetch(self, const WinogradTask *t, int64_t *panel, int64_t first, int64_t last, int64_t q) noexcept nogil
    cdef void finish_panel(self, const WinogradTask *t, int64_t p) noexcept nogil
    cdef void finish_tile(self, const WinogradTask *t, int64_t p, int64_t r, char *stage) noexcept nogil
    cdef void empty_stage(self, const WinogradTask *t, int64_t first, int64_t last) noexcept nogil
    cdef bint stores_vectors(self, int64_t *panel) noexcept nogil
    cdef bint shows(self, WinogradClass *c, int64_t *box, int64_t *where, int64_t n) noexcept nogil
