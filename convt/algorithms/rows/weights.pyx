# cython: language_level=3
"""Weights of rows: for each block of outputs, and each tap and in-channel that it reads, one after the other."""

from cython.parallel cimport prange
from libc.stdint cimport int64_t

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter, all_finite, note_pool
from convt._kernels cimport convt_kernels
from convt._memory cimport keep_table, round64, structures
from convt.algorithms.packing cimport PackRecipe

from .. import packing

cnp.import_array()

cdef enum:
    PARALLEL_BYTES = 1 << 18  # of packed weights: fewer are packed by one thread


cdef class RowsRecipe(PackRecipe):
    """``blocks`` lists (taps, channels) as rows/cutting.py has them: taps[output][shift] of the last axis, and each output's
    out-channel."""

    def __init__(self, str dtype, filter, bias, blocks):
        self.open_recipe(dtype, filter, bias, "vectors")
        cdef const convt_kernels *k = self.k
        cdef RowBlock *b
        cdef int64_t last = self.shape[len(self.shape) - 1]
        self.outer_taps, self.keep = self.ntaps // last, []
        self.nblocks = len(blocks)
        self.blocks = <RowBlock *>cnp.PyArray_DATA(structures(self.keep, self.nblocks, sizeof(RowBlock)))
        self.shifts = keep_table(self.keep, [taps.shape[1] for taps, _ in blocks])
        outer = np.arange(self.outer_taps)[:, None, None] * last
        for n, (taps, channels) in enumerate(blocks):
            b = &self.blocks[<Py_ssize_t>n]
            b.outputs = len(channels)
            at = packing.tap_bytes(outer + taps.T, self.shape, self.tap_strides) // k.s_size + channels * self.so
            b.map = keep_table(self.keep, at)
            b.channel = keep_table(self.keep, channels * self.bias_stride)
            b.weights, b.bias = self.group_weights, self.group_bias
            self.group_weights += round64(self.outer_taps * self.ci * taps.size * k.t_size)
            self.group_bias += round64(b.outputs * k.t_size)
        self.weight_bytes, self.bias_bytes = self.groups * self.group_weights, self.groups * self.group_bias

    cpdef PackedFilter pack(self, filter, bias, int threads, bint lasting=True, bint on_the_fly=False):
        cdef PackedFilter packed = self.room(self.weight_bytes, lasting)
        cdef char *src = <char *>cnp.PyArray_DATA(filter)
        cdef char *values = <char *>cnp.PyArray_DATA(bias) if bias is not None else NULL
        cdef char *dst = packed.weights
        cdef char *to = packed.bias
        cdef const convt_kernels *k = self.k
        cdef int64_t group
        cdef int count = threads if self.weight_bytes > PARALLEL_BYTES and self.groups > 1 else 1
        if count > 1:
            note_pool()
            for group in prange(self.groups, num_threads=count, nogil=True, schedule="static"):
                self.pack_group(src + group * self.sg, values + group * self.co * self.bias_stride * self.k.s_size if values != NULL
                                else NULL, dst + group * self.group_weights, to + group * self.group_bias)
        else:
            with nogil:
                for group in range(self.groups):
                    self.pack_group(src + group * self.sg, values + group * self.co * self.bias_stride * self.k.s_size
                                    if values != NULL else NULL, dst + group * self.group_weights, to + group * self.group_bias)
        # Zeros beside an input row meet every weight of a tap.
        packed.finite = all_finite(k, filter, threads)
        return packed

    cdef void pack_group(self, char *src, char *bias, char *dst, char *to) noexcept nogil:
        cdef const convt_kernels *k = self.k
        cdef RowBlock *b
        cdef int64_t n, u, t, shifts
        cdef char *at
        for n in range(self.nblocks):
            b, shifts = &self.blocks[n], self.shifts[n]
            for u in range(self.outer_taps):
                at = dst + b.weights + u * self.ci * shifts * b.outputs * k.t_size
                for t in range(shifts):
                    k.gather(at + t * b.outputs * k.t_size, shifts * b.outputs, src, self.si,
                             b.map + (u * shifts + t) * b.outputs, <int>self.ci, <int>b.outputs, <int>b.outputs)
            if bias != NULL:
                k.gather(to + b.bias, 0, bias, 0, b.channel, 1, <int>b.outputs, <int>b.outputs)
