"""The expected cycles of a schedule of `scatter`, from counts of what its loops do.

schedule.py compares the layouts of products with `cost`. convt/_model/costs.py defines the counts and costs.
"""

import math

from ... import _core
from ..._model import costs
from .. import common
from . import reach

# body_widen.h first copies cache lines if pixels are a multiple of _SAME_SET_BYTES bytes apart and have more than _FEW_CHANNELS
# channels.
_SAME_SET_BYTES, _FEW_CHANNELS = 1024, 64
_GATHERED_TERM = 0.3  # cost of gathering a vector of terms, as a share of gathering and storing a vector of outputs
_ADDITION = 0.5  # cost of the call that adds two columns of products, as a share of the cost of a piece
_SUM_OF_J = 1 / 16  # cost of summing the few lanes of one j, as a share of the cost of storing a vector of outputs


def cost(schedule, here):
    """Return the cycles of all threads together, including threads that idle at the end."""
    problem, unit = schedule.problem, here.info(schedule.problem.dtype, schedule.unit)
    layout = schedule.form[0]
    if layout == "gathered":
        prices = here.profile["scatter_gathered"]
        cycles, tasks = _gathered_cycles(schedule, unit, prices), schedule.tasks
    elif layout == "bands":
        prices = here.profile["scatter_across"]
        cycles, tasks = _bands_cycles(schedule, unit, here, prices), problem.groups * problem.batch * schedule.tasks
    else:
        prices = here.profile["scatter_across" if layout == "across" else "scatter_amx" if unit.matrix else "scatter"]
        rows, images, cycles = reach.of_problem(problem), problem.groups * problem.batch * schedule.blocks, 0.0
        count = _across_counts if layout == "across" else _columns_counts
        for kind in rows.kinds:
            cycles = cycles + images * kind[1] * prices.cycles(count(schedule, kind, rows, unit, here))
        tasks = math.inf if schedule.joined else images * schedule.tasks
    cycles = common.cycles_with_idle_thread([(cycles, tasks)], schedule.threads, here)
    memory = common.plane_counts(problem, False, here) if problem.planar else common.memory_counts(problem, here=here)
    return costs.overlapped(cycles, prices.cycles(memory))


def least(problem, here, unit="vectors"):
    """Return a lower bound of the cycles: multiply-adds in whole vectors."""
    info = here.info(problem.dtype, unit)
    kernel, strides = problem.kernel, problem.strides
    if info is None or problem.dilations[-1] > 1 or strides[-1] > 2 * kernel[-1]:
        return math.inf
    products = problem.batch * problem.groups * problem.ci * problem.co * problem.in_sizes[-1] * kernel[-1]
    for ax in range(len(kernel) - 1):
        products *= common.tap_pair_count(
            kernel[ax], strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.begin[ax], problem.out_sizes[ax]
        )
    return products * common.product_price(info, here.profile["scatter"])


def _gathered_cycles(schedule, unit, prices):
    """Return the cycles of a schedule with the layout GATHERED."""
    problem, pixels = schedule.problem, schedule.pixels
    task = common.tile_counts(math.prod(problem.kernel) * problem.co, pixels, problem.ci, unit)
    task["across_transpose"], task["start"] = problem.ci * -(-pixels // unit.vl), 1
    outputs = math.prod(problem.out_sizes) * problem.co
    image = {"gather": -(-outputs // unit.vl) * (1 + reach.most_terms(problem)) * _GATHERED_TERM, "start": 1}
    return schedule.tasks * prices.cycles(task) + problem.batch * prices.cycles(image)


def _bands_cycles(schedule, unit, here, prices):
    """Return the cycles of a schedule with the layout BANDS."""
    problem, vl, rows = schedule.problem, unit.vl, reach.of_problem(schedule.problem)
    size, columns, last = problem.in_sizes[0], math.prod(problem.kernel) * problem.co, problem.kernel[-1] * problem.co
    positions = min(size, size / schedule.tasks + reach.shared_inputs(problem))  # along the first axis, the mean of all tasks
    pixels = math.ceil(positions * math.prod(problem.in_sizes[1:]))
    task = _gemm_counts(problem, columns, pixels, problem.ci, unit, here)
    if not problem.planar:
        task["across_transpose"] = problem.ci * -(-pixels // vl)
    task["start"] = -(-pixels // unit.nr)
    cycles, images = schedule.tasks * prices.cycles(task), problem.groups * problem.batch
    for phases, count, taps in rows.kinds:
        counts = _order_counts(problem, phases, schedule.js[1] - schedule.js[0], unit)
        added = max(0, taps - count) * phases * last  # columns that are added to those of the first input row
        counts["move"] = counts.get("move", 0) + (added / max(count, 1)) * -(-problem.in_sizes[-1] // vl)
        counts["piece"] = counts.get("piece", 0) + _ADDITION * added / max(count, 1)
        counts["start"] = phases
        cycles = cycles + count * prices.cycles(counts)
    return images * cycles


def _gemm_counts(problem, columns, pixels, depth, unit, here):
    """Return the counts of multiplying pixels by columns, which are read again for each panel of pixels."""
    total = common.filter_bytes(problem, unit)
    weights = columns * depth * unit.e_size * -(-pixels // unit.nr)
    # Each panel of pixels reads the weights again, from L2 if L1 does not hold them.
    counts = common.weight_counts(weights * common.uncached_fraction(total, here.l1), total, here=here)
    return counts | common.tile_counts(columns, pixels, depth, unit)


def _order_counts(problem, phases, js, unit):
    """Return the counts of the overlap-add of one output row with vectors over pixels, for ``js`` j of each phase."""
    s, grouped = problem.strides[-1], problem.groups > 1
    extra_terms = -(-problem.kernel[-1] // s) - 1  # terms of an output after the first
    lanes = s * problem.co
    contiguous = s if problem.planar else lanes  # adjacent outputs of one j
    ordered = phases * lanes * -(-js // unit.vl)  # vectors of outputs
    gathers = 4 < contiguous < 8 and unit.vl * unit.t_size < 64  # ZIPS_SUMS in body_pixels.h
    counts = {"gather" if gathers else common.interleaving(contiguous, unit): ordered}
    if grouped:  # outputs of one channel group are not contiguous
        counts["overlap_vector_term"], counts["overlap_term"] = ordered * (extra_terms + 1), phases * js * lanes
    if problem.planar and problem.co > 1:  # the sums of a plane are in columns that are far apart
        counts["move"] = ordered
    if extra_terms:
        counts["piece"] = phases * problem.kernel[-1] * problem.co
    return counts


def _row_sizes(schedule, kind, rows):
    """Return the sizes of one row's part in a task: (phases, taps, columns, input pixels, number of j, packed input rows).

    ``kind`` is an item of Reach.kinds.
    """
    problem, blocks = schedule.problem, schedule.blocks
    k, s, (j0, j1) = problem.kernel[-1], problem.strides[-1], schedule.js
    phases, count, taps = kind
    taps = packs = taps / max(count, 1)
    if schedule.chunks_of_tap and rows.taps > 1 and taps:
        # A task packs an input row once for all its rows. At its start it packs input rows that the previous task packed too.
        of_task = max(1.0, rows.rows / schedule.tasks)
        last = taps if len(problem.kernel) == 2 else max(1.0, taps ** (1 / (len(problem.kernel) - 1)))
        packs = min(taps, taps / last * (of_task / rows.groups + last - 1) / of_task)
    pixels = -(-(problem.in_sizes[-1] + (blocks - 1) * (-(-k // s) - 1)) // blocks)
    return phases, taps, phases * k * problem.co, pixels, (j1 - j0) / blocks, packs


def _across_counts(schedule, kind, rows, unit, here):
    """Return the counts of one row's part in a task with the layout ACROSS: transposing pixels, the GEMM, ordering outputs."""
    problem, vl = schedule.problem, unit.vl
    phases, taps, columns, pixels, js, packs = _row_sizes(schedule, kind, rows)
    ci = problem.ci
    gemm_rows = 1  # rows that one GEMM multiplies
    if schedule.joined:
        image_rows = math.prod(problem.in_sizes[:-1])
        gemm_rows = max(1, -(-problem.batch * image_rows // schedule.tasks))
        if problem.planar:  # the planes of an image lie between its pixels and those of the next image
            gemm_rows = min(gemm_rows, max(1, image_rows))
        if rows.taps > 1:  # only rows that the same taps reach; at each end of an axis, the rows differ in their taps
            gemm_rows = min(gemm_rows, rows.rows / min(rows.rows, 2 * rows.taps - 1))
    vectors = -(-gemm_rows * pixels // vl) / gemm_rows
    chunks = taps if schedule.chunks_of_tap and packs < taps else 1
    gemm = _gemm_counts(problem, columns, gemm_rows * pixels, taps * ci / max(chunks, 1), unit, here)
    counts = {name: count * chunks / gemm_rows for name, count in gemm.items()}
    if not problem.planar:
        counts["across_transpose"] = packs * ci * vectors
    elif rows.taps > 1 and not schedule.chunks_of_tap:  # planes are packed, because a depth chunk has several taps
        line = 0 if schedule.joined else 64 / (vl * unit.t_size)  # a row is on one more cache line than it fills
        counts["collect"] = packs * ci * (vectors + line)
    if not problem.planar and problem.groups * ci * unit.s_size % _SAME_SET_BYTES == 0 and ci > _FEW_CHANNELS:
        counts["move"] = packs * ci * vectors  # cache lines that share sets of L1 are copied first
    counts["start"] = packs / gemm_rows + phases
    for name, count in _order_counts(problem, phases, js, unit).items():
        counts[name] = counts.get(name, 0) + count
    return counts


def _columns_counts(schedule, kind, rows, unit, here):
    """Return the counts of one row's part in a task with the layout COLUMNS."""
    problem, vl = schedule.problem, unit.vl
    phases, taps, columns, pixels, js, packs = _row_sizes(schedule, kind, rows)
    s, ci = problem.strides[-1], problem.ci
    chunks = taps if schedule.chunks_of_tap or rows.taps == 1 else 1
    padded = -(-columns // vl) * vl
    total = common.filter_bytes(problem, unit, columns)
    counts = common.weight_counts(padded * taps * ci * unit.e_size, total, here=here)
    for name, count in common.tile_counts(pixels, columns, taps * unit.filled(ci) / chunks if chunks else 0, unit).items():
        counts[name] = chunks * count
    lanes, terms = s * problem.co, -(-problem.kernel[-1] // s)
    if lanes <= vl and problem.groups == 1:
        # Whole vectors store the outputs of vl j (body_overlap.h).
        counts["overlap_term"], counts["overlap_vector"] = phases * js * terms, phases * js * (1 / vl + _SUM_OF_J)
    else:
        vectors = phases * js * -(-lanes // vl)
        counts["overlap_vector_term"], counts["overlap_vector"] = vectors * terms, vectors
        if problem.groups > 1:  # outputs of several groups are stored one by one
            counts["overlap_term"] = phases * js * lanes
    counts["row"], counts["start"] = 1, taps + phases
    if unit.matrix:
        steps, rest = divmod(ci, unit.kstep)
        partial = chunks * -(-ci // _core.KC) - 1  # depth chunks after the first, which add to products
        counts["amx_pack"] = packs * pixels * (steps + (rest > 0))
        counts["amx_pack"] += 4 * -(-pixels // unit.m_step) * (padded // vl) * max(partial, 0)
        counts["store"] = pixels * (padded // vl)
    elif not schedule.in_place:
        counts["move"] = packs * pixels * -(-ci // vl)
    return counts
