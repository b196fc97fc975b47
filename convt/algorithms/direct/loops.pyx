# cython: language_level=3
"""The loops of `direct`: an implicit GEMM for each class, a run per axis.

`DirectPlan` runs the tables that bind.py makes. Rows of the GEMM are positions of the runs across image rows and images,
columns are out-channels times merged phases, and depth is taps times in-channels. A task multiplies a row block by a panel
block:

    for each strip of rows (often all rows of the task):
        for each span of depth chunks:
            pack the rows that the GEMM cannot read in place, with zeros outside the input   -> `rows`
            for each panel, or pair of panels:
                for each depth chunk of the span, for each register tile of the strip:
                    accumulators += A x B
                    the last chunk adds the bias, applies the activation and stores; earlier chunks store partial sums -> `sums`

Tasks write disjoint outputs. Each thread has its own workspace with the regions of schedule.book.
"""

import itertools

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport Call
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_LEAKY,
    CONVT_MOST_ROWS,
    convt_kernels,
    convt_pending_stores,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport keep_table, odd_line_stride, round64, structures
from convt.algorithms.indexing cimport Cut, Grid, advance, cut_at, cut_evenly, is_inside, open_grid, take_index, take_task
from convt.algorithms.packing cimport PackClass, PanelRecipe, pack_depth

cnp.import_array()

TILE_ROWS = CONVT_MOST_ROWS


cdef struct DirectClass:
    # One class: a run per axis, in all channel groups.
    # Rows of the GEMM: all positions of the runs, the batch as the outermost index.
    int64_t *count        # [nd]
    Grid tasks            # the rows and panels of tasks
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
    int64_t *panels       # [panel][5]: columns, whether they are adjacent in the output, output offset, first piece, end of
                          # pieces; there are no pieces if the window shows none of the columns
    int64_t *pieces       # [..][3 + 2 nd]: first column in the panel, columns, output offset, then per axis the positions
                          # [low, high) at which the piece is inside the window
    int64_t *boxes        # [panel][nd][2]: positions [low, high) at which all pieces of a panel are inside the window
    int64_t *inner        # [nd][2]: positions [low, high) at which every phase is inside the window
    bint all_inside       # every phase is inside the window at all positions
    PackClass *pack
    int64_t first_panel   # first panel of the class among the panels of `pack`


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
    void **reached_rows   # addresses in the partial sums of the rows that a sparse chunk reaches, a block for each chunk
    int64_t *reached_counts  # number of rows that each sparse chunk reaches
    int64_t *coords       # [m][nd] position of each row
    int64_t *next_outside # [m + 1] the next row where some phase is outside the window
    char *scratch         # accumulators of a tile that does not store into the output itself
    char *sums            # partial sums between depth chunks; panels are stride_sums elements apart
    int64_t stride_a, stride_sums, panel_bytes
    int64_t max_tile_rows # the most rows of a tile
    void *scratch_rows[CONVT_MOST_ROWS]  # the rows of `scratch`
    bint in_place         # the GEMM reads all rows of the task without packing
    bint can_store_direct, far_weights  # tiles may store into the output; weights do not stay in L2
    const char *next_input  # address in the next task's input that the next tile prefetches
    int64_t input_step    # bytes of it per step of prefetching
    int64_t start, end    # the span of depth chunks that is packed and multiplied
    int64_t s0, s1        # the strip of rows that is packed and multiplied, relative to m0
    int64_t tiles, cut_rows, cut_height  # number of tiles of the last chunk, its rows, and the most rows of its tiles
    Cut by_tile           # division of its rows into tiles
    convt_tile t
    convt_pending_stores pending


cdef struct Panels:
    # The panel, or the pair of panels, that is multiplied.
    int64_t p, count      # first panel; 1 or 2
    int64_t *table        # its entries in DirectClass.panels
    int64_t following     # the panel that is multiplied next
    int64_t width         # columns as packed
    int64_t height        # the most rows of a tile
    int64_t sums          # elements from `DirectTask.sums` to its partial sums
    bint simple           # tiles store all rows into the output, so that one kernel call can compute all tiles of a height


cdef class DirectPlan(NativePlan):
    """A plan of `direct`, which runs the classes that direct/bind.py lists."""

    def __init__(self, problem, PanelRecipe recipe, in_strides, out_strides, execution, classes, tiles):
        self.open_direct(problem, recipe, in_strides, out_strides, execution, classes, tiles)

    cdef open_direct(self, problem, PanelRecipe recipe, in_strides, out_strides, execution, classes, tiles):
        """Fill in the structures from ``classes`` and ``tiles``, the `ClassTables` and the `Tiles` of direct/bind.py."""
        self.open_plan(problem, recipe.k, in_strides, out_strides, execution)
        self.recipe, self.packing_workspace = recipe, tiles.packing_workspace
        self.panel_major, self.near_bytes, self.far_bytes = tiles.panel_major, tiles.near_bytes, tiles.far_bytes
        self.tile_non_temporal = tiles.non_temporal
        self.nclasses, self.keep, self.works = len(classes), [], []
        self.classes = <DirectClass *>cnp.PyArray_DATA(structures(self.keep, self.nclasses, sizeof(DirectClass)))
        cdef DirectClass *c
        cdef int64_t task = 0, n, deepest = 0, packed = 0
        for i, each in enumerate(classes):
            c = &self.classes[i]
            fill_class(self, c, each)
            task = open_grid(&c.tasks, each.decided.rows, len(each.panels), each.decided.cut, self.groups, task)
            self.works.append((each.decided.cut.cycles, c.tasks.tasks))
            self.max_block = max(self.max_block, c.tasks.block)
            for n in range(c.nchunks):
                deepest = max(deepest, c.chunks[4 * n + 1])
            if not (find_strided_rows(self, c, 0, c.tasks.rows, NULL, NULL) and c.in_place):
                packed = max(packed, c.tasks.block * min(c.span, c.nchunks))
        self.lda = odd_line_stride(self.k, deepest)
        self.tasks = self.direct_tasks = task
        self.equal_tasks = self.nclasses == 1
        self.at, self.workspace = tiles.workspace, tiles.workspace.bytes
        cdef size_t rows = round64((packed + self.k.m_step) * self.lda * self.k.e_size)
        # Rows that are read in place in contiguous data may be packed in data of other strides, which takes a larger region.
        if self.at.chunk_inputs - self.at.rows < rows:
            self.at.rows, self.workspace = self.workspace, self.workspace + rows

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        """Compute a task in the loop order of the module docstring: a row block x a panel block of one class and group."""
        if convt_is_set(call.refused):  # the call is repeated, because another task found values that need a direct sum
            return
        cdef DirectTask w
        open_task(self, &w, task, call, ws)
        cdef DirectClass *c = w.c
        cdef int64_t strip, strips = count_strips(self, &w)
        cdef Cut by_strip = cut_evenly(w.m, strips, w.max_tile_rows if c.strip > w.max_tile_rows else self.k.m_step)
        for strip in range(strips):
            w.s0, w.s1 = cut_at(&by_strip, strip), cut_at(&by_strip, strip + 1)
            w.end = 0
            while w.end < c.nchunks:
                w.start, w.end = w.end, min(c.nchunks, w.end + c.span)
                pack_chunks(self, &w)
                multiply_panels(self, &w, call.backwards)
        if w.t.pending != NULL:
            self.k.flush_stores(w.t.pending)
        if self.tile_non_temporal:
            self.k.fence()


cdef fill_class(DirectPlan plan, DirectClass *c, given):
    """Fill a DirectClass from the `ClassTables` of direct/bind.py."""
    cdef int64_t n, ax, nd = plan.nd, x = nd - 1
    decided, runs, keep = given.decided, given.runs, plan.keep
    c.count, c.inner = keep_table(keep, [run.count for run in runs]), keep_table(keep, [run.inner for run in runs])
    c.all_inside = True
    for ax in range(nd):
        c.all_inside = c.all_inside and c.inner[2 * ax] <= 0 and c.inner[2 * ax + 1] >= c.count[ax]
    c.span, c.sparse, c.pair_rows, c.strip = decided.cut.span, decided.sparse, decided.pair_rows, decided.strip
    c.ntaps = decided.taps
    c.tap_in = keep_table(keep, list(itertools.product(*[run.first_in for run in runs])))
    c.follows_previous = keep_table(keep, np.zeros(c.ntaps, np.int64))
    if plan.in_c == 1 and plan.in_stride.p[x] == plan.ci and plan.ci % plan.k.kstep == 0:
        for n in range(1, c.ntaps):
            c.follows_previous[n] = c.tap_in[n * nd + x] == c.tap_in[(n - 1) * nd + x] + 1
            for ax in range(x):
                c.follows_previous[n] &= c.tap_in[n * nd + ax] == c.tap_in[(n - 1) * nd + ax]
    lines = given.chunks[:, 1] // plan.k.prefetch_interval
    c.nchunks, c.chunks = len(lines), keep_table(keep, np.column_stack((given.chunks, lines)))
    c.panels, c.pieces, c.boxes = (
        keep_table(keep, given.panels), keep_table(keep, given.pieces), keep_table(keep, given.boxes))
    pack, c.first_panel = given.pack
    c.pack = &plan.recipe.classes[<Py_ssize_t>pack]
    c.strided_rows, c.lda, c.in_place = given.row_stride


cdef bint taps_contiguous(DirectPlan plan, DirectClass *c, int64_t *chunk, int64_t *low, int64_t *high,
                          int64_t *at) noexcept nogil:
    """Check whether a depth chunk is contiguous memory inside the input at every position in the box [low, high].

    ``at`` receives the input offset of the chunk at the first row of the class.
    """
    cdef int64_t ci = convt_quotient(plan.ci + plan.k.kstep - 1, plan.k.kstep) * plan.k.kstep
    cdef int64_t tap, ax, i, offset, first = convt_quotient(chunk[0], ci)
    for tap in range(first, convt_quotient(chunk[0] + chunk[1] - 1, ci) + 1):
        offset = chunk[0] - first * ci
        for ax in range(plan.nd):
            i = c.tap_in[tap * plan.nd + ax]
            if i + low[ax] < 0 or i + high[ax] >= plan.in_size.p[ax]:
                return False
            offset += i * plan.in_stride.p[ax]
        if tap == first:
            at[0] = offset
        elif plan.ci != ci or offset != at[0] + (tap - first) * ci:
            return False
    return True


cdef bint find_strided_rows(DirectPlan plan, DirectClass *c, int64_t m0, int64_t m, char *src,
                            char **chunk_inputs) noexcept nogil:
    """Check whether the rows of a block have a constant stride in the input in all depth chunks.

    ``chunk_inputs``, unless NULL, receives for each chunk with such rows the address of the first row, and NULL for
    other chunks.
    """
    cdef int64_t ax, chunk, at, row = 0, batch = m0, last = m0 + m - 1
    cdef int64_t low[64]
    cdef int64_t high[64]
    cdef bint one_stride = c.strided_rows > 0 and convt_quotient(m0, c.strided_rows) == convt_quotient(last, c.strided_rows)
    cdef bint all_strided = True, same, strided
    for ax in range(plan.nd - 1 if one_stride else -1, -1, -1):
        low[ax], high[ax] = take_index(&batch, c.count[ax]), take_index(&last, c.count[ax])
        row += low[ax] * plan.in_stride.p[ax]
    row += batch * plan.in_n
    same = batch == last
    for ax in range(plan.nd if one_stride else 0):  # the bounding box of the rows
        if not same:
            low[ax], high[ax] = 0, c.count[ax] - 1
        same = same and low[ax] == high[ax]
    for chunk in range(c.nchunks):
        strided = one_stride and taps_contiguous(plan, c, c.chunks + 4 * chunk, low, high, &at)
        all_strided = all_strided and strided
        if chunk_inputs != NULL:
            chunk_inputs[chunk] = src + (row + at) * plan.k.s_size if strided else NULL
    return all_strided


cdef void open_task(DirectPlan plan, DirectTask *w, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
    """Set the rows, panels, operands and workspace regions of a task."""
    cdef const convt_kernels *k = plan.k
    cdef DirectClass *c
    cdef int64_t group, r
    c = w.c = locate_task(plan, task, &group, &w.m0, &w.m, &w.p0, &w.p1)
    w.source = call.source + group * plan.recipe.sg if call.source != NULL else NULL
    w.panel, w.refused = ws + round64(plan.workspace), call.refused
    w.a, w.chunk_inputs = ws + plan.at.rows, <char **>(ws + plan.at.chunk_inputs)
    w.out_rows, w.sum_rows = <void **>(ws + plan.at.out_rows), <void **>(ws + plan.at.sum_rows)
    w.reached_rows = <void **>(ws + plan.at.reached_rows)
    w.reached_counts = <int64_t *>(ws + plan.at.reached_counts)
    w.coords, w.next_outside = <int64_t *>(ws + plan.at.coords), <int64_t *>(ws + plan.at.next_outside)
    w.scratch, w.sums = ws + plan.at.scratch, ws + plan.at.sums

    w.src = call.src + group * plan.ci * plan.in_c * k.s_size
    w.dst = call.dst + group * plan.co * plan.out_c * k.s_size
    cdef int64_t before = c.first_panel * k.nr
    w.weights = call.weights + c.pack.weights + group * c.pack.group_weights + before * c.pack.depth * k.e_size
    w.bias = call.bias + c.pack.bias + group * c.pack.group_bias + before * k.t_size
    cdef bint all_strided = find_strided_rows(plan, c, w.m0, w.m, w.src, w.chunk_inputs)
    locate_rows(plan, w, all_strided)
    w.in_place = all_strided and c.in_place

    w.stride_a, w.stride_sums = c.tasks.block * plan.lda * k.e_size, plan.max_block * k.nr
    w.panel_bytes, w.max_tile_rows = k.nr * c.pack.depth * k.e_size, k.mr[2 if k.nr > k.vl else 1]
    w.can_store_direct = (k.direct_store or k.narrow_dtype) and plan.out_c == 1 and plan.act.code <= CONVT_LEAKY
    for r in range(w.max_tile_rows):
        w.scratch_rows[r] = w.scratch + r * k.nr * k.t_size
    for r in range(w.m if c.nchunks > 1 else 0):
        w.sum_rows[r] = w.sums + r * k.nr * k.t_size
    w.pending.sums, w.pending.left = w.scratch + CONVT_MOST_ROWS * k.nr * k.t_size, 0
    w.t.pending = &w.pending if plan.tile_non_temporal and k.flush_stores != NULL and k.direct_store else NULL
    # Tiles prefetch into L2: the input of the thread's next task, a part with each tile, and the next weights if L2 does
    # not keep them.
    w.far_weights = c.pack.group_weights > plan.far_bytes
    w.next_input = next_input(plan, task, call, &w.input_step)
    w.cut_rows = -1


cdef DirectClass *locate_task(DirectPlan plan, Py_ssize_t task, int64_t *group, int64_t *m0, int64_t *m, int64_t *p0,
                              int64_t *p1) noexcept nogil:
    """Return the class of a task, and its channel group, first row, number of rows, first panel and end of the panels."""
    cdef DirectClass *c = plan.classes
    while task >= c.tasks.first_task + c.tasks.tasks:
        c += 1
    group[0] = take_task(&c.tasks, task, m0, m, p0, p1)
    return c


cdef const char *next_input(DirectPlan plan, Py_ssize_t task, const Call *call, int64_t *step) noexcept nogil:
    """Return the address of the input of the thread's next task, and the bytes that each prefetch of this task advances.

    ``step`` is 0 if this input is not contiguous. The address is that of the last tap, because earlier rows have read the
    inputs of the other taps.
    """
    cdef int64_t group, m0, m, p0, p1, ax, x = plan.nd - 1, j, steps, tile
    cdef DirectClass *c = locate_task(plan, task, &group, &m0, &m, &p0, &p1)
    tile = plan.k.mr[plan.k.nr // plan.k.vl]
    steps = max(1, convt_quotient((p1 - p0) * convt_quotient(m + tile - 1, tile) * c.pack.depth, plan.k.prefetch_interval))
    if call.backwards:
        task -= 1 if plan.equal_tasks else call.threads
    else:
        task += 1
        if task == convt_quotient(task, call.task_chunk) * call.task_chunk:  # the other threads take tasks in between
            task += (call.threads - 1) * call.task_chunk
    step[0] = 0
    if task < 0 or task >= plan.direct_tasks or plan.in_c != 1 or plan.in_stride.p[x] != plan.ci:
        return call.src
    c = locate_task(plan, task, &group, &m0, &m, &p0, &p1)
    if c.ntaps == 0:
        return call.src
    # An AMX tile prefetches one cache line at a time, other tiles as many as they read of A in the meantime.
    cdef int64_t most = 64 if plan.k.parts else round64(tile * plan.k.prefetch_interval * plan.k.e_size)
    step[0] = min(most, convt_quotient(m * plan.ci * plan.k.s_size + steps - 1, steps))
    cdef int64_t at = 0
    for ax in range(x, -1, -1):
        j = take_index(&m0, c.count[ax])
        at += (c.tap_in[(c.ntaps - 1) * plan.nd + ax] + j) * plan.in_stride.p[ax]
    return call.src + (at + m0 * plan.in_n) * plan.k.s_size


cdef void locate_rows(DirectPlan plan, DirectTask *w, bint all_strided) noexcept nogil:
    """Fill `out_rows`, and `coords` and `next_outside` if something reads them."""
    cdef DirectClass *c = w.c
    cdef int nd = plan.nd, ax
    cdef int64_t x = nd - 1, row = 0, n, i, at, batch = w.m0
    # An axis with one position may have any stride, so that a product with it could overflow.
    cdef int64_t step = plan.stride.p[x] * plan.out_stride.p[x] if c.count[x] > 1 else 0, bytes = step * plan.k.s_size
    cdef int64_t j[64]
    cdef bint outside
    cdef char *first
    for ax in range(nd - 1, -1, -1):
        j[ax] = take_index(&batch, c.count[ax])
    while row < w.m:  # consecutive rows along the last axis
        n = min(c.count[x] - j[x], w.m - row)
        at = batch * plan.out_n + step * j[x]
        for ax in range(x):
            if j[ax]:
                at += plan.stride.p[ax] * j[ax] * plan.out_stride.p[ax]
        first = w.dst + at * plan.k.s_size
        for i in range(n):
            w.out_rows[row + i] = first
            first += bytes
        if not (all_strided and c.all_inside):
            for i in range(n):
                for ax in range(x):
                    w.coords[(row + i) * nd + ax] = j[ax]
                w.coords[(row + i) * nd + x] = j[x] + i
        if not c.all_inside:
            outside = False
            for ax in range(x):
                outside |= j[ax] < c.inner[2 * ax] or j[ax] >= c.inner[2 * ax + 1]
            for i in range(n):
                w.next_outside[row + i] = outside or j[x] + i < c.inner[2 * x] or j[x] + i >= c.inner[2 * x + 1]
        row += n
        advance(j, c.count, nd, n, &batch)
    w.next_outside[w.m] = w.m
    for row in range(w.m - 1 if not c.all_inside else -1, -1, -1):
        w.next_outside[row] = row if w.next_outside[row] else w.next_outside[row + 1]


cdef int64_t count_strips(DirectPlan plan, DirectTask *w) noexcept nogil:
    """Return the number of strips of a task.

    With one strip, a panel multiplies all rows before the next panel, so that the task reads each panel once. Vectors always
    use one strip; AMX does if weights are large. With several strips, a strip is packed just before all panels multiply it, so
    that whole output rows are written in one go. Several strips gain nothing if rows are read in place and only once.
    """
    cdef DirectClass *c = w.c
    cdef int64_t panels = w.p1 - w.p0
    if c.sparse or plan.panel_major or w.source != NULL or (w.in_place and panels <= (2 if w.m <= c.pair_rows else 1)) or (
            panels * plan.k.nr * c.pack.depth * plan.k.e_size > plan.near_bytes):
        return 1
    return convt_quotient(w.m + c.strip - 1, c.strip)


cdef void pack_chunks(DirectPlan plan, DirectTask *w) noexcept nogil:
    """Pack the strip's rows of the span's depth chunks into the region `rows`, except chunks that are read in place.

    A sparse chunk packs all rows of the task that its tap reaches, whatever the strip.
    """
    cdef const convt_kernels *k = plan.k
    cdef DirectClass *c = w.c
    cdef int64_t chunk, i, cols, rows = w.s1 - w.s0, ci = convt_quotient(plan.ci + k.kstep - 1, k.kstep) * k.kstep
    cdef int64_t *ch
    cdef char *a
    for chunk in range(w.start, w.end):
        ch, i = c.chunks + 4 * chunk, chunk - w.start
        a = w.a + i * w.stride_a
        if w.chunk_inputs[chunk] != NULL:
            cols = ch[1] if plan.ci == ci else min(ch[1], plan.ci - ch[0] % ci)  # several unpadded taps, or a single tap
            if not (c.in_place or k.pack_uncached(a, plan.lda, w.chunk_inputs[chunk] + w.s0 * c.lda * k.s_size, c.lda, 1,
                                                  <int>rows, <int>cols, <int>ch[1])):
                convt_set(w.refused)
        elif c.sparse and 0 < chunk < c.nchunks - 1:
            w.reached_counts[i] = pack_rows(plan, w, ch[0], ch[1], 0, w.m, a, w.reached_rows + i * c.tasks.block)
        else:
            pack_rows(plan, w, ch[0], ch[1], w.s0, rows, a, NULL)


cdef int64_t pack_rows(DirectPlan plan, DirectTask *w, int64_t k0, int64_t kc, int64_t r0, int64_t m, char *a,
                       void **reached_rows) noexcept nogil:
    """Pack depth [k0, k0 + kc) of the task's rows [r0, r0 + m) into ``a``, with zeros outside the input.

    Return the number of packed rows of a sparse chunk, else 0. Loop order: consecutive rows along the last axis, then taps.
    Taps that are adjacent in memory are packed together. If ``reached_rows`` is not NULL, the chunk is sparse and has one
    tap: rows that the tap does not reach are skipped, and ``reached_rows`` receives the `sum_rows` of the other rows.
    """
    cdef const convt_kernels *k = plan.k
    cdef DirectClass *c = w.c
    cdef int nd = plan.nd, ax
    cdef int64_t x = nd - 1
    cdef int64_t ci_p = convt_quotient(plan.ci + k.kstep - 1, k.kstep) * k.kstep
    cdef int64_t pixels = 1
    for ax in range(nd):
        pixels *= c.count[ax]
    cdef int64_t row = 0, npacked = 0, nrows, batch, tap, first, last, depth, lo, hi, i, at, cols, r, n
    cdef int64_t *j
    cdef int64_t *first_in
    cdef bint inside
    cdef char *packed
    while row < m:
        j = w.coords + (r0 + row) * nd
        nrows = min(c.count[x] - j[x], m - row)
        batch = convt_quotient(w.m0 + r0 + row, pixels)
        depth = k0
        while depth < k0 + kc:
            tap = convt_quotient(depth, ci_p)
            first = depth - tap * ci_p
            last = min(ci_p, first + k0 + kc - depth)
            first_in = c.tap_in + tap * nd
            inside = True
            at = batch * plan.in_n + first * plan.in_c
            for ax in range(nd - 1):
                i = first_in[ax] + j[ax]
                if i < 0 or i >= plan.in_size.p[ax]:
                    inside = False
                    break
                at += i * plan.in_stride.p[ax]
            i = first_in[x] + j[x]
            lo = min(nrows, max(0, -i)) if inside else 0
            hi = max(lo, min(nrows, plan.in_size.p[x] - i)) if inside else 0
            cols = min(plan.ci, last) - first
            n = 1
            while lo == 0 and hi == nrows and last < first + k0 + kc - depth and c.follows_previous[tap + n] and (
                    i + nrows + n <= plan.in_size.p[x]):
                n += 1
                last = min(n * ci_p, first + k0 + kc - depth)
                cols = last - first
            packed = a + ((row + lo if reached_rows == NULL else npacked) * plan.lda + depth - k0) * k.e_size
            if hi > lo and not k.pack_uncached(packed, plan.lda, w.src + (at + (i + lo) * plan.in_stride.p[x]) * k.s_size,
                                               plan.in_stride.p[x], plan.in_c, <int>(hi - lo), <int>cols,
                                               <int>(last - first)):
                convt_set(w.refused)
            if reached_rows == NULL:
                for r in range(-lo, 0):
                    memset(packed + r * plan.lda * k.e_size, 0, (last - first) * k.e_size)
                for r in range(hi - lo, nrows - lo):
                    memset(packed + r * plan.lda * k.e_size, 0, (last - first) * k.e_size)
            else:
                for r in range(lo, hi):
                    reached_rows[npacked] = w.sum_rows[r0 + row + r]
                    npacked += 1
            depth += last - first
        row += nrows
    return npacked


cdef void multiply_panels(DirectPlan plan, DirectTask *w, bint back) noexcept nogil:
    """Multiply the strip by all panels of the task, for the span's depth chunks.

    Loop order: panels (or pairs), depth chunks, register tiles. ``back`` reverses the order of the panels.
    """
    cdef const convt_kernels *k = plan.k
    cdef DirectClass *c = w.c
    cdef Panels v
    cdef int64_t n = w.p0, chunk
    while n < w.p1:
        # Few rows are multiplied by two panels at once, because more accumulators hide the latency of multiply-adds. At
        # little depth all rows are (Shape.order).
        v.p, v.count = w.p0 + w.p1 - 1 - n if back else n, 1
        if w.m <= c.pair_rows and n + 1 < w.p1 and c.panels[5 * (v.p + (not back))] == k.nr:
            v.p, v.count = v.p - back, 2
        n += v.count
        v.table = c.panels + 5 * v.p
        if v.table[3] == v.table[5 * v.count - 1]:  # the window shows none of the columns
            continue
        v.following = v.p - v.count if back else v.p + v.count
        v.width = k.vl if v.table[0] <= k.vl else k.nr
        w.t.nv = <int>(v.count if v.width == k.vl else 2 * v.count)
        w.t.cols = <int>(v.table[0] if v.count == 1 else 2 * k.nr)
        v.height = k.mr[w.t.nv] if v.count == 1 else k.wide
        v.simple = c.all_inside and w.can_store_direct and v.table[1] and v.table[5 * v.count - 4]
        v.sums = (v.p - w.p0 if c.span < c.nchunks else 0) * w.stride_sums
        for chunk in range(w.start, w.end):
            multiply_chunk(plan, w, &v, chunk)


cdef void multiply_chunk(DirectPlan plan, DirectTask *w, Panels *v, int64_t chunk) noexcept nogil:
    """Multiply the strip by the panels, for one depth chunk.

    Chunks except the last one of the class write partial sums to the region `sums`; the last one writes outputs.
    """
    cdef const convt_kernels *k = plan.k
    cdef DirectClass *c = w.c
    cdef convt_tile *t = &w.t
    cdef int64_t *ch = c.chunks + 4 * chunk
    cdef int64_t i = 0, s0 = w.s0, r0, r1 = s0, first_row = 0, prefetching, end = w.s1, tiles
    cdef char *rows = w.chunk_inputs[chunk]  # packed rows begin with row s0
    cdef void **sum_rows = w.sum_rows  # addresses of the chunk's rows in the partial sums
    cdef const char *next_b
    cdef Cut by_tile
    cdef bint together = v.simple and not k.parts
    t.lda, t.kc = c.lda, <int>ch[1]
    if rows == NULL or not c.in_place:
        rows, t.lda, first_row = w.a + (chunk - w.start) * w.stride_a, plan.lda, s0
    set_weights(plan, w, v, chunk)
    next_b = next_weights(plan, w, v, chunk, &prefetching)
    if c.sparse and 0 < chunk < c.nchunks - 1:
        end, sum_rows = w.reached_counts[chunk - w.start], w.reached_rows + (chunk - w.start) * c.tasks.block
    if end - s0 != w.cut_rows or v.height != w.cut_height:  # rarely, because divisions are slow
        w.cut_rows, w.cut_height = end - s0, v.height
        w.tiles = convt_quotient(w.cut_rows + v.height - 1, v.height)
        w.by_tile = cut_evenly(w.cut_rows, w.tiles, k.m_step)
    tiles, by_tile = w.tiles, w.by_tile  # local copies, because the compiler reloads fields of w after each kernel call
    while i < tiles:
        r0, r1, t.more_tiles = r1, s0 + cut_at(&by_tile, i + 1), 0
        if together and i >= prefetching:
            t.more_tiles = <int>((by_tile.taller if i < by_tile.taller else tiles) - i - 1)
            t.more_tiles -= s0 + cut_at(&by_tile, i + 1 + t.more_tiles) - r1 < t.more_tiles * (r1 - r0)
        t.a = rows + (r0 - first_row) * t.lda * k.e_size
        if i < prefetching and w.source != NULL:  # one line of each in-channel, then their next lines
            t.prefetch_step = plan.recipe.si * k.s_size
            t.prefetch = next_b + i % k.prefetch_interval * ch[3] * t.prefetch_step + i // k.prefetch_interval * 64
        elif i < prefetching:
            t.prefetch, t.prefetch_step = next_b + i * 64 * ch[3], 64
        else:
            t.prefetch, t.prefetch_step = w.next_input, w.input_step
            w.next_input += w.input_step * ch[3] * (1 + t.more_tiles)
        t.init, t.init_ld = NULL, k.nr
        if chunk == 0:
            t.init, t.init_ld = w.bias + v.p * k.nr * k.t_size, 0
            t.init2 = <const char *>t.init + k.nr * k.t_size
        elif chunk == c.nchunks - 1:
            t.init = w.sums + (v.sums + r0 * k.nr) * k.t_size
            t.init2 = <const char *>t.init + w.stride_sums * k.t_size
        if chunk < c.nchunks - 1:
            t.act, t.stream, t.narrow_dtype = &plan.none, 0, 0
            t.rows, t.row_offset, t.row_offset2 = sum_rows + r0, v.sums, v.sums + w.stride_sums
            k.tile(<int>(r1 - r0), t)
        else:
            compute_output_tile(plan, w, v, r0, r1)
        i += 1 + t.more_tiles
        r1 = s0 + cut_at(&by_tile, i)


cdef void set_weights(DirectPlan plan, DirectTask *w, Panels *v, int64_t chunk) noexcept nogil:
    """Set the weights of the panels for one depth chunk. Pack them if the task packs on the fly."""
    cdef convt_tile *t = &w.t
    cdef DirectClass *c = w.c
    cdef int64_t i, first = c.chunks[4 * chunk + 2], bytes = t.kc * v.width * plan.k.e_size
    if w.source == NULL:
        t.b = w.weights + v.p * w.panel_bytes + first * v.width * plan.k.e_size
        t.b2 = <const char *>t.b + w.panel_bytes
        return
    t.b, t.b2 = w.panel, w.panel + bytes
    for i in range(v.count):
        if pack_depth(plan.recipe, c.pack, c.first_panel + v.p + i, first, t.kc, w.source, w.panel + i * bytes):
            convt_set(w.refused)


cdef const char *next_weights(DirectPlan plan, DirectTask *w, Panels *v, int64_t chunk, int64_t *prefetching) noexcept nogil:
    """Return the address of the next weights: the panel's next chunk, or the first chunk of the next panel.

    ``prefetching`` receives the number of tiles that prefetch them: none if they stay in L2.
    """
    cdef const convt_kernels *k = plan.k
    cdef DirectClass *c = w.c
    cdef int64_t lines = c.chunks[4 * chunk + 3], panel = v.p, following = chunk + 1
    if following == w.end:
        panel, following = v.following, w.start
    prefetching[0] = 0
    if w.source != NULL:
        prefetching[0] = 2 * k.prefetch_interval
        return plan.recipe.source_at(c.pack, max(0, c.first_panel + panel), 0, c.chunks[4 * following + 2], w.source)
    if w.far_weights and lines:
        prefetching[0] = convt_quotient(w.t.kc * v.width * k.e_size + 64 * lines - 1, 64 * lines)
    return w.weights + panel * w.panel_bytes + c.chunks[4 * following + 2] * v.width * k.e_size


cdef void compute_output_tile(DirectPlan plan, DirectTask *w, Panels *v, int64_t r0, int64_t r1) noexcept nogil:
    """Compute the tile of rows [r0, r1) for the last depth chunk, and write its outputs.

    The tile stores into the output itself if it can. Otherwise it stores to `scratch`, from where `store_pieces` stores the
    pieces that are inside the window.
    """
    cdef const convt_kernels *k = plan.k
    cdef convt_tile *t = &w.t
    cdef int64_t *panel = v.table
    cdef int64_t *second_panel = panel + 5 * (v.count - 1)
    cdef int64_t *box = w.c.boxes + 2 * plan.nd * v.p
    cdef int64_t r = r1 if w.c.all_inside else w.next_outside[r0], n
    cdef size_t outputs = <size_t>(w.dst + panel[2] * k.s_size) | <size_t>(w.dst + second_panel[2] * k.s_size)
    while r < r1 and v.count == 1 and is_inside(box, w.coords + r * plan.nd, plan.nd):
        r = w.next_outside[r + 1]
    if r >= r1 and w.can_store_direct and panel[1] and second_panel[1]:
        t.act, t.narrow_dtype, t.rows, t.row_offset, t.row_offset2 = (
            &plan.act, k.narrow_dtype, w.out_rows + r0, panel[2], second_panel[2])
        t.stream = plan.tile_non_temporal and not outputs & (plan.tile_non_temporal - 1)
        k.tile(<int>(r1 - r0), t)
        return
    t.act, t.stream, t.narrow_dtype = &plan.none, 0, 0
    t.rows, t.row_offset, t.row_offset2 = w.scratch_rows, 0, w.max_tile_rows * k.nr
    k.tile(<int>(r1 - r0), t)
    for n in range(v.count):
        store_pieces(plan, w, panel + 5 * n, r0, r1, r >= r1, w.scratch + n * w.max_tile_rows * k.nr * k.t_size)


cdef void store_pieces(DirectPlan plan, DirectTask *w, int64_t *panel, int64_t r0, int64_t r1, bint inside,
                       char *scratch) noexcept nogil:
    """Store rows [r0, r1) of a tile in ``scratch`` into the output, each piece where it is inside the window.

    ``inside`` says that all pieces of all these rows are. The activation is applied. 16-bit outputs are rounded.
    """
    cdef const convt_kernels *k = plan.k
    cdef int64_t width = 3 + 2 * plan.nd, r, n
    cdef int64_t *piece
    cdef void *rows[CONVT_MOST_ROWS]
    cdef bint any_inside
    if inside and panel[1]:
        for r in range(r0, r1):
            rows[r - r0] = <char *>w.out_rows[r] + panel[2] * k.s_size
        k.store(rows, plan.out_c, scratch, k.nr, <int>(r1 - r0), <int>panel[0], &plan.act)
        return
    for n in range(panel[3], panel[4]):
        piece = w.c.pieces + n * width
        any_inside = inside
        for r in range(r0, r1):
            rows[r - r0] = NULL
            if inside or is_inside(piece + 3, w.coords + r * plan.nd, plan.nd):
                rows[r - r0] = <char *>w.out_rows[r] + piece[2] * k.s_size
                any_inside = True
        if any_inside:
            k.store(rows, plan.out_c, scratch + piece[0] * k.t_size, k.nr, <int>(r1 - r0), <int>piece[1], &plan.act)
