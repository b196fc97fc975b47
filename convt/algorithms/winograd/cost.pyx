# cython: language_level=3, cdivision=True
"""The expected cycles of `winograd`: of classes and of their divisions into tasks, of memory traffic, and of packing.

schedule.py makes a `Work` for each class and transform that it compares, so this module is compiled. Cycles follow the rule of
convt/_model/costs.py, which also defines the counts. The counts are an array, in the order of `count_names`.
"""

import math

from libc.stdint cimport int64_t

from convt._model import costs
from convt._run import execution
from convt._run.kernels cimport CONVT_KC
from convt._run.memory cimport spread_over_sets
from convt.algorithms import common
from convt.algorithms.direct.schedule import odd_line_stride
from convt.algorithms.indexing cimport ceil_quotient
from convt.algorithms.tiles cimport TileCounts, TileSizes, count_tiles, tile_sizes
from convt.algorithms.winograd import loops

cdef enum:
    ONE_AXIS_POINTS = 6  # the most points of a tile that is transformed on one axis; others are summed in chains
    MOST_TILES = 6  # the most register tiles of rows of a task
    TASKS_PER_THREAD = 8  # threads with at least this many tasks each are balanced

cdef enum:  # indices of the counts, in the order of `count_names`; counts before WEIGHT are computing, WEIGHT_L3 is fetching
    TILE, CALL, ACCUMULATOR, WEIGHT, WEIGHT_L3, STALL, WEIGHT_AMX, IN_VECTOR, STORE, KERNEL, PRODUCT, OUTPUT, PIECE, TASK, \
        AMX_PACK, COUNTS

cdef double EXPOSED = costs.EXPOSED
cdef int64_t CHAIN = loops.CHAIN, BRIDGE = loops.BRIDGE


cdef list count_names(unit):
    """Return the names (costs.NAMES) of all counts in their order; "" for a count that the unit does not have."""
    amx = unit.matrix
    return [
        "amx_product" if amx else "tile_cycle", "amx_call" if amx else "tile_call", "" if amx else "tile_accumulator",
        "weight_byte", "weight_byte_l3", "in_byte_l3", "weight_byte_amx" if amx else "", "wino_in_vector", "store", "call",
        "wino_product_vector", "wino_output", "piece", "task", "amx_pack" if amx else "",
    ]  # fmt: skip


def prices_of(unit, here):
    """Return the costs of winograd on a unit."""
    return here.profile["winograd_amx" if unit.matrix else "winograd"]


cdef class WorkTerms:
    """The values that all classes of a problem share: sizes, costs and caches."""

    cdef readonly object unit
    cdef object costs  # costs.Costs
    cdef bint traced  # cycles carry their counts (costs.TracedCosts)
    cdef TileSizes tile
    cdef double prices[COUNTS]
    cdef int64_t batch, groups, ci, co, filled, e_size, t_size
    cdef int64_t panel  # columns of a panel of vectors
    cdef int64_t l2
    cdef int64_t near  # bytes of L2 that a task may use
    cdef int64_t far  # the most bytes of transformed rows and sums of a task
    cdef double filter_bytes  # bytes of a tap of all phases

    def __init__(self, problem, unit, here):
        cdef int64_t n
        self.unit, self.costs, self.tile = unit, prices_of(unit, here), tile_sizes(unit)
        self.traced = isinstance(self.costs, costs.TracedCosts)
        for n, name in enumerate(count_names(unit)):
            self.prices[n] = self.costs[name] if name else 0.0
        self.batch, self.groups, self.ci, self.co = problem.batch, problem.groups, problem.ci, problem.co
        self.filled, self.e_size, self.t_size = unit.filled(problem.ci), unit.e_size, unit.t_size
        self.panel, self.l2 = here.info(problem.dtype).nr, here.l2
        self.near, self.far = self.l2 // 8 * 7, 13 << 18
        self.filter_bytes = unit.e_size * problem.groups * problem.co * math.prod(map(min, problem.kernel, problem.strides))

    def least(self, double products, transforms):
        """Return the fewest cycles of so many products per in-channel and column of a class, at the peak rate."""
        cdef TileCounts gemm
        cdef int64_t columns = self.co
        for t in transforms:
            columns *= t.phases
        gemm = count_tiles(&self.tile, self.tile.most, columns, self.filled, CONVT_KC, 0)
        return self.batch * products / self.tile.most * gemm.cycles * self.prices[TILE]


cdef class Work:
    """The counts and cycles of a class with a transform.

    ``transforms`` has the AxisTransform of each axis. ``share`` is the fraction of points times columns that is multiplied.
    """

    cdef WorkTerms terms
    cdef readonly int64_t rows  # tiles of all images
    cdef readonly int64_t points, outputs  # points and outputs of a tile
    cdef readonly int64_t windows  # tap windows
    cdef readonly int64_t phases, columns, panels
    cdef readonly int64_t depth  # tap windows times in-channels, in whole steps of depth
    cdef readonly int64_t chunks, step  # number of depth chunks, and depth of a chunk
    cdef readonly int64_t chain  # depth that is summed alone, a part of a chunk
    cdef readonly double point_share  # fraction of points that is multiplied
    cdef double share, pieces, weight_bytes
    cdef list axis_shares  # for each transformed axis: (fraction of its points that is multiplied, tiles along it)

    def __init__(self, WorkTerms terms, transforms, double share=1.0):
        cdef int64_t tiles, points, outputs, windows, phases = 1, adjacent, nr = terms.tile.nr, vl = terms.tile.vl
        cdef double part, inner, inside = 1.0
        self.terms, self.share, self.axis_shares, self.point_share = terms, share, [], 1.0
        self.rows, self.points, self.outputs, self.windows, self.phases = terms.batch, 1, 1, 1, 1
        for kind, tiles, points, outputs, windows, part, inner, phases, _, _ in transforms:
            self.rows *= tiles
            self.points *= points
            self.outputs *= outputs
            self.windows *= windows
            self.phases *= phases
            self.point_share *= part
            inside *= inner
            if kind:
                self.axis_shares.append((part, tiles))
        self.columns = terms.co * self.phases
        self.panels = ceil_quotient(self.columns, nr)
        self.depth = self.windows * terms.filled
        self.step = ceil_quotient(self.depth, ceil_quotient(self.depth, CONVT_KC) * terms.tile.kstep) * terms.tile.kstep
        self.chunks, self.chain = ceil_quotient(self.depth, self.step), self.step
        if self.points > ONE_AXIS_POINTS and not terms.tile.parts:
            self.chain = ceil_quotient(self.step, ceil_quotient(self.step, CHAIN))
        adjacent = terms.co * (phases if terms.groups == 1 else 1)  # columns of the last axis that are adjacent in the output
        self.pieces = self.phases * (1 - inside)  # extra pieces in which the columns of an output are stored
        if self.columns > adjacent and adjacent % terms.panel:
            self.pieces += min(<double>ceil_quotient(self.columns, terms.panel), <double>self.columns / adjacent - 1) * (
                1 + <double>min(terms.panel, self.columns) / adjacent)
        self.weight_bytes = max(1.0, terms.filter_bytes * self.points * self.depth * share
                                * (ceil_quotient(self.columns, vl) * vl) / self.columns)

    cdef void count(self, int64_t block, int64_t panel_block, int64_t span, bint point_major, double *values) except *:
        """Fill ``values`` with the counts of a task of so many tiles and panels: its GEMMs, weights and transforms."""
        cdef WorkTerms t = self.terms
        cdef int64_t nr = t.tile.nr, vl = t.tile.vl, kstep = t.tile.kstep, columns = min(self.columns, panel_block * nr)
        cdef int64_t padded = ceil_quotient(self.columns, vl) * vl, vectors = ceil_quotient(t.ci, max(vl, kstep)), tiles, n = 0
        cdef double multiplied = self.share * self.points, part, bytes, fetched, reread = 0.0, rows, sums, weights, reads
        cdef TileCounts gemm = count_tiles(&t.tile, block, columns, self.depth, self.chain, 0)
        for part, tiles in self.axis_shares:  # small gaps between tiles are multiplied too, except on the first axis
            multiplied *= part if n == 0 or 2 * block >= 3 * BRIDGE * tiles else (2 + part) / 3
            n += 1
        rows, sums = <double>self.points * block * span * self.step * t.e_size, <double>self.points * block * nr * t.t_size
        weights = <double>self.points * span * self.step * nr * t.e_size
        if not t.tile.parts:
            reread = panel_block * (rows + sums) * self.lost(rows + sums + weights)
            if span < self.chunks:  # the partial sums of all panels are kept between spans
                reread += 4 * panel_block * sums * self.lost(rows + panel_block * (sums + weights))
                reread *= ceil_quotient(self.chunks, span)
        elif point_major:
            sums = <double>self.points * block * (self.depth * t.e_size + panel_block * nr * t.t_size)
        bytes = <double>self.points * self.depth * columns * padded / self.columns * self.share * t.e_size
        fetched = max(0.0, 1 - t.l2 / self.weight_bytes) * bytes
        reads = <double>block * self.windows * self.points
        values[TILE], values[CALL] = gemm.cycles * multiplied, gemm.calls * multiplied
        values[ACCUMULATOR], values[WEIGHT] = gemm.accumulators * multiplied, bytes
        values[WEIGHT_L3] = values[STALL] = fetched + reread
        values[IN_VECTOR], values[STORE] = reads * vectors * max(<int64_t>1, kstep // vl), reads
        values[KERNEL] = block * self.windows * self.chunks
        values[PRODUCT] = <double>block * self.points * ceil_quotient(columns, vl)
        values[OUTPUT], values[TASK] = block * self.outputs * panel_block, 1
        values[PIECE], values[WEIGHT_AMX], values[AMX_PACK] = block * self.outputs * columns * self.pieces / self.columns, 0, 0
        if t.co % nr:  # the columns of a panel that a point does not multiply are set to zero
            values[STORE] += values[PRODUCT] * (1 - self.share)
        if t.tile.parts:
            values[WEIGHT_AMX] = fetched
            values[STORE] += values[IN_VECTOR]
            values[AMX_PACK] = 0.5 * reads * ceil_quotient(t.ci, kstep)  # half, because the transform has the rows in registers
            values[PIECE] += block * panel_block
            if point_major:
                values[STALL] += max(0.0, sums - t.near)

    cdef double lost(self, double bytes) noexcept:
        """Return the fraction of data that L2 loses between two readings of ``bytes`` bytes in turn.

        A cyclic access loses its lines as soon as it slightly exceeds L2.
        """
        return min(1.0, 4 * (1 - self.terms.near / bytes)) if bytes > self.terms.near else 0.0

    cdef object cycles(self, int64_t block, int64_t panel_block, int64_t span, bint point_major):
        """Return the cycles of a task by the rule of costs.py."""
        cdef double values[COUNTS]
        cdef double serial = 0, compute = 0, fetch
        cdef double *prices = self.terms.prices
        cdef int64_t n
        self.count(block, panel_block, span, point_major, values)
        if self.terms.traced:
            names = count_names(self.terms.unit)
            return self.terms.costs.cycles({names[n]: values[n] for n in range(COUNTS) if names[n]})
        for n in range(WEIGHT):
            compute += values[n] * prices[n]
        for n in range(WEIGHT, COUNTS):
            serial += values[n] * prices[n]
        fetch = values[WEIGHT_L3] * prices[WEIGHT_L3]
        return serial - fetch + max(compute, fetch) + EXPOSED * min(compute, fetch)

    cdef void add(self, dict cuts, int64_t blocks, int64_t n, int64_t span, bint point_major) except *:
        """Add the Division with ``blocks`` tile blocks and ``n`` panel blocks."""
        cdef int64_t m_step = self.terms.tile.m_step, block, panel_block = ceil_quotient(self.panels, n)
        block = ceil_quotient(self.rows, blocks * m_step) * m_step
        key = block, panel_block, span, point_major
        if key not in cuts:
            cuts[key] = common.Division(
                block, ceil_quotient(self.rows, block), panel_block, ceil_quotient(self.panels, panel_block), span,
                self.cycles(block, panel_block, span, point_major), point_major,
            )  # fmt: skip

    cdef void add_balanced(self, dict cuts, int64_t count, int64_t threads, int64_t blocks, int64_t n, int64_t span,
                           bint point_major) except *:
        """Add the Division with ``blocks`` tile blocks and ``n`` panel blocks, and some with more that balance threads."""
        cdef int64_t tasks = count * blocks * n, each, b, most_blocks = ceil_quotient(self.rows, self.terms.tile.m_step)
        self.add(cuts, blocks, n, span, point_major)
        if threads == 1 or tasks % threads == 0 or tasks >= TASKS_PER_THREAD * threads:
            return
        each = threads // <int64_t>math.gcd(threads, count * n)
        self.add(cuts, min(ceil_quotient(blocks, each) * each, most_blocks), n, span, point_major)
        if tasks < threads and self.panels > n:
            self.add(cuts, blocks, min(self.panels, n * ceil_quotient(threads, tasks)), span, point_major)
            b = blocks + 1
            while b < threads and (threads % b or n * threads > self.panels * b):
                b += 1
            if b < min(threads, most_blocks):
                self.add(cuts, b, n * threads // b, span, point_major)

    def strides(self, int64_t block):
        """Return the strides of the regions `rows` and `sums` for tasks of ``block`` tiles.

        They are (elements between transformed rows, bytes between rows of points, elements between sums of points). Rows are in
        different sets of the caches, and so are points.
        """
        cdef WorkTerms t = self.terms
        cdef int64_t lda = odd_line_stride(self.step, t.unit)
        cdef int64_t rows = ceil_quotient(block, t.tile.m_step) * t.tile.m_step * lda * t.e_size + t.tile.vl * t.t_size
        return lda, spread_over_sets(rows), spread_over_sets(block * t.tile.nr * t.t_size) // t.t_size


def cuts(Work work, int64_t count, int64_t threads):
    """Return the Divisions of a class to compare. ``count`` is the number of classes times channel groups."""
    cdef WorkTerms t = work.terms
    cdef int64_t nr = t.tile.nr, m_step = t.tile.m_step, high = t.tile.most
    cdef int64_t near, most, room, height, near_height, each, n, span
    cdef int64_t depth, block, blocks, row
    cdef dict found = {}
    near, most = t.near // (t.e_size * work.points), t.far // (t.e_size * work.points)
    if t.tile.parts:  # all panels meet a point while its rows are in L2
        row = work.points * (work.depth * t.e_size + work.panels * nr * t.t_size)
        for each in (t.near, t.far):
            height = min(MOST_TILES * high, each // row // m_step * m_step)
            if height:
                work.add_balanced(found, count, threads, ceil_quotient(work.rows, height), 1, work.chunks, True)
        most = near
    room = max(most - work.depth * nr, most // 2)
    for span in [work.chunks, 1] if work.chunks > 1 else [1]:
        depth = min(work.depth, span * work.step)
        height = min(<int64_t>MOST_TILES, room // ((depth + nr) * high)) * high
        if not height and span > 1:
            continue
        height = max(height, high)
        near_height = (near - depth * nr) // ((depth + nr) * high) * high if near > depth * nr else 0
        for each in [height, near_height] if high <= near_height < height else [height]:
            blocks, n = ceil_quotient(work.rows, each), 1
            block = ceil_quotient(work.rows, blocks * m_step) * m_step
            if span < work.chunks:  # partial sums of all panels are kept while the next span is transformed
                n = ceil_quotient(work.panels * nr * block, max(room - block * work.step, nr * block))
            work.add_balanced(found, count, threads, ceil_quotient(work.rows, block), n, span, False)
        if near_height >= min(height, work.rows):  # L2 holds all data that is read again
            break
    return tuple(found.values())


def cost(schedule, here):
    """Return the cycles of all threads together, including threads that idle at the end."""
    return schedule.cycles


def memory_cycles(problem, gathered, unit, here):
    """Return (cycles to stream data that L2 does not hold, cycles to fill outputs beforehand).

    ``gathered`` says whether outputs are gathered in the workspace before non-temporal stores write them.
    """
    non_temporal = common.stores_non_temporally(problem, here.limits.non_temporal, here)
    counts, prices = common.memory_counts(problem, non_temporal, here), prices_of(unit, here)
    if not non_temporal and not gathered:
        uncached = common.uncached_fraction(execution.output_bytes(problem), here.l2)
        counts["out_byte_split"] = uncached * common.split_bytes(problem)
    return prices.cycles(counts), prices.cycles(common.fill_counts(problem, here))
