# Packed weights of depthwise: see weights.pyx.

from libc.stdint cimport int64_t

from convt._run.memory cimport Table
from convt.algorithms.packing cimport PackRecipe


cdef class LaneRecipe(PackRecipe):
    cdef Table taps    # [tap] byte offset in the filter
    cdef int64_t groups_per_vector  # channel groups that share a vector (1 or 2); 0: lanes are channels
    cdef Table halves  # [groups_per_vector][lane] filter element of a lane's weight, if two groups share a vector
    cdef bint dots     # vectors run over in-channels
    cdef bint already_packed  # the filter has the packed layout already
    # kernel of the last axis; its taps in a row of lanes (cells: the stride, else 1); rows of lanes per other tap and
    # in-channel
    cdef int64_t kernel_x, stride_x, terms
    cdef int64_t repeats  # number of times that a row of lanes holds all channels
    cdef size_t mask   # byte offset of the mask of the last row; 0 if that row has all its taps

    cdef bint is_packed(self)
    cdef int64_t padded_lanes(self) noexcept nogil
    cdef int64_t tap_elements(self) noexcept nogil
    cdef int64_t vector_count(self) noexcept nogil
    cdef void pack_depthwise(self, char *src, char *bsrc, char *dst, char *bdst) noexcept nogil
    cdef void pack_lanes(self, char *src, char *dst) noexcept nogil
    cdef void pack_groups(self, char *src, char *dst) noexcept nogil
    cdef void pack_dots(self, char *src, char *dst) noexcept nogil
