# The depthwise algorithm: rows of outputs, vectors of channels.
# Included by _core.pyx.

cdef struct DepthwiseRun:
    # One phase. Runs of the same j follow each other and are computed together.
    int64_t start, stop      # absolute j
    int64_t first_out        # output index at j = start
    bint shared              # of the same j, and reading the same inputs, as the run before
    int64_t ntaps
    int64_t *taps            # [ntaps][2]: kernel tap, input index minus j


cdef class DepthwisePlan(Plan):
    cdef list keep
    cdef object structures
    cdef DepthwiseRun *runs
    cdef Py_ssize_t nruns
    cdef int64_t blocks, block, j0, lanes, lane_block, lane_blocks
    cdef int64_t max_taps, max_inputs, min_off, max_off, begin, out_x
    cdef _Table maps  # [ci][lanes]: offset of each lane's in-channel
    cdef bint straight_in, straight_out
    cdef bint staged  # outputs of a task are one stretch of memory, written past the caches

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, hole, spec):
        self.algorithm = "depthwise"
        self.even = True
        self._common(problem, recipe, in_strides, out_strides, hole)
        cdef const convt_kernels *k = self.k
        self.keep = []
        self.nruns = len(spec["runs"])
        self.structures = np.zeros(max(1, self.nruns) * sizeof(DepthwiseRun), np.uint8)
        self.runs = <DepthwiseRun *>cnp.PyArray_DATA(self.structures)
        cdef _Table t
        before = None
        for i, (start, stop, first_out, taps) in enumerate(spec["runs"]):
            reads = start, stop, [offset for _, offset in taps]
            self.runs[i].shared, before = reads == before, reads
            t = _Table(taps)
            self.keep.append(t)
            self.runs[i].start, self.runs[i].stop, self.runs[i].first_out = start, stop, first_out
            self.runs[i].ntaps, self.runs[i].taps = len(taps), t.p
        self._outer(spec["outer"])
        self.block, self.blocks, self.j0 = spec["block"], spec["blocks"], spec["j0"]
        self.lanes, self.lane_block = self.groups * self.co, spec["lane_block"]
        self.lane_blocks = (self.lanes + self.lane_block - 1) // self.lane_block
        self.min_off, self.max_off = spec["min_off"], spec["max_off"]
        self.max_inputs = min(self.block + self.max_off - self.min_off, max(1, self.in_size.p[self.nd - 1]))
        self.max_taps = self.row_taps * self.ci * self.kernel.p[self.nd - 1]  # of all phases
        group = np.arange(self.lanes) // self.co
        self.maps = _Table([(group * self.ci + c) * self.in_c for c in range(self.ci)])
        self.straight_in = k.direct_store and self.in_c == 1 and self.ci == 1 and self.co == 1
        self.straight_out = k.direct_store and self.out_c == 1 and self.act.code <= CONVT_LEAKY
        self.staged = (
            self.straight_out and self.large and not hole and self.lane_blocks == 1
            and self.out_stride.p[self.nd - 1] == self.lanes
        )
        self.begin, self.out_x = problem.begin[self.nd - 1], problem.out_sizes[self.nd - 1]
        self.tasks = self.out_rows * self.blocks * self.lane_blocks
        self.workspace = self._bytes()

    cdef int64_t _padded(self) noexcept nogil:
        return (self.lane_block + self.k.vl - 1) // self.k.vl * self.k.vl

    cdef size_t _bytes(self):
        cdef size_t n = _round64((self.row_taps + 1) * 2 * sizeof(int64_t))  # the row's input offsets and taps
        n += 2 * _round64(self.max_taps * sizeof(void *))  # the run's input and weight pointers
        n += _round64(self.nruns * sizeof(convt_dw_phase))
        n += _round64(32 * self._padded() * self.k.t_size)  # outputs on their way to the store
        if self.staged:
            n += _round64(self.block * self.stride.p[self.nd - 1] * self.lanes * self.k.t_size)
        if not self.straight_in:  # widened inputs
            n += _round64(self.row_taps * self.ci * self.max_inputs * self._padded() * self.k.t_size)
        return n

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t padded = self._padded()
        cdef int64_t x = self.nd - 1
        cdef int64_t block = task % self.blocks
        cdef int64_t l0 = task // self.blocks % self.lane_blocks * self.lane_block
        cdef int64_t row = task // self.blocks // self.lane_blocks
        cdef int64_t cols = min(self.lane_block, self.lanes - l0)
        cdef int64_t all_padded = (self.lanes + k.vl - 1) // k.vl * k.vl

        cdef int64_t *row_tap = <int64_t *>ws
        ws += _round64((self.row_taps + 1) * 2 * sizeof(int64_t))
        cdef const void **ins = <const void **>ws
        ws += _round64(self.max_taps * sizeof(void *))
        cdef const void **weights = <const void **>ws
        ws += _round64(self.max_taps * sizeof(void *))
        cdef convt_dw_phase *phases = <convt_dw_phase *>ws
        ws += _round64(self.nruns * sizeof(convt_dw_phase))
        cdef char *outs = ws
        ws += _round64(32 * padded * k.t_size)
        cdef char *stage = ws
        if self.staged:
            ws += _round64(self.block * self.stride.p[x] * self.lanes * k.t_size)
        cdef char *inputs = ws

        cdef int64_t image, at, n, c
        cdef int64_t count = self.row_inputs(row, row_tap, &image, &at)
        cdef char *src = call.src + image * k.s_size
        cdef char *dst = call.dst + (at + l0 * self.out_c) * k.s_size

        cdef int64_t j_lo = self.j0 + block * self.block
        cdef int64_t j_hi = j_lo + self.block
        cdef int64_t i_lo = min(max(0, j_lo - self.max_off), self.in_size.p[x])
        cdef int64_t i_hi = max(i_lo, min(self.in_size.p[x], j_hi - self.min_off))
        cdef int64_t in_ld = self.in_stride.p[x]
        if not self.straight_in:
            for n in range(count):
                for c in range(self.ci):
                    k.gather(inputs + (n * self.ci + c) * self.max_inputs * padded * k.t_size, padded,
                             src + (row_tap[2 * n] + i_lo * in_ld) * k.s_size, in_ld, self.maps.p + c * self.lanes + l0,
                             <int>(i_hi - i_lo), <int>cols, <int>padded)
            in_ld = padded

        # The stretch of the output row that the task computes.
        cdef int64_t o_lo = 0, o_hi = 0
        if self.staged:
            o_lo = max(0, self.stride.p[x] * j_lo - self.begin)
            o_hi = min(self.out_x, self.stride.p[x] * j_hi - self.begin)

        cdef convt_dw d
        cdef DepthwiseRun *run
        cdef int64_t start, stop, first_at, t, i, r, now, out_ld, taps
        cdef void *rows[32]
        d.cols = <int>cols
        d.phase = phases
        d.in_ld = in_ld
        d.w = weights
        d.init = call.bias + l0 * k.t_size
        n = 0
        while n < self.nruns:
            run = &self.runs[n]
            start, stop = max(run.start, j_lo), min(run.stop, j_hi)
            if start >= stop:
                n += 1
                continue
            first_at = 0
            d.phases = 0
            taps = 0
            while True:
                at = run.first_out * self.out_stride.p[x]
                if start > run.start:
                    at += (start - run.start) * self.stride.p[x] * self.out_stride.p[x]
                if d.phases == 0:
                    first_at = at
                phases[d.phases].out = at - first_at
                phases[d.phases].shared = d.phases > 0 and run.shared
                phases[d.phases].taps = <int>(count * run.ntaps * self.ci)
                d.phases += 1
                for r in range(count):
                    for t in range(run.ntaps):
                        i = run.taps[2 * t + 1] + start
                        for c in range(self.ci):
                            if self.straight_in:
                                ins[taps] = src + (row_tap[2 * r] + i * in_ld + l0) * k.t_size
                            else:
                                ins[taps] = inputs + ((r * self.ci + c) * self.max_inputs + i - i_lo) * padded * k.t_size
                            weights[taps] = call.weights + (
                                ((row_tap[2 * r + 1] * self.kernel.p[x] + run.taps[2 * t]) * self.ci + c) * all_padded + l0
                            ) * k.t_size
                            taps += 1
                n += 1
                if not self.straight_out or n == self.nruns or self.runs[n].start != run.start or self.runs[n].stop != run.stop:
                    break
                run = &self.runs[n]
            at = first_at
            d.in_ = ins
            out_ld = self.stride.p[x] * self.out_stride.p[x] if stop - start > 1 else 0
            if self.straight_out:
                d.n = <int>(stop - start)
                d.out = stage + (at - o_lo * self.lanes) * k.t_size if self.staged else dst + at * k.s_size
                d.out_ld = out_ld
                d.act = &self.act
                k.depthwise(&d)
                continue
            d.act = &self.none
            d.out = outs
            d.out_ld = padded
            while start < stop:
                now = min(32, stop - start)
                d.n = <int>now
                k.depthwise(&d)
                for r in range(now):
                    rows[r] = dst + (at + r * out_ld) * k.s_size
                k.store(rows, self.out_c, outs, padded, <int>now, <int>cols, &self.act)
                for r in range(taps):
                    ins[r] = <const char *>ins[r] + now * in_ld * k.t_size
                at += now * out_ld
                start += now
        if self.staged:
            k.stream(dst + o_lo * self.lanes * k.t_size, stage, (o_hi - o_lo) * self.lanes * k.t_size)
            k.fence()
