# Filters put in the order in which they are packed fastest: see reorder.pyx.

from libc.stdint cimport int64_t

from convt._kernels cimport convt_kernels
from convt.algorithms.packing cimport PackRecipe


cdef struct Reorder:
    # A filter that is put in order, as the threads need it.
    const convt_kernels *k
    char *src
    char *dst
    int64_t groups, ci, co, taps
    int64_t sg, si, so  # bytes, bytes and elements
    int64_t parts


cdef class ReorderRecipe(PackRecipe):
    cdef readonly PackRecipe inner
    cdef object dtype
    cdef tuple filter_shape
    cdef Reorder work
