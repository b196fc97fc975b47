# The loops of depthwise: see loops.pyx.

from libc.stdint cimport int32_t, int64_t

from convt._core cimport Call
from convt._kernels cimport convt_dw, convt_dw_groups, convt_dw_phase
from convt._memory cimport Table
from convt.algorithms.depthwise.weights cimport LaneRecipe
from convt.algorithms.row_plan cimport KeptRow, RowPlan

cdef struct DepthwiseRun:
    # A run of j of one phase, of a cell, or of several phases that are computed together because they have the same j.
    int64_t start, stop      # range of j, counted from the start of the full scatter
    int64_t first_out        # output index at j = start
    int64_t first_in         # input index that the first term reads at j = start
    int64_t low, high        # range of lanes of a j
    int phase, phases        # first entry in DepthwisePlan.phases, and number of entries
    int64_t step             # distance of consecutive j of the run
    int before, after        # the most outputs of a phase before the first j and after the last j that belong to the run


cdef struct ShownPhase:
    # A phase that the window shows, or the cell of all phases.
    int64_t low, high   # range of j
    int64_t offset      # j minus the input index that the first term reads
    int64_t terms       # number of taps
    int64_t first_out   # output index at j = low
    int64_t tap         # first tap on the last axis
    int64_t first_term  # number of terms of the preceding phases


cdef struct DepthwisePiece:
    # A range of outputs of a phase that the same terms reach.
    int64_t start, stop   # range of j, counted from the start of the full scatter
    int64_t phase
    int64_t t0, t1        # range of terms of the phase
    int64_t step          # distance of consecutive j; 0: the piece was joined to another piece
    int before, after     # outputs joined before the first j and after the last j; each has one term less than the one inside


cdef struct DepthwiseRow:
    # The part of an output row that a task computes.
    int64_t l0, cols     # first lane and number of lanes
    int64_t i_lo, i_hi   # range of input pixels that it reads
    int64_t in_ld        # elements between input pixels
    char *outs           # room for SCRATCH rows of outputs before they are stored


cdef enum:
    SCRATCH = 32  # rows of outputs that a task holds before it stores them with strides (equal to SCRATCH of schedule.py)
    MANY_RUNS = 4096  # the most runs for which phases are cut at the same j, so that they are computed together


cdef class DepthwisePlan(RowPlan):
    cdef LaneRecipe recipe
    cdef list keep
    cdef DepthwiseRun *runs
    cdef Py_ssize_t nruns
    cdef convt_dw_phase *phases
    cdef ShownPhase *shown_phases  # [phase that the window shows]
    cdef object piece_memory  # owner of `pieces`
    cdef DepthwisePiece *pieces
    cdef int64_t npieces, piece_room
    cdef int64_t tap_step, read_step  # distance of consecutive terms of a phase, in taps and in input pixels
    cdef int64_t at_taps, at_sources, at_weights, at_outs, at_stage, at_inputs  # byte offsets of regions of the workspace
    cdef bint cells, separate_pixels  # lanes are cells; the pixels of a cell are stored one by one
    cdef int64_t rows, row_blocks  # output rows of a task; number of such parts
    cdef int64_t blocks, block, j0, lane_block, lane_blocks  # see schedule.py
    # lanes of a j; j of a cell; elements between the outputs of adjacent lanes; lanes of the last row of taps that have a tap
    cdef int64_t lanes, width, lane_step, last_row_lanes
    cdef int64_t pitch  # elements between consecutive j of gathered inputs
    cdef int64_t weights_ld, outs_ld  # lanes of a row of weights, and of a row of outputs in the region "outs"
    # rows of lanes per tap of the other axes; the most input pixels of a task; the largest j minus input index of a tap
    cdef int64_t taps_x, max_inputs, max_off
    cdef Table maps  # [ci][lanes] offset of each lane's in-channel in a pixel, in elements
    cdef int32_t *permutation  # [lanes] difference of this offset from that of the first lane of the vector
    cdef bint permuted   # inputs are permuted while they are loaded
    cdef int64_t groups_per_vector  # channel groups that share a vector in `group_layout`; 0: lanes are channels
    cdef convt_dw_groups group_layout
    cdef Table group_tables  # the tables of `group_layout`
    cdef int64_t bundle_lanes, bundle_vectors  # lanes of `groups_per_vector` groups, and vectors of these lanes
    cdef int64_t vector_step  # elements between the inputs of consecutive vectors if all distances are equal; else 0
    # the last offset of an input row, in elements, from which permuted loads of the row stay within the array
    cdef int64_t last_safe_offset
    cdef bint contiguous_in, contiguous_out  # inputs are read in place; kernels write to the output or to the stage
    cdef bint skips_outside  # runs may read outside the input
    cdef int64_t prefetch_j  # outputs are prefetched this many j before they are stored
    cdef bint ordered  # outputs are written in memory order
    cdef bint far  # inputs do not stay in L2
    cdef size_t store_alignment  # bytes to which outputs must be aligned for non-temporal stores; 0: ordinary stores
    cdef int64_t part  # number of j that are computed at a time
    cdef int64_t staged_outputs  # outputs that are gathered before rounding or non-temporal copies; 0: stored directly
    cdef bint is_16_bit  # 16-bit elements: rows are widened when they are first read, outputs are rounded from the stage
    cdef bint streams_rounded  # non-temporal stores write the rounded outputs
    cdef int64_t out_pixel  # elements between adjacent outputs of a row, as kernels write it
    cdef int64_t begin, out_size  # window of the last axis

    cdef _fill_lane_tables(self)
    cdef _fill_group_layout(self)
    cdef _make_runs(self, problem, bint ends, int64_t step)
    cdef int64_t _list_phases(self, problem)
    cdef int64_t _find_cuts(self, int64_t first, int64_t last, int64_t *cuts) noexcept nogil
    cdef _cut_phases(self, int64_t first, int64_t last, const int64_t *cuts, int64_t count, int64_t step)
    cdef _add_pieces(self, int64_t start, int64_t stop, int64_t phase, int64_t t0, int64_t t1, int64_t step)
    cdef _join_ends(self, int64_t nphases, const int64_t *cuts, int64_t count)
    cdef int64_t _first_read(self, const DepthwisePiece *piece) noexcept nogil
    cdef _fill_tables(self, int64_t nphases)
    cdef int64_t _pixel_step(self) noexcept nogil
    cdef int64_t _padded_lanes(self, int64_t lanes) noexcept nogil
    cdef size_t _gathered_row_bytes(self) noexcept nogil
    cdef char *gathered_row(self, int64_t row, int64_t out_row, char *src, const int64_t *map, int64_t cols, int64_t pixels,
                            KeptRow *kept, char *inputs) noexcept nogil
    cdef void run_row(self, int64_t row, int64_t block, int64_t l0, int64_t cols, const Call *call, KeptRow *kept,
                      char *ws) noexcept nogil
    cdef void run_part(self, convt_dw *d, const DepthwiseRow *part, char *dst, int64_t j_lo, int64_t j_hi,
                       const Call *call) noexcept nogil
    cdef int64_t part_end(self, int64_t stop) noexcept nogil
    cdef void write_stage(self, char *dst, char *stage, int64_t low, int64_t count, const DepthwiseRow *part) noexcept nogil
