# cython: language_level=3
"""Recipes: objects that pack filters into the panels that GEMM tiles read.

A recipe packs filters of one shape, one memory layout and one form, for a unit of the instruction set in use. It makes no copy
of the filter besides the packed one. `PanelRecipe` serves `direct`; the recipes of winograd (points instead of taps) and scatter
(rows instead of panels) extend it. `TableRecipe` runs a table of copies, for depthwise, rows and turned.
"""

from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

cimport numpy as cnp

from collections import Counter
from typing import NamedTuple

import numpy as np

from convt._core cimport PackedFilter, all_finite, kernels_of, run_jobs
from convt._run.kernels cimport CONVT_CHECKS, CONVT_FITS_WEIGHTS, convt_kernels, convt_quotient
from convt._run.memory cimport Buffer, keep_table, one_shot_weights, round64, structures, take_buffer, workspaces

cnp.import_array()

NO_TAP = -2**63  # marks a tap that a phase lacks; not a valid byte offset, which may be negative

cdef enum:
    STAGED_CHANNELS = 16  # in-channels that a transform stages at a time, or a step of depth if that is more
    PACK_JOB_BYTES = 1 << 17  # bytes of packed weights of a job
    PARALLEL_PACK_BYTES = 1 << 18  # up to this many bytes, one thread packs


cdef struct Packing:
    # A recipe, the addresses of filter and packed weights, and the scratch memory of all threads, for `do_job`.
    void *recipe
    char *src
    char *dst
    char *stage


cdef uint64_t do_job(void *given, int64_t job, size_t thread) noexcept nogil:
    """Run a job of a recipe, the last one first: a call begins with the first panels, which are then in the cache."""
    cdef Packing *p = <Packing *>given
    return (<PackRecipe>p.recipe).run_job(
        (<PackRecipe>p.recipe).jobs - 1 - job, p.src, p.dst, p.stage + thread * (<PackRecipe>p.recipe).stage_bytes)


class Copy(NamedTuple):
    """Calls of a kernel that copy a part of the filter, or of the bias, to a packed layout: one call for each index of the loops.

    Offsets and steps are in bytes, strides in elements. A call converts ``rows`` x ``cols`` elements: weights to the type of
    panels, a bias to that of accumulators.
    """

    src: int | None  # offset in the filter; None: the bits of ``cols`` elements are set
    dst: int  # offset in the packed weights
    cols: int
    columns: object = 0  # the stride of columns in the filter, or an array of their offsets
    rows: int = 1
    rs: int = 0  # stride of rows in the filter
    ld: int = 0  # stride of rows in the packed weights
    padded: int = 0  # columns up to this number are set to zero with a stride; with an array, they may be overwritten
    loops: tuple = ()  # up to three of (count, step in the filter, step in the packed weights)


cdef CopyJob *copy_jobs(list keep, copies):
    """Return `Copy`s as structures, which the list ``keep`` keeps alive."""
    cdef CopyJob *jobs = <CopyJob *>cnp.PyArray_DATA(structures(keep, len(copies), sizeof(CopyJob)))
    cdef CopyJob *job = jobs
    cdef int64_t n, first_job = 0
    for src, dst, cols, columns, rows, rs, ld, padded, loops in copies:
        job.ones, job.src, job.dst, job.cols, job.rows, job.rs, job.ld = src is None, src or 0, dst, cols, rows, rs, ld
        job.padded, job.first_job = max(cols, padded), first_job
        if isinstance(columns, np.ndarray):
            job.map = keep_table(keep, columns)
        else:
            job.cs = columns
        for n, (count, src_step, dst_step) in enumerate((*loops, *[(1, 0, 0)] * (3 - len(loops)))):
            job.count[n], job.src_step[n], job.dst_step[n] = count, src_step, dst_step
        first_job += job.count[0]
        job += 1
    return jobs


cdef bint copy(const convt_kernels *k, const CopyJob *job, int64_t first, bint weights, char *src, char *dst) noexcept nogil:
    """Run a `Copy` at an index of its first loop. ``src`` and ``dst`` are the beginnings of the filter and the packed weights.

    Elements become those of panels if they are ``weights``, else those of accumulators. Return True if E cannot hold all weights.
    """
    cdef int64_t second, third
    cdef bint wrong = False
    cdef char *from_
    cdef char *to
    for second in range(job.count[1]):
        from_ = src + job.src + first * job.src_step[0] + second * job.src_step[1]
        to = dst + job.dst + first * job.dst_step[0] + second * job.dst_step[1]
        for third in range(job.count[2]):
            if job.ones:
                memset(to, 0xff, job.cols * k.t_size)
            elif job.map != NULL:
                k.gather(to, job.ld, from_, job.rs, job.map, <int>job.rows, <int>job.cols, <int>job.padded)
            elif weights:
                wrong |= CONVT_FITS_WEIGHTS > k.pack(
                    to, job.ld, from_, job.rs, job.cs, <int>job.rows, <int>job.cols, <int>job.padded)
            else:
                k.widen(to, job.ld, from_, job.rs, job.cs, <int>job.rows, <int>job.cols, <int>job.padded)
            from_ += job.src_step[2]
            to += job.dst_step[2]
    return wrong


cdef class PackRecipe:
    """The base of all recipes: sizes and strides of the filter, bytes of the packed weights and bias.

    ``sg`` (bytes per channel group), ``si`` and ``so`` (elements per in-channel and out-channel) are strides of the filter.
    ``ci_p`` is the number of in-channels, rounded up to whole steps of depth. ``stage_bytes`` is the bytes of scratch memory
    that a thread needs while it packs. ``jobs`` is the number of parts that threads pack independently.
    """

    cdef open_recipe(self, str dtype, filter, bias, str unit):
        """Set sizes and strides from an example filter (groups, ci, co, *kernel) and bias."""
        cdef const convt_kernels *k = kernels_of(dtype, unit)
        self.k = k
        self.groups, self.ci, self.co = filter.shape[0], filter.shape[1], filter.shape[2]
        self.ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        self.sg, self.si, self.so = filter.strides[0], filter.strides[1] // k.s_size, filter.strides[2] // k.s_size
        self.out_channel_stride = self.so
        self.bias_stride = bias.strides[0] // k.s_size if bias is not None else 0
        self.shape, self.tap_strides = filter.shape[3:], np.asarray(filter.strides[3:], np.int64)
        self.ntaps, self.keep = int(np.prod(self.shape)), []

    cdef set_bias(self, copies):
        """Set the `Copy`s that pack a bias."""
        self.bias_jobs, self.nbias_jobs = copy_jobs(self.keep, copies), len(copies)

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        """Return a filter of the recipe's shape and strides as packed weights.

        Unless ``persistent``, the packed weights serve one call, and later one-shot calls reuse their memory. With
        ``on_the_fly`` only the bias is packed: tasks pack weights from the filter, which must therefore not change until the
        call ends.
        """
        raise NotImplementedError

    cdef PackedFilter allocate(self, size_t weight_bytes, bias, bint persistent):
        """Return a PackedFilter with memory for ``weight_bytes`` of weights, and with the packed bias, zeros if it is None."""
        cdef PackedFilter packed = PackedFilter()
        packed.nbytes = round64(self.weight_bytes) + round64(self.bias_bytes)
        packed.memory = take_buffer(
            round64(weight_bytes) + round64(self.bias_bytes), NULL if persistent else one_shot_weights())
        packed.weights, packed.bias = packed.memory.data, packed.memory.data + round64(weight_bytes)
        memset(packed.bias, 0, self.bias_bytes)
        cdef int64_t n, first
        for n in range(self.nbias_jobs if bias is not None else 0):
            for first in range(self.bias_jobs[n].count[0]):
                copy(self.k, self.bias_jobs + n, first, False, <char *>cnp.PyArray_DATA(bias), packed.bias)
        return packed

    cdef bint pack_weights(self, filter, PackedFilter packed, int threads) except -1:
        """Run all jobs, on one thread if they are small. Return whether `run_job` returned True for one."""
        cdef int count = threads if self.weight_bytes > PARALLEL_PACK_BYTES else 1
        cdef Buffer stage = take_buffer(count * self.stage_bytes, workspaces())
        cdef Packing packing
        cdef uint64_t wrong
        packing.recipe, packing.src, packing.dst = <void *>self, <char *>cnp.PyArray_DATA(filter), packed.weights
        packing.stage = stage.data
        with nogil:
            wrong = run_jobs(do_job, self.jobs, count, &packing)
        return wrong != 0

    cdef bint run_job(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Pack a part of the filter at ``src`` to ``dst``. ``stage`` is the thread's scratch memory.

        Return whether some weights are not finite, before or after conversion.
        """
        return False


cdef class TableRecipe(PackRecipe):
    """A recipe that is a table of `Copy`s, ``copies`` of weights and ``biases`` of the bias.

    ``layout`` tells plans where the weights are. If ``has_gaps``, weights that no copy writes must be zero. If ``in_place``,
    filters have the packed layout already, and one-shot calls read them without a copy.
    """

    cdef readonly object layout
    cdef bint has_gaps, in_place
    cdef CopyJob *copies

    def __init__(self, str dtype, filter, bias, layout, copies, biases, weight_bytes, bias_bytes, bint has_gaps=False,
                 bint in_place=False, str unit="vectors"):
        self.open_recipe(dtype, filter, bias, unit)
        self.layout, self.has_gaps, self.in_place = layout, has_gaps, in_place
        self.weight_bytes, self.bias_bytes = weight_bytes, bias_bytes
        self.copies, self.jobs = copy_jobs(self.keep, copies), sum([each.loops[0][0] if each.loops else 1 for each in copies])
        self.set_bias(biases)

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        cdef bint in_place = self.in_place and not persistent, wrong = False
        cdef PackedFilter packed = self.allocate(0 if in_place else self.weight_bytes, bias, persistent)
        if in_place:
            packed.weights = <char *>cnp.PyArray_DATA(filter)
        else:
            if self.has_gaps:
                memset(packed.weights, 0, self.weight_bytes)
            wrong = self.pack_weights(filter, packed, threads)
        # Plans check `finite`, because some multiply zeros outside the input by every weight.
        packed.finite = not wrong and all_finite(self.k, filter, threads)
        return packed

    cdef bint run_job(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Run a copy at an index of its first loop; they are numbered across all copies."""
        cdef CopyJob *each = self.copies
        while job >= each.first_job + each.count[0]:
            each += 1
        return copy(self.k, each, job - each.first_job, True, src, dst)


cdef class PanelRecipe(PackRecipe):
    """The recipe of panels for a GEMM.

    ``classes`` has for each pack class the flat kernel taps [phase][tap], -1 for a tap that a phase lacks. A row of a panel is
    one (tap, in-channel), a column one (phase, out-channel).
    """

    def __init__(self, str dtype, filter, bias, classes, str unit="vectors"):
        self.open_recipe(dtype, filter, bias, unit)
        cdef const convt_kernels *k = self.k
        cdef PackClass *c
        # The check for NaN and infinity reads packed weights, which have the type of the accumulators or are bfloat16.
        self.packed_finite = k.finite if k.e_size == k.s_size else kernels_of("bfloat16" if k.e_size == 2 else "float32").finite
        self.stage_channels = max(<int64_t>STAGED_CHANNELS, <int64_t>k.kstep)
        self.nclasses, biases = len(classes), []
        self.structures = structures(self.keep, self.nclasses, sizeof(PackClass))
        self.classes = <PackClass *>cnp.PyArray_DATA(self.structures)
        offsets = []
        for i, taps in enumerate(classes):
            c = &self.classes[i]
            offsets.append(fill_class(self, c, taps))
            c.weights, c.bias = self.weight_bytes, self.bias_bytes
            self.size_class(c, i)
            c.group_bias = c.npanels * k.nr * k.t_size
            c.first_job = self.jobs
            self.weight_bytes += round64(self.groups * c.group_weights)
            self.bias_bytes += self.groups * c.group_bias
            self.jobs += c.njobs
            # One value per column, and so all channels once for each phase; a single channel has one value for all columns.
            phases, cols = (c.nphases, self.co) if self.co > 1 else (<int64_t>1, c.ncols)
            biases.append(Copy(
                0, c.bias, cols, self.bias_stride if self.co > 1 else 0,
                loops=((self.groups, self.co * self.bias_stride * k.s_size, c.group_bias), (phases, 0, cols * k.t_size)),
            ))
        self.set_bias(biases)
        if CONVT_CHECKS:
            assert_no_tap_twice(offsets, self.shape, self.tap_strides)

    cdef size_class(self, PackClass *c, Py_ssize_t index):
        """Set the bytes of a pack class, and its jobs."""
        cdef const convt_kernels *k = self.k
        c.group_weights = c.npanels * k.nr * c.depth * k.e_size
        cdef int64_t stage = self.stage_channels
        c.job_channels = stage * max(1, PACK_JOB_BYTES * self.ci_p // max(1, stage * c.depth * k.nr * k.e_size))
        c.panel_jobs = max(1, (self.ci + c.job_channels - 1) // c.job_channels)
        c.njobs = self.groups * c.npanels * c.panel_jobs

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        cdef PackedFilter packed = self.allocate(0 if on_the_fly else self.weight_bytes, bias, persistent)
        cdef bint wrong = False
        if on_the_fly:
            packed.source = <char *>cnp.PyArray_DATA(filter)
        else:
            wrong = self.pack_weights(filter, packed, threads)
        # AMX treats subnormal numbers as zero and would lose the bias.
        wrong |= self.k.parts and bias is not None and _subnormal(bias)
        # Plans for weights that are not finite never multiply them by zeros outside the input.
        packed.finite = not wrong and self.is_source_finite(filter, threads)
        return packed

    cdef bint is_source_finite(self, filter, int threads):
        """Check whether the filter is finite, in a recipe whose jobs do not check it."""
        return True

    cdef bint run_job(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Run a job, numbered across all pack classes."""
        cdef PackClass *c = self.classes
        while job >= c.first_job + c.njobs:
            c += 1
        return self.pack_job(c, job - c.first_job, src, dst, stage)

    cdef bint pack_job(self, PackClass *c, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Pack some in-channels of one panel. Return as `run_job`."""
        cdef const convt_kernels *k = self.k
        cdef int64_t g = job // c.panel_jobs // c.npanels, n = job // c.panel_jobs % c.npanels
        cdef int64_t low = job % c.panel_jobs * c.job_channels
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), high = min(self.ci, low + c.job_channels), t
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl
        cdef int64_t last = self.ci_p if high == self.ci else high
        cdef bint wrong = False
        src += g * self.sg
        dst += c.weights + g * c.group_weights + column * c.depth * k.e_size
        for t in range(c.ntaps):
            wrong |= self.pack_tap(c, n, t, low, last, src, dst + (t * self.ci_p + low) * width * k.e_size)
        return wrong

    cdef const char *source_at(self, PackClass *c, int64_t n, int64_t point, int64_t first, char *src) noexcept nogil:
        """Return the address of depth ``first`` of the n-th panel in the filter ``src`` of a channel group, for prefetching.

        In a transformed class it is the address of the last tap of ``point``.
        """
        cdef int64_t t = convt_quotient(first, self.ci_p), low = first - t * self.ci_p
        cdef int64_t *taps
        cdef char *from_
        if n * self.k.nr >= c.ncols:
            return src
        self.piece(c, n * self.k.nr, c.ncols, src, &from_, &taps)
        if c.npoints:
            n = c.start[t * c.npoints + point + 1] - 1
            t = c.window_taps[c.window_start[t] + convt_quotient(c.at[n], self.stage_channels * self.k.nr)]
        return from_ + offset_of(taps[t]) + low * self.si * self.k.s_size

    cdef bint pack_tap(self, PackClass *c, int64_t n, int64_t t, int64_t low, int64_t last, char *src,
                       char *dst) noexcept nogil:
        """Pack in-channels [low, last) of tap ``t`` of the n-th panel to ``dst``. Return as `pack_job`.

        ``src`` is the filter of the channel group.
        """
        cdef const convt_kernels *k = self.k
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), high = min(self.ci, last), count, whole
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl, row = width * k.e_size
        cdef char *from_
        cdef int64_t *taps
        cdef bint wrong = False
        # Set the padding to zero: columns on the right, in-channels of the last step of depth.
        whole = 0 if end - column < width else convt_quotient(high - low, k.kstep) * k.kstep
        if whole < last - low:
            memset(dst + whole * row, 0, (last - low - whole) * row)
        while column < end:
            count = self.piece(c, column, end, src, &from_, &taps)
            wrong |= CONVT_FITS_WEIGHTS > k.pack_b(
                dst, 0, <int>(column % k.nr), from_ + taps[t] + low * self.si * k.s_size, self.si, self.so, <int>(high - low),
                <int>count, <int>width)
            column += count
        return wrong or (not k.parts and not self.packed_finite(dst, (last - low) * row))

    cdef int64_t piece(self, PackClass *c, int64_t column, int64_t end, char *src, char **from_,
                       int64_t **taps) noexcept nogil:
        """Return the number of columns from ``column`` on, below ``end``, of one phase.

        ``from_`` receives the address of the first one without the tap's offset, ``taps`` the tap offsets of its phase.
        """
        cdef int64_t channel = column % self.co
        from_[0] = src + channel * self.so * self.k.s_size
        taps[0] = c.taps + column // self.co * c.ntaps
        return min(self.co - channel, end - column)


cdef fill_class(PanelRecipe recipe, PackClass *c, taps):
    """Set the sizes of a pack class and its places in the filter, from ``taps`` [phase][tap]. Return the byte offsets of these."""
    c.nphases, c.ntaps = taps.shape
    offsets = np.where(taps < 0, NO_TAP, tap_bytes(np.maximum(taps, 0), recipe.shape, recipe.tap_strides))
    c.taps, c.nested = keep_table(recipe.keep, offsets), (taps < 0).any()
    c.ncols, c.depth = c.nphases * recipe.co, c.ntaps * recipe.ci_p
    c.npanels = (c.ncols + recipe.k.nr - 1) // recipe.k.nr
    return offsets


cdef bint pack_depth(PanelRecipe recipe, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src,
                     char *dst) noexcept nogil:
    """Pack ``depth`` of the n-th panel from depth ``first`` on, in whole steps of depth. Return as `PackRecipe.run_job`.

    ``src`` is the filter of the channel group.
    """
    cdef int64_t t = convt_quotient(first, recipe.ci_p), low = first - t * recipe.ci_p, last
    cdef int64_t width = min(recipe.k.nr, (c.ncols - n * recipe.k.nr + recipe.k.vl - 1) // recipe.k.vl * recipe.k.vl)
    cdef bint wrong = False
    while depth:
        last = min(recipe.ci_p, low + depth)
        wrong |= recipe.pack_tap(c, n, t, low, last, src, dst)
        dst += (last - low) * width * recipe.k.e_size
        depth -= last - low
        t, low = t + 1, 0
    return wrong


def _subnormal(bias):
    """Check whether some value of a bias is so small that AMX, which has no subnormal numbers, could lose precision."""
    size = np.abs(bias.astype(np.float32))
    return bool(((size > 0) & (size < 2.0**-102)).any())


cdef int64_t offset_of(int64_t tap) noexcept nogil:
    """Return the byte offset of a tap in the filter, which may be negative; 0 for NO_TAP."""
    return 0 if tap == NO_TAP else tap


def tap_bytes(taps, shape, strides):
    """Return the byte offsets of flat kernel taps in a filter with these strides in bytes."""
    offsets = np.zeros(taps.shape, np.int64)
    # np.unravel_index of NumPy 2.3 and later is wrong from element 8,193 on for taps of shape (n, 1).
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        taps, at = np.divmod(taps, size)
        offsets += at * stride
    return offsets


def outer_taps(shape, strides):
    """Return the byte offsets of the taps of all axes before the last two, and (number, step in bytes) of those of the
    second-last axis."""
    outer, found = max(0, len(shape) - 2), [0]
    for size, stride in zip(shape[:outer], strides[:outer], strict=True):
        found = [at + n * stride for at in found for n in range(size)]
    return found, (shape[outer], strides[outer]) if len(shape) > 1 else (1, 0)


def assert_no_tap_twice(offsets, shape, strides):
    """Assert that the byte offsets of all pack classes are those of taps of the filter, none of them twice."""
    taps = np.zeros(1, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        taps = np.add.outer(taps, np.arange(size) * stride).ravel()
    read = Counter()
    for each in offsets:
        read.update(each[each != NO_TAP].tolist())
    assert not read - Counter(taps.tolist()), "a pack table reads a tap twice, or memory outside the filter"
