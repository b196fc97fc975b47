# cython: language_level=3
"""scatter's loops: all taps of a row at once, overlap-added in the cache; for few out channels.

Along the last axis the GEMM makes every tap's products at once (columns are taps times out channels), which are overlap-added in
the cache; across the other axes it gathers. A task is a stretch of some output rows, which keeps the input rows that it has packed.
Products lie as [pixel][column], vectors running over columns; or, `across`, as [column][pixel].
"""

from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

cimport numpy as cnp

import numpy as np

from convt._core cimport Call, Plan
from convt._flags cimport convt_is_set, convt_set
from convt._kernels cimport (
    CONVT_ACROSS_MR, CONVT_LDA, MOST_ROWS, convt_across, convt_kernels, convt_overlap, convt_picked, convt_quotient, convt_tile,
)
from convt._memory cimport Table, keep_table, round64, structures
from convt.algorithms.indexing cimport cut_at, cut_evenly
from convt.algorithms.packing cimport PackClass
from convt.algorithms.scatter.weights cimport ScatterRecipe

cnp.import_array()


cdef class ScatterPlan(Plan):
    """Runs the rows that scatter/plan.py lists, class by class or, where the rows of several images follow each other, joined."""

    def __init__(self, str name, problem, ScatterRecipe recipe, in_strides, out_strides, execution, spec):
        self.open_plan(name, problem, recipe.k, in_strides, out_strides, execution)
        self.recipe, self.even = recipe, True
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c
        x = self.nd - 1
        self.taps_x, self.begin, self.window = self.kernel.p[x], problem.begin[x], problem.out_sizes[x]
        self.lanes = self.stride.p[x] * self.co
        self.terms = (self.taps_x + self.stride.p[x] - 1) // self.stride.p[x]
        self.j0, self.j1, self.block, self.blocks = spec["j0"], spec["j1"], spec["block"], spec["blocks"]
        self.j_whole = (self.begin + self.window) // self.stride.p[x]
        self.max_rows = spec["pixels"]
        self.slab = recipe.slab
        self.across = self.slab > 0
        self.fused = self.across and self.in_c == 1 and self.ci * k.t_size >= 16
        self.in_place = not (self.across or k.parts) and self.in_c == 1 and k.s_size == k.e_size and self.ci % k.kstep == 0
        self.far = spec["far"]
        self.keep = []
        cdef int64_t deepest = 0, parts = 0, most = 0, n  # depth of a chunk, chunks of a tap, taps
        self.classes = <ScatterClass *>cnp.PyArray_DATA(structures(self.keep, len(spec["classes"]), sizeof(ScatterClass)))
        for i, row in enumerate(spec["classes"]):
            c = &self.classes[i]
            c.ntaps, c.tap_in = len(row["tap_in"]), keep_table(self.keep, row["tap_in"])
            c.pack = &recipe.classes[<Py_ssize_t>row["pack"]]
            c.nchunks, c.chunks = len(row["chunks"]), self.chunks_of(row["chunks"], c.pack.ncols)
            c.parts = row["parts"]
            most = max(most, c.ntaps if c.parts else 1)
            for n in range(c.nchunks):
                deepest = max(deepest, c.chunks[n].depth)
            if not (c.parts and self.in_place):
                self.slots, parts = max(self.slots, c.ntaps if c.parts else 1), max(parts, c.parts, 1)
            c.nphases, c.phases = len(row["phases"]), keep_table(self.keep, row["phases"])
            if c.ntaps:
                c.npanels = c.pack.npanels
                c.ld = c.npanels * k.nr + 16
                self.sums = max(self.sums, self.max_rows * c.ld * k.t_size)
                if self.across:
                    for n in range(1, k.nr // k.vl + 1):
                        c.tiles[n] = (c.pack.ncols + k.mr[n] - 1) // k.mr[n]
                        c.by_tile[n] = cut_evenly(c.pack.ncols, c.tiles[n], 1)
                    # A vector before, one behind, and a cache line, so that columns fall into different sets.
                    c.ld = (self.max_rows + k.nr - 1) // k.nr * k.nr + 2 * k.vl + 16
                    self.sums = max(self.sums, c.pack.ncols * c.ld * k.t_size)
        if spec["gathers"]:
            columns, pixels = spec["gathers"]
            self._gather(columns, pixels)
        self.order, self.first, self.joined = Table(spec["order"]), Table(spec["first"]), spec["joined"]
        self.row_tasks = len(spec["first"]) - 1
        self.tasks = (1 if self.joined else self.batch) * self.row_tasks * self.groups * self.blocks
        # Pixels side by side, for vectors; or one after the other, for matrices as close as an odd number of steps allows.
        self.lda = (deepest // k.kstep | 1) * k.kstep if k.parts else k.lda
        n = (self.max_rows + k.grain) * self.lda
        if self.across:
            n = ((self.max_rows + k.nr - 1) // k.nr if most > 1 else 1) * k.nr * deepest
        self.chunk_size = round64(n * k.e_size)
        self.slot_size = parts * self.chunk_size
        self.workspace = round64(k.nr * k.t_size) + self._packed() + round64(self.sums)

    cdef ScatterChunk *chunks_of(self, chunks, int64_t ncols) except NULL:
        """Chunks, (first depth of the class, depth, first depth of the panel) each, of a class of so many columns."""
        cdef const convt_kernels *k = self.k
        cdef int64_t ci_p = max(<int64_t>1, self.recipe.ci_p), slab = max(<int64_t>1, self.slab), n
        cdef ScatterChunk *c = <ScatterChunk *>cnp.PyArray_DATA(structures(self.keep, len(chunks), sizeof(ScatterChunk)))
        for n, (first, depth, panel) in enumerate(chunks):
            c[n].first, c[n].depth, c[n].panel = first, depth, panel
            c[n].tap, c[n].channel = divmod(first, ci_p)
            c[n].at = (c[n].panel // slab * ncols * CONVT_LDA + c[n].panel % slab) * k.e_size
            c[n].prefetches = depth // k.pace
        return c

    cdef _gather(self, columns, pixels):
        """Takes what outputs of an image sum, [output][term]; the column beyond the last is nothing."""
        cdef ScatterClass *c = self.classes
        count, terms = columns.shape
        index = np.zeros((-(-count // self.k.vl) * self.k.vl, 1 + terms), np.int32)
        index[:count, 0] = np.arange(count) % self.co
        index[:count, 1:] = columns * c.ld + pixels
        self.gathers = np.ascontiguousarray(index.reshape(-1, self.k.vl, 1 + terms).transpose(0, 2, 1))
        self.gather_index = <int32_t *>cnp.PyArray_DATA(self.gathers)
        self.outputs, self.gather_terms = count, terms
        self.sums = (c.pack.ncols + 1) * c.ld * self.k.t_size

    cdef size_t _packed(self) noexcept nogil:
        """Bytes of packed pixels."""
        return round64(self.slots * sizeof(PackedRow)) + self.slots * self.slot_size

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        if convt_is_set(call.refused):  # what another task found makes this one's work useless
            return
        cdef PackedRow *kept = <PackedRow *>(ws + round64(self.k.nr * self.k.t_size))
        cdef int64_t n, group, image, first, last, j_lo
        for n in range(self.slots):
            kept[n].used = -1
        for n in range(self.k.nr):  # -0, the sum of nothing that keeps the sign of zero
            if self.k.t_size == 8:
                (<double *>ws)[n] = -0.0
            else:
                (<float *>ws)[n] = -0.0
        self.place(task, &group, &image, &first, &last, &j_lo)
        if self.gather_index:
            self.run_images(first, last, call, ws)
            return
        while first < last:
            first = self.run_rows(task, group, image, first, last, j_lo, call, ws)

    cdef void place(self, Py_ssize_t task, int64_t *group, int64_t *image, int64_t *first, int64_t *last,
                    int64_t *j_lo) noexcept nogil:
        """A task's group, first image, rows and where its stretch of them starts."""
        cdef int64_t rest = convt_quotient(task, self.groups), above = convt_quotient(rest, self.blocks)
        group[0] = task - rest * self.groups  # of the same pixels follow each other: they share the lines of these
        j_lo[0] = self.j0 + (rest - above * self.blocks) * self.block
        image[0] = convt_quotient(above, self.row_tasks)
        task = above - image[0] * self.row_tasks
        first[0], last[0] = self.first.p[task], self.first.p[task + 1]

    cdef const int64_t *row_at(self, int64_t n) noexcept nogil:
        """The n-th row, as `order` has it."""
        return self.order.p + n * (1 + self.nd)

    cdef int64_t pixels_between(self, const int64_t *row, const int64_t *other) noexcept nogil:
        """How many pixels further another row of the same class starts, where the input is one stretch."""
        cdef int64_t ax, n = other[1] - row[1]
        for ax in range(self.nd - 1):
            n = n * self.in_size.p[ax] + other[2 + ax] - row[2 + ax]
        return n * self.in_size.p[self.nd - 1]

    cdef int64_t run_rows(self, Py_ssize_t task, int64_t group, int64_t first_image, int64_t first, int64_t last, int64_t j_lo,
                          const Call *call, char *ws) noexcept nogil:
        """The task's stretch of one row, or of as many as are one stretch of the input; returns which row is next."""
        cdef const convt_kernels *k = self.k
        cdef const int64_t *row = self.row_at(first)
        cdef const int64_t *other
        cdef int64_t x = self.nd - 1, j_hi = min(self.j1, j_lo + self.block), ax, at, n, ahead, pixels
        cdef int64_t i_lo = max(0, j_lo - self.terms + 1), i_hi = min(self.in_size.p[x], j_hi)
        cdef ScatterClass *c = self.classes + row[0]
        cdef char *col = ws + round64(k.nr * k.t_size) + self._packed()
        cdef const char *next
        if self.across:
            col += k.vl * k.t_size

        if c.ntaps and i_lo < i_hi:
            n, pixels = first + 1, i_hi - i_lo
            while self.joined and n < last:
                other = self.row_at(n)
                if other[0] != row[0]:
                    break
                at = self.pixels_between(row, other) + i_hi - i_lo
                if at > self.max_rows:
                    break
                n, pixels = n + 1, at
            next = self.next_pixels(task, n, last, first_image, j_lo, call, &ahead)
            last = n
            self.products(c, call.weights + c.pack.weights + group * c.pack.group_weights,
                          call.src + ((first_image + row[1]) * self.in_n + group * self.ci * self.in_c) * k.s_size, row + 2,
                          first, i_lo, pixels, ws, col, next, ahead, call.refused)
        else:
            i_hi, last = i_lo, first + 1

        cdef convt_overlap o
        o.ld, o.i0, o.i1 = c.ld, i_lo, i_hi
        o.terms, o.lanes, o.cols = <int>self.terms, <int>self.lanes, <int>(self.taps_x * self.co)
        o.channels = <int>self.co
        o.init = call.bias + group * self.lanes * k.t_size
        o.out_x, o.out_c = self.out_stride.p[x], self.out_c
        o.act = &self.act
        cdef int64_t p
        cdef int64_t *phase
        cdef bint valid
        for n in range(first, last):
            other = self.row_at(n)
            pixels = self.pixels_between(row, other)
            at = (first_image + other[1]) * self.out_n + group * self.co * self.out_c
            for ax in range(x):
                if other[2 + ax]:  # with one row the stride may be anything, and a product with it too
                    at += self.stride.p[ax] * other[2 + ax] * self.out_stride.p[ax]
            for p in range(c.nphases):
                phase = c.phases + p * (1 + 2 * x)
                valid = True
                for ax in range(x):
                    if other[2 + ax] < phase[1 + 2 * ax] or other[2 + ax] >= phase[2 + 2 * ax]:
                        valid = False
                if valid:
                    o.col = col + (p * o.cols * (c.ld if self.across else 1) + pixels) * k.t_size
                    self.overlap_row(&o, j_lo, j_hi, call.dst + (at + phase[0]) * k.s_size)
        return last

    cdef void run_images(self, int64_t first, int64_t last, const Call *call, char *ws) noexcept nogil:
        """Images whose pixels are multiplied as one, once with all taps; each output gathers its sums."""
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c = self.classes
        cdef char *col = ws + round64(k.nr * k.t_size) + self._packed() + k.vl * k.t_size
        cdef char *nothing = col + c.pack.ncols * c.ld * k.t_size  # of each image where its indices find it
        cdef int64_t pixels = 1, n
        cdef int64_t j[64]
        cdef convt_picked o
        for n in range(self.nd):
            pixels *= self.in_size.p[n]
            j[n] = 0
        self.products(c, call.weights + c.pack.weights, call.src + first * self.in_n * k.s_size, j, first, 0,
                      (last - first) * pixels, ws, col, call.src, 0, call.refused)
        o.index, o.terms, o.count = self.gather_index, self.gather_terms, self.outputs
        o.init, o.act = call.bias, &self.act
        for n in range(last - first):
            o.col = col + n * pixels * k.t_size
            o.out = call.dst + (first + n) * self.out_n * k.s_size
            memcpy(nothing + n * pixels * k.t_size, ws, k.t_size)  # -0, as products begin with
            k.overlap_picked(&o)

    cdef void overlap_row(self, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil:
        """Finish outputs [s * j, s * j_hi) of a row: whole j in one call; where the window cuts one, that one alone."""
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
                self.k.overlap_across(o)
            else:
                self.k.overlap(o)
            j = o.j1

    cdef void products(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                       char *ws, char *col, const char *next, int64_t ahead, char *refused) noexcept nogil:
        """The products of m pixels from i_lo on with each column (phase, tap, channel), summed over the row's taps."""
        cdef const convt_kernels *k = self.k
        cdef int64_t tiles, chunk, p, i, r0, r1, r, ncols = c.pack.ncols, most = k.mr[k.nr // k.vl]
        cdef ScatterChunk *ch
        cdef char *zeros = ws
        cdef char *a
        cdef void *rows[MOST_ROWS]
        cdef Cut by_tile
        cdef convt_tile t
        t.rows = rows
        t.at = 0
        t.act = &self.none
        t.stream, t.narrow, t.more, t.late = 0, 0, 0, NULL
        t.ahead, t.ahead_step = next, 0
        if ahead:  # each tile prefetches some of what the next row reads
            if self.across:
                tiles = c.tiles[k.nr // k.vl] * convt_quotient(m + k.nr - 1, k.nr)
            else:
                tiles = c.npanels * convt_quotient(m + most - 1, most)
            i = max(<int64_t>1, tiles * c.chunks.prefetches * c.nchunks)
            t.ahead_step = min(<int64_t>PREFETCHED, convt_quotient(ahead + i - 1, i))
        if self.fused and c.pack.ncols <= CONVT_ACROSS_MR and not c.parts:
            self.multiply_pixels(c, weights, src, j, i_lo, m, col)
            return
        if self.across and not c.parts:  # a panel of pixels at a time, which stays in L1
            a = self.slot(ws, 0)
            p = 0
            while p < m:
                for chunk in range(c.nchunks):
                    self.pack_pixels(c, c.chunks + chunk, src, j, i_lo + p, min(k.nr, m - p), a, refused)
                    self.multiply_across(c, chunk, &t, a, weights, p, m, col, zeros)
                p += k.nr
            return
        for chunk in range(c.nchunks):
            ch = c.chunks + chunk
            if c.parts and self.in_place:
                a = src + (self.tap_at(c, ch.tap, j) + i_lo * self.in_stride.p[self.nd - 1] + ch.channel) * k.s_size
                t.lda = self.in_stride.p[self.nd - 1]
            else:
                a, t.lda = self.packed(c, chunk, src, j, now, i_lo, m, ws, refused), self.lda
            if self.across:
                p = 0
                while p < m:
                    self.multiply_across(c, chunk, &t, a + p * ch.depth * k.e_size, weights, p, m, col, zeros)
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
                    t.ahead += ch.prefetches * t.ahead_step

    cdef void multiply_pixels(self, ScatterClass *c, char *weights, char *src, const int64_t *j, int64_t i_lo, int64_t m,
                              char *col) noexcept nogil:
        """`products` of few columns, across: pixels need not be packed for others."""
        cdef int64_t in_x = self.in_stride.p[self.nd - 1], tap = 0, chunk, depth
        cdef convt_across t
        t.kc, t.pixels, t.cs, t.ld, t.out = <int>self.ci, <int>m, in_x, c.ld, col
        for chunk in range(c.nchunks):
            depth = 0
            while depth < c.chunks[chunk].depth:  # whole taps
                t.src = src + (self.tap_at(c, tap, j) + i_lo * in_x) * self.k.s_size
                t.a = weights + c.chunks[chunk].at + depth * self.k.e_size
                t.add = tap > 0
                self.k.across(<int>c.pack.ncols, &t)
                depth, tap = depth + self.ci, tap + 1

    cdef void multiply_across(self, ScatterClass *c, int64_t chunk, convt_tile *t, char *panel, char *weights, int64_t first,
                              int64_t m, char *col, char *zeros) noexcept nogil:
        """The products of a panel of pixels, from the first-th of a stretch of so many on."""
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
            t.ahead += ch.prefetches * t.ahead_step

    cdef const char *next_pixels(self, Py_ssize_t task, int64_t n, int64_t last, int64_t image, int64_t j_lo, const Call *call,
                                 int64_t *bytes) noexcept nogil:
        """Where the pixels start that the n-th row of a task reads, or the next task where it has none: and how many bytes they
        are: of several taps those of the last, as what the others read has been there before; 0 if they are not one stretch of
        memory."""
        cdef int64_t group, i_lo, i_hi, x = self.nd - 1
        cdef const int64_t *row
        cdef ScatterClass *c
        bytes[0] = 0
        if not self.far or self.in_c != 1 or self.in_stride.p[x] != self.ci:
            return call.src
        if n == last:
            if task + 1 == self.tasks:
                return call.src
            self.place(task + 1, &group, &image, &n, &last, &j_lo)
        row = self.row_at(n)
        c = self.classes + row[0]
        i_lo, i_hi = max(0, j_lo - self.terms + 1), min(self.in_size.p[x], j_lo + self.block)
        if not c.ntaps or i_lo >= i_hi:
            return call.src
        bytes[0] = (i_hi - i_lo) * self.ci * self.k.s_size
        if self.joined:
            bytes[0] = min(self.max_rows, (last - n) * self.in_size.p[x]) * self.ci * self.k.s_size
        return call.src + ((image + row[1]) * self.in_n + self.tap_at(c, c.ntaps - 1, row + 2)
                           + i_lo * self.in_stride.p[x]) * self.k.s_size

    cdef int64_t tap_at(self, ScatterClass *c, int64_t tap, const int64_t *j) noexcept nogil:
        """Where the input row is that a tap reads."""
        cdef int64_t ax, at = 0
        for ax in range(self.nd - 1):
            at += (c.tap_in[tap * (self.nd - 1) + ax] + j[ax]) * self.in_stride.p[ax]
        return at

    cdef char *packed(self, ScatterClass *c, int64_t chunk, char *src, const int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                      char *ws, char *refused) noexcept nogil:
        """The pixels of a depth chunk as packed, now or for an earlier row of the task."""
        cdef PackedRow *kept = <PackedRow *>(ws + round64(self.k.nr * self.k.t_size))
        cdef char *to
        cdef int64_t n, at, part, oldest = 0
        if not c.parts:
            self.pack_pixels(c, c.chunks + chunk, src, j, i_lo, m, self.slot(ws, 0), refused)
            return self.slot(ws, 0)
        at, part = self.tap_at(c, c.chunks[chunk].tap, j), chunk - c.chunks[chunk].tap * c.parts
        for n in range(self.slots):
            if kept[n].used >= 0 and kept[n].at == at:
                kept[n].used = now
                return self.slot(ws, n) + part * self.chunk_size
            if kept[n].used < kept[oldest].used:
                oldest = n
        kept[oldest].at, kept[oldest].used = at, now
        to = self.slot(ws, oldest)
        for n in range(c.parts):
            self.pack_pixels(c, c.chunks + chunk - part + n, src, j, i_lo, m, to + n * self.chunk_size, refused)
        return to + part * self.chunk_size

    cdef char *slot(self, char *ws, int64_t n) noexcept nogil:
        """Where an input row's packed pixels go."""
        return ws + round64(self.k.nr * self.k.t_size) + round64(self.slots * sizeof(PackedRow)) + n * self.slot_size

    cdef void pack_pixels(self, ScatterClass *c, const ScatterChunk *chunk, char *src, const int64_t *j, int64_t i_lo,
                          int64_t m, char *to, char *refused) noexcept nogil:
        """Pixels [i_lo, i_lo + m) of a depth chunk: as the GEMM's A, or across as panels of its B."""
        cdef const convt_kernels *k = self.k
        cdef int64_t ci_p = self.recipe.ci_p, in_x = self.in_stride.p[self.nd - 1]
        cdef int64_t depth = 0, tap = chunk.tap, first = chunk.channel, last, p, cols, at
        while depth < chunk.depth:
            last = min(ci_p, first + chunk.depth - depth)
            at = self.tap_at(c, tap, j) + i_lo * in_x + first * self.in_c
            if self.across:
                p = 0
                while p < m:
                    cols = k.nr
                    if m - p < k.nr:
                        cols = convt_quotient(m - p + k.vl - 1, k.vl) * k.vl
                    k.widen(to + (p * chunk.depth + depth * cols) * k.e_size, cols, src + (at + p * in_x) * k.s_size,
                            self.in_c, in_x, <int>(min(self.ci, last) - first), <int>min(m - p, cols), <int>cols)
                    p += k.nr
            elif not k.pack(to + depth * k.e_size, self.lda, src + at * k.s_size, in_x, self.in_c, <int>m,
                            <int>(min(self.ci, last) - first), <int>(last - first)):
                convt_set(refused)
            depth += last - first
            tap, first = tap + 1, 0
