# cython: language_level=3
"""depthwise's loops: rows of outputs, vectors of channels.

Lanes are channels; in cells, (phase, channel), as they lie in the output, and those of `width` j's together. A task is a stretch of
some output rows.
"""

import itertools

from libc.stdint cimport int32_t, int64_t

cimport numpy as cnp

import numpy as np

from convt._core cimport Call
from convt._kernels cimport convt_dw, convt_dw_phase, convt_dw_term, convt_kernels, convt_quotient
from convt._memory cimport Table, copy_non_temporal, round64, structures
from convt.algorithms.depthwise.weights cimport LaneRecipe
from convt.algorithms.indexing cimport steps_to, take_index
from convt.algorithms.row_plan cimport KeptRow, RowPlan, keep_no_rows, place_of_row

cnp.import_array()


cdef class DepthwisePlan(RowPlan):
    """Runs the phases that depthwise/plan.py lists, row by row."""

    def __init__(self, problem, LaneRecipe recipe, in_strides, out_strides, execution, spec):
        """``spec`` is what depthwise/plan.py decides: tables, blocks, how rows are read and stored."""
        self.open_plan("depthwise", problem, recipe.k, in_strides, out_strides, execution)
        self.recipe, self.even = recipe, True
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, channels = self.groups * self.co
        self.open_rows(spec["outer"])
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
        self.maps = Table([(group * self.ci + c) * self.in_c for c in range(self.ci)])
        # The last element of the input, less what lies between pixel 0 of a row and the end of a pick from its last one.
        steps = [(n - 1) * max(0, step) for n, step in zip(problem.in_sizes, in_strides[1:], strict=False)]
        self.safe = ((problem.batch - 1) * max(0, in_strides[0]) + sum(steps[:len(steps) - 1])) // k.s_size - (k.reach - 1)
        self.index = spec["index"]
        self.permutation = <const int32_t *>cnp.PyArray_DATA(self.index)
        self.contiguous_in, self.contiguous_out, self.permuted = spec["contiguous_in"], spec["contiguous_out"], spec["permuted"]
        self.apart = k.vl // self.co * self.ci * self.in_c if self.permuted and self.groups > 1 and k.vl % self.co == 0 else 0
        self.store_alignment, self.ordered, self.ahead = spec["store_alignment"], spec["ordered"], spec["ahead"]
        self.part, self.staged, self.far = spec["part"], spec["staged"], spec["far"]
        self.converts, self.stream = spec["converts"], spec["stream"]
        self.out_pixel = self.lane_block if self.converts and self.staged else self.out_stride.p[x]
        self._runs(spec["runs"])
        if self.each:
            self._grouped()
        self.tasks = self.row_blocks * self.blocks * self.lane_blocks
        self.workspace = self._bytes()

    cdef _grouped(self):
        """Where the groups of each vector read, and what it writes."""
        cdef int64_t vectors = self.recipe.vectors(), vl = self.k.vl
        self.bundle, self.bundles = self.each * self.co, (self.each * self.co + vl - 1) // vl
        v = np.arange(vectors)
        first = v // self.bundles * self.bundle + v % self.bundles * vl
        end = np.minimum((v // self.bundles + 1) * self.bundle, self.lanes)
        # (What a vector has no group for is not stored: any input does.)
        group = np.minimum(v[:, None] // self.bundles * self.each + np.arange(self.each), self.groups - 1)
        self.places = Table(np.concatenate([(group * self.ci).ravel(), first, np.minimum(end - first, vl)]))
        self.grouped.ci, self.grouped.each = self.ci, self.each
        self.grouped.at = self.places.p
        self.grouped.first = self.places.p + vectors * self.each
        self.grouped.lanes = self.grouped.first + vectors
        self.grouped.w_ld, self.grouped.dots = self.recipe.ntaps * self.recipe.tap(), self.recipe.dots

    cdef _runs(self, runs):
        """The runs and their phases, those of the same j put together if they are stored where they belong."""
        cdef int64_t pixel = self._pixel()
        cdef convt_dw_term *term
        cdef convt_dw_phase *phase
        cdef convt_dw_phase *first = NULL  # of those that read the same inputs
        self.keep = []
        self.runs = <DepthwiseRun *>cnp.PyArray_DATA(structures(self.keep, len(runs), sizeof(DepthwiseRun)))
        self.phases = <convt_dw_phase *>cnp.PyArray_DATA(structures(self.keep, len(runs), sizeof(convt_dw_phase)))
        term = <convt_dw_term *>cnp.PyArray_DATA(structures(self.keep, sum(len(run.taps) for run in runs), sizeof(convt_dw_term)))
        self.nruns = 0
        before = None
        for n, run in enumerate(runs):
            phase = &self.phases[n]
            reads = [offset for _, offset in run.taps]
            together = self.contiguous_out and before is not None and (before.start, before.stop) == (run.start, run.stop)
            if not together:
                self.runs[self.nruns] = DepthwiseRun(
                    run.start, run.stop, run.first_out, 0, run.low, run.high, n, 0, run.step, 0, 0)
                self.nruns += 1
                start, near = run, None
            if reads and near is None:  # all others are less than an axis away: no stride and no offset is too large for that
                near = reads[0]
                self.runs[self.nruns - 1].first_in = run.start + near
            self.runs[self.nruns - 1].phases += 1
            if not (together and reads == [offset for _, offset in before.taps[: len(reads)]]):
                first = phase
            first.sharing += 1
            phase.out = (run.first_out - start.first_out) * self.out_pixel
            phase.term, phase.terms = term, len(reads)
            phase.cut = run.cut
            phase.sliding = self.width == 1 and all(b == a - run.step for a, b in itertools.pairwise(reads))
            for tap, offset in run.taps:
                term.in_ = (offset - near) * pixel + (0 if self.permuted or self.each else run.low)
                term.w = tap * (self.recipe.tap() if self.each else self.ci * self.weights_ld) + run.low
                term += 1
            phase.before, phase.after = run.before, run.after
            self.runs[self.nruns - 1].before = max(self.runs[self.nruns - 1].before, run.before)
            self.runs[self.nruns - 1].after = max(self.runs[self.nruns - 1].after, run.after)
            phase.first, phase.last = run.lacks[0], steps_to(run.stop - run.start, run.step) - run.lacks[1]
            before = run

    cdef int64_t _pixel(self) noexcept nogil:
        """Elements from pixel to pixel of an input row as it is read. Runs that skip step over pixels that there are not: of an axis
        of one pixel the stride may be anything."""
        cdef int64_t x = self.nd - 1
        if not (self.contiguous_in or self.permuted):
            return self.pitch
        return 0 if self.skips and self.in_size.p[x] == 1 else self.in_stride.p[x]

    cdef int64_t _vectors(self, int64_t lanes) noexcept nogil:
        return (lanes + self.k.vl - 1) & ~<int64_t>(self.k.vl - 1)

    cdef size_t _slot(self) noexcept nogil:
        """Bytes of the gathered inputs of a row."""
        return (1 if self.each else self.ci) * self.max_inputs * self.pitch * self.k.t_size

    cdef size_t _bytes(self):
        cdef size_t n = round64((self.row_taps + 1) * 2 * sizeof(int64_t))  # the row's input offsets and taps
        n += round64((self.row_taps + 1) * sizeof(KeptRow))
        n += 2 * round64((self.row_taps + 1) * self.ci * sizeof(void *))  # the row's sources, and their weights
        n += round64(SCRATCH * self.outs_ld * self.k.t_size)
        n += round64(self.staged * self.out_pixel * self.k.t_size)
        if not (self.contiguous_in or self.permuted):
            n += round64(self.row_taps * self._slot())
        return n

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef int64_t rest = task
        cdef int64_t block = take_index(&rest, self.blocks)
        cdef int64_t l0 = take_index(&rest, self.lane_blocks) * self.lane_block
        cdef int64_t first = rest * self.rows
        cdef KeptRow *kept = <KeptRow *>ws
        ws += round64((self.row_taps + 1) * sizeof(KeptRow))
        cdef int64_t n
        keep_no_rows(kept, self.row_taps)
        for n in range(first, min(self.out_rows, first + self.rows)):
            self.run_row(n, block, l0, min(self.lane_block, self.lanes - l0), call, kept, ws)

    cdef char *gathered(self, int64_t row, int64_t out_row, char *src, const int64_t *map, int64_t cols, int64_t pixels,
                        KeptRow *kept, char *inputs) noexcept nogil:
        """The inputs of the row that starts at ``src``: kept from a row before, or put in the place not used for longest."""
        cdef const convt_kernels *k = self.k
        cdef int64_t c
        cdef bint there
        cdef int64_t place = place_of_row(kept, self.row_taps, row, out_row, &there)
        inputs += place * self._slot()
        if there:
            return inputs
        if self.converts:  # the channels as they are
            cols = cols // self.co * self.ci
            if cols == self.pitch == self.in_stride.p[self.nd - 1]:  # of all pixels in a row
                pixels, cols = 1, pixels * cols
            k.widen(inputs, self.pitch, src, self.in_stride.p[self.nd - 1], self.in_c, <int>pixels, <int>cols, <int>cols)
            return inputs
        for c in range(self.ci):
            k.gather(inputs + c * self.max_inputs * self.pitch * k.t_size, self.pitch, src, self.in_stride.p[self.nd - 1],
                     map + c * self.lanes, <int>pixels, <int>cols, <int>(cols if self.width > 1 else self.pitch))
        return inputs

    cdef void run_row(self, int64_t row, int64_t block, int64_t l0, int64_t cols, const Call *call, KeptRow *kept,
                      char *ws) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t t_size = k.t_size
        cdef int64_t weights_ld = self.weights_ld * t_size  # bytes of a row of weights
        cdef int64_t tap_bytes = self.recipe.tap() * t_size if self.each else self.ci * weights_ld  # of all in-channels
        cdef int64_t *row_tap = <int64_t *>ws
        ws += round64((self.row_taps + 1) * 2 * sizeof(int64_t))
        cdef const void **sources = <const void **>ws  # pixel 0 of each input row and in-channel of a group
        ws += round64((self.row_taps + 1) * self.ci * sizeof(void *))
        cdef const void **weights = <const void **>ws  # and what it is multiplied with
        ws += round64((self.row_taps + 1) * self.ci * sizeof(void *))
        cdef char *outs = ws
        ws += round64(SCRATCH * self.outs_ld * k.t_size)
        cdef char *stage = ws
        ws += round64(self.staged * self.out_pixel * t_size)
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
        cdef int64_t channel = l0 // self.co * self.ci if self.each or self.converts else 0  # of the first lane
        cdef int per = 1 if self.each else <int>self.ci  # sources of an input row
        if self.permuted:
            in_c = self.in_c * t_size
        elif not self.contiguous_in:
            in_c = self.max_inputs * self.pitch * t_size
        cdef char *source
        cdef char *weight
        for n in range(count):
            at = image + row_tap[2 * n]
            room &= at <= self.safe
            source = call.src + (at if self.permuted or self.each else at + l0) * k.s_size
            if not (self.contiguous_in or self.permuted):
                source = self.gathered(at, row, call.src + (at + i_lo * self.in_stride.p[x] + channel * self.in_c) * k.s_size,
                                       self.maps.p + l0, cols, i_hi - i_lo, kept, inputs)
                source -= (i_lo * in_ld + (channel if self.each else 0)) * t_size
            weight = call.weights + row_tap[2 * n + 1] * self.taps_x * tap_bytes + (0 if self.each else l0 * t_size)
            for c in range(per):
                sources[n * per + c] = source + c * in_c
                weights[n * per + c] = weight + c * weights_ld

        cdef convt_dw d
        d.sources = <int>(count * per)
        d.in_, d.w = sources, weights
        d.room, d.apart = room, self.apart
        d.ahead, d.far, d.ordered, d.beside = 0, self.far, self.ordered, 0
        d.stream = self.store_alignment and not <size_t>call.dst % self.store_alignment
        d.groups, d.skips, d.coming = NULL, self.skips, NULL
        if self.far and self.contiguous_in and x > 0 and count > 0:
            at = row_tap[0]
            for n in range(1, count):
                at = max(at, row_tap[2 * n])
            # (A prefetched address need not be there: it may be beyond the image.)
            d.coming = <char *>(<size_t>call.src + <size_t>((image + at + self.in_stride.p[x - 1] + (0 if self.each else l0)) * k.s_size))
        if self.each:
            d.groups = &self.grouped
            d.v0 = <int>(l0 // self.bundle * self.bundles)
            d.v1 = <int>((l0 + cols + self.bundle - 1) // self.bundle * self.bundles)
        cdef DepthwiseRow part = DepthwiseRow(l0, cols, i_lo, i_hi, in_ld, outs)
        cdef int64_t low, high, stop
        while j_lo < j_hi:
            stop = min(j_hi, self.part_end(j_lo + self.part))
            if self.staged:
                low, high = max(0, j_lo * self.stride.p[x] - self.begin), min(self.out_size, stop * self.stride.p[x] - self.begin)
                if low < high:  # the last block may reach beyond the row
                    self.run_part(&d, &part, stage - (low * self.out_pixel + (l0 if self.converts else 0)) * t_size, j_lo, stop, call)
                    self.unstage(dst, stage, low, high - low, &part)
            else:
                self.run_part(&d, &part, dst, j_lo, stop, call)
            j_lo = stop
        if d.stream or self.stream or (self.staged and not self.converts):
            k.fence()

    cdef int64_t part_end(self, int64_t stop) noexcept nogil:
        """Where a part ends that could end before j ``stop``: outputs before a run's first j and after its last are those of the
        part that has this j."""
        cdef DepthwiseRun *run
        cdef int64_t n
        for n in range(self.nruns if self.staged else 0):
            run = &self.runs[n]
            if run.start - run.before < stop <= run.start:
                stop = run.start + 1
            elif run.stop <= stop < run.stop + run.after:
                stop = run.stop + run.after
        return stop

    cdef void unstage(self, char *dst, char *stage, int64_t low, int64_t count, const DepthwiseRow *part) noexcept nogil:
        """So many outputs of a row, from ``low`` on, from the stage to where they belong."""
        cdef const convt_kernels *k = self.k
        cdef int64_t pixel = self.out_stride.p[self.nd - 1], cols = part.cols
        dst += low * pixel * k.s_size
        if not self.converts:
            copy_non_temporal(k, dst, stage, count * pixel * k.t_size)
            return
        if cols == self.out_pixel == pixel:  # all in a row
            count, cols = 1, count * cols
        k.narrow(dst + part.l0 * k.s_size, pixel, 1, stage, self.out_pixel, 1, <int>count, <int>cols, self.stream)

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
            at = run.first_out * self.out_pixel + low * self.lane_step
            step = 0
            if left > 1 or before > 0:  # else the stride may be anything, and a product with it too
                step = run.step * self.stride.p[x] * self.out_pixel
                at += before * step
            d.phase, d.phases = &self.phases[run.phase], run.phases
            pixel = run.first_in + start - run.start
            d.from_ = pixel * part.in_ld
            at_lane = 0 if self.groups == 1 else low  # (all are alike; and a cell's first one need not be a vector's)
            d.at = self.maps.p + at_lane if self.permuted else NULL
            d.index = self.permutation + at_lane if self.permuted else NULL
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
                if self.contiguous_out:
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
