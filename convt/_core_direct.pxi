# The direct algorithm: every phase an implicit GEMM over blocks of pixels.
# Included by _core.pyx.

cdef struct DirectClass:
    # rows: pixels of the class's box, batch outermost
    int64_t *count        # [nd]
    int64_t rows
    int64_t block, blocks
    # depth
    int64_t ntaps
    int64_t *tap_in       # [ntaps][nd] input index at the box's first pixel
    int64_t nchunks
    int64_t *chunks       # [nchunks][3]: first depth of the class, depth, first depth of the panel
    # columns
    int64_t npanels, panel_block, panel_blocks
    int64_t *panels       # [npanels][5]: columns, adjacent in the output?, its offset, first piece, one past the last
    int64_t *pieces       # [..][3 + 2 nd]: first column, columns, output offset, then (low, high) of valid per axis
    int64_t *inner        # [nd][2]: where every phase is valid
    PackClass *pack
    int64_t first_task, ntasks


cdef class DirectPlan(Plan):
    cdef DirectClass *classes
    cdef Py_ssize_t nclasses
    cdef list keep  # the tables that the structures point into
    cdef object structures
    cdef int64_t max_block, max_panels
    cdef bint chunked

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, hole, classes):
        self.algorithm = "direct"
        self._common(problem, recipe, in_strides, out_strides, hole)
        self.nclasses = len(classes)
        self.structures = np.zeros(max(1, self.nclasses) * sizeof(DirectClass), np.uint8)
        self.classes = <DirectClass *>cnp.PyArray_DATA(self.structures)
        self.keep = []
        cdef DirectClass *c
        cdef int64_t task = 0
        for i, spec in enumerate(classes):
            c = &self.classes[i]
            c.count = self._keep(spec["count"])
            c.rows, c.block, c.blocks = spec["rows"], spec["block"], spec["blocks"]
            c.ntaps, c.tap_in = len(spec["tap_in"]), self._keep(spec["tap_in"])
            c.nchunks, c.chunks = len(spec["chunks"]), self._keep(spec["chunks"])
            c.npanels, c.panels, c.pieces = len(spec["panels"]), self._keep(spec["panels"]), self._keep(spec["pieces"])
            c.panel_block, c.panel_blocks = spec["panel_block"], spec["panel_blocks"]
            c.inner = self._keep(spec["inner"])
            c.pack = &recipe.classes[<Py_ssize_t>spec["pack"]]
            c.first_task = task
            c.ntasks = self.groups * c.blocks * c.panel_blocks
            task += c.ntasks
            self.max_block = max(self.max_block, c.block)
            if c.nchunks > 1:
                self.chunked = True
                self.max_panels = max(self.max_panels, c.panel_block)
        self.tasks = task
        self.workspace = self._bytes()

    cdef int64_t *_keep(self, values):
        cdef _Table t = _Table(values)
        self.keep.append(t)
        return t.p

    cdef size_t _bytes(self):
        cdef size_t n = _round64(self.max_block * CONVT_LDA * self.k.e_size)  # A
        n += _round64(self.max_block * sizeof(int64_t))  # output offset of each row
        n += _round64(self.max_block * self.nd * sizeof(int64_t))  # its coordinates
        n += _round64(self.max_block)  # whether some phase is outside the window there
        n += _round64(MOST_ROWS * self.k.nr * self.k.t_size)  # a tile on its way to the store
        if self.chunked:
            n += _round64(self.max_panels * self.max_block * self.k.nr * self.k.t_size)  # sums between depth chunks
        return n

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef DirectClass *c = self.classes
        while task >= c.first_task + c.ntasks:
            c += 1
        task -= c.first_task
        cdef int64_t block = task % c.blocks
        cdef int64_t panel_block = task // c.blocks % c.panel_blocks
        cdef int64_t group = task // c.blocks // c.panel_blocks
        cdef int64_t m0 = block * c.block
        cdef int64_t m = min(c.block, c.rows - m0)
        cdef int64_t p0 = panel_block * c.panel_block
        cdef int64_t p1 = min(c.npanels, p0 + c.panel_block)

        cdef char *a = ws
        ws += _round64(self.max_block * CONVT_LDA * k.e_size)
        cdef int64_t *offset = <int64_t *>ws
        ws += _round64(self.max_block * sizeof(int64_t))
        cdef int64_t *coords = <int64_t *>ws
        ws += _round64(self.max_block * self.nd * sizeof(int64_t))
        cdef char *edge = ws
        ws += _round64(self.max_block)
        cdef char *scratch = ws
        ws += _round64(MOST_ROWS * k.nr * k.t_size)
        cdef char *sums = ws

        self.locate(c, m0, m, offset, coords, edge)
        cdef char *src = call.src + group * self.ci * self.in_c * k.s_size
        cdef char *dst = call.dst + group * self.co * self.out_c * k.s_size
        cdef char *weights = call.weights + c.pack.weights + group * c.pack.group_weights
        cdef char *bias = call.bias + c.pack.bias + group * c.pack.group_bias

        cdef int64_t tiles
        cdef int64_t chunk, p, i, r0, r1, r, b_row
        cdef int64_t *ch
        cdef int64_t *panel
        cdef bint first, last, inside, straight
        cdef bint fast = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        cdef void *rows[MOST_ROWS]
        cdef convt_tile t
        t.stream = 0
        for chunk in range(c.nchunks):
            ch = c.chunks + 3 * chunk
            first, last = chunk == 0, chunk == c.nchunks - 1
            self.pack_rows(c, ch[0], ch[1], m0, m, coords, src, a)
            t.kc = <int>ch[1]
            for p in range(p0, p1):
                panel = c.panels + 5 * p
                t.nv = <int>((panel[0] + k.vl - 1) // k.vl)
                tiles = (m + k.mr[t.nv] - 1) // k.mr[t.nv]
                t.b = weights + (p * k.nr * c.pack.depth + ch[2] * t.nv * k.vl) * k.e_size
                for i in range(tiles):
                    r0, r1 = i * m // tiles, (i + 1) * m // tiles
                    t.a = a + r0 * CONVT_LDA * k.e_size
                    if first:
                        t.init = bias + p * k.nr * k.t_size
                        t.init_ld = 0
                    else:
                        t.init = sums + ((p - p0) * self.max_block + r0) * k.nr * k.t_size
                        t.init_ld = k.nr
                    t.act = &self.none
                    t.cols = <int>panel[0]
                    t.rows = rows
                    if not last:
                        for r in range(r1 - r0):
                            rows[r] = sums + ((p - p0) * self.max_block + r0 + r) * k.nr * k.t_size
                        k.tile(<int>(r1 - r0), &t)
                        continue
                    inside = True
                    for r in range(r0, r1):
                        if edge[r]:
                            inside = False
                    straight = fast and panel[1] and inside
                    if straight:
                        t.act = &self.act
                        t.stream = self.streamed and not (<size_t>(dst + panel[2] * k.s_size)) % self.streamed
                        for r in range(r1 - r0):
                            rows[r] = dst + (offset[r0 + r] + panel[2]) * k.s_size
                        k.tile(<int>(r1 - r0), &t)
                        t.stream = 0
                    else:
                        for r in range(r1 - r0):
                            rows[r] = scratch + r * k.nr * k.t_size
                        k.tile(<int>(r1 - r0), &t)
                        self.store_pieces(c, panel, r0, r1, offset, coords, inside, scratch, dst)
        if self.streamed:
            k.fence()

    cdef void locate(self, DirectClass *c, int64_t m0, int64_t m, int64_t *offset, int64_t *coords,
                     char *edge) noexcept nogil:
        """For each row of the block: its coordinates, output offset, and whether some phase is outside there."""
        cdef int64_t row, rest, ax, at, j
        for row in range(m):
            rest = m0 + row
            at = 0
            edge[row] = 0
            for ax in range(self.nd - 1, -1, -1):
                j = rest % c.count[ax]
                rest = rest // c.count[ax]
                coords[row * self.nd + ax] = j
                if j:  # with one j the stride may be anything, and a product with it too
                    at += self.stride.p[ax] * j * self.out_stride.p[ax]
                if j < c.inner[2 * ax] or j >= c.inner[2 * ax + 1]:
                    edge[row] = 1
            offset[row] = at + rest * self.out_n

    cdef void pack_rows(self, DirectClass *c, int64_t k0, int64_t kc, int64_t m0, int64_t m, int64_t *coords,
                        char *src, char *a) noexcept nogil:
        """Gather a depth chunk of the block's rows: run by run along x, tap by tap."""
        cdef const convt_kernels *k = self.k
        cdef int nd = self.nd, ax
        cdef int64_t x = nd - 1
        cdef int64_t ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        cdef int64_t pixels = 1
        for ax in range(nd):
            pixels *= c.count[ax]
        cdef int64_t row = 0, run, batch, tap, first, last, depth, lo, hi, i, at, cols, r
        cdef int64_t *j
        cdef int64_t *first_in
        cdef bint inside
        cdef char *to
        while row < m:
            j = coords + row * nd
            run = min(c.count[x] - j[x], m - row)
            batch = (m0 + row) // pixels
            depth = k0
            while depth < k0 + kc:
                tap = depth // ci_p
                first = depth - tap * ci_p
                last = min(ci_p, first + k0 + kc - depth)
                first_in = c.tap_in + tap * nd
                inside = True
                at = batch * self.in_n + first * self.in_c
                for ax in range(nd - 1):
                    i = first_in[ax] + j[ax]
                    if i < 0 or i >= self.in_size.p[ax]:
                        inside = False
                        break
                    at += i * self.in_stride.p[ax]
                i = first_in[x] + j[x]
                lo = min(run, max(0, -i))
                hi = max(lo, min(run, self.in_size.p[x] - i)) if inside else lo
                if not inside:
                    lo = hi = 0
                to = a + (row * CONVT_LDA + depth - k0) * k.e_size
                cols = min(self.ci, last) - first
                for r in range(lo):
                    memset(to + r * CONVT_LDA * k.e_size, 0, (last - first) * k.e_size)
                if hi > lo:
                    k.pack(to + lo * CONVT_LDA * k.e_size, CONVT_LDA,
                           src + (at + (i + lo) * self.in_stride.p[x]) * k.s_size, self.in_stride.p[x], self.in_c,
                           <int>(hi - lo), <int>cols, <int>(last - first))
                for r in range(hi, run):
                    memset(to + r * CONVT_LDA * k.e_size, 0, (last - first) * k.e_size)
                depth += last - first
            row += run

    cdef void store_pieces(self, DirectClass *c, int64_t *panel, int64_t r0, int64_t r1, int64_t *offset,
                           int64_t *coords, bint inside, char *scratch, char *dst) noexcept nogil:
        """Round a finished tile into the output, phase by phase, where the phase is inside the window."""
        cdef const convt_kernels *k = self.k
        cdef int64_t width = 3 + 2 * self.nd, r, ax, n, j
        cdef int64_t *piece
        cdef void *rows[MOST_ROWS]
        cdef bint valid
        if inside and panel[1]:
            for r in range(r0, r1):
                rows[r - r0] = dst + (offset[r] + panel[2]) * k.s_size
            k.store(rows, self.out_c, scratch, k.nr, <int>(r1 - r0), <int>panel[0], &self.act)
            return
        for n in range(panel[3], panel[4]):
            piece = c.pieces + n * width
            for r in range(r0, r1):
                valid = True
                if not inside:
                    for ax in range(self.nd):
                        j = coords[r * self.nd + ax]
                        if j < piece[3 + 2 * ax] or j >= piece[4 + 2 * ax]:
                            valid = False
                rows[r - r0] = dst + (offset[r] + piece[2]) * k.s_size if valid else NULL
            k.store(rows, self.out_c, scratch + piece[0] * k.t_size, k.nr, <int>(r1 - r0), <int>piece[1], &self.act)
