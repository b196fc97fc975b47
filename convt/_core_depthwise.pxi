# The depthwise algorithm: rows of outputs, vectors of channels.
# Included by _core.pyx.

cdef struct DepthwiseRun:
    # One phase, or all of them as one cell; or phases of the same j, which are computed together.
    int64_t start, stop      # absolute j
    int64_t first_out        # output index at j = start
    int64_t first_in         # input index that the first term reads there
    int64_t low, high        # lanes of a j
    int phase, phases        # which of all
    int64_t step             # from each of its j's to the next one


cdef struct DepthwiseInput:
    # A place for the gathered inputs of a row, kept for the next output rows of the task.
    int64_t row   # its offset in the input
    int64_t used  # the output row that read it last; -1 if there is none


cdef struct DepthwiseRow:
    # A task's part of an output row.
    int64_t l0, cols     # lanes
    int64_t i_lo, i_hi   # the input pixels that there are for it
    int64_t in_ld        # elements from one to the next
    char *outs           # room for rows of outputs on their way to the store


cdef enum:
    SCRATCH = 32  # rows of outputs on their way to the store
    AHEAD = 8  # j's that a line of the output is asked for before it is written
    STAGE = 1 << 12  # bytes of outputs, about, that go past the caches in one copy: multiply-adds go on while these are written


cdef class DepthwisePlan(Plan):
    # Lanes are channels; in cells, (phase, channel), as they lie in the output, and those of `width` j's together.
    cdef list keep
    cdef DepthwiseRun *runs
    cdef Py_ssize_t nruns
    cdef convt_dw_phase *phases
    cdef int64_t rows, row_blocks  # output rows of a task, and how many such
    cdef int64_t blocks, block, j0, lane_block, lane_blocks
    cdef int64_t lanes, width, lane_step, whole  # lanes of a j, the distance of their outputs; those of the last row of taps
    cdef int64_t pitch  # from j to j of gathered inputs
    cdef int64_t weights_ld, outs_ld  # lanes of a row of weights, and of a row of outputs on their way to the store
    cdef int64_t taps_x, max_inputs, min_off, max_off
    cdef _Table maps  # [ci][lanes]: offset of each lane's in-channel
    cdef object index  # int32 [lanes]: its distance from that of the first lane of its vector
    cdef const int32_t *picks
    cdef bint picked   # inputs are picked where they lie
    cdef int64_t each  # of `grouped`; 0 where lanes are channels
    cdef convt_dw_groups grouped
    cdef _Table places  # for these
    cdef int64_t bundle, bundles  # the lanes of `each` groups, and their vectors
    cdef int64_t apart  # those of vectors that are alike; 0 where they are not
    cdef int64_t safe  # pixel 0 of an input row no further than this: beyond the row there is as much again as a pick reads
    cdef bint straight_in, straight_out
    cdef bint skips  # runs may read outside the input
    cdef int64_t ahead
    cdef bint ordered  # outputs are written in order
    cdef bint far  # inputs do not stay in the second-level cache
    cdef size_t past  # alignment that the output must have to bypass the caches; 0 where it should not
    cdef int64_t part  # j's that are computed at a time
    cdef int64_t staged  # the outputs of so many, which are gathered before they go past the caches; 0 where none are
    cdef int64_t begin, out_size  # of the last axis

    def __init__(self, problem, PackRecipe recipe, in_strides, out_strides, hole, spec):
        self.algorithm = "depthwise"
        self.even = True
        self._common(problem, recipe, in_strides, out_strides, hole, spec["cycles"])
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, channels = self.groups * self.co
        self._outer(spec["outer"])
        self.rows = spec["rows"]
        self.row_blocks = (self.out_rows + self.rows - 1) // self.rows
        self.block, self.blocks, self.j0 = spec["block"], spec["blocks"], spec["j0"]
        self.width = spec["width"]
        self.begin, self.out_size = problem.begin[x], problem.out_sizes[x]
        self.lanes, self.lane_block = spec["lanes"], spec["lane_block"]
        self.lane_blocks = (self.lanes + self.lane_block - 1) // self.lane_block
        self.lane_step = 1 if recipe.repeats > 1 else self.out_c
        self.taps_x = recipe.terms
        self.whole = (recipe.kernel_x - (recipe.terms - 1) * recipe.stride_x) * channels
        self.pitch = self.lanes if self.width > 1 else self._vectors(self.lane_block)
        self.each, self.skips = recipe.each, spec["skips"]
        if self.each:
            self.pitch = self.lane_block // self.co * self.ci
        self.weights_ld, self.outs_ld = self._vectors(self.width * self.lanes), self._vectors(self.width * self.lane_block)
        self.min_off, self.max_off = spec["min_off"], spec["max_off"]
        self.max_inputs = min(self.block + self.max_off - self.min_off, max(1, self.in_size.p[x]))
        group = np.arange(self.lanes) % channels // self.co
        self.maps = _Table([(group * self.ci + c) * self.in_c for c in range(self.ci)])
        self.straight_in = (
            k.direct_store and self.in_c == 1 and self.ci == 1 and self.co == 1 and self.lanes == channels
            and (self.width == 1 or self.in_stride.p[x] == channels)
        ) or (self.each > 0 and k.direct_store and self.in_c == 1)
        first = group * self.ci * self.in_c
        at = np.arange(self._vectors(self.lanes))
        index = first[np.minimum(at, self.lanes - 1)] - first[at // k.vl * k.vl]
        self.picked = (
            k.direct_store and not self.straight_in and self.width == 1 and self.in_c >= 0
            # (Those of a cell repeat for each phase: for all lanes it is the same one, if there is one group. AVX2, which has no
            # kernels of groups that are picked, takes up to twice as long so.)
            and (self.lanes == channels or (self.groups == 1 and k.reach > 1))
            and index.max() < k.reach and not (self.each or self.skips)  # (no pick leaves out pixels that are not there)
        )
        self.apart = k.vl // self.co * self.ci * self.in_c if self.picked and self.groups > 1 and k.vl % self.co == 0 else 0
        # The last element of the input, less what lies between pixel 0 of a row and the end of a pick from its last one.
        steps = [(n - 1) * max(0, step) for n, step in zip(problem.in_sizes, in_strides[1:], strict=False)]
        self.safe = ((problem.batch - 1) * max(0, in_strides[0]) + sum(steps[:-1])) // k.s_size - (k.reach - 1)
        self.index = index.astype(np.int32)
        self.picks = <const int32_t *>cnp.PyArray_DATA(self.index)
        self.straight_out = k.direct_store and self.lane_step == 1 and self.act.code <= CONVT_LEAKY
        bytes_in = int(np.prod(problem.in_shape)) * k.s_size
        bytes_out = int(np.prod(problem.out_shape)) * k.s_size
        # Pixels that share lines, or are written group by group, are gathered first, where their channels are together and some run
        # writes each of them.
        self.part = self.block
        flat = self.straight_out and self.lane_blocks == 1 and self.out_stride.p[x] == channels and not hole
        some = 8 * self.width
        least = some * problem.strides[x] * channels * k.s_size  # bytes of their outputs
        # Few terms of few rows, whose vectors are stored in the order in which they lie, need that only beyond any cache; what is
        # stored phase by phase or vector by vector bypasses one that would be full of it.
        ordered = flat and self.straight_in and not self.each and self.row_taps <= CONVT_DW_ORDERED and (
            max((len(run.taps) for run in spec["ended"]), default=0) <= CONVT_DW_ORDERED and channels >= k.vl
        ) and self.width == 1 and bytes_in + bytes_out <= ORDERED_BYTES
        scattered = not ordered and bytes_in + bytes_out > (PAST_BYTES // 2 if self.each else PAST_BYTES * 2 // 3)
        # Vectors that are lines, and whole: those of cells, which are of channels that fill none, have shared lines. (Lines written
        # by halves, some time apart, take memory three times as long.)
        full = k.vl * k.t_size >= 64 and not recipe.dots and (self.co * self.each or channels) % k.vl == 0
        if (self.beyond or scattered) and full and self.straight_out and self.width == 1:
            self.past, ordered = self.boundary, ordered and not self.boundary
        shared = self.each or channels * k.t_size % 64
        if self.beyond and not self.past and flat and shared and least <= 16 * STAGE and not ordered:
            self.part = max(1, STAGE // least) * some
            self.staged = self.part * problem.strides[x]
        # (Groups, which multiply more between stores, lose by it with 32 KiB of first-level cache.)
        asks = self.straight_out and not self.staged and not (self.each and L1_BYTES <= 1 << 15)
        if asks and bytes_out > L2_BYTES:
            # What the last level holds well gains nothing; of few registers, which hold the pixels of few channels, even less does.
            self.ahead, self.ordered = AHEAD, ordered and bytes_out > L3_BYTES // (4 if k.vl * k.t_size >= 64 else 2)
        # (Ends need a kernel that reads rows where they lie; and what goes by blocks computes each alone.)
        whole = self.straight_in and self.straight_out and self.row_taps <= CONVT_DW_SOURCES and not (self.each or self.staged)
        self._runs(spec["ended"] if (self.straight_out if self.each else whole) else spec["runs"])
        self.far = bytes_in > FAR_BYTES
        if self.each:
            self._grouped(recipe)
        self.tasks = self.row_blocks * self.blocks * self.lane_blocks
        self.workspace = self._bytes()

    cdef _structures(self, size_t count, size_t bytes):
        """Room for them, kept as long as the plan."""
        array = np.zeros(max(1, count) * bytes, np.uint8)
        self.keep.append(array)
        return array

    cdef _grouped(self, PackRecipe recipe):
        """Where the groups of each vector read, and what it writes."""
        cdef int64_t vectors = recipe.vectors(), vl = self.k.vl
        self.bundle, self.bundles = self.each * self.co, (self.each * self.co + vl - 1) // vl
        v = np.arange(vectors)
        first = v // self.bundles * self.bundle + v % self.bundles * vl
        end = np.minimum((v // self.bundles + 1) * self.bundle, self.lanes)
        # (What a vector has no group for is not stored: any input does.)
        group = np.minimum(v[:, None] // self.bundles * self.each + np.arange(self.each), self.groups - 1)
        self.places = _Table(np.concatenate([(group * self.ci).ravel(), first, np.minimum(end - first, vl)]))
        self.grouped.ci, self.grouped.each = self.ci, self.each
        self.grouped.at = self.places.p
        self.grouped.first = self.places.p + vectors * self.each
        self.grouped.lanes = self.grouped.first + vectors
        self.grouped.w_ld, self.grouped.dots = recipe.ntaps * recipe.tap(), recipe.dots

    cdef _runs(self, runs):
        """The runs and their phases, those of the same j put together if they are stored where they belong."""
        cdef int64_t x = self.nd - 1, pixel = self._pixel()
        cdef convt_dw_term *term
        cdef convt_dw_phase *phase
        cdef convt_dw_phase *first = NULL  # of those that read the same inputs
        self.keep = []
        self.runs = <DepthwiseRun *>cnp.PyArray_DATA(self._structures(len(runs), sizeof(DepthwiseRun)))
        self.phases = <convt_dw_phase *>cnp.PyArray_DATA(self._structures(len(runs), sizeof(convt_dw_phase)))
        term = <convt_dw_term *>cnp.PyArray_DATA(self._structures(sum(len(run.taps) for run in runs), sizeof(convt_dw_term)))
        self.nruns = 0
        before = None
        for n, run in enumerate(runs):
            phase = &self.phases[n]
            reads = [offset for _, offset in run.taps]
            together = self.straight_out and before is not None and (before.start, before.stop) == (run.start, run.stop)
            if not together:
                self.runs[self.nruns] = DepthwiseRun(run.start, run.stop, run.first_out, 0, run.low, run.high, n, 0, run.step)
                self.nruns += 1
                start, near = run, None
            if reads and near is None:  # all others are less than an axis away: no stride and no offset is too large for that
                near = reads[0]
                self.runs[self.nruns - 1].first_in = run.start + near
            self.runs[self.nruns - 1].phases += 1
            if not (together and reads == [offset for _, offset in before.taps[: len(reads)]]):
                first = phase
            first.sharing += 1
            phase.out = (run.first_out - start.first_out) * self.out_stride.p[x]
            phase.term, phase.terms = term, len(reads)
            phase.cut = run.cut
            phase.sliding = self.width == 1 and all(b == a - run.step for a, b in itertools.pairwise(reads))
            for tap, offset in run.taps:
                term.in_ = (offset - near) * pixel + (0 if self.picked or self.each else run.low)
                term.w = tap * (self.recipe.tap() if self.each else self.ci * self.weights_ld) + run.low
                term += 1
            phase.before, phase.after = run.before, run.after
            phase.first, phase.last = run.lacks[0], steps_to(run.stop - run.start, run.step) - run.lacks[1]
            before = run

    cdef int64_t _pixel(self) noexcept nogil:
        """Elements from pixel to pixel of an input row as it is read. Runs that skip step over pixels that there are not: of an axis
        of one pixel the stride may be anything."""
        cdef int64_t x = self.nd - 1
        if not (self.straight_in or self.picked):
            return self.pitch
        return 0 if self.skips and self.in_size.p[x] == 1 else self.in_stride.p[x]

    cdef int64_t _vectors(self, int64_t lanes) noexcept nogil:
        return (lanes + self.k.vl - 1) & ~<int64_t>(self.k.vl - 1)

    cdef size_t _slot(self) noexcept nogil:
        """Bytes of the gathered inputs of a row."""
        return (1 if self.each else self.ci) * self.max_inputs * self.pitch * self.k.t_size

    cdef size_t _bytes(self):
        cdef size_t n = _round64((self.row_taps + 1) * 2 * sizeof(int64_t))  # the row's input offsets and taps
        n += _round64((self.row_taps + 1) * sizeof(DepthwiseInput))
        n += 2 * _round64((self.row_taps + 1) * self.ci * sizeof(void *))  # the row's sources, and their weights
        n += _round64(SCRATCH * self.outs_ld * self.k.t_size)
        n += _round64(self.staged * self.out_stride.p[self.nd - 1] * self.k.t_size)
        if not (self.straight_in or self.picked):
            n += _round64(self.row_taps * self._slot())
        return n

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef int64_t rest = task
        cdef int64_t block = take_index(&rest, self.blocks)
        cdef int64_t l0 = take_index(&rest, self.lane_blocks) * self.lane_block
        cdef int64_t first = rest * self.rows
        cdef DepthwiseInput *kept = <DepthwiseInput *>ws
        ws += _round64((self.row_taps + 1) * sizeof(DepthwiseInput))
        cdef int64_t n
        for n in range(self.row_taps):
            kept[n].used = -1
        for n in range(first, min(self.out_rows, first + self.rows)):
            self.run_row(n, block, l0, min(self.lane_block, self.lanes - l0), call, kept, ws)

    cdef char *gathered(self, int64_t row, int64_t out_row, char *src, const int64_t *map, int64_t cols, int64_t pixels,
                        DepthwiseInput *kept, char *inputs) noexcept nogil:
        """The inputs of the row that starts at ``src``: kept from a row before, or put in the place not used for longest."""
        cdef const convt_kernels *k = self.k
        cdef int64_t n, c, place = 0
        for n in range(self.row_taps):
            if kept[n].used >= 0 and kept[n].row == row:
                kept[n].used = out_row
                return inputs + n * self._slot()
            if kept[n].used < kept[place].used:
                place = n
        kept[place].row, kept[place].used = row, out_row
        inputs += place * self._slot()
        if self.each:  # the channels as they are
            cols = cols // self.co * self.ci
            k.widen(inputs, self.pitch, src, self.in_stride.p[self.nd - 1], self.in_c, <int>pixels, <int>cols, <int>cols)
            return inputs
        for c in range(self.ci):
            k.gather(inputs + c * self.max_inputs * self.pitch * k.t_size, self.pitch, src, self.in_stride.p[self.nd - 1],
                     map + c * self.lanes, <int>pixels, <int>cols, <int>(cols if self.width > 1 else self.pitch))
        return inputs

    cdef void run_row(self, int64_t row, int64_t block, int64_t l0, int64_t cols, const Call *call, DepthwiseInput *kept,
                      char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t t_size = k.t_size
        cdef int64_t weights_ld = self.weights_ld * t_size  # bytes of a row of weights
        cdef int64_t tap_bytes = self.recipe.tap() * t_size if self.each else self.ci * weights_ld  # of all in-channels
        cdef int64_t *row_tap = <int64_t *>ws
        ws += _round64((self.row_taps + 1) * 2 * sizeof(int64_t))
        cdef const void **sources = <const void **>ws  # pixel 0 of each input row and in-channel of a group
        ws += _round64((self.row_taps + 1) * self.ci * sizeof(void *))
        cdef const void **weights = <const void **>ws  # and what it is multiplied with
        ws += _round64((self.row_taps + 1) * self.ci * sizeof(void *))
        cdef char *outs = ws
        ws += _round64(SCRATCH * self.outs_ld * k.t_size)
        cdef char *stage = ws
        ws += _round64(self.staged * self.out_stride.p[x] * t_size)
        cdef char *inputs = ws

        cdef int64_t image, at, n, c
        cdef int64_t count = self.row_inputs(row, row_tap, &image, &at)
        cdef bint room = True
        cdef char *dst = call.dst + at * k.s_size
        cdef int64_t j_lo = self.j0 + block * self.block
        cdef int64_t j_hi = j_lo + self.block
        cdef int64_t i_lo = min(max(0, j_lo - self.max_off), self.in_size.p[x])
        cdef int64_t i_hi = max(i_lo, min(self.in_size.p[x], j_hi - self.min_off))
        cdef int64_t in_ld = self._pixel(), in_c = 0  # elements from pixel to pixel; bytes from in-channel to in-channel
        cdef int64_t channel = l0 // self.co * self.ci if self.each else 0  # of the first lane, among gathered ones
        cdef int per = 1 if self.each else <int>self.ci  # sources of an input row
        if self.picked:
            in_c = self.in_c * t_size
        elif not self.straight_in:
            in_c = self.max_inputs * self.pitch * t_size
        cdef char *source
        cdef char *weight
        for n in range(count):
            at = image + row_tap[2 * n]
            room &= at <= self.safe
            source = call.src + (at if self.picked or self.each else at + l0) * k.s_size
            if not (self.straight_in or self.picked):
                source = self.gathered(at, row, call.src + (at + i_lo * self.in_stride.p[x] + channel * self.in_c) * k.s_size,
                                       self.maps.p + l0, cols, i_hi - i_lo, kept, inputs)
                source -= (i_lo * in_ld + channel) * t_size
            weight = call.weights + row_tap[2 * n + 1] * self.taps_x * tap_bytes + (0 if self.each else l0 * t_size)
            for c in range(per):
                sources[n * per + c] = source + c * in_c
                weights[n * per + c] = weight + c * weights_ld

        cdef convt_dw d
        d.sources = <int>(count * per)
        d.in_, d.w = sources, weights
        d.room, d.apart = room, self.apart
        d.ahead, d.far, d.ordered, d.beside = 0, self.far, self.ordered, 0
        d.stream = self.past and not <size_t>call.dst % self.past
        d.groups, d.skips, d.coming = NULL, self.skips, NULL
        if self.far and self.straight_in and x > 0 and count > 0:
            at = row_tap[0]
            for n in range(1, count):
                at = max(at, row_tap[2 * n])
            # (What is asked for need not be there: it may be beyond the image.)
            d.coming = <char *>(<size_t>call.src + <size_t>((image + at + self.in_stride.p[x - 1] + (0 if self.each else l0)) * k.s_size))
        if self.each:
            d.groups = &self.grouped
            d.v0 = <int>(l0 // self.bundle * self.bundles)
            d.v1 = <int>((l0 + cols + self.bundle - 1) // self.bundle * self.bundles)
        cdef DepthwiseRow part = DepthwiseRow(l0, cols, i_lo, i_hi, in_ld, outs)
        cdef int64_t low, high, stop, pixel = self.out_stride.p[x] * t_size
        while j_lo < j_hi:
            stop = min(j_hi, j_lo + self.part)
            if self.staged:
                low, high = max(0, j_lo * self.stride.p[x] - self.begin), min(self.out_size, stop * self.stride.p[x] - self.begin)
                if low < high:  # the last block may reach beyond the row
                    self.run_part(&d, &part, stage - low * pixel, j_lo, stop, call)
                    copy_past(k, dst + low * pixel, stage, (high - low) * pixel)
            else:
                self.run_part(&d, &part, dst, j_lo, stop, call)
            j_lo = stop
        if d.stream or self.staged:
            k.fence()

    cdef void run_part(self, convt_dw *d, const DepthwiseRow *part, char *dst, int64_t j_lo, int64_t j_hi,
                       const Call *call) noexcept nogil:
        """The j's of a row's part from ``j_lo`` on; output 0 of the row is at ``dst``."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t t_size = k.t_size
        cdef DepthwiseRun *run
        cdef int64_t n, at, start, before, left, pixel, r, low, high, step, at_lane
        cdef int64_t wide  # how many j's make a row of lanes
        cdef void *rows[SCRATCH]
        for n in range(self.nruns):
            run = &self.runs[n]
            before = steps_to(max(0, j_lo - run.start), run.step)  # its j's before these
            start = run.start + before * run.step
            left = steps_to(min(run.stop, j_hi) - start, run.step)
            low, high = max(run.low, part.l0), min(run.high, part.l0 + part.cols)
            if left <= 0 or low >= high:
                continue
            at = run.first_out * self.out_stride.p[x] + low * self.lane_step
            step = 0
            if left > 1 or before > 0:  # else the stride may be anything, and a product with it too
                step = run.step * self.stride.p[x] * self.out_stride.p[x]
                at += before * step
            d.phase, d.phases = &self.phases[run.phase], run.phases
            pixel = run.first_in + start - run.start
            d.from_ = pixel * part.in_ld
            at_lane = 0 if self.groups == 1 else low  # (all are alike; and a cell's first one need not be a vector's)
            d.at = self.maps.p + at_lane if self.picked else NULL
            d.index = self.picks + at_lane if self.picked else NULL
            d.init = call.bias + low * t_size
            d.mask = call.weights + self.recipe.mask + low * t_size
            d.low, d.high = before == 0, j_hi >= run.stop
            d.start = before
            d.low_pixel, d.high_pixel = steps_to(part.i_lo - pixel, run.step), steps_to(part.i_hi - pixel, run.step)
            d.none = <int>(self.whole - low if self.width == 1 else self.width * self.lanes)
            while left > 0:
                wide = min(self.width, left)
                d.n = <int>(left if wide == 1 else convt_quotient(left, wide))
                d.cols = <int>(high - low if wide == 1 else wide * self.lanes)
                d.in_ld = wide * run.step * part.in_ld
                if self.straight_out:
                    d.act = &self.act
                    d.out, d.out_ld = dst + at * t_size, wide * step
                    d.ahead = self.ahead * d.out_ld
                    k.depthwise(d)
                else:
                    d.act = &self.none
                    d.out, d.out_ld = part.outs, self.outs_ld
                    d.n = min(d.n, SCRATCH)
                    k.depthwise(d)
                    for r in range(d.n):
                        rows[r] = dst + (at + r * wide * step) * k.s_size
                    k.store(rows, self.lane_step, part.outs, self.outs_ld, d.n, d.cols, &self.act)
                left -= d.n * wide
                at += d.n * wide * step
                d.from_ += d.n * d.in_ld
                d.start += d.n
                d.low_pixel -= d.n
                d.high_pixel -= d.n


cdef inline int64_t steps_to(int64_t n, int64_t step) noexcept nogil:
    """The first multiple of a step that is n or more, in steps."""
    if step == 1:
        return n
    return convt_quotient(n + step - 1, step) if n > 0 else -convt_quotient(-n, step)
