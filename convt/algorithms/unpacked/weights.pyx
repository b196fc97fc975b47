# cython: language_level=3
"""The weights of unpacked: one row of (out-channel, tap) per channel group and in-channel, which is IOX order.

A one-shot filter in IOX order is read in place. All other filters are copied to this order.
"""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

cimport numpy as cnp

import numpy as np

from convt._core cimport PackedFilter
from convt._run.kernels cimport convt_kernels
from convt.algorithms.packing cimport PackRecipe

from convt.algorithms import reorder

cnp.import_array()


cdef class UnpackedRecipe(PackRecipe):
    """The recipe of weights in IOX order."""

    def __init__(self, str dtype, filter, bias):
        self.open_recipe(dtype, filter, bias, "vectors")
        self.in_place, self.columns = reorder.memory_order(filter) == reorder.IN_ROWS, self.co * self.ntaps
        self.weight_bytes = self.groups * self.ci * self.columns * self.k.s_size
        self.bias_bytes = self.groups * self.co * self.k.t_size
        self.filter_layout = filter.shape, filter.strides
        self.step_g, self.step_i = self.ci * self.columns * self.k.s_size, self.columns * self.k.s_size

    cpdef PackedFilter pack(self, filter, bias, int threads, bint persistent=True, bint on_the_fly=False):
        cdef bint reads_in_place = self.in_place and not persistent
        cdef PackedFilter packed = self.allocate(0 if reads_in_place else self.weight_bytes, persistent)
        cdef const convt_kernels *k = self.k
        if bias is not None:
            k.widen(packed.bias, 0, cnp.PyArray_DATA(bias), 0, self.bias_stride, 1, <int>(self.groups * self.co),
                    <int>(self.groups * self.co))
        packed.finite = True  # the value does not matter, because no zeros outside the input are multiplied
        if reads_in_place:
            packed.source = <char *>cnp.PyArray_DATA(filter)
            return packed
        shape, strides = self.filter_layout
        rows = np.ascontiguousarray(np.lib.stride_tricks.as_strided(filter, shape, strides))
        memcpy(packed.weights, cnp.PyArray_DATA(rows), self.weight_bytes)
        return packed
