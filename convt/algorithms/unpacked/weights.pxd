# The weights of unpacked: see weights.pyx.

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackRecipe


cdef class UnpackedRecipe(PackRecipe):
    cdef readonly bint in_place  # one-shot filters of this layout are read in place
    cdef object filter_layout  # shape and strides of the filter
    cdef int64_t columns       # out-channels of a channel group times taps
    cdef int64_t step_g, step_i   # bytes between channel groups and between in-channels of a copied filter
