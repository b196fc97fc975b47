# The loops of rows: see loops.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Call
from convt.algorithms.row_plan cimport KeptRow, RowPlan
from convt.algorithms.rows.weights cimport RowsRecipe


cdef struct RowOutputs:
    # The phases of a `RowBlock` of the weights, as the loops see them.
    int64_t *place           # [output]: its row among those of its channel block, (channel, phase)
    Py_ssize_t *shift        # [shift]: from the first input of a task's rows to the one that j = 0 of the task reads
    int64_t shifts


cdef class RowsPlan(RowPlan):
    cdef RowsRecipe recipe
    cdef list keep
    cdef RowOutputs *outputs
    cdef int64_t channel_blocks, per_block, most_channels
    cdef int64_t rows, row_blocks, block, blocks, j0, js
    cdef int64_t low, high   # how far the inputs of a j lie before it, and after
    cdef int64_t begin, out_size
    cdef int64_t pitch, pixels  # elements from row to row of packed inputs, and of outputs
    cdef int64_t at_taps, at_sources, at_weights, at_made, at_inputs  # regions of the workspace
    cdef bint stream
    cdef bint in_place       # rows of a single channel are read where they lie

    cdef size_t slot(self) noexcept nogil
    cdef char *packed_row(self, int64_t row, int64_t out_row, char *src, int64_t first, int64_t last, KeptRow *kept,
                          char *inputs) noexcept nogil
    cdef void run_row(self, int64_t row, int64_t group, int64_t ja, int64_t jb, const Call *call, KeptRow *kept,
                      char *ws) noexcept nogil
