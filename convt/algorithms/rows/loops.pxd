# The loops of rows: see loops.pyx.

from libc.stdint cimport int64_t

from convt._core cimport Call
from convt.algorithms.row_plan cimport KeptRow, RowPlan
from convt.algorithms.rows.weights cimport RowsRecipe


cdef struct RowOutputs:
    # The outputs of a `RowBlock`: where they are computed and what they read.
    int64_t *phase_row       # [output] row of the region "phase_rows", which has a row per (channel, phase) of a channel block
    Py_ssize_t *shift        # [shift] elements from the start of a packed input row to the input that the first j reads
    int64_t shifts           # number of taps of each output on the last axis


cdef class RowsPlan(RowPlan):
    cdef RowsRecipe recipe
    cdef list keep
    cdef RowOutputs *outputs  # [phase_blocks], equal for all channel blocks
    cdef int64_t channel_blocks, phase_blocks, most_channels  # blocks of phases in a channel block; the most channels of one
    cdef int64_t rows, row_blocks, block, blocks, j0, js  # see schedule.py
    cdef int64_t low_offset, high_offset  # j reads the inputs j - high_offset to j - low_offset
    cdef int64_t begin, out_size  # window of the last axis
    cdef int64_t pitch, pixels  # elements between packed input rows; outputs of a row of "phase_rows"
    cdef int64_t at_taps, at_sources, at_weights, at_phase_rows, at_inputs  # byte offsets of regions of the workspace
    cdef bint stream         # non-temporal stores
    cdef bint in_place       # rows of a single in-channel are read in place if they contain all pixels of the task

    cdef size_t input_row_bytes(self) noexcept nogil
    cdef char *packed_row(self, int64_t row, int64_t out_row, char *src, int64_t first, int64_t last, KeptRow *kept,
                          char *inputs) noexcept nogil
    cdef void run_row(self, int64_t row, int64_t group, int64_t ja, int64_t jb, const Call *call, KeptRow *kept,
                      char *ws) noexcept nogil
