# The scatter algorithm: all taps of a row at once, overlap-added in the cache.
# Included by _core.pyx.

cdef struct ScatterClass:
    # A row of the class: one j of every axis but the last, where all its taps are inside the input.
    int64_t *count        # [nd - 1]
    int64_t rows          # of the batch
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd - 1] input index at the first row
    int64_t nchunks
    int64_t *chunks       # [nchunks][3]: first depth of the class, depth, first depth of the panel
    int64_t nphases
    int64_t *phases       # [nphases][1 + 2 (nd - 1)]: output offset at the first row, then (low, high) of valid per axis
    int64_t npanels, ld
    PackClass *pack
    int64_t first_task, ntasks


cdef class ScatterPlan(Plan):
    cdef ScatterClass *classes
    cdef object structures
    cdef list keep
    cdef int64_t j0, j1, block, blocks, begin, window, taps_x, terms, lanes, max_rows, sums

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, bint hole, spec):
        self.algorithm = "scatter"
        self._common(problem, recipe, in_strides, out_strides, hole)
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c
        cdef int64_t task = 0
        x = self.nd - 1
        self.taps_x, self.begin, self.window = self.kernel.p[x], problem.begin[x], problem.out_sizes[x]
        self.lanes = self.stride.p[x] * self.co
        self.terms = (self.taps_x + self.stride.p[x] - 1) // self.stride.p[x]
        self.j0, self.j1, self.block, self.blocks = spec["j0"], spec["j1"], spec["block"], spec["blocks"]
        self.max_rows = self.block + self.terms - 1
        self.keep = []
        self.structures = np.zeros(max(1, len(spec["classes"])) * sizeof(ScatterClass), np.uint8)
        self.classes = <ScatterClass *>cnp.PyArray_DATA(self.structures)
        for i, row in enumerate(spec["classes"]):
            c = &self.classes[i]
            c.count, c.rows = self._keep(row["count"]), row["rows"]
            c.ntaps, c.tap_in = len(row["tap_in"]), self._keep(row["tap_in"])
            c.nchunks, c.chunks = len(row["chunks"]), self._keep(row["chunks"])
            c.nphases, c.phases = len(row["phases"]), self._keep(row["phases"])
            c.pack = &recipe.classes[<Py_ssize_t>row["pack"]]
            if c.ntaps:
                c.npanels = c.pack.npanels
                c.ld = c.npanels * k.nr + 16
                self.sums = max(self.sums, self.max_rows * c.ld * k.t_size)
            c.first_task, c.ntasks = task, c.rows * self.groups * self.blocks
            task += c.ntasks
        self.tasks = task
        self.workspace = _round64(k.nr * k.t_size) + _round64(self.max_rows * CONVT_LDA * k.e_size) + _round64(self.sums)

    cdef int64_t *_keep(self, values):
        cdef _Table t = _Table(values)
        self.keep.append(t)
        return t.p

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef ScatterClass *c = self.classes
        while task >= c.first_task + c.ntasks:
            c += 1
        task -= c.first_task
        cdef int64_t x = self.nd - 1
        cdef int64_t j_lo = self.j0 + task % self.blocks * self.block
        cdef int64_t j_hi = min(self.j1, j_lo + self.block)
        cdef int64_t group = task // self.blocks % self.groups
        cdef int64_t row = task // self.blocks // self.groups
        cdef char *col = ws + _round64(k.nr * k.t_size) + _round64(self.max_rows * CONVT_LDA * k.e_size)

        cdef int64_t j[64]
        cdef int64_t ax, at = 0
        for ax in range(x - 1, -1, -1):
            j[ax] = row % c.count[ax]
            row = row // c.count[ax]
            if j[ax]:  # with one row the stride may be anything, and a product with it too
                at += self.stride.p[ax] * j[ax] * self.out_stride.p[ax]
        at += row * self.out_n + group * self.co * self.out_c

        cdef int64_t i_lo = max(0, j_lo - self.terms + 1)
        cdef int64_t i_hi = min(self.in_size.p[x], j_hi)
        if c.ntaps and i_lo < i_hi:
            self.products(c, call.weights + c.pack.weights + group * c.pack.group_weights,
                          call.src + (row * self.in_n + group * self.ci * self.in_c) * k.s_size, j, i_lo, i_hi, ws, col)
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
                o.col = col + p * o.cols * k.t_size
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
            self.k.overlap(o)
            j = o.j1

    cdef void products(self, ScatterClass *c, char *weights, char *src, int64_t *j, int64_t i_lo, int64_t i_hi,
                       char *ws, char *col) noexcept nogil:
        """col[i - i_lo][(phase, tap, channel)] = the products of input pixel i, summed over the row's taps."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        cdef int64_t m = i_hi - i_lo, tiles
        cdef int64_t in_x = self.in_stride.p[x]
        cdef int64_t chunk, depth, tap, first, last, at, ax, p, i, r0, r1, r
        cdef int64_t *ch
        cdef char *zeros = ws
        cdef char *a = ws + _round64(k.nr * k.t_size)
        cdef void *rows[MOST_ROWS]
        cdef convt_tile t
        for i in range(k.nr):  # -0, the sum of nothing that keeps the sign of zero
            if k.t_size == 8:
                (<double *>zeros)[i] = -0.0
            else:
                (<float *>zeros)[i] = -0.0
        t.rows = rows
        t.act = &self.none
        t.stream = 0
        t.ahead, t.ahead_step = src, 0
        for chunk in range(c.nchunks):
            ch = c.chunks + 3 * chunk
            depth = ch[0]
            while depth < ch[0] + ch[1]:
                tap = depth // ci_p
                first = depth - tap * ci_p
                last = min(ci_p, first + ch[0] + ch[1] - depth)
                at = i_lo * in_x + first * self.in_c
                for ax in range(x):
                    at += (c.tap_in[tap * x + ax] + j[ax]) * self.in_stride.p[ax]
                k.pack(a + (depth - ch[0]) * k.e_size, CONVT_LDA, src + at * k.s_size, in_x, self.in_c,
                       <int>m, <int>(min(self.ci, last) - first), <int>(last - first))
                depth += last - first
            t.kc = <int>ch[1]
            for p in range(c.npanels):
                t.nv = <int>((min(k.nr, c.pack.ncols - p * k.nr) + k.vl - 1) // k.vl)
                t.cols = t.nv * k.vl
                tiles = (m + k.mr[t.nv] - 1) // k.mr[t.nv]
                t.b = weights + (p * k.nr * c.pack.depth + ch[2] * t.cols) * k.e_size
                for i in range(tiles):
                    r0, r1 = i * m // tiles, (i + 1) * m // tiles
                    t.a = a + r0 * CONVT_LDA * k.e_size
                    for r in range(r0, r1):
                        rows[r - r0] = col + (r * c.ld + p * k.nr) * k.t_size
                    t.init = rows[0] if chunk else zeros
                    t.init_ld = c.ld if chunk else 0
                    k.tile(<int>(r1 - r0), &t)
