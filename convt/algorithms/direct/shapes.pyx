# cython: language_level=3, cdivision=True
"""Per-class decisions and cycles of `direct`: which rows are packed, depth chunks, cycles, division into tasks.

schedule.py makes a `Shape` for each kind of classes in every way that it compares, so this module is compiled. A Shape is made
from one phases.Kind per axis; classes that are mirror images share a Shape. Its cycles follow the rule of costs.py. The counts
are an array, in the order of `count_names`.
"""

import collections
import itertools
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
    L1_BYTES = 40 << 10  # bytes of L1 for the rows of a task, beside a panel
    LEAST = 28  # the fewest rows of a task: low blocks spread the packing of inputs over threads, high blocks share weights

LEAST_ROWS = LEAST
assert KC == _KC

cdef double MOST_SHARE = 0.92  # a class is sparse only if at most this fraction of rows times taps is inside the input
cdef double EXPOSED = costs.EXPOSED

cdef enum:  # indices of the counts, in the order of `count_names`; counts before WEIGHT are computing, WEIGHT_L3 is fetching
    TILE, CALL, ACCUMULATOR, WEIGHT, WEIGHT_L3, STALL, WEIGHT_AMX, PACK, REST, START, ROW, TASK, PIECE, STORE


cdef enum:
    COUNTS = 14
    LEVELS = 16  # levels of a sparse class: taps that reach about as many rows are one level


cdef struct ClassCut:
    # A division of a class into tasks: see schedule.Class.
    int64_t block, blocks, panel_block, panel_blocks, span
    double work


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
    return "matrix" if unit.matrix else "direct"


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
    cdef int64_t adjacent_columns  # columns that are adjacent in the output
    cdef int64_t levels  # used items of `level_share` and `level_depth`
    cdef double level_share[LEVELS]  # fraction of the rows that is multiplied ...
    cdef double level_depth[LEVELS]  # ... at this much depth
    cdef double inside_fraction  # fraction of packed elements that are inside the input
    cdef double shown_fraction  # fraction of panels that the window shows
    cdef double outside_fraction  # fraction of rows with a phase outside the window
    cdef double edge_fraction  # fraction of tiles that have such a row

    def __init__(self, Terms terms, kinds, given=None):
        self.terms = terms
        self.read_kinds(kinds, given)
        self.total = self.untraced_cycles(self.rows, self.columns) * terms.groups
        self.most_tasks = max(1, self.rows // LEAST) * max(1, (self.columns + terms.tile.nr - 1) // terms.tile.nr) * terms.groups

    cdef void read_kinds(self, kinds, given) except *:
        """Set all fields from the kinds of the runs: sizes, sparsity, share of packed rows, depth chunks."""
        cdef Terms t = self.terms
        cdef int64_t n, m, count, ktaps, kof, kphases, kshown, koutside, pixels = 1, phases = 1, run = 1, row_stride = 1
        cdef int64_t step = 1, contiguous_taps = 1, adjacent_taps, window_count, chunks, block, inner, last_phases = 1
        cdef int64_t last_taps = 1, tile_spread = t.tile.most - 1, size
        cdef bint constant_stride = True, all_taps = True, aliased
        cdef double inside_rows = 1, inside_tiles = 1, reached = 1, shown = 1, share, crossing, last_shown = 1
        self.taps = self.panel_taps = 1
        for n in range(t.rank - 1, -1, -1):
            kind = kinds[n]
            count, ktaps, kof, kphases, kshown, koutside = kind[0], kind[1], kind[2], kind[3], kind[4], kind[5]
            if constant_stride:  # rows of this axis continue those of the inner axes at one stride
                if run == 1:
                    row_stride = step
                elif count > 1 and step != row_stride * run:
                    constant_stride = False
                if constant_stride:
                    run *= count
            step *= t.in_sizes[n]
            pixels *= count
            self.taps *= ktaps
            self.panel_taps *= kof
            phases *= kphases
            if koutside:
                inside_rows *= 1 - <double>koutside / count
                inside_tiles *= max(0.0, 1 - <double>(koutside + tile_spread) / count)
            tile_spread = 0  # a tile spans several rows only along the last axis, the first one of this loop
            if kind[8]:
                reached *= <double>sum(kind[8]) / (count * ktaps)
            if n == t.rank - 1:
                self.run_length, last_phases, last_taps, last_shown = count, kphases, ktaps, <double>kshown / kphases
            elif kshown < kphases:
                shown *= <double>kshown / kphases
            if all_taps:
                contiguous_taps *= ktaps
                all_taps = ktaps == kof
        if constant_stride:
            if run == 1:
                row_stride = step
            if run == 1 or t.batch == 1 or step == row_stride * run:
                run *= t.batch
        self.rows, self.columns = pixels * t.batch, t.co * phases
        if last_shown < 1:  # the shown phases may start and end within a panel
            last_shown = min(1.0, last_shown + <double>t.tile.nr / (t.co * last_phases))
        self.shown_fraction = shown * last_shown
        self.outside_fraction, self.edge_fraction = 1 - min(inside_rows, 1.0), 1 - inside_tiles
        self.adjacent_columns = t.co * (last_phases if t.groups == 1 else 1)
        if given is None:
            self.sparse = reached <= MOST_SHARE and t.ci >= LEAST_DEPTH and self.taps * ((t.ci + _KC - 1) // _KC) > 3
        else:
            self.sparse = given[1]
        self.inside_fraction = reached if self.sparse else 1.0
        self.window, self.packed = 0, 1.0
        aliased = row_stride * t.groups * t.ci * t.e_size % t.same_set == 0
        if not (self.sparse or t.tile.parts or t.item_size != t.e_size or self.taps * t.ci == 0 or t.ci % t.tile.kstep
                or aliased):
            block, share, inner = min(self.rows, t.task_rows), 0.0, 1
            for n in range(t.rank - 1, -1, -1):
                count = kinds[n][0]
                if kinds[n][6]:
                    share += <double>(<int64_t>kinds[n][6] * max(block, inner)) / (inner * count)
                inner *= count
            if run < self.rows:
                share = max(share, <double>block / run)
            adjacent_taps = last_taps if t.groups == 1 and kinds[t.rank - 1][7] else 1
            window_count, self.packed = self.taps // adjacent_taps, min(1.0, share)
            if self.packed < 1 and window_count > 1:
                # A chunk that crosses the end of a window is packed. Ending chunks at windows avoids that, but makes more and
                # shorter chunks, which take more kernel calls.
                chunks = (self.taps * t.ci + _KC - 1) // _KC
                crossing = min(1.0, <double>(window_count - 1) / chunks)
                share = <double>self.columns / t.tile.nr * t.call_cycles * (
                    window_count * ((adjacent_taps * t.ci + _KC - 1) // _KC) - chunks)
                if share <= crossing * self.taps * t.pack_cycles:
                    self.window = adjacent_taps
                else:
                    self.packed += (1 - self.packed) * crossing
        if self.sparse or self.window:
            contiguous_taps = last_taps if self.window > 1 else 1
        if given is not None:
            self.chunks, self.deepest = len(given[0]), max([depth for _, depth, _ in given[0]])
        elif self.taps * t.filled == 0:
            self.chunks, self.deepest = 1, 0
        else:
            size = contiguous_taps * t.filled
            count = (size + _KC - 1) // _KC
            self.deepest = ((size + count - 1) // count + t.tile.kstep - 1) // t.tile.kstep * t.tile.kstep
            self.chunks = self.taps // contiguous_taps * ((size + self.deepest - 1) // self.deepest)
        self.levels, self.level_share[0], self.level_depth[0] = 1, 1.0, self.taps * t.filled
        if self.sparse:
            self.find_depths(kinds)

    cdef void find_depths(self, kinds) except *:
        """Fill ``level_share`` and ``level_depth`` of a sparse class.

        The first and the last depth chunk multiply all rows; other chunks multiply the rows that their tap reaches. Taps that
        reach about as many rows are merged into one of LEVELS levels.
        """
        cdef double pixels = self.rows // max(1, self.terms.batch), ci = self.terms.filled, end = min(ci, <double>_KC), depth
        reached = {1: 1}
        for kind in kinds:
            before, reached = reached, collections.Counter()
            for (a, n), (b, m) in itertools.product(
                before.items(), collections.Counter(kind.reached or (kind.count,) * kind.taps).items()
            ):
                reached[a * b] += n * m
        self.level_depth[0] = 2 * end
        left, most = 2, self.taps * ci / (LEVELS - 2) if len(reached) > LEVELS - 2 else 0.0
        for count, many in sorted(reached.items(), reverse=True):
            depth, left = many * ci - end * min(left, many), max(0, left - many)
            n = self.levels - 1
            if n and (self.level_depth[n] + depth <= most or n == LEVELS - 1):
                self.level_share[n] = (self.level_share[n] * self.level_depth[n] + count / pixels * depth) / max(
                    self.level_depth[n] + depth, 1.0)
                self.level_depth[n] += depth
            elif depth > 0:
                self.level_share[n + 1], self.level_depth[n + 1] = count / pixels, depth
                self.levels += 1

    cdef void count(self, int64_t rows, int64_t columns, double *values) noexcept:
        """Fill ``values`` with the counts of some rows and columns, without panels that the window does not show."""
        cdef Terms t = self.terms
        cdef TileCounts tiles
        cdef int64_t n, padded, panels, nr = t.tile.nr, chain = min(<int64_t>_KC, self.window * t.ci) if self.window else _KC
        cdef double bytes, total, moved = self.packed * self.taps * rows, pieces
        for n in range(COUNTS):
            values[n] = 0
        if self.shown_fraction < 1:
            columns = <int64_t>ceil(columns * self.shown_fraction)
        for n in range(self.levels):
            tiles = count_tiles(&t.tile, rows * self.level_share[n], columns, self.level_depth[n], chain, t.wide)
            values[TILE] += tiles.cycles
            values[CALL] += tiles.calls
            values[ACCUMULATOR] += tiles.accumulators
        panels, padded = (columns + nr - 1) // nr, (columns + t.tile.vl - 1) // t.tile.vl * t.tile.vl
        bytes = <double>padded * self.taps * t.filled * t.e_size * ((rows + t.task_rows - 1) // t.task_rows)
        total = t.weight_bytes * padded / max(columns, 1)
        values[WEIGHT] = bytes
        if total > t.l2:
            values[WEIGHT_L3] = values[STALL] = (1 - t.l2 / total) * bytes
        values[PACK], values[REST] = moved * self.inside_fraction * t.whole_vectors, moved * self.inside_fraction * t.has_rest
        values[START] = moved / max(1, min(self.run_length, t.task_rows))
        values[ROW], values[TASK] = rows, 1
        if columns > self.adjacent_columns and self.adjacent_columns % nr:
            pieces = min(<double>panels, <double>columns / self.adjacent_columns - 1) * (
                1 + <double>min(nr, columns) / self.adjacent_columns)
            values[PIECE] = rows * (1 - self.outside_fraction) * pieces
        if self.outside_fraction:
            values[PIECE] += rows * self.outside_fraction * (
                panels + columns // t.co - (columns + t.panel_period - 1) // t.panel_period)
        values[ROW] += rows * self.edge_fraction * panels
        if t.tile.parts:
            if total > 2 * t.l2:  # more than the L2 of two cores
                values[WEIGHT_AMX] = (1 - 2 * t.l2 / total) * bytes
            values[STORE] = <double>rows * columns / t.tile.vl

    cdef double untraced_cycles(self, int64_t rows, int64_t columns) noexcept:
        """Return the cycles of some rows and columns by the rule of costs.py."""
        cdef double values[COUNTS]
        cdef double serial = 0, compute = 0, fetch
        cdef double *prices = self.terms.prices
        cdef int64_t n
        self.count(rows, columns, values)
        for n in range(WEIGHT):
            compute += values[n] * prices[n]
        fetch = values[WEIGHT_L3] * prices[WEIGHT_L3]
        for n in range(WEIGHT, COUNTS):
            serial += values[n] * prices[n]
        serial -= fetch
        return serial + max(compute, fetch) + EXPOSED * min(compute, fetch)

    def counts(self, rows, columns):
        """Return (name of the costs, counts by name) of some rows and columns."""
        cdef double values[COUNTS]
        cdef int64_t n
        self.count(rows, columns, values)
        names = count_names(self.terms.unit)
        named = {names[n]: values[n] for n in range(COUNTS) if names[n] and values[n]}
        return part(self.terms.unit), named

    def cycles(self, rows, columns):
        """Return the cycles of some rows and columns, with a record of their counts if the profile traces costs."""
        if not self.terms.traced:
            return self.untraced_cycles(rows, columns)
        name, counts = self.counts(rows, columns)
        return self.terms.here.profile[name].cycles(counts)

    cdef int64_t most_rows(self) noexcept:
        """Return the most rows of a task.

        It is the number of rows that stay in L1 together with the output lines that they write, unless that is less than half
        of Unit.task_rows. At little depth it is 4 times Unit.task_rows, because such rows take little time. With one tap and at
        most two panels it is up to 8 times as many, because rows are read once.
        """
        cdef Terms t = self.terms
        cdef int64_t depth = t.ci * self.taps, more = 4 if depth <= t.shallow_depth else 1, near, limit = t.task_rows
        if self.taps == 1 and self.columns <= 2 * t.tile.nr:
            more = max(more, min(<int64_t>8, _KC // max(depth, <int64_t>1)))
        if more > 1 and not t.tile.parts:
            return more * limit
        near = L1_BYTES // (depth * t.e_size + 192)
        return near if limit > near > limit // 2 else limit

    cdef ClassCut cut(self, double target, int64_t least_rows, int64_t threads) noexcept:
        """Return the division of the class into tasks of about ``target`` cycles.

        The class is divided into row blocks of at least ``least_rows``, and also into panel blocks if these are too few.
        """
        cdef Terms t = self.terms
        cdef ClassCut c
        cdef int64_t nr = t.tile.nr, panels = (self.columns + nr - 1) // nr, most = self.most_rows(), tile, pieces
        pieces = <int64_t>max(1.0, ceil(self.total / t.groups / target - 0.01))  # the 0.01 absorbs rounding errors
        c.block = max(min(most, (self.rows + pieces - 1) // pieces), min(self.rows, min(least_rows, most)))
        c.blocks = (self.rows + c.block - 1) // c.block
        if c.blocks > threads:  # give each thread as many
            c.blocks = (c.blocks + threads - 1) // threads * threads
        tile = t.tile.most if t.tile.parts else 1  # AMX multiplies whole tiles
        c.block = (self.rows + c.blocks * tile - 1) // (c.blocks * tile) * tile
        c.blocks = (self.rows + c.block - 1) // c.block
        pieces = max(<int64_t>1, min(panels, pieces // c.blocks))
        c.panel_block = (panels + pieces - 1) // pieces
        c.span = max(<int64_t>1, t.input_bytes // (c.block * t.lda * t.e_size))
        if self.chunks > c.span:  # partial sums of all panels of a task are kept between spans
            c.panel_block = min(c.panel_block, max(<int64_t>1, <int64_t>(1 << 20) // (c.block * nr * t.t_size)))
        c.panel_blocks = (panels + c.panel_block - 1) // c.panel_block
        c.work = self.untraced_cycles(min(c.block, self.rows), min(self.columns, c.panel_block * nr))
        return c

    def tasks(self, double target, int64_t least_rows, int64_t threads):
        """Return `cut` as (rows of a task, row blocks, panels of a task, panel blocks, depth chunks packed at once, cycles of a
        task)."""
        cdef ClassCut c = self.cut(target, least_rows, threads)
        return c.block, c.blocks, c.panel_block, c.panel_blocks, c.span, c.work

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
