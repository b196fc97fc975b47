# Packed weights of rows: see weights.pyx.

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackRecipe


cdef struct RowBlock:
    # An output block: the outputs (channel, phase), phases fastest, that a micro-kernel computes together. The phases read the
    # same inputs.
    int64_t outputs          # number of outputs, m_r of the micro-kernel
    int64_t shifts           # taps of each output on the last axis
    int64_t first_weight, first_bias  # offsets of its first out-channel in the filter and in the bias, in elements
    int64_t *weight_offsets  # [outer tap][shift][output] offset of the weight of in-channel 0 from `first_weight`, in elements
    int64_t *bias_offsets    # [output] offset of the bias from `first_bias`, in elements
    size_t weights, bias     # byte offsets in a group's packed weights, T [outer tap][in-channel][shift][output], and bias


cdef class RowsRecipe(PackRecipe):
    cdef list keep
    cdef int64_t outer_taps  # taps of the axes before the last
    cdef int64_t nblocks
    cdef RowBlock *blocks    # [channel block][block of phases]
    cdef size_t group_weights, group_bias  # bytes of a channel group

    cdef void pack_bias(self, char *src, char *dst) noexcept nogil
