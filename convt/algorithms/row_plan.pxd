# The base class of plans that compute one output row after the other (row_plan.pyx).

from libc.stdint cimport int64_t

from convt._core cimport NativePlan
from convt._run.memory cimport Table


cdef struct KeptRow:
    # A place in which a task keeps a packed input row for its next output rows.
    int64_t row   # offset of the row in the input
    int64_t used  # the output row that read it last; -1 if the place is empty


cdef class RowPlan(NativePlan):
    cdef int64_t out_rows, row_taps  # output rows of the batch; the most input rows that reach one, from the schedule
    # For each output position of each axis except the last, the (tap, input index) pairs that reach it.
    cdef Table outer_out, outer_start, outer_taps

    cdef open_rows(self, problem)
    cdef int64_t row_inputs(self, int64_t row, int64_t *taps, int64_t *src, int64_t *dst) noexcept nogil


cdef void clear_kept_rows(KeptRow *kept, int64_t places) noexcept nogil
cdef int64_t place_of_row(KeptRow *kept, int64_t places, int64_t row, int64_t out_row, bint *is_kept) noexcept nogil
