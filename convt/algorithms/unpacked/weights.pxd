# unpacked's weights: see weights.pyx.

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackRecipe


cdef class UnpackedRecipe(PackRecipe):
    cdef readonly bint in_place
    cdef object order          # shape and strides of the filter
    cdef int64_t columns
    cdef int64_t step_g, step_i   # bytes from group to group and from in-channel to in-channel
