# cython: language_level=3
"""Packed weights: the panels that GEMM tiles read.

A recipe says how filters of one shape and one memory layout are packed for the instruction set in use; `pack` does it. It makes
no copy of the filter beside the packed one. `PanelRecipe` serves direct; winograd (points instead of taps), scatter (rows instead
of panels) and depthwise (lanes) extend these classes in rooms of their own.
"""

from cython.parallel cimport prange, threadid
from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter, all_finite, isa_in_use, kernels_of, note_pool
from convt._kernels cimport CONVT_FITS_WEIGHTS, convt_kernels, convt_quotient
from convt._memory cimport Buffer, keep_table, one_shot_weights, round64, structures, take_buffer, workspaces

cnp.import_array()

NO_TAP = -2**63  # where a phase has no such tap: no byte offset, which may be negative

cdef enum:
    STAGED = 16  # in-channels of a panel that are laid out for the transform at a time, or a step of depth if that is more
    PACK_JOB_BYTES = 1 << 17  # of packed weights that a thread makes at a time
    PARALLEL_PACK_BYTES = 1 << 18  # below this much, one thread packs


cdef class PackRecipe:
    """What all recipes share: sizes and strides of the filter, bytes of the packed weights and bias.

    Strides ``sg`` (group, bytes), ``si`` and ``so`` (in- and out-channel, elements) are the filter's; ``ci_p`` is the in-channels
    in whole steps of depth; ``staged`` is the bytes that a thread needs to lay out weights while it packs.
    """

    cdef open_recipe(self, str dtype, filter, bias, str unit):
        cdef const convt_kernels *k = kernels_of(dtype, unit)
        self.k = k
        self.groups, self.ci, self.co = filter.shape[0], filter.shape[1], filter.shape[2]
        self.ci_p = (self.ci + k.kstep - 1) // k.kstep * k.kstep
        self.sg, self.si, self.so = filter.strides[0], filter.strides[1] // k.s_size, filter.strides[2] // k.s_size
        self.out_channel_stride = self.so
        self.bias_stride = bias.strides[0] // k.s_size if bias is not None else 0
        self.shape, self.tap_strides = filter.shape[3:], np.asarray(filter.strides[3:], np.int64)
        self.ntaps = int(np.prod(self.shape))

    cpdef PackedFilter pack(self, filter, bias, int threads, bint lasting=True, bint on_the_fly=False):
        """Pack a filter of the recipe's shape and strides; into memory of earlier calls, unless it is ``lasting``.

        With ``on_the_fly`` only the bias is packed: the tasks of the call pack the weights that they multiply, so the filter must
        stay as it is until the call is over.
        """
        raise NotImplementedError

    cdef PackedFilter room(self, size_t weight_bytes, bint lasting):
        """A PackedFilter with room for so many bytes of weights and the bias, which is zero."""
        cdef PackedFilter packed = PackedFilter()
        packed.nbytes = round64(self.weight_bytes) + round64(self.bias_bytes)
        packed.memory = take_buffer(round64(weight_bytes) + round64(self.bias_bytes), NULL if lasting else one_shot_weights())
        packed.weights, packed.bias = packed.memory.data, packed.memory.data + round64(weight_bytes)
        memset(packed.bias, 0, self.bias_bytes)
        return packed


cdef class PanelRecipe(PackRecipe):
    """Panels for a GEMM. ``classes`` lists, per pack class, the flat kernel taps as [phase][tap], -1 for none. A row of the class's
    panels is one (tap, in-channel), a column one (phase, out-channel)."""

    def __init__(self, str dtype, filter, bias, classes, str unit="vectors"):
        self.open_recipe(dtype, filter, bias, unit)
        cdef const convt_kernels *k = self.k
        cdef PackClass *c
        # Packed weights are of the accumulators' type, or bfloat16 in pairs.
        self.packed_finite = k.finite if k.e_size == k.s_size else kernels_of("bfloat16" if k.e_size == 2 else "float32").finite
        self.some = max(<int64_t>STAGED, <int64_t>k.kstep)
        self.nclasses, self.keep = len(classes), []
        self.structures = structures(self.keep, self.nclasses, sizeof(PackClass))
        self.classes = <PackClass *>cnp.PyArray_DATA(self.structures)
        for i, taps in enumerate(classes):
            c = &self.classes[i]
            c.nphases, c.ntaps = taps.shape
            offsets = np.where(taps < 0, NO_TAP, tap_bytes(np.maximum(taps, 0), self.shape, self.tap_strides))
            c.taps = keep_table(self.keep, offsets)
            c.ncols, c.depth = c.nphases * self.co, c.ntaps * self.ci_p
            c.nested = (taps < 0).any()
            c.together, c.step = self.co, self.so
            if self.co == 1 and c.nphases > 1 and not c.nested and np.ptp(apart := np.diff(offsets, axis=0)) == 0:
                c.together, c.step = c.nphases, apart[0, 0] // k.s_size
            c.npanels = (c.ncols + k.nr - 1) // k.nr
            c.weights, c.bias = self.weight_bytes, self.bias_bytes
            self.size_class(c, i)
            c.group_bias = c.npanels * k.nr * k.t_size
            c.first_job = self.jobs
            self.weight_bytes += round64(self.groups * c.group_weights)
            self.bias_bytes += self.groups * c.group_bias
            self.jobs += c.njobs

    cdef size_class(self, PackClass *c, Py_ssize_t index):
        """Sets what the class's packed weights take, and its jobs."""
        cdef const convt_kernels *k = self.k
        c.group_weights = c.npanels * k.nr * c.depth * k.e_size
        c.share = self.some * max(1, PACK_JOB_BYTES * self.ci_p // max(1, self.some * c.depth * k.nr * k.e_size))
        c.shares = max(1, (self.ci + c.share - 1) // c.share)
        c.njobs = self.groups * c.npanels * c.shares

    cpdef PackedFilter pack(self, filter, bias, int threads, bint lasting=True, bint on_the_fly=False):
        cdef PackedFilter packed = self.room(0 if on_the_fly else self.weight_bytes, lasting)
        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        cdef char *dst = packed.weights
        cdef int64_t job, wrong = 0  # the last job first: a run begins with what the first jobs make, which then is in the cache
        cdef int count = threads if self.weight_bytes > PARALLEL_PACK_BYTES else 1
        cdef size_t staged = self.staged
        cdef Buffer stage
        if bias is not None:
            self.pack_bias(<char *>cnp.PyArray_DATA(bias), packed.bias)
        if on_the_fly:
            packed.source = src
        elif count > 1:
            stage = take_buffer(count * staged, workspaces())
            note_pool()
            for job in prange(self.jobs, num_threads=count, nogil=True, schedule="dynamic"):
                wrong += self.run_job(self.jobs - 1 - job, src, dst, stage.data + threadid() * staged)
        else:
            stage = take_buffer(staged, workspaces())
            with nogil:
                for job in range(self.jobs):
                    wrong += self.run_job(self.jobs - 1 - job, src, dst, stage.data)
        # AMX knows no subnormal numbers, and would lose such a bias.
        wrong += self.k.parts and bias is not None and _subnormal(bias)
        # NaN or Inf times the zeros outside the input must not reach the output: plans then avoid such zeros.
        packed.finite = not wrong and self.finite_source(filter, threads)
        return packed

    cdef bint finite_source(self, filter, int threads):
        """Whether the filter has no NaN and no Inf, where jobs do not tell."""
        return True

    cdef bint run_job(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        cdef PackClass *c = self.classes
        while job >= c.first_job + c.njobs:
            c += 1
        return self.pack_job(c, job - c.first_job, src, dst, stage)

    cdef bint pack_job(self, PackClass *c, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Some in-channels of a panel. Returns whether some weights are not finite, as they were or as they have become."""
        cdef const convt_kernels *k = self.k
        cdef int64_t g = job // c.shares // c.npanels, n = job // c.shares % c.npanels, low = job % c.shares * c.share
        cdef int64_t column = n * k.nr, end = min(c.ncols, column + k.nr), high = min(self.ci, low + c.share), t
        cdef int64_t width = (end - column + k.vl - 1) // k.vl * k.vl
        cdef int64_t last = self.ci_p if high == self.ci else high
        cdef bint wrong = False
        src += g * self.sg
        dst += c.weights + g * c.group_weights + column * c.depth * k.e_size
        for t in range(c.ntaps):
            wrong |= self.pack_tap(c, n, t, low, last, src, dst + (t * self.ci_p + low) * width * k.e_size)
        return wrong

    cdef void pack_bias(self, char *src, char *dst) noexcept nogil:
        """The bias of every panel; panels lie one behind the other."""
        cdef const convt_kernels *k = self.k
        cdef Py_ssize_t i
        cdef int64_t group, column, count, step = self.bias_stride if self.co > 1 else 0
        cdef PackClass *c
        for i in range(self.nclasses):
            c = self.classes + i
            for group in range(self.groups):
                column = 0
                while column < c.ncols:
                    count = min(c.ncols - column, self.co) if self.co > 1 else c.ncols
                    k.widen(dst + c.bias + group * c.group_bias + column * k.t_size, 0,
                            src + group * self.co * self.bias_stride * k.s_size, 0, step, 1, <int>count, <int>count)
                    column += count

    cdef bint pack_depth(self, PackClass *c, int64_t n, int64_t first, int64_t depth, char *src,
                         char *dst) noexcept nogil:
        """Some depth of a panel of a group whose filter is at ``src``, from ``first`` on and in whole steps; returns what
        `pack_job` does."""
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
        return from_ + offset_of(taps[t]) + low * self.si * self.k.s_size

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
            wrong |= CONVT_FITS_WEIGHTS > k.pack_b(
                dst, 0, <int>(column % k.nr), from_ + taps[t] + low * self.si * k.s_size, self.si, c.step, <int>(high - low),
                <int>count, <int>width)
            column += count
        return wrong or (not k.parts and not self.packed_finite(dst, (last - low) * row))

    cdef int64_t piece(self, PackClass *c, int64_t column, int64_t end, char *src, char **from_, int64_t **taps) noexcept nogil:
        """How many columns from this one on are at even distances; where the first is, and its taps from there."""
        cdef int64_t first = column % c.together
        from_[0] = src + first * c.step * self.k.s_size
        taps[0] = c.taps + column // c.together * c.together // self.co * c.ntaps
        return min(c.together - first, end - column)

def _subnormal(bias):
    """Whether some of a bias is so small that a sum in float32 could be less exact than it."""
    size = np.abs(bias.astype(np.float32))
    return bool(((size > 0) & (size < 2.0**-102)).any())


cdef int64_t offset_of(int64_t tap) noexcept nogil:
    """Bytes from tap 0 to a tap, which may lie before it; 0 for none."""
    return 0 if tap == NO_TAP else tap


def tap_bytes(taps, shape, strides):
    """Byte offsets of flat kernel taps."""
    return np.dot(np.stack(np.unravel_index(taps, shape), -1), strides)
