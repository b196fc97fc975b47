# cython: language_level=3
"""The plan of depthwise and its loops: output rows, with vectors over channels.

Lanes are channels. For cells, lanes are (j, phase, channel) in the order of the output, for ``width`` values of j.

A task is a block of j, a lane block and some output rows; only this task writes their outputs. It loops over output rows,
parts of the block of j, and runs. For each run one kernel call sums all input rows and taps. Regions of the workspace: "kept",
"inputs" (gathered input rows, kept for later output rows), "taps", "sources", "weights" (the input rows of an output row),
"stage" (outputs before rounding or a non-temporal copy) and "outs" (outputs before a store with strides).
"""

import math

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport qsort
from libc.string cimport memcpy

cimport numpy as cnp

import numpy as np

from convt._core cimport Call
from convt._run.kernels cimport (
    CONVT_DW_TERMS,
    convt_dw,
    convt_dw_groups,
    convt_dw_phase,
    convt_dw_term,
    convt_kernels,
    convt_quotient,
)
from convt._run.memory cimport Table, copy_non_temporal, round64, structures
from convt.algorithms.depthwise.weights cimport LaneRecipe
from convt.algorithms.indexing cimport ceil_quotient, take_index
from convt.algorithms.row_plan cimport KeptRow, RowPlan, clear_kept_rows, place_of_row

cnp.import_array()


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


cdef int by_value(const void *a, const void *b) noexcept nogil:
    """Compare two int64_t for qsort, in ascending order."""
    cdef int64_t x = (<const int64_t *>a)[0], y = (<const int64_t *>b)[0]
    return (x > y) - (x < y)


cdef inline int64_t floor_of(int64_t n, int64_t divisor) noexcept nogil:
    """Return a quotient rounded down. The divisor is positive."""
    return convt_quotient(n, divisor) if n >= 0 else -convt_quotient(divisor - 1 - n, divisor)


cdef class DepthwisePlan(RowPlan):
    """The plan of a `Schedule` of depthwise/schedule.py."""

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

    def __init__(self, schedule, LaneRecipe recipe, in_strides, out_strides, execution):
        problem = schedule.problem
        self.open_plan("depthwise", problem, recipe.k, in_strides, out_strides, execution)
        self.recipe, self.equal_tasks, self.keep = recipe, True, []
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1, channels = self.groups * self.co, n
        self.open_rows(problem)
        self.row_taps, self.rows = schedule.row_taps, schedule.rows
        self.row_blocks = (self.out_rows + self.rows - 1) // self.rows
        self.block, self.blocks, self.j0 = schedule.block, schedule.blocks, schedule.j0
        self.groups_per_vector = recipe.groups_per_vector
        self.width, self.cells = max(1, schedule.form[0]), schedule.form[0] > 0
        self.begin, self.out_size = problem.begin[x], problem.out_sizes[x]
        self.lanes, self.lane_block = schedule.lanes, schedule.lane_block
        self.lane_blocks = (self.lanes + self.lane_block - 1) // self.lane_block
        self.lane_step = 1 if self.cells else self.out_c
        self.taps_x = recipe.terms
        self.last_row_lanes = (recipe.kernel_x - (recipe.terms - 1) * recipe.stride_x) * channels
        self.skips_outside, self.contiguous_out = schedule.skips_outside, schedule.in_registers
        self.contiguous_in, self.permuted = schedule.reads == "as they are", schedule.reads == "permuted"
        # The pixels of a cell are stored one by one if they are not contiguous in the output.
        self.separate_pixels = self.cells and not (self.out_stride.p[x] == channels and (channels == 1 or self.out_c == 1))
        self.pitch = self.lanes if self.width > 1 else self._padded_lanes(self.lane_block)
        if self.groups_per_vector:
            self.pitch = self.lane_block // self.co * self.ci
        self.weights_ld = self._padded_lanes(self.width * self.lanes)
        self.outs_ld = self._padded_lanes(self.width * self.lane_block)
        self.max_off = problem.dilations[x] * (problem.kernel[x] - 1) // problem.strides[x]
        self.max_inputs = min(self.block + self.max_off + 1, max(1, self.in_size.p[x]))
        self._fill_lane_tables()
        # From pixel 0 of a row, a permuted load may read `reach` - 1 elements more than the row has.
        self.last_safe_offset = (self.batch - 1) * max(0, self.in_n) - (k.reach - 1)
        for n in range(x):
            self.last_safe_offset += (self.in_size.p[n] - 1) * max(0, self.in_stride.p[n])
        self.vector_step = 0
        if self.permuted and self.groups > 1 and k.vl % self.co == 0:
            self.vector_step = k.vl // self.co * self.ci * self.in_c
        self.store_alignment, self.ordered, self.prefetch_j = schedule.non_temporal, schedule.ordered, schedule.prefetch_j
        self.part, self.staged_outputs, self.far = schedule.part, schedule.staged_outputs, schedule.far
        self.is_16_bit, self.streams_rounded = schedule.is_16_bit, schedule.streams_rounded
        self.out_pixel = self.lane_block if self.is_16_bit and self.staged_outputs else self.out_stride.p[x]
        self._make_runs(problem, schedule.joins_ends, schedule.step)
        if self.groups_per_vector:
            self._fill_group_layout()
        self.tasks = self.row_blocks * self.blocks * self.lane_blocks
        regions = {name: at for name, at, _ in schedule.workspace.regions}
        self.at_taps, self.at_sources, self.at_weights = regions["taps"], regions["sources"], regions["weights"]
        self.at_outs, self.at_stage, self.at_inputs = regions["outs"], regions["stage"], regions.get("inputs", 0)
        self.workspace = schedule.workspace.bytes

    cdef _fill_lane_tables(self):
        """Fill the tables `maps` and `permutation`."""
        cdef int64_t channels = self.groups * self.co, lane, c, vl = self.k.vl
        self.maps = Table(np.empty(self.ci * self.lanes, np.int64))
        for lane in range(self.lanes):
            for c in range(self.ci):
                self.maps.p[c * self.lanes + lane] = (lane % channels // self.co * self.ci + c) * self.in_c
        self.permutation = <int32_t *>cnp.PyArray_DATA(structures(self.keep, self._padded_lanes(self.lanes), sizeof(int32_t)))
        for lane in range(self._padded_lanes(self.lanes) if self.permuted else 0):
            self.permutation[lane] = <int32_t>(self.maps.p[min(lane, self.lanes - 1)] - self.maps.p[lane - lane % vl])

    cdef _fill_group_layout(self):
        """Fill `group_layout`: the groups that each vector reads, and the lanes that it writes."""
        cdef int64_t vectors = self.recipe.vector_count(), vl = self.k.vl, groups = self.groups_per_vector, v, r, first, stop
        self.bundle_lanes, self.bundle_vectors = groups * self.co, (groups * self.co + vl - 1) // vl
        self.group_tables = Table(np.empty(vectors * (groups + 2), np.int64))
        cdef int64_t *at = self.group_tables.p
        for v in range(vectors):
            for r in range(groups):  # lanes beyond the last group read the last group, and are not stored
                at[v * groups + r] = min(v // self.bundle_vectors * groups + r, self.groups - 1) * self.ci
            first = v // self.bundle_vectors * self.bundle_lanes + v % self.bundle_vectors * vl
            at[vectors * groups + v] = first
            stop = min((v // self.bundle_vectors + 1) * self.bundle_lanes, self.lanes)
            at[vectors * (groups + 1) + v] = min(stop - first, vl)
        self.group_layout.ci, self.group_layout.groups_per_vector = self.ci, self.groups_per_vector
        self.group_layout.group_offset = at
        self.group_layout.first = at + vectors * self.groups_per_vector
        self.group_layout.lanes = self.group_layout.first + vectors
        self.group_layout.w_ld, self.group_layout.dots = self.recipe.ntaps * self.recipe.tap_elements(), self.recipe.dots

    cdef _make_runs(self, problem, bint ends, int64_t step):
        """Divide the outputs of a row into runs: outputs of a phase or a cell that the same taps reach, at every ``step``-th j.

        Runs of the same j are computed together. With ``ends``, outputs at the ends of the longest run that lack some of its
        taps belong to that run.
        """
        cdef int64_t nphases = self._list_phases(problem), i, start, stop, most = 0, terms = 0, count
        cdef bint aligned = ends, together
        cdef ShownPhase *phase
        self.npieces = self.piece_room = 0
        for i in range(nphases):
            phase = &self.shown_phases[i]
            most, terms = max(most, phase.terms), terms + phase.terms
            start, stop = (phase.low, phase.high) if i == 0 else (min(start, phase.low), max(stop, phase.high))
        if self.skips_outside:  # a phase is one run; all phases are one run if each has all j but the first and the last
            for i in range(nphases):
                aligned = aligned and self.shown_phases[i].low <= start + 1 and self.shown_phases[i].high >= stop - 1
            for i in range(nphases):
                phase = &self.shown_phases[i]
                if aligned:
                    self._add_pieces(start, stop, i, 0, phase.terms, step)
                else:
                    self._add_pieces(phase.low, phase.high, i, 0, phase.terms, step)
        else:
            cuts = Table(np.empty(2 * (terms + nphases) + 2, np.int64))
            count = self._find_cuts(0, nphases, cuts.p)
            # All phases are cut at the cuts of each phase, unless that makes far more runs.
            together = count * nphases <= max(<int64_t>MANY_RUNS, 4 * terms)
            for i in range(0, nphases, max(1, nphases) if together else 1):
                if not together:
                    count = self._find_cuts(i, i + 1, cuts.p)
                self._cut_phases(i, nphases if together else i + 1, cuts.p, count, step)
            if ends and together and 0 < most <= CONVT_DW_TERMS:
                self._join_ends(nphases, cuts.p, count)
        self._fill_tables(nphases)

    cdef int64_t _list_phases(self, problem):
        """List the phases that have taps and outputs in the window, or the cell of all phases, in the order of their outputs.

        If n phases have taps, tap t of the filter is term t // n of phase t % n. A term reads ``read_step`` pixels before the
        input of the previous term of the phase. Return the number of phases.
        """
        x = problem.rank - 1
        k, s, d, begin = problem.kernel[x], problem.strides[x], problem.dilations[x], problem.begin[x]
        out = problem.out_sizes[x]
        if self.cells:
            self.tap_step = self.read_step = 1
            table = Table([[begin // s, -(-(begin + out) // s), 0, self.recipe.terms, begin // s * s - begin, 0, 0]])
        else:
            common = math.gcd(s, d)
            self.tap_step, self.read_step = min(k, s // common), min(d // common, 2**62)
            exact = object if max(s, d * k, abs(begin) + out) >= 2**62 else np.int64  # Python integers if int64 is too small
            tap = np.arange(self.tap_step).astype(exact)
            offset, residue = tap * d // s, tap * d % s
            low, high = -((residue - begin) // s), -((residue - begin - out) // s)
            terms = (k - 1 - tap) // self.tap_step + 1
            rows = np.array([low, high, offset, terms, low * s + residue - begin, tap, 0 * tap]).T
            rows = rows[np.argsort(residue, kind="stable")]
            rows = np.ascontiguousarray(rows[(rows[:, 0] < rows[:, 1]).astype(bool)], np.int64)
            rows[:, 6] = np.cumsum(rows[:, 3]) - rows[:, 3]
            table = Table(rows)
        self.keep.append(table)
        self.shown_phases = <ShownPhase *>(<Table>table).p
        return len((<Table>table).array)

    cdef int64_t _find_cuts(self, int64_t first, int64_t last, int64_t *cuts) noexcept nogil:
        """Write to ``cuts``, in ascending order, each j at which the taps that reach these phases change. Return their
        number."""
        cdef int64_t i, m, j, count = 0, found = 0, size = self.in_size.p[self.nd - 1], s = self.stride.p[self.nd - 1]
        cdef ShownPhase *phase
        for i in range(first, last):
            phase = &self.shown_phases[i]
            cuts[count], cuts[count + 1] = phase.low, phase.high
            count += 2
            for m in range(2 * phase.terms):
                j = phase.offset + m // 2 * self.read_step + m % 2 * size
                if phase.low < j < phase.high:
                    cuts[count] = j
                    count += 1
        if self.cells:  # the window may also cut the first and the last cell
            if self.begin % s:
                cuts[count] = min(self.shown_phases.low + 1, self.shown_phases.high)
                count += 1
            if (self.begin + self.out_size) % s:
                cuts[count] = max(self.shown_phases.low, self.shown_phases.high - 1)
                count += 1
        qsort(cuts, count, sizeof(int64_t), by_value)
        for i in range(count):
            if found == 0 or cuts[i] != cuts[found - 1]:
                cuts[found] = cuts[i]
                found += 1
        return found

    cdef _cut_phases(self, int64_t first, int64_t last, const int64_t *cuts, int64_t count, int64_t step):
        """Add the pieces of these phases between adjacent cuts."""
        cdef int64_t n, i, t0, t1, size = self.in_size.p[self.nd - 1]
        cdef ShownPhase *phase
        for n in range(count - 1):
            for i in range(first, last):
                phase = &self.shown_phases[i]
                if phase.low <= cuts[n] < phase.high:
                    t0 = max(0, floor_of(cuts[n] - phase.offset - size, self.read_step) + 1)
                    t1 = min(phase.terms, floor_of(cuts[n] - phase.offset, self.read_step) + 1)
                    self._add_pieces(cuts[n], cuts[n + 1], i, t0, max(t0, t1), step)

    cdef _add_pieces(self, int64_t start, int64_t stop, int64_t phase, int64_t t0, int64_t t1, int64_t step):
        """Add ``step`` pieces (fewer if j are fewer) of the outputs of a phase that terms t0 to t1 - 1 reach. Piece r has every
        ``step``-th j from start + r on."""
        cdef int64_t r
        if self.npieces + step > self.piece_room:
            self.piece_room = 2 * self.piece_room + step + 16
            memory = np.empty(self.piece_room * sizeof(DepthwisePiece), np.uint8)
            if self.npieces:
                memcpy(cnp.PyArray_DATA(memory), self.pieces, self.npieces * sizeof(DepthwisePiece))
            self.piece_memory, self.pieces = memory, <DepthwisePiece *>cnp.PyArray_DATA(memory)
        for r in range(min(step, stop - start)):
            self.pieces[self.npieces] = DepthwisePiece(start + r, stop, phase, t0, t1, step, 0, 0)
            self.npieces += 1

    cdef _join_ends(self, int64_t nphases, const int64_t *cuts, int64_t count):
        """Join the outputs at the ends of a row to the longest pieces, if the longest pieces of all phases lie between the
        same two cuts and read the same inputs. The joined outputs lack some taps of the longest pieces."""
        cdef int64_t n, i, m = 0, r, back, size = 1, longest = -1, terms = -1, phase_count = 0
        cdef bint fewer = False
        cdef DepthwisePiece *piece
        cdef DepthwisePiece *main
        cdef DepthwisePiece *lead
        table = Table(np.full(max(1, count - 1) * nphases, -1, np.int64))
        cdef int64_t *at = (<Table>table).p  # [interval between cuts][phase] index of the piece
        for n in range(self.npieces):
            piece = &self.pieces[n]
            while cuts[m] < piece.start:
                m += 1
            at[m * nphases + piece.phase] = n
            if piece.stop - piece.start > size:
                size, longest = piece.stop - piece.start, m
            elif size > 1 and piece.stop - piece.start == size and m != longest:
                longest = -1  # two intervals have the same length
        if longest < 0:
            return
        for i in range(nphases):
            n = at[longest * nphases + i]
            if n >= 0:
                main = &self.pieces[n]
                m = main.t1 - main.t0
                if phase_count == 0:
                    lead, terms = main, m
                # If there are two phases, the second may have one term less.
                if fewer or m > terms or m < terms - (phase_count == 1) or self._first_read(main) != self._first_read(lead):
                    return
                fewer, phase_count = m < terms, phase_count + 1
        for i in range(nphases):
            n = at[longest * nphases + i]
            if n < 0:
                continue
            main = &self.pieces[n]
            for back in range(2):
                for r in range(1, terms if back else main.t1 - main.t0):
                    m = longest - r if back else longest + r
                    if not 0 <= m < count - 1 or at[m * nphases + i] < 0:
                        break
                    piece = &self.pieces[at[m * nphases + i]]
                    if piece.stop - piece.start != 1 or piece.start != (main.start - r if back else main.stop - 1 + r):
                        break
                    if back and (piece.t0 != main.t0 or piece.t1 != min(main.t1, main.t0 + terms - r)):
                        break
                    if not back and (piece.t0 != main.t0 + r or piece.t1 != main.t1):
                        break
                    piece.step = 0  # the piece belongs to `main` now
                    if back:
                        main.before = <int>r
                    else:
                        main.after = <int>r

    cdef int64_t _first_read(self, const DepthwisePiece *piece) noexcept nogil:
        """Return the input index minus j that the first term of a piece reads."""
        return -self.shown_phases[piece.phase].offset - piece.t0 * self.read_step

    cdef _fill_tables(self, int64_t nphases):
        """Fill the structures that kernels read (`runs`, `phases` and their terms) from all pieces."""
        cdef int64_t pixel = self._pixel_step(), x = self.nd - 1, s = self.stride.p[x], channels = self.groups * self.co
        cdef int64_t n, m, low, high, out = 0, at, first_read = 0, terms = 0
        cdef int64_t tap = self.recipe.tap_elements() if self.groups_per_vector else self.ci * self.weights_ld
        cdef convt_dw_term *term
        cdef convt_dw_phase *phase
        cdef convt_dw_phase *first = NULL  # the first of the phases that read the same inputs
        cdef DepthwiseRun *run = NULL
        cdef DepthwisePiece *piece
        cdef DepthwisePiece *previous = NULL
        cdef ShownPhase *shown
        # All runs of a phase share its terms, unless offsets in elements may overflow.
        cdef bint shared = (not (self.cells or self.groups_per_vector or self.skips_outside) and self.max_off < 2**31
                            and -2**31 < pixel < 2**31)
        cdef bint together, known = False, cut = self.cells and self.recipe.kernel_x % s
        for n in range(nphases if shared else self.npieces):
            terms += self.shown_phases[n].terms if shared else self.pieces[n].t1 - self.pieces[n].t0
        self.runs = <DepthwiseRun *>cnp.PyArray_DATA(structures(self.keep, self.npieces, sizeof(DepthwiseRun)))
        self.phases = phase = <convt_dw_phase *>cnp.PyArray_DATA(structures(self.keep, self.npieces, sizeof(convt_dw_phase)))
        term = <convt_dw_term *>cnp.PyArray_DATA(structures(self.keep, terms, sizeof(convt_dw_term)))
        for n in range(nphases if shared else 0):
            shown = &self.shown_phases[n]
            for m in range(shown.terms):
                term[shown.first_term + m].in_ = -(shown.offset + m * self.read_step) * pixel
                term[shown.first_term + m].w = (shown.tap + m * self.tap_step) * tap
        self.nruns = 0
        for n in range(self.npieces):
            piece = &self.pieces[n]
            if piece.step == 0:
                continue
            shown = &self.shown_phases[piece.phase]
            low, high = 0, self.lanes
            if self.cells:
                low = max(0, self.begin - s * piece.start) * channels
                high = min(s, self.begin + self.out_size - s * piece.start) * channels
            at = shown.first_out + (piece.start - shown.low) * s  # the first output of the piece
            together = (self.contiguous_out and previous != NULL and previous.start == piece.start
                        and previous.stop == piece.stop)
            if not together:
                run = &self.runs[self.nruns]
                run[0] = DepthwiseRun(piece.start, piece.stop, at, 0, low, high, <int>(phase - self.phases), 0, piece.step, 0,
                                      0)
                self.nruns += 1
                out, known = at, False
            m = piece.t1 - piece.t0
            if m and not known:  # offsets relative to the first piece are less than an axis, so that they do not overflow
                first_read, known = 0 if shared else self._first_read(piece), True
                run.first_in = piece.start + first_read
            run.phases += 1
            if not (together and (m == 0 or (m <= previous.t1 - previous.t0
                                             and self._first_read(piece) == self._first_read(previous)))):
                first = phase
            first.set_size += 1
            phase.out = (at - out) * self.out_pixel
            phase.term, phase.terms, phase.masked = term, <int>m, cut and m > 0 and piece.t1 == shown.terms
            phase.sliding = self.width == 1 and (m < 2 or self.read_step == piece.step)
            if shared:
                phase.term += shown.first_term + piece.t0
            else:
                for m in range(piece.t0, piece.t1):
                    term.in_ = (-shown.offset - m * self.read_step - first_read) * pixel
                    if not (self.permuted or self.groups_per_vector):
                        term.in_ += low
                    term.w = (shown.tap + m * self.tap_step) * tap + low
                    term += 1
            phase.outputs_before, phase.outputs_after = piece.before, piece.after
            run.before, run.after = max(run.before, piece.before), max(run.after, piece.after)
            # Phases that are computed together may lack the first or the last output.
            phase.first = max(0, shown.low - piece.start) if self.skips_outside and piece.step == 1 else 0
            phase.last = ceil_quotient(piece.stop - piece.start, piece.step)
            if self.skips_outside and piece.step == 1:
                phase.last -= max(0, piece.stop - shown.high)
            previous = piece
            phase += 1

    cdef int64_t _pixel_step(self) noexcept nogil:
        """Return the elements between pixels of an input row as it is read.

        The stride of an axis of one pixel is arbitrary, so it is replaced by 0 if kernels step over pixels outside the input.
        """
        cdef int64_t x = self.nd - 1
        if not (self.contiguous_in or self.permuted):
            return self.pitch
        return 0 if self.skips_outside and self.in_size.p[x] == 1 else self.in_stride.p[x]

    cdef int64_t _padded_lanes(self, int64_t lanes) noexcept nogil:
        """Return ``lanes`` rounded up to whole vectors."""
        return (lanes + self.k.vl - 1) & ~<int64_t>(self.k.vl - 1)

    cdef size_t _gathered_row_bytes(self) noexcept nogil:
        """Return the bytes of the gathered inputs of a row."""
        return (1 if self.groups_per_vector else self.ci) * self.max_inputs * self.pitch * self.k.t_size

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef int64_t rest = task
        cdef int64_t block = take_index(&rest, self.blocks)
        cdef int64_t l0 = take_index(&rest, self.lane_blocks) * self.lane_block
        cdef int64_t first = rest * self.rows
        cdef KeptRow *kept = <KeptRow *>ws
        cdef int64_t n
        clear_kept_rows(kept, self.row_taps)
        for n in range(first, min(self.out_rows, first + self.rows)):
            self.run_row(n, block, l0, min(self.lane_block, self.lanes - l0), call, kept, ws)

    cdef char *gathered_row(self, int64_t row, int64_t out_row, char *src, const int64_t *map, int64_t cols, int64_t pixels,
                            KeptRow *kept, char *inputs) noexcept nogil:
        """Return the gathered or widened inputs of the row at ``src``. If no earlier output row gathered them, they replace the
        least recently used row of the region "inputs"."""
        cdef const convt_kernels *k = self.k
        cdef int64_t c
        cdef bint there
        cdef int64_t place = place_of_row(kept, self.row_taps, row, out_row, &there)
        inputs += place * self._gathered_row_bytes()
        if there:
            return inputs
        if self.is_16_bit:  # widen the channels in their order
            cols = cols // self.co * self.ci
            if cols == self.pitch == self.in_stride.p[self.nd - 1]:  # all pixels are contiguous
                pixels, cols = 1, pixels * cols
            k.widen(inputs, self.pitch, src, self.in_stride.p[self.nd - 1], self.in_c, <int>pixels, <int>cols, <int>cols)
            return inputs
        for c in range(self.ci):
            k.gather(inputs + c * self.max_inputs * self.pitch * k.t_size, self.pitch, src, self.in_stride.p[self.nd - 1],
                     map + c * self.lanes, <int>pixels, <int>cols, <int>(cols if self.width > 1 else self.pitch))
        return inputs

    cdef void run_row(self, int64_t row, int64_t block, int64_t l0, int64_t cols, const Call *call, KeptRow *kept,
                      char *ws) noexcept nogil:
        """Compute lanes l0 to l0 + cols - 1 of a block of j of an output row, part by part."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t t_size = k.t_size
        cdef int64_t weights_ld = self.weights_ld * t_size  # bytes of a row of weights
        # bytes of a tap of all in-channels
        cdef int64_t tap_bytes = self.recipe.tap_elements() * t_size if self.groups_per_vector else self.ci * weights_ld
        cdef int64_t *row_tap = <int64_t *>(ws + self.at_taps)
        cdef const void **sources = <const void **>(ws + self.at_sources)  # pixel 0 of each input row and in-channel of a group
        cdef const void **weights = <const void **>(ws + self.at_weights)  # weights of each source
        cdef char *outs = ws + self.at_outs
        cdef char *stage = ws + self.at_stage
        cdef char *inputs = ws + self.at_inputs

        cdef int64_t image, at, n, c
        cdef int64_t count = self.row_inputs(row, row_tap, &image, &at)
        cdef bint can_overread = True
        cdef char *dst = call.dst + at * k.s_size
        cdef int64_t j_lo = self.j0 + block * self.block
        cdef int64_t j_hi = j_lo + self.block
        cdef int64_t i_lo = min(max(0, j_lo - self.max_off), self.in_size.p[x])
        cdef int64_t i_hi = max(i_lo, min(self.in_size.p[x], j_hi))
        cdef int64_t in_ld = self._pixel_step(), in_c = 0  # elements from pixel to pixel; bytes from in-channel to in-channel
        # in-channel of the first lane
        cdef int64_t channel = l0 // self.co * self.ci if self.groups_per_vector or self.is_16_bit else 0
        cdef int sources_per_row = 1 if self.groups_per_vector else <int>self.ci  # sources per input row
        if self.permuted:
            in_c = self.in_c * t_size
        elif not self.contiguous_in:
            in_c = self.max_inputs * self.pitch * t_size
        cdef char *source
        cdef char *weight
        for n in range(count):
            at = image + row_tap[2 * n]
            can_overread &= at <= self.last_safe_offset
            source = call.src + (at if self.permuted or self.groups_per_vector else at + l0) * k.s_size
            if not (self.contiguous_in or self.permuted):
                source = self.gathered_row(at, row,
                                           call.src + (at + i_lo * self.in_stride.p[x] + channel * self.in_c) * k.s_size,
                                           self.maps.p + l0, cols, i_hi - i_lo, kept, inputs)
                source -= (i_lo * in_ld + (channel if self.groups_per_vector else 0)) * t_size
            weight = call.weights + row_tap[2 * n + 1] * self.taps_x * tap_bytes
            if not self.groups_per_vector:
                weight += l0 * t_size
            for c in range(sources_per_row):
                sources[n * sources_per_row + c] = source + c * in_c
                weights[n * sources_per_row + c] = weight + c * weights_ld

        cdef convt_dw d
        d.sources = <int>(count * sources_per_row)
        d.in_, d.w = sources, weights
        d.can_overread, d.vector_step = can_overread, self.vector_step
        d.out_prefetch, d.inputs_uncached, d.ordered, d.pair_distance = 0, self.far, self.ordered, 0
        d.stream = self.store_alignment and not <size_t>call.dst % self.store_alignment
        d.groups, d.skip_outside, d.next_input_row = NULL, self.skips_outside, NULL
        if self.far and self.contiguous_in and x > 0 and count > 0:
            at = row_tap[0]
            for n in range(1, count):
                at = max(at, row_tap[2 * n])
            # The prefetched address may be beyond the image; prefetching an invalid address is harmless.
            at += image + self.in_stride.p[x - 1] + (0 if self.groups_per_vector else l0)
            d.next_input_row = <char *>(<size_t>call.src + <size_t>(at * k.s_size))
        if self.groups_per_vector:
            d.groups = &self.group_layout
            d.v0 = <int>(l0 // self.bundle_lanes * self.bundle_vectors)
            d.v1 = <int>((l0 + cols + self.bundle_lanes - 1) // self.bundle_lanes * self.bundle_vectors)
        cdef DepthwiseRow part = DepthwiseRow(l0, cols, i_lo, i_hi, in_ld, outs)
        cdef int64_t low, high, stop
        while j_lo < j_hi:
            stop = min(j_hi, self.part_end(j_lo + self.part))
            if self.staged_outputs:
                low = max(0, j_lo * self.stride.p[x] - self.begin)
                high = min(self.out_size, stop * self.stride.p[x] - self.begin)
                if low < high:  # false for parts of the last block beyond the end of the row
                    self.run_part(&d, &part, stage - (low * self.out_pixel + (l0 if self.is_16_bit else 0)) * t_size,
                                  j_lo, stop, call)
                    self.write_stage(dst, stage, low, high - low, &part)
            else:
                self.run_part(&d, &part, dst, j_lo, stop, call)
            j_lo = stop
        if d.stream or self.streams_rounded or (self.staged_outputs and not self.is_16_bit):
            k.fence()

    cdef int64_t part_end(self, int64_t stop) noexcept nogil:
        """Return the end of a part that should end at j ``stop``. If outputs are staged, the end is moved so that the part
        with the first j of a run has the outputs before it, and the part with the last j has those after it."""
        cdef DepthwiseRun *run
        cdef int64_t n
        for n in range(self.nruns if self.staged_outputs else 0):
            run = &self.runs[n]
            if run.start - run.before < stop <= run.start:
                stop = run.start + 1
            elif run.stop <= stop < run.stop + run.after:
                stop = run.stop + run.after
        return stop

    cdef void write_stage(self, char *dst, char *stage, int64_t low, int64_t count, const DepthwiseRow *part) noexcept nogil:
        """Copy ``count`` outputs of a row, from output ``low`` on, from the stage to the output; round them if they are
        widened."""
        cdef const convt_kernels *k = self.k
        cdef int64_t pixel = self.out_stride.p[self.nd - 1], cols = part.cols
        dst += low * pixel * k.s_size
        if not self.is_16_bit:
            copy_non_temporal(k, dst, stage, count * pixel * k.t_size)
            return
        if cols == self.out_pixel == pixel:  # all outputs are contiguous
            count, cols = 1, count * cols
        k.narrow(dst + part.l0 * k.s_size, pixel, 1, stage, self.out_pixel, 1, <int>count, <int>cols, self.streams_rounded)

    cdef void run_part(self, convt_dw *d, const DepthwiseRow *part, char *dst, int64_t j_lo, int64_t j_hi,
                       const Call *call) noexcept nogil:
        """Compute j_lo <= j < j_hi of a part of a row, run by run; output 0 of the row is at ``dst``."""
        cdef const convt_kernels *k = self.k
        cdef int64_t x = self.nd - 1
        cdef int64_t t_size = k.t_size
        cdef DepthwiseRun *run
        cdef int64_t n, m, at, start, skipped_j, j_left, pixel, r, low, high, step, at_lane, stored_lanes
        cdef int64_t channels = self.groups * self.co
        cdef int64_t wide  # number of j in a row of lanes
        cdef void *rows[SCRATCH]
        for n in range(self.nruns):
            run = &self.runs[n]
            skipped_j = ceil_quotient(max(0, j_lo - run.start), run.step)  # number of j of the run before this part
            start = run.start + skipped_j * run.step
            j_left = ceil_quotient(min(run.stop, j_hi) - start, run.step)
            low, high = max(run.low, part.l0), min(run.high, part.l0 + part.cols)
            if j_left <= 0 or low >= high:
                continue
            at = run.first_out * self.out_pixel
            at += low // channels * self.out_pixel if self.separate_pixels else low * self.lane_step
            step = 0
            if j_left > 1 or skipped_j > 0:  # otherwise the stride is arbitrary, and a product with it could overflow
                step = run.step * self.stride.p[x] * self.out_pixel
                at += skipped_j * step
            d.phase, d.phases = &self.phases[run.phase], run.phases
            pixel = run.first_in + start - run.start
            d.in_offset = pixel * part.in_ld
            at_lane = 0 if self.groups == 1 else low  # with one group, all vectors have the same table
            d.vector_offset = self.maps.p + at_lane if self.permuted else NULL
            d.index = self.permutation + at_lane if self.permuted else NULL
            d.init = call.bias + low * t_size
            d.mask = call.weights + self.recipe.mask + low * t_size
            d.has_before, d.has_after = skipped_j == 0, j_hi >= run.stop
            d.first_j = skipped_j
            d.low_pixel, d.high_pixel = ceil_quotient(part.i_lo - pixel, run.step), ceil_quotient(part.i_hi - pixel, run.step)
            d.mask_end = <int>(self.last_row_lanes - low if self.width == 1 else self.width * self.lanes)
            while j_left > 0:
                wide = min(self.width, j_left)
                d.n = <int>(j_left if wide == 1 else convt_quotient(j_left, wide))
                d.cols = <int>(high - low if wide == 1 else wide * self.lanes)
                d.in_ld = wide * run.step * part.in_ld
                if self.contiguous_out:
                    d.act = &self.act
                    d.out, d.out_ld = dst + at * t_size, wide * step
                    d.out_prefetch = self.prefetch_j * d.out_ld
                    k.depthwise(d)
                else:
                    d.act = &self.none
                    d.out, d.out_ld = part.outs, self.outs_ld
                    d.n = min(d.n, SCRATCH)
                    k.depthwise(d)
                    stored_lanes = channels if self.separate_pixels else d.cols  # lanes that one call stores
                    for m in range(d.cols // stored_lanes):
                        for r in range(d.n):
                            rows[r] = dst + (at + r * wide * step + m * self.out_pixel) * k.s_size
                        k.store(rows, self.out_c if self.separate_pixels else self.lane_step,
                                part.outs + m * stored_lanes * t_size, self.outs_ld, d.n, <int>stored_lanes, &self.act)
                j_left -= d.n * wide
                at += d.n * wide * step
                d.in_offset += d.n * d.in_ld
                d.first_j += d.n
                d.low_pixel -= d.n
                d.high_pixel -= d.n
