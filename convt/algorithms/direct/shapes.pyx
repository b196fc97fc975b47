# cython: language_level=3, cdivision=True
"""Per-class decisions and cycles of `direct`: which rows are packed, depth chunks, cycles, division into tasks.

schedule.py makes a `Shape` for each kind of classes in every way that it compares, so this module is compiled. A Shape is made
from one phases.Kind per axis; classes that are mirror images share a Shape. Its cycles follow the rule of costs.py. The counts
are an array, in the order of `count_names`.
"""

import math

from libc.math cimport ceil
from libc.stdint cimport int64_t

from convt._core import KC
from convt._base.problem import ITEMSIZE
from convt.algorithms import common
from convt._model import costs
from convt.algorithms.tiles cimport TileCounts, TileSizes, count_tiles, tile_sizes

cdef enum:
    _KC = 256
    LEAST_DEPTH = 96  # the fewest in-channels of a sparse class, whose depth chunks have one tap each
    LEAST = 28  # the fewest rows of a task: low blocks spread the packing of inputs over threads, high blocks share weights

LEAST_ROWS = LEAST
assert KC == _KC

cdef double MOST_SHARE = 0.92  # a class is sparse only if at most this fraction of rows times taps is inside the input
cdef double EXPOSED = costs.EXPOSED
cdef int64_t MAX_PARTIAL = common.MAX_PARTIAL

cdef enum:  # indices of the counts, in the order of `count_names`; counts before WEIGHT are computing, WEIGHT_L3 is fetching
    TILE, CALL, ACCUMULATOR, WEIGHT, WEIGHT_L3, STALL, WEIGHT_AMX, PACK, REST, START, ROW, TASK, PIECE, STORE


cdef enum:
    COUNTS = 14


cdef list count_names(unit):
    """Return the names (costs.NAMES) of all counts in their order; "" for a count that the unit does not have."""
    amx = unit.matrix
    return [
        "amx_product" if amx else "tile_cycle" if unit.kstep == 1 else "dot_cycle", "amx_call" if amx else "tile_call",
        "" if amx else "tile_accumulator", "weight_byte", "weight_byte_l3", "in_byte_l3", "weight_byte_amx" if amx else "",
        "amx_pack" if amx else "move", "" if amx else "rest", "start", "row", "task", "piece", "store" if amx else "",
    ]  # fmt: skip


def part(unit):
    """Return the name of the costs of `direct` on a unit (costs.Profile)."""
    return "direct_amx" if unit.matrix else "direct"


cdef class Terms:
    """The values that all classes of a problem share: sizes, costs and limits."""

    cdef readonly object problem, unit, here
    cdef TileSizes tile
    cdef double prices[COUNTS]
    cdef readonly bint traced  # cycles carry their counts (costs.TracedCosts)
    cdef readonly int64_t groups
    cdef int64_t rank, batch, ci, co, filled  # `filled` is `ci` rounded up to whole steps of depth
    cdef int64_t e_size, t_size, s_size, item_size, lda, wide, max_tile_rows, task_rows, input_bytes, shallow_depth
    cdef int64_t same_set, strip_bytes
    cdef int64_t panel_period  # lcm of out-channels and n_r: at its multiples, a phase and a panel begin together
    cdef int64_t in_sizes[64]
    cdef double weight_bytes  # bytes of the weights that the window shows
    cdef double l2  # bytes of L2
    cdef double whole_vectors, has_rest  # whole vectors of in-channels (steps of depth on AMX), and 1 if in-channels remain
    cdef double call_cycles, pack_cycles  # cycles of kernel calls per row and panel, and of packing per row and tap

    def __init__(self, problem, unit, here):
        cdef int64_t ax, n
        self.problem, self.unit, self.here = problem, unit, here
        self.tile = tile_sizes(unit)
        names = count_names(unit)
        values = here.profile[part(unit)].values
        for n in range(COUNTS):
            self.prices[n] = values[names[n]] if names[n] else 0.0
        self.traced = isinstance(here.profile[part(unit)], costs.TracedCosts)
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        self.rank, self.filled = len(problem.in_sizes), unit.filled(problem.ci)
        for ax in range(self.rank):
            self.in_sizes[ax] = problem.in_sizes[ax]
        self.e_size, self.t_size, self.s_size, self.item_size = unit.e_size, unit.t_size, unit.s_size, ITEMSIZE[problem.dtype]
        self.lda, self.wide, self.task_rows = unit.lda, unit.wide, unit.task_rows
        self.max_tile_rows = unit.mr[2 if unit.nr > unit.vl else 1]
        self.input_bytes, self.shallow_depth = unit.input_bytes, here.limits.shallow_depth
        self.same_set, self.strip_bytes = here.limits.same_set, here.limits.strip
        self.weight_bytes, self.l2 = common.filter_bytes(problem, unit), here.l2
        self.panel_period = max(1, math.lcm(self.co, unit.nr))
        self.has_rest = self.call_cycles = self.pack_cycles = 0
        if unit.matrix:
            self.whole_vectors = self.ci // unit.kstep + 0.7 * (self.ci % unit.kstep > 0)
        else:
            self.whole_vectors, self.has_rest = self.ci // unit.vl, self.ci % unit.vl > 0
            self.call_cycles = self.prices[CALL] / unit.mr[2] + self.prices[ACCUMULATOR] * unit.nr / unit.vl
            self.pack_cycles = self.prices[PACK] * self.whole_vectors + self.prices[REST] * self.has_rest


cdef class Shape:
    """The decisions and cycles of a class.

    ``kinds`` has the phases.Kind of its run on each axis. ``given`` is (depth chunks, whether it is sparse) if the problem has
    an order, else None.
    """

    cdef readonly Terms terms
    cdef readonly int64_t rows, columns, taps, chunks, deepest
    cdef readonly int64_t window  # depth chunks stay within this many taps, which are adjacent in memory; 0: any number of taps
    cdef readonly bint sparse  # each depth chunk has one tap, and skips the rows that the tap does not reach
    cdef readonly double packed  # fraction of rows times taps that is packed; the rest is read in place if data is contiguous
    cdef readonly double total  # cycles of the class in all channel groups
    cdef readonly int64_t most_tasks  # the most tasks of the class in all channel groups
    cdef int64_t panel_taps  # taps of its phase groups, all of which its panels have
    cdef int64_t run_length  # positions of the run on the last axis
    cdef int64_t last_taps  # taps on the last axis
    cdef int64_t contiguous_taps  # taps of a depth chunk that are contiguous in the panels
    cdef int64_t row_stride, strided_rows  # pixels between rows in the input, and the number of rows with this stride
    cdef double reached_rows  # fraction of rows times taps that is inside the input
    cdef int64_t adjacent_columns  # columns that are adjacent in the output
    cdef double full_depth, reached_depth  # depth at which all rows are multiplied, and at which `reached_share` of them are
    cdef double reached_share
    cdef double inside_fraction  # fraction of packed elements that are inside the input
    cdef double shown_fraction  # fraction of panels that the window shows
    cdef double outside_fraction  # fraction of rows with a phase outside the window

    def __init__(self, Terms terms, kinds, given=None):
        self.terms = terms
        read_sizes(self, kinds)
        find_strided_rows(self, kinds)
        self.sparse = given[1] if given is not None else (
            self.reached_rows <= MOST_SHARE and terms.ci >= LEAST_DEPTH and self.taps * ((terms.ci + _KC - 1) // _KC) > 3)
        decide_packing(self, kinds)
        divide_depth(self, given)
        self.total = untraced_cycles(self, self.rows, self.columns) * terms.groups
        cdef int64_t panels = (self.columns + terms.tile.nr - 1) // terms.tile.nr
        self.most_tasks = max(1, self.rows // LEAST) * max(1, panels) * terms.groups

    def counts(self, rows, columns):
        """Return (name of the costs, counts by name) of some rows and columns."""
        cdef double values[COUNTS]
        cdef int64_t n
        count_rows(self, rows, columns, values)
        names = count_names(self.terms.unit)
        named = {names[n]: values[n] for n in range(COUNTS) if names[n] and values[n]}
        return part(self.terms.unit), named

    def cycles(self, rows, columns):
        """Return the cycles of some rows and columns, with a record of their counts if the profile traces costs."""
        if not self.terms.traced:
            return untraced_cycles(self, rows, columns)
        name, counts = self.counts(rows, columns)
        return self.terms.here.profile[name].cycles(counts)

    def tasks(self, double target, int64_t least_rows, int64_t threads):
        """Return the `Division` of the class into tasks of about ``target`` cycles.

        The class is divided into row blocks of at least ``least_rows``, and also into panel blocks if these are too few.
        """
        cdef Terms t = self.terms
        cdef int64_t nr = t.tile.nr, panels = (self.columns + nr - 1) // nr, most = most_rows(self), tile, pieces
        cdef int64_t block, blocks, panel_block, span
        pieces = <int64_t>max(1.0, ceil(self.total / t.groups / target - 0.01))  # the 0.01 absorbs rounding errors
        block = max(min(most, (self.rows + pieces - 1) // pieces), min(self.rows, min(least_rows, most)))
        blocks = (self.rows + block - 1) // block
        if blocks > threads:  # give each thread as many
            blocks = (blocks + threads - 1) // threads * threads
        tile = t.tile.most if t.tile.parts else 1  # AMX multiplies whole tiles
        block = (self.rows + blocks * tile - 1) // (blocks * tile) * tile
        blocks = (self.rows + block - 1) // block
        pieces = max(<int64_t>1, min(panels, pieces // blocks))
        panel_block = (panels + pieces - 1) // pieces
        span = max(<int64_t>1, t.input_bytes // (block * t.lda * t.e_size))
        if self.chunks > span:  # partial sums of all panels of a task are kept between spans
            panel_block = min(panel_block, max(<int64_t>1, MAX_PARTIAL // (block * nr * t.t_size)))
        return common.Division(
            block, blocks, panel_block, (panels + panel_block - 1) // panel_block, span,
            untraced_cycles(self, min(block, self.rows), min(self.columns, panel_block * nr)),
        )

    def order(self, int64_t block):
        """Return (`pair_rows`, `strip`) of schedule.Class for tasks of ``block`` rows.

        Tasks of at most `pair_rows` rows multiply two panels at once. `strip` is the number of rows that are multiplied by all
        panels before the next rows, if the panels stay in L2.
        """
        cdef Terms t = self.terms
        cdef int64_t panels = (self.columns + t.tile.nr - 1) // t.tile.nr
        # With enough registers, low tiles of two panels have as many accumulators, and write two panels of a row at once.
        cdef bint low = self.chunks == 1 and self.deepest <= t.shallow_depth and 5 * t.wide >= 2 * t.max_tile_rows
        cdef int64_t strip = t.max_tile_rows * (self.panel_taps * t.filled * t.e_size + panels * t.tile.nr * t.s_size)
        return block if low else t.wide, t.max_tile_rows * max(<int64_t>1, t.strip_bytes // max(strip, <int64_t>1))


cdef void read_sizes(Shape s, kinds) except *:
    """Set rows, columns, taps and the fractions inside window and input, from the kinds of the runs."""
    cdef Terms t = s.terms
    cdef int64_t n, count, ktaps, kphases, kshown, phases = 1, last_phases = 1
    cdef double inside = 1, shown = 1, last_shown = 1
    s.rows, s.taps, s.panel_taps, s.contiguous_taps, s.reached_rows = t.batch, 1, 1, 1, 1.0
    for n in range(t.rank - 1, -1, -1):
        kind = kinds[n]
        count, ktaps, kphases, kshown = kind.count, kind.taps, kind.phases, kind.shown
        if s.panel_taps == s.taps:  # the taps of the inner axes are all those that the panels have
            s.contiguous_taps *= ktaps
        s.rows *= count
        s.taps *= ktaps
        s.panel_taps *= kind.group_taps
        phases *= kphases
        inside *= 1 - <double>kind.outside / count
        if kind.reached:
            s.reached_rows *= <double>sum(kind.reached) / (count * ktaps)
        if n == t.rank - 1:
            s.run_length, last_phases, s.last_taps, last_shown = count, kphases, ktaps, <double>kshown / kphases
        else:
            shown *= <double>kshown / kphases
    s.columns = t.co * phases
    if last_shown < 1:  # the shown phases may start and end within a panel
        last_shown = min(1.0, last_shown + <double>t.tile.nr / (t.co * last_phases))
    s.shown_fraction, s.outside_fraction = shown * last_shown, 1 - inside
    s.adjacent_columns = t.co * (last_phases if t.groups == 1 else 1)


cdef void find_strided_rows(Shape s, kinds) except *:
    """Set the number of rows that have a constant stride in contiguous data, and this stride in pixels."""
    cdef Terms t = s.terms
    cdef int64_t n, count, step = 1
    s.row_stride, s.strided_rows = 1, 1
    for n in range(t.rank - 1, -2, -1):  # the batch is the outermost axis
        count = kinds[n].count if n >= 0 else t.batch
        if s.strided_rows == 1:
            s.row_stride = step
        elif count > 1 and step != s.row_stride * s.strided_rows:
            return
        s.strided_rows *= count
        if n >= 0:
            step *= t.in_sizes[n]


cdef void decide_packing(Shape s, kinds) except *:
    """Decide which rows are packed, and whether depth chunks stay within taps that are adjacent in memory (`window`)."""
    cdef Terms t = s.terms
    cdef int64_t n, count, ends, adjacent, windows, chunks, block = min(s.rows, t.task_rows), inner = 1
    cdef double share = 0.0, crossing
    s.window, s.packed = 0, 1.0
    if (s.sparse or t.tile.parts or t.item_size != t.e_size or s.taps * t.ci == 0 or t.ci % t.tile.kstep
            or s.row_stride * t.groups * t.ci * t.e_size % t.same_set == 0):
        return
    for n in range(t.rank - 1, -1, -1):
        count, ends = kinds[n].count, kinds[n].ends
        share += <double>(ends * max(block, inner)) / (inner * count)
        inner *= count
    if s.strided_rows < s.rows:
        share = max(share, <double>block / s.strided_rows)
    adjacent = s.last_taps if t.groups == 1 and kinds[t.rank - 1].consecutive else 1
    windows, s.packed = s.taps // adjacent, min(1.0, share)
    if s.packed == 1 or windows == 1:
        return
    # A chunk that crosses the end of a window is packed. Ending chunks at windows avoids that, but makes more and shorter
    # chunks, which take more kernel calls.
    chunks = (s.taps * t.ci + _KC - 1) // _KC
    crossing = min(1.0, <double>(windows - 1) / chunks)
    share = <double>s.columns / t.tile.nr * t.call_cycles * (windows * ((adjacent * t.ci + _KC - 1) // _KC) - chunks)
    if share <= crossing * s.taps * t.pack_cycles:
        s.window = adjacent
    else:
        s.packed += (1 - s.packed) * crossing


cdef void divide_depth(Shape s, given) except *:
    """Divide the depth into chunks, and set the depth at which all rows are multiplied."""
    cdef Terms t = s.terms
    cdef int64_t size, pieces, taps = s.contiguous_taps, depth = s.taps * t.filled
    if s.sparse or s.window:
        taps = s.last_taps if s.window > 1 else 1
    if given is not None:
        s.chunks, s.deepest = len(given[0]), max([each for _, each, _ in given[0]])
    elif depth == 0:
        s.chunks, s.deepest = 1, 0
    else:
        size = taps * t.filled
        pieces = (size + _KC - 1) // _KC
        s.deepest = ((size + pieces - 1) // pieces + t.tile.kstep - 1) // t.tile.kstep * t.tile.kstep
        s.chunks = s.taps // taps * ((size + s.deepest - 1) // s.deepest)
    s.full_depth, s.reached_depth, s.reached_share, s.inside_fraction = depth, 0, 1.0, 1.0
    if s.sparse:  # the first and the last depth chunk multiply all rows, others the rows that their tap reaches
        s.full_depth = 2 * min(t.filled, <int64_t>_KC)
        s.reached_depth, s.inside_fraction = max(0.0, depth - s.full_depth), s.reached_rows
        s.reached_share = (s.reached_rows * depth - s.full_depth) / max(1.0, s.reached_depth)


cdef void add_tiles(Terms t, double rows, int64_t columns, double depth, int64_t chain, double *values) noexcept:
    """Add the counts of register tiles to ``values``."""
    cdef TileCounts tiles = count_tiles(&t.tile, rows, columns, depth, chain, t.wide)
    values[TILE] += tiles.cycles
    values[CALL] += tiles.calls
    values[ACCUMULATOR] += tiles.accumulators


cdef void count_rows(Shape s, int64_t rows, int64_t columns, double *values) noexcept:
    """Fill ``values`` with the counts of some rows and columns, without panels that the window does not show."""
    cdef Terms t = s.terms
    cdef int64_t n, padded, panels, nr = t.tile.nr, chain = min(<int64_t>_KC, s.window * t.ci) if s.window else _KC
    cdef double bytes, total, moved = s.packed * s.taps * rows, pieces
    for n in range(COUNTS):
        values[n] = 0
    if s.shown_fraction < 1:
        columns = <int64_t>ceil(columns * s.shown_fraction)
    add_tiles(t, rows, columns, s.full_depth, chain, values)
    if s.reached_depth > 0:
        add_tiles(t, rows * s.reached_share, columns, s.reached_depth, chain, values)
    panels, padded = (columns + nr - 1) // nr, (columns + t.tile.vl - 1) // t.tile.vl * t.tile.vl
    bytes = <double>padded * s.taps * t.filled * t.e_size * ((rows + t.task_rows - 1) // t.task_rows)
    total = t.weight_bytes * padded / max(columns, 1)
    values[WEIGHT] = bytes
    if total > t.l2:
        values[WEIGHT_L3] = values[STALL] = (1 - t.l2 / total) * bytes
    values[PACK], values[REST] = moved * s.inside_fraction * t.whole_vectors, moved * s.inside_fraction * t.has_rest
    values[START] = moved / max(1, min(s.run_length, t.task_rows))
    values[ROW], values[TASK] = rows, 1
    if columns > s.adjacent_columns and s.adjacent_columns % nr:
        pieces = min(<double>panels, <double>columns / s.adjacent_columns - 1) * (
            1 + <double>min(nr, columns) / s.adjacent_columns)
        values[PIECE] = rows * (1 - s.outside_fraction) * pieces
    if s.outside_fraction:
        values[PIECE] += rows * s.outside_fraction * (
            panels + columns // t.co - (columns + t.panel_period - 1) // t.panel_period)
    values[ROW] += rows * s.outside_fraction * panels
    if t.tile.parts:
        if total > 2 * t.l2:  # more than the L2 of two cores
            values[WEIGHT_AMX] = (1 - 2 * t.l2 / total) * bytes
        values[STORE] = <double>rows * columns / t.tile.vl


cdef double untraced_cycles(Shape s, int64_t rows, int64_t columns) noexcept:
    """Return the cycles of some rows and columns by the rule of costs.py."""
    cdef double values[COUNTS]
    cdef double serial = 0, compute = 0, fetch
    cdef double *prices = s.terms.prices
    cdef int64_t n
    count_rows(s, rows, columns, values)
    for n in range(WEIGHT):
        compute += values[n] * prices[n]
    fetch = values[WEIGHT_L3] * prices[WEIGHT_L3]
    for n in range(WEIGHT, COUNTS):
        serial += values[n] * prices[n]
    serial -= fetch
    return serial + max(compute, fetch) + EXPOSED * min(compute, fetch)


cdef int64_t most_rows(Shape s) noexcept:
    """Return the most rows of a task.

    It is Unit.task_rows. On vectors with one tap and at most two panels it is up to 8 times as many, because rows are read once.
    """
    cdef Terms t = s.terms
    if t.tile.parts or s.taps != 1 or s.columns > 2 * t.tile.nr:
        return t.task_rows
    return t.task_rows * max(<int64_t>1, min(<int64_t>8, _KC // max(t.ci, <int64_t>1)))
