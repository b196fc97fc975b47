# Depthwise's weights: see weights.pyx.

from libc.stdint cimport int64_t

from convt._memory cimport Table
from convt.algorithms.packing cimport PackRecipe


cdef class LaneRecipe(PackRecipe):
    cdef Table taps    # [tap] byte offset in the filter
    cdef int64_t each  # groups that share a vector; 0 where lanes are channels
    cdef Table halves  # [each][lane]: where each of two groups has a lane's weight
    cdef bint dots     # vectors run over in-channels
    cdef bint ready    # the filter lies in memory as its lanes would be packed
    cdef int64_t kernel_x, stride_x, terms  # of the last axis; rows of lanes
    cdef int64_t repeats  # how often a row of lanes holds the channels
    cdef size_t mask   # where the mask of the last row is; 0 where that row is whole

    cdef bint lies_packed(self)
    cdef int64_t padded(self) noexcept nogil
    cdef int64_t tap(self) noexcept nogil
    cdef int64_t vectors(self) noexcept nogil
    cdef void pack_depthwise(self, char *src, char *bsrc, char *dst, char *bdst) noexcept nogil
    cdef void pack_lanes(self, char *src, char *dst) noexcept nogil
    cdef void pack_groups(self, char *src, char *dst) noexcept nogil
    cdef void pack_dots(self, char *src, char *dst) noexcept nogil
