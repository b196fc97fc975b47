# The plan of `direct` (loops.pyx), which WinogradPlan extends.

from libc.stdint cimport int64_t

from convt._core cimport Call, NativePlan
from convt.algorithms.packing cimport PanelRecipe

cdef struct DirectClass

cdef struct DirectRegions:
    # Offsets of the regions of a thread's workspace (schedule.book).
    size_t rows, chunk_inputs, out_rows, sum_rows, reached_rows, reached_counts, coords, next_outside, scratch, sums


cdef class DirectPlan(NativePlan):
    cdef PanelRecipe recipe
    cdef DirectClass *classes
    cdef Py_ssize_t nclasses
    cdef int64_t direct_tasks  # number of tasks of `classes`; a subclass may have more tasks
    cdef bint panel_major  # a panel multiplies all rows of a task before the next panel
    cdef int64_t near_bytes  # weights of a task up to this size stay in L2 beside its rows
    cdef int64_t far_bytes  # larger weights of a channel group do not stay in L2
    cdef size_t tile_non_temporal  # `non_temporal` if register tiles use non-temporal stores, else 0
    cdef list keep  # references to the tables that the structures point into
    cdef int64_t lda  # elements between packed rows
    cdef int64_t max_block
    cdef DirectRegions at

    cdef open_direct(self, problem, PanelRecipe recipe, in_strides, out_strides, execution, classes, tiles)
    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil
