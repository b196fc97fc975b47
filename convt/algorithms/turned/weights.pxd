# Weights of the GEMM turned round: see weights.pyx.

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackRecipe


cdef struct TurnedPack:
    # A class's operand A: rows (channel, phase), depth (tap, in-channel).
    int64_t phases, taps
    int64_t *offsets         # [phase][tap] byte offset in the filter, NO_TAP where a phase has none
    int64_t lda
    size_t weights, group_weights


cdef class TurnedRecipe(PackRecipe):
    cdef list keep
    cdef int64_t nclasses
    cdef TurnedPack *classes
    cdef size_t group_bias

    cdef bint pack_phase(self, TurnedPack *c, int64_t phase, char *src, char *dst) noexcept nogil
