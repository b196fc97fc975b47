# Packed weights of turned: see weights.pyx.

from libc.stdint cimport int64_t

from convt.algorithms.packing cimport PackRecipe


cdef struct TurnedPack:
    # Operand A of a class: rows are (channel, phase), depth is (tap, in-channel).
    int64_t phases, taps
    int64_t *offsets         # [phase][tap] byte offset in the filter; NO_TAP if the phase lacks the tap
    int64_t lda              # elements between rows
    size_t weights, group_weights  # byte offset in the packed weights; bytes of a channel group


cdef class TurnedRecipe(PackRecipe):
    cdef list keep
    cdef int64_t nclasses
    cdef TurnedPack *classes
    cdef size_t group_bias

    cdef bint pack_phase(self, TurnedPack *c, int64_t phase, char *src, char *dst) noexcept nogil
