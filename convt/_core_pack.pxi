# Packed weights: panels for the GEMM, lanes for depthwise.
# Included by _core.pyx.

cdef struct PackClass:
    int64_t nphases, ntaps, ncols, npanels, depth
    int64_t *taps            # [nphases][ntaps] byte offset of each tap in the filter
    size_t weights, bias     # where the class starts in the buffers
    size_t group_weights, group_bias
    int64_t first_job, njobs # a job packs one panel of one group


cdef class PackedFilter:
    """Weights and bias in the panels of one instruction set; made by a PackRecipe."""
    cdef Buffer weights, bias
    cdef readonly bint finite
    cdef readonly size_t nbytes


cdef class PackRecipe:
    """How filters of one shape and one memory layout are packed for the instruction set in use.

    ``classes`` lists, per pack class, the flat kernel taps as [phase][tap]. A row of the class's panels is one (tap,
    in-channel), a column one (phase, out-channel). Without classes it packs for DepthwisePlan: rows of lanes (group,
    out-channel) per tap and in-channel, in sums' type; with ``cell``, (stride, width), lanes are those of ``width`` times
    the phases of the last axis, each stride of taps a row, zero where there is no tap; and if the last row is cut short,
    one more row follows, its bits set where there is one. With ``bias_phases`` the bias is not packed by panels but as that
    many repetitions of each group's, which is what ScatterPlan adds. With ``slab`` classes are packed the other way
    round, as the A of the GEMM: columns are its rows, ``slab`` deep (a multiple of the in-channels), slab after slab.
    """
    cdef const convt_isa *isa
    cdef const convt_kernels *k
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
    cdef int64_t slab
    cdef int64_t kernel_x, stride_x, repeats, terms  # of the last axis; how often a row of lanes holds the channels; rows
    cdef size_t mask  # where the mask of the last of these rows is; 0 where it is whole

    def __init__(self, str dtype, filter, bias, classes, int64_t bias_phases=0, int64_t slab=0, cell=(1, 1)):
        self.isa = _isa
        self.k = &self.isa.set[_DTYPES.index(dtype)]
        cdef const convt_kernels *k = self.k
        cdef int64_t item = k.s_size
        cdef PackClass *c
        self.groups, self.ci, self.co = filter.shape[0], filter.shape[1], filter.shape[2]
        self.ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        self.sg, self.si, self.so = filter.strides[0], filter.strides[1] // item, filter.strides[2] // item
        self.bias_stride = bias.strides[0] // item if bias is not None else 0
        shape, strides = filter.shape[3:], np.asarray(filter.strides[3:], np.int64)
        self.ntaps = int(np.prod(shape))
        self.depthwise = classes is None
        self.bias_phases = bias_phases
        self.slab = slab
        if self.depthwise:
            self.taps = _Table(_tap_bytes(np.arange(self.ntaps), shape, strides))
            self.kernel_x, self.stride_x = shape[len(shape) - 1], cell[0]
            self.repeats = cell[0] * cell[1]
            self.terms = (self.kernel_x + self.stride_x - 1) // self.stride_x
            self.weight_bytes = self.ntaps // self.kernel_x * self.terms * self.ci * self.padded() * k.t_size
            if self.kernel_x % self.stride_x:
                self.mask = self.weight_bytes
                self.weight_bytes += self.padded() * k.t_size
            self.bias_bytes = self.padded() * k.t_size
            return
        self.nclasses = len(classes)
        self.structures = np.zeros(max(1, self.nclasses) * sizeof(PackClass), np.uint8)
        self.classes = <PackClass *>cnp.PyArray_DATA(self.structures)
        self.keep = []
        for i, taps in enumerate(classes):
            c = &self.classes[i]
            c.nphases, c.ntaps = taps.shape
            table = _Table(_tap_bytes(taps, shape, strides))
            self.keep.append(table)
            c.taps = (<_Table>table).p
            c.ncols, c.depth = c.nphases * self.co, c.ntaps * self.ci_p
            c.npanels = (c.ncols + k.nr - 1) // k.nr
            c.weights, c.bias = self.weight_bytes, self.bias_bytes
            c.group_weights = c.npanels * k.nr * c.depth * k.e_size
            if slab:
                c.group_weights = (c.depth + slab - 1) // slab * c.ncols * CONVT_LDA * k.e_size
            c.group_bias = c.npanels * k.nr * k.t_size
            self.weight_bytes += _round64(self.groups * c.group_weights)
            self.bias_bytes += self.groups * c.group_bias
            c.first_job, c.njobs = self.jobs, self.groups * (c.nphases if slab else c.npanels)
            self.jobs += c.njobs
        if bias_phases:
            self.bias_bytes = self.groups * bias_phases * self.co * k.t_size

    cdef int64_t padded(self) noexcept nogil:
        """Lanes in a row of depthwise, in whole vectors."""
        return (self.repeats * self.groups * self.co + self.k.vl - 1) // self.k.vl * self.k.vl

    def pack(self, filter, bias, int threads):
        """Pack a filter of the recipe's shape and strides."""
        cdef PackedFilter packed = PackedFilter()
        packed.weights, packed.bias = Buffer(self.weight_bytes), Buffer(self.bias_bytes)
        packed.nbytes = packed.weights.size + packed.bias.size
        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        cdef char *bsrc = <char *>cnp.PyArray_DATA(bias) if bias is not None else NULL
        cdef char *dst = packed.weights.data
        cdef char *bdst = packed.bias.data
        cdef int64_t job
        cdef int count = threads if self.weight_bytes > PARALLEL_PACK_BYTES else 1
        memset(bdst, 0, packed.bias.size)
        if self.depthwise:
            with nogil:
                self.pack_depthwise(src, bsrc, dst, bdst)
            packed.finite = True  # it multiplies no zeros outside the input
            return packed
        if self.slab:  # rows are longer than a slab
            memset(dst, 0, self.weight_bytes)
        if bsrc != NULL:
            for job in range(self.groups * self.bias_phases):
                self.k.widen(bdst + job * self.co * self.k.t_size, 0,
                             bsrc + job // self.bias_phases * self.co * self.bias_stride * self.k.s_size, 0,
                             self.bias_stride, 1, <int>self.co, <int>self.co)
        if count > 1:
            if not _pool_used:
                _note_pool()
            for job in prange(self.jobs, num_threads=count, nogil=True, schedule="static"):
                self.pack_panel(job, src, bsrc, dst, bdst)
        else:
            with nogil:
                for job in range(self.jobs):
                    self.pack_panel(job, src, bsrc, dst, bdst)
        # NaN or Inf times the zeros outside the input must not reach the output: _plans then avoids such zeros.
        packed.finite = _all_finite(self.k, filter, threads)
        return packed

    cdef void pack_panel(self, int64_t job, char *src, char *bsrc, char *dst, char *bdst) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef PackClass *c = self.classes
        while job >= c.first_job + c.njobs:
            c += 1
        if self.slab:
            self.pack_rows(c, job - c.first_job, src, dst)
            return
        cdef int64_t g = (job - c.first_job) // c.npanels, n = (job - c.first_job) % c.npanels
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), phase, first, count, t
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl
        dst += c.weights + g * c.group_weights + column * c.depth * k.e_size
        bdst += c.bias + g * c.group_bias + column * k.t_size
        if end - column < width or self.ci_p != self.ci or n == c.npanels - 1:
            memset(dst, 0, k.nr * c.depth * k.e_size)
        while column < end:
            phase = column // self.co
            first = column - phase * self.co
            count = min(self.co - first, end - column)
            for t in range(c.ntaps):
                k.pack_b(dst, <int>(t * self.ci_p), <int>(column % k.nr),
                         src + g * self.sg + c.taps[phase * c.ntaps + t] + first * self.so * k.s_size,
                         self.si, self.so, <int>self.ci, <int>count, <int>width)
            if bsrc != NULL and not self.bias_phases:
                k.widen(bdst + column % k.nr * k.t_size, k.nr, bsrc + (g * self.co + first) * self.bias_stride * k.s_size,
                        0, self.bias_stride, 1, <int>count, <int>count)
            column += count

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
        cdef const convt_kernels *k = self.k
        cdef int64_t row, first, tap, c, g, n, lanes = self.groups * self.co
        cdef char *mask = dst + self.mask
        memset(dst, 0, self.weight_bytes)
        for row in range(self.ntaps // self.kernel_x * self.terms):
            first = row % self.terms * self.stride_x
            for c in range(self.ci):
                for n in range(self.repeats):
                    tap = first + n % self.stride_x
                    if tap >= self.kernel_x:
                        continue
                    tap += row // self.terms * self.kernel_x
                    for g in range(self.groups):
                        k.widen(dst + (n * lanes + g * self.co) * k.t_size, 0,
                                src + self.taps.p[tap] + c * self.si * k.s_size + g * self.sg, 0, self.so, 1, <int>self.co,
                                <int>self.co)
                dst += self.padded() * k.t_size
        for n in range(self.repeats):
            if self.mask and n % self.stride_x < self.kernel_x % self.stride_x:
                memset(mask + n * lanes * k.t_size, 0xff, lanes * k.t_size)
            if bsrc != NULL:
                k.widen(bdst + n * lanes * k.t_size, 0, bsrc, 0, self.bias_stride, 1, <int>lanes, <int>lanes)


def _tap_bytes(taps, shape, strides):
    """Byte offsets of flat kernel taps."""
    return np.dot(np.stack(np.unravel_index(taps, shape), -1), strides)
