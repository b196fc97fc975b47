# The scatter algorithm: all taps of a row at once, overlap-added in the cache.
# Included by _core.pyx.

cdef struct ScatterClass:
    # A row of the class: one j of every axis but the last, where all its taps are inside the input.
    int64_t *count        # [nd - 1]
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd - 1] input index at the first row
    int64_t nchunks
    int64_t *chunks       # [nchunks][3]: first depth of the class, depth, first depth of the panel
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
    cdef bint across
    cdef _Table order  # [rows of an image][2]: class, row of the class
    cdef int64_t rows

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, bint hole, spec):
        self.algorithm = "scatter"
        self.even = True
        self._common(problem, recipe, in_strides, out_strides, hole, spec["cycles"])
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c
        x = self.nd - 1
        self.taps_x, self.begin, self.window = self.kernel.p[x], problem.begin[x], problem.out_sizes[x]
        self.lanes = self.stride.p[x] * self.co
        self.terms = (self.taps_x + self.stride.p[x] - 1) // self.stride.p[x]
        self.j0, self.j1, self.block, self.blocks = spec["j0"], spec["j1"], spec["block"], spec["blocks"]
        self.max_rows = self.block + self.terms - 1
        self.slab = recipe.slab
        self.across = self.slab > 0
        self.keep = []
        self.structures = np.zeros(max(1, len(spec["classes"])) * sizeof(ScatterClass), np.uint8)
        self.classes = <ScatterClass *>cnp.PyArray_DATA(self.structures)
        for i, row in enumerate(spec["classes"]):
            c = &self.classes[i]
            c.count = _kept(self.keep, row["count"])
            c.ntaps, c.tap_in = len(row["tap_in"]), _kept(self.keep, row["tap_in"])
            c.nchunks, c.chunks = len(row["chunks"]), _kept(self.keep, row["chunks"])
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
        self.order, self.rows = _Table(spec["order"]), len(spec["order"])
        self.tasks = self.batch * self.rows * self.groups * self.blocks
        self.workspace = _round64(k.nr * k.t_size) + self._packed() + _round64(self.sums)

    cdef size_t _packed(self) noexcept nogil:
        """Bytes of packed pixels."""
        return _round64((CONVT_KC * self.k.nr if self.across else self.max_rows * CONVT_LDA) * self.k.e_size)

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t group = task % self.groups  # of the same pixels follow each other: they share the lines of these
        cdef int64_t j_lo = self.j0 + task // self.groups % self.blocks * self.block
        cdef int64_t j_hi = min(self.j1, j_lo + self.block)
        cdef int64_t row = task // self.groups // self.blocks
        cdef int64_t image = row // self.rows
        row = row % self.rows
        cdef ScatterClass *c = self.classes + self.order.p[2 * row]
        row = self.order.p[2 * row + 1]
        cdef char *col = ws + _round64(k.nr * k.t_size) + self._packed()
        if self.across:
            col += k.vl * k.t_size

        cdef int64_t j[64]
        cdef int64_t ax, at = 0
        for ax in range(x - 1, -1, -1):
            j[ax] = row % c.count[ax]
            row = row // c.count[ax]
            if j[ax]:  # with one row the stride may be anything, and a product with it too
                at += self.stride.p[ax] * j[ax] * self.out_stride.p[ax]
        at += image * self.out_n + group * self.co * self.out_c

        cdef int64_t i_lo = max(0, j_lo - self.terms + 1)
        cdef int64_t i_hi = min(self.in_size.p[x], j_hi)
        if c.ntaps and i_lo < i_hi:
            self.products(c, call.weights + c.pack.weights + group * c.pack.group_weights,
                          call.src + (image * self.in_n + group * self.ci * self.in_c) * k.s_size, j, i_lo, i_hi, ws, col)
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
        cdef bint valid
        for p in range(c.nphases):
            phase = c.phases + p * (1 + 2 * x)
            valid = True
            for ax in range(x):
                if j[ax] < phase[1 + 2 * ax] or j[ax] >= phase[2 + 2 * ax]:
                    valid = False
            if valid:
                o.col = col + p * o.cols * (c.ld if self.across else 1) * k.t_size
                self.overlap_row(&o, j_lo, j_hi, call.dst + (at + phase[0]) * k.s_size)

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

    cdef void products(self, ScatterClass *c, char *weights, char *src, int64_t *j, int64_t i_lo, int64_t i_hi,
                       char *ws, char *col) noexcept nogil:
        """The products of pixels [i_lo, i_hi) with each column (phase, tap, channel), summed over the row's taps."""
        cdef const convt_kernels *k = self.k
        cdef int64_t m = i_hi - i_lo, tiles, chunk, p, i, r0, r1, r, first, pixels, ncols = c.pack.ncols
        cdef int64_t *ch
        cdef char *zeros = ws
        cdef char *packed = ws + _round64(k.nr * k.t_size)
        cdef void *rows[MOST_ROWS]
        cdef convt_tile t
        for i in range(k.nr):  # -0, the sum of nothing that keeps the sign of zero
            if k.t_size == 8:
                (<double *>zeros)[i] = -0.0
            else:
                (<float *>zeros)[i] = -0.0
        t.rows = rows
        t.lda, t.at = CONVT_LDA, 0
        t.act = &self.none
        t.stream = 0
        t.ahead, t.ahead_step = src, 0
        if self.across:
            for p in range((m + k.nr - 1) // k.nr):
                first = p * k.nr
                pixels = min(k.nr, m - first)
                t.nv = <int>((pixels + k.vl - 1) // k.vl)
                t.cols = t.nv * k.vl
                t.b = packed
                if pixels < t.cols:  # what lanes without a pixel happen to hold may be numbers that are slow to multiply
                    memset(packed, 0, min(CONVT_KC, c.pack.depth) * t.cols * k.e_size)
                tiles = (ncols + k.mr[t.nv] - 1) // k.mr[t.nv]
                for chunk in range(c.nchunks):
                    ch = c.chunks + 3 * chunk
                    t.kc = <int>ch[1]
                    self.pack_pixels(c, ch, src, j, i_lo + first, pixels, t.cols, packed)
                    r1 = 0
                    for i in range(tiles):
                        r0, r1 = r1, ncols if i == tiles - 1 else (i + 1) * ncols // tiles
                        t.a = weights + ((ch[2] // self.slab * ncols + r0) * CONVT_LDA + ch[2] % self.slab) * k.e_size
                        for r in range(r0, r1):
                            rows[r - r0] = col + (r * c.ld + first) * k.t_size
                        t.init = rows[0] if chunk else zeros
                        t.init_ld = c.ld if chunk else 0
                        k.tile(<int>(r1 - r0), &t)
            return
        for chunk in range(c.nchunks):
            ch = c.chunks + 3 * chunk
            self.pack_pixels(c, ch, src, j, i_lo, m, 0, packed)
            t.kc = <int>ch[1]
            for p in range(c.npanels):
                t.nv = <int>((min(k.nr, ncols - p * k.nr) + k.vl - 1) // k.vl)
                t.cols = t.nv * k.vl
                tiles = (m + k.mr[t.nv] - 1) // k.mr[t.nv]
                t.b = weights + (p * k.nr * c.pack.depth + ch[2] * t.cols) * k.e_size
                r1 = 0
                for i in range(tiles):
                    r0, r1 = r1, m if i == tiles - 1 else (i + 1) * m // tiles
                    t.a = packed + r0 * CONVT_LDA * k.e_size
                    for r in range(r0, r1):
                        rows[r - r0] = col + (r * c.ld + p * k.nr) * k.t_size
                    t.init = rows[0] if chunk else zeros
                    t.init_ld = c.ld if chunk else 0
                    k.tile(<int>(r1 - r0), &t)

    cdef void pack_pixels(self, ScatterClass *c, int64_t *chunk, char *src, int64_t *j, int64_t i_lo, int64_t m,
                          int64_t nb, char *packed) noexcept nogil:
        """Pixels [i_lo, i_lo + m) of a depth chunk: as the GEMM's A, or as a panel of its B, ``nb`` wide."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        cdef int64_t in_x = self.in_stride.p[x]
        cdef int64_t depth = chunk[0], tap, first, last, at, ax
        while depth < chunk[0] + chunk[1]:
            tap = depth // ci_p
            first = depth - tap * ci_p
            last = min(ci_p, first + chunk[0] + chunk[1] - depth)
            at = i_lo * in_x + first * self.in_c
            for ax in range(x):
                at += (c.tap_in[tap * x + ax] + j[ax]) * self.in_stride.p[ax]
            if nb:
                k.pack_b(packed, <int>(depth - chunk[0]), 0, src + at * k.s_size, self.in_c, in_x,
                         <int>(min(self.ci, last) - first), <int>m, <int>nb)
            else:
                k.pack(packed + (depth - chunk[0]) * k.e_size, CONVT_LDA, src + at * k.s_size, in_x, self.in_c,
                       <int>m, <int>(min(self.ci, last) - first), <int>(last - first))
            depth += last - first
