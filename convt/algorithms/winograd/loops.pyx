# cython: language_level=3
"""The loops of `winograd`: Winograd transforms around one GEMM per point.

Untransformed classes run in DirectPlan. A class is divided into tiles of m outputs per transformed axis. An axis that is not
transformed has tiles of one output. Phases with more taps than the transform takes have several tap windows, which the GEMM
sums as depth. A task is a block of tiles x a panel block (`compute`):

    for each span of depth chunks:
        for each chunk, for each tile: transform its input tile; row t of GEMM q is point q of tile t    -> `rows`
        unless `point_major`: for each panel: for each point: products = rows x weights                  -> `sums`
        if `point_major`:     for each point: for each panel: products = rows x weights                  -> `sums`
        after the last span, for each panel, for each tile: transform the products back, add the bias, apply the activation,
            and store, or gather outputs for non-temporal stores                                         -> `stage`

Tasks write disjoint outputs. Each thread has its own workspace with the regions of schedule.book. Only AMX uses `point_major`,
which keeps the rows of a point in L2 for all panels.

Only the first output of a tile needs point 0 of an axis, and only the last output needs infinity. If such an output is outside
the window, the GEMM leaves out the point. Tiles at the ends of an axis are therefore sorted to be adjacent, so that the rows of
a GEMM are a few ranges of tiles.

The output transform adds every output times 0 to `check`. If `check` is not zero, some output is not finite, and the task sets
`refused`: `direct` then repeats the call.
"""

import itertools
import math

import numpy as np

from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

from convt._base.problem import ITEMSIZE
from convt._core cimport Call
from convt._model import machine
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_LDA,
    CONVT_LEAKY,
    convt_act,
    convt_kernels,
    convt_prefetch_row_l2,
    convt_quotient,
    convt_tile,
    convt_wino_in,
    convt_wino_out,
)
from convt._run.memory cimport keep_table, round64, structures
from convt.algorithms.direct.loops cimport DirectPlan
from convt.algorithms.direct.tables import columns
from convt.algorithms.indexing cimport Cut, Grid, cut_at, cut_evenly, open_grid, take_index, take_task
from convt.algorithms.packing cimport PackClass
from convt.algorithms.winograd.transforms import KINDS
from convt.algorithms.winograd.weights cimport WinogradRecipe

cnp.import_array()

CHAIN, BRIDGE, PLACE = MOST_CHAIN, LEAST_GAP, POSITION


cdef enum:
    MOST_POINTS = 216  # the most points of a tile: six on each of three axes
    MOST_CHAIN = 128  # the most depth of a chain if two or more axes are transformed, which amplifies rounding errors
    AHEAD = 2  # while tile r is transformed, the input tile r + AHEAD is prefetched
    TILE_KINDS = 27  # kinds of tiles: first, last or between on each of three axes
    ALL_POINTS = 64  # a bit of `end_bits` that every point has; bits 0 to 5 are those of three axes
    LEAST_GAP = 4  # a gap of fewer tiles is multiplied and its products ignored: cheaper than another kernel call


cdef enum:  # the numbers of a place: where a tile of a task is
    IN        # offset of its first input
    OUT       # offset of its first output
    EDGE      # 1 if some output is outside the window
    INSIDE    # 1 if all its inputs are inside the input
    POSITION  # position of its first output on each axis


cdef struct Regions:
    # Offsets of the regions of a thread's workspace, in the order of schedule.book.
    size_t rows, sums, sum_rows, stage, places, check, tile_buffer, intermediate, packed_panel


cdef struct Panel:
    # A row of DirectClass.panels.
    int64_t columns, adjacent, out, first_piece, end_piece


cdef struct Chain:
    # A part of a depth chunk that is summed alone: its chunk, first depth in the chunk, depth, first depth in the point.
    int64_t chunk, first, depth, at


cdef struct WinogradClass:
    # One transformed class: a run per axis, in all channel groups.
    int64_t *tiles        # [nd] tiles along each axis
    int64_t *outputs      # [nd] outputs of a tile along each axis
    int64_t noutputs      # outputs of a tile
    int64_t *out_j        # [noutputs][nd] position of each output, relative to the first
    int64_t *out_at       # [noutputs] offset of each output in the output array, relative to the first
    int64_t axes[3]       # the transformed axes; the first items are -1 if there are fewer than three
    int64_t points[3]     # points of a tile along each of these axes, 1 for axis -1
    int64_t kind[3]       # Transform.kind of each of these axes
    int64_t npoints       # points of a tile
    int64_t depth_outputs # outputs of a tile along axes[0], 1 for axis -1
    int64_t plane         # outputs of a tile along the other axes
    int64_t *point_j      # [npoints][nd] position of each point's input, relative to the first
    int64_t *end_bits     # [npoints] bit 2n: the first point on axes[n]; bit 2n + 1: the last one; ALL_POINTS: always set
    bint sorted           # tiles of a kind are adjacent, and points that a kind does not need are left out
    Grid tasks            # the tiles of the batch and the panels of tasks
    int64_t *window_starts # [windows][nd] first input index that a tap window reads for the first tile
    int64_t *reads        # [windows][npoints] input offsets that a tap window reads, relative to the offset of the tile
    int64_t *reads_inside # [nd][2] positions [low, high) of a tile's first output at which all reads are inside the input
    int64_t *in_step      # [nd] input elements between consecutive positions
    int64_t *out_step     # [nd] output elements between consecutive positions
    int64_t depth         # depth of a point
    int64_t step          # depth of a depth chunk; the last one may have less
    int64_t nchunks, span # depth chunks, and depth chunks that are transformed at once
    int64_t chains_per_chunk
    Chain *chains         # the chains of all chunks
    Panel *panels
    int64_t *pieces       # DirectClass.pieces
    int64_t *boxes        # DirectClass.boxes
    int64_t *inner        # DirectClass.inner
    int64_t *shown        # [panel][nd][2] positions [low, high) at which some piece of a panel is inside the window
    int64_t staged_panels # panels whose outputs are gathered for non-temporal stores; 0: outputs are stored at once
    bint point_major      # a point is multiplied for all panels before the next point; else a panel for all points
    bint separate_sums    # each panel of a task has separate sums
    int64_t lda           # elements between transformed rows
    size_t point_rows, point_sums  # bytes between the transformed rows of points, elements between the sums of points
    PackClass *pack       # packed weights, whose rows are (point, tap window, in-channel)


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
    char *refused         # flag: `direct` must repeat the call
    int64_t t0, m         # first tile and number of tiles
    int64_t p0, p1        # panels [p0, p1)
    int64_t start, end    # depth chunks [start, end) that are transformed
    int64_t *places       # [m][POSITION + nd] places of the tiles
    int64_t nkinds        # kinds of tiles that the task has
    int64_t kind_start[TILE_KINDS + 1] # first tile of each kind, and the end
    int64_t left_out[TILE_KINDS]    # points of the panel that a kind leaves out, as bits of `end_bits`
    char *a               # transformed rows
    char *sums            # products
    void **sum_rows       # for each tile, the address of its sums of the first point of the first panel
    char *stage           # outputs gathered for non-temporal stores
    char *check           # not zero if some output is not finite
    char *tile_buffer     # an input tile before its transform, or outputs before they are stored in pieces
    char *intermediate    # intermediate results of transforms of three axes


cdef struct PointTiles:
    # The GEMM of point q and panel p, one chain of its depth at a time.
    int64_t p, q
    int64_t ranges[2 * TILE_KINDS]  # ranges [first, end) of the tiles that need the point
    int64_t nranges
    char *products        # sums of the first tile
    char *a               # rows of the chain, of the first tile
    bint first            # the first chain, which starts from zero
    bint together         # one kernel call computes all register tiles of a height
    bint prefetches_outputs
    const char *next_source  # part of the filter that is packed next, on AMX
    convt_tile tile


cdef class WinogradPlan(DirectPlan):
    """A plan of `winograd`. The tasks of untransformed classes come first and run in DirectPlan."""

    cdef WinogradRecipe winograd_recipe
    cdef WinogradClass *winograd
    cdef Regions region
    cdef const char *zeros  # a row of zeros
    cdef const char *minus_zeros  # a row of -0.0
    cdef bint reads_in_place  # transforms read the input in place, because channels are contiguous and have the type of sums
    cdef bint stores_vectors  # the output transform can store whole vectors and apply the activation
    cdef bint prefetches  # tasks prefetch input tiles, because L2 does not hold the input

    def __init__(self, schedule, WinogradRecipe recipe, in_strides, out_strides, execution, direct, classes, tiles):
        """Fill in the structures from ``direct``, the tables of untransformed classes, and ``classes`` (bind.py).

        ``tiles`` is the `Tiles` of direct/bind.py.
        """
        self.open_direct(schedule.problem, recipe, in_strides, out_strides, execution, direct, tiles)
        self.winograd_recipe = recipe
        cdef const convt_kernels *k = self.k
        cdef WinogradClass *w
        cdef int64_t n
        self.reads_in_place = k.direct_store and self.in_c == 1
        self.stores_vectors = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        self.prefetches = schedule.prefetches and self.reads_in_place
        self.zeros = keep_row(self.keep, 0.0, k)
        self.minus_zeros = keep_row(self.keep, -0.0, k)
        for n, (_, offset, _) in enumerate(schedule.workspace.regions):
            (&self.region.rows)[n] = offset
        self.winograd = <WinogradClass *>cnp.PyArray_DATA(structures(self.keep, len(classes), sizeof(WinogradClass)))
        for n, (c, runs, offsets, pack) in enumerate(classes):
            w = &self.winograd[n]
            set_tiles(w, self.keep, schedule.problem, c, runs, offsets, in_strides, out_strides)
            self.tasks = set_gemm(w, self.keep, schedule, c, runs, out_strides, self.tasks)
            w.pack = &recipe.classes[<Py_ssize_t>pack]
            w.staged_panels = c.staged_panels if self.stores_vectors else 0
            self.works.append((c.cut.cycles, w.tasks.tasks))
        self.equal_tasks = False
        self.workspace = max(self.workspace, self.region.packed_panel)
        if self.packing_workspace:
            self.packing_workspace = max(self.packing_workspace, schedule.workspace.bytes - self.region.packed_panel)
            self.packing_workspace += round64(recipe.stage_bytes)

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task, unless another task found values that need a direct sum, because the call is then repeated."""
        cdef WinogradTask t
        if task < self.direct_tasks:
            DirectPlan.run_task(self, task, call, ws)
        elif not convt_is_set(call.refused):
            self.open_winograd(&t, task, call, ws)
            place_tiles(self, &t)
            compute(self, &t)

    cdef void open_winograd(self, WinogradTask *t, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Set the tiles, the panels, the operands and the regions of a task."""
        cdef const convt_kernels *k = self.k
        cdef const Regions *at = &self.region
        cdef WinogradClass *c = self.winograd
        cdef int64_t group, r
        while task >= c.tasks.first_task + c.tasks.tasks:
            c += 1
        t.c, t.refused, group = c, call.refused, take_task(&c.tasks, task, &t.t0, &t.m, &t.p0, &t.p1)
        t.src = call.src + group * self.ci * self.in_c * k.s_size
        t.dst = call.dst + group * self.co * self.out_c * k.s_size
        t.bias = call.bias + c.pack.bias + group * c.pack.group_bias
        t.weights = call.weights + c.pack.weights + group * c.pack.group_weights
        t.source = call.source + group * self.recipe.sg if call.source != NULL else NULL
        t.packed_panel = ws + round64(self.workspace)
        t.widened_taps = t.packed_panel + self.packing_workspace - round64(self.winograd_recipe.stage_bytes)
        t.a, t.sums, t.sum_rows, t.stage = ws + at.rows, ws + at.sums, <void **>(ws + at.sum_rows), ws + at.stage
        t.places, t.check, t.tile_buffer = <int64_t *>(ws + at.places), ws + at.check, ws + at.tile_buffer
        t.intermediate = ws + at.intermediate
        for r in range(t.m):
            t.sum_rows[r] = t.sums + r * k.nr * k.t_size
        memset(t.check, 0, k.nr * k.t_size)


# ---------------------------------------------------------------- tables


cdef const char *keep_row(list keep, value, const convt_kernels *k):
    """Append a row of equal values, aligned to cache lines, to the list ``keep``, which keeps it alive; return its address."""
    values = np.full(k.lda + 16, value, np.float64 if k.t_size == 8 else np.float32)
    keep.append(values)
    return <const char *>round64(<size_t>cnp.PyArray_DATA(values))


def dot(position, steps):
    """Return the offset of a position."""
    return sum(map(math.prod, zip(position, steps, strict=True)))


cdef set_tiles(WinogradClass *w, list keep, problem, c, runs, offsets, in_strides, out_strides):
    """Set the tiles of a transformed class, and where they read and write.

    ``c`` is a schedule.Class. ``runs`` has a run on each axis, ``offsets`` those of its phase group.
    """
    cdef int64_t ax
    scheme, size = [KINDS[kind] for kind in c.scheme], ITEMSIZE[problem.dtype]
    outputs, points = [t.outputs for t in scheme], [t.points for t in scheme]
    tiles = [-(-run.count // n) for run, n in zip(runs, outputs, strict=True)]
    axes = [(ax, t.points, t.kind, t.outputs) for ax, t in enumerate(scheme) if t.kind]
    axes = [(-1, 1, 0, 1)] * (3 - len(axes)) + axes
    for ax in range(3):
        w.axes[ax], w.points[ax], w.kind[ax], _ = axes[ax]
    w.npoints, w.noutputs, w.depth_outputs = math.prod(points), math.prod(outputs), axes[0][3]
    w.plane = w.noutputs // w.depth_outputs
    ends = [[(p == 0) | (p == n - 1) << 1 for p in range(n)] if n > 1 else [0] for _, n, *_ in axes]
    w.end_bits = keep_table(keep, [ALL_POINTS | z | y << 2 | x << 4 for z, y, x in itertools.product(*ends)])
    # Products of positions and strides must not overflow: an axis of one input or output may have any stride, and an input tile
    # outside the input may start anywhere.
    ins = [stride // size if n > 1 else 0 for stride, n in zip(in_strides[1:problem.rank + 1], problem.in_sizes, strict=True)]
    outs = [s * (stride // size) if run.count > 1 else 0
            for s, stride, run in zip(problem.strides, out_strides[1:problem.rank + 1], runs, strict=True)]
    starts = [
        [max(-t.outputs * count - t.points, min(run.start - off, n)) for off in offs[:: t.taps]]  # adjacent if transformed
        for run, offs, t, count, n in zip(runs, offsets, scheme, tiles, problem.in_sizes, strict=True)
    ]
    windows, positions = list(itertools.product(*starts)), list(itertools.product(*map(range, outputs)))
    inputs = list(itertools.product(*map(range, points)))
    reads = [dot(position, ins) for position in inputs]
    w.tiles, w.outputs, w.out_j = keep_table(keep, tiles), keep_table(keep, outputs), keep_table(keep, positions)
    w.point_j = keep_table(keep, inputs)
    w.out_at = keep_table(keep, [dot(position, outs) for position in positions])
    w.in_step, w.out_step, w.window_starts = keep_table(keep, ins), keep_table(keep, outs), keep_table(keep, windows)
    w.reads = keep_table(keep, [dot(first, ins) + read for first in windows for read in reads])
    w.reads_inside = keep_table(keep, [
        (-min(first), n - max(first) - count + 1) for first, n, count in zip(starts, problem.in_sizes, points, strict=True)
    ])
    w.inner = keep_table(keep, [run.inner for run in runs])


cdef set_gemm(WinogradClass *w, list keep, schedule, c, runs, out_strides, int64_t first_task):
    """Set the rows, depth and columns of the GEMMs of a transformed class, and its tasks. Return the number of the next task."""
    cdef int64_t n, first
    problem, cut, unit = schedule.problem, c.cut, machine.current().info(schedule.problem.dtype, schedule.unit)
    w.lda, w.point_rows, w.point_sums = c.strides
    w.depth, w.sorted = c.depth, c.sorted
    w.nchunks, w.step, w.span, w.point_major = -(-c.depth // c.step), c.step, cut.span, cut.point_major
    w.separate_sums = w.point_major or w.span < w.nchunks
    w.chains_per_chunk = -(-w.step // c.chain)
    chains = []
    for n in range(w.nchunks):
        depth = min(w.step, c.depth - n * w.step)
        cuts = [part * depth // w.chains_per_chunk for part in range(w.chains_per_chunk + 1)]
        chains += [(n, first, last - first, n * w.step + first) for first, last in itertools.pairwise(cuts)]
    w.chains = <Chain *>keep_table(keep, chains)
    panels, pieces, boxes = columns(problem, runs, [s // ITEMSIZE[problem.dtype] for s in out_strides], unit)
    w.panels, w.pieces, w.boxes = <Panel *>keep_table(keep, panels), keep_table(keep, pieces), keep_table(keep, boxes)
    shown, there = np.zeros((len(panels), problem.rank, 2), np.int64), panels[:, 3] < panels[:, 4]
    if there.any():
        shown[there, :, 0] = np.minimum.reduceat(pieces[:, 3::2], panels[there, 3])
        shown[there, :, 1] = np.maximum.reduceat(pieces[:, 4::2], panels[there, 3])
    w.shown = keep_table(keep, shown)
    return open_grid(&w.tasks, c.rows, len(panels), cut, problem.groups, first_task)


# ---------------------------------------------------------------- tasks


cdef void compute(WinogradPlan plan, WinogradTask *t) noexcept nogil:
    """Compute a task in the loop order of the module docstring."""
    cdef WinogradClass *c = t.c
    cdef const convt_kernels *k = plan.k
    cdef Chain *chain
    cdef Chain *last
    cdef int64_t p, q, r, chunk
    t.end = 0
    while t.end < c.nchunks:
        t.start, t.end = t.end, min(c.nchunks, t.end + c.span)
        for chunk in range(t.start, t.end):
            for r in range(t.m):
                transform_tile(plan, t, chunk, r)
        chain, last = c.chains + t.start * c.chains_per_chunk, c.chains + t.end * c.chains_per_chunk
        if c.point_major:
            for q in range(c.npoints):
                for p in range(t.p0, t.p1):
                    multiply_point(plan, t, p, q, chain, last)
        for p in range(t.p0, t.p1):
            if not c.point_major:
                multiply_panel(plan, t, p, chain, last)
            if t.end == c.nchunks:
                finish_panel(plan, t, p)
    if not k.finite(t.check, k.vl * k.t_size):
        convt_set(t.refused)
    if plan.non_temporal or c.staged_panels:
        k.fence()


cdef inline int64_t *place_of(WinogradPlan plan, const WinogradTask *t, int64_t r) noexcept nogil:
    """Return the place of tile ``r`` of a task."""
    return t.places + r * (POSITION + plan.nd)


cdef void locate_tile(WinogradPlan plan, const WinogradTask *t, int64_t r, int64_t *place) noexcept nogil:
    """Set the place of tile ``r`` of a class."""
    cdef WinogradClass *c = t.c
    cdef int64_t ax, j
    place[IN], place[OUT], place[EDGE], place[INSIDE] = 0, 0, 0, 1
    for ax in range(plan.nd - 1, -1, -1):
        j = take_index(&r, c.tiles[ax]) * c.outputs[ax]
        place[POSITION + ax] = j
        place[IN] += j * c.in_step[ax]
        place[OUT] += j * c.out_step[ax]
        place[EDGE] |= j < c.inner[2 * ax] or j + c.outputs[ax] > c.inner[2 * ax + 1]
        place[INSIDE] &= c.reads_inside[2 * ax] <= j < c.reads_inside[2 * ax + 1]
    place[IN] += r * plan.in_n
    place[OUT] += r * plan.out_n


cdef int64_t end_of_axis(const WinogradClass *c, int64_t n, const int64_t *place) noexcept nogil:
    """Return 0 if a tile is the first one on the n-th transformed axis, 2 if it is only the last one, else 1."""
    cdef int64_t ax = c.axes[n], j = place[POSITION + ax]
    return 0 if j == 0 else 2 if j == (c.tiles[ax] - 1) * c.outputs[ax] else 1


cdef int64_t kind_of(const WinogradClass *c, const int64_t *place) noexcept nogil:
    """Return the kind of a tile: whether it is the first, the last, or between on each transformed axis.

    Consecutive kinds differ on one axis. All tiles of a class that is not sorted are of one kind.
    """
    cdef int64_t kind = 0, n, at
    for n in range(3 if c.sorted else 0):
        at = end_of_axis(c, n, place) if c.axes[n] >= 0 else 0
        kind = 3 * kind + (2 - at if kind & 1 else at)
    return kind


cdef void place_tiles(WinogradPlan plan, WinogradTask *t) noexcept nogil:
    """Set the places of the tiles so that tiles of a kind are adjacent, and where each kind begins."""
    cdef int64_t n, r, kind, total = 0
    cdef int64_t next_index[TILE_KINDS]
    cdef int64_t *place = place_of(plan, t, t.m)  # the region has room for one more
    memset(next_index, 0, sizeof(next_index))
    for r in range(t.t0, t.t0 + t.m):
        locate_tile(plan, t, r, place)
        next_index[kind_of(t.c, place)] += 1
    t.nkinds, t.left_out[0] = 0, 0
    for kind in range(TILE_KINDS):
        n, next_index[kind] = next_index[kind], total
        if n:
            t.kind_start[t.nkinds] = total
            t.nkinds += 1
        total += n
    t.kind_start[t.nkinds] = total
    for r in range(t.t0, t.t0 + t.m):
        locate_tile(plan, t, r, place)
        kind = kind_of(t.c, place)
        memcpy(place_of(plan, t, next_index[kind]), place, (POSITION + plan.nd) * sizeof(int64_t))
        next_index[kind] += 1


# ---------------------------------------------------------------- input transform


cdef void transform_tile(WinogradPlan plan, const WinogradTask *t, int64_t chunk, int64_t r) noexcept nogil:
    """Transform the depth chunk of tile ``r`` to its row of each point's GEMM, in the region `rows`, a tap window at a time."""
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef int64_t *place = place_of(plan, t, r)
    cdef const int64_t *ahead = NULL
    cdef int64_t ci_p = plan.recipe.ci_p, k0 = chunk * c.step, end = min(c.depth, k0 + c.step), depth = k0
    cdef int64_t window = convt_quotient(k0, ci_p), first, last, cols, n, ax, i
    cdef char *a = t.a + (chunk - t.start) * c.npoints * c.point_rows + r * c.lda * k.e_size
    cdef const void *rows[MOST_POINTS]
    cdef const char *base
    if plan.prefetches and r + AHEAD < t.m and place_of(plan, t, r + AHEAD)[INSIDE]:
        ahead = place_of(plan, t, r + AHEAD)
    while depth < end:
        first = depth - window * ci_p
        last = min(ci_p, first + end - depth)
        cols = min(plan.ci, last) - first
        base = t.src + (place[IN] + first * plan.in_c) * k.s_size
        for n in range(c.npoints):
            rows[n] = base + c.reads[window * c.npoints + n] * k.s_size
        for n in range(0 if place[INSIDE] else c.npoints):
            for ax in range(plan.nd):
                i = c.window_starts[window * plan.nd + ax] + place[POSITION + ax] + c.point_j[n * plan.nd + ax]
                if i < 0 or i >= plan.in_size.p[ax]:
                    rows[n] = plan.zeros
        if ahead != NULL:
            base = t.src + (ahead[IN] + first * plan.in_c) * k.s_size
            for n in range(c.npoints):
                convt_prefetch_row_l2(base + c.reads[window * c.npoints + n] * k.s_size, cols * k.s_size)
        if not plan.reads_in_place:
            for n in range(c.npoints):
                if rows[n] != plan.zeros:
                    k.widen(t.tile_buffer + n * CONVT_LDA * k.t_size, 0, rows[n], 0, plan.in_c, 1, <int>cols, <int>cols)
                    rows[n] = t.tile_buffer + n * CONVT_LDA * k.t_size
        if not transform_points(plan, t, rows, a + (depth - k0) * k.e_size, <int>cols):
            convt_set(t.refused)
        depth += last - first
        window += 1


cdef bint transform_points(WinogradPlan plan, const WinogradTask *t, const void **rows, char *a, int cols) noexcept nogil:
    """Transform ``cols`` channels of an input tile, whose addresses are ``rows``. Return whether ``a`` can hold the results."""
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef int64_t n = c.points[1] * c.points[2], i, z
    cdef int ny = <int>c.points[1], nx = <int>c.points[2], representable = 1
    cdef const void *lines[6]
    cdef convt_wino_in w
    w.first, w.last = 0, cols
    if c.points[0] == 1:
        w.in_, w.out, w.out_y, w.out_x = rows, a, nx * c.point_rows, c.point_rows
        return k.wino_rows(ny, nx, &w)
    w.out_y, w.out_x = nx * CONVT_LDA * k.t_size, CONVT_LDA * k.t_size
    for z in range(c.points[0]):  # three axes: transform the last two axes into `intermediate`, then the first one
        w.in_, w.out = rows + z * n, t.intermediate + z * n * CONVT_LDA * k.t_size
        k.wino_in(ny, nx, &w)
    w.in_, w.out_y, w.out_x = lines, 0, n * c.point_rows
    for i in range(n):
        for z in range(c.points[0]):
            lines[z] = t.intermediate + (z * n + i) * CONVT_LDA * k.t_size
        w.out = a + i * c.point_rows
        representable &= k.wino_rows(1, <int>c.points[0], &w)
    return representable


# ---------------------------------------------------------------- products


cdef void multiply_panel(WinogradPlan plan, WinogradTask *t, int64_t p, Chain *chain, Chain *end) noexcept nogil:
    """Multiply all points of panel ``p``, for chains [chain, end) of their depth.

    On vectors, weights are packed on the fly one chain at a time for all points together: each tap is read once, and the points
    stay in L2 until they are multiplied. On AMX, `multiply_point` packs each point, because the rows fill L2.
    """
    cdef WinogradClass *c = t.c
    cdef Chain *last = end
    cdef int64_t q
    if c.panels[p].first_piece == c.panels[p].end_piece:
        return
    if c.sorted:
        mark_left_out(plan, t, p)
    while chain != end:
        if t.source != NULL and not plan.k.parts:
            last = chain + 1
            if plan.winograd_recipe.pack_all_points(c.pack, p, chain.at, chain.depth, t.source, t.packed_panel,
                                                    t.widened_taps):
                convt_set(t.refused)
        for q in range(c.npoints):
            multiply_point(plan, t, p, q, chain, last)
        chain = last


cdef void mark_left_out(WinogradPlan plan, WinogradTask *t, int64_t p) noexcept nogil:
    """Set for each kind of tiles the points that no output of panel ``p`` needs, as bits of `end_bits`."""
    cdef WinogradClass *c = t.c
    cdef int64_t kind, n, ax, low, high
    cdef const int64_t *place
    cdef const int64_t *shown
    for kind in range(t.nkinds):
        t.left_out[kind], place = 0, place_of(plan, t, t.kind_start[kind])
        for n in range(3):
            ax = c.axes[n]
            if ax < 0 or end_of_axis(c, n, place) == 1:
                continue
            low, shown = place[POSITION + ax], c.shown + (p * plan.nd + ax) * 2
            high = low + c.outputs[ax]
            t.left_out[kind] |= ((low < shown[0]) | (high > shown[1]) << 1) << 2 * n
            if low >= shown[1] or high <= shown[0]:
                t.left_out[kind] |= ALL_POINTS


cdef void multiply_point(WinogradPlan plan, WinogradTask *t, int64_t p, int64_t q, Chain *chain,
                         Chain *last) noexcept nogil:
    """Multiply point ``q`` of panel ``p``, for chains [chain, last) of its depth, with all tiles that need the point.

    Loop order: chains, ranges of tiles, register tiles. Products go to the region `sums`. At the first chain, the products of
    other tiles and of columns without weights are set to zero.
    """
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef Panel *panel = c.panels + p
    if panel.first_piece == panel.end_piece:
        return
    cdef int64_t width = convt_quotient(panel.columns + k.vl - 1, k.vl) * k.vl, nv = c.pack.widths[p * c.npoints + q]
    cdef int64_t columns = nv * k.vl, row = columns * k.e_size
    cdef char *weights = t.weights + (p * k.nr * c.pack.depth + q * c.depth * width) * k.e_size
    cdef char *next_weights = weights + (k.nr * c.pack.depth if c.point_major else c.depth * width) * k.e_size + chain.at * row
    cdef PointTiles g
    g.p, g.q, g.tile.row_offset = p, q, ((p - t.p0 if c.separate_sums else 0) * c.npoints + q) * c.point_sums
    g.products = t.sums + g.tile.row_offset * k.t_size
    if columns < width and chain == c.chains:
        k.widen(g.products + columns * k.t_size, k.nr, plan.zeros, 0, 0, <int>t.m, 0, <int>(width - columns))
    if nv == 0:
        return
    find_ranges(plan, t, &g)
    if chain == c.chains:
        zero_other_tiles(plan, t, &g, columns)
    g.prefetches_outputs = (t.end == c.nchunks and not plan.non_temporal and not c.staged_panels and not c.point_major
                            and plan.stores_vectors and panel.adjacent)
    g.tile.lda, g.tile.nv, g.tile.cols, g.tile.act = c.lda, <int>nv, <int>columns, &plan.none
    g.tile.stream, g.tile.narrow_dtype, g.tile.pending, g.tile.prefetch_step = 0, 0, NULL, 64
    g.tile.init, g.tile.init_ld = plan.minus_zeros, 0
    while chain != last:
        g.first, g.together = chain == c.chains, not g.prefetches_outputs and t.source == NULL and not k.parts
        g.a = t.a + ((chain.chunk - t.start) * c.npoints + q) * c.point_rows + chain.first * k.e_size
        g.tile.kc = <int>chain.depth
        g.tile.b = weights + chain.at * row
        g.tile.prefetch = weights + chain[1].at * row if chain + 1 != last else next_weights
        if t.source != NULL and not k.parts:
            g.tile.b = t.packed_panel + q * chain.depth * width * k.e_size
            g.tile.prefetch = <const char *>g.tile.b + chain.depth * width * k.e_size
        elif t.source != NULL:
            g.tile.b, g.tile.prefetch_step, g.next_source = t.packed_panel, plan.recipe.si * k.s_size, g.tile.prefetch
            if chain + 1 != last:
                g.next_source = plan.recipe.source_at(c.pack, p, q, chain[1].at, t.source)
            elif c.point_major:
                g.next_source = plan.recipe.source_at(c.pack, p + 1, q, c.chains[t.start * c.chains_per_chunk].at, t.source)
            if plan.winograd_recipe.pack_one_point(c.pack, p, q, chain.at, chain.depth, t.source, t.packed_panel):
                convt_set(t.refused)
        multiply_tiles(plan, t, &g)
        g.prefetches_outputs = False
        chain += 1


cdef void find_ranges(WinogradPlan plan, const WinogradTask *t, PointTiles *g) noexcept nogil:
    """Set the ranges of tiles that need a point. Ranges with a gap of fewer than LEAST_GAP tiles are joined."""
    cdef int64_t kind
    g.nranges = 0
    for kind in range(t.nkinds):
        if t.left_out[kind] & t.c.end_bits[g.q]:
            continue
        if g.nranges == 0 or t.kind_start[kind] - g.ranges[2 * g.nranges - 1] >= LEAST_GAP:
            g.ranges[2 * g.nranges] = t.kind_start[kind]
            g.nranges += 1
        g.ranges[2 * g.nranges - 1] = t.kind_start[kind + 1]


cdef void zero_other_tiles(WinogradPlan plan, const WinogradTask *t, PointTiles *g, int64_t columns) noexcept nogil:
    """Set the products of the tiles between the ranges to zero."""
    cdef const convt_kernels *k = plan.k
    cdef int64_t n, low, high
    for n in range(g.nranges + 1):
        low = g.ranges[2 * n - 1] if n else 0
        high = g.ranges[2 * n] if n < g.nranges else t.m
        if low < high:
            k.widen(g.products + low * k.nr * k.t_size, k.nr, plan.zeros, 0, 0, <int>(high - low), 0, <int>columns)


cdef void multiply_tiles(WinogradPlan plan, const WinogradTask *t, PointTiles *g) noexcept nogil:
    """Multiply the weights of a chain with the register tiles of all ranges."""
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef int64_t lines = convt_quotient(g.tile.kc, k.prefetch_interval), j, i, rows, count, r0, r1, done = 0
    cdef Cut by_tile
    for j in range(g.nranges):
        rows = g.ranges[2 * j + 1] - g.ranges[2 * j]
        count = convt_quotient(rows + k.mr[g.tile.nv] - 1, k.mr[g.tile.nv])
        by_tile = cut_evenly(rows, count, k.m_step)
        i = 0
        while i < count:
            r0, r1 = g.ranges[2 * j] + cut_at(&by_tile, i), g.ranges[2 * j] + cut_at(&by_tile, i + 1)
            g.tile.more_tiles = <int>((by_tile.taller if i < by_tile.taller else count) - i - 1) if g.together else 0
            g.tile.a, g.tile.rows = g.a + r0 * c.lda * k.e_size, t.sum_rows + r0
            if t.source != NULL and k.parts:
                g.tile.prefetch = (g.next_source + done % k.prefetch_interval * lines * g.tile.prefetch_step
                                   + done // k.prefetch_interval * 64)
            if not g.first:
                g.tile.init, g.tile.init_ld = g.products + r0 * k.nr * k.t_size, k.nr
            if g.prefetches_outputs:
                prefetch_outputs(plan, t, g, r0, r1)
            k.tile(<int>(r1 - r0), &g.tile)
            g.tile.prefetch += lines * 64 * (1 + g.tile.more_tiles)
            done += 1
            i += 1 + g.tile.more_tiles


cdef void prefetch_outputs(WinogradPlan plan, const WinogradTask *t, PointTiles *g, int64_t first, int64_t last) noexcept nogil:
    """Prefetch a part of the outputs of tiles [first, last) for a point; all points together prefetch all outputs."""
    cdef WinogradClass *c = t.c
    cdef Panel *panel = c.panels + g.p
    cdef int64_t n, r, size = plan.k.s_size
    for n in range(convt_quotient(g.q * c.noutputs, c.npoints), convt_quotient((g.q + 1) * c.noutputs, c.npoints)):
        for r in range(first, last):
            convt_prefetch_row_l2(t.dst + (place_of(plan, t, r)[OUT] + panel.out + c.out_at[n]) * size, panel.columns * size)


# ---------------------------------------------------------------- output transform


cdef void finish_panel(WinogradPlan plan, const WinogradTask *t, int64_t p) noexcept nogil:
    """Transform the products of panel ``p`` to outputs, tile by tile, and write the stage after its last panel.

    A panel that the window does not show has no outputs, but may be the last one of the stage.
    """
    cdef WinogradClass *c = t.c
    cdef int64_t n = p - t.p0, r
    cdef char *stage = NULL
    if c.staged_panels:
        n %= c.staged_panels
        stage = t.stage + n * plan.k.nr * plan.k.t_size
    for r in range(t.m if c.panels[p].first_piece < c.panels[p].end_piece else 0):
        finish_tile(plan, t, p, r, stage)
        stage += c.noutputs * c.staged_panels * plan.k.nr * plan.k.t_size
    if c.staged_panels and (p + 1 == t.p1 or n + 1 == c.staged_panels):
        write_stage(plan, t, p - n, p + 1)


cdef void finish_tile(WinogradPlan plan, const WinogradTask *t, int64_t p, int64_t r, char *stage) noexcept nogil:
    """Transform the products of tile ``r`` and panel ``p`` to outputs: to ``stage`` unless it is NULL, else to the output.

    Outputs that vectors cannot store go to `tile_buffer` first and are stored piece by piece.
    """
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef Panel *panel = c.panels + p
    cdef int64_t *place = place_of(plan, t, r)
    cdef int64_t *box = c.boxes + p * 2 * plan.nd
    cdef char *tile_out = t.dst + (place[OUT] + panel.out) * k.s_size
    cdef bint by_vectors = stage != NULL or (plan.stores_vectors and panel.adjacent), any_pieces = False, hidden
    cdef bint by_pieces[MOST_POINTS]  # outputs that are stored piece by piece
    cdef void *rows[MOST_POINTS]
    cdef convt_wino_out w
    cdef int64_t n
    for n in range(c.noutputs):
        hidden = place[EDGE] and stage == NULL and not shows(plan, t, box, place, n)
        by_pieces[n] = not by_vectors or (hidden and panel.end_piece - panel.first_piece > 1)
        any_pieces |= by_pieces[n]
        if stage != NULL:
            rows[n] = stage + n * c.staged_panels * k.nr * k.t_size
        elif by_pieces[n]:
            rows[n] = t.tile_buffer + n * k.nr * k.t_size
        elif hidden:
            rows[n] = NULL
        else:
            rows[n] = tile_out + c.out_at[n] * k.s_size
    w.check, w.act = t.check, &plan.act if by_vectors else &plan.none
    w.stream = plan.non_temporal and not any_pieces and not <size_t>(t.dst + panel.out * k.s_size) & (plan.non_temporal - 1)
    w.init, w.cols = t.bias + p * k.nr * k.t_size, <int>panel.columns
    w.in_ = t.sums + ((p - t.p0 if c.separate_sums else 0) * c.npoints * c.point_sums + r * k.nr) * k.t_size
    w.in_y, w.in_x, w.rows = c.points[2] * c.point_sums, c.point_sums, rows
    if c.points[0] == 1:
        k.wino_out(<int>c.kind[1], <int>c.kind[2], &w)
    else:
        transform_back(plan, t, &w)
    if any_pieces:
        store_pieces(plan, t, panel, place, by_pieces, &plan.none if by_vectors else &plan.act)


cdef void transform_back(WinogradPlan plan, const WinogradTask *t, const convt_wino_out *out) noexcept nogil:
    """Transform products along three axes: the last two axes into `intermediate`, then the first one."""
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef convt_wino_out w = out[0]
    cdef void *planes[MOST_POINTS]
    cdef void *line[6]
    cdef int64_t z, n
    for n in range(c.points[0] * c.plane):
        planes[n] = t.intermediate + n * k.nr * k.t_size
    w.act, w.stream, w.init = &plan.none, 0, plan.minus_zeros
    w.cols = <int>((out.cols + k.vl - 1) // k.vl * k.vl)
    for z in range(c.points[0]):
        w.in_ = <char *>out.in_ + z * c.points[1] * c.points[2] * c.point_sums * k.t_size
        w.rows = planes + z * c.plane
        k.wino_out(<int>c.kind[1], <int>c.kind[2], &w)
    w = out[0]
    w.in_x, w.rows = c.plane * k.nr, line
    for n in range(c.plane):
        w.in_ = t.intermediate + n * k.nr * k.t_size
        for z in range(c.depth_outputs):
            line[z] = out.rows[z * c.plane + n]
        k.wino_out(0, <int>c.kind[0], &w)


cdef void store_pieces(WinogradPlan plan, const WinogradTask *t, Panel *panel, int64_t *place, bint *by_pieces,
                       const convt_act *act) noexcept nogil:
    """Store those outputs of a tile in `tile_buffer` that are stored piece by piece."""
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef int64_t width = 3 + 2 * plan.nd, n, z
    cdef int64_t *piece
    cdef void *rows[MOST_POINTS]
    for n in range(panel.first_piece, panel.end_piece):
        piece = c.pieces + n * width
        for z in range(c.noutputs):
            rows[z] = NULL
            if by_pieces[z] and (not place[EDGE] or shows(plan, t, piece + 3, place, z)):
                rows[z] = t.dst + (place[OUT] + piece[2] + c.out_at[z]) * k.s_size
        k.store(rows, plan.out_c, t.tile_buffer + piece[0] * k.t_size, k.nr, <int>c.noutputs, <int>piece[1], act)


cdef void write_stage(WinogradPlan plan, const WinogradTask *t, int64_t first, int64_t last) noexcept nogil:
    """Write the gathered outputs of panels [first, last), pixel by pixel of each tile, with non-temporal stores.

    Pieces that are adjacent in the output are copied together.
    """
    cdef const convt_kernels *k = plan.k
    cdef WinogradClass *c = t.c
    cdef int64_t width = 3 + 2 * plan.nd, r, n, p, q, at, out, copied_at, copied_out, count
    cdef const int64_t *piece
    cdef int64_t *place
    cdef const char *stage = t.stage
    cdef char *dst
    for r in range(t.m):
        place = place_of(plan, t, r)
        for n in range(c.noutputs):
            dst, copied_at, copied_out, count = t.dst + (place[OUT] + c.out_at[n]) * k.s_size, 0, 0, 0
            for p in range(first, last):
                for q in range(c.panels[p].first_piece, c.panels[p].end_piece):
                    piece = c.pieces + q * width
                    if place[EDGE] and not shows(plan, t, piece + 3, place, n):
                        continue
                    at, out = (p - first) * k.nr + piece[0], piece[2]
                    if at - copied_at != count or out - copied_out != count:
                        k.copy_non_temporal(dst + copied_out * k.s_size, stage + copied_at * k.t_size, count * k.t_size)
                        copied_at, copied_out, count = at, out, 0
                    count += piece[1]
            k.copy_non_temporal(dst + copied_out * k.s_size, stage + copied_at * k.t_size, count * k.t_size)
            stage += c.staged_panels * k.nr * k.t_size


cdef bint shows(WinogradPlan plan, const WinogradTask *t, const int64_t *box, const int64_t *place, int64_t n) noexcept nogil:
    """Check whether the n-th output of a tile is inside a box, [low, high) per axis."""
    cdef int64_t ax, j
    for ax in range(plan.nd):
        j = place[POSITION + ax] + t.c.out_j[n * plan.nd + ax]
        if j < box[2 * ax] or j >= box[2 * ax + 1]:
            return False
    return True
