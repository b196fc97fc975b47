# C interface of _addition.

cimport numpy as cnp
from libc.stdint cimport int64_t

from convt._run.kernels cimport convt_act, convt_kernels


cdef class Addition:
    cdef const convt_kernels *k
    cdef convt_act act

    cdef void compute(self, char *out, const char *add, int64_t count, int threads) noexcept nogil


cdef class Slopes:
    cdef const convt_kernels *k
    cdef cnp.ndarray slopes
    cdef const double *values

    cdef void compute(self, char *out, int64_t planes, int64_t plane, int threads) noexcept nogil
