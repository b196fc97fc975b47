# cython: language_level=3
"""The loops of `scatter`: products of all taps of the last axis in one GEMM, then an overlap-add in the cache.

`ScatterPlan` runs a schedule of schedule.py. Along the other axes, an output row gathers the input rows that reach it. A task
is a part (a range of j along the last axis) of some output rows of one image and channel group:

    for each output row (or, if joined, consecutive rows of a class):
        for each depth chunk:
            read the pixels in place, or pack them unless an earlier row of the task did    -> `packed`, `kept`
            for each panel, for each register tile: products += pixels x weights            -> `products`
        for each phase of the row: overlap-add the products, add the bias, apply the activation, store

With `joined`, a task has a range of j of all images instead, and rows that are consecutive in the input are multiplied as one.
With `gathered`, a task has whole images, and each output gathers its products through a table. Products are [pixel][column]
with vectors over columns or, if `across`, [column][pixel] with vectors over pixels.

Tasks write disjoint outputs. Each thread has its own workspace with the regions of Schedule.workspace; `zeros` holds -0.0.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

cimport numpy as cnp

import numpy as np

from convt._core cimport Call, NativePlan
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_KC,
    CONVT_LDA,
    CONVT_PIXEL_MR,
    MOST_ROWS,
    convt_kernels,
    convt_overlap,
    convt_overlap_gather,
    convt_pixel_gemm,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport structures
from convt.algorithms.indexing cimport Cut, cut_at, cut_evenly, is_inside, take_index
from convt.algorithms.packing cimport PackClass
from convt.algorithms.scatter.weights cimport ScatterRecipe

from convt.algorithms.phases import AxisClass, PhaseGroup

cnp.import_array()

PANELS = PLANE_PANELS
FEW_COLUMNS = CONVT_PIXEL_MR  # up to this many columns, pixels are multiplied in place: see `multiply_pixels`

# The axis tables for `gathered`: one run, from which `compute_products` finds the first pixel.
_ONE_RUN = [PhaseGroup((), (0,), ())], [AxisClass(0, 1, (0, 1), (0,), (), (), 0, (), (0, 1))]


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


cdef class ScatterPlan(NativePlan):
    """A plan of `scatter`, which runs a Schedule of scatter/schedule.py."""

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

    def __init__(self, str name, schedule, axes, gathers, ScatterRecipe recipe, in_strides, out_strides, bint dense):
        """Make the tables of a schedule.

        ``axes`` has the result of phases.axis for each axis except the last. With `gathered`, ``gathers`` is the table of
        gathering.py instead, else None. ``dense`` says whether pixels have one constant stride across all rows and images.
        """
        problem = schedule.problem
        self.open_plan(name, problem, recipe.k, in_strides, out_strides, schedule.execution)
        self.recipe, self.equal_tasks, self.keep = recipe, True, []
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, s = self.stride.p[x], ax
        self.taps_x, self.begin, self.window = self.kernel.p[x], problem.begin[x], problem.out_sizes[x]
        self.lanes, self.terms = s * self.co, (self.taps_x + s - 1) // s
        begin, end = problem.begin[x], problem.begin[x] + problem.out_sizes[x]  # Python integers: C rounds to 0
        self.j0, self.j1, self.j_whole = begin // problem.strides[x], -(-end // problem.strides[x]), end // problem.strides[x]
        self.block, self.blocks, self.max_rows = schedule.block, schedule.blocks, schedule.pixels
        self.chunks_of_tap, self.slots, self.slot_size = schedule.chunks_of_tap, schedule.slots, schedule.slot_bytes
        self.chunk_size = self.slot_size // max(<int64_t>1, self.chunks_of_tap)
        self.in_place, self.prefetch, self.joined, self.dense = schedule.in_place, schedule.prefetch, schedule.joined, dense
        self.slab = recipe.slab
        self.across, self.panels = self.slab > 0, schedule.panels
        self.across_in_place = self.across and self.ci <= CONVT_KC and (
            self.in_stride.p[x] == 1 or (self.in_c == 1 and self.ci * k.t_size >= 16))
        # Elements between packed pixels: schedule.row_elements.
        self.lda = (schedule.depth // k.kstep | 1) * k.kstep if k.parts else k.lda
        space = schedule.workspace
        self.workspace = space.bytes
        self.at_kept, self.at_packed, self.at_products = space["kept"], space["packed"], space["products"]

        self.axes = <ScatterAxis *>cnp.PyArray_DATA(structures(self.keep, x, sizeof(ScatterAxis)))
        self.rows = self.row_js = 1
        for ax in range(x):
            groups, runs = axes[ax] if gathers is None else _ONE_RUN
            self.open_axis(self.axes + ax, groups, runs)
            self.row_js *= self.axes[ax].span
        for ax in range(x - 1, -1, -1):
            self.axes[ax].inner_rows, self.rows = self.rows, self.rows * self.axes[ax].nrows
            if not self.joined:
                self.list_axis_rows(&self.axes[ax])
        self.open_classes()
        if gathers is not None:
            columns, pixels = gathers
            self.make_gather_index(columns, pixels)
            self.rows = self.row_js = 1
        if self.joined:
            self.rows, self.row_js = self.rows * self.batch, self.row_js * self.batch
        self.row_tasks = schedule.tasks
        self.tasks = (1 if self.joined else self.batch) * self.row_tasks * self.groups * self.blocks

    cdef open_axis(self, ScatterAxis *axis, groups, runs):
        """Fill in an axis from its phase groups and runs."""
        cdef ScatterRun *r
        cdef int64_t high = 0, p
        cdef tuple firsts, valid
        axis.nruns, axis.ngroups = len(runs), len(groups)
        axis.runs = <ScatterRun *>cnp.PyArray_DATA(structures(self.keep, axis.nruns, sizeof(ScatterRun)))
        for run in runs:
            axis.phases += len(run.first_out)
        cdef int64_t *at = <int64_t *>cnp.PyArray_DATA(structures(self.keep, 3 * axis.phases, sizeof(int64_t)))
        r = axis.runs
        for run in runs:
            r.start, r.count, r.group, r.first_tap = run.start, run.count, run.group, run.tap_range[0]
            r.group_taps = len(groups[r.group].offsets) if r.group >= 0 else 0
            firsts, valid = run.first_in, run.valid
            r.taps = len(firsts)
            r.first_in = firsts[0] if r.taps else 0
            r.gap = firsts[1] - firsts[0] if r.taps > 1 else 0
            r.phase_windows, firsts = at, run.first_out
            r.phases = len(firsts)
            for p in range(r.phases):
                at[0], at[1], at[2] = firsts[p], valid[p][0], valid[p][1]
                at += 3
            if axis.nrows:
                axis.low, high = min(axis.low, r.start), max(high, r.start + r.count)
            else:
                axis.low, high = r.start, r.start + r.count
            axis.nrows, axis.taps = axis.nrows + r.count, axis.taps + r.taps
            r += 1
        axis.span = high - axis.low

    cdef list_axis_rows(self, ScatterAxis *axis):
        """List the rows of an axis in order of j."""
        cdef int64_t *at = <int64_t *>cnp.PyArray_DATA(structures(self.keep, axis.span + 1, sizeof(int64_t)))
        cdef ScatterRun *r
        cdef ScatterAxisRow *p
        cdef int64_t n, j, first = 0
        axis.rows = <ScatterAxisRow *>cnp.PyArray_DATA(structures(self.keep, axis.nrows, sizeof(ScatterAxisRow)))
        for n in range(axis.nruns):
            r = &axis.runs[n]
            for j in range(r.start - axis.low, r.start - axis.low + r.count):
                at[j + 1] += 1
        for j in range(axis.span):
            at[j + 1] += at[j]
        for n in range(axis.nruns):
            r = &axis.runs[n]
            for j in range(r.count):
                p = &axis.rows[at[r.start - axis.low + j]]
                p.j, p.run = j, n
                at[r.start - axis.low + j] += 1
        for j in range(axis.span):  # at[j] is now the end of the rows of j
            for n in range(first, at[j]):
                axis.rows[n].first, axis.rows[n].rows_of_j = first, at[j] - first
            first = at[j]

    cdef open_classes(self):
        """Fill in the classes, one for each choice of a run per axis; the last of these axes varies fastest."""
        cdef int64_t x = self.nd - 1, ax, n, nphases = 1, ntaps = 1
        cdef Py_ssize_t i
        self.nclasses = 1
        for ax in range(x):  # totals over all classes are products, too
            self.nclasses, nphases = self.nclasses * self.axes[ax].nruns, nphases * self.axes[ax].phases
            ntaps *= self.axes[ax].taps
        cdef int64_t tap_chunks = max(<int64_t>1, (self.recipe.ci_p + CONVT_KC - 1) // CONVT_KC)
        self.classes = <ScatterClass *>cnp.PyArray_DATA(structures(self.keep, self.nclasses, sizeof(ScatterClass)))
        cdef ScatterRun **runs = <ScatterRun **>cnp.PyArray_DATA(structures(self.keep, self.nclasses * x, sizeof(ScatterRun *)))
        cdef int64_t *phases = <int64_t *>cnp.PyArray_DATA(structures(self.keep, nphases * (1 + 2 * x), sizeof(int64_t)))
        cdef ScatterChunk *chunks = <ScatterChunk *>cnp.PyArray_DATA(
            structures(self.keep, ntaps * tap_chunks, sizeof(ScatterChunk)))
        cdef ScatterClass *c
        for i in range(self.nclasses):
            c, n = self.classes + i, i
            c.runs, c.phases, c.chunks, c.rows, c.ntaps, c.nphases = runs + i * x, phases, chunks, 1, 1, 1
            for ax in range(x - 1, -1, -1):
                c.runs[ax] = self.axes[ax].runs + take_index(&n, self.axes[ax].nruns)
                c.rows, c.ntaps = c.rows * c.runs[ax].count, c.ntaps * c.runs[ax].taps
                c.nphases *= c.runs[ax].phases
            phases, chunks = phases + c.nphases * (1 + 2 * x), chunks + c.ntaps * tap_chunks
            self.open_class(c)

    cdef void open_class(self, ScatterClass *c) noexcept nogil:
        """Fill in the phases, panels and depth chunks of a class."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, ax, n, p, pack = 0
        cdef int64_t *phase
        cdef int64_t *phase_window
        for p in range(c.nphases):
            phase, n = c.phases + p * (1 + 2 * x), p
            for ax in range(x - 1, -1, -1):
                phase_window = c.runs[ax].phase_windows + 3 * take_index(&n, c.runs[ax].phases)
                if phase_window[0]:  # an axis with one output may have any stride
                    phase[0] += phase_window[0] * self.out_stride.p[ax]
                phase[1 + 2 * ax], phase[2 + 2 * ax] = phase_window[1], phase_window[2]
        if c.ntaps == 0:
            return
        for ax in range(x):
            pack = pack * self.axes[ax].ngroups + c.runs[ax].group
        c.pack = self.recipe.classes + pack
        c.npanels = c.pack.npanels
        c.ld = c.npanels * k.nr + 16
        if self.across:
            for n in range(1, convt_quotient(k.nr, k.vl) + 1):
                c.tiles[n] = convt_quotient(c.pack.ncols + k.mr[n] - 1, k.mr[n])
                c.by_tile[n] = cut_evenly(c.pack.ncols, c.tiles[n], 1)
            # The stride of schedule.column_elements.
            c.ld = convt_quotient(self.max_rows + k.nr - 1, k.nr) * k.nr + 2 * k.vl + 16
        self.cut_depth(c)

    cdef void cut_depth(self, ScatterClass *c) noexcept nogil:
        """Divide the depth of a class into chunks of one tap, or of taps that are adjacent in the panel and in one slab."""
        cdef int64_t ci_p = self.recipe.ci_p, whole = ci_p if self.chunks_of_tap else self.slab
        cdef int64_t tap, ax, n, flat, step, first = 0, panel = 0, end = 0
        if not ci_p:
            c.nchunks = 1
            return
        for tap in range(c.ntaps):
            flat, n, step = 0, tap, 1
            for ax in range(self.nd - 2, -1, -1):
                flat += (c.runs[ax].first_tap + take_index(&n, c.runs[ax].taps)) * step
                step *= c.runs[ax].group_taps
            if tap and (flat * ci_p != end or (whole and end == convt_quotient(end, whole) * whole)):
                self.add_chunks(c, first, panel, end - panel)
                first = tap * ci_p
            if tap * ci_p == first:
                panel = flat * ci_p
            end = (flat + 1) * ci_p
        self.add_chunks(c, first, panel, end - panel)

    cdef void add_chunks(self, ScatterClass *c, int64_t first, int64_t panel, int64_t depth) noexcept nogil:
        """Add even chunks for contiguous depth, which starts at ``first`` in the class and at ``panel`` in the panel."""
        cdef const convt_kernels *k = self.k
        cdef int64_t n = 0, count = convt_quotient(depth + CONVT_KC - 1, CONVT_KC) * k.kstep
        cdef int64_t slab = max(<int64_t>1, self.slab), slab_index
        cdef int64_t step = convt_quotient(depth + count - 1, count) * k.kstep, ci_p = self.recipe.ci_p
        cdef ScatterChunk *ch
        while n < depth:
            ch = c.chunks + c.nchunks
            ch.depth, ch.panel = min(step, depth - n), panel + n
            ch.tap = convt_quotient(first + n, ci_p)
            ch.channel = first + n - ch.tap * ci_p
            slab_index = convt_quotient(ch.panel, slab)
            ch.at = (slab_index * c.pack.ncols * CONVT_LDA + ch.panel - slab_index * slab) * k.e_size
            ch.prefetches = convt_quotient(ch.depth, k.prefetch_interval)
            c.nchunks += 1
            n += step

    def taps_of_tasks(self):
        """Return for each task a list of the number of input rows that each of its output rows reads."""
        cdef int64_t group, image, first, last, j_lo, n, low
        cdef Py_ssize_t task, i
        cdef Row row
        found = []
        for task in range(self.tasks):
            self.locate_task(task, &group, &image, &first, &last, &j_lo)
            taps = []
            if not self.joined:
                for n in range(first, last):
                    taps.append(self.find_row(n, &row).ntaps)
            elif not self.gather_index:
                for i in range(self.nclasses):
                    n = self.rows_before(&self.classes[i], last) - self.rows_before(&self.classes[i], first)
                    taps += [self.classes[i].ntaps] * n
            found.append(taps)
        return found

    cdef make_gather_index(self, columns, pixels):
        """Make the index table of the terms of each output from ``columns`` and ``pixels``, [output][term] (gathering.py)."""
        cdef ScatterClass *c = self.classes
        count, terms = columns.shape
        index = np.zeros((-(-count // self.k.vl) * self.k.vl, 1 + terms), np.int32)
        index[:count, 0] = np.arange(count) % self.co
        index[:count, 1:] = columns * c.ld + pixels
        self.gathers = np.ascontiguousarray(index.reshape(-1, self.k.vl, 1 + terms).transpose(0, 2, 1))
        self.gather_index = <int32_t *>cnp.PyArray_DATA(self.gathers)
        self.outputs, self.gather_terms = count, terms

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task in the loop order of the module docstring."""
        if convt_is_set(call.refused):  # the call is repeated, because another task found values that need a direct sum
            return
        cdef PackedRow *kept = <PackedRow *>(ws + self.at_kept)
        cdef int64_t n, group, image, first, last, j_lo, end
        cdef Py_ssize_t i
        cdef ScatterClass *c
        cdef Row row
        for n in range(self.slots):
            kept[n].used = -1
        for n in range(self.k.nr):  # -0.0, the neutral element of addition, which keeps the sign of zero
            if self.k.t_size == 8:
                (<double *>ws)[n] = -0.0
            else:
                (<float *>ws)[n] = -0.0
        self.locate_task(task, &group, &image, &first, &last, &j_lo)
        if self.gather_index:
            self.run_images(first, last, call, ws)
        elif self.joined:
            for i in range(self.nclasses):
                c = self.classes + i
                n, end = self.rows_before(c, first), self.rows_before(c, last)
                while n < end:
                    self.row_of_class(c, n, &row)
                    n = self.run_rows(task, c, &row, group, n, end, j_lo, call, ws)
        else:
            for n in range(first, last):
                c = self.find_row(n, &row)
                row.image = image
                self.run_rows(task, c, &row, group, n, last, j_lo, call, ws)

    cdef void locate_task(self, Py_ssize_t task, int64_t *group, int64_t *image, int64_t *first, int64_t *last,
                          int64_t *j_lo) noexcept nogil:
        """Return the channel group, image, rows [first, last) and first j along the last axis of a task.

        For joined rows, [first, last) is a range of j of all images (see `rows_before`); with `gathered`, a range of images.
        """
        cdef int64_t rest = convt_quotient(task, self.groups), image_task = convt_quotient(rest, self.blocks), all = self.rows
        group[0] = task - rest * self.groups  # tasks of the same pixels are adjacent, because groups share cache lines
        j_lo[0] = self.j0 + (rest - image_task * self.blocks) * self.block
        image[0] = convt_quotient(image_task, self.row_tasks)
        task = image_task - image[0] * self.row_tasks
        if self.joined:
            all = self.row_js
        first[0], last[0] = convt_quotient(all * task, self.row_tasks), convt_quotient(all * (task + 1), self.row_tasks)

    cdef ScatterClass *find_row(self, int64_t n, Row *row) noexcept nogil:
        """Return the class of the n-th row of an image, and fill ``row``.

        Rows are in order of j, the first axis outermost. Rows with equal j and different phase groups are adjacent, because
        they read the same inputs.
        """
        cdef int64_t x = self.nd - 1, ax, same_j_rows = 1, index = 0, step = 1
        cdef int64_t firsts[MOST_AXES]
        cdef ScatterAxis *axis
        cdef ScatterAxisRow *p
        row.image = 0
        for ax in range(x):
            axis = self.axes + ax
            p = axis.rows + convt_quotient(n, same_j_rows * axis.inner_rows)
            firsts[ax] = p.first
            n -= p.first * same_j_rows * axis.inner_rows
            same_j_rows *= p.rows_of_j
        for ax in range(x - 1, -1, -1):  # n is now the index among the rows of these j
            axis = self.axes + ax
            p = axis.rows + firsts[ax]
            if p.rows_of_j > 1:
                p += take_index(&n, p.rows_of_j)
            row.j[ax] = p.j
            index += p.run * step
            step *= axis.nruns
        return self.classes + index

    cdef void row_of_class(self, const ScatterClass *c, int64_t n, Row *row) noexcept nogil:
        """Fill ``row`` with the n-th row of a class, counted across images."""
        cdef int64_t ax
        for ax in range(self.nd - 2, -1, -1):
            row.j[ax] = take_index(&n, c.runs[ax].count)
        row.image = n

    cdef int64_t rows_before(self, const ScatterClass *c, int64_t row_j) noexcept nogil:
        """Return the number of rows of a class, of all images, before a j. ``row_j`` counts j across images and axes."""
        cdef int64_t ax, at, span = 1, rows = c.rows, found
        for ax in range(self.nd - 1):
            span *= self.axes[ax].span
        at = convt_quotient(row_j, span)
        found, row_j = at * rows, row_j - at * span
        for ax in range(self.nd - 1):
            span = convt_quotient(span, self.axes[ax].span)
            at = convt_quotient(row_j, span)
            row_j -= at * span
            at += self.axes[ax].low - c.runs[ax].start
            if at < 0:
                return found
            if at >= c.runs[ax].count:
                return found + rows
            rows = convt_quotient(rows, c.runs[ax].count)
            found += at * rows
        return found

    cdef int64_t pixels_between(self, const ScatterClass *c, const Row *row, const Row *other) noexcept nogil:
        """Return the distance in pixels between the inputs of two rows of a class, if pixels have one constant stride."""
        cdef int64_t ax, n = other.image - row.image
        for ax in range(self.nd - 1):
            n = n * self.in_size.p[ax] + other.j[ax] - row.j[ax]
        return n * self.in_size.p[self.nd - 1]

    cdef int64_t run_rows(self, Py_ssize_t task, ScatterClass *c, Row *row, int64_t group, int64_t first, int64_t last,
                          int64_t j_lo, const Call *call, char *ws) noexcept nogil:
        """Compute the task's part of row ``first`` or, if joined, of as many rows of the class as are contiguous in the input.

        Multiply the pixels of all taps, then overlap-add each phase of each row. Return the number of the next row.
        """
        cdef const convt_kernels *k = self.k
        cdef Row other
        cdef int64_t x = self.nd - 1, j_hi = min(self.j1, j_lo + self.block), ax, at, n, next_bytes, pixels, end = first + 1
        cdef int64_t i_lo = max(0, j_lo - self.terms + 1), i_hi = min(self.in_size.p[x], j_hi)
        cdef char *col = ws + self.at_products
        cdef const char *next
        if self.across:
            col += k.vl * k.t_size

        if c.ntaps and i_lo < i_hi:
            pixels = i_hi - i_lo
            while self.joined and self.dense and end < last:
                self.row_of_class(c, end, &other)
                at = self.pixels_between(c, row, &other) + i_hi - i_lo
                if at > self.max_rows:
                    break
                end, pixels = end + 1, at
            next = self.next_pixels(task, c, end, last, row.image, j_lo, call, &next_bytes)
            self.compute_products(c, call.weights + c.pack.weights + group * c.pack.group_weights,
                                  call.src + (row.image * self.in_n + group * self.ci * self.in_c) * k.s_size, row.j,
                                  first, i_lo, pixels, ws, col, next, next_bytes, call.refused)
        else:
            i_hi = i_lo

        cdef convt_overlap o
        o.ld, o.i0, o.i1 = c.ld, i_lo, i_hi
        o.terms, o.lanes, o.cols = <int>self.terms, <int>self.lanes, <int>(self.taps_x * self.co)
        o.channels = <int>self.co
        o.init = call.bias + group * self.lanes * k.t_size
        o.out_x, o.out_c = self.out_stride.p[x], self.out_c
        o.act = &self.act
        cdef int64_t p
        cdef int64_t *phase
        other = row[0]
        for n in range(first, end):
            if n > first:
                self.row_of_class(c, n, &other)
            pixels = self.pixels_between(c, row, &other)
            at = other.image * self.out_n + group * self.co * self.out_c
            for ax in range(x):
                if other.j[ax]:  # an axis with one output may have any stride, so that a product could overflow
                    at += self.stride.p[ax] * other.j[ax] * self.out_stride.p[ax]
            for p in range(c.nphases):
                phase = c.phases + p * (1 + 2 * x)
                if is_inside(phase + 1, other.j, x):
                    o.col = col + (p * o.cols * (c.ld if self.across else 1) + pixels) * k.t_size
                    self.overlap_row(&o, j_lo, j_hi, call.dst + (at + phase[0]) * k.s_size)
        return end

    cdef void run_images(self, int64_t first, int64_t last, const Call *call, char *ws) noexcept nogil:
        """Compute images [first, last) with `gathered`: multiply all pixels by all taps, then each output gathers its terms."""
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c = self.classes
        cdef char *col = ws + self.at_products + k.vl * k.t_size
        cdef char *dummy = col + c.pack.ncols * c.ld * k.t_size  # the dummy column, which each image reads at its first pixel
        cdef int64_t pixels = 1, n
        cdef int64_t j[MOST_AXES]
        cdef convt_overlap_gather o
        for n in range(self.nd):
            pixels *= self.in_size.p[n]
            j[n] = 0
        self.compute_products(c, call.weights + c.pack.weights, call.src + first * self.in_n * k.s_size, j, first, 0,
                              (last - first) * pixels, ws, col, call.src, 0, call.refused)
        o.index, o.terms, o.count = self.gather_index, self.gather_terms, self.outputs
        o.init, o.act = call.bias, &self.act
        for n in range(last - first):
            o.col = col + n * pixels * k.t_size
            o.out = call.dst + (first + n) * self.out_n * k.s_size
            memcpy(dummy + n * pixels * k.t_size, ws, k.t_size)  # -0.0
            k.overlap_gather(&o)

    cdef void overlap_row(self, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil:
        """Overlap-add outputs [s * j, s * j_hi) of a row and store them.

        One kernel call does all j whose outputs are all inside the window; a j that the window cuts takes a call of its own.
        """
        cdef int64_t s = self.stride.p[self.nd - 1], lo, hi
        o.out_j = s * o.out_x
        while j < j_hi:
            lo, hi = max(0, self.begin - s * j), min(s, self.begin + self.window - s * j)
            o.j0, o.j1 = j, j + 1
            if lo == 0 and hi == s:
                o.j1 = max(j + 1, min(j_hi, self.j_whole))
            o.lane_lo, o.lane_hi = <int>(lo * self.co), <int>(hi * self.co)
            o.out = dst + (s * j - self.begin) * o.out_x * self.k.s_size
            if self.across:
                self.k.overlap_pixels(o)
            else:
                self.k.overlap(o)
            j = o.j1

    cdef void compute_products(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t row_index,
                               int64_t i_lo, int64_t m, char *ws, char *col, const char *next, int64_t next_bytes,
                               char *refused) noexcept nogil:
        """Multiply m pixels from i_lo on by all columns, and sum over the taps of the row and in-channels, into ``col``.

        Loop order: depth chunks, panels of columns, register tiles of pixels. If `across` and pixels are not kept: some panels
        of pixels, depth chunks, panels of pixels, register tiles of columns. ``next`` is the address that tiles prefetch,
        ``next_bytes`` the bytes there.
        """
        cdef const convt_kernels *k = self.k
        cdef int64_t tiles, chunk, p, i, some, r0, r1, r, ncols = c.pack.ncols, most = k.mr[k.nr // k.vl]
        cdef ScatterChunk *ch
        cdef char *zeros = ws
        cdef char *a
        cdef void *rows[MOST_ROWS]
        cdef Cut by_tile
        cdef convt_tile t
        cdef PlanePrefetch plane_prefetch
        plane_prefetch.lines_left = 0
        t.rows = rows
        t.row_offset = 0
        t.act = &self.none
        t.stream, t.narrow_dtype, t.more_tiles, t.pending = 0, 0, 0, NULL
        t.prefetch, t.prefetch_step = next, 0
        if next_bytes:  # each tile prefetches a part of the next row's input
            if self.across:
                tiles = c.tiles[k.nr // k.vl] * convt_quotient(m + k.nr - 1, k.nr)
            else:
                tiles = c.npanels * convt_quotient(m + most - 1, most)
            i = max(<int64_t>1, tiles * c.chunks.prefetches * c.nchunks)
            t.prefetch_step = min(<int64_t>PREFETCHED, convt_quotient(next_bytes + i - 1, i))
        if self.across_in_place and c.pack.ncols <= CONVT_PIXEL_MR and not self.chunks_of_tap:
            self.multiply_pixels(c, weights, src, j, i_lo, m, col)
            return
        if self.across and not self.chunks_of_tap:  # a few panels of pixels at a time, which stay in the cache
            a = self.slot(ws, 0)
            p = 0
            while p < m:
                some = min(self.panels * k.nr, m - p)
                for chunk in range(c.nchunks):
                    ch = c.chunks + chunk
                    self.pack_pixels(c, ch, src, j, i_lo + p, some, a, refused)
                    if self.prefetch and self.in_stride.p[self.nd - 1] == 1:
                        self.prefetch_planes(c, chunk, &t, &plane_prefetch, src, j, i_lo + p, some)
                    i = 0
                    while i < some:
                        self.multiply_across(c, chunk, &t, a + i * ch.depth * k.e_size, weights, p + i, m, col, zeros,
                                             &plane_prefetch)
                        i += k.nr
                p += some
            return
        for chunk in range(c.nchunks):
            ch = c.chunks + chunk
            if self.in_place:
                a = src + (self.tap_at(c, ch.tap, j) + i_lo * self.in_stride.p[self.nd - 1] + ch.channel) * k.s_size
                t.lda = self.in_stride.p[self.nd - 1]
            else:
                a, t.lda = self.packed_pixels(c, chunk, src, j, row_index, i_lo, m, ws, refused), self.lda
            if self.across:
                p = 0
                while p < m:
                    self.multiply_across(c, chunk, &t, a + p * ch.depth * k.e_size, weights, p, m, col, zeros, &plane_prefetch)
                    p += k.nr
                continue
            t.kc = <int>ch.depth
            for p in range(c.npanels):
                t.nv = <int>convt_quotient(min(k.nr, ncols - p * k.nr) + k.vl - 1, k.vl)
                t.cols = t.nv * k.vl
                tiles = convt_quotient(m + k.mr[t.nv] - 1, k.mr[t.nv])
                by_tile = cut_evenly(m, tiles, k.grain)
                t.b = weights + (p * k.nr * c.pack.depth + ch.panel * t.cols) * k.e_size
                r1 = 0
                for i in range(tiles):
                    r0, r1 = r1, cut_at(&by_tile, i + 1)
                    t.a = a + r0 * t.lda * k.e_size
                    for r in range(r0, r1):
                        rows[r - r0] = col + (r * c.ld + p * k.nr) * k.t_size
                    t.init = rows[0] if chunk else zeros
                    t.init_ld = c.ld if chunk else 0
                    k.tile(<int>(r1 - r0), &t)
                    t.prefetch += ch.prefetches * t.prefetch_step

    cdef void multiply_pixels(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t i_lo, int64_t m,
                              char *col) noexcept nogil:
        """Do the work of `compute_products` if `across` and columns are few.

        Pixels are multiplied in place, because packing costs more than it gains.
        """
        cdef int64_t in_x = self.in_stride.p[self.nd - 1], tap = 0, chunk, depth
        cdef convt_pixel_gemm t
        t.kc, t.pixels, t.cs, t.rs, t.ld, t.out = <int>self.ci, <int>m, in_x, self.in_c, c.ld, col
        for chunk in range(c.nchunks):
            depth = 0
            while depth < c.chunks[chunk].depth:  # whole taps
                t.src = src + (self.tap_at(c, tap, j) + i_lo * in_x) * self.k.s_size
                t.a = weights + c.chunks[chunk].at + depth * self.k.e_size
                t.add = tap > 0
                self.k.pixel_gemm(<int>c.pack.ncols, &t)
                depth, tap = depth + self.ci, tap + 1

    cdef void multiply_across(self, ScatterClass *c, int64_t chunk, convt_tile *t, char *panel, char *weights, int64_t first,
                              int64_t m, char *col, char *zeros, PlanePrefetch *plane_prefetch) noexcept nogil:
        """Multiply the panel of pixels that begins at pixel ``first`` of m by all columns, for one depth chunk."""
        cdef const convt_kernels *k = self.k
        cdef ScatterChunk *ch = c.chunks + chunk
        cdef int64_t i, r, r0, r1 = 0
        cdef void *rows[MOST_ROWS]
        t.rows = rows
        t.kc, t.lda, t.b = <int>ch.depth, CONVT_LDA, panel
        t.nv = <int>convt_quotient(min(k.nr, m - first) + k.vl - 1, k.vl)
        t.cols = t.nv * k.vl
        for i in range(c.tiles[t.nv]):
            r0, r1 = r1, cut_at(&c.by_tile[t.nv], i + 1)
            t.a = weights + ch.at + r0 * CONVT_LDA * k.e_size
            for r in range(r0, r1):
                rows[r - r0] = col + (r * c.ld + first) * k.t_size
            t.init = rows[0] if chunk else zeros
            t.init_ld = c.ld if chunk else 0
            k.tile(<int>(r1 - r0), t)
            t.prefetch += ch.prefetches * t.prefetch_step
            if plane_prefetch.lines_left and t.prefetch >= plane_prefetch.end:  # go on with the next line of each plane
                t.prefetch = plane_prefetch.end - plane_prefetch.span_bytes + 64
                plane_prefetch.end += 64
                plane_prefetch.lines_left -= 1
                if plane_prefetch.lines_left == 0:
                    t.prefetch_step = 0

    cdef void prefetch_planes(self, ScatterClass *c, int64_t chunk, convt_tile *t, PlanePrefetch *plane_prefetch, char *src,
                              const int64_t *j, int64_t i, int64_t some) noexcept nogil:
        """Make the tiles of a depth chunk prefetch the planes that are packed next.

        They prefetch one cache line of each plane, then the next line of each plane. Pixels [i, i + some) are those multiplied
        now. The prefetched addresses need not be valid.
        """
        cdef ScatterChunk *ch = c.chunks + (0 if chunk + 1 == c.nchunks else chunk + 1)
        if chunk + 1 == c.nchunks:
            i += some
        t.prefetch_step = self.in_c * self.k.s_size
        t.prefetch = src + (self.tap_at(c, ch.tap, j) + i + ch.channel * self.in_c) * self.k.s_size
        plane_prefetch.span_bytes = t.prefetch_step * ch.depth
        plane_prefetch.end = t.prefetch + plane_prefetch.span_bytes
        plane_prefetch.lines_left = self.panels * self.k.nr * self.k.s_size // 64

    cdef const char *next_pixels(self, Py_ssize_t task, ScatterClass *c, int64_t n, int64_t last, int64_t image, int64_t j_lo,
                                 const Call *call, int64_t *bytes) noexcept nogil:
        """Return the address of the pixels to prefetch: those of row n or, if the task has no such row, of the next task.

        ``bytes`` receives their size; 0 if they are not contiguous, or if other classes have read them. The pixels are those of
        the last tap, because earlier rows have read the inputs of the other taps.
        """
        cdef int64_t group, i_lo, i_hi, pixels, x = self.nd - 1
        cdef Row row
        bytes[0] = 0
        if not self.prefetch or self.in_c != 1 or self.in_stride.p[x] != self.ci:
            return call.src
        if n == last:
            if task + 1 == self.tasks or (self.joined and c != self.classes + self.nclasses - 1):
                return call.src
            self.locate_task(task + 1, &group, &image, &n, &last, &j_lo)
            if self.joined:
                c = self.classes
                n, last = self.rows_before(c, n), self.rows_before(c, last)
            if n == last:
                return call.src
        if self.joined:
            self.row_of_class(c, n, &row)
        else:
            c = self.find_row(n, &row)
            row.image = image
        i_lo, i_hi = max(0, j_lo - self.terms + 1), min(self.in_size.p[x], j_lo + self.block)
        if not c.ntaps or i_lo >= i_hi:
            return call.src
        pixels = i_hi - i_lo
        if self.joined:
            pixels = min(self.max_rows, (last - n) * self.in_size.p[x])
        bytes[0] = pixels * self.ci * self.k.s_size
        return call.src + self.k.s_size * (
            row.image * self.in_n + self.tap_at(c, c.ntaps - 1, row.j) + i_lo * self.in_stride.p[x])

    cdef int64_t tap_at(self, const ScatterClass *c, int64_t tap, const int64_t *j) noexcept nogil:
        """Return the input offset of the row that a tap reads, for the output row at ``j``."""
        cdef int64_t ax, at = 0
        cdef ScatterRun *r
        for ax in range(self.nd - 2, -1, -1):
            r = c.runs[ax]
            at += (r.first_in + (take_index(&tap, r.taps) if ax else tap) * r.gap + j[ax]) * self.in_stride.p[ax]
        return at

    cdef char *packed_pixels(self, ScatterClass *c, int64_t chunk, char *src, const int64_t *j, int64_t row_index, int64_t i_lo,
                             int64_t m, char *ws, char *refused) noexcept nogil:
        """Return the packed pixels of a depth chunk.

        They are packed now, unless a slot holds them from an earlier row of the task. ``row_index`` is the number of the output
        row. A new input row replaces the least recently used slot.
        """
        cdef PackedRow *kept = <PackedRow *>(ws + self.at_kept)
        cdef char *dst
        cdef int64_t n, at, part, oldest = 0
        if not self.chunks_of_tap:
            self.pack_pixels(c, c.chunks + chunk, src, j, i_lo, m, self.slot(ws, 0), refused)
            return self.slot(ws, 0)
        at, part = self.tap_at(c, c.chunks[chunk].tap, j), chunk - c.chunks[chunk].tap * self.chunks_of_tap
        for n in range(self.slots):
            if kept[n].used >= 0 and kept[n].at == at:
                kept[n].used = row_index
                return self.slot(ws, n) + part * self.chunk_size
            if kept[n].used < kept[oldest].used:
                oldest = n
        kept[oldest].at, kept[oldest].used = at, row_index
        dst = self.slot(ws, oldest)
        for n in range(self.chunks_of_tap):
            self.pack_pixels(c, c.chunks + chunk - part + n, src, j, i_lo, m, dst + n * self.chunk_size, refused)
        return dst + part * self.chunk_size

    cdef char *slot(self, char *ws, int64_t n) noexcept nogil:
        """Return the address of the n-th slot."""
        return ws + self.at_packed + n * self.slot_size

    cdef void pack_pixels(self, ScatterClass *c, const ScatterChunk *chunk, char *src, const int64_t *j, int64_t i_lo,
                          int64_t m, char *dst, char *refused) noexcept nogil:
        """Pack pixels [i_lo, i_lo + m) of a depth chunk: as rows of the GEMM's A or, if `across`, as panels of its B."""
        cdef const convt_kernels *k = self.k
        cdef int64_t ci_p = self.recipe.ci_p, in_x = self.in_stride.p[self.nd - 1]
        cdef int64_t depth = 0, tap = chunk.tap, first = chunk.channel, last, p, cols, at, n, r
        while depth < chunk.depth:
            last = min(ci_p, first + chunk.depth - depth)
            at = self.tap_at(c, tap, j) + i_lo * in_x + first * self.in_c
            if self.across:
                p = 0
                while in_x == 1 and p + k.nr <= m:  # contiguous pixels of a plane, for some panels at a time
                    n = min(<int64_t>PLANE_PANELS, convt_quotient(m - p, k.nr))
                    for r in range(min(self.ci, last) - first):
                        k.widen(dst + (p * chunk.depth + (depth + r) * k.nr) * k.e_size, k.nr * chunk.depth,
                                src + (at + r * self.in_c + p) * k.s_size, k.nr, 1, <int>n, k.nr, k.nr)
                    p += n * k.nr
                while p < m:
                    cols = k.nr
                    if m - p < k.nr:
                        cols = convt_quotient(m - p + k.vl - 1, k.vl) * k.vl
                    k.widen(dst + (p * chunk.depth + depth * cols) * k.e_size, cols, src + (at + p * in_x) * k.s_size,
                            self.in_c, in_x, <int>(min(self.ci, last) - first), <int>min(m - p, cols), <int>cols)
                    p += k.nr
            elif not k.pack(dst + depth * k.e_size, self.lda, src + at * k.s_size, in_x, self.in_c, <int>m,
                            <int>(min(self.ci, last) - first), <int>(last - first)):
                convt_set(refused)
            depth += last - first
            tap, first = tap + 1, 0
