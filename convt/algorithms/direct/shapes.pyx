# cython: language_level=3, cdivision=True
"""Classes of direct in numbers: how the GEMM of a class comes by its rows, what it takes, how it is cut into tasks.

schedule.py asks this of every class of every way that it looks at, so it is compiled. A `Shape` is a class: a run on each axis
(phases.Kind); classes that are mirror images are one. What it takes is a row of counts, whose names and prices are those of
convt.algorithms.costs.
"""

import collections
import itertools
import math

from libc.math cimport ceil
from libc.stdint cimport int64_t

from convt._core import KC
from convt._problem import ITEMSIZE
from convt.algorithms import common, costs
from convt.algorithms.tiles cimport TileCounts, count_tiles, tile_sizes

cdef enum:
    _KC = 256
    LEAST_DEPTH = 96  # in-channels that a chunk of a single tap should have
    L1_BYTES = 40 << 10  # beside a panel
    LEAST = 28  # rows of a task: low blocks spread the packing of inputs over threads, high ones share weights

LEAST_ROWS = LEAST
assert KC == _KC

cdef double MOST_SHARE = 0.92  # of rows times taps that are not zeros: up to here leaving the zeros out pays
cdef double HIDDEN = costs.HIDDEN

cdef enum:  # counts
    TILE, CALL, ACCUMULATOR, WEIGHT, WEIGHT_L3, STALL, WEIGHT_AMX, PACK, REST, START, ROW, TASK, PIECE, STORE


cdef list names_of(unit):
    """The names of all counts, in their order; "" for those that a unit does not have."""
    amx = unit.matrix
    return [
        "amx_product" if amx else "tile_cycle" if unit.kstep == 1 else "dot_cycle", "amx_call" if amx else "tile_call",
        "" if amx else "tile_accumulator", "weight_byte", "weight_byte_l3", "in_byte_l3", "weight_byte_amx" if amx else "",
        "amx_pack" if amx else "move", "" if amx else "rest", "start", "row", "task", "piece", "store" if amx else "",
    ]  # fmt: skip


def part(unit):
    """The name of direct's costs on a unit."""
    return "matrix" if unit.matrix else "direct"


cdef class Terms:
    """What the classes of a problem have in common, found once."""

    def __init__(self, problem, unit, here):
        cdef int64_t ax, n
        self.problem, self.unit, self.here = problem, unit, here
        self.tile = tile_sizes(unit)
        names = names_of(unit)
        values = here.profile[part(unit)].values
        for n in range(COUNTS):
            self.prices[n] = values[names[n]] if names[n] else 0.0
        self.traced = isinstance(here.profile[part(unit)], costs.TracedCosts)
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        self.rank, self.filled = len(problem.in_sizes), unit.filled(problem.ci)
        for ax in range(self.rank):
            self.in_sizes[ax] = problem.in_sizes[ax]
        self.e_size, self.t_size, self.s_size, self.item = unit.e_size, unit.t_size, unit.s_size, ITEMSIZE[problem.dtype]
        self.lda, self.wide, self.highest, self.task_rows = unit.lda, unit.wide, unit.mr[2 if unit.nr > unit.vl else 1], unit.task_rows
        self.input_bytes, self.shallow_depth = unit.input_bytes, here.limits.shallow_depth
        self.same_set, self.strip_bytes = here.limits.same_set, here.limits.strip
        self.weights, self.l2 = common.filter_bytes(problem, unit), here.l2
        self.common = max(1, math.lcm(self.co, unit.nr))
        self.rest = self.call = self.pack = 0
        if unit.matrix:
            self.whole = self.ci // unit.kstep + 0.7 * (self.ci % unit.kstep > 0)
        else:
            self.whole, self.rest = self.ci // unit.vl, self.ci % unit.vl > 0
            self.call = self.prices[CALL] / unit.mr[2] + self.prices[ACCUMULATOR] * unit.nr / unit.vl
            self.pack = self.prices[PACK] * self.whole + self.prices[REST] * self.rest


cdef class Shape:
    """A class. ``kinds`` are those of its runs; ``given`` is (depth chunks, whether it is sparse), where an order says it."""

    def __init__(self, Terms terms, kinds, given=None):
        self.terms = terms
        self.read(kinds, given)
        self.total = self.value(self.rows, self.columns) * terms.groups
        self.most_tasks = max(1, self.rows // LEAST) * max(1, (self.columns + terms.tile.nr - 1) // terms.tile.nr) * terms.groups

    cdef void read(self, kinds, given) except *:
        cdef Terms t = self.terms
        cdef int64_t n, m, count, ktaps, kof, kphases, kshown, koutside, pixels = 1, phases = 1, run = 1, apart = 1, step = 1
        cdef int64_t stretch = 1, follow, windows, chunks, block, inner, last_phases = 1, last_taps = 1, spread = t.tile.most - 1, size
        cdef bint even = True, whole = True, aliased
        cdef double inside = 1, calm = 1, reached = 1, shown = 1, share, crossing, last_shown = 1
        self.taps = self.of = 1
        for n in range(t.rank - 1, -1, -1):
            kind = kinds[n]
            count, ktaps, kof, kphases, kshown, koutside = kind[0], kind[1], kind[2], kind[3], kind[4], kind[5]
            if even:  # rows of this axis follow those of the next one at one stride
                if run == 1:
                    apart = step
                elif count > 1 and step != apart * run:
                    even = False
                if even:
                    run *= count
            step *= t.in_sizes[n]
            pixels *= count
            self.taps *= ktaps
            self.of *= kof
            phases *= kphases
            if koutside:
                inside *= 1 - <double>koutside / count
                calm *= max(0.0, 1 - <double>(koutside + spread) / count)
            spread = 0  # along the last axis the end of a run and the start of the next one are neighbours
            if kind[8]:
                reached *= <double>sum(kind[8]) / (count * ktaps)
            if n == t.rank - 1:
                self.along, last_phases, last_taps, last_shown = count, kphases, ktaps, <double>kshown / kphases
            elif kshown < kphases:
                shown *= <double>kshown / kphases
            if whole:
                stretch *= ktaps
                whole = ktaps == kof
        if even:
            if run == 1:
                apart = step
            if run == 1 or t.batch == 1 or step == apart * run:
                run *= t.batch
        self.rows, self.columns = pixels * t.batch, t.co * phases
        if last_shown < 1:  # they may start and end within a panel
            last_shown = min(1.0, last_shown + <double>t.tile.nr / (t.co * last_phases))
        self.shown, self.outside, self.edge = shown * last_shown, 1 - min(inside, 1.0), 1 - calm
        self.together = t.co * (last_phases if t.groups == 1 else 1)
        if given is None:
            self.sparse = reached <= MOST_SHARE and t.ci >= LEAST_DEPTH and self.taps * ((t.ci + _KC - 1) // _KC) > 3
        else:
            self.sparse = given[1]
        self.reached = reached if self.sparse else 1.0
        self.window, self.packed = 0, 1.0
        aliased = apart * t.groups * t.ci * t.e_size % t.same_set == 0
        if not (self.sparse or t.tile.parts or t.item != t.e_size or self.taps * t.ci == 0 or t.ci % t.tile.kstep or aliased):
            block, share, inner = min(self.rows, t.task_rows), 0.0, 1
            for n in range(t.rank - 1, -1, -1):
                count = kinds[n][0]
                if kinds[n][6]:
                    share += <double>(<int64_t>kinds[n][6] * max(block, inner)) / (inner * count)
                inner *= count
            if run < self.rows:
                share = max(share, <double>block / run)
            follow = last_taps if t.groups == 1 and kinds[t.rank - 1][7] else 1
            windows, self.packed = self.taps // follow, min(1.0, share)
            if self.packed < 1 and windows > 1:
                # A chunk beyond the end of a window has to be packed, more and shorter chunks take more calls.
                chunks = (self.taps * t.ci + _KC - 1) // _KC
                crossing = min(1.0, <double>(windows - 1) / chunks)
                share = <double>self.columns / t.tile.nr * t.call * (windows * ((follow * t.ci + _KC - 1) // _KC) - chunks)
                if share <= crossing * self.taps * t.pack:
                    self.window = follow
                else:
                    self.packed += (1 - self.packed) * crossing
        if self.sparse or self.window:
            stretch = last_taps if self.window > 1 else 1
        if given is not None:
            self.chunks, self.deepest = len(given[0]), max([depth for _, depth, _ in given[0]])
        elif self.taps * t.filled == 0:
            self.chunks, self.deepest = 1, 0
        else:
            size = stretch * t.filled
            count = (size + _KC - 1) // _KC
            self.deepest = ((size + count - 1) // count + t.tile.kstep - 1) // t.tile.kstep * t.tile.kstep
            self.chunks = self.taps // stretch * ((size + self.deepest - 1) // self.deepest)
        self.levels, self.share[0], self.depth[0] = 1, 1.0, self.taps * t.filled
        if self.sparse:
            self.find_depths(kinds)

    cdef void find_depths(self, kinds) except *:
        """What a sparse class multiplies: all rows at either end of the depth, between them those that a tap reaches."""
        cdef double pixels = self.rows // max(1, self.terms.batch), ci = self.terms.filled, end = min(ci, <double>_KC), depth
        reached = {1: 1}
        for kind in kinds:
            before, reached = reached, collections.Counter()
            for (a, n), (b, m) in itertools.product(
                before.items(), collections.Counter(kind.reached or (kind.count,) * kind.taps).items()
            ):
                reached[a * b] += n * m
        self.depth[0] = 2 * end
        left, most = 2, self.taps * ci / (LEVELS - 2) if len(reached) > LEVELS - 2 else 0.0
        for count, many in sorted(reached.items(), reverse=True):
            depth, left = many * ci - end * min(left, many), max(0, left - many)
            n = self.levels - 1
            if n and (self.depth[n] + depth <= most or n == LEVELS - 1):
                self.share[n] = (self.share[n] * self.depth[n] + count / pixels * depth) / max(self.depth[n] + depth, 1.0)
                self.depth[n] += depth
            elif depth > 0:
                self.share[n + 1], self.depth[n + 1] = count / pixels, depth
                self.levels += 1

    cdef void count(self, int64_t rows, int64_t columns, double *found) noexcept:
        """What some rows and columns take: tiles, weights read, rows packed, outputs stored piece by piece. Panels that the
        window does not show are left out."""
        cdef Terms t = self.terms
        cdef TileCounts tiles
        cdef int64_t n, padded, panels, nr = t.tile.nr, chain = min(<int64_t>_KC, self.window * t.ci) if self.window else _KC
        cdef double bytes, total, moved = self.packed * self.taps * rows, pieces
        for n in range(COUNTS):
            found[n] = 0
        if self.shown < 1:
            columns = <int64_t>ceil(columns * self.shown)
        for n in range(self.levels):
            tiles = count_tiles(&t.tile, rows * self.share[n], columns, self.depth[n], chain, t.wide)
            found[TILE] += tiles.cycles
            found[CALL] += tiles.calls
            found[ACCUMULATOR] += tiles.accumulators
        panels, padded = (columns + nr - 1) // nr, (columns + t.tile.vl - 1) // t.tile.vl * t.tile.vl
        bytes = <double>padded * self.taps * t.filled * t.e_size * ((rows + t.task_rows - 1) // t.task_rows)
        total = t.weights * padded / max(columns, 1)
        found[WEIGHT] = bytes
        if total > t.l2:
            found[WEIGHT_L3] = found[STALL] = (1 - t.l2 / total) * bytes
        found[PACK], found[REST] = moved * self.reached * t.whole, moved * self.reached * t.rest
        found[START] = moved / max(1, min(self.along, t.task_rows))
        found[ROW], found[TASK] = rows, 1
        if columns > self.together and self.together % nr:
            pieces = min(<double>panels, <double>columns / self.together - 1) * (1 + <double>min(nr, columns) / self.together)
            found[PIECE] = rows * (1 - self.outside) * pieces
        if self.outside:
            found[PIECE] += rows * self.outside * (panels + columns // t.co - (columns + t.common - 1) // t.common)
        found[ROW] += rows * self.edge * panels
        if t.tile.parts:
            if total > 2 * t.l2:  # of both cores
                found[WEIGHT_AMX] = (1 - 2 * t.l2 / total) * bytes
            found[STORE] = <double>rows * columns / t.tile.vl

    cdef double value(self, int64_t rows, int64_t columns) noexcept:
        """Cycles of some rows and columns, by the rule of costs.py."""
        cdef double found[COUNTS]
        cdef double serial = 0, compute = 0, fetch
        cdef double *prices = self.terms.prices
        cdef int64_t n
        self.count(rows, columns, found)
        for n in range(WEIGHT):
            compute += found[n] * prices[n]
        fetch = found[WEIGHT_L3] * prices[WEIGHT_L3]
        for n in range(WEIGHT, COUNTS):
            serial += found[n] * prices[n]
        serial -= fetch
        return serial + max(compute, fetch) + HIDDEN * min(compute, fetch)

    def counts(self, rows, columns):
        """(the name of the costs, the counts by name) of some rows and columns."""
        cdef double found[COUNTS]
        cdef int64_t n
        self.count(rows, columns, found)
        names = names_of(self.terms.unit)
        named = {names[n]: found[n] for n in range(COUNTS) if names[n] and found[n]}
        return part(self.terms.unit), named

    def cycles(self, rows, columns):
        """Cycles of some rows and columns, that know where they come from if the profile's do."""
        if not self.terms.traced:
            return self.value(rows, columns)
        name, counts = self.counts(rows, columns)
        return self.terms.here.profile[name].cycles(counts)

    cdef int64_t most_rows(self) noexcept:
        """The most rows of a task: as many as stay in L1 with the lines of the output that they write, if those are enough; of
        little depth more, as they are soon done, and of a tap for few panels, as they are read once."""
        cdef Terms t = self.terms
        cdef int64_t depth = t.ci * self.taps, more = 4 if depth <= t.shallow_depth else 1, near, highest = t.task_rows
        if self.taps == 1 and self.columns <= 2 * t.tile.nr:
            more = max(more, min(<int64_t>8, _KC // max(depth, <int64_t>1)))
        if more > 1 and not t.tile.parts:
            return more * highest
        near = L1_BYTES // (depth * t.e_size + 192)
        return near if highest > near > highest // 2 else highest

    cdef Cut cut(self, double target, int64_t least_rows, int64_t threads) noexcept:
        """The class in tasks of about ``target`` cycles: blocks of rows, but of some rows at least, and of panels where that
        gives too few."""
        cdef Terms t = self.terms
        cdef Cut c
        cdef int64_t nr = t.tile.nr, panels = (self.columns + nr - 1) // nr, most = self.most_rows(), tile, pieces
        pieces = <int64_t>max(1.0, ceil(self.total / t.groups / target - 0.01))  # not one more for a rounding error
        c.block = max(min(most, (self.rows + pieces - 1) // pieces), min(self.rows, min(least_rows, most)))
        c.blocks = (self.rows + c.block - 1) // c.block
        if c.blocks > threads:  # as many for each thread
            c.blocks = (c.blocks + threads - 1) // threads * threads
        tile = t.tile.most if t.tile.parts else 1  # AMX multiplies all rows of a tile, there or not
        c.block = (self.rows + c.blocks * tile - 1) // (c.blocks * tile) * tile
        c.blocks = (self.rows + c.block - 1) // c.block
        pieces = max(<int64_t>1, min(panels, pieces // c.blocks))
        c.panel_block = (panels + pieces - 1) // pieces
        c.span = max(<int64_t>1, t.input_bytes // (c.block * t.lda * t.e_size))
        if self.chunks > c.span:  # partial sums of all panels wait between depth chunks
            c.panel_block = min(c.panel_block, max(<int64_t>1, <int64_t>(1 << 20) // (c.block * nr * t.t_size)))
        c.panel_blocks = (panels + c.panel_block - 1) // c.panel_block
        c.work = self.value(min(c.block, self.rows), min(self.columns, c.panel_block * nr))
        return c

    def tasks(self, double target, int64_t least_rows, int64_t threads):
        """How the class is cut: (rows of a task, blocks of rows, panels of a task, blocks of panels, depth chunks that are
        packed at once, cycles of a task)."""
        cdef Cut c = self.cut(target, least_rows, threads)
        return c.block, c.blocks, c.panel_block, c.panel_blocks, c.span, c.work

    def order(self, int64_t block):
        """In which order the tiles of a task run: (up to how many rows a task meets two panels at once, how many rows meet all
        panels before the next rows, where the panels stay in L2)."""
        cdef Terms t = self.terms
        cdef int64_t panels = (self.columns + t.tile.nr - 1) // t.tile.nr
        # Lower, wider tiles have as many accumulators where registers are many, and write two panels' stretch of a row at once.
        cdef bint low = self.chunks == 1 and self.deepest <= t.shallow_depth and 5 * t.wide >= 2 * t.highest
        cdef int64_t strip = t.highest * (self.of * t.filled * t.e_size + panels * t.tile.nr * t.s_size)
        return block if low else t.wide, t.highest * max(<int64_t>1, t.strip_bytes // max(strip, <int64_t>1))
