from .call cimport Call
from .primitive cimport Primitive


cdef class Weights:
    cdef Primitive primitive
    cdef object memory
    cdef long long used  # sequence number of the last use

    cdef bint same_layout(self, Primitive other) noexcept


cdef class BoundWeights:
    cdef Primitive primitive
    cdef Weights weights
    cdef object bias
    cdef list calls  # `Call`s that are not in use

    cdef Call call(self, problem)
