"""What scatter's loops do, as counts: see convt.algorithms.costs. All is read off the schedule."""

import math

from ... import _core
from .. import common, costs
from . import reach

_SAME_SETS, _LINES = 1024, 64  # body_widen.h copies lines first for pixels so many bytes apart, of more channels than this


def cost(schedule, here):
    """Cycles of all threads together, and of threads that have nothing left to do."""
    problem, unit = schedule.problem, here.info(schedule.problem.dtype, schedule.unit)
    way = schedule.form[0]
    if way == "gathered":
        prices = here.profile["scatter_gathered"]
        cycles, tasks = _gathered(schedule, unit, prices), schedule.tasks
    else:
        prices = here.profile["scatter_across" if way == "across" else "matrix_scatter" if unit.matrix else "scatter"]
        rows, images, cycles = reach.of_problem(problem), problem.groups * problem.batch * schedule.blocks, 0.0
        count = _across if way == "across" else _columns
        for kind in rows.kinds:
            cycles = cycles + images * kind[1] * prices.cycles(count(schedule, kind, rows, unit, here))
        tasks = math.inf if schedule.joined else images * schedule.tasks
    if schedule.threads > 1 and 0 < tasks <= common.EVEN and cycles >= here.limits.single_thread_cycles:
        cycles = cycles * (-(-tasks // 2) * 2 / tasks)  # of two threads: the choice must not depend on how many there are
    memory = common.plane_counts(problem, False, here) if problem.planar else common.memory_counts(problem, here=here)
    return costs.beside(cycles, prices.cycles(memory))


def least(problem, here, unit="vectors"):
    """Cycles that no schedule is below: multiply-adds by whole vectors, and the sums of outputs."""
    info = here.info(problem.dtype, unit)
    kernel, strides = problem.kernel, problem.strides
    if info is None or problem.dilations[-1] > 1 or strides[-1] > 2 * kernel[-1]:
        return math.inf
    products = problem.batch * problem.groups * problem.ci * problem.co * problem.in_sizes[-1] * kernel[-1]
    for ax in range(len(kernel) - 1):
        products *= common.pairs_met(
            kernel[ax], strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.begin[ax], problem.out_sizes[ax]
        )
    profile = here.profile
    if info.matrix:
        price = info.products * profile["matrix_scatter"]["amx_product"] / (info.grain * info.vl * info.kstep)
    elif info.kstep > 1:
        price = profile["scatter"]["dot_cycle"] / (info.vl * info.kstep * costs.FMA_PORTS)
    else:
        parts = "scatter", "scatter_across", "scatter_gathered"
        price = min([profile[part]["tile_cycle"] for part in parts]) / (info.vl * costs.FMA_PORTS)
    prices, outputs = profile["scatter"], math.prod(problem.out_shape)
    if problem.groups > 1:  # are stored one by one
        return products * price + outputs * prices["overlap_term"]
    term = prices["overlap_vector"] + prices["overlap_vector_term"]
    if strides[-1] * problem.co <= _core.ACROSS:
        term = min(term, prices["zip"], prices["gather"])
    return products * price + outputs / info.vl * term


def packing(schedule, here):
    """Cycles to pack the weights of a call that brings its own."""
    unit = here.info(schedule.problem.dtype, schedule.unit)
    return common.packing_cycles(common.filter_bytes(schedule.problem, unit), unit)


def _gathered(schedule, unit, prices):
    """Cycles of images whose outputs are gathered."""
    problem, pixels = schedule.problem, schedule.pixels
    task = common.tile_counts(math.prod(problem.kernel) * problem.co, pixels, problem.ci, unit)
    task["across_transpose"], task["start"] = problem.ci * -(-pixels // unit.vl), 1
    outputs = math.prod(problem.out_sizes) * problem.co
    image = {"overlap_term": outputs * (1 + reach.most_terms(problem)), "start": 1}
    return schedule.tasks * prices.cycles(task) + problem.batch * prices.cycles(image)


def _row(schedule, kind, rows):
    """Of a stretch of a row: ``(phases, taps, columns, input pixels, j, input rows that are packed)``."""
    problem, blocks = schedule.problem, schedule.blocks
    k, s, begin = problem.kernel[-1], problem.strides[-1], problem.begin[-1]
    phases, count, taps = kind
    taps = packs = taps / max(count, 1)
    if schedule.chunks_of_tap and rows.taps > 1 and taps:
        # A task packs an input row once for all its rows, and at its start what rows before its own have read.
        of_task = max(1.0, rows.rows / schedule.tasks)
        last = taps if len(problem.kernel) == 2 else max(1.0, taps ** (1 / (len(problem.kernel) - 1)))
        packs = min(taps, taps / last * (of_task / rows.groups + last - 1) / of_task)
    js = (-(-(begin + problem.out_sizes[-1]) // s) - begin // s) / blocks
    pixels = -(-(problem.in_sizes[-1] + (blocks - 1) * (-(-k // s) - 1)) // blocks)
    return phases, taps, phases * k * problem.co, pixels, js, packs


def _across(schedule, kind, rows, unit, here):
    """What a stretch takes across: pixels transposed by vectors of channels, the GEMM, products put in the outputs' order."""
    problem, vl = schedule.problem, unit.vl
    phases, taps, columns, pixels, js, packs = _row(schedule, kind, rows)
    s, ci, several = problem.strides[-1], problem.ci, problem.groups > 1
    more = -(-problem.kernel[-1] // s) - 1  # terms of an output, beside one
    together = 1  # rows that are multiplied as one
    if schedule.joined:
        together = max(1, -(-problem.batch * math.prod(problem.in_sizes[:-1]) // schedule.tasks))
    vectors = -(-together * pixels // vl) / together
    chunks = taps if schedule.chunks_of_tap and packs < taps else 1
    tiles = common.tile_counts(columns, together * pixels, taps * ci / max(chunks, 1), unit)
    counts = {name: count * chunks / together for name, count in tiles.items()}
    counts["collect" if problem.planar else "across_transpose"] = packs * ci * vectors
    if not problem.planar and problem.groups * ci * unit.s_size % _SAME_SETS == 0 and ci > _LINES:
        counts["move"] = packs * ci * vectors  # lines that share sets of L1 are copied beside each other first
    counts["start"] = packs / together + phases
    lanes = s * problem.co
    run = s if problem.planar else lanes  # outputs of a block of stride outputs that lie side by side
    ordered = phases * lanes * -(-js // vl)  # vectors of outputs
    order = "zip" if run in (1, 2, 4) else "gather"
    if several:  # products stay near
        counts["overlap_vector_term"], counts["overlap_term"] = ordered * (more + 1), phases * js * lanes
    counts[order] = ordered
    if problem.planar and problem.co > 1:  # the sums of each plane are collected from columns that are far apart
        counts["move"] = ordered
    if more:
        counts["piece"] = columns
    return counts


def _columns(schedule, kind, rows, unit, here):
    """What a stretch takes with vectors over columns."""
    problem, vl = schedule.problem, unit.vl
    phases, taps, columns, pixels, js, packs = _row(schedule, kind, rows)
    s, ci = problem.strides[-1], problem.ci
    chunks = taps if schedule.chunks_of_tap or rows.taps == 1 else 1
    padded = -(-columns // vl) * vl
    total = common.filter_bytes(problem, unit, columns)
    counts = common.weight_counts(padded * taps * ci * unit.e_size, total, here=here)
    for name, count in common.tile_counts(pixels, columns, taps * unit.filled(ci) / chunks if chunks else 0, unit).items():
        counts[name] = chunks * count
    lanes, terms = s * problem.co, -(-problem.kernel[-1] // s)
    if lanes <= vl and problem.groups == 1:
        counts["overlap_term"], counts["overlap_vector"] = phases * js * terms, phases * js
    else:
        vectors = phases * js * -(-lanes // vl)
        counts["overlap_vector_term"], counts["overlap_vector"] = vectors * terms, vectors
        if problem.groups > 1:  # outputs of several groups are stored one by one
            counts["overlap_term"] = phases * js * lanes
    counts["row"], counts["start"] = 1, taps + phases
    if unit.matrix:
        steps, rest = divmod(ci, unit.kstep)
        partial = chunks * -(-ci // _core.KC) - 1  # depth chunks that add to what is there
        counts["amx_pack"] = packs * pixels * (steps + (rest > 0))
        counts["amx_pack"] += 4 * -(-pixels // unit.grain) * (padded // vl) * max(partial, 0)
        counts["store"] = pixels * (padded // vl)
    elif not schedule.in_place:
        counts["move"] = packs * pixels * -(-ci // vl)
    return counts
