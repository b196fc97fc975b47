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

cimport numpy as cnp

import numpy as np

from convt._core cimport Call, kernels_of
from convt._run.kernels cimport (
    CONVT_DW_TERMS,
    convt_act,
    convt_dw,
    convt_dw_groups,
    convt_dw_phase,
    convt_dw_term,
    convt_kernels,
    convt_quotient,
)
from convt._run.memory cimport Table, keep_table, structures
from convt.algorithms.indexing cimport ceil_quotient, take_index
from convt.algorithms.row_plan cimport KeptRow, RowPlan, clear_kept_rows, place_of_row

cnp.import_array()

SCRATCH_ROWS = SCRATCH


cdef enum:
    SCRATCH = 32  # rows of outputs that a task holds before it stores them with strides
    MANY_RUNS = 4096  # the most runs for which phases are cut at the same j, so that they are computed together


cdef struct DepthwiseRun:
    # A run of j of one phase, of a cell, or of several phases that are computed together because they have the same j.
    int64_t start, stop      # range of j, counted from the start of the full scatter
    int64_t first_out        # output index at j = start
    int64_t first_in         # input index that the first term reads at j = start
    int64_t low, high        # range of lanes of a j
    int phase, phases        # first entry in Depthwise.phases, and number of entries
    int64_t step             # distance of consecutive j of the run
    int before, after        # the most outputs of a phase before the first j and after the last j that belong to the run


cdef struct Task:
    # Fields of schedule.Task.
    int64_t lanes, lane_block, j0, block, blocks, rows, row_taps


cdef struct Stores:
    # Fields of schedule.Stores.
    int64_t part, staged_outputs, prefetch_j
    size_t non_temporal
    bint in_registers, ordered, streams_rounded


cdef struct Reads:
    # Fields of schedule.Reads.
    bint is_16_bit, skips_outside, joins_ends, far
    int64_t step, max_off, max_inputs, pitch


cdef struct Regions:
    # Offsets of the regions of the workspace.
    size_t kept, taps, sources, weights, outs, stage, inputs


cdef struct Depthwise:
    # All that the loops read.
    const convt_kernels *k
    convt_act act, none
    Task task
    Reads reads
    Stores stores
    Regions region
    DepthwiseRun *runs
    int64_t nruns
    convt_dw_phase *phases
    # channels; sizes and strides in elements: out_step and in_step along the last axis, next_row along the axis before it
    int64_t groups, ci, co, channels, in_c, out_c, in_step, out_step, next_row
    int64_t stride, in_size, begin, out_size  # the last axis: its stride, inputs and window
    # j of a cell; elements between the outputs of adjacent lanes; lanes of the last row of taps that have a tap
    int64_t width, lane_step, last_row_lanes
    bint cells, separate_pixels  # lanes are cells; the pixels of a cell are stored one by one
    # reads
    bint in_place, permuted, gathers  # inputs are read in place, permuted while they are loaded, or gathered beforehand
    int64_t pixel            # elements between pixels of an input row as it is read
    int64_t sources_per_row, source_step  # sources of an input row, and bytes between them
    size_t gathered_bytes    # bytes of the gathered inputs of a row
    int64_t vector_step      # elements between the inputs of consecutive vectors if all distances are equal; else 0
    int64_t last_safe_offset # the last offset of an input row from which permuted loads of the row stay within the array
    int64_t *maps            # [ci][lanes] offset of each lane's in-channel in a pixel, in elements
    int32_t *permutation     # [lanes] difference of this offset from that of the first lane of the vector
    # weights
    int64_t weights_ld       # bytes of a row of lanes
    int64_t tap_bytes        # bytes of a tap of all in-channels
    int64_t row_tap_bytes    # bytes of a tap of the other axes
    size_t mask              # see weights.pxd
    int64_t groups_per_vector  # channel groups that share a vector in `group_layout`; 0: lanes are channels
    convt_dw_groups group_layout
    int64_t bundle_lanes, bundle_vectors  # lanes of `groups_per_vector` groups, and vectors of these lanes
    # stores
    int64_t out_pixel        # elements between adjacent outputs of a row, as kernels write it
    int64_t outs_ld          # lanes of a row of outputs in the region "outs"


cdef struct DepthwiseRow:
    # The part of an output row that a task computes.
    int64_t row              # number of the row
    int64_t l0, cols         # first lane and number of lanes
    int64_t j_lo, j_hi       # range of j
    int64_t i_lo, i_hi       # range of input pixels that it reads
    int64_t image            # offset of the image in the input
    char *dst                # output 0 of the row
    char *ws
    convt_dw d


cdef class DepthwisePlan(RowPlan):
    """The plan of a `Schedule` of depthwise/schedule.py."""

    cdef list keep
    cdef Depthwise loops

    def __init__(self, schedule, lanes, in_strides, out_strides):
        """``lanes`` is the layout of the packed weights, a `Lanes` of layout.py."""
        problem = schedule.problem
        self.open_plan(problem, kernels_of(problem.dtype), in_strides, out_strides, schedule.execution)
        self.open_rows(problem)
        self.equal_tasks, self.keep, self.row_taps = True, [], schedule.task.row_taps
        cdef Depthwise *s = &self.loops
        cdef int64_t x = self.nd - 1
        s.task, s.reads, s.stores = schedule.task._asdict(), schedule.reads._asdict(), schedule.stores._asdict()
        s.region = {name: at for name, at, _ in schedule.workspace.regions}
        s.k, s.act, s.none = self.k, self.act, self.none
        s.groups, s.ci, s.co, s.channels, s.in_c, s.out_c = (
            self.groups, self.ci, self.co, self.groups * self.co, self.in_c, self.out_c)
        s.in_step, s.out_step, s.next_row = (
            self.in_stride.p[x], self.out_stride.p[x], self.in_stride.p[x - 1] if x else 0)
        s.stride, s.in_size, s.begin, s.out_size = (
            self.stride.p[x], self.in_size.p[x], problem.begin[x], problem.out_sizes[x])
        s.cells, s.width = schedule.form[0] > 0, max(1, schedule.form[0])
        s.lane_step = 1 if s.cells else self.out_c
        s.last_row_lanes = (lanes.kernel - (lanes.terms - 1) * lanes.stride) * s.channels
        # The pixels of a cell are stored one by one if they are not contiguous in the output.
        s.separate_pixels = s.cells and not (s.out_step == s.channels and (s.channels == 1 or self.out_c == 1))
        s.weights_ld, s.groups_per_vector, s.mask = lanes.row_bytes, lanes.groups_per_vector, lanes.mask
        s.tap_bytes, s.row_tap_bytes = lanes.tap_bytes, lanes.terms * lanes.tap_bytes
        self.set_reads(schedule.reads.way)
        s.out_pixel = s.task.lane_block if s.reads.is_16_bit and s.stores.staged_outputs else s.out_step
        s.outs_ld = padded(s.width * s.task.lane_block, self.k.vl)
        make_runs(s, problem, lanes, self.keep)
        if s.groups_per_vector:
            fill_group_layout(s, lanes, math.prod(problem.kernel), self.keep)
        self.tasks = ceil_quotient(self.out_rows, s.task.rows) * s.task.blocks * ceil_quotient(s.task.lanes, s.task.lane_block)
        self.workspace = schedule.workspace.bytes

    cdef set_reads(self, way):
        """Set how input rows are read: ``way`` is `schedule.Reads.way`."""
        cdef Depthwise *s = &self.loops
        cdef const convt_kernels *k = self.k
        cdef int64_t n
        s.in_place, s.permuted, s.gathers = way == "as they are", way == "permuted", way == "gathered"
        s.pixel = s.reads.pitch if s.gathers else s.in_step
        if not s.gathers and s.reads.skips_outside and s.in_size == 1:
            s.pixel = 0  # the stride of an axis of one pixel is arbitrary, and kernels step over pixels outside the input
        s.sources_per_row = 1 if s.groups_per_vector else self.ci
        s.source_step = s.in_c * k.t_size if s.permuted else s.reads.max_inputs * s.reads.pitch * k.t_size if s.gathers else 0
        s.gathered_bytes = s.sources_per_row * s.source_step
        if s.permuted and self.groups > 1 and k.vl % self.co == 0:
            s.vector_step = k.vl // self.co * self.ci * self.in_c
        # From pixel 0 of a row, a permuted load may read `reach` - 1 elements more than the row has.
        s.last_safe_offset = (self.batch - 1) * max(0, self.in_n) - (k.reach - 1)
        for n in range(self.nd - 1):
            s.last_safe_offset += (self.in_size.p[n] - 1) * max(0, self.in_stride.p[n])
        fill_lane_tables(s, self.keep)

    cdef void run_task(self, Py_ssize_t task, const Call *call, char *ws) noexcept nogil:
        cdef Depthwise *s = &self.loops
        cdef DepthwiseRow row
        cdef int64_t rest = task, n, at, count
        cdef int64_t *row_tap = <int64_t *>(ws + s.region.taps)
        row.ws, row.j_lo = ws, s.task.j0 + take_index(&rest, s.task.blocks) * s.task.block
        row.j_hi = row.j_lo + s.task.block
        row.l0 = take_index(&rest, ceil_quotient(s.task.lanes, s.task.lane_block)) * s.task.lane_block
        row.cols = min(s.task.lane_block, s.task.lanes - row.l0)
        row.i_lo = min(max(0, row.j_lo - s.reads.max_off), s.in_size)
        row.i_hi = max(row.i_lo, min(s.in_size, row.j_hi))
        clear_kept_rows(<KeptRow *>ws, s.task.row_taps)
        for n in range(rest * s.task.rows, min(self.out_rows, (rest + 1) * s.task.rows)):
            count = self.row_inputs(n, row_tap, &row.image, &at)
            row.row, row.dst = n, call.dst + at * s.k.s_size
            set_sources(s, &row, row_tap, count, call)
            run_row(s, &row, call)


# ---------------------------------------------------------------- tables


cdef inline int64_t padded(int64_t lanes, int64_t vl) noexcept nogil:
    """Return ``lanes`` rounded up to whole vectors."""
    return (lanes + vl - 1) & ~<int64_t>(vl - 1)


cdef void *zeroed(list keep, Py_ssize_t count, Py_ssize_t size):
    """Return zeroed memory for ``count`` structures, which the list ``keep`` keeps alive."""
    return cnp.PyArray_DATA(structures(keep, count, size))


cdef fill_lane_tables(Depthwise *s, list keep):
    """Fill the tables `maps` and `permutation`."""
    cdef int64_t lane, c, vl = s.k.vl
    s.maps = <int64_t *>zeroed(keep, s.ci * s.task.lanes, sizeof(int64_t))
    for lane in range(s.task.lanes):
        for c in range(s.ci):
            s.maps[c * s.task.lanes + lane] = (lane % s.channels // s.co * s.ci + c) * s.in_c
    s.permutation = <int32_t *>zeroed(keep, padded(s.task.lanes, vl), sizeof(int32_t))
    for lane in range(padded(s.task.lanes, vl) if s.permuted else 0):
        s.permutation[lane] = <int32_t>(s.maps[min(lane, s.task.lanes - 1)] - s.maps[lane - lane % vl])


cdef fill_group_layout(Depthwise *s, lanes, int64_t taps, list keep):
    """Fill `group_layout`: the groups that each vector reads, and the lanes that it writes."""
    cdef int64_t vectors = lanes.vectors, vl = s.k.vl, groups = s.groups_per_vector, v, r, bundle
    cdef convt_dw_groups *g = &s.group_layout
    s.bundle_lanes, s.bundle_vectors = groups * s.co, (groups * s.co + vl - 1) // vl
    cdef int64_t *at = <int64_t *>zeroed(keep, vectors * (groups + 2), sizeof(int64_t))
    g.group_offset, g.first, g.lanes = at, at + vectors * groups, at + vectors * (groups + 1)
    for v in range(vectors):
        bundle = v // s.bundle_vectors
        for r in range(groups):  # lanes beyond the last group read the last group, and are not stored
            at[v * groups + r] = min(bundle * groups + r, s.groups - 1) * s.ci
        at[vectors * groups + v] = bundle * s.bundle_lanes + v % s.bundle_vectors * vl
        at[vectors * (groups + 1) + v] = min(min((bundle + 1) * s.bundle_lanes, s.task.lanes) - g.first[v], vl)
    g.ci, g.groups_per_vector, g.dots = s.ci, groups, lanes.dots
    g.w_ld = taps * s.tap_bytes // s.k.t_size


# ---------------------------------------------------------------- runs


cdef struct ShownPhase:
    # A phase that the window shows, or the cell of all phases.
    int64_t low, high   # range of j
    int64_t offset      # j minus the input index that the first term reads
    int64_t terms       # number of taps
    int64_t first_out   # output index at j = low
    int64_t tap         # first tap on the last axis
    int64_t first_term  # number of terms of the preceding phases


cdef struct Piece:
    # A range of outputs of a phase that the same terms reach.
    int64_t start, stop   # range of j, counted from the start of the full scatter
    ShownPhase *phase
    int64_t t0, t1        # range of terms of the phase
    int64_t step          # distance of consecutive j; 0: no output, or the piece was joined to another piece
    int before, after     # outputs joined before the first j and after the last j; each has one term less than the one inside


cdef struct Pieces:
    # The outputs of a row, divided into pieces.
    ShownPhase *phases
    int64_t nphases
    int64_t tap_step, read_step  # distance of consecutive terms of a phase, in taps and in input pixels
    int64_t step          # distance of consecutive j of a piece
    Piece *pieces
    int64_t npieces
    int64_t *cuts         # the j at which pieces begin and end, ascending
    int64_t ncuts


cdef make_runs(Depthwise *s, problem, lanes, list keep):
    """Divide the outputs of a row into runs: outputs of a phase or a cell that the same taps reach, at every ``step``-th j.

    Runs of the same j are computed together. With `joins_ends`, outputs at the ends of the longest run that lack some of its
    taps belong to that run.
    """
    cdef Pieces p
    cdef int64_t i, start, stop, most = 0, terms = 0, together
    cdef bint aligned = s.reads.joins_ends
    table, p.tap_step, p.read_step = _phase_table(problem, lanes.terms if s.cells else 0)
    p.phases, p.nphases, p.step, p.npieces = <ShownPhase *>keep_table(keep, table), len(table), s.reads.step, 0
    for i in range(p.nphases):
        most, terms = max(most, p.phases[i].terms), terms + p.phases[i].terms
        start = p.phases[i].low if i == 0 else min(start, p.phases[i].low)
        stop = p.phases[i].high if i == 0 else max(stop, p.phases[i].high)
    memory = []
    if s.reads.skips_outside:  # a phase is one run; all phases are one run if each has all j but the first and the last
        p.pieces = <Piece *>zeroed(memory, p.nphases * p.step, sizeof(Piece))
        for i in range(p.nphases):
            aligned = aligned and p.phases[i].low <= start + 1 and p.phases[i].high >= stop - 1
        for i in range(p.nphases):
            add_pieces(&p, start if aligned else p.phases[i].low, stop if aligned else p.phases[i].high, &p.phases[i], 0,
                       p.phases[i].terms)
    else:
        p.cuts = <int64_t *>zeroed(memory, 2 * (terms + p.nphases) + 2, sizeof(int64_t))
        find_cuts(s, &p, 0, p.nphases)
        # All phases are cut at the cuts of each phase, unless that makes far more runs.
        together = p.nphases if p.ncuts * p.nphases <= max(<int64_t>MANY_RUNS, 4 * terms) else 1
        p.pieces = <Piece *>zeroed(
            memory, p.step * (p.ncuts * p.nphases if together > 1 else 2 * terms + 3 * p.nphases), sizeof(Piece))
        for i in range(0, p.nphases, max(<int64_t>1, together)):
            if together < p.nphases:
                find_cuts(s, &p, i, i + together)
            cut_phases(s, &p, i, i + together)
        if s.reads.joins_ends and together == p.nphases and 0 < most <= CONVT_DW_TERMS:
            join_ends(&p)
    fill_runs(s, lanes, &p, keep)


def _phase_table(problem, int64_t cell_terms):
    """Return (table of `ShownPhase`, `Pieces.tap_step`, `Pieces.read_step`): phases that have taps and outputs in the window,
    in the order of their outputs, or, if ``cell_terms`` is not 0, the cell of all phases.

    If n phases have taps, tap t of the filter is term t // n of phase t % n. A term reads ``read_step`` pixels before the
    input of the previous term of the phase.
    """
    x = problem.rank - 1
    k, s, d, begin, out = (
        axis[x] for axis in (problem.kernel, problem.strides, problem.dilations, problem.begin, problem.out_sizes))
    if cell_terms:
        return [[begin // s, -(-(begin + out) // s), 0, cell_terms, begin // s * s - begin, 0, 0]], 1, 1
    common = math.gcd(s, d)
    count = min(k, s // common)
    exact = object if max(s, d * k, abs(begin) + out) >= 2**62 else np.int64  # Python integers if int64 is too small
    tap = np.arange(count).astype(exact)
    offset, residue = tap * d // s, tap * d % s
    low, high = -((residue - begin) // s), -((residue - begin - out) // s)
    rows = np.array([low, high, offset, (k - 1 - tap) // count + 1, low * s + residue - begin, tap, 0 * tap]).T
    rows = rows[np.argsort(residue, kind="stable")]
    rows = np.ascontiguousarray(rows[(rows[:, 0] < rows[:, 1]).astype(bool)], np.int64)
    rows[:, 6] = np.cumsum(rows[:, 3]) - rows[:, 3]
    return rows, count, min(d // common, 2**62)


cdef int by_value(const void *a, const void *b) noexcept nogil:
    """Compare two int64_t for qsort, in ascending order."""
    cdef int64_t x = (<const int64_t *>a)[0], y = (<const int64_t *>b)[0]
    return (x > y) - (x < y)


cdef void find_cuts(const Depthwise *s, Pieces *p, int64_t first, int64_t last) noexcept nogil:
    """Set the cuts to each j at which the taps that reach these phases change."""
    cdef int64_t i, m, j, count = 0
    cdef int64_t *cuts = p.cuts
    cdef ShownPhase *phase
    for i in range(first, last):
        phase = &p.phases[i]
        cuts[count], cuts[count + 1] = phase.low, phase.high
        count += 2
        for m in range(2 * phase.terms):
            j = phase.offset + m // 2 * p.read_step + m % 2 * s.in_size
            if phase.low < j < phase.high:
                cuts[count] = j
                count += 1
    if s.cells:  # the window may also cut the first and the last cell
        if s.begin % s.stride:
            cuts[count] = min(p.phases.low + 1, p.phases.high)
            count += 1
        if (s.begin + s.out_size) % s.stride:
            cuts[count] = max(p.phases.low, p.phases.high - 1)
            count += 1
    qsort(cuts, count, sizeof(int64_t), by_value)
    p.ncuts = 0
    for i in range(count):
        if p.ncuts == 0 or cuts[i] != cuts[p.ncuts - 1]:
            cuts[p.ncuts] = cuts[i]
            p.ncuts += 1


cdef inline int64_t terms_up_to(const Pieces *p, int64_t distance) noexcept nogil:
    """Return the number of terms, with no end, that read at most ``distance`` before the first one; negative if none does."""
    return 1 + (convt_quotient(distance, p.read_step) if distance >= 0 else
                -convt_quotient(p.read_step - 1 - distance, p.read_step))


cdef void cut_phases(const Depthwise *s, Pieces *p, int64_t first, int64_t last) noexcept nogil:
    """Add the pieces of these phases between adjacent cuts."""
    cdef int64_t n, i, t0, t1
    cdef ShownPhase *phase
    for n in range(p.ncuts - 1):
        for i in range(first, last):
            phase = &p.phases[i]
            if phase.low <= p.cuts[n] < phase.high:
                t0 = max(0, terms_up_to(p, p.cuts[n] - phase.offset - s.in_size))
                t1 = min(phase.terms, terms_up_to(p, p.cuts[n] - phase.offset))
                add_pieces(p, p.cuts[n], p.cuts[n + 1], phase, t0, max(t0, t1))
            else:
                p.npieces += 1  # no output


cdef void add_pieces(Pieces *p, int64_t start, int64_t stop, ShownPhase *phase, int64_t t0, int64_t t1) noexcept nogil:
    """Add ``step`` pieces (fewer if j are fewer) of the outputs of a phase that terms t0 to t1 - 1 reach. Piece r has every
    ``step``-th j from start + r on."""
    cdef int64_t r
    for r in range(min(p.step, stop - start)):
        p.pieces[p.npieces] = Piece(start + r, stop, phase, t0, t1, p.step, 0, 0)
        p.npieces += 1


cdef inline int64_t first_read(const Pieces *p, const Piece *piece) noexcept nogil:
    """Return the input index minus j that the first term of a piece reads."""
    return -piece.phase.offset - piece.t0 * p.read_step


cdef void join_ends(Pieces *p) noexcept nogil:
    """Join the outputs at the ends of a row to the longest pieces, if the longest pieces of all phases lie between the same two
    cuts and read the same inputs. The joined outputs lack some taps of the longest pieces. Pieces are [cut][phase]."""
    cdef int64_t i, m, r, length, size = 1, longest = -1, terms = -1, phase_count = 0, lengths = p.ncuts - 1
    cdef bint fewer = False, back
    cdef Piece *piece
    cdef Piece *main
    cdef Piece *lead = NULL
    for m in range(lengths):
        length = p.cuts[m + 1] - p.cuts[m]
        if length > size:
            size, longest = length, m
        elif size > 1 and length == size:
            longest = -1  # two intervals have the same length
    if longest < 0:
        return
    for i in range(p.nphases):
        main = &p.pieces[longest * p.nphases + i]
        if main.step:
            m = main.t1 - main.t0
            if lead == NULL:
                lead, terms = main, m
            # If there are two phases, the second may have one term less.
            if fewer or m > terms or m < terms - (phase_count == 1) or first_read(p, main) != first_read(p, lead):
                return
            fewer, phase_count = m < terms, phase_count + 1
    for i in range(2 * p.nphases):
        back, main = i % 2 == 0, &p.pieces[longest * p.nphases + i // 2]
        for r in range(1, (terms if back else main.t1 - main.t0) if main.step else 0):
            m = longest - r if back else longest + r
            if not 0 <= m < lengths or p.cuts[m + 1] - p.cuts[m] != 1:
                break
            piece = &p.pieces[m * p.nphases + i // 2]
            if piece.step == 0 or piece.t0 != (main.t0 if back else main.t0 + r):
                break
            if piece.t1 != (min(main.t1, main.t0 + terms - r) if back else main.t1):
                break
            piece.step = 0  # the piece belongs to `main` now
            if back:
                main.before = <int>r
            else:
                main.after = <int>r


cdef fill_runs(Depthwise *s, lanes, const Pieces *p, list keep):
    """Fill the structures that kernels read (`runs`, `phases` and their terms) from all pieces."""
    cdef int64_t n, m, at, out = 0, first_in = 0, terms = 0, tap = s.tap_bytes // s.k.t_size
    cdef convt_dw_term *term
    cdef convt_dw_phase *phase
    cdef convt_dw_phase *first = NULL  # the first of the phases that read the same inputs
    cdef DepthwiseRun *run = NULL
    cdef const Piece *piece
    cdef const Piece *previous = NULL
    cdef const ShownPhase *shown
    # All runs of a phase share its terms, unless offsets in elements may overflow.
    cdef bint shared = (not (s.cells or s.groups_per_vector or s.reads.skips_outside) and s.reads.max_off < 2**31
                        and -2**31 < s.pixel < 2**31)
    cdef bint together, known = False, cut = s.cells and lanes.kernel % s.stride
    for n in range(p.nphases if shared else p.npieces):
        terms += p.phases[n].terms if shared else p.pieces[n].t1 - p.pieces[n].t0
    s.runs = <DepthwiseRun *>zeroed(keep, p.npieces, sizeof(DepthwiseRun))
    s.phases = phase = <convt_dw_phase *>zeroed(keep, p.npieces, sizeof(convt_dw_phase))
    term = <convt_dw_term *>zeroed(keep, terms, sizeof(convt_dw_term))
    for n in range(p.nphases if shared else 0):
        shown = &p.phases[n]
        for m in range(shown.terms):
            term[shown.first_term + m].in_ = -(shown.offset + m * p.read_step) * s.pixel
            term[shown.first_term + m].w = (shown.tap + m * p.tap_step) * tap
    for n in range(p.npieces):
        piece = &p.pieces[n]
        if piece.step == 0:
            continue
        shown = piece.phase
        at = shown.first_out + (piece.start - shown.low) * s.stride  # the first output of the piece
        together = s.stores.in_registers and previous != NULL and previous.start == piece.start and previous.stop == piece.stop
        if not together:
            run = &s.runs[s.nruns]
            run[0] = DepthwiseRun(piece.start, piece.stop, at, 0, 0, s.task.lanes, <int>(phase - s.phases), 0, piece.step, 0, 0)
            if s.cells:  # the window may cut the first and the last cell
                run.low = max(0, s.begin - s.stride * piece.start) * s.channels
                run.high = min(s.stride, s.begin + s.out_size - s.stride * piece.start) * s.channels
            s.nruns += 1
            out, known = at, False
        m = piece.t1 - piece.t0
        if m and not known:  # offsets relative to the first piece are less than an axis, so that they do not overflow
            first_in, known = 0 if shared else first_read(p, piece), True
            run.first_in = piece.start + first_in
        run.phases += 1
        if not (together and (m == 0 or (m <= previous.t1 - previous.t0 and first_read(p, piece) == first_read(p, previous)))):
            first = phase
        first.set_size += 1
        phase.out = (at - out) * s.out_pixel
        phase.term, phase.terms, phase.masked = term, <int>m, cut and m > 0 and piece.t1 == shown.terms
        phase.sliding = s.width == 1 and (m < 2 or p.read_step == piece.step)
        if shared:
            phase.term += shown.first_term + piece.t0
        else:
            for m in range(piece.t0, piece.t1):
                term.in_ = (-shown.offset - m * p.read_step - first_in) * s.pixel
                if not (s.permuted or s.groups_per_vector):
                    term.in_ += run.low
                term.w = (shown.tap + m * p.tap_step) * tap + run.low
                term += 1
        phase.outputs_before, phase.outputs_after = piece.before, piece.after
        run.before, run.after = max(run.before, piece.before), max(run.after, piece.after)
        # Phases that are computed together may lack the first or the last output.
        phase.last = ceil_quotient(piece.stop - piece.start, piece.step)
        if s.reads.skips_outside and piece.step == 1:
            phase.first, phase.last = max(0, shown.low - piece.start), phase.last - max(0, piece.stop - shown.high)
        previous = piece
        phase += 1


# ---------------------------------------------------------------- loops


cdef char *gathered_row(const Depthwise *s, const DepthwiseRow *row, int64_t at, const Call *call) noexcept nogil:
    """Return the inputs from pixel i_lo on of the row at ``at``, gathered or widened. If no earlier output row gathered them,
    they replace the least recently used row of the region "inputs"."""
    cdef const convt_kernels *k = s.k
    # the first in-channel; lanes that are not channels have their in-channels in `maps`
    cdef int64_t channel = row.l0 // s.co * s.ci if s.groups_per_vector or s.reads.is_16_bit else 0
    cdef int64_t c, pixels = row.i_hi - row.i_lo, cols = row.cols
    cdef bint is_kept
    cdef char *inputs = row.ws + s.region.inputs + s.gathered_bytes * place_of_row(
        <KeptRow *>row.ws, s.task.row_taps, at, row.row, &is_kept)
    cdef char *src = call.src + (at + row.i_lo * s.in_step + channel * s.in_c) * k.s_size
    if is_kept:
        return inputs
    if s.reads.is_16_bit:  # widen the channels in their order
        cols = cols // s.co * s.ci
        if cols == s.reads.pitch == s.in_step:  # all pixels are contiguous
            pixels, cols = 1, pixels * cols
        k.widen(inputs, s.reads.pitch, src, s.in_step, s.in_c, <int>pixels, <int>cols, <int>cols)
        return inputs
    for c in range(s.ci):
        k.gather(inputs + c * s.source_step, s.reads.pitch, src, s.in_step, s.maps + c * s.task.lanes + row.l0, <int>pixels,
                 <int>cols, <int>(cols if s.width > 1 else s.reads.pitch))
    return inputs


cdef void set_sources(Depthwise *s, DepthwiseRow *row, const int64_t *row_tap, int64_t count, const Call *call) noexcept nogil:
    """Set the arguments of kernel calls that are equal for all runs: the ``count`` input rows, (offset, tap) each in
    ``row_tap``, and their weights."""
    cdef const convt_kernels *k = s.k
    cdef const void **sources = <const void **>(row.ws + s.region.sources)  # pixel 0 of each input row and in-channel
    cdef const void **weights = <const void **>(row.ws + s.region.weights)  # weights of each source
    cdef int64_t at, n, c, last = 0, lane = 0 if s.groups_per_vector else row.l0
    cdef bint can_overread = True
    cdef char *source
    cdef char *weight
    cdef convt_dw *d = &row.d
    for n in range(count):
        at, last = row.image + row_tap[2 * n], row_tap[2 * n] if n == 0 else max(last, row_tap[2 * n])
        can_overread &= at <= s.last_safe_offset
        if s.gathers:
            source = gathered_row(s, row, at, call)
            source -= (row.i_lo * s.pixel + (row.l0 // s.co * s.ci if s.groups_per_vector else 0)) * k.t_size
        else:
            source = call.src + (at if s.permuted else at + lane) * k.s_size
        weight = call.weights + row_tap[2 * n + 1] * s.row_tap_bytes + lane * k.t_size
        for c in range(s.sources_per_row):
            sources[n * s.sources_per_row + c] = source + c * s.source_step
            weights[n * s.sources_per_row + c] = weight + c * s.weights_ld
    d.sources, d.in_, d.w = <int>(count * s.sources_per_row), sources, weights
    d.can_overread, d.vector_step = can_overread, s.vector_step
    d.out_prefetch, d.inputs_uncached, d.ordered, d.pair_distance = 0, s.reads.far, s.stores.ordered, 0
    d.stream = s.stores.non_temporal and not <size_t>call.dst % s.stores.non_temporal
    d.groups, d.skip_outside, d.next_input_row = NULL, s.reads.skips_outside, NULL
    if s.reads.far and s.in_place and s.next_row and count > 0:
        # The prefetched address may be beyond the image; prefetching an invalid address is harmless.
        last += row.image + s.next_row + lane
        d.next_input_row = <char *>(<size_t>call.src + <size_t>(last * k.s_size))
    if s.groups_per_vector:
        d.groups = &s.group_layout
        d.v0 = <int>(row.l0 // s.bundle_lanes * s.bundle_vectors)
        d.v1 = <int>((row.l0 + row.cols + s.bundle_lanes - 1) // s.bundle_lanes * s.bundle_vectors)


cdef void run_row(Depthwise *s, DepthwiseRow *row, const Call *call) noexcept nogil:
    """Compute the task's lanes and j of an output row, part by part."""
    cdef char *stage = row.ws + s.region.stage
    cdef int64_t low, high, stop, j = row.j_lo
    while j < row.j_hi:
        stop = min(row.j_hi, part_end(s, j + s.stores.part))
        if s.stores.staged_outputs:
            low, high = max(0, j * s.stride - s.begin), min(s.out_size, stop * s.stride - s.begin)
            if low < high:  # false for parts of the last block beyond the end of the row
                run_part(s, row, stage - (low * s.out_pixel + (row.l0 if s.reads.is_16_bit else 0)) * s.k.t_size, j, stop, call)
                write_stage(s, row, stage, low, high - low)
        else:
            run_part(s, row, row.dst, j, stop, call)
        j = stop
    if row.d.stream or s.stores.streams_rounded or (s.stores.staged_outputs and not s.reads.is_16_bit):
        s.k.fence()


cdef int64_t part_end(const Depthwise *s, int64_t stop) noexcept nogil:
    """Return the end of a part that should end at j ``stop``. If outputs are staged, the end is moved so that the part
    with the first j of a run has the outputs before it, and the part with the last j has those after it."""
    cdef DepthwiseRun *run
    cdef int64_t n
    for n in range(s.nruns if s.stores.staged_outputs else 0):
        run = &s.runs[n]
        if run.start - run.before < stop <= run.start:
            stop = run.start + 1
        elif run.stop <= stop < run.stop + run.after:
            stop = run.stop + run.after
    return stop


cdef void write_stage(const Depthwise *s, const DepthwiseRow *row, char *stage, int64_t low, int64_t count) noexcept nogil:
    """Copy ``count`` outputs of a row, from output ``low`` on, from the stage to the output; round them if they are widened."""
    cdef const convt_kernels *k = s.k
    cdef int64_t pixel = s.out_step, cols = row.cols
    cdef char *dst = row.dst + low * pixel * k.s_size
    if not s.reads.is_16_bit:
        k.copy_non_temporal(dst, stage, count * pixel * k.t_size)
        return
    if cols == s.out_pixel == pixel:  # all outputs are contiguous
        count, cols = 1, count * cols
    k.narrow(dst + row.l0 * k.s_size, pixel, 1, stage, s.out_pixel, 1, <int>count, <int>cols, s.stores.streams_rounded)


cdef void run_part(Depthwise *s, DepthwiseRow *row, char *dst, int64_t j_lo, int64_t j_hi, const Call *call) noexcept nogil:
    """Compute j_lo <= j < j_hi of a row, run by run; output 0 of the row is at ``dst``."""
    cdef convt_dw *d = &row.d
    cdef DepthwiseRun *run
    cdef int64_t n, at, start, skipped_j, j_left, pixel, low, high, step, at_lane
    for n in range(s.nruns):
        run = &s.runs[n]
        skipped_j = ceil_quotient(max(0, j_lo - run.start), run.step)  # number of j of the run before this part
        start = run.start + skipped_j * run.step
        j_left = ceil_quotient(min(run.stop, j_hi) - start, run.step)
        low, high = max(run.low, row.l0), min(run.high, row.l0 + row.cols)
        if j_left <= 0 or low >= high:
            continue
        at = run.first_out * s.out_pixel
        at += low // s.channels * s.out_pixel if s.separate_pixels else low * s.lane_step
        step = 0
        if j_left > 1 or skipped_j > 0:  # otherwise the stride is arbitrary, and a product with it could overflow
            step = run.step * s.stride * s.out_pixel
            at += skipped_j * step
        d.phase, d.phases = &s.phases[run.phase], run.phases
        pixel = run.first_in + start - run.start
        d.in_offset = pixel * s.pixel
        at_lane = 0 if s.groups == 1 else low  # with one group, all vectors have the same table
        d.vector_offset = s.maps + at_lane if s.permuted else NULL
        d.index = s.permutation + at_lane if s.permuted else NULL
        d.init = call.bias + low * s.k.t_size
        d.mask = call.weights + s.mask + low * s.k.t_size
        d.has_before, d.has_after = skipped_j == 0, j_hi >= run.stop
        d.first_j = skipped_j
        d.low_pixel, d.high_pixel = ceil_quotient(row.i_lo - pixel, run.step), ceil_quotient(row.i_hi - pixel, run.step)
        d.mask_end = <int>(s.last_row_lanes - low if s.width == 1 else s.width * s.task.lanes)
        run_js(s, row, dst, at, j_left, step, run.step, high - low)


cdef void run_js(Depthwise *s, DepthwiseRow *row, char *dst, int64_t at, int64_t j_left, int64_t out_step, int64_t run_step,
                 int64_t lanes) noexcept nogil:
    """Compute ``j_left`` j of a run, whose first output is at ``at``: all of them by one kernel call if it stores them, else as
    many at a time as the region "outs" holds."""
    cdef const convt_kernels *k = s.k
    cdef convt_dw *d = &row.d
    cdef char *outs = row.ws + s.region.outs
    cdef int64_t wide, m, r, stored_lanes  # number of j in a row of lanes
    cdef void *rows[SCRATCH]
    while j_left > 0:
        wide = min(s.width, j_left)
        d.n = <int>(j_left if wide == 1 else convt_quotient(j_left, wide))
        d.cols = <int>(lanes if wide == 1 else wide * s.task.lanes)
        d.in_ld = wide * run_step * s.pixel
        if s.stores.in_registers:
            d.act = &s.act
            d.out, d.out_ld = dst + at * k.t_size, wide * out_step
            d.out_prefetch = s.stores.prefetch_j * d.out_ld
            k.depthwise(d)
        else:
            d.act = &s.none
            d.out, d.out_ld = outs, s.outs_ld
            d.n = min(d.n, SCRATCH)
            k.depthwise(d)
            stored_lanes = s.channels if s.separate_pixels else d.cols  # lanes that one call stores
            for m in range(d.cols // stored_lanes):
                for r in range(d.n):
                    rows[r] = dst + (at + r * wide * out_step + m * s.out_pixel) * k.s_size
                k.store(rows, s.out_c if s.separate_pixels else s.lane_step, outs + m * stored_lanes * k.t_size, s.outs_ld, d.n,
                        <int>stored_lanes, &s.act)
        j_left -= d.n * wide
        at += d.n * wide * out_step
        d.in_offset += d.n * d.in_ld
        d.first_j += d.n
        d.low_pixel -= d.n
        d.high_pixel -= d.n
