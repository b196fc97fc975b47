# cython: language_level=3
"""The packed weights of turned: operand A of the GEMM, with rows (channel, phase) and depth (tap, in-channel).

There is one packed matrix per class of phases and channel group. Rows are contiguous, at a distance of `lda` elements.
"""

from libc.stdint cimport int64_t
from libc.string cimport memset

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter, all_finite
from convt._run.kernels cimport CONVT_FITS_WEIGHTS, convt_kernels
from convt._run.memory cimport keep_table, odd_line_stride, round64, structures
from convt.algorithms.packing cimport NO_TAP, PackRecipe

from .. import packing

cnp.import_array()


cdef class TurnedRecipe(PackRecipe):
    """The recipe of weights. ``tables`` has an array [phase][tap] of flat kernel taps per class of phases; -1 for a missing
    tap."""

    def __init__(self, str dtype, filter, bias, tables, str unit="vectors"):
        self.open_recipe(dtype, filter, bias, unit)
        cdef const convt_kernels *k = self.k
        cdef TurnedPack *c
        self.keep, self.nclasses = [], len(tables)
        self.classes = <TurnedPack *>cnp.PyArray_DATA(structures(self.keep, self.nclasses, sizeof(TurnedPack)))
        for n, taps in enumerate(tables):
            c = &self.classes[<Py_ssize_t>n]
            c.phases, c.taps = taps.shape
            offsets = packing.tap_bytes(np.maximum(taps, 0), self.shape, self.tap_strides)
            c.offsets = keep_table(self.keep, np.where(taps < 0, NO_TAP, offsets))
            c.lda = odd_line_stride(k, c.taps * self.ci_p)
            c.weights = self.weight_bytes
            c.group_weights = round64(self.co * c.phases * c.lda * k.e_size)
            # A tile may start at any row and reads whole grains of rows, so there is room for grain - 1 rows after the last
            # group.
            self.weight_bytes += self.groups * c.group_weights + round64((k.grain - 1) * c.lda * k.e_size)
            self.jobs += self.groups * c.phases
        self.group_bias = self.co * k.t_size
        self.bias_bytes = self.groups * self.group_bias

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        cdef PackedFilter packed = self.allocate(self.weight_bytes, persistent)
        cdef const convt_kernels *k = self.k
        cdef bint wrong = self.pack_weights(filter, packed, threads)
        if bias is not None:
            k.widen(packed.bias, 0, <char *>cnp.PyArray_DATA(bias), 0, self.bias_stride, 1, <int>(self.groups * self.co),
                    <int>(self.groups * self.co))
        # NaN or infinity times the zeros outside the input must not reach the output: other plans compute filters with these.
        packed.finite = not wrong and all_finite(k, filter, threads)
        return packed

    cdef bint run_job(self, int64_t job, char *src, char *dst, char *stage) noexcept nogil:
        """Pack the rows of a phase of a class and channel group. Return True if E cannot hold all weights."""
        cdef TurnedPack *c = self.classes
        while job >= self.groups * c.phases:
            job -= self.groups * c.phases
            c += 1
        return self.pack_phase(c, job % c.phases, src + job // c.phases * self.sg,
                               dst + c.weights + job // c.phases * c.group_weights)

    cdef bint pack_phase(self, TurnedPack *c, int64_t phase, char *src, char *dst) noexcept nogil:
        """Pack the rows of a phase. Return as `run_job`."""
        cdef const convt_kernels *k = self.k
        cdef int64_t tap, row
        cdef bint wrong = False
        cdef char *at
        for tap in range(c.taps):
            at = dst + (phase * c.lda + tap * self.ci_p) * k.e_size
            if c.offsets[phase * c.taps + tap] == NO_TAP:
                for row in range(self.co):
                    memset(at + row * c.phases * c.lda * k.e_size, 0, self.ci_p * k.e_size)
                continue
            wrong |= CONVT_FITS_WEIGHTS > k.pack(at, c.phases * c.lda, src + c.offsets[phase * c.taps + tap], self.so, self.si,
                                                 <int>self.co, <int>self.ci, <int>self.ci_p)
        return wrong
