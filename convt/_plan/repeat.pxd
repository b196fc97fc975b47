# Objects that convt keeps for repeated calls: see repeat.pyx.

cimport numpy as cnp
from libc.stdint cimport int64_t

from convt._run.addition cimport Addition
from convt._core cimport PackedFilter, NativePlan


cdef class Kept:
    cdef readonly Py_ssize_t bytes
    cdef readonly list keys
    cdef int64_t last_use


cdef class Form(Kept):
    cdef readonly tuple key
    cdef readonly object recipe, finite
    cdef object packed

    cpdef weights(self)
    cdef use(self)


cdef class PreparedCall(Kept):
    cdef readonly object plan
    cdef readonly Form form
    cdef readonly bint as_chosen  # false if weights that are not finite forced another algorithm
    cdef readonly bint supports_nonfinite  # the plan also supports weights that are not finite
    cdef readonly object fill
    cdef readonly Addition addition
    cdef NativePlan native  # the plan if it is native, None for oneDNN
    cdef cnp.dtype dtype
    cdef tuple shape, strides
    cdef int64_t size  # elements of the output

    cpdef bint suits(self)
    cpdef PreparedCall changed(self, Form form, fill, Addition addition)
    cdef bint matches_input(self, array)
    cdef bint matches_output(self, array)
    cdef bint matches_call(self, data, out, add)
    cdef bint matches_weights(self, filter, bias, out)
    cdef weights(self, filter, bias, int threads)
    cdef compute(self, data, out, packed, bias, int threads, add)
    cdef void add(self, char *out, const char *add, int threads) noexcept nogil
    cdef void touch_all(self) noexcept nogil


cpdef bytes signature(data, int threads, bint adds=*, filter=*, bias=*, str dialect=*, values=*)
