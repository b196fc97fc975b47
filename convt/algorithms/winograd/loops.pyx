# cython: language_level=3
"""The loops of `winograd`: Winograd transforms around one GEMM per point.

`WinogradPlan` runs the tables that bind.py makes; untransformed classes run in DirectPlan. A class is divided into tiles of m
outputs per transformed axis. An axis that is not transformed has tiles of one output. Phases with more taps than the transform
takes have several tap windows, which the GEMM sums as depth. A task is a block of tiles x a panel block:

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

from libc.stdint cimport int64_t
from libc.string cimport memcpy, memset

cimport numpy as cnp

from convt._core cimport Call
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_KC,
    CONVT_LDA,
    CONVT_LEAKY,
    MOST_ROWS,
    convt_kernels,
    convt_prefetch_row_l2,
    convt_quotient,
    convt_tile,
    convt_wino_in,
    convt_wino_out,
)
from convt._run.memory cimport copy_non_temporal, keep_table, round64, structures
from convt.algorithms.direct.loops cimport DirectPlan
from convt.algorithms.indexing cimport Cut, cut_at, cut_evenly
from convt.algorithms.packing cimport PackClass
from convt.algorithms.winograd.weights cimport WinogradRecipe

cnp.import_array()

CHAIN, BRIDGE, PLACE = WINOGRAD_CHAIN, WINOGRAD_BRIDGE, WINOGRAD_PLACE

# The regions of a thread's workspace (schedule.book), in the order of the enum below.
REGIONS = (
    "rows", "sums", "sum_rows", "stage", "places", "unsorted_places", "zeros", "minus_zeros", "check", "tile_buffer",
    "intermediate", "packed_panel",
)


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
    """A plan of `winograd`. The tasks of untransformed classes come first and run in DirectPlan."""

    cdef WinogradRecipe winograd_recipe
    cdef WinogradClass *winograd
    cdef Py_ssize_t nwinograd
    cdef bint prefetches  # tasks prefetch input tiles, because L2 does not hold the input
    cdef size_t[REGION_COUNT] regions  # offsets of the workspace regions

    def __init__(self, schedule, WinogradRecipe recipe, in_strides, out_strides, execution, direct, classes, tiles):
        """Fill in the structures from ``direct`` and ``classes``, the tables of classes without and with a transform.

        ``tiles`` is the `Tiles` of direct/bind.py.
        """
        self.open_direct(schedule.algorithm, schedule.problem, recipe, in_strides, out_strides, execution, direct, tiles)
        self.winograd_recipe = recipe
        cdef const convt_kernels *k = self.k
        cdef WinogradClass *c
        cdef int64_t task = self.tasks, ax
        self.prefetches = schedule.prefetches and k.direct_store and self.in_c == 1
        self.nwinograd = len(classes)
        self.winograd = <WinogradClass *>cnp.PyArray_DATA(structures(self.keep, self.nwinograd, sizeof(WinogradClass)))
        for i, spec in enumerate(classes):
            c = &self.winograd[i]
            c.tiles, c.outputs = keep_table(self.keep, spec["tiles"]), keep_table(self.keep, spec["outputs"])
            c.noutputs, c.out_j = len(spec["out_j"]), keep_table(self.keep, spec["out_j"])
            c.out_at = keep_table(self.keep, spec["out_at"])
            c.npoints = 1
            for ax in range(3):
                c.axes[ax], c.points[ax], c.kind[ax] = spec["axes"][ax]
                c.npoints *= c.points[ax]
            c.depth_outputs = c.outputs[c.axes[0]] if c.axes[0] >= 0 else 1
            c.plane = c.noutputs // c.depth_outputs
            c.end_bits = keep_table(self.keep, [ALL_POINTS | e for e in spec["end_bits"]])
            c.shown = keep_table(self.keep, spec["shown"])
            c.sorted = spec["sorted"]
            c.prefetch_from = keep_table(self.keep, [q * c.noutputs // c.npoints for q in range(c.npoints + 1)])
            c.rows, c.block, c.blocks = spec["rows"], spec["block"], spec["blocks"]
            c.window_starts, c.reads = keep_table(self.keep, spec["window_starts"]), keep_table(self.keep, spec["reads"])
            c.reads_inside = keep_table(self.keep, spec["reads_inside"])
            c.in_step, c.out_step = keep_table(self.keep, spec["in_step"]), keep_table(self.keep, spec["out_step"])
            c.nchunks, c.span, c.chunks = len(spec["chunks"]), spec["span"], keep_table(self.keep, spec["chunks"])
            c.chains_per_chunk = (c.chunks[1] + WINOGRAD_CHAIN - 1) // WINOGRAD_CHAIN if c.npoints > 6 and not k.parts else 1
            chains = []
            for chunk, (k0, kc) in enumerate(spec["chunks"]):
                cuts = [part * kc // c.chains_per_chunk for part in range(c.chains_per_chunk + 1)]
                chains += [(chunk, first, last - first, k0 + first) for first, last in itertools.pairwise(cuts)]
            c.chains = keep_table(self.keep, chains)
            c.npanels, c.panels = len(spec["panels"]), keep_table(self.keep, spec["panels"])
            c.pieces, c.boxes = keep_table(self.keep, spec["pieces"]), keep_table(self.keep, spec["boxes"])
            c.panel_block, c.panel_blocks = spec["panel_block"], spec["panel_blocks"]
            c.inner = keep_table(self.keep, spec["inner"])
            c.pack = &recipe.classes[<Py_ssize_t>spec["pack"]]
            c.depth = c.pack.depth // c.npoints
            c.lda, c.point_rows, c.point_sums = spec["lda"], spec["point_rows"], spec["point_sums"]
            c.point_major = spec["point_major"]
            c.separate_sums = c.point_major or c.span < c.nchunks
            c.parts, c.runs = keep_table(self.keep, spec["parts"]), keep_table(self.keep, spec["runs"])
            staged = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
            c.staged_panels = spec["staged_panels"] if staged else 0
            c.first_task = task
            c.ntasks = self.groups * c.blocks * c.panel_blocks
            task += c.ntasks
            self.works.append((spec["work"], c.ntasks))
        self.tasks = task
        self.equal_tasks = False
        for name, offset, _ in schedule.workspace.regions:
            self.regions[REGIONS.index(name)] = offset
        self.workspace = max(self.workspace, <size_t>self.regions[PACKED_PANEL])
        if self.packing_workspace:
            self.packing_workspace = max(self.packing_workspace, schedule.workspace.bytes - self.regions[PACKED_PANEL])
            self.packing_workspace += round64(recipe.stage_bytes)

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task in the loop order of the module docstring: a block of tiles x a panel block of a class and group."""
        if task < self.direct_tasks:
            DirectPlan.run_task(self, task, call, ws)
            return
        if convt_is_set(call.refused):  # the call is repeated, because another task found values that need a direct sum
            return
        cdef const convt_kernels *k = self.k
        cdef WinogradClass *c = self.winograd
        while task >= c.first_task + c.ntasks:
            c += 1
        task -= c.first_task
        cdef WinogradTask t
        cdef int64_t t0 = task % c.blocks * c.block
        cdef int64_t group = task // c.blocks // c.panel_blocks
        cdef int64_t i, p, q, r, chunk
        cdef int64_t *unsorted
        cdef int64_t *chain
        cdef int64_t *end
        t.c, t.refused = c, call.refused
        t.m = min(c.block, c.rows - t0)
        t.p0 = task // c.blocks % c.panel_blocks * c.panel_block
        t.p1 = min(c.npanels, t.p0 + c.panel_block)
        t.src = call.src + group * self.ci * self.in_c * k.s_size
        t.dst = call.dst + group * self.co * self.out_c * k.s_size
        t.bias = call.bias + c.pack.bias + group * c.pack.group_bias
        t.weights = call.weights + c.pack.weights + group * c.pack.group_weights
        t.source = call.source + group * self.recipe.sg if call.source != NULL else NULL
        t.packed_panel = ws + round64(self.workspace)
        t.widened_taps = t.packed_panel + self.packing_workspace - round64(self.winograd_recipe.stage_bytes)

        t.a, t.sums, t.sum_rows = ws + self.regions[ROWS], ws + self.regions[SUMS], <void **>(ws + self.regions[SUM_ROWS])
        t.stage = ws + self.regions[STAGE] if c.staged_panels else NULL
        t.places, unsorted = <int64_t *>(ws + self.regions[PLACES]), <int64_t *>(ws + self.regions[UNSORTED_PLACES])
        t.zeros, t.minus_zeros, t.check = ws + self.regions[ZEROS], ws + self.regions[MINUS_ZEROS], ws + self.regions[CHECK]
        t.tile_buffer, t.intermediate = ws + self.regions[TILE_BUFFER], ws + self.regions[INTERMEDIATE]

        for r in range(t.m):
            t.sum_rows[r] = t.sums + r * k.nr * k.t_size
        memset(t.zeros, 0, (CONVT_KC + 16) * k.t_size)
        memset(t.check, 0, k.nr * k.t_size)
        for i in range(k.nr):
            if k.t_size == 8:
                (<double *>t.minus_zeros)[i] = -0.0
            else:
                (<float *>t.minus_zeros)[i] = -0.0
        self.locate_tiles(c, t0, t.m, unsorted if c.sorted else t.places)
        self.sort_tiles(&t, unsorted)
        t.end = 0
        while t.end < c.nchunks:
            t.start, t.end = t.end, min(c.nchunks, t.end + c.span)
            for chunk in range(t.start, t.end):
                for r in range(t.m):
                    self.transform_tile(&t, chunk, r)
            chain, end = c.chains + 4 * t.start * c.chains_per_chunk, c.chains + 4 * t.end * c.chains_per_chunk
            if c.point_major:
                for q in range(c.npoints):
                    for p in range(t.p0, t.p1):
                        self.multiply_point(&t, p, q, chain, end)
            for p in range(t.p0, t.p1):
                if not c.point_major:
                    self.mark_left_out(&t, p)
                    self.multiply_panel(&t, p, chain, end)
                if t.end == c.nchunks:
                    self.finish_panel(&t, p)
        for i in range(k.vl):
            if k.t_size == 8:
                if (<double *>t.check)[i] != 0:
                    convt_set(t.refused)
            elif (<float *>t.check)[i] != 0:
                convt_set(t.refused)
        if self.non_temporal or c.staged_panels:
            k.fence()

    cdef void locate_tiles(self, WinogradClass *c, int64_t t0, int64_t m, int64_t *place) noexcept nogil:
        """Fill ``place`` for tiles [t0, t0 + m) of a class, WINOGRAD_PLACE + nd numbers for each.

        The numbers are the offsets of its first input and of its first output, 1 if some output is outside the window, 1 if all
        its inputs are inside the input, and its first output on each axis.
        """
        cdef int64_t r, ax, j, n, image = t0
        cdef int64_t *position = place + WINOGRAD_PLACE
        for ax in range(self.nd - 1, -1, -1):
            position[ax] = image % c.tiles[ax] * c.outputs[ax]
            image = image // c.tiles[ax]
        for r in range(m):
            place[0], place[1], place[2], place[3] = image * self.in_n, image * self.out_n, 0, 1
            for ax in range(self.nd):
                j, n = position[ax], c.outputs[ax]
                place[0] += j * c.in_step[ax]
                place[1] += j * c.out_step[ax]
                if j < c.inner[2 * ax] or j + n > c.inner[2 * ax + 1]:
                    place[2] = 1
                if j < c.reads_inside[2 * ax] or j >= c.reads_inside[2 * ax + 1]:
                    place[3] = 0
            if r == m - 1:
                break
            place += WINOGRAD_PLACE + self.nd
            memcpy(place + WINOGRAD_PLACE, position, self.nd * sizeof(int64_t))
            position = place + WINOGRAD_PLACE
            for ax in range(self.nd - 1, -1, -1):
                position[ax] += c.outputs[ax]
                if position[ax] < c.tiles[ax] * c.outputs[ax]:
                    break
                position[ax] = 0
            else:
                image += 1

    cdef void sort_tiles(self, WinogradTask *t, int64_t *unsorted) noexcept nogil:
        """Copy ``unsorted`` to t.places so that tiles of a kind are adjacent, and set t.kind_start to where each kind begins.

        A kind says on each transformed axis whether a tile is the first, the last, or between. Consecutive kinds differ on one
        axis. If the class is not sorted, all tiles are one kind.
        """
        cdef WinogradClass *c = t.c
        cdef int64_t step = WINOGRAD_PLACE + self.nd, n, r, kind, at, position, total = 0
        cdef int64_t count[WINOGRAD_KINDS]
        cdef int64_t next_index[WINOGRAD_KINDS]
        cdef int64_t *place = unsorted
        t.nkinds, t.kind_start[0], t.kind_start[1], t.left_out[0] = 1, 0, t.m, 0
        if not c.sorted:
            return
        memset(count, 0, sizeof(count))
        for r in range(t.m):
            kind = 0
            for n in range(3):
                at = 0
                if c.axes[n] >= 0:
                    position = place[WINOGRAD_PLACE + c.axes[n]]
                    at = 0 if position == 0 else 2 if position == (c.tiles[c.axes[n]] - 1) * c.outputs[c.axes[n]] else 1
                kind = 3 * kind + (2 - at if kind & 1 else at)
            place[2] |= kind << 1  # bit 0 keeps whether some output is outside the window
            count[kind] += 1
            place += step
        t.nkinds = 0
        for kind in range(WINOGRAD_KINDS):
            next_index[kind] = total
            if count[kind]:
                t.kind_start[t.nkinds] = total
                t.nkinds += 1
            total += count[kind]
        t.kind_start[t.nkinds] = total
        place = unsorted
        for r in range(t.m):
            kind = place[2] >> 1
            place[2] &= 1
            memcpy(t.places + next_index[kind] * step, place, step * sizeof(int64_t))
            next_index[kind] += 1
            place += step

    cdef void mark_left_out(self, WinogradTask *t, int64_t p) noexcept nogil:
        """Set t.left_out: for each kind of tiles, the points that no output of panel ``p`` needs, as bits of `end_bits`."""
        cdef WinogradClass *c = t.c
        cdef int64_t kind, n, ax, position
        cdef int64_t *shown
        if not c.sorted:
            return
        for kind in range(t.nkinds):
            t.left_out[kind] = 0
            for n in range(3):
                ax = c.axes[n]
                if ax < 0:
                    continue
                position = t.places[t.kind_start[kind] * (WINOGRAD_PLACE + self.nd) + WINOGRAD_PLACE + ax]
                if 0 < position < (c.tiles[ax] - 1) * c.outputs[ax]:
                    continue
                shown = c.shown + (p * self.nd + ax) * 2
                t.left_out[kind] |= ((position < shown[0]) | (position + c.outputs[ax] > shown[1]) << 1) << 2 * n
                if position >= shown[1] or position + c.outputs[ax] <= shown[0]:
                    t.left_out[kind] |= ALL_POINTS

    cdef void transform_tile(self, const WinogradTask *t, int64_t chunk, int64_t r) noexcept nogil:
        """Transform the depth chunk of tile ``r`` to its row of each point's GEMM, in the region `rows`.

        Each tap window of the chunk is transformed separately. The transform reads inputs by address: in place if channels are
        contiguous, else widened to `tile_buffer`; inputs outside the image are `zeros`.
        """
        cdef const convt_kernels *k = self.k
        cdef WinogradClass *c = t.c
        cdef int64_t *place = t.places + r * (WINOGRAD_PLACE + self.nd)
        cdef int64_t k0 = c.chunks[2 * chunk], end = k0 + c.chunks[2 * chunk + 1]
        cdef char *a = t.a + (chunk - t.start) * c.npoints * c.point_rows + r * c.lda * k.e_size
        cdef bint contiguous = k.direct_store and self.in_c == 1
        cdef int64_t ci_p = self.recipe.ci_p, depth = k0, window = convt_quotient(k0, ci_p), first, last, i, n, z, cols
        cdef int64_t *reads
        cdef int64_t *ahead_place = NULL
        cdef char *base
        cdef int representable = 1
        cdef const void *rows[WINOGRAD_MOST_POINTS]
        cdef const void *lines[6]
        cdef convt_wino_in w
        if self.prefetches and r + WINOGRAD_PREFETCH < t.m and place[WINOGRAD_PREFETCH * (WINOGRAD_PLACE + self.nd) + 3]:
            ahead_place = place + WINOGRAD_PREFETCH * (WINOGRAD_PLACE + self.nd)
        while depth < end:
            first = depth - window * ci_p
            last = min(ci_p, first + end - depth)
            cols = min(self.ci, last) - first
            base = t.src + (place[0] + first * self.in_c) * k.s_size
            reads = c.reads + window * c.npoints
            for n in range(c.npoints):
                rows[n] = base + reads[n] * k.s_size
            if not place[3]:
                self.zero_outside_inputs(t, place, c.window_starts + window * self.nd, rows)
            if ahead_place != NULL:
                base = t.src + (ahead_place[0] + first * self.in_c) * k.s_size
                for n in range(c.npoints):
                    convt_prefetch_row_l2(base + reads[n] * k.s_size, cols * k.s_size)
            for n in range(0 if contiguous else c.npoints):
                if rows[n] != t.zeros:
                    k.widen(t.tile_buffer + n * CONVT_LDA * k.t_size, 0, rows[n], 0, self.in_c, 1, <int>cols, <int>cols)
                    rows[n] = t.tile_buffer + n * CONVT_LDA * k.t_size
            w.first, w.last = 0, <int>cols
            n = c.points[1] * c.points[2]
            if c.points[0] == 1:
                w.in_ = rows
                w.out = a + (depth - k0) * k.e_size
                w.out_y, w.out_x = c.points[2] * c.point_rows, c.point_rows
                representable &= k.wino_rows(<int>c.points[1], <int>c.points[2], &w)
            else:
                w.out_y, w.out_x = c.points[2] * CONVT_LDA * k.t_size, CONVT_LDA * k.t_size
                for z in range(c.points[0]):
                    w.in_ = rows + z * n
                    w.out = t.intermediate + z * n * CONVT_LDA * k.t_size
                    k.wino_in(<int>c.points[1], <int>c.points[2], &w)
                w.in_ = lines
                w.out_y, w.out_x = 0, n * c.point_rows
                for i in range(n):
                    for z in range(c.points[0]):
                        lines[z] = t.intermediate + (z * n + i) * CONVT_LDA * k.t_size
                    w.out = a + i * c.point_rows + (depth - k0) * k.e_size
                    representable &= k.wino_rows(1, <int>c.points[0], &w)
            depth += last - first
            window += 1
        if not representable:
            convt_set(t.refused)

    cdef void zero_outside_inputs(self, const WinogradTask *t, int64_t *place, int64_t *first_in,
                                  const void **rows) noexcept nogil:
        """Replace the addresses in ``rows`` of inputs outside the image by the address of zeros."""
        cdef WinogradClass *c = t.c
        cdef int64_t ax, i, n, x, y, z
        cdef bint axis_inside[3][6]
        cdef bint inside = True
        for n in range(3):
            axis_inside[n][0] = True
        for ax in range(self.nd):
            i = first_in[ax] + place[WINOGRAD_PLACE + ax]
            for n in range(3):
                if c.axes[n] == ax:
                    for x in range(c.points[n]):
                        axis_inside[n][x] = 0 <= i + x < self.in_size.p[ax]
                    break
            else:
                inside = inside and 0 <= i < self.in_size.p[ax]
        n = 0
        for z in range(c.points[0]):
            for y in range(c.points[1]):
                for x in range(c.points[2]):
                    if not (inside and axis_inside[0][z] and axis_inside[1][y] and axis_inside[2][x]):
                        rows[n] = t.zeros
                    n += 1

    cdef int64_t tile_ranges(self, const WinogradTask *t, int64_t q, int64_t *ranges) noexcept nogil:
        """Fill ``ranges`` with the ranges [first, end) of tiles that point ``q`` is multiplied for. Return their number.

        Ranges with a gap of fewer than WINOGRAD_BRIDGE tiles are joined.
        """
        cdef int64_t kind, n = 0
        for kind in range(t.nkinds):
            if t.left_out[kind] & t.c.end_bits[q]:
                continue
            if n == 0 or t.kind_start[kind] - ranges[2 * n - 1] >= WINOGRAD_BRIDGE:
                ranges[2 * n] = t.kind_start[kind]
                n += 1
            ranges[2 * n - 1] = t.kind_start[kind + 1]
        return n

    cdef void multiply_panel(self, WinogradTask *t, int64_t p, int64_t *chain, int64_t *end) noexcept nogil:
        """Multiply all points of panel ``p``, for chains [chain, end) of their depth.

        On vectors, weights are packed on the fly one chain at a time for all points together: each tap is read once, and the
        points stay in L2 until they are multiplied. On AMX, `multiply_point` packs each point, because the rows fill L2.
        """
        cdef WinogradClass *c = t.c
        cdef int64_t *start = chain
        cdef int64_t *last = end
        cdef int64_t q
        if c.panels[5 * p + 3] == c.panels[5 * p + 4]:
            return
        while chain != end:
            if t.source != NULL and not self.k.parts:
                last = chain + 4
                if self.winograd_recipe.pack_all_points(c.pack, p, chain[3], chain[2], t.source, t.packed_panel,
                                                        t.widened_taps):
                    convt_set(t.refused)
                t.next_panel, t.next_depth = (p, last[3]) if last != end else (p + 1, start[3])
            for q in range(c.npoints):
                self.multiply_point(t, p, q, chain, last)
            chain = last

    cdef void multiply_point(self, const WinogradTask *task, int64_t p, int64_t q, int64_t *chain,
                             int64_t *last) noexcept nogil:
        """Multiply point ``q`` of panel ``p``, for chains [chain, last) of its depth, with all tiles that need the point.

        Loop order: chains, ranges of tiles, register tiles. Products go to the region `sums`. At the first chain, the products
        of other tiles and of columns without weights are set to zero.
        """
        cdef const convt_kernels *k = self.k
        cdef WinogradClass *c = task.c
        cdef int64_t *panel = c.panels + 5 * p
        if panel[3] == panel[4]:
            return
        cdef int64_t width = convt_quotient(panel[0] + k.vl - 1, k.vl) * k.vl, nv = c.pack.widths[p * c.npoints + q]
        cdef int64_t columns = nv * k.vl
        cdef int64_t ranges[2 * WINOGRAD_KINDS]
        cdef int64_t nranges, first, tiles, tiles_done, i, j, n, r, r0, r1
        cdef char *a
        cdef int64_t sums_at = ((p - task.p0 if c.separate_sums else 0) * c.npoints + q) * c.point_sums
        cdef char *products = task.sums + sums_at * k.t_size
        cdef int64_t row = columns * k.e_size
        cdef char *weights = task.weights + (p * k.nr * c.pack.depth + q * c.depth * width) * k.e_size
        cdef const char *next_source
        cdef int64_t next_offset = k.nr * c.pack.depth if c.point_major else c.depth * width  # elements
        cdef char *next_weights = weights + next_offset * k.e_size + chain[3] * row
        cdef bint prefetching = (task.end == c.nchunks and not self.non_temporal and not c.staged_panels and not c.point_major
                                 and self.stores_vectors(panel))
        cdef Cut by_tile
        cdef convt_tile t
        if columns < width and chain == c.chains:
            k.widen(products + columns * k.t_size, k.nr, task.zeros, 0, 0, <int>task.m, 0, <int>(width - columns))
        if nv == 0:
            return
        nranges = self.tile_ranges(task, q, ranges)
        if chain == c.chains:
            for i in range(nranges + 1):  # tiles between the ranges: their products stay zero
                r0 = ranges[2 * i - 1] if i else 0
                r1 = ranges[2 * i] if i < nranges else task.m
                if r0 < r1:
                    k.widen(products + r0 * k.nr * k.t_size, k.nr, task.zeros, 0, 0, <int>(r1 - r0), 0, <int>columns)
        t.lda, t.row_offset = c.lda, sums_at
        t.act = &self.none
        t.stream, t.narrow_dtype, t.pending = 0, 0, NULL
        t.nv, t.cols = <int>nv, <int>columns
        t.prefetch_step = 64
        t.init, t.init_ld = task.minus_zeros, 0
        while chain != last:
            t.kc = <int>chain[2]
            t.b = weights + chain[3] * row
            t.prefetch = weights + chain[7] * row if chain + 4 != last else next_weights
            if task.source != NULL and not k.parts:
                t.b = task.packed_panel + q * t.kc * width * k.e_size
            elif task.source != NULL:
                t.b, next_source, t.prefetch_step = task.packed_panel, t.prefetch, self.recipe.si * k.s_size
                if chain + 4 != last:
                    next_source = self.recipe.source_at(c.pack, p, q, chain[7], task.source)
                elif c.point_major:
                    next_source = self.recipe.source_at(c.pack, p + 1, q, c.chains[4 * task.start * c.chains_per_chunk + 3],
                                                        task.source)
                if self.winograd_recipe.pack_one_point(c.pack, p, q, chain[3], t.kc, task.source, task.packed_panel):
                    convt_set(task.refused)
            n = convt_quotient(t.kc, k.prefetch_interval) * 64
            a = task.a + ((chain[0] - task.start) * c.npoints + q) * c.point_rows + chain[1] * k.e_size
            tiles_done = 0
            for j in range(nranges):
                first = ranges[2 * j]
                tiles = convt_quotient(ranges[2 * j + 1] - first + k.mr[nv] - 1, k.mr[nv])
                by_tile = cut_evenly(ranges[2 * j + 1] - first, tiles, k.grain)
                i = 0
                while i < tiles:
                    r0, r1, t.more_tiles = first + cut_at(&by_tile, i), first + cut_at(&by_tile, i + 1), 0
                    if not prefetching and task.source == NULL and not k.parts:  # one call computes all tiles of a height
                        t.more_tiles = <int>((by_tile.taller if i < by_tile.taller else tiles) - i - 1)
                    t.a, t.rows = a + r0 * c.lda * k.e_size, task.sum_rows + r0
                    if task.source != NULL and not k.parts:
                        r = q * tiles + i  # one line of a tap for all in-channels, then the next line
                        t.prefetch = self.winograd_recipe.line_to_prefetch(c.pack, task.next_panel, task.next_depth,
                                                                           convt_quotient(r, k.prefetch_interval), task.source)
                        t.prefetch_step = self.recipe.si * k.s_size
                        if t.prefetch != NULL:
                            t.prefetch = (<const char *>t.prefetch + r % k.prefetch_interval
                                          * convt_quotient(t.kc, k.prefetch_interval) * t.prefetch_step)
                        else:
                            t.prefetch, t.prefetch_step = <const char *>t.b + t.kc * width * k.e_size + i * n, 64
                    elif task.source != NULL:
                        t.prefetch = (next_source + tiles_done % k.prefetch_interval * convt_quotient(t.kc, k.prefetch_interval)
                                      * t.prefetch_step + tiles_done // k.prefetch_interval * 64)
                    if chain != c.chains:
                        t.init, t.init_ld = products + r0 * k.nr * k.t_size, k.nr
                    if prefetching:
                        self.prefetch_outputs(task, panel, r0, r1, q)
                    k.tile(<int>(r1 - r0), &t)
                    t.prefetch = <const char *>t.prefetch + n * (1 + t.more_tiles)
                    tiles_done += 1
                    i += 1 + t.more_tiles
            prefetching = False
            chain += 4

    cdef void prefetch_outputs(self, const WinogradTask *t, int64_t *panel, int64_t first, int64_t last,
                               int64_t q) noexcept nogil:
        """Prefetch a part of the outputs of tiles [first, last) for point ``q``; all points together prefetch all outputs."""
        cdef int64_t n, r, step = WINOGRAD_PLACE + self.nd
        for n in range(t.c.prefetch_from[q], t.c.prefetch_from[q + 1]):
            for r in range(first, last):
                convt_prefetch_row_l2(t.dst + (t.places[r * step + 1] + panel[2] + t.c.out_at[n]) * self.k.s_size,
                                      panel[0] * self.k.s_size)

    cdef void finish_panel(self, const WinogradTask *t, int64_t p) noexcept nogil:
        """Transform the products of panel ``p`` to outputs, tile by tile, and write the stage after its last panel.

        A panel that the window does not show has no outputs, but may be the last one of the stage.
        """
        cdef WinogradClass *c = t.c
        cdef int64_t n = p - t.p0, r
        cdef char *stage = NULL
        if c.staged_panels:
            n %= c.staged_panels
            stage = t.stage + n * self.k.nr * self.k.t_size
        for r in range(t.m if c.panels[5 * p + 3] < c.panels[5 * p + 4] else 0):
            self.finish_tile(t, p, r, stage)
            stage += c.noutputs * c.staged_panels * self.k.nr * self.k.t_size
        if c.staged_panels and (p + 1 == t.p1 or n + 1 == c.staged_panels):
            self.write_stage(t, p - n, p + 1)

    cdef void finish_tile(self, const WinogradTask *t, int64_t p, int64_t r, char *stage) noexcept nogil:
        """Transform the products of tile ``r`` and panel ``p`` to outputs: to ``stage`` unless it is NULL, else to the output.

        Outputs that vectors cannot store go to `tile_buffer` first and are stored piece by piece.
        """
        cdef const convt_kernels *k = self.k
        cdef WinogradClass *c = t.c
        cdef int64_t width = 3 + 2 * self.nd, z, n
        cdef int64_t *panel = c.panels + 5 * p
        cdef int64_t *place = t.places + r * (WINOGRAD_PLACE + self.nd)
        cdef int64_t *box = c.boxes + p * 2 * self.nd
        cdef int64_t *piece
        cdef char *products = t.sums + ((p - t.p0 if c.separate_sums else 0) * c.npoints * c.point_sums + r * k.nr) * k.t_size
        cdef char *tile_out = t.dst + (place[1] + panel[2]) * k.s_size
        cdef bint edge = place[2], by_vectors = stage != NULL or self.stores_vectors(panel), any_pieces = False, hidden
        cdef bint by_pieces[WINOGRAD_MOST_POINTS]  # outputs that are stored piece by piece
        cdef void *rows[WINOGRAD_MOST_POINTS]
        cdef void *planes[WINOGRAD_MOST_POINTS]
        cdef void *line[6]
        cdef convt_wino_out w
        for n in range(c.noutputs):
            hidden = edge and stage == NULL and not self.shows(c, box, place, n)
            by_pieces[n] = not by_vectors or (hidden and panel[4] - panel[3] > 1)
            any_pieces |= by_pieces[n]
            if stage != NULL:
                rows[n] = stage + n * c.staged_panels * k.nr * k.t_size
            elif by_pieces[n]:
                rows[n] = t.tile_buffer + n * k.nr * k.t_size
            elif hidden:
                rows[n] = NULL
            else:
                rows[n] = tile_out + c.out_at[n] * k.s_size
        w.check = t.check
        w.in_y, w.in_x = c.points[2] * c.point_sums, c.point_sums
        if c.points[0] > 1:  # three axes: transform the last two axes into `intermediate`, then the first one
            for n in range(c.points[0] * c.plane):
                planes[n] = t.intermediate + n * k.nr * k.t_size
            w.act, w.stream, w.init = &self.none, 0, t.minus_zeros
            w.cols = <int>((panel[0] + k.vl - 1) // k.vl * k.vl)
            for z in range(c.points[0]):
                w.in_ = products + z * c.points[1] * c.points[2] * c.point_sums * k.t_size
                w.rows = planes + z * c.plane
                k.wino_out(<int>c.kind[1], <int>c.kind[2], &w)
            w.in_x = c.plane * k.nr
        w.act = &self.act if by_vectors else &self.none
        w.stream = self.non_temporal and not any_pieces and not <size_t>(t.dst + panel[2] * k.s_size) & (self.non_temporal - 1)
        w.init, w.cols = t.bias + p * k.nr * k.t_size, <int>panel[0]
        if c.points[0] == 1:
            w.in_, w.rows = products, rows
            k.wino_out(<int>c.kind[1], <int>c.kind[2], &w)
        else:
            w.rows = line
            for n in range(c.plane):
                w.in_ = t.intermediate + n * k.nr * k.t_size
                for z in range(c.depth_outputs):
                    line[z] = rows[z * c.plane + n]
                k.wino_out(0, <int>c.kind[0], &w)
        if not any_pieces:
            return
        for n in range(panel[3], panel[4]):
            piece = c.pieces + n * width
            for z in range(c.noutputs):
                rows[z] = NULL
                if by_pieces[z] and (not edge or self.shows(c, piece + 3, place, z)):
                    rows[z] = t.dst + (place[1] + piece[2] + c.out_at[z]) * k.s_size
            k.store(rows, self.out_c, t.tile_buffer + piece[0] * k.t_size, k.nr, <int>c.noutputs, <int>piece[1],
                    &self.none if by_vectors else &self.act)

    cdef void write_stage(self, const WinogradTask *t, int64_t first, int64_t last) noexcept nogil:
        """Write the gathered outputs of panels [first, last), pixel by pixel of each tile.

        A pixel of a tile inside the window is written in a few runs with non-temporal stores. Other pixels are copied piece by
        piece.
        """
        cdef const convt_kernels *k = self.k
        cdef WinogradClass *c = t.c
        cdef int64_t width = 3 + 2 * self.nd, r, n, p, q
        cdef int64_t parts = (c.panel_block + c.staged_panels - 1) // c.staged_panels  # parts of a panel block
        cdef int64_t *part = c.parts + 2 * (t.p0 // c.panel_block * parts + (first - t.p0) // c.staged_panels)
        cdef int64_t *run
        cdef int64_t *place = t.places
        cdef char *stage = t.stage
        cdef char *out
        for r in range(t.m):
            for n in range(c.noutputs):
                out = t.dst + (place[1] + c.out_at[n]) * k.s_size
                if not place[2]:
                    for q in range(part[0], part[1]):
                        run = c.runs + 3 * q
                        copy_non_temporal(k, out + run[2] * k.s_size, stage + run[0] * k.t_size, run[1] * k.t_size)
                else:
                    for p in range(first, last):
                        for q in range(c.panels[5 * p + 3], c.panels[5 * p + 4]):
                            run = c.pieces + q * width
                            if self.shows(c, run + 3, place, n):
                                memcpy(out + run[2] * k.s_size, stage + ((p - first) * k.nr + run[0]) * k.t_size,
                                       run[1] * k.t_size)
                stage += c.staged_panels * k.nr * k.t_size
            place += WINOGRAD_PLACE + self.nd

    cdef bint stores_vectors(self, int64_t *panel) noexcept nogil:
        """Check whether the output transform can store the vectors of a panel into the output."""
        return self.k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY and panel[1]

    cdef bint shows(self, WinogradClass *c, int64_t *box, int64_t *place, int64_t n) noexcept nogil:
        """Check whether the n-th output of a tile is inside a box, [low, high) per axis."""
        cdef int64_t ax, j
        for ax in range(self.nd):
            j = place[WINOGRAD_PLACE + ax] + c.out_j[n * self.nd + ax]
            if j < box[2 * ax] or j >= box[2 * ax + 1]:
                return False
        return True
