# cython: language_level=3
"""unpacked's weights: for each in-channel a row, of the taps of each out-channel.

A filter whose rows are contiguous is read where it lies, if it comes with a call. Others are copied.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter
from convt._kernels cimport convt_kernels
from convt.algorithms.packing cimport PackRecipe

from convt.algorithms import reorder

cnp.import_array()


cdef class UnpackedRecipe(PackRecipe):
    """``in_place`` says whether a call's filter is read where it lies."""

    def __init__(self, str dtype, filter, bias):
        self.open_recipe(dtype, filter, bias, "vectors")
        self.in_place, self.columns = reorder.lies(filter) == reorder.IN_ROWS, self.co * self.ntaps
        self.weight_bytes = self.groups * self.ci * self.columns * self.k.s_size
        self.bias_bytes = self.groups * self.co * self.k.t_size
        self.order = filter.shape, filter.strides
        self.step_g, self.step_i = self.ci * self.columns * self.k.s_size, self.columns * self.k.s_size

    cpdef PackedFilter pack(self, filter, bias, int threads, bint lasting=True, bint on_the_fly=False):
        cdef bint reads = self.in_place and not lasting
        cdef PackedFilter packed = self.room(0 if reads else self.weight_bytes, lasting)
        cdef const convt_kernels *k = self.k
        if bias is not None:
            k.widen(packed.bias, 0, cnp.PyArray_DATA(bias), 0, self.bias_stride, 1, <int>(self.groups * self.co),
                    <int>(self.groups * self.co))
        packed.finite = True  # no product is of a zero beside the input
        if reads:
            packed.source = <char *>cnp.PyArray_DATA(filter)
            return packed
        shape, strides = self.order
        rows = np.ascontiguousarray(np.lib.stride_tricks.as_strided(filter, shape, strides))
        memcpy(packed.weights, cnp.PyArray_DATA(rows), self.weight_bytes)
        return packed
