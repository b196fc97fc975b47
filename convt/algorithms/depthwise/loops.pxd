# depthwise's loops: see loops.pyx.

from libc.stdint cimport int32_t, int64_t

from convt._core cimport Call
from convt._kernels cimport convt_dw, convt_dw_groups, convt_dw_phase
from convt._memory cimport Table
from convt.algorithms.depthwise.weights cimport LaneRecipe
from convt.algorithms.row_plan cimport KeptRow, RowPlan

cdef struct DepthwiseRun:
    # One phase, or all of them as one cell; or phases of the same j, which are computed together.
    int64_t start, stop      # absolute j
    int64_t first_out        # output index at j = start
    int64_t first_in         # input index that the first term reads there
    int64_t low, high        # lanes of a j
    int phase, phases        # which of all
    int64_t step             # from each of its j's to the next one
    int before, after        # the most outputs of a phase that belong to it before its first and after its last j


cdef struct PhaseOf:
    # A phase that the window shows, or all of them as one cell.
    int64_t low, high   # its j's
    int64_t offset      # j less the input that its first term reads
    int64_t terms       # taps
    int64_t first_out   # the output at j = low
    int64_t tap         # the first one along the last axis
    int64_t at          # terms of the phases before


cdef struct DepthwisePiece:
    # Outputs of a phase that the same of its terms reach.
    int64_t start, stop   # absolute j
    int64_t phase
    int64_t t0, t1        # of its terms
    int64_t step          # from each of its j's to the next one; 0 where it belongs to another piece
    int before, after     # outputs that belong to it before its first and after its last, each of which has a tap less


cdef struct DepthwiseRow:
    # A task's part of an output row.
    int64_t l0, cols     # lanes
    int64_t i_lo, i_hi   # the input pixels that there are for it
    int64_t in_ld        # elements from one to the next
    char *outs           # room for rows of outputs on their way to the store


cdef enum:
    SCRATCH = 32  # rows of outputs on their way to the store (of schedule.py, too)
    MANY_RUNS = 4096  # above this many, runs are not cut so that phases are computed together


cdef class DepthwisePlan(RowPlan):
    cdef LaneRecipe recipe
    cdef list keep
    cdef DepthwiseRun *runs
    cdef Py_ssize_t nruns
    cdef convt_dw_phase *phases
    cdef PhaseOf *of
    cdef object piece_memory
    cdef DepthwisePiece *pieces
    cdef int64_t npieces, piece_room
    cdef int64_t tap_step, read_step  # taps from term to term of a phase, and input pixels between them
    cdef int64_t at_taps, at_sources, at_weights, at_outs, at_stage, at_inputs  # regions of the workspace
    cdef bint cells, apart_pixels  # outputs are of cells, of which pixels are stored one by one
    cdef int64_t rows, row_blocks  # output rows of a task, and how many such
    cdef int64_t blocks, block, j0, lane_block, lane_blocks
    cdef int64_t lanes, width, lane_step, whole  # lanes of a j, the distance of their outputs; those of the last row of taps
    cdef int64_t pitch  # from j to j of gathered inputs
    cdef int64_t weights_ld, outs_ld  # lanes of a row of weights, and of a row of outputs on their way to the store
    cdef int64_t taps_x, max_inputs, max_off
    cdef Table maps  # [ci][lanes]: offset of each lane's in-channel
    cdef int32_t *permutation  # [lanes]: its distance from that of the first lane of its vector
    cdef bint permuted   # inputs are permuted where they lie
    cdef int64_t each  # of `grouped`; 0 where lanes are channels
    cdef convt_dw_groups grouped
    cdef Table places  # for these
    cdef int64_t bundle, bundles  # the lanes of `each` groups, and their vectors
    cdef int64_t apart  # elements between the inputs of vectors that are alike; 0 where they are not
    cdef int64_t safe  # pixel 0 of an input row no further than this: beyond the row there is as much again as a pick reads
    cdef bint contiguous_in, contiguous_out
    cdef bint skips  # runs may read outside the input
    cdef int64_t ahead
    cdef bint ordered  # outputs are written in order
    cdef bint far  # inputs do not stay in L2
    cdef size_t store_alignment  # that the output must have for non-temporal stores; 0 for ordinary stores
    cdef int64_t part  # j's that are computed at a time
    cdef int64_t staged  # outputs that are gathered before they are rounded, or non-temporal stores write them; 0 where none are
    cdef bint converts  # elements are of 16 bits: rows are widened as they are first read, outputs rounded from the stage
    cdef bint stream  # by non-temporal stores
    cdef int64_t out_pixel  # elements from output to output of a row, as kernels write it
    cdef int64_t begin, out_size  # of the last axis

    cdef _lanes(self)
    cdef _grouped(self)
    cdef _runs(self, problem, bint ends, int64_t step)
    cdef int64_t _phases(self, problem)
    cdef int64_t _cut(self, int64_t first, int64_t last, int64_t *cuts) noexcept nogil
    cdef _pieces(self, int64_t first, int64_t last, const int64_t *cuts, int64_t count, int64_t step)
    cdef _add(self, int64_t start, int64_t stop, int64_t phase, int64_t t0, int64_t t1, int64_t step)
    cdef _join_ends(self, int64_t nphases, const int64_t *cuts, int64_t count)
    cdef int64_t _reads(self, const DepthwisePiece *piece) noexcept nogil
    cdef _fill(self, int64_t nphases)
    cdef int64_t _pixel(self) noexcept nogil
    cdef int64_t _vectors(self, int64_t lanes) noexcept nogil
    cdef size_t _slot(self) noexcept nogil
    cdef char *gathered(self, int64_t row, int64_t out_row, char *src, const int64_t *map, int64_t cols, int64_t pixels,
                        KeptRow *kept, char *inputs) noexcept nogil
    cdef void run_row(self, int64_t row, int64_t block, int64_t l0, int64_t cols, const Call *call, KeptRow *kept,
                      char *ws) noexcept nogil
    cdef void run_part(self, convt_dw *d, const DepthwiseRow *part, char *dst, int64_t j_lo, int64_t j_hi,
                       const Call *call) noexcept nogil
    cdef int64_t part_end(self, int64_t stop) noexcept nogil
    cdef void unstage(self, char *dst, char *stage, int64_t low, int64_t count, const DepthwiseRow *part) noexcept nogil
