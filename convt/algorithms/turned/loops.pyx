# cython: language_level=3
"""The plan of turned and its loops: a GEMM on NCX planes whose rows are outputs and whose columns are pixels.

A task is a block of pixels times a block of tiles, of one class and channel group; only this task writes their outputs. It
packs its inputs into panels (region "panels") for all taps and in-channels, run by run along the last axis. The loops are
then: groups of tiles of equal height, panels, depth chunks. One kernel call multiplies a group of tiles by a panel into the
region "sums", and the phases are interleaved from there into the planes of the output. Tiles of one phase store directly into
the planes. schedule.py lists the other regions.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

from convt._core cimport Call, NativePlan, kernels_of
from convt._run.flags cimport convt_is_set, convt_set
from convt._run.kernels cimport (
    CONVT_INTERLEAVED,
    CONVT_LEAKY,
    MOST_ROWS,
    convt_interleave,
    convt_kernels,
    convt_prefetch_row_l2,
    convt_prefetch_row_l1,
    convt_quotient,
    convt_tile,
)
from convt._run.memory cimport keep_table, structures
from convt.algorithms.turned.weights cimport TurnedPack, TurnedRecipe
from convt.algorithms.indexing cimport is_inside, take_index

cnp.import_array()

cdef enum:
    LINES = 64  # in-channels copied at a time before their conversion to the elements of a unit

# For schedule.py:
MOST_PHASES = CONVT_INTERLEAVED  # the most phases of the last axis
PACKED_LINES = LINES


cdef struct TurnedClass:
    # A run on each axis, and its division into tasks: see schedule.py.
    int64_t *count           # [axis] pixels
    int64_t pixels           # pixels of all images
    int64_t block, blocks    # pixels of a task; number of blocks
    int64_t *tap_in          # [tap][axis] input index that the first pixel reads
    int64_t ntaps, depth     # depth: taps times in-channels, as packed
    int64_t *chunks          # [chunk] (first depth in a panel, depth, first depth in the weights) of a depth chunk
    int64_t nchunks
    int64_t *unit            # [tile + 1] first unit of rows. A unit is the last axis's phases of a channel and outer phase
    int64_t tiles, tile_block, tile_blocks
    int64_t call_tiles       # the most tiles that one call multiplies by a panel
    int64_t outer            # number of outer phases: phases of the axes before the last
    int64_t *outer_at        # [outer phase] offset of its output at the first pixel, in elements
    int64_t *outer_valid     # [outer phase][axis before the last] (low, high) range of pixels that the window shows
    bint whole               # the window shows all pixels of all outer phases
    int64_t x_first          # output index of phase 0 at the first pixel of the last axis
    TurnedPack *pack
    bint nested              # some phases lack taps, and their weights there are zeros
    int64_t first_task, ntasks


cdef struct TurnedTask:
    # The state of a task. S is the dtype of the arrays, T that of accumulators.
    TurnedClass *c
    int64_t m0, pixels       # first pixel, and number of pixels, counted across all images
    char *src                # data of the channel group
    char *dst                # output of the channel group
    const char *weights
    const char *bias
    char *panels             # packed inputs
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


cdef class TurnedPlan(NativePlan):
    """The plan of a `Schedule` of turned/schedule.py."""

    cdef TurnedRecipe recipe
    cdef list keep
    cdef TurnedClass *classes
    cdef Py_ssize_t nclasses
    cdef int64_t phases      # phases of the last axis
    cdef int64_t ci_p, out_size  # in-channels as packed; outputs on the last axis
    # byte offsets of regions of the workspace
    cdef int64_t panels_at, staging_at, sums_at, sum_rows_at, plane_rows_at, unit_rows_at, unit_offsets_at, biases_at
    cdef int64_t pieces_at, first_piece_at
    cdef bint stream, prefetch_outputs, far  # see schedule.py
    cdef const convt_kernels *packed_kernels  # kernels of the dtype of packed inputs on vectors (float32 or float64)
    cdef bint direct_store   # tiles store directly if a panel is one piece: one phase, contiguous pixels

    def __init__(self, str name, problem, TurnedRecipe recipe, in_strides, out_strides, classes, schedule):
        """``classes`` are the tables that bind.py makes."""
        self.open_plan(name, problem, recipe.k, in_strides, out_strides, schedule.execution)
        cdef const convt_kernels *k = self.k
        cdef TurnedClass *c
        cdef int64_t task = 0
        self.recipe, self.keep, self.works, self.stream, self.far = recipe, [], [], schedule.stream, schedule.far
        self.prefetch_outputs = schedule.prefetch_outputs
        self.phases, self.ci_p = self.stride.p[self.nd - 1], recipe.ci_p
        self.out_size = problem.out_sizes[problem.rank - 1]
        self.nclasses = len(classes)
        self.packed_kernels = kernels_of("float64" if k.t_size == 8 else "float32")
        self.classes = <TurnedClass *>cnp.PyArray_DATA(structures(self.keep, self.nclasses, sizeof(TurnedClass)))
        for n, spec in enumerate(classes):
            c = &self.classes[<Py_ssize_t>n]
            c.count, c.pixels = keep_table(self.keep, spec["count"]), spec["pixels"]
            c.block, c.blocks = spec["block"], spec["blocks"]
            c.ntaps, c.tap_in = len(spec["tap_in"]), keep_table(self.keep, spec["tap_in"])
            c.depth = c.ntaps * self.ci_p
            c.nchunks, c.chunks = len(spec["chunks"]), keep_table(self.keep, spec["chunks"])
            c.tiles, c.unit = len(spec["units"]) - 1, keep_table(self.keep, spec["units"])
            c.tile_block, c.tile_blocks, c.call_tiles = spec["tile_block"], spec["tile_blocks"], spec["call_tiles"]
            c.outer, c.outer_at = len(spec["outer_at"]), keep_table(self.keep, spec["outer_at"])
            c.whole = spec["whole"]
            c.outer_valid, c.x_first = keep_table(self.keep, spec["outer_valid"]), spec["x_first"]
            c.pack, c.nested = &recipe.classes[<Py_ssize_t>spec["pack"]], spec["nested"]
            c.first_task, c.ntasks = task, self.groups * c.blocks * c.tile_blocks
            task += c.ntasks
            self.works.append((spec["work"], c.ntasks))
        self.tasks = task
        self.equal_tasks = self.nclasses == 1
        self.direct_store = (self.phases == 1 and k.direct_store and self.out_stride.p[self.nd - 1] == 1
                             and self.act.code <= CONVT_LEAKY)
        space = schedule.workspace
        self.workspace = space.bytes
        self.panels_at, self.staging_at, self.sums_at = space["panels"], space["staging"], space["sums"]
        self.sum_rows_at, self.plane_rows_at, self.unit_rows_at = space["sum_rows"], space["plane_rows"], space["unit_rows"]
        self.unit_offsets_at, self.biases_at = space["unit_offsets"], space["bias"]
        self.pieces_at, self.first_piece_at = space["pieces"], space["first_piece"]

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        if convt_is_set(call.refused):  # another task found that the call must be repeated with another plan
            return
        cdef const convt_kernels *k = self.k
        cdef TurnedTask w
        cdef TurnedClass *c = self.classes
        cdef convt_tile t
        cdef int64_t group, n, panels, panel, first, last, some, unit, units, chunk, height, columns, step
        cdef const char *next_tile
        cdef const char *end
        cdef ptrdiff_t at = 0
        cdef size_t bits
        cdef bint direct
        while task >= c.first_task + c.ntasks:
            c += 1
        group = task - c.first_task
        first = take_index(&group, c.tile_blocks) * c.tile_block
        last = min(c.tiles, first + c.tile_block)
        w.c, w.m0 = c, take_index(&group, c.blocks) * c.block
        w.pixels, w.refused = min(c.block, c.pixels - w.m0), call.refused
        w.src = call.src + group * self.ci * self.in_c * k.s_size
        w.dst = call.dst + group * self.co * self.out_c * k.s_size
        w.weights = call.weights + c.pack.weights + group * c.pack.group_weights
        w.bias = call.bias + group * self.recipe.group_bias
        w.panels, w.staging, w.sums, w.zeros = ws + self.panels_at, ws + self.staging_at, ws + self.sums_at, ws + self.biases_at
        w.pieces, w.first_piece = <int64_t *>(ws + self.pieces_at), <int64_t *>(ws + self.first_piece_at)
        w.sum_rows, w.plane_rows = <void **>(ws + self.sum_rows_at), <void **>(ws + self.plane_rows_at)
        w.unit_rows = <void **>(ws + self.unit_rows_at)
        w.unit_offsets = <int64_t *>(ws + self.unit_offsets_at)
        self.find_units(&w, c.unit[first], c.unit[last])
        self.find_pieces(&w)
        panels = convt_quotient(w.pixels + k.nr - 1, k.nr)
        for panel in range(panels):
            self.pack_panel(&w, panel)
        if convt_is_set(call.refused):
            return
        w.prefetch_line = self.next_input(&w, task, call)
        w.planes_left = self.ci if w.prefetch_line != NULL else 0
        w.lines_left = (c.block * k.s_size + 63) // 64
        w.lines_per_call = self.ci * w.lines_left // (
            c.nchunks * panels * ((last - first + c.call_tiles - 1) // c.call_tiles)) + 1
        for n in range(c.call_tiles * k.mr[2]):
            w.sum_rows[n] = w.sums + n * k.nr * k.t_size
        t.lda, t.narrow_dtype, t.pending = c.pack.lda, 0, NULL
        step = 64 if k.parts else 128  # bytes that a tile prefetches at a time
        while first < last:
            unit, some = c.unit[first], 1
            while first + some < last and some < c.call_tiles and (
                    c.unit[first + some + 1] - c.unit[first + some] == c.unit[first + 1] - unit):
                some += 1
            height, units, bits = (c.unit[first + 1] - unit) * self.phases, c.unit[first + some] - unit, 0
            for n in range(units if self.direct_store else 0):
                w.plane_rows[n] = w.dst + w.unit_offsets[unit - w.first_unit + n] * k.s_size
                bits |= <size_t>w.plane_rows[n]
            next_tile = w.weights + c.unit[first + some] * self.phases * c.pack.lda * k.e_size
            end = next_tile + units * self.phases * c.pack.lda * k.e_size if self.far else next_tile
            for panel in range(panels):
                columns = min(<int64_t>k.nr, w.pixels - panel * k.nr)
                t.nv = <int>convt_quotient(columns + k.vl - 1, k.vl)
                direct = self.direct_store and self.can_store_directly(&w, panel, &at)
                if self.prefetch_outputs and not direct and panel + 1 < panels:
                    self.prefetch_units(&w, unit, units, panel + 1)
                for chunk in range(c.nchunks):
                    t.kc, t.more_tiles = <int>c.chunks[3 * chunk + 1], <int>(some - 1)
                    t.a = w.weights + (unit * self.phases * c.pack.lda + c.chunks[3 * chunk + 2]) * k.e_size
                    t.b = w.panels + (panel * k.nr * c.depth + c.chunks[3 * chunk] * t.nv * k.vl) * k.e_size
                    t.init, t.init_ld = w.zeros, 0
                    if chunk:
                        t.init, t.init_ld = w.sums, k.nr
                    elif self.direct_store:
                        t.init, t.init_ld = w.biases + (unit - w.first_unit) * k.nr * k.t_size, k.nr
                    t.prefetch, t.prefetch_step = <const char *>t.a, 0
                    if next_tile < end:  # weights of the next tiles that are not in L2
                        t.prefetch, t.prefetch_step = next_tile, step
                        next_tile += t.kc // k.prefetch_interval * step * some
                    if w.planes_left:
                        self.prefetch_input(&w)
                    t.rows, t.row_offset, t.cols, t.act, t.stream = w.sum_rows, 0, t.nv * k.vl, &self.none, 0
                    if direct and chunk == c.nchunks - 1:
                        t.rows, t.row_offset, t.cols, t.act = w.plane_rows, at, <int>columns, &self.act
                        t.stream = self.stream and not (bits | <size_t>(at * k.s_size)) & 63
                    k.tile(<int>height, &t)
                if not direct:
                    self.store_units(&w, unit, units, panel)
            first += some
        if self.stream:
            k.fence()

    cdef char *next_input(self, TurnedTask *w, Py_ssize_t task, const Call *call) noexcept nogil:
        """Return the address of the inputs of the next pixel block, which the thread's next task is expected to read.

        Return NULL if there is no such block, if another tile block of the same pixels may come next, or if pixels are not
        contiguous.
        """
        cdef TurnedClass *c = w.c
        cdef int64_t ax, j, at = 0, x = self.nd - 1, n = w.m0 + w.pixels
        if c.tile_blocks > 1 or n >= c.pixels or c.ntaps == 0 or self.in_stride.p[x] != 1:
            return NULL
        for ax in range(x, -1, -1):
            j = take_index(&n, c.count[ax])
            at += (c.tap_in[(c.ntaps - 1) * self.nd + ax] + j) * self.in_stride.p[ax]
        return w.src + (at + n * self.in_n) * self.k.s_size

    cdef void prefetch_input(self, TurnedTask *w) noexcept nogil:
        """Prefetch some lines of the next task's inputs. Addresses may be invalid."""
        cdef int64_t lines = min(w.lines_per_call, w.lines_left)
        convt_prefetch_row_l2(w.prefetch_line, 64 * lines)
        w.prefetch_line += 64 * lines
        w.lines_left -= lines
        if w.lines_left == 0:
            w.planes_left -= 1
            w.lines_left = (w.c.block * self.k.s_size + 63) // 64
            w.prefetch_line += self.in_c * self.k.s_size - 64 * w.lines_left

    cdef void find_pieces(self, TurnedTask *w) noexcept nogil:
        """Fill `pieces`: the contiguous runs of the task's pixels along the last axis, cut at the ends of panels."""
        cdef TurnedClass *c = w.c
        cdef int64_t x = self.nd - 1, n = 0, ax, image = w.m0, panel = 0, some
        cdef int64_t *piece = w.pieces
        cdef int64_t j[64]
        for ax in range(x, -1, -1):
            j[ax] = take_index(&image, c.count[ax])
        w.first_piece[0] = 0
        while n < w.pixels:
            some = min(min(c.count[x] - j[x], w.pixels - n), (panel + 1) * self.k.nr - n)
            piece[0], piece[1], piece[2] = n - panel * self.k.nr, some, image
            for ax in range(self.nd):
                piece[3 + ax] = j[ax]
            piece += 3 + self.nd
            n += some
            if n == (panel + 1) * self.k.nr or n == w.pixels:
                panel += 1
                w.first_piece[panel] = (piece - w.pieces) // (3 + self.nd)
            j[x] += some
            for ax in range(x, 0, -1):
                if j[ax] == c.count[ax]:
                    j[ax] = 0
                    j[ax - 1] += 1
            if j[0] == c.count[0]:
                j[0] = 0
                image += 1

    cdef void pack_panel(self, TurnedTask *w, int64_t panel) noexcept nogil:
        """Pack the inputs of a panel of pixels; rows are (tap, in-channel)."""
        cdef const convt_kernels *k = self.k
        cdef TurnedClass *c = w.c
        cdef int64_t tap, c0, rows, n, most
        cdef int64_t columns = min(<int64_t>k.nr, w.pixels - panel * k.nr)
        cdef int64_t nb = (columns + k.vl - 1) // k.vl * k.vl
        cdef char *panel_at = w.panels + panel * k.nr * c.depth * k.e_size
        cdef char *dst
        cdef bint packs_directly = k.kstep == 1  # packed rows are rows of the input, so that no second copy is needed
        most = self.ci if packs_directly else LINES
        for tap in range(c.ntaps):
            c0 = 0
            while c0 < self.ci:
                rows = min(most, self.ci - c0)
                dst = panel_at + tap * self.ci * nb * k.e_size
                if packs_directly and columns < nb:  # zeros in columns without pixels, because denormal numbers are slow
                    memset(dst, 0, rows * nb * k.e_size)
                if not packs_directly:
                    dst = w.staging
                    if columns < nb or rows % k.kstep:  # other elements must be values that E can hold
                        memset(dst, 0, LINES * nb * k.s_size)
                for n in range(w.first_piece[panel], w.first_piece[panel + 1]):
                    self.copy_piece(w, w.pieces + n * (3 + self.nd), c.tap_in + tap * self.nd, c0, rows, dst, nb,
                                    packs_directly)
                if not packs_directly:
                    rows = convt_quotient(rows + k.kstep - 1, k.kstep) * k.kstep
                    if not k.pack_b(panel_at, <int>(tap * self.ci_p + c0), 0, w.staging, nb, 1, <int>rows, <int>nb, <int>nb):
                        convt_set(w.refused)
                c0 += most
        # NaN or infinity times the zero weights of phases that lack a tap must not reach the outputs of these phases.
        if c.nested and packs_directly and not self.packed_kernels.finite(panel_at, c.ntaps * self.ci * nb * k.e_size):
            convt_set(w.refused)

    cdef void copy_piece(self, TurnedTask *w, int64_t *piece, int64_t *tap, int64_t c0, int64_t rows, char *dst, int64_t ld,
                         bint converts) noexcept nogil:
        """Copy ``rows`` in-channels of the inputs that a tap reads for a piece, with zeros outside the input.

        Convert them to E if ``converts``; otherwise keep S.
        """
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, ax, i, at = piece[2] * self.in_n + c0 * self.in_c, low, high, r
        cdef size_t size = k.e_size if converts else k.s_size
        cdef bint inside = True
        for ax in range(x):
            i = tap[ax] + piece[3 + ax]
            if i < 0 or i >= self.in_size.p[ax]:
                inside = False
                break
            at += i * self.in_stride.p[ax]
        i = tap[x] + piece[3 + x]
        low = min(piece[1], max(0, -i)) if inside else piece[1]
        high = max(low, min(piece[1], self.in_size.p[x] - i))
        dst += piece[0] * size
        if high > low:
            at += (i + low) * self.in_stride.p[x]
            if converts:
                k.widen(dst + low * size, ld, w.src + at * k.s_size, self.in_c, self.in_stride.p[x], <int>rows,
                        <int>(high - low), <int>(high - low))
            else:
                k.transpose(dst + low * size, ld, 1, w.src + at * k.s_size, self.in_c, self.in_stride.p[x], <int>rows,
                            <int>(high - low), False)
        if low > 0:
            for r in range(rows):
                memset(dst + r * ld * size, 0, low * size)
        if high < piece[1]:
            for r in range(rows):
                memset(dst + (r * ld + high) * size, 0, (piece[1] - high) * size)

    cdef void find_units(self, TurnedTask *w, int64_t first, int64_t last) noexcept nogil:
        """Fill the output offset and the bias of each unit of a task."""
        cdef const convt_kernels *k = self.k
        cdef TurnedClass *c = w.c
        cdef int64_t u, n, channel, lanes = k.nr if self.direct_store else 1
        w.first_unit, w.biases = first, w.zeros + k.nr * k.t_size
        for n in range(k.nr):  # -0.0 is the neutral element of addition: it keeps the sign of a zero sum
            if k.t_size == 8:
                (<double *>w.zeros)[n] = -0.0
            else:
                (<float *>w.zeros)[n] = -0.0
        for u in range(last - first):
            channel = convt_quotient(first + u, c.outer)
            w.unit_offsets[u] = channel * self.out_c + c.outer_at[first + u - channel * c.outer]
            for n in range(u * lanes, (u + 1) * lanes):
                if k.t_size == 8:
                    (<double *>w.biases)[n] = (<double *>w.bias)[channel]
                else:
                    (<float *>w.biases)[n] = (<float *>w.bias)[channel]

    cdef int64_t output_offset(self, TurnedTask *w, int64_t *piece, int64_t x0) noexcept nogil:
        """Return the offset of the first output of a piece, in elements; ``x0`` is its index on the last axis."""
        cdef int64_t ax, x = self.nd - 1, at = piece[2] * self.out_n + x0 * self.out_stride.p[x]
        for ax in range(x):
            if piece[3 + ax]:
                at += self.stride.p[ax] * piece[3 + ax] * self.out_stride.p[ax]
        return at

    cdef bint can_store_directly(self, TurnedTask *w, int64_t panel, ptrdiff_t *at) noexcept nogil:
        """Check whether tiles of a panel store directly: one piece, inside the window. If so, set ``at`` to the offset of its
        first pixel."""
        cdef TurnedClass *c = w.c
        cdef int64_t *piece = w.pieces + w.first_piece[panel] * (3 + self.nd)
        cdef int64_t x = self.nd - 1, x0 = piece[3 + x] + c.x_first
        if w.first_piece[panel + 1] - w.first_piece[panel] > 1 or not c.whole or x0 < 0 or x0 + piece[1] > self.out_size:
            return False
        at[0] = self.output_offset(w, piece, x0)
        return True

    cdef void prefetch_units(self, TurnedTask *w, int64_t first, int64_t units, int64_t panel) noexcept nogil:
        """Prefetch the output rows into which a panel of some units will be stored."""
        cdef TurnedClass *c = w.c
        cdef int64_t n, u, x = self.nd - 1, at, x0
        cdef int64_t *piece
        for n in range(w.first_piece[panel], w.first_piece[panel + 1]):
            piece = w.pieces + n * (3 + self.nd)
            x0 = self.phases * piece[3 + x] + c.x_first
            if x0 < 0:
                continue
            at = self.output_offset(w, piece, x0)
            for u in range(units):
                convt_prefetch_row_l1(w.dst + (at + w.unit_offsets[first - w.first_unit + u]) * self.k.s_size,
                                      self.phases * piece[1] * self.k.s_size)

    cdef void store_units(self, TurnedTask *w, int64_t first, int64_t units, int64_t panel) noexcept nogil:
        """Interleave the phases of some units of a panel, which `sums` holds, into the output."""
        cdef const convt_kernels *k = self.k
        cdef TurnedClass *c = w.c
        cdef convt_interleave v
        cdef int64_t n, u, x = self.nd - 1, at, x0, width = 3 + self.nd, nth = first - w.first_unit
        cdef int64_t *piece
        v.phases, v.rows, v.ld, v.out = self.phases, <int>units, k.nr, w.unit_rows
        v.bias = NULL if self.direct_store else w.biases + nth * k.t_size
        v.step, v.act, v.stream = self.out_stride.p[x], &self.act, self.stream
        for n in range(w.first_piece[panel], w.first_piece[panel + 1]):
            piece = w.pieces + n * width
            x0 = self.phases * piece[3 + x] + c.x_first
            v.first, v.last = max(0, -x0), min(self.phases * piece[1], self.out_size - x0)
            if v.first >= v.last:
                continue
            v.row = w.sums + piece[0] * k.t_size
            at = self.output_offset(w, piece, x0)
            for u in range(units):
                w.unit_rows[u] = w.dst + (at + w.unit_offsets[nth + u]) * k.s_size
            if not c.whole:
                for u in range(units):
                    if not is_inside(c.outer_valid + (first + u) % c.outer * 2 * x, piece + 3, x):
                        w.unit_rows[u] = NULL
            k.interleave(&v)
