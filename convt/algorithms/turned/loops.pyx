# cython: language_level=3
"""The plan of turned and its loops: a GEMM on NCX planes whose rows are outputs and columns are pixels.

A task is a block of pixels times a block of tiles, of one class and channel group; only this task writes their outputs. It
packs its inputs into panels (region "panels") for all taps and in-channels, run by run along the last axis. The loops are
then: groups of tiles of equal height, panels, depth chunks. One kernel call multiplies a group of tiles by a panel into the
region "sums", and the phases are interleaved from there into the planes of the output. Tiles of one phase store directly into
the planes. schedule.py lists the other regions.
"""

import itertools

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport Call, NativePlan, kernels_of
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_INTERLEAVED,
    CONVT_LEAKY,
    convt_interleave,
    convt_kernels,
    convt_prefetch_row_l2,
    convt_prefetch_row_l1,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport keep_table, structures
from convt.algorithms.indexing cimport Grid, advance, fill, is_inside, open_grid, take_index, take_task
from convt.algorithms.packing cimport PackRecipe

cnp.import_array()

cdef enum:
    LINES = 64  # in-channels copied at a time before their conversion to the elements of a unit

# For schedule.py:
MOST_PHASES = CONVT_INTERLEAVED  # the most phases of the last axis
PACKED_LINES = LINES


cdef struct TurnedClass:
    # A run on each axis, and its division into tasks: see schedule.py.
    int64_t *count           # [axis] pixels
    Grid tasks               # the pixels of all images and the tiles of tasks
    int64_t *tap_in          # [tap][axis] input index that the first pixel reads
    int64_t ntaps, depth     # depth: taps times in-channels, as packed
    int64_t *chunks          # [chunk] (first depth in a panel, depth, first depth in the weights) of a depth chunk
    int64_t nchunks
    int64_t *unit            # [tile + 1] first unit of rows. A unit is the last axis's phases of a channel and outer phase
    int64_t call_tiles       # the most tiles that one call multiplies by a panel
    int64_t outer            # number of outer phases: phases of the axes before the last
    int64_t *outer_at        # [outer phase] offset of its output at the first pixel, in elements
    int64_t *outer_valid     # [outer phase][axis before the last] (low, high) range of pixels that the window shows
    bint whole               # the window shows all pixels of all outer phases
    int64_t x_first          # output index of phase 0 at the first pixel of the last axis
    int64_t lda              # elements between the rows of weights
    size_t weights, group_weights  # byte offset in the packed weights; bytes of a channel group
    bint nested              # some phases lack taps, and their weights there are zeros


cdef struct TurnedRegions:
    # Offsets of the regions of a thread's workspace (schedule.py).
    size_t panels, staging, sums, sum_rows, plane_rows, unit_rows, unit_offsets, bias, pieces, first_piece


cdef struct TurnedTask:
    # The state of a task. S is the dtype of the arrays, T that of accumulators.
    TurnedClass *c
    int64_t m0, pixels       # first pixel, counted across all images; number of pixels
    int64_t panels           # number of panels
    int64_t first, last      # tiles [first, last)
    char *src                # data of the channel group
    char *dst                # output of the channel group
    const char *weights
    const char *bias
    char *packed             # inputs in panels
    char *staging            # S: inputs before they are converted to the elements of a unit
    char *sums               # T: the tiles of a call
    void **sum_rows          # [row of the tiles] address in `sums`
    void **plane_rows        # [row of the tiles] address in the output, for tiles that store directly
    void **unit_rows         # [unit] address in the output, for interleaving
    char *zeros              # T: a row of -0.0, from which accumulators start if interleaving adds the bias
    char *biases             # T: [unit] a row of equal values for tiles that store directly, else a number
    int64_t *unit_offsets    # [unit of the task] offset from a pixel's first output, in elements
    int64_t first_unit       # first unit of the task
    # The inputs of the thread's next task are prefetched plane by plane, some before each kernel call:
    char *prefetch_line      # next line to prefetch
    int64_t lines_left, planes_left, lines_per_call  # lines left of its plane; planes left; lines before each call
    int64_t *pieces          # [piece] (column, pixels, image, position on each axis) of a contiguous run within a panel
    int64_t *first_piece     # [panel + 1] index of its first piece
    char *refused            # set if the call must be repeated with another plan
    convt_tile t


cdef struct TileGroup:
    # Tiles of equal height that one kernel call multiplies by a panel.
    int64_t count
    int64_t unit, units      # first unit of rows, and number of units
    int64_t height           # rows of a tile
    size_t bits              # all bits that are set in some of `plane_rows`
    const char *next_weights # the next weights to prefetch, and their end
    const char *end


cdef class TurnedPlan(NativePlan):
    """The plan of a `Schedule` of turned/schedule.py."""

    cdef list keep
    cdef TurnedClass *classes
    cdef Py_ssize_t nclasses
    cdef int64_t phases      # phases of the last axis
    cdef int64_t ci_p, out_size  # in-channels as packed; outputs on the last axis
    cdef size_t group_bias   # bytes of the bias of a channel group
    cdef TurnedRegions at
    cdef bint stream, prefetch_outputs, far  # see schedule.py
    cdef const convt_kernels *packed_kernels  # kernels of the dtype of packed inputs on vectors (float32 or float64)
    cdef bint direct_store   # tiles store directly if a panel is one piece: one phase, contiguous pixels

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, classes, schedule):
        """``classes`` are the `TurnedTables` that bind.py makes."""
        self.open_plan(problem, recipe.k, in_strides, out_strides, schedule.execution)
        cdef const convt_kernels *k = self.k
        cdef TurnedClass *c
        cdef int64_t task = 0
        self.keep, self.works, self.stream, self.far = [], [], schedule.stream, schedule.far
        self.prefetch_outputs = schedule.prefetch_outputs
        self.phases, self.ci_p = self.stride.p[self.nd - 1], recipe.ci_p
        self.group_bias = self.co * k.t_size
        self.out_size = problem.out_sizes[problem.rank - 1]
        self.nclasses = len(classes)
        self.packed_kernels = kernels_of("float64" if k.t_size == 8 else "float32")
        self.classes = <TurnedClass *>cnp.PyArray_DATA(structures(self.keep, self.nclasses, sizeof(TurnedClass)))
        for n, each in enumerate(classes):
            c = &self.classes[<Py_ssize_t>n]
            fill_class(self, c, each)
            task = open_grid(&c.tasks, each.decided.pixels, each.decided.tiles, each.decided.cut, self.groups, task)
            self.works.append((each.decided.cut.cycles, c.tasks.tasks))
        self.tasks = task
        self.equal_tasks = self.nclasses == 1
        self.direct_store = (self.phases == 1 and k.direct_store and self.out_stride.p[self.nd - 1] == 1
                             and self.act.code <= CONVT_LEAKY)
        self.at, self.workspace = schedule.workspace, schedule.workspace.bytes

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task in the loop order of the module docstring."""
        if convt_is_set(call.refused):  # another task found that the call must be repeated with another plan
            return
        cdef TurnedTask w
        cdef int64_t panel
        open_task(self, &w, task, call, ws)
        find_units(self, &w)
        find_pieces(self, &w)
        for panel in range(w.panels):
            pack_panel(self, &w, panel)
        if convt_is_set(call.refused):
            return
        find_next_input(self, &w)
        while w.first < w.last:
            multiply_tiles(self, &w)
        if self.stream:
            self.k.fence()


cdef fill_class(TurnedPlan plan, TurnedClass *c, given):
    """Fill a TurnedClass from the `TurnedTables` of bind.py."""
    decided, runs, keep = given.decided, given.runs, plan.keep
    c.count, c.call_tiles = keep_table(keep, [run.count for run in runs]), decided.call_tiles
    # Tiles with more units come first, so that tiles of equal height are adjacent.
    each, more = divmod(decided.units, decided.tiles)
    c.unit = keep_table(keep, [each * n + min(n, more) for n in range(decided.tiles + 1)])
    c.ntaps, c.depth = decided.taps, decided.taps * plan.ci_p
    c.tap_in = keep_table(keep, list(itertools.product(*[run.first_in for run in runs])))
    c.nchunks, c.chunks = len(given.chunks), keep_table(keep, given.chunks)
    c.outer, c.outer_at = len(given.outer_at), keep_table(keep, given.outer_at)
    c.outer_valid = keep_table(keep, given.outer_valid)
    *outer, _ = runs
    c.whole = all([(low, high) == (0, run.count) for run in outer for low, high in run.valid])
    c.x_first, c.nested = given.x_first, given.nested
    c.lda, c.weights, c.group_weights = given.weights


cdef void open_task(TurnedPlan plan, TurnedTask *w, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
    """Set the pixels, tiles, operands and workspace regions of a task."""
    cdef const convt_kernels *k = plan.k
    cdef TurnedClass *c = plan.classes
    cdef int64_t group, n
    while task >= c.tasks.first_task + c.tasks.tasks:
        c += 1
    group = take_task(&c.tasks, task, &w.m0, &w.pixels, &w.first, &w.last)
    w.c, w.refused = c, call.refused
    w.panels = convt_quotient(w.pixels + k.nr - 1, k.nr)
    w.src = call.src + group * plan.ci * plan.in_c * k.s_size
    w.dst = call.dst + group * plan.co * plan.out_c * k.s_size
    w.weights = call.weights + c.weights + group * c.group_weights
    w.bias = call.bias + group * plan.group_bias
    w.packed, w.staging, w.sums, w.zeros = ws + plan.at.panels, ws + plan.at.staging, ws + plan.at.sums, ws + plan.at.bias
    w.biases, w.unit_offsets = w.zeros + k.nr * k.t_size, <int64_t *>(ws + plan.at.unit_offsets)
    w.pieces, w.first_piece = <int64_t *>(ws + plan.at.pieces), <int64_t *>(ws + plan.at.first_piece)
    w.sum_rows, w.plane_rows = <void **>(ws + plan.at.sum_rows), <void **>(ws + plan.at.plane_rows)
    w.unit_rows = <void **>(ws + plan.at.unit_rows)
    for n in range(c.call_tiles * k.mr[2]):
        w.sum_rows[n] = w.sums + n * k.nr * k.t_size
    w.t.lda, w.t.narrow_dtype, w.t.pending = c.lda, 0, NULL


cdef void multiply_tiles(TurnedPlan plan, TurnedTask *w) noexcept nogil:
    """Multiply the next tiles of equal height by all panels, and store their outputs."""
    cdef const convt_kernels *k = plan.k
    cdef TurnedClass *c = w.c
    cdef TileGroup v
    cdef int64_t n, panel, row_bytes = plan.phases * c.lda * k.e_size
    v.unit, v.count, v.bits = c.unit[w.first], 1, 0
    while w.first + v.count < w.last and v.count < c.call_tiles and (
            c.unit[w.first + v.count + 1] - c.unit[w.first + v.count] == c.unit[w.first + 1] - v.unit):
        v.count += 1
    v.height, v.units = (c.unit[w.first + 1] - v.unit) * plan.phases, c.unit[w.first + v.count] - v.unit
    for n in range(v.units if plan.direct_store else 0):
        w.plane_rows[n] = w.dst + w.unit_offsets[v.unit - w.first_unit + n] * k.s_size
        v.bits |= <size_t>w.plane_rows[n]
    w.first += v.count
    v.next_weights = w.weights + c.unit[w.first] * row_bytes
    v.end = v.next_weights + v.units * row_bytes if plan.far else v.next_weights
    for panel in range(w.panels):
        multiply_panel(plan, w, &v, panel)


cdef void multiply_panel(TurnedPlan plan, TurnedTask *w, TileGroup *v, int64_t panel) noexcept nogil:
    """Multiply tiles by a panel, one depth chunk after the other, and store their outputs."""
    cdef const convt_kernels *k = plan.k
    cdef TurnedClass *c = w.c
    cdef convt_tile *t = &w.t
    cdef int64_t chunk, columns = min(<int64_t>k.nr, w.pixels - panel * k.nr)
    cdef int64_t step = 64 if k.parts else 128  # bytes that a tile prefetches at a time
    cdef ptrdiff_t at = 0
    cdef bint direct = plan.direct_store and can_store_directly(plan, w, panel, &at)
    t.nv = <int>convt_quotient(columns + k.vl - 1, k.vl)
    if plan.prefetch_outputs and not direct and panel + 1 < w.panels:
        prefetch_units(plan, w, v, panel + 1)
    for chunk in range(c.nchunks):
        t.kc, t.more_tiles = <int>c.chunks[3 * chunk + 1], <int>(v.count - 1)
        t.a = w.weights + (v.unit * plan.phases * c.lda + c.chunks[3 * chunk + 2]) * k.e_size
        t.b = w.packed + (panel * k.nr * c.depth + c.chunks[3 * chunk] * t.nv * k.vl) * k.e_size
        t.init, t.init_ld = w.zeros, 0
        if chunk:
            t.init, t.init_ld = w.sums, k.nr
        elif plan.direct_store:
            t.init, t.init_ld = w.biases + (v.unit - w.first_unit) * k.nr * k.t_size, k.nr
        t.prefetch, t.prefetch_step = <const char *>t.a, 0
        if v.next_weights < v.end:  # weights of the next tiles that are not in L2
            t.prefetch, t.prefetch_step = v.next_weights, step
            v.next_weights += t.kc // k.prefetch_interval * step * v.count
        if w.planes_left:
            prefetch_input(plan, w)
        t.rows, t.row_offset, t.cols, t.act, t.stream = w.sum_rows, 0, t.nv * k.vl, &plan.none, 0
        if direct and chunk == c.nchunks - 1:
            t.rows, t.row_offset, t.cols, t.act = w.plane_rows, at, <int>columns, &plan.act
            t.stream = plan.stream and not (v.bits | <size_t>(at * k.s_size)) & 63
        k.tile(<int>v.height, t)
    if not direct:
        store_units(plan, w, v, panel)


cdef void find_next_input(TurnedPlan plan, TurnedTask *w) noexcept nogil:
    """Find the inputs of the next pixel block, which the thread's next task is expected to read, and divide their prefetching
    among the kernel calls of this task.

    Nothing is prefetched if there is no such block, or if pixels are not contiguous.
    """
    cdef TurnedClass *c = w.c
    cdef int64_t ax, j, at = 0, x = plan.nd - 1, n = w.m0 + w.pixels, calls
    w.planes_left = 0
    if n >= c.tasks.rows or c.ntaps == 0 or plan.in_stride.p[x] != 1:
        return
    for ax in range(x, -1, -1):
        j = take_index(&n, c.count[ax])
        at += (c.tap_in[(c.ntaps - 1) * plan.nd + ax] + j) * plan.in_stride.p[ax]
    w.prefetch_line = w.src + (at + n * plan.in_n) * plan.k.s_size
    w.planes_left, w.lines_left = plan.ci, (c.tasks.block * plan.k.s_size + 63) // 64
    calls = c.nchunks * w.panels * ((w.last - w.first + c.call_tiles - 1) // c.call_tiles)
    w.lines_per_call = plan.ci * w.lines_left // calls + 1


cdef void prefetch_input(TurnedPlan plan, TurnedTask *w) noexcept nogil:
    """Prefetch some lines of the next task's inputs. Addresses may be invalid."""
    cdef int64_t lines = min(w.lines_per_call, w.lines_left)
    convt_prefetch_row_l2(w.prefetch_line, 64 * lines)
    w.prefetch_line += 64 * lines
    w.lines_left -= lines
    if w.lines_left == 0:
        w.planes_left -= 1
        w.lines_left = (w.c.tasks.block * plan.k.s_size + 63) // 64
        w.prefetch_line += plan.in_c * plan.k.s_size - 64 * w.lines_left


cdef void find_pieces(TurnedPlan plan, TurnedTask *w) noexcept nogil:
    """Fill `pieces`: the contiguous runs of the task's pixels along the last axis, cut at the ends of panels."""
    cdef TurnedClass *c = w.c
    cdef int64_t x = plan.nd - 1, n = 0, ax, image = w.m0, panel = 0, some
    cdef int64_t *piece = w.pieces
    cdef int64_t j[64]
    for ax in range(x, -1, -1):
        j[ax] = take_index(&image, c.count[ax])
    w.first_piece[0] = 0
    while n < w.pixels:
        some = min(min(c.count[x] - j[x], w.pixels - n), (panel + 1) * plan.k.nr - n)
        piece[0], piece[1], piece[2] = n - panel * plan.k.nr, some, image
        for ax in range(plan.nd):
            piece[3 + ax] = j[ax]
        piece += 3 + plan.nd
        n += some
        if n == (panel + 1) * plan.k.nr or n == w.pixels:
            panel += 1
            w.first_piece[panel] = (piece - w.pieces) // (3 + plan.nd)
        advance(j, c.count, plan.nd, some, &image)


cdef void pack_panel(TurnedPlan plan, TurnedTask *w, int64_t panel) noexcept nogil:
    """Pack the inputs of a panel of pixels; rows are (tap, in-channel)."""
    cdef const convt_kernels *k = plan.k
    cdef TurnedClass *c = w.c
    cdef int64_t tap, c0, rows, n, most
    cdef int64_t columns = min(<int64_t>k.nr, w.pixels - panel * k.nr)
    cdef int64_t nb = (columns + k.vl - 1) // k.vl * k.vl
    cdef char *panel_at = w.packed + panel * k.nr * c.depth * k.e_size
    cdef char *dst
    cdef bint packs_directly = k.kstep == 1  # packed rows are rows of the input, so that no second copy is needed
    most = plan.ci if packs_directly else LINES
    for tap in range(c.ntaps):
        c0 = 0
        while c0 < plan.ci:
            rows = min(most, plan.ci - c0)
            dst = panel_at + tap * plan.ci * nb * k.e_size
            if packs_directly and columns < nb:  # zeros in columns without pixels, because denormal numbers are slow
                memset(dst, 0, rows * nb * k.e_size)
            if not packs_directly:
                dst = w.staging
                if columns < nb or rows % k.kstep:  # other elements must be values that E can hold
                    memset(dst, 0, LINES * nb * k.s_size)
            for n in range(w.first_piece[panel], w.first_piece[panel + 1]):
                copy_piece(plan, w, w.pieces + n * (3 + plan.nd), c.tap_in + tap * plan.nd, c0, rows, dst, nb,
                                packs_directly)
            if not packs_directly:
                rows = convt_quotient(rows + k.kstep - 1, k.kstep) * k.kstep
                if not k.pack_b(panel_at, <int>(tap * plan.ci_p + c0), 0, w.staging, nb, 1, <int>rows, <int>nb, <int>nb):
                    convt_set(w.refused)
            c0 += most
    # NaN or infinity times the zero weights of phases that lack a tap must not reach the outputs of these phases.
    if c.nested and packs_directly and not plan.packed_kernels.finite(panel_at, c.ntaps * plan.ci * nb * k.e_size):
        convt_set(w.refused)


cdef void copy_piece(TurnedPlan plan, TurnedTask *w, int64_t *piece, int64_t *tap, int64_t c0, int64_t rows, char *dst,
                     int64_t ld, bint converts) noexcept nogil:
    """Copy ``rows`` in-channels of the inputs that a tap reads for a piece, with zeros outside the input.

    Convert them to E if ``converts``; otherwise keep S.
    """
    cdef const convt_kernels *k = plan.k
    cdef int64_t x = plan.nd - 1, ax, i, at = piece[2] * plan.in_n + c0 * plan.in_c, low, high, r
    cdef size_t size = k.e_size if converts else k.s_size
    cdef bint inside = True
    for ax in range(x):
        i = tap[ax] + piece[3 + ax]
        if i < 0 or i >= plan.in_size.p[ax]:
            inside = False
            break
        at += i * plan.in_stride.p[ax]
    i = tap[x] + piece[3 + x]
    low = min(piece[1], max(0, -i)) if inside else piece[1]
    high = max(low, min(piece[1], plan.in_size.p[x] - i))
    dst += piece[0] * size
    if high > low:
        at += (i + low) * plan.in_stride.p[x]
        if converts:
            k.widen(dst + low * size, ld, w.src + at * k.s_size, plan.in_c, plan.in_stride.p[x], <int>rows,
                    <int>(high - low), <int>(high - low))
        else:
            k.transpose(dst + low * size, ld, 1, w.src + at * k.s_size, plan.in_c, plan.in_stride.p[x], <int>rows,
                        <int>(high - low), False)
    if low > 0:
        for r in range(rows):
            memset(dst + r * ld * size, 0, low * size)
    if high < piece[1]:
        for r in range(rows):
            memset(dst + (r * ld + high) * size, 0, (piece[1] - high) * size)


cdef void find_units(TurnedPlan plan, TurnedTask *w) noexcept nogil:
    """Fill the output offset and the bias of each unit of a task."""
    cdef const convt_kernels *k = plan.k
    cdef TurnedClass *c = w.c
    cdef int64_t u, channel, lanes = k.nr if plan.direct_store else 1, first = c.unit[w.first]
    w.first_unit = first
    fill(k, w.zeros, k.nr, -0.0)  # the neutral element of addition: it keeps the sign of a zero sum
    for u in range(c.unit[w.last] - first):
        channel = convt_quotient(first + u, c.outer)
        w.unit_offsets[u] = channel * plan.out_c + c.outer_at[first + u - channel * c.outer]
        fill(k, w.biases + u * lanes * k.t_size, lanes,
             (<const double *>w.bias)[channel] if k.t_size == 8 else (<const float *>w.bias)[channel])


cdef int64_t output_offset(TurnedPlan plan, TurnedTask *w, int64_t *piece, int64_t x0) noexcept nogil:
    """Return the offset of the first output of a piece, in elements; ``x0`` is its index on the last axis."""
    cdef int64_t ax, x = plan.nd - 1, at = piece[2] * plan.out_n + x0 * plan.out_stride.p[x]
    for ax in range(x):
        if piece[3 + ax]:
            at += plan.stride.p[ax] * piece[3 + ax] * plan.out_stride.p[ax]
    return at


cdef bint can_store_directly(TurnedPlan plan, TurnedTask *w, int64_t panel, ptrdiff_t *at) noexcept nogil:
    """Check whether tiles of a panel store directly: one piece, inside the window. If so, set ``at`` to the offset of its
    first pixel."""
    cdef TurnedClass *c = w.c
    cdef int64_t *piece = w.pieces + w.first_piece[panel] * (3 + plan.nd)
    cdef int64_t x = plan.nd - 1, x0 = piece[3 + x] + c.x_first
    if w.first_piece[panel + 1] - w.first_piece[panel] > 1 or not c.whole or x0 < 0 or x0 + piece[1] > plan.out_size:
        return False
    at[0] = output_offset(plan, w, piece, x0)
    return True


cdef void prefetch_units(TurnedPlan plan, TurnedTask *w, TileGroup *v, int64_t panel) noexcept nogil:
    """Prefetch the output rows into which tiles will store a panel."""
    cdef TurnedClass *c = w.c
    cdef int64_t n, u, x = plan.nd - 1, at, x0
    cdef int64_t *piece
    for n in range(w.first_piece[panel], w.first_piece[panel + 1]):
        piece = w.pieces + n * (3 + plan.nd)
        x0 = plan.phases * piece[3 + x] + c.x_first
        if x0 < 0:
            continue
        at = output_offset(plan, w, piece, x0)
        for u in range(v.units):
            convt_prefetch_row_l1(w.dst + (at + w.unit_offsets[v.unit - w.first_unit + u]) * plan.k.s_size,
                                  plan.phases * piece[1] * plan.k.s_size)


cdef void store_units(TurnedPlan plan, TurnedTask *w, TileGroup *tiles, int64_t panel) noexcept nogil:
    """Interleave the phases of tiles of a panel, which `sums` holds, into the output."""
    cdef const convt_kernels *k = plan.k
    cdef TurnedClass *c = w.c
    cdef convt_interleave v
    cdef int64_t n, u, x = plan.nd - 1, at, x0, width = 3 + plan.nd, nth = tiles.unit - w.first_unit
    cdef int64_t *piece
    v.phases, v.rows, v.ld, v.out = plan.phases, <int>tiles.units, k.nr, w.unit_rows
    v.bias = NULL if plan.direct_store else w.biases + nth * k.t_size
    v.step, v.act, v.stream = plan.out_stride.p[x], &plan.act, plan.stream
    for n in range(w.first_piece[panel], w.first_piece[panel + 1]):
        piece = w.pieces + n * width
        x0 = plan.phases * piece[3 + x] + c.x_first
        v.first, v.last = max(0, -x0), min(plan.phases * piece[1], plan.out_size - x0)
        if v.first >= v.last:
            continue
        v.row = w.sums + piece[0] * k.t_size
        at = output_offset(plan, w, piece, x0)
        for u in range(tiles.units):
            w.unit_rows[u] = w.dst + (at + w.unit_offsets[nth + u]) * k.s_size
        if not c.whole:
            for u in range(tiles.units):
                if not is_inside(c.outer_valid + (tiles.unit + u) % c.outer * 2 * x, piece + 3, x):
                    w.unit_rows[u] = NULL
        k.interleave(&v)
