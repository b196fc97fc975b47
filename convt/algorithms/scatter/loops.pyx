# cython: language_level=3
"""The loops of `scatter`: products of all taps of the last axis in one GEMM, then an overlap-add in the cache.

`ScatterPlan` runs a schedule of schedule.py. Along the other axes, an output row gathers the input rows that reach it. A task
is a part (a range of j along the last axis) of some output rows of one image and channel group:

    for each output row (or, if joined, consecutive rows of a class):
        for each depth chunk:
            read the pixels in place, or pack them unless an earlier row of the task did    -> `packed`, `kept`
            for each panel, for each register tile: products += pixels x weights            -> `products`
        for each phase of the row: overlap-add the products, add the bias, apply the activation, store

With `joined`, a task has a share of the rows of each class in all images instead, and rows that are consecutive in the input
are multiplied as one. With `bands`, a task multiplies all pixels between its first and its last input row by all taps of all
axes, and adds the rows of products that reach an output row. With `gathered`, a task has whole images, and each output gathers
its products through a table. Products are [pixel][column] with vectors over columns or, if `across`, [column][pixel] with
vectors over pixels.

Tasks write disjoint outputs. Each thread has its own workspace with the regions of Schedule.workspace; `zeros` holds -0.0.
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

cimport numpy as cnp

from convt._core cimport Call, NativePlan, kernels_of
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_KC,
    CONVT_LDA,
    CONVT_PIXEL_MR,
    CONVT_MOST_ROWS,
    convt_act,
    convt_kernels,
    convt_overlap,
    convt_overlap_gather,
    convt_pixel_gemm,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport keep_table, structures
from convt.algorithms.indexing cimport Cut, cut_at, cut_evenly, fill, is_inside, take_index
from convt.algorithms.packing cimport PackClass
from convt.algorithms.row_plan cimport KeptRow, clear_kept_rows, place_of_row
from convt.algorithms.scatter.weights cimport ScatterRecipe

from convt.algorithms.direct.tables import depth_chunks

cnp.import_array()

cdef enum:
    PREFETCHED = 128  # the most bytes by which a prefetch advances: two cache lines, because fetching one also fetches the next
    MOST_AXES = 64    # the most axes, as in NumPy


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
    int64_t stride, in_size, out_step  # out_step: elements between adjacent positions
    int64_t nruns, ngroups
    ScatterRun *runs
    int64_t phases        # sum over all runs
    int64_t nrows, inner_rows  # rows of this axis, and rows of all later axes
    ScatterAxisRow *rows  # NULL if rows are joined


cdef struct ScatterChunk:
    # A depth chunk.
    int64_t depth
    int64_t tap, channel  # its first tap and in-channel
    int64_t panel         # its first depth in the panel
    int64_t at            # across: its offset in the weights in bytes
    int64_t prefetches    # lines that a tile prefetches
    int64_t share         # in place: elements between the first planes that adjacent tiles prefetch


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
    int64_t *tap_columns  # bands: [tap][phase] first column of the products
    Cut by_tile[3]        # across: division of the columns into tiles, for each number of vectors of pixels
    int64_t tiles[3]      # across: number of tiles, for each number of vectors of pixels
    int64_t tiles_in_place  # across: number of tiles that multiply pixels in place; 0: pixels are packed
    Cut by_tile_in_place  # division of the columns into these tiles
    PackClass *pack


cdef struct Decisions:
    # Fields of schedule.Schedule.
    int64_t block, blocks, tasks, chunks_of_tap, pixels, slots, lda, ld
    size_t slot_bytes
    bint joined, in_place, prefetch, tile_first


cdef struct Regions:
    # Offsets of the regions of the workspace.
    size_t kept, packed, products


cdef struct Scatter:
    # All that the loops read.
    const convt_kernels *k
    convt_act act, none
    Decisions schedule
    Regions region
    ScatterAxis *axes     # axes other than the last
    ScatterClass *classes
    int64_t naxes, nclasses
    # sizes and steps (elements between adjacent positions) of data and output; ci_p: in-channels in whole steps of depth
    int64_t batch, groups, ci, ci_p, co, in_n, in_c, out_n, out_c
    int64_t stride, in_size, in_step, out_step  # the last axis: its stride, inputs and steps
    int64_t begin, window # window of the last axis
    int64_t j0, j1, j_whole  # j of a row; from j_whole on, the window does not show all outputs of a j
    int64_t taps_x, terms, lanes  # taps of the last axis, the most terms of an output, outputs (phase, out-channel) of a j
    int64_t rows, tasks   # rows of an image, unless joined; all tasks
    int64_t *in_steps     # for each axis other than the last: elements between adjacent positions of the input
    int64_t *pixel_steps  # pixels between the input rows of each axis
    int64_t pixels        # pixels of an image
    bint dense            # the pixels of an image have one constant stride, so that rows consecutive in the input are one GEMM
    bint dense_images     # so have the pixels of all images
    bint across           # vectors run over pixels
    bint by_panels        # across: a panel of pixels at a time is packed for all depth chunks and multiplied
    int64_t slab, tap_depth  # see weights.pyx
    size_t chunk_size     # bytes of a packed depth chunk
    # bands
    bint bands
    ScatterClass band     # the GEMM of a task; `classes` are the rows that it adds up
    const convt_kernels *sums  # kernels of the dtype of products
    # gathered
    int32_t *gather_index # for each vector of outputs, indices of its bias and products; NULL: overlap-add by rows
    int64_t outputs
    int gather_terms


cdef struct Part:
    # The part of the outputs that a task computes.
    int64_t share, group, image  # number of the task among the tasks of its rows; channel group; image, unless joined
    int64_t j_lo          # first j along the last axis
    int64_t first, last   # rows: of the image or, if joined, of a class in all images


cdef struct Row:
    int64_t image
    int64_t j[MOST_AXES]  # j on each axis other than the last, relative to the start of its run


cdef struct Product:
    # The multiplication of the pixels of a row, or of rows that are one GEMM, by all columns of their class.
    ScatterClass *c
    char *weights         # the weights of the channel group
    char *src             # the image and channel group in the input
    const int64_t *j      # the (first) output row, and its number
    int64_t row
    int64_t i_lo, m       # first pixel along the last axis, number of pixels
    char *ws
    char *col             # products
    char *refused
    int64_t slot          # number of the slot that holds the tap's input row
    bint is_kept          # that slot held it before this output row
    convt_tile t
    void *rows[CONVT_MOST_ROWS]


cdef class ScatterPlan(NativePlan):
    """A plan of `scatter`, which runs a Schedule of scatter/schedule.py."""

    cdef ScatterRecipe recipe
    cdef list keep
    cdef object gathers  # owner of `gather_index`
    cdef Scatter loops

    def __init__(self, schedule, axes, gathers, columns, ScatterRecipe recipe, in_strides, out_strides, bint dense,
                 bint dense_images):
        """Make the tables of a schedule.

        ``axes`` has the result of phases.axis for each axis except the last. ``gathers`` is the `gather_index` of bind.py, or
        None. ``columns`` are the `tap_columns` of each class for bands, or None. ``dense`` says whether pixels have one
        constant stride across the rows of an image, ``dense_images`` whether also across images.
        """
        problem = schedule.problem
        self.open_plan(problem, recipe.k, in_strides, out_strides, schedule.execution)
        self.recipe, self.equal_tasks, self.keep, self.gathers = recipe, True, [], gathers
        cdef Scatter *s = &self.loops
        cdef int64_t x = self.nd - 1, ax
        s.schedule, s.region = schedule._asdict(), {name: at for name, at, _ in schedule.workspace.regions}
        s.k, s.act, s.none, s.naxes = self.k, self.act, self.none, x
        s.batch, s.groups, s.ci, s.ci_p, s.co = self.batch, self.groups, self.ci, recipe.ci_p, self.co
        s.in_n, s.in_c, s.out_n, s.out_c = self.in_n, self.in_c, self.out_n, self.out_c
        s.stride, s.in_size, s.in_step, s.out_step = (
            self.stride.p[x], self.in_size.p[x], self.in_stride.p[x], self.out_stride.p[x])
        s.begin, s.window, s.taps_x = problem.begin[x], problem.out_sizes[x], self.kernel.p[x]
        s.j0, s.j1 = schedule.js
        s.j_whole = (problem.begin[x] + problem.out_sizes[x]) // problem.strides[x]  # Python integers: C rounds to 0
        s.lanes, s.terms = s.stride * self.co, (s.taps_x + s.stride - 1) // s.stride
        s.dense, s.dense_images, s.slab, s.tap_depth = dense, dense_images, recipe.slab, recipe.tap_depth
        s.chunk_size = s.schedule.slot_bytes // max(1, schedule.chunks_of_tap)
        s.across = s.slab > 0
        s.by_panels = s.across and not s.schedule.chunks_of_tap
        s.axes = <ScatterAxis *>zeroed(self.keep, x, sizeof(ScatterAxis))
        s.in_steps, s.pixel_steps = self.in_stride.p, <int64_t *>zeroed(self.keep, x, sizeof(int64_t))
        s.rows, s.pixels = 1, s.in_size
        for ax in range(x - 1, -1, -1):
            s.axes[ax].stride, s.axes[ax].in_size, s.axes[ax].out_step = (
                self.stride.p[ax], self.in_size.p[ax], self.out_stride.p[ax])
            s.pixel_steps[ax], s.pixels = s.pixels, s.pixels * s.axes[ax].in_size
            groups, runs = axes[ax]
            open_axis(s.axes + ax, groups, runs, self.keep)
            s.axes[ax].inner_rows, s.rows = s.rows, s.rows * s.axes[ax].nrows
            if not s.schedule.joined:
                list_axis_rows(s.axes + ax, self.keep)
        s.bands, s.sums = columns is not None, kernels_of("float64" if self.k.t_size == 8 else "float32")
        open_classes(s, recipe.classes, self.keep)
        if s.bands:
            open_band(s, recipe.classes, self.keep)
            for n, table in enumerate(columns):
                s.classes[<Py_ssize_t>n].tap_columns = keep_table(self.keep, table)
        if gathers is not None:
            s.gather_index, s.outputs = <int32_t *>cnp.PyArray_DATA(gathers), self.co
            s.gather_terms = gathers.shape[1] - 1
            for ax in range(self.nd):
                s.outputs *= problem.out_sizes[ax]
        s.tasks = (1 if schedule.joined else self.batch) * schedule.tasks * self.groups * schedule.blocks
        self.tasks, self.workspace = s.tasks, schedule.workspace.bytes

    def taps_of_tasks(self):
        """Return for each task a list of the number of input rows that each of its output rows reads."""
        cdef Scatter *s = &self.loops
        cdef Part part
        cdef Row row
        cdef int64_t task, n, i
        found = []
        for task in range(s.tasks):
            locate_task(s, task, &part)
            taps = []
            found.append(taps)
            for i in range(s.nclasses if s.schedule.joined else 1):
                set_rows(s, s.classes + i, &part)
                for n in range(part.first, part.last):
                    taps.append(find_row(s, s.classes + i, n, &row).ntaps)
        return found

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task in the loop order of the module docstring."""
        if convt_is_set(call.refused):  # the call is repeated, because another task found values that need a direct sum
            return
        cdef Scatter *s = &self.loops
        cdef ScatterClass *c = s.classes
        cdef Part part
        cdef int64_t n
        clear_kept_rows(<KeptRow *>(ws + s.region.kept), s.schedule.slots)
        fill(s.k, ws, s.k.nr, -0.0)  # the neutral element of addition, which keeps the sign of zero
        locate_task(s, task, &part)
        if s.bands:
            set_rows(s, c, &part)
            run_band(s, &part, call, ws)
            return
        while c < s.classes + (s.nclasses if s.schedule.joined else 1):
            set_rows(s, c, &part)
            if s.gather_index:
                run_images(s, &part, call, ws)
                return
            n = part.first
            while n < part.last:
                n = run_rows(s, task, c, n, &part, call, ws)
            c += 1


# ---------------------------------------------------------------- tables


cdef void *zeroed(list keep, Py_ssize_t count, Py_ssize_t size):
    """Return zeroed memory for ``count`` structures, which the list ``keep`` keeps alive."""
    return cnp.PyArray_DATA(structures(keep, count, size))


cdef open_axis(ScatterAxis *axis, groups, runs, list keep):
    """Fill in an axis from its phase groups and runs."""
    cdef ScatterRun *r
    cdef int64_t p
    cdef tuple firsts, valid
    axis.nruns, axis.ngroups = len(runs), len(groups)
    axis.runs = r = <ScatterRun *>zeroed(keep, axis.nruns, sizeof(ScatterRun))
    for run in runs:
        axis.phases += len(run.first_out)
    cdef int64_t *at = <int64_t *>zeroed(keep, 3 * axis.phases, sizeof(int64_t))
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
        axis.nrows += r.count
        r += 1


cdef list_axis_rows(ScatterAxis *axis, list keep):
    """List the rows of an axis in order of j."""
    cdef int64_t low = axis.runs.start, high = low, n, j, first = 0
    cdef ScatterAxisRow *p
    for n in range(axis.nruns):
        low, high = min(low, axis.runs[n].start), max(high, axis.runs[n].start + axis.runs[n].count)
    # at[j] counts the rows before j, then also those of j that are listed already.
    cdef int64_t *at = (<int64_t *>zeroed(keep, high - low + 1, sizeof(int64_t))) - low
    axis.rows = <ScatterAxisRow *>zeroed(keep, axis.nrows, sizeof(ScatterAxisRow))
    for n in range(axis.nruns):
        for j in range(axis.runs[n].start, axis.runs[n].start + axis.runs[n].count):
            at[j + 1] += 1
    for j in range(low, high):
        at[j + 1] += at[j]
    for n in range(axis.nruns):
        for j in range(axis.runs[n].start, axis.runs[n].start + axis.runs[n].count):
            p = &axis.rows[at[j]]
            p.j, p.run = j - axis.runs[n].start, n
            at[j] += 1
    for j in range(low, high):  # at[j] is now the end of the rows of j
        for n in range(first, at[j]):
            axis.rows[n].first, axis.rows[n].rows_of_j = first, at[j] - first
        first = at[j]


cdef open_classes(Scatter *s, PackClass *packs, list keep):
    """Fill in the classes, one for each choice of a run per axis; the last of these axes varies fastest."""
    cdef int64_t x = s.naxes, ax, i, n, nphases = 1
    cdef ScatterClass *c
    s.nclasses = 1
    for ax in range(x):  # totals over all classes are products, too
        s.nclasses, nphases = s.nclasses * s.axes[ax].nruns, nphases * s.axes[ax].phases
    s.classes = <ScatterClass *>zeroed(keep, s.nclasses, sizeof(ScatterClass))
    cdef ScatterRun **runs = <ScatterRun **>zeroed(keep, s.nclasses * x, sizeof(ScatterRun *))
    cdef int64_t *phases = <int64_t *>zeroed(keep, nphases * (1 + 2 * x), sizeof(int64_t))
    for i in range(s.nclasses):
        c, n = s.classes + i, i
        c.runs, c.phases, c.rows, c.ntaps, c.nphases = runs + i * x, phases, 1, 1, 1
        for ax in range(x - 1, -1, -1):
            c.runs[ax] = s.axes[ax].runs + take_index(&n, s.axes[ax].nruns)
            c.rows, c.ntaps = c.rows * c.runs[ax].count, c.ntaps * c.runs[ax].taps
            c.nphases *= c.runs[ax].phases
        phases += c.nphases * (1 + 2 * x)
        open_class(s, c, packs, keep)


cdef open_class(Scatter *s, ScatterClass *c, PackClass *packs, list keep):
    """Fill in the phases, panels and depth chunks of a class."""
    cdef int64_t x = s.naxes, ax, n, p, pack = 0
    cdef int64_t *phase
    cdef int64_t *phase_window
    for p in range(c.nphases):
        phase, n = c.phases + p * (1 + 2 * x), p
        for ax in range(x - 1, -1, -1):
            phase_window = c.runs[ax].phase_windows + 3 * take_index(&n, c.runs[ax].phases)
            if phase_window[0]:  # an axis with one output may have any stride
                phase[0] += phase_window[0] * s.axes[ax].out_step
            phase[1 + 2 * ax], phase[2 + 2 * ax] = phase_window[1], phase_window[2]
    c.ld = s.schedule.ld
    if c.ntaps == 0 or s.bands:
        return
    for ax in range(x):
        pack = pack * s.axes[ax].ngroups + c.runs[ax].group
    open_gemm(s, c, packs + pack, keep)


cdef open_band(Scatter *s, PackClass *pack, list keep):
    """Fill in the GEMM of a task with `bands`: one tap, whose columns are all taps of all axes."""
    cdef ScatterClass *c = &s.band
    cdef ScatterRun *one = <ScatterRun *>zeroed(keep, 1, sizeof(ScatterRun))
    cdef int64_t ax
    one.taps = one.group_taps = one.count = c.ntaps = 1
    c.runs = <ScatterRun **>zeroed(keep, s.naxes, sizeof(ScatterRun *))
    for ax in range(s.naxes):
        c.runs[ax] = one
    open_gemm(s, c, pack, keep)


cdef open_gemm(Scatter *s, ScatterClass *c, PackClass *pack, list keep):
    """Fill in the panels and depth chunks of a class."""
    cdef const convt_kernels *k = s.k
    cdef int64_t n, slab = max(<int64_t>1, s.slab)
    cdef ScatterChunk *ch
    c.pack, c.npanels = pack, pack.npanels
    c.ld = s.schedule.ld if s.across else c.npanels * k.nr + 16
    for n in range(1, convt_quotient(k.nr, k.vl) + 1 if s.across else 1):
        c.tiles[n] = convt_quotient(c.pack.ncols + k.mr[n] - 1, k.mr[n])
        c.by_tile[n] = cut_evenly(c.pack.ncols, c.tiles[n], 1)
    # Chunks have one tap, or taps that are adjacent in the panel and in one slab. Pixels that are multiplied in place take a
    # chunk for each tap. So do packed ones, because strides decide which these are, and must not change results.
    cdef bint by_tap = s.schedule.chunks_of_tap or (s.across and (s.slab < s.ci_p or pack.ncols <= CONVT_PIXEL_MR))
    cdef bint few = s.by_panels and pack.ncols <= CONVT_PIXEL_MR
    ranges = [(c.runs[n].first_tap, c.runs[n].first_tap + c.runs[n].taps) for n in range(s.naxes)]
    totals = [c.runs[n].group_taps for n in range(s.naxes)]
    chunks = depth_chunks(ranges, totals, s.ci_p, k.kstep, s.ci_p if by_tap else s.slab)
    c.nchunks = len(chunks)
    c.chunks = ch = <ScatterChunk *>zeroed(keep, c.nchunks, sizeof(ScatterChunk))
    for first, depth, panel in chunks.tolist():
        ch.depth, ch.panel, ch.tap = depth, panel, first // max(<int64_t>1, s.ci_p)
        ch.channel = first - ch.tap * s.ci_p
        n = ch.panel + ch.panel // max(<int64_t>1, s.ci_p) * (s.tap_depth - s.ci_p)  # depth in the slabs
        ch.at = (n // slab * pack.ncols * CONVT_LDA + n % slab) * k.e_size
        ch.prefetches = ch.depth // k.prefetch_interval
        ch += 1
    # Contiguous channels (in_c = 1) are transposed in registers, for one tile.
    if s.across and (((by_tap or c.ntaps == 1) and s.in_step == 1)
                     or (few and s.in_c == 1 and s.ci <= CONVT_KC and s.ci * k.t_size >= 16)):
        n = CONVT_PIXEL_MR if few else min(<int64_t>CONVT_PIXEL_MR, k.mr[convt_quotient(k.nr, k.vl)])
        c.tiles_in_place = convt_quotient(pack.ncols + n - 1, n)
        c.by_tile_in_place = cut_evenly(pack.ncols, c.tiles_in_place, 1)
        for n in range(c.nchunks):
            c.chunks[n].share = convt_quotient(c.chunks[n].depth, c.tiles_in_place) * s.in_c


# ---------------------------------------------------------------- rows of a task


cdef void locate_task(const Scatter *s, int64_t task, Part *part) noexcept nogil:
    """Fill in the part of a task, except its rows."""
    cdef int64_t rest = convt_quotient(task, s.groups), image_task = convt_quotient(rest, s.schedule.blocks)
    part.group = task - rest * s.groups  # tasks of the same pixels are adjacent, because groups share cache lines
    part.j_lo = s.j0 + (rest - image_task * s.schedule.blocks) * s.schedule.block
    part.image = convt_quotient(image_task, s.schedule.tasks)
    part.share = image_task - part.image * s.schedule.tasks


cdef void set_rows(const Scatter *s, const ScatterClass *c, Part *part) noexcept nogil:
    """Set the rows of a part: those of its image or, if joined, those of a class."""
    cdef int64_t rows = c.rows * s.batch if s.schedule.joined else s.rows
    part.first = convt_quotient(rows * part.share, s.schedule.tasks)
    part.last = convt_quotient(rows * (part.share + 1), s.schedule.tasks)


cdef ScatterClass *find_row(const Scatter *s, ScatterClass *c, int64_t n, Row *row) noexcept nogil:
    """Fill ``row`` with the n-th row of an image or, if joined, of class c in all images. Return its class.

    Rows of an image are in order of j, the first axis outermost. Rows with equal j and different phase groups are adjacent,
    because they read the same inputs.
    """
    cdef int64_t ax, same_j_rows = 1, index = 0, step = 1
    cdef int64_t firsts[MOST_AXES]
    cdef ScatterAxis *axis
    cdef ScatterAxisRow *p
    if s.schedule.joined:
        for ax in range(s.naxes - 1, -1, -1):
            row.j[ax] = take_index(&n, c.runs[ax].count)
        row.image = n
        return c
    for ax in range(s.naxes):
        axis = s.axes + ax
        p = axis.rows + convt_quotient(n, same_j_rows * axis.inner_rows)
        firsts[ax] = p.first
        n -= p.first * same_j_rows * axis.inner_rows
        same_j_rows *= p.rows_of_j
    for ax in range(s.naxes - 1, -1, -1):  # n is now the index among the rows of these j
        axis = s.axes + ax
        p = axis.rows + firsts[ax]
        if p.rows_of_j > 1:
            p += take_index(&n, p.rows_of_j)
        row.j[ax] = p.j
        index += p.run * step
        step *= axis.nruns
    return s.classes + index


cdef int64_t tap_at(const Scatter *s, const ScatterClass *c, int64_t tap, const int64_t *j,
                    const int64_t *steps) noexcept nogil:
    """Return the place of the input row that a tap reads, for the output row at ``j``, from the beginning of the image on.

    ``steps`` are those of the axes: `in_steps`, in elements, or `pixel_steps`, in pixels.
    """
    cdef int64_t ax, at = 0
    cdef ScatterRun *r
    for ax in range(s.naxes - 1, -1, -1):
        r = c.runs[ax]
        at += (r.first_in + (take_index(&tap, r.taps) if ax else tap) * r.gap + j[ax]) * steps[ax]
    return at


cdef int64_t pixels_between(const Scatter *s, const Row *row, const Row *other) noexcept nogil:
    """Return the distance in pixels between the inputs of two rows of a class, if pixels have one constant stride."""
    cdef int64_t ax, n = (other.image - row.image) * s.pixels
    for ax in range(s.naxes):
        n += (other.j[ax] - row.j[ax]) * s.pixel_steps[ax]
    return n


cdef int64_t run_rows(Scatter *s, int64_t task, ScatterClass *c, int64_t first, const Part *part, const Call *call,
                      char *ws) noexcept nogil:
    """Compute the task's part of row ``first`` or, if joined, of as many rows of the class as are nearly contiguous in the input.

    At most a vector of pixels lies between joined rows. It is multiplied too, which costs no more than a new vector for each row.
    Multiply the pixels of all taps, then overlap-add each phase of each row. Return the number of the next row.
    """
    cdef Row row, other
    cdef int64_t j_hi = min(s.j1, part.j_lo + s.schedule.block), at, n, next_bytes, end = first + 1
    cdef int64_t i_lo = max(0, part.j_lo - s.terms + 1), i_hi = min(s.in_size, j_hi)
    cdef const char *next
    cdef Product w
    row.image = part.image
    c = find_row(s, c, first, &row)
    w.col = ws + s.region.products + (s.k.vl * s.k.t_size if s.across else 0)
    if c.ntaps and i_lo < i_hi:
        w.m = i_hi - i_lo
        while s.schedule.joined and s.dense and end < part.last:
            find_row(s, c, end, &other)
            if other.image != row.image and not s.dense_images:
                break
            at = pixels_between(s, &row, &other) + i_hi - i_lo
            if at > s.schedule.pixels or at - (i_hi - i_lo) > w.m + s.k.vl:
                break
            end, w.m = end + 1, at
        next = next_pixels(s, task, c, end, part, call, &next_bytes)
        w.c, w.j, w.row, w.i_lo, w.ws, w.refused = c, row.j, first, i_lo, ws, call.refused
        w.weights = call.weights + c.pack.weights + part.group * c.pack.group_weights
        w.src = call.src + (row.image * s.in_n + part.group * s.ci * s.in_c) * s.k.s_size
        compute_products(s, &w, next, next_bytes)
    else:
        i_hi = i_lo
    other = row
    for n in range(first, end):
        if n > first:
            find_row(s, c, n, &other)
        add_row(s, c, &other, pixels_between(s, &row, &other), i_lo, i_hi, j_hi, part, call, w.col)
    return end


cdef void add_row(Scatter *s, const ScatterClass *c, Row *row, int64_t pixel, int64_t i_lo, int64_t i_hi, int64_t j_hi,
                  const Part *part, const Call *call, char *col) noexcept nogil:
    """Overlap-add and store all phases of a row, whose products are those of input pixels [i_lo, i_hi), from ``pixel`` on.

    With `bands`, ``pixel`` is minus the number of pixels of the image before the band.
    """
    cdef int64_t x = s.naxes, at = row.image * s.out_n + part.group * s.co * s.out_c, ax, p
    cdef int64_t *phase
    cdef convt_overlap o
    o.ld, o.i0, o.i1 = c.ld, i_lo, i_hi
    o.terms, o.lanes, o.cols, o.channels = <int>s.terms, <int>s.lanes, <int>(s.taps_x * s.co), <int>s.co
    o.init = call.bias + part.group * s.lanes * s.k.t_size
    o.out_x, o.out_c, o.act = s.out_step, s.out_c, &s.act
    for ax in range(x):
        if row.j[ax]:  # an axis with one output may have any stride, so that a product could overflow
            at += s.axes[ax].stride * row.j[ax] * s.axes[ax].out_step
    for p in range(c.nphases):
        phase = c.phases + p * (1 + 2 * x)
        if is_inside(phase + 1, row.j, x):
            if s.bands:
                o.col = band_sums(s, c, row, p, pixel, col) if c.ntaps else col
            else:
                o.col = col + (p * o.cols * (c.ld if s.across else 1) + pixel) * s.k.t_size
            overlap_row(s, &o, part.j_lo, j_hi, call.dst + (at + phase[0]) * s.k.s_size)


cdef const char *band_sums(const Scatter *s, const ScatterClass *c, const Row *row, int64_t phase, int64_t pixel,
                           char *col) noexcept nogil:
    """Add the products of all input rows that reach an output row to those of the first one, and return their address.

    No other output row reads these products.
    """
    cdef int64_t tap, n, step = c.ld * s.k.t_size
    cdef char *to = NULL
    cdef char *at
    for tap in range(c.ntaps):
        at = col + c.tap_columns[tap * c.nphases + phase] * step
        at += (tap_at(s, c, tap, row.j, s.pixel_steps) + pixel) * s.k.t_size
        if tap == 0:
            to = at
            continue
        for n in range(s.taps_x * s.co):
            s.sums.add(to + n * step, at + n * step, s.in_size, &s.none)
    return to


cdef void run_band(Scatter *s, const Part *part, const Call *call, char *ws) noexcept nogil:
    """Compute the output rows of a task with `bands`: multiply the pixels of its band by all taps, then add up each row."""
    cdef ScatterClass *c
    cdef int64_t n, tap, at, low = -1, high = -1, some
    cdef Row row
    cdef Product w
    cdef int64_t first[MOST_AXES]
    row.image = part.image
    for n in range(part.first, part.last):
        c = find_row(s, s.classes, n, &row)
        for tap in range(c.ntaps):
            at = tap_at(s, c, tap, row.j, s.pixel_steps)
            low, high = at if low < 0 else min(low, at), max(high, at + s.in_size)
    w.c, w.row, w.ws, w.refused = &s.band, part.first, ws, call.refused
    w.weights = call.weights + s.band.pack.weights + part.group * s.band.pack.group_weights
    w.src = call.src + (part.image * s.in_n + part.group * s.ci * s.in_c) * s.k.s_size
    w.j = first
    at, some = low, high - low if s.dense else s.in_size  # without a constant stride of pixels, one row at a time
    while at < high:
        n = convt_quotient(at, s.in_size)
        for tap in range(s.naxes - 1, -1, -1):
            first[tap] = take_index(&n, s.axes[tap].in_size)
        w.i_lo, w.m, w.col = 0, some, ws + s.region.products + (s.k.vl + at - low) * s.k.t_size
        compute_products(s, &w, call.src, 0)
        at += some
    for n in range(part.first, part.last):
        c = find_row(s, s.classes, n, &row)
        add_row(s, c, &row, -low, 0, s.in_size if c.ntaps else 0, s.j1, part, call,
                ws + s.region.products + s.k.vl * s.k.t_size)


cdef void overlap_row(const Scatter *s, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil:
    """Overlap-add outputs [stride * j, stride * j_hi) of a row and store them.

    One kernel call does all j whose outputs are all inside the window; a j that the window cuts takes a call of its own.
    """
    cdef int64_t lo, hi
    o.out_j = s.stride * o.out_x
    while j < j_hi:
        lo, hi = max(0, s.begin - s.stride * j), min(s.stride, s.begin + s.window - s.stride * j)
        o.j0, o.j1 = j, j + 1
        if lo == 0 and hi == s.stride:
            o.j1 = max(j + 1, min(j_hi, s.j_whole))
        o.lane_lo, o.lane_hi = <int>(lo * s.co), <int>(hi * s.co)
        o.out = dst + (s.stride * j - s.begin) * o.out_x * s.k.s_size
        if s.across:
            s.k.overlap_pixels(o)
        else:
            s.k.overlap(o)
        j = o.j1


cdef void run_images(Scatter *s, const Part *part, const Call *call, char *ws) noexcept nogil:
    """Compute the images of a task with `gathered`: multiply all pixels by all taps, then each output gathers its terms."""
    cdef ScatterClass *c = s.classes
    cdef int64_t n
    cdef Row row
    cdef Product w
    cdef convt_overlap_gather o
    for n in range(s.naxes):
        row.j[n] = 0
    w.c, w.j, w.row, w.i_lo, w.m = c, row.j, part.first, 0, (part.last - part.first) * s.pixels
    w.weights, w.src = call.weights + c.pack.weights, call.src + part.first * s.in_n * s.k.s_size
    w.ws, w.col, w.refused = ws, ws + s.region.products + s.k.vl * s.k.t_size, call.refused
    compute_products(s, &w, call.src, 0)
    o.index, o.terms, o.count = s.gather_index, s.gather_terms, s.outputs
    o.init, o.act = call.bias, &s.act
    for n in range(part.last - part.first):
        o.col = w.col + n * s.pixels * s.k.t_size
        o.out = call.dst + (part.first + n) * s.out_n * s.k.s_size
        # The dummy column, which each image reads at its first pixel, is -0.0.
        memcpy(w.col + (c.pack.ncols * c.ld + n * s.pixels) * s.k.t_size, ws, s.k.t_size)
        s.k.overlap_gather(&o)


cdef const char *next_pixels(const Scatter *s, int64_t task, ScatterClass *c, int64_t n, const Part *now, const Call *call,
                             int64_t *bytes) noexcept nogil:
    """Return the address of the pixels to prefetch: those of row n or, if the task has no such row, of the next task.

    ``bytes`` receives their size; 0 if they are not contiguous, or if other classes have read them. The pixels are those of
    the last tap, because earlier rows have read the inputs of the other taps.
    """
    cdef int64_t i_lo, i_hi, pixels
    cdef Part part = now[0]
    cdef Row row
    bytes[0] = 0
    if not s.schedule.prefetch or s.in_c != 1 or s.in_step != s.ci:
        return call.src
    if n == part.last:
        if task + 1 == s.tasks or (s.schedule.joined and c != s.classes + s.nclasses - 1):
            return call.src
        c = s.classes
        locate_task(s, task + 1, &part)
        set_rows(s, c, &part)
        n = part.first
        if n == part.last:
            return call.src
    row.image = part.image
    c = find_row(s, c, n, &row)
    i_lo, i_hi = max(0, part.j_lo - s.terms + 1), min(s.in_size, part.j_lo + s.schedule.block)
    if not c.ntaps or i_lo >= i_hi:
        return call.src
    pixels = min(s.schedule.pixels, (part.last - n) * s.in_size) if s.schedule.joined else i_hi - i_lo
    bytes[0] = pixels * s.ci * s.k.s_size
    return call.src + s.k.s_size * (row.image * s.in_n + tap_at(s, c, c.ntaps - 1, row.j, s.in_steps) + i_lo * s.in_step)


# ---------------------------------------------------------------- products


cdef void compute_products(Scatter *s, Product *w, const char *next, int64_t next_bytes) noexcept nogil:
    """Multiply pixels by all columns, and sum over the taps of the row and in-channels.

    Loop order: some panels of pixels or all pixels, depth chunks, then panels and register tiles. Tiles prefetch ``next_bytes``
    bytes from the address ``next`` on.
    """
    cdef const convt_kernels *k = s.k
    cdef ScatterClass *c = w.c
    cdef int64_t most = k.mr[k.nr // k.vl], some = w.m, p = 0, i, n, chunk, tiles
    cdef char *a
    w.t.rows, w.t.row_offset, w.t.act = w.rows, 0, &s.none
    w.t.stream, w.t.narrow_dtype, w.t.more_tiles, w.t.pending = 0, 0, 0, NULL
    w.t.prefetch, w.t.prefetch_step = next, 0
    if next_bytes:  # each tile prefetches a part of the next row's input
        if s.across:
            tiles = c.tiles[k.nr // k.vl] * convt_quotient(w.m + k.nr - 1, k.nr)
        else:
            tiles = c.npanels * convt_quotient(w.m + most - 1, most)
        i = max(<int64_t>1, tiles * c.chunks.prefetches * c.nchunks)
        w.t.prefetch_step = min(<int64_t>PREFETCHED, convt_quotient(next_bytes + i - 1, i))
    if c.tiles_in_place:
        multiply_in_place(s, w)
        return
    while p < w.m:
        if s.by_panels:
            some = min(k.nr, w.m - p)
        for chunk in range(c.nchunks):
            a = pixels_of_chunk(s, w, chunk, p, some)
            if not s.across:
                multiply_columns(s, w, chunk, a)
                continue
            i = 0
            while i < some:
                # A panel that is not full has other register tiles.
                n = max(<int64_t>1, convt_quotient(some - i, k.nr)) if s.schedule.tile_first else 1
                multiply_across(s, w, chunk, a + i * c.chunks[chunk].depth * k.e_size, p + i, n)
                i += n * k.nr
        p += some


cdef void multiply_in_place(const Scatter *s, Product *w) noexcept nogil:
    """Multiply pixels in place by all columns.

    Loop order: depth chunks, panels of pixels, register tiles. If several tiles or rows read a panel of planes, the first one
    copies it, because the lines of planes share sets of L1 and are on as many pages as there are planes. Tiles prefetch a later
    panel, each a share of its planes, because memory does not deliver all of them during one tile.
    """
    cdef const convt_kernels *k = s.k
    cdef ScatterClass *c = w.c
    cdef ScatterChunk *ch
    cdef int64_t chunk, p, i, r0, r1, some = w.m
    cdef bint copies = s.schedule.chunks_of_tap or c.tiles_in_place > 1, is_kept = False
    cdef const char *src
    cdef char *panel = NULL
    cdef convt_pixel_gemm t
    t.cs, t.ld, t.next_rs = s.in_step, c.ld, s.in_c
    if copies:
        some = t.copy_ld = k.nr
    for chunk in range(c.nchunks):
        ch = c.chunks + chunk
        if copies:
            panel = place_of_chunk(s, w, chunk, &is_kept)
        src = w.src + (tap_at(s, c, ch.tap, w.j, s.in_steps) + w.i_lo * s.in_step + ch.channel * s.in_c) * k.s_size
        # The tiles of a kept row prefetch no planes.
        t.kc, t.pause, t.add, p = <int>ch.depth, <int>(ch.depth if is_kept else c.tiles_in_place - 1), chunk > 0, 0
        while p < w.m:
            t.pixels, t.src, t.rs, t.copy, r1 = <int>min(some, w.m - p), src, s.in_c, panel, 0
            for i in range(c.tiles_in_place):
                if is_kept or i:  # whole vectors, because they are copied whole
                    t.pixels, t.src, t.rs, t.copy = k.nr if t.pixels > k.vl else k.vl, panel, k.nr, NULL
                t.next = src + (i * ch.share + k.nr) * k.s_size
                r0, r1 = r1, cut_at(&c.by_tile_in_place, i + 1)
                t.a = w.weights + ch.at + r0 * CONVT_LDA * k.e_size
                t.out = w.col + (r0 * c.ld + p) * k.t_size
                k.pixel_gemm(<int>(r1 - r0), &t)
            p, src = p + some, src + some * s.in_step * k.s_size
            if s.schedule.chunks_of_tap:
                panel += ch.depth * k.nr * k.e_size


cdef inline void multiply_tile(const Scatter *s, Product *w, int64_t chunk, int64_t r0, int64_t r1, char *at) noexcept nogil:
    """Multiply the register tile of rows [r0, r1) of the GEMM; ``at`` is the address of row 0 of its products."""
    cdef int64_t r
    for r in range(r0, r1):
        w.rows[r - r0] = at + r * w.c.ld * s.k.t_size
    w.t.init = w.rows[0] if chunk else w.ws
    w.t.init_ld = w.c.ld if chunk else 0
    s.k.tile(<int>(r1 - r0), &w.t)
    w.t.prefetch += w.c.chunks[chunk].prefetches * w.t.prefetch_step


cdef void multiply_columns(const Scatter *s, Product *w, int64_t chunk, char *a) noexcept nogil:
    """Multiply all pixels, at ``a``, by all panels of columns, for one depth chunk."""
    cdef const convt_kernels *k = s.k
    cdef ScatterClass *c = w.c
    cdef ScatterChunk *ch = c.chunks + chunk
    cdef convt_tile *t = &w.t
    cdef int64_t p, i, tiles, r0, r1
    cdef Cut by_tile
    t.kc, t.lda = <int>ch.depth, s.in_step if s.schedule.in_place else s.schedule.lda
    for p in range(c.npanels):
        t.nv = <int>convt_quotient(min(k.nr, c.pack.ncols - p * k.nr) + k.vl - 1, k.vl)
        t.cols = t.nv * k.vl
        tiles = convt_quotient(w.m + k.mr[t.nv] - 1, k.mr[t.nv])
        by_tile = cut_evenly(w.m, tiles, k.m_step)
        t.b = w.weights + (p * k.nr * c.pack.depth + ch.panel * t.cols) * k.e_size
        r1 = 0
        for i in range(tiles):
            r0, r1 = r1, cut_at(&by_tile, i + 1)
            t.a = a + r0 * t.lda * k.e_size
            multiply_tile(s, w, chunk, r0, r1, w.col + p * k.nr * k.t_size)


cdef void multiply_across(const Scatter *s, Product *w, int64_t chunk, char *panel, int64_t first, int64_t count) noexcept nogil:
    """Multiply ``count`` panels of pixels, from pixel ``first`` on, by all columns, for one depth chunk."""
    cdef const convt_kernels *k = s.k
    cdef ScatterClass *c = w.c
    cdef ScatterChunk *ch = c.chunks + chunk
    cdef convt_tile *t = &w.t
    cdef int64_t i, r0, r1 = 0, p, step = k.nr * ch.depth * k.e_size
    t.kc, t.lda = <int>ch.depth, CONVT_LDA
    t.nv = <int>convt_quotient(min(k.nr, w.m - first) + k.vl - 1, k.vl)
    t.cols = t.nv * k.vl
    for i in range(c.tiles[t.nv]):
        r0, r1 = r1, cut_at(&c.by_tile[t.nv], i + 1)
        t.a = w.weights + ch.at + r0 * CONVT_LDA * k.e_size
        for p in range(count):
            t.b = panel + p * step
            multiply_tile(s, w, chunk, r0, r1, w.col + (first + p * k.nr) * k.t_size)


cdef char *pixels_of_chunk(const Scatter *s, Product *w, int64_t chunk, int64_t p, int64_t some) noexcept nogil:
    """Return the address of pixels [p, p + some) of a depth chunk: in the input, or packed, unless a slot holds them."""
    cdef ScatterChunk *ch = w.c.chunks + chunk
    cdef bint is_kept
    cdef char *packed
    if s.schedule.in_place:
        return w.src + (tap_at(s, w.c, ch.tap, w.j, s.in_steps) + w.i_lo * s.in_step + ch.channel) * s.k.s_size
    packed = place_of_chunk(s, w, chunk, &is_kept)
    if not is_kept:
        pack_pixels(s, w, ch, w.i_lo + p, some, packed)
    return packed


cdef char *place_of_chunk(const Scatter *s, Product *w, int64_t chunk, bint *is_kept) noexcept nogil:
    """Return the address of a packed depth chunk. ``is_kept`` says whether it is there, from an earlier row of the task.

    A new input row replaces the least recently used slot. The chunks of a tap are asked for one after the other.
    """
    cdef ScatterChunk *ch = w.c.chunks + chunk
    cdef char *packed = w.ws + s.region.packed
    cdef int64_t part = chunk - ch.tap * s.schedule.chunks_of_tap
    is_kept[0] = False
    if not s.schedule.chunks_of_tap:
        return packed
    if part == 0:
        w.slot = place_of_row(<KeptRow *>(w.ws + s.region.kept), s.schedule.slots,
                              tap_at(s, w.c, ch.tap, w.j, s.in_steps), w.row, &w.is_kept)
    is_kept[0] = w.is_kept
    return packed + w.slot * s.schedule.slot_bytes + part * s.chunk_size


cdef void pack_pixels(const Scatter *s, Product *w, const ScatterChunk *chunk, int64_t i_lo, int64_t m,
                      char *dst) noexcept nogil:
    """Pack pixels [i_lo, i_lo + m) of a depth chunk: as rows of the GEMM's A or, if `across`, as panels of its B."""
    cdef const convt_kernels *k = s.k
    cdef int64_t depth = 0, tap = chunk.tap, first = chunk.channel, last, filled, p, cols, at
    while depth < chunk.depth:
        last = min(s.ci_p, first + chunk.depth - depth)
        filled = min(s.ci, last) - first
        at = tap_at(s, w.c, tap, w.j, s.in_steps) + i_lo * s.in_step + first * s.in_c
        p = 0
        while s.across and p < m:
            cols = k.nr
            if m - p < k.nr:
                cols = convt_quotient(m - p + k.vl - 1, k.vl) * k.vl
            k.widen(dst + (p * chunk.depth + depth * cols) * k.e_size, cols, w.src + (at + p * s.in_step) * k.s_size,
                    s.in_c, s.in_step, <int>filled, <int>min(m - p, cols), <int>cols)
            p += k.nr
        if not s.across and not k.pack(dst + depth * k.e_size, s.schedule.lda, w.src + at * k.s_size, s.in_step, s.in_c, <int>m,
                                       <int>filled, <int>(last - first)):
            convt_set(w.refused)
        depth += last - first
        tap, first = tap + 1, 0
