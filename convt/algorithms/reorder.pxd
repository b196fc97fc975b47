# Reordering of filters before they are packed (reorder.pyx).

from libc.stdint cimport int64_t

from convt._kernels cimport convt_kernels
from convt.algorithms.packing cimport PackRecipe


cdef struct Reorder:
    # The arguments of `reorder_part`, one filter for all threads.
    const convt_kernels *k
    char *src
    char *dst
    int64_t groups, ci, co, taps
    int64_t sg, si, so  # strides of group (bytes), in-channel (bytes) and out-channel (elements)
    int64_t parts


cdef class ReorderRecipe(PackRecipe):
    cdef readonly PackRecipe inner
    cdef object dtype
    cdef tuple filter_shape
    cdef Reorder arguments
