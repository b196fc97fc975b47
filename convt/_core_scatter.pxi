# The scatter algorithm: all taps of a row at once, overlap-added in the cache.
# Included by _core.pyx.

cdef enum:
    ASKED = 128  # bytes that a step of a tile asks for at most: of two lines the first, as the second comes with it

cdef struct PackedRow:
    # A stretch of an input row as packed, kept for the output rows of the task that read it too.
    int64_t at            # its offset in the input
    int64_t used          # the last row that read it, -1 if nothing is packed here

cdef struct ScatterClass:
    # A row of the class: one j of every axis but the last, where all its taps are inside the input.
    int64_t *count        # [nd - 1]
    int64_t rows          # of an image
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd - 1] input index at the first row
    int64_t nchunks
    int64_t *chunks       # [nchunks][3]: first depth of the class, depth, first depth of the panel
    int64_t parts         # chunks of a tap, or 0 where a chunk has several taps
    int64_t nphases
    int64_t *phases       # [nphases][1 + 2 (nd - 1)]: output offset at the first row, then (low, high) of valid per axis
    int64_t npanels, ld
    PackClass *pack


cdef class ScatterPlan(Plan):
    # Products lie as [pixel][column], vectors running over columns; or, `across`, as [column][pixel].
    cdef ScatterClass *classes
    cdef object structures
    cdef list keep
    cdef int64_t j0, j1, block, blocks, begin, window, taps_x, terms, lanes, max_rows, sums, slab
    cdef bint far  # the input is more than what stays in the second-level cache
    cdef bint across, in_place  # whether the GEMM takes pixels from where they lie, where chunks have a single tap
    cdef object picks
    cdef int32_t *picked  # what outputs of an image sum, by vectors: indices of bias and of products; NULL: overlap-add by rows
    cdef int64_t outputs
    cdef int pick_terms
    cdef bint joined  # rows of a task that follow each other in the input are multiplied as one
    cdef _Table order  # [rows of an image, or of all][2]: class, row of the class
    cdef _Table first  # [tasks of the rows + 1]: the first row of each
    cdef int64_t row_tasks
    cdef int64_t slots, lda  # input rows kept packed, elements between their pixels
    cdef size_t chunk_size, slot_size  # bytes

    def __init__(self, str name, problem, PackRecipe recipe, in_strides, out_strides, bint hole, spec):
        self.algorithm = name
        self.even = True
        self._common(problem, recipe, in_strides, out_strides, hole, spec["cycles"])
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c
        x = self.nd - 1
        self.taps_x, self.begin, self.window = self.kernel.p[x], problem.begin[x], problem.out_sizes[x]
        self.lanes = self.stride.p[x] * self.co
        self.terms = (self.taps_x + self.stride.p[x] - 1) // self.stride.p[x]
        self.j0, self.j1, self.block, self.blocks = spec["j0"], spec["j1"], spec["block"], spec["blocks"]
        self.max_rows = spec["pixels"]
        self.slab = recipe.slab
        self.across = self.slab > 0
        self.in_place = not (self.across or k.parts) and self.in_c == 1 and k.s_size == k.e_size and self.ci % k.kstep == 0
        self.far = problem.batch * int(np.prod(problem.in_sizes)) * self.ci * k.s_size > FAR_BYTES
        self.keep = []
        cdef int64_t deepest = 0, parts = 0, most = 0, n  # depth of a chunk, chunks of a tap, taps
        self.structures = np.zeros(max(1, len(spec["classes"])) * sizeof(ScatterClass), np.uint8)
        self.classes = <ScatterClass *>cnp.PyArray_DATA(self.structures)
        for i, row in enumerate(spec["classes"]):
            c = &self.classes[i]
            c.count, c.rows = _kept(self.keep, row["count"]), int(np.prod(row["count"]))
            c.ntaps, c.tap_in = len(row["tap_in"]), _kept(self.keep, row["tap_in"])
            c.nchunks, c.chunks = len(row["chunks"]), _kept(self.keep, row["chunks"])
            c.parts = row["parts"]
            most = max(most, c.ntaps if c.parts else 1)
            for n in range(c.nchunks):
                deepest = max(deepest, c.chunks[3 * n + 1])
            if not (c.parts and self.in_place):
                self.slots, parts = max(self.slots, c.ntaps if c.parts else 1), max(parts, c.parts, 1)
            c.nphases, c.phases = len(row["phases"]), _kept(self.keep, row["phases"])
            c.pack = &recipe.classes[<Py_ssize_t>row["pack"]]
            if c.ntaps:
                c.npanels = c.pack.npanels
                c.ld = c.npanels * k.nr + 16
                self.sums = max(self.sums, self.max_rows * c.ld * k.t_size)
                if self.across:
                    # A vector before, one behind, and a cache line, so that columns fall into different sets.
                    c.ld = (self.max_rows + k.nr - 1) // k.nr * k.nr + 2 * k.vl + 16
                    self.sums = max(self.sums, c.pack.ncols * c.ld * k.t_size)
        if spec["picks"]:
            columns, pixels = spec["picks"]
            self._pick(columns, pixels)
        self.order, self.first, self.joined = _Table(spec["order"]), _Table(spec["first"]), spec["joined"]
        self.row_tasks = len(spec["first"]) - 1
        self.tasks = (1 if self.joined else self.batch) * self.row_tasks * self.groups * self.blocks
        # Pixels side by side, for vectors; or one after the other, for matrices as close as an odd number of steps allows.
        self.lda = (deepest // k.kstep | 1) * k.kstep if k.parts else k.lda
        n = (self.max_rows + k.grain) * self.lda
        if self.across:
            n = ((self.max_rows + k.nr - 1) // k.nr if most > 1 else 1) * k.nr * deepest
        self.chunk_size = _round64(n * k.e_size)
        self.slot_size = parts * self.chunk_size
        self.workspace = _round64(k.nr * k.t_size) + self._packed() + _round64(self.sums)

    cdef _pick(self, columns, pixels):
        """Takes what outputs of an image sum, [output][term]; the column beyond the last is nothing."""
        cdef ScatterClass *c = self.classes
        count, terms = columns.shape
        index = np.zeros((-(-count // self.k.vl) * self.k.vl, 1 + terms), np.int32)
        index[:count, 0] = np.arange(count) % self.co
        index[:count, 1:] = columns * c.ld + pixels
        self.picks = np.ascontiguousarray(index.reshape(-1, self.k.vl, 1 + terms).transpose(0, 2, 1))
        self.picked = <int32_t *>cnp.PyArray_DATA(self.picks)
        self.outputs, self.pick_terms = count, terms
        self.sums = (c.pack.ncols + 1) * c.ld * self.k.t_size

    cdef size_t _packed(self) noexcept nogil:
        """Bytes of packed pixels."""
        return _round64(self.slots * sizeof(PackedRow)) + self.slots * self.slot_size

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        if call.refused[0]:  # what another task found makes this one's work useless
            return
        cdef PackedRow *kept = <PackedRow *>(ws + _round64(self.k.nr * self.k.t_size))
        cdef int64_t n, group, image, first, last, j_lo
        for n in range(self.slots):
            kept[n].used = -1
        self.place(task, &group, &image, &first, &last, &j_lo)
        if self.picked:
            self.run_images(first, last, call, ws)
            return
        while first < last:
            first = self.run_rows(task, group, image, first, last, j_lo, call, ws)

    cdef void place(self, Py_ssize_t task, int64_t *group, int64_t *image, int64_t *first, int64_t *last,
                    int64_t *j_lo) noexcept nogil:
        """A task's group, first image, rows and where its stretch of them starts."""
        group[0] = task % self.groups  # of the same pixels follow each other: they share the lines of these
        j_lo[0] = self.j0 + task // self.groups % self.blocks * self.block
        task = task // self.groups // self.blocks
        image[0], task = task // self.row_tasks, task % self.row_tasks
        first[0], last[0] = self.first.p[task], self.first.p[task + 1]

    cdef int64_t row_at(self, int64_t n, int64_t *image, int64_t *j) noexcept nogil:
        """Where the n-th row is: its j of every axis but the last, and how many images on. Returns the input's offset for a tap
        that starts at 0."""
        cdef ScatterClass *c = self.classes + self.order.p[2 * n]
        cdef int64_t row = self.order.p[2 * n + 1], ax, at
        image[0] += row // c.rows
        row = row % c.rows
        at = image[0] * self.in_n
        for ax in range(self.nd - 2, 0, -1):
            j[ax] = row % c.count[ax]
            row = row // c.count[ax]
            at += j[ax] * self.in_stride.p[ax]
        if self.nd > 1:
            j[0] = row
            at += row * self.in_stride.p[0]
        return at

    cdef int64_t run_rows(self, Py_ssize_t task, int64_t group, int64_t first_image, int64_t first, int64_t last, int64_t j_lo,
                          const Call *call, char *ws) noexcept nogil:
        """The task's stretch of one row, or of as many as are one stretch of the input; returns which row is next."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t j_hi = min(self.j1, j_lo + self.block), in_x = self.in_stride.p[x]
        cdef ScatterClass *c = self.classes + self.order.p[2 * first]
        cdef char *col = ws + _round64(k.nr * k.t_size) + self._packed()
        if self.across:
            col += k.vl * k.t_size

        cdef int64_t j[64]
        cdef int64_t ax, ahead, at, start, image = first_image, n, pixels
        cdef int64_t i_lo = max(0, j_lo - self.terms + 1)
        cdef int64_t i_hi = min(self.in_size.p[x], j_hi)
        start = self.row_at(first, &image, j)
        if c.ntaps and i_lo < i_hi:
            n, pixels = first + 1, i_hi - i_lo
            while self.joined and n < last and self.order.p[2 * n] == self.order.p[2 * first]:
                image = first_image
                at = (self.row_at(n, &image, j) - start) // in_x + i_hi - i_lo
                if at > self.max_rows:
                    break
                n, pixels = n + 1, at
            last = n
            image = first_image
            self.row_at(first, &image, j)
            self.products(c, call.weights + c.pack.weights + group * c.pack.group_weights,
                          call.src + (image * self.in_n + group * self.ci * self.in_c) * k.s_size, j, first, i_lo, pixels, ws,
                          col, self.next_pixels(task, last, call, &ahead), ahead, call.refused)
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
            if n > first:
                image = first_image
                pixels = (self.row_at(n, &image, j) - start) // in_x
            else:
                pixels = 0
            at = image * self.out_n + group * self.co * self.out_c
            for ax in range(x):
                if j[ax]:  # with one row the stride may be anything, and a product with it too
                    at += self.stride.p[ax] * j[ax] * self.out_stride.p[ax]
            for p in range(c.nphases):
                phase = c.phases + p * (1 + 2 * x)
                valid = True
                for ax in range(x):
                    if j[ax] < phase[1 + 2 * ax] or j[ax] >= phase[2 + 2 * ax]:
                        valid = False
                if valid:
                    o.col = col + (p * o.cols * (c.ld if self.across else 1) + pixels) * k.t_size
                    self.overlap_row(&o, j_lo, j_hi, call.dst + (at + phase[0]) * k.s_size)
        return last

    cdef void run_images(self, int64_t first, int64_t last, const Call *call, char *ws) noexcept nogil:
        """Images whose pixels are multiplied as one, once with all taps; each output picks its sums."""
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c = self.classes
        cdef char *col = ws + _round64(k.nr * k.t_size) + self._packed() + k.vl * k.t_size
        cdef char *nothing = col + c.pack.ncols * c.ld * k.t_size  # of each image where its indices find it
        cdef int64_t pixels = 1, n
        cdef int64_t j[64]
        cdef convt_picked o
        for n in range(self.nd):
            pixels *= self.in_size.p[n]
            j[n] = 0
        self.products(c, call.weights + c.pack.weights, call.src + first * self.in_n * k.s_size, j, first, 0,
                      (last - first) * pixels, ws, col, call.src, 0, call.refused)
        o.index, o.terms, o.count = self.picked, self.pick_terms, self.outputs
        o.init, o.act = call.bias, &self.act
        for n in range(last - first):
            o.col = col + n * pixels * k.t_size
            o.out = call.dst + (first + n) * self.out_n * k.s_size
            memcpy(nothing + n * pixels * k.t_size, ws, k.t_size)  # -0, as products begin with
            k.overlap_picked(&o)

    cdef void overlap_row(self, convt_overlap *o, int64_t j, int64_t j_hi, char *dst) noexcept nogil:
        """Finish outputs [s * j, s * j_hi) of a row: whole j in one go; where the window cuts one, that one alone."""
        cdef int64_t s = self.stride.p[self.nd - 1], lo, hi
        o.out_j = s * o.out_x
        while j < j_hi:
            lo, hi = max(0, self.begin - s * j), min(s, self.begin + self.window - s * j)
            o.j0, o.j1 = j, j + 1
            if lo == 0 and hi == s:
                o.j1 = max(j + 1, min(j_hi, (self.begin + self.window) // s))
            o.lane_lo, o.lane_hi = <int>(lo * self.co), <int>(hi * self.co)
            o.out = dst + (s * j - self.begin) * o.out_x * self.k.s_size
            if self.across:
                self.k.overlap_across(o)
            else:
                self.k.overlap(o)
            j = o.j1

    cdef void products(self, ScatterClass *c, char *weights, char *src, int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                       char *ws, char *col, const char *next, int64_t ahead, char *refused) noexcept nogil:
        """The products of m pixels from i_lo on with each column (phase, tap, channel), summed over the row's taps."""
        cdef const convt_kernels *k = self.k
        cdef int64_t tiles, chunk, p, i, r0, r1, r, first, pixels, ncols = c.pack.ncols
        cdef int64_t *ch
        cdef char *zeros = ws
        cdef char *a
        cdef void *rows[MOST_ROWS]
        cdef Cut by_tile
        cdef convt_tile t
        for i in range(k.nr):  # -0, the sum of nothing that keeps the sign of zero
            if k.t_size == 8:
                (<double *>zeros)[i] = -0.0
            else:
                (<float *>zeros)[i] = -0.0
        t.rows = rows
        t.at = 0
        t.act = &self.none
        t.stream, t.late = 0, NULL
        t.ahead, t.ahead_step = next, 0
        if ahead:  # each tile asks for some of what the next row reads
            tiles = c.npanels * ((m + k.mr[k.nr // k.vl] - 1) // k.mr[k.nr // k.vl])
            if self.across:
                tiles = (ncols + k.mr[k.nr // k.vl] - 1) // k.mr[k.nr // k.vl] * ((m + k.nr - 1) // k.nr)
            i = max(<int64_t>1, tiles * c.chunks[1] * c.nchunks // k.pace)
            t.ahead_step = min(<int64_t>ASKED, (ahead + i - 1) // i)
        if self.across and not c.parts:  # a panel of pixels at a time, which stays in the first-level cache
            a = self.slot(ws, 0)
            p = 0
            while p < m:
                for chunk in range(c.nchunks):
                    self.pack_pixels(c, c.chunks + 3 * chunk, src, j, i_lo + p, min(k.nr, m - p), a, refused)
                    self.multiply_across(c, chunk, &t, a, weights, p, m, col, zeros)
                p += k.nr
            return
        for chunk in range(c.nchunks):
            ch = c.chunks + 3 * chunk
            if c.parts and self.in_place:
                a = src + (self.tap_at(c, chunk // c.parts, j) + i_lo * self.in_stride.p[self.nd - 1]
                           + ch[0] % self.ci) * k.s_size
                t.lda = self.in_stride.p[self.nd - 1]
            else:
                a, t.lda = self.packed(c, chunk, src, j, now, i_lo, m, ws, refused), self.lda
            if self.across:
                for p in range((m + k.nr - 1) // k.nr):
                    self.multiply_across(c, chunk, &t, a + p * k.nr * ch[1] * k.e_size, weights, p * k.nr, m, col, zeros)
                continue
            t.kc = <int>ch[1]
            for p in range(c.npanels):
                t.nv = <int>((min(k.nr, ncols - p * k.nr) + k.vl - 1) // k.vl)
                t.cols = t.nv * k.vl
                tiles = convt_quotient(m + k.mr[t.nv] - 1, k.mr[t.nv])
                by_tile = cut_evenly(m, tiles, k.grain)
                t.b = weights + (p * k.nr * c.pack.depth + ch[2] * t.cols) * k.e_size
                r1 = 0
                for i in range(tiles):
                    r0, r1 = r1, cut_at(&by_tile, i + 1)
                    t.a = a + r0 * t.lda * k.e_size
                    for r in range(r0, r1):
                        rows[r - r0] = col + (r * c.ld + p * k.nr) * k.t_size
                    t.init = rows[0] if chunk else zeros
                    t.init_ld = c.ld if chunk else 0
                    k.tile(<int>(r1 - r0), &t)
                    t.ahead += t.kc // k.pace * t.ahead_step

    cdef void multiply_across(self, ScatterClass *c, int64_t chunk, convt_tile *t, char *panel, char *weights, int64_t first,
                              int64_t m, char *col, char *zeros) noexcept nogil:
        """The products of a panel of pixels, from the first-th of a stretch of so many on."""
        cdef const convt_kernels *k = self.k
        cdef int64_t *ch = c.chunks + 3 * chunk
        cdef int64_t pixels = min(k.nr, m - first), ncols = c.pack.ncols, tiles, i, r, r0, r1 = 0
        cdef void *rows[MOST_ROWS]
        cdef Cut by_tile
        t.rows = rows
        t.kc, t.lda, t.b = <int>ch[1], CONVT_LDA, panel
        t.nv = <int>((pixels + k.vl - 1) // k.vl)
        t.cols = t.nv * k.vl
        tiles = convt_quotient(ncols + k.mr[t.nv] - 1, k.mr[t.nv])
        by_tile = cut_evenly(ncols, tiles, 1)
        for i in range(tiles):
            r0, r1 = r1, cut_at(&by_tile, i + 1)
            t.a = weights + ((ch[2] // self.slab * ncols + r0) * CONVT_LDA + ch[2] % self.slab) * k.e_size
            for r in range(r0, r1):
                rows[r - r0] = col + (r * c.ld + first) * k.t_size
            t.init = rows[0] if chunk else zeros
            t.init_ld = c.ld if chunk else 0
            k.tile(<int>(r1 - r0), t)
            t.ahead += t.kc // k.pace * t.ahead_step

    cdef const char *next_pixels(self, Py_ssize_t task, int64_t n, const Call *call, int64_t *bytes) noexcept nogil:
        """Where the pixels start that the n-th row of a task reads, or the next task where it has none: and how many bytes they
        are: of several taps those of the last, as what the others read has been there before; 0 if they are not one stretch of
        memory."""
        cdef int64_t group, image, first, last, j_lo, i_lo, i_hi, x = self.nd - 1
        cdef int64_t j[64]
        cdef ScatterClass *c
        bytes[0] = 0
        if not self.far or self.in_c != 1 or self.in_stride.p[x] != self.ci:
            return call.src
        self.place(task, &group, &image, &first, &last, &j_lo)
        if n == last:
            if task + 1 == self.tasks:
                return call.src
            self.place(task + 1, &group, &image, &n, &last, &j_lo)
        c = self.classes + self.order.p[2 * n]
        i_lo, i_hi = max(0, j_lo - self.terms + 1), min(self.in_size.p[x], j_lo + self.block)
        if not c.ntaps or i_lo >= i_hi:
            return call.src
        self.row_at(n, &image, j)
        bytes[0] = (i_hi - i_lo) * self.ci * self.k.s_size
        if self.joined:
            bytes[0] = min(self.max_rows, (last - n) * self.in_size.p[x]) * self.ci * self.k.s_size
        return call.src + (image * self.in_n + self.tap_at(c, c.ntaps - 1, j) + i_lo * self.in_stride.p[x]) * self.k.s_size

    cdef int64_t tap_at(self, ScatterClass *c, int64_t tap, int64_t *j) noexcept nogil:
        """Where the input row is that a tap reads."""
        cdef int64_t ax, at = 0
        for ax in range(self.nd - 1):
            at += (c.tap_in[tap * (self.nd - 1) + ax] + j[ax]) * self.in_stride.p[ax]
        return at

    cdef char *packed(self, ScatterClass *c, int64_t chunk, char *src, int64_t *j, int64_t now, int64_t i_lo, int64_t m,
                      char *ws, char *refused) noexcept nogil:
        """The pixels of a depth chunk as packed, now or for an earlier row of the task."""
        cdef PackedRow *kept = <PackedRow *>(ws + _round64(self.k.nr * self.k.t_size))
        cdef char *to
        cdef int64_t n, at, part, oldest = 0
        if not c.parts:
            self.pack_pixels(c, c.chunks + 3 * chunk, src, j, i_lo, m, self.slot(ws, 0), refused)
            return self.slot(ws, 0)
        at, part = self.tap_at(c, chunk // c.parts, j), chunk % c.parts
        for n in range(self.slots):
            if kept[n].used >= 0 and kept[n].at == at:
                kept[n].used = now
                return self.slot(ws, n) + part * self.chunk_size
            if kept[n].used < kept[oldest].used:
                oldest = n
        kept[oldest].at, kept[oldest].used = at, now
        to = self.slot(ws, oldest)
        for n in range(c.parts):
            self.pack_pixels(c, c.chunks + 3 * (chunk - part + n), src, j, i_lo, m, to + n * self.chunk_size, refused)
        return to + part * self.chunk_size

    cdef char *slot(self, char *ws, int64_t n) noexcept nogil:
        """Where an input row's packed pixels go."""
        return ws + _round64(self.k.nr * self.k.t_size) + _round64(self.slots * sizeof(PackedRow)) + n * self.slot_size

    cdef void pack_pixels(self, ScatterClass *c, int64_t *chunk, char *src, int64_t *j, int64_t i_lo, int64_t m, char *to,
                          char *refused) noexcept nogil:
        """Pixels [i_lo, i_lo + m) of a depth chunk: as the GEMM's A, or across as panels of its B."""
        cdef const convt_kernels *k = self.k
        cdef int64_t ci_p = self.recipe.ci_p, in_x = self.in_stride.p[self.nd - 1]
        cdef int64_t depth = chunk[0], tap, first, last, p, cols, at
        while depth < chunk[0] + chunk[1]:
            tap = depth // ci_p
            first = depth - tap * ci_p
            last = min(ci_p, first + chunk[0] + chunk[1] - depth)
            at = self.tap_at(c, tap, j) + i_lo * in_x + first * self.in_c
            if self.across:
                p = 0
                while p < m:
                    cols = k.nr
                    if m - p < k.nr:
                        cols = (m - p + k.vl - 1) // k.vl * k.vl
                    k.widen(to + (p * chunk[1] + (depth - chunk[0]) * cols) * k.e_size, cols, src + (at + p * in_x) * k.s_size,
                            self.in_c, in_x, <int>(min(self.ci, last) - first), <int>min(m - p, cols), <int>cols)
                    p += k.nr
            elif not k.pack(to + (depth - chunk[0]) * k.e_size, self.lda, src + at * k.s_size, in_x, self.in_c, <int>m,
                            <int>(min(self.ci, last) - first), <int>(last - first)):
                refused[0] = 1
            depth += last - first
