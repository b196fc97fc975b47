# Packed weights: panels for the GEMM, lanes for depthwise.
# Included by _core.pyx.

cdef int64_t NO_TAP = -2**63  # where a phase has no such tap: no distance, which may be negative

cdef enum:
    STAGED = 16  # in-channels of a panel that are laid out for the transform at a time, or a step of depth if that is more

cdef struct PackClass:
    int64_t nphases, ntaps, ncols, npanels, depth
    int64_t *taps            # [nphases][ntaps] byte offset of each tap in the filter, NO_TAP where a phase has none
    int64_t together, step   # columns at even distances, in elements: the out-channels of a phase, or where there is one
                             # all phases, if they are so far apart
    # Winograd's: rows are the points of each window, instead of taps.
    int64_t npoints, nwindows # 0 where rows are taps
    int64_t *window_start    # [nwindows + 1] in `window_taps`
    int64_t *window_taps     # which each window has
    int64_t *start           # [nwindows][npoints], and the end: the terms of each row
    int64_t *at              # where the tap of each term is staged
    char *scale              # T: its coefficient
    int64_t *widths          # [npanels][npoints]: beyond so many vectors of columns a point has no weights
    bint nested              # of some phases not all taps are there
    size_t weights, bias     # where the class starts in the buffers
    size_t group_weights, group_bias
    int64_t first_job, njobs # a job packs some in-channels of one panel of one group
    int64_t share, shares    # how many of them, and the jobs of a panel


cdef class PackedFilter:
    """Weights and bias in the panels of one instruction set; made by a PackRecipe."""
    cdef Buffer memory
    cdef char *weights
    cdef char *bias
    cdef char *source  # the filter itself, where tasks pack what they multiply; there are no weights then
    cdef readonly bint finite
    cdef readonly size_t nbytes


cdef class PackRecipe:
    """How filters of one shape and one memory layout are packed for the instruction set in use.

    ``classes`` lists, per pack class, the flat kernel taps as [phase][tap]. A row of the class's panels is one (tap,
    in-channel), a column one (phase, out-channel). Without classes it packs for DepthwisePlan: rows of lanes (group,
    out-channel) per tap and in-channel, in sums' type; with ``cell``, (stride, width), lanes are those of ``width`` times
    the phases of the last axis, each stride of taps a row, zero where there is no tap; and if the last row is cut short,
    one more row follows, its bits set where there is one; with ``each``, lanes are those of `convt_dw_groups`. With
    ``bias_phases`` the bias is not packed by panels but as that many repetitions of each group's, which is what ScatterPlan
    adds. With ``slab`` classes are packed the other way round, as the A of the GEMM: columns are its rows, ``slab`` deep (a
    multiple of the in-channels), slab after slab. ``transforms`` has, for each class, None, or for each of Winograd's windows
    its taps and [point][tap] of their transform, and [panel][point] how many vectors of columns have weights there; rows of
    the panels are then (point, window, in-channel).
    """
    cdef const convt_isa *isa
    cdef const convt_kernels *k
    cdef int (*packed_finite)(const void *p, size_t bytes) noexcept nogil
    cdef PackClass *classes
    cdef Py_ssize_t nclasses
    cdef object structures
    cdef list keep
    cdef size_t weight_bytes, bias_bytes
    cdef int64_t groups, ci, co, ci_p, jobs, ntaps
    cdef int64_t sg, si, so  # strides of the filter: bytes, elements, elements
    cdef int64_t bias_stride, bias_phases
    cdef _Table taps
    cdef bint depthwise
    cdef int64_t each  # of `convt_dw_groups`; 0 where lanes are channels
    cdef _Table halves  # [each][lane]: where each of two groups has a lane's weight
    cdef bint dots  # of these, too
    cdef bint ready  # its lanes lie in the filter as they would be packed
    cdef int64_t slab
    cdef int64_t some, staged  # in-channels laid out at a time, and the bytes a thread needs for that
    cdef int64_t kernel_x, stride_x, repeats, terms  # of the last axis; how often a row of lanes holds the channels; rows
    cdef size_t mask  # where the mask of the last of these rows is; 0 where it is whole

    def __init__(self, str dtype, filter, bias, classes, int64_t bias_phases=0, int64_t slab=0, cell=(1, 1), int64_t each=0,
                 bint dots=False, transforms=None, bint matrix=False):
        self.isa = _isa
        self.k = _kernels(dtype, matrix)
        cdef const convt_kernels *k = self.k
        cdef int64_t item = k.s_size
        cdef PackClass *c
        # Packed weights are sums' type, or halves in pairs.
        self.packed_finite = k.finite if k.e_size == item else self.isa.set[_DTYPES.index("float32")].finite
        self.groups, self.ci, self.co = filter.shape[0], filter.shape[1], filter.shape[2]
        self.ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        self.sg, self.si, self.so = filter.strides[0], filter.strides[1] // item, filter.strides[2] // item
        self.bias_stride = bias.strides[0] // item if bias is not None else 0
        shape, strides = filter.shape[3:], np.asarray(filter.strides[3:], np.int64)
        self.ntaps = int(np.prod(shape))
        self.depthwise = classes is None
        self.bias_phases = bias_phases
        self.slab = slab
        self.some = max(<int64_t>STAGED, <int64_t>k.kstep)
        if self.depthwise:
            self.taps = _Table(_tap_bytes(np.arange(self.ntaps), shape, strides))
            self.kernel_x, self.stride_x = shape[len(shape) - 1], cell[0]
            self.repeats = cell[0] * cell[1]
            self.terms = (self.kernel_x + self.stride_x - 1) // self.stride_x
            self.weight_bytes = self.ntaps // self.kernel_x * self.terms * self.ci * self.padded() * k.t_size
            if self.kernel_x % self.stride_x:
                self.mask = self.weight_bytes
                self.weight_bytes += self.padded() * k.t_size
            self.each, self.dots = each, dots
            if each:
                self.weight_bytes = self.vectors() * self.ntaps * self.tap() * k.t_size
                self.mask = 0
            if each == 2:
                # In the other group's half of the outputs two neighbours change places. (A half may be a single lane.)
                half, lane = np.divmod(np.arange(k.vl), self.co)
                self.halves = _Table([
                    np.where((half == r) | (self.co == 1), lane, lane ^ 1) * self.so + np.arange(k.vl) % 2 * self.si
                    for r in range(2)
                ])
            self.bias_bytes = (self.padded() + (k.vl if each else 0)) * k.t_size  # (a vector of them from anywhere)
            self.ready = self.lies_packed()
            return
        self.nclasses = len(classes)
        self.structures = np.zeros(max(1, self.nclasses) * sizeof(PackClass), np.uint8)
        self.classes = <PackClass *>cnp.PyArray_DATA(self.structures)
        self.keep = []
        for i, taps in enumerate(classes):
            c = &self.classes[i]
            c.nphases, c.ntaps = taps.shape
            offsets = np.where(taps < 0, NO_TAP, _tap_bytes(np.maximum(taps, 0), shape, strides))
            c.taps = _kept(self.keep, offsets)
            c.ncols, c.depth = c.nphases * self.co, c.ntaps * self.ci_p
            c.nested = (taps < 0).any()
            c.together, c.step = self.co, self.so
            if self.co == 1 and c.nphases > 1 and not c.nested and np.ptp(apart := np.diff(offsets, axis=0)) == 0:
                c.together, c.step = c.nphases, apart[0, 0] // item
            if transforms is not None and transforms[i] is not None:
                windows, widths = transforms[i]
                self.transformed(c, windows, widths)
            c.npanels = (c.ncols + k.nr - 1) // k.nr
            c.weights, c.bias = self.weight_bytes, self.bias_bytes
            c.group_weights = c.npanels * k.nr * c.depth * k.e_size
            if slab:
                c.group_weights = (c.depth + slab - 1) // slab * c.ncols * CONVT_LDA * k.e_size
            c.group_bias = c.npanels * k.nr * k.t_size
            self.weight_bytes += _round64(self.groups * c.group_weights)
            self.bias_bytes += self.groups * c.group_bias
            c.share = self.some * max(1, PACK_JOB_BYTES * self.ci_p // max(1, self.some * c.depth * k.nr * k.e_size))
            c.shares = max(1, (self.ci + c.share - 1) // c.share)
            c.first_job, c.njobs = self.jobs, self.groups * (c.nphases if slab else c.npanels * c.shares)
            self.jobs += c.njobs
        if bias_phases:
            self.bias_bytes = self.groups * bias_phases * self.co * k.t_size

    cdef transformed(self, PackClass *c, windows, widths):
        """The tables of a class with a transform."""
        cdef int64_t slot = self.some * self.k.nr
        c.npoints, c.nwindows = len(windows[0][1]), len(windows)
        c.depth = c.npoints * c.nwindows * self.ci_p
        at, scale = [], []
        for taps, points in windows:
            self.staged = max(self.staged, len(taps) * slot * self.k.t_size)
            for point in points:
                terms = np.flatnonzero(point)
                at.append(terms * slot)
                scale.append(point[terms])
        starts = np.cumsum([0, *map(len, at)])
        scale = np.concatenate(scale).astype(np.float32 if self.k.t_size == 4 else np.float64)
        c.window_start = _kept(self.keep, np.cumsum([0, *(len(taps) for taps, _ in windows)]))
        c.window_taps = _kept(self.keep, np.concatenate([taps for taps, _ in windows]))
        c.start, c.at = _kept(self.keep, starts), _kept(self.keep, np.concatenate(at))
        c.widths = _kept(self.keep, widths)
        self.keep.append(scale)
        c.scale = <char *>cnp.PyArray_DATA(scale)

    cdef bint lies_packed(self):
        """Whether the lanes of depthwise are what a filter holds, row after row, so that nothing has to be packed."""
        cdef int64_t row = self.groups * self.co, size = self.k.s_size, n
        even = self.so == 1 if self.co > 1 else True
        if self.each or not (even and self.repeats == 1 and self.padded() == row and self.k.t_size == size):
            return False
        for n in range(self.ntaps):
            if self.taps.p[n] != n * self.ci * row * size:
                return False
        return (self.groups == 1 or self.sg == self.co * size) and (self.ci == 1 or self.si == row)

    cdef int64_t padded(self) noexcept nogil:
        """Lanes in a row of depthwise, in whole vectors."""
        return (self.repeats * self.groups * self.co + self.k.vl - 1) // self.k.vl * self.k.vl

    cdef int64_t tap(self) noexcept nogil:
        """Elements that a tap has in one of the `vectors`."""
        return self.ci * (self.co if self.dots else self.k.vl)

    cdef int64_t vectors(self) noexcept nogil:
        """Of out channels, of several groups or parts of one."""
        return (self.groups + self.each - 1) // self.each * ((self.co * self.each + self.k.vl - 1) // self.k.vl)

    cpdef PackedFilter pack(self, filter, bias, int threads, bint lasting=True, bint passing=False):
        """Pack a filter of the recipe's shape and strides; into spare memory, unless it is ``lasting``. If tasks pack what
        they multiply in ``passing``, or a filter that needs not last lies ready, only the bias: the filter has to stay as it
        is until they have multiplied."""
        cdef PackedFilter packed = PackedFilter()
        cdef bint ready = self.ready and not lasting
        cdef size_t room = 0 if passing or ready else _round64(self.weight_bytes)
        packed.nbytes = _round64(self.weight_bytes) + _round64(self.bias_bytes)
        packed.memory = _buffer(room + _round64(self.bias_bytes), NULL if lasting else &_weights)
        packed.weights, packed.bias = packed.memory.data, packed.memory.data + room
        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        cdef char *bsrc = <char *>cnp.PyArray_DATA(bias) if bias is not None else NULL
        cdef char *dst = packed.weights
        cdef char *bdst = packed.bias
        cdef int64_t job, wrong = 0  # last job first, as a run begins with what the first ones make: best packed last
        cdef int count = threads if self.weight_bytes > PARALLEL_PACK_BYTES else 1
        cdef Buffer stage
        memset(bdst, 0, self.bias_bytes)
        if self.depthwise:
            if ready:
                packed.weights, dst = src, NULL
            self.pack_depthwise(src, bsrc, dst, bdst)
            packed.finite = True  # it multiplies no zeros outside the input
            return packed
        if self.slab:  # rows are longer than a slab
            memset(dst, 0, self.weight_bytes)
        if bsrc != NULL:
            self.pack_bias(bsrc, bdst)
        if not passing:
            stage = _buffer(count * self.staged, &_workspaces)
        if passing:
            packed.source = src
        elif count > 1:
            if not _pool_used:
                _note_pool()
            for job in prange(self.jobs, num_threads=count, nogil=True, schedule="dynamic"):
                wrong += self.pack_panel(self.jobs - 1 - job, src, dst, stage.data + threadid() * self.staged)
        else:
            with nogil:
                for job in range(self.jobs):
                    wrong += self.pack_panel(self.jobs - 1 - job, src, dst, stage.data)
        # A bias that a matrix unit would lose, as it knows no subnormal numbers.
        wrong += self.k.parts and bias is not None and _subnormal(bias)
        # NaN or Inf times the zeros outside the input must not reach the output: _plans then avoids such zeros.
        packed.finite = not wrong and (not self.slab or _all_finite(self.k, filter, threads))
        return packed

    cdef void pack_bias(self, char *src, char *dst) noexcept nogil:
        """The bias of every panel, or as `bias_phases` says."""
        cdef const convt_kernels *k = self.k
        cdef Py_ssize_t i
        cdef int64_t job, column, end, count, step = self.bias_stride if self.co > 1 else 0
        cdef PackClass *c
        for job in range(self.groups * self.bias_phases):
            k.widen(dst + job * self.co * k.t_size, 0, src + job // self.bias_phases * self.co * self.bias_stride * k.s_size, 0,
                    self.bias_stride, 1, <int>self.co, <int>self.co)
        for i in range(0 if self.bias_phases else self.nclasses):
            c = self.classes + i
            for job in range(self.groups):
                column = 0
                while column < c.ncols:  # panels lie one behind the other
                    count = min(c.ncols - column, self.co) if self.co > 1 else c.ncols
                    k.widen(dst + c.bias + job * c.group_bias + column * k.t_size, 0,
                            src + job * self.co * self.bias_stride * k.s_size, 0, step, 1, <int>count, <int>count)
                    column += count

    cdef bint pack_panel(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Returns whether some weights are not finite, as they were or as they have become; of slabs it does not tell."""
        cdef const convt_kernels *k = self.k
        cdef PackClass *c = self.classes
        while job >= c.first_job + c.njobs:
            c += 1
        if self.slab:
            self.pack_rows(c, job - c.first_job, src, dst)
            return False
        job -= c.first_job
        cdef int64_t g = job // c.shares // c.npanels, n = job // c.shares % c.npanels, low = job % c.shares * c.share
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), high = min(self.ci, low + c.share), t
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl
        cdef int64_t last = self.ci_p if high == self.ci else high
        cdef bint wrong = False
        src += g * self.sg
        dst += c.weights + g * c.group_weights + column * c.depth * k.e_size
        cdef bint past = self.weight_bytes > PACK_STREAM_BYTES
        for t in range(c.nwindows if c.npoints else 0):
            wrong |= self.transform(c, n, t, low, high, src, dst, c.nwindows * self.ci_p * width, t * self.ci_p + low, past, stage)
        if c.npoints:
            if past:
                self.k.fence()
            return wrong
        for t in range(c.ntaps):
            wrong |= self.pack_tap(c, n, t, low, last, src, dst + (t * self.ci_p + low) * width * k.e_size)
        return wrong

    cdef bint pack_depth(self, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src,
                         char *dst) noexcept nogil:
        """Some depth of a panel of a group whose filter is at ``src``, from ``first`` on and in whole steps; returns what
        `pack_panel` does."""
        cdef int64_t t = convt_quotient(first, self.ci_p), low = first - t * self.ci_p, last
        cdef int64_t width = min(self.k.nr, (c.ncols - n * self.k.nr + self.k.vl - 1) // self.k.vl * self.k.vl)
        cdef bint wrong = False
        while depth:
            last = min(self.ci_p, low + depth)
            wrong |= self.pack_tap(c, n, t, low, last, src, dst)
            dst += (last - low) * width * self.k.e_size
            depth -= last - low
            t, low = t + 1, 0
        return wrong

    cdef const char *source_at(self, PackClass *c, int64_t n, int64_t point, int64_t first, char *src) noexcept nogil:
        """Where some depth of a panel starts in a group's filter; of a point, the last of its taps."""
        cdef int64_t t = convt_quotient(first, self.ci_p), low = first - t * self.ci_p
        cdef int64_t *taps
        cdef char *from_
        if n * self.k.nr >= c.ncols:
            return src
        self.piece(c, n * self.k.nr, c.ncols, src, &from_, &taps)
        if c.npoints:
            n = c.start[t * c.npoints + point + 1] - 1
            t = c.window_taps[c.window_start[t] + convt_quotient(c.at[n], self.some * self.k.nr)]
        return from_ + _offset(taps[t]) + low * self.si * self.k.s_size

    cdef const char *line_at(self, PackClass *c, int64_t n, int64_t first, int64_t line, char *src) noexcept nogil:
        """The line-th of the lines where some depth of all points of a panel starts in a group's filter, those of a tap after
        the other; NULL beyond them."""
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, bytes = self.k.nr * self.k.s_size
        cdef int64_t torn = (<size_t>src | self.si * self.k.s_size) & 63, lines = (bytes + 63) // 64 + (torn > 0)
        cdef int64_t t = c.window_start[w] + convt_quotient(line, lines)
        cdef int64_t *taps
        cdef char *from_
        if t >= c.window_start[w + 1] or n * self.k.nr >= c.ncols:
            return NULL
        self.piece(c, n * self.k.nr, c.ncols, src, &from_, &taps)
        from_ += _offset(taps[c.window_taps[t]]) + low * self.si * self.k.s_size
        return from_ + min(bytes - 1, line % lines * 64)

    cdef bint pack_tap(self, PackClass *c, int64_t n, int64_t t, int64_t low, int64_t last, char *src, char *dst) noexcept nogil:
        """In-channels ``low`` to ``last``, which start at ``dst``, of a tap in the n-th panel of a group whose filter is at
        ``src``."""
        cdef const convt_kernels *k = self.k
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), high = min(self.ci, last), count, whole
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl, row = width * k.e_size
        cdef char *from_
        cdef int64_t *taps
        cdef bint wrong = False
        # What nothing is written to: columns on the right, channels of the last step.
        whole = 0 if end - column < width else convt_quotient(high - low, k.kstep) * k.kstep
        if whole < last - low:
            memset(dst + whole * row, 0, (last - low - whole) * row)
        while column < end:
            count = self.piece(c, column, end, src, &from_, &taps)
            wrong |= not k.pack_b(dst, 0, <int>(column % k.nr), from_ + taps[t] + low * self.si * k.s_size, self.si, c.step,
                                  <int>(high - low), <int>count, <int>width)
            column += count
        return wrong or (not k.parts and not self.packed_finite(dst, (last - low) * row))

    cdef int64_t piece(self, PackClass *c, int64_t column, int64_t end, char *src, char **from_, int64_t **taps) noexcept nogil:
        """How many columns from this one on are at even distances; where the first is, and its taps from there."""
        cdef int64_t first = column % c.together
        from_[0] = src + first * c.step * self.k.s_size
        taps[0] = c.taps + column // c.together * c.together // self.co * c.ntaps
        return min(c.together - first, end - column)

    cdef bint transform(self, PackClass *c, int64_t n, int64_t w, int64_t low, int64_t high, char *src, char *dst,
                        int64_t out_row, int64_t at_row, bint past, char *stage) noexcept nogil:
        """Some in-channels of a window, all points of the n-th panel of a group whose filter is at ``src``: a few of them at a
        time, whose taps are laid out side by side. Points are ``out_row`` elements apart, these channels their rows from
        ``at_row`` on. Returns whether some points overflowed, or are not what their type can hold."""
        cdef const convt_kernels *k = self.k
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), at, count, tap, point
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl
        cdef int64_t *widths = c.widths + n * c.npoints
        cdef bint wrong = False
        cdef char *from_
        cdef char *slot
        cdef int64_t *taps
        cdef convt_wino_filter f
        f.in_, f.in_step, f.out_row, f.stream = stage, k.nr, out_row, past
        f.at, f.scale = c.at, c.scale
        while low < high:
            f.n = <int>min(self.some, high - low)
            at = column
            while at < end:
                count = self.piece(c, at, end, src, &from_, &taps)
                slot = stage + (at - column) * k.t_size
                for n in range(c.window_start[w], c.window_start[w + 1]):
                    tap = taps[c.window_taps[n]]
                    k.widen(slot, k.nr, from_ + _offset(tap) + low * self.si * k.s_size, self.si, c.step, f.n,
                            <int>(count if tap != NO_TAP else 0), <int>(count if at + count < end else width - (at - column)))
                    slot += self.some * k.nr * k.t_size
                at += count
            point = 0
            while point < c.npoints:  # those of a width
                f.start, f.rows = c.start + w * c.npoints + point, 1
                while point + f.rows < c.npoints and widths[point + f.rows] == widths[point]:
                    f.rows += 1
                f.cols = <int>(widths[point] * k.vl)
                f.out_step = f.cols
                f.out = dst + (point * f.out_row + at_row * f.out_step) * k.e_size
                if f.cols:
                    wrong |= not k.wino_filter(&f)
                point += f.rows
            low += f.n
            at_row += f.n
        return wrong

    cdef bint make_points(self, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src, char *dst,
                          char *stage) noexcept nogil:
        """`pack_depth` of all points of a panel."""
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, last, done = 0
        cdef int64_t width = min(self.k.nr, (c.ncols - n * self.k.nr + self.k.vl - 1) // self.k.vl * self.k.vl)
        cdef bint wrong = False
        while done < depth:
            last = min(self.ci_p, low + depth - done)
            wrong |= self.transform(c, n, w, low, min(self.ci, last), src, dst, depth * width, done, False, stage)
            done += last - low
            w, low = w + 1, 0
        return wrong

    cdef bint lies_ready(self, PackClass *c) noexcept:
        """Whether every panel's columns lie side by side in the filter, so that points can be made of them where they are."""
        cdef int64_t whole = self.k.nr if c.nphases > 1 else self.k.vl
        return self.so == 1 and self.co % whole == 0 and self.k.s_size == self.k.t_size and not c.nested

    cdef bint transform_depth(self, PackClass *c, int64_t n, int64_t point, int64_t first, int64_t depth, char *src,
                              char *dst) noexcept nogil:
        """`pack_depth` of a point, of weights that lie ready."""
        cdef const convt_kernels *k = self.k
        cdef int64_t w = convt_quotient(first, self.ci_p), low = first - w * self.ci_p, last, high, i, e
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr)
        cdef int64_t start[2]
        cdef int64_t at[PASSING_TERMS]
        cdef int64_t *terms
        cdef int64_t *taps
        cdef char *from_
        cdef bint wrong = False
        cdef convt_wino_filter f
        self.piece(c, column, end, src, &from_, &taps)
        f.in_step, f.out_row, f.out_step, f.cols, f.rows, f.stream = self.si, 0, end - column, <int>(end - column), 1, 0
        f.start, f.at, start[0] = start, at, 0
        while depth:
            last = min(self.ci_p, low + depth)
            high = min(self.ci, last)
            terms = c.start + w * c.npoints + point
            start[1] = terms[1] - terms[0]
            for e in range(start[1]):
                i = c.window_start[w] + convt_quotient(c.at[terms[0] + e], self.some * k.nr)
                at[e] = convt_quotient(taps[c.window_taps[i]], k.s_size)
            f.scale = c.scale + terms[0] * k.t_size
            depth -= last - low
            while low < high:
                f.in_, f.out, f.n = from_ + low * self.si * k.s_size, dst, <int>min(self.some, high - low)
                wrong |= not k.wino_filter(&f)
                dst += f.n * f.out_step * k.e_size
                low += f.n
            w, low = w + 1, 0
        return wrong

    cdef void pack_rows(self, PackClass *c, int64_t job, char *src, char *dst) noexcept nogil:
        """The rows of one phase of one group: those of its out-channels."""
        cdef const convt_kernels *k = self.k
        cdef int64_t g = job // c.nphases, phase = job % c.nphases, t, depth
        src += g * self.sg
        dst += c.weights + g * c.group_weights
        for t in range(c.ntaps):
            depth = t * self.ci_p
            k.pack(dst + ((depth // self.slab * c.ncols + phase * self.co) * CONVT_LDA + depth % self.slab) * k.e_size,
                   CONVT_LDA, src + c.taps[phase * c.ntaps + t], self.so, self.si, <int>self.co, <int>self.ci,
                   <int>self.ci_p)

    cdef void pack_depthwise(self, char *src, char *bsrc, char *dst, char *bdst) noexcept nogil:
        """Lanes and bias; only the bias where ``dst`` is NULL."""
        cdef const convt_kernels *k = self.k
        cdef int64_t n, lanes = self.groups * self.co
        if dst != NULL:
            memset(dst, 0, self.weight_bytes)
            if self.dots:
                self.pack_dots(src, dst)
            elif self.each:
                self.pack_groups(src, dst)
            else:
                self.pack_lanes(src, dst)
        for n in range(self.repeats):
            if self.mask and n % self.stride_x < self.kernel_x % self.stride_x:
                memset(dst + self.mask + n * lanes * k.t_size, 0xff, lanes * k.t_size)
            if bsrc != NULL:
                k.widen(bdst + n * lanes * k.t_size, 0, bsrc, 0, self.bias_stride, 1, <int>lanes, <int>lanes)

    cdef void pack_lanes(self, char *src, char *dst) noexcept nogil:
        """Row after row of all lanes: for each tap, or each stride of taps, and each in-channel."""
        cdef const convt_kernels *k = self.k
        cdef int64_t row, first, tap, c, n, lanes = self.groups * self.co
        # Lanes at even distances are one row, else each group has its own.
        cdef int64_t group = self.sg // k.s_size, step = self.so, rows = self.groups
        if self.co == 1:
            step, rows = group, 1
        elif group == self.co * step:
            rows = 1
        for row in range(self.ntaps // self.kernel_x * self.terms):
            first = row % self.terms * self.stride_x
            for c in range(self.ci):
                for n in range(self.repeats):
                    tap = first + n % self.stride_x
                    if tap >= self.kernel_x:
                        continue
                    tap += row // self.terms * self.kernel_x
                    k.widen(dst + n * lanes * k.t_size, lanes // rows, src + self.taps.p[tap] + c * self.si * k.s_size, group,
                            step, <int>rows, <int>(lanes // rows), <int>(lanes // rows))
                dst += self.padded() * k.t_size

    cdef void pack_groups(self, char *src, char *dst) noexcept nogil:
        """Vectors as `convt_dw_groups` wants them: of each its taps, of these the in-channels."""
        cdef const convt_kernels *k = self.k
        cdef int64_t v, tap, r, group, part, each = self.each, parts = (self.co * each + k.vl - 1) // k.vl
        cdef char *some
        for v in range(self.vectors()):
            part = v % parts * k.vl
            for tap in range(self.ntaps):
                for r in range(each):
                    group = v // parts * each + r
                    some = src + self.taps.p[tap] + group * self.sg
                    if each == 1:
                        k.widen(dst, k.vl, some + part * self.so * k.s_size, self.si, self.so, <int>self.ci,
                                <int>min(k.vl, self.co - part), k.vl)
                    elif group < self.groups:
                        k.gather(dst + r * k.vl * k.t_size, each * k.vl, some, each * self.si, self.halves.p + r * k.vl,
                                 <int>(self.ci // each), k.vl, k.vl)
                dst += self.ci * k.vl * k.t_size

    cdef void pack_dots(self, char *src, char *dst) noexcept nogil:
        """Of each group its taps, of these vectors of in-channels, of each vector the out-channels."""
        cdef const convt_kernels *k = self.k
        cdef int64_t group, tap, c
        for group in range(self.groups):
            for tap in range(self.ntaps):
                for c in range(self.co):
                    k.widen(dst + c * k.vl * k.t_size, self.co * k.vl,
                            src + self.taps.p[tap] + group * self.sg + c * self.so * k.s_size, self.si * k.vl, self.si,
                            <int>(self.ci // k.vl), k.vl, k.vl)
                dst += self.tap() * k.t_size


def _subnormal(bias):
    """Whether some of a bias is so small that a sum in float32 could be less exact than it."""
    size = np.abs(bias.astype(np.float32))
    return bool(((size > 0) & (size < 2.0**-102)).any())


cdef inline int64_t _offset(int64_t tap) noexcept nogil:
    """Bytes from tap 0 to a tap, which may lie before it; 0 for none."""
    return 0 if tap == NO_TAP else tap


def _tap_bytes(taps, shape, strides):
    """Byte offsets of flat kernel taps."""
    return np.dot(np.stack(np.unravel_index(taps, shape), -1), strides)
