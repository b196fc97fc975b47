# Plans that compute output row by output row: see row_plan.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Plan
from convt._memory cimport Table


cdef struct KeptRow:
    # A place where a task keeps what it made of an input row, for its next output rows.
    int64_t row   # the row's offset in the input
    int64_t used  # the output row that read it last; -1 if there is none


cdef class RowPlan(Plan):
    cdef int64_t out_rows, row_taps  # output rows of the batch; the most input rows that reach one (of the schedule)
    # For each output of each axis but the last, the (tap, input index) pairs that reach it.
    cdef Table outer_out, outer_start, outer_taps

    cdef open_rows(self, problem)
    cdef int64_t row_inputs(self, int64_t row, int64_t *taps, int64_t *src, int64_t *dst) noexcept nogil


cdef void keep_no_rows(KeptRow *kept, int64_t places) noexcept nogil
cdef int64_t place_of_row(KeptRow *kept, int64_t places, int64_t row, int64_t out_row, bint *there) noexcept nogil
