# Weights of rows: see weights.pyx.

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackRecipe


cdef struct RowBlock:
    # Outputs that a micro-kernel computes at a time: (channel, phase), phases fastest, of phases that read the same inputs.
    int64_t outputs          # m_r
    int64_t shifts           # taps of each
    int64_t first, first_bias  # where the filter and the bias have its first out-channel, in elements
    int64_t *map             # [outer tap][shift][output]: where the filter has its weight for in-channel 0, from there on
    int64_t *channel         # [output]: where the bias has its value, likewise
    size_t weights, bias     # where those of the first group start: [outer tap][in-channel][shift][output], T


cdef class RowsRecipe(PackRecipe):
    cdef list keep
    cdef int64_t outer_taps
    cdef int64_t nblocks
    cdef RowBlock *blocks
    cdef size_t group_weights, group_bias

    cdef void pack_group(self, char *src, char *bias, char *dst, char *to) noexcept nogil
