"""depthwise: vectors over the out channels of many small groups, or over the in-channels where out channels are few; no GEMM.

The key of its weights is ``("depthwise", width, each, dots)``, of `_width`, `_each` and `_dots`.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, execution, machine
from .. import phases as _phases
from .loops import DepthwisePlan
from .weights import LaneRecipe

LIMIT = "it wants groups of at most 16 in-channels, 64 if their out channels fill vectors, or few out channels"

_CHANNELS = 16  # in-channels of a group
_WIDE = 64  # where its out channels fill vectors
_LANES = 64  # out channels of a task, or a multiple of that whose weights stay near
_WEIGHTS = 3 << 15  # bytes of those
_INPUTS = 1 << 16  # numbers that a task reads, about
_TERMS = 64  # taps of a cell, which has a run for each at either border
_KEPT = _core.DW_TERMS  # taps of a phase whose weights stay in registers
_OUTPUTS = 1 << 14  # numbers that it writes to a row
_PRODUCTS = _core.DW_PRODUCTS  # taps of a phase, of such groups as `_each` speaks of
_FULL = 0.6  # of the lanes of a vector, by the channels of a group
_NEAR = 1 << 15  # bytes of weights in L1


def cost(problem):
    info = machine.current().info(problem.dtype)
    if _dots(problem, info):
        return _dots_cost(problem, info)
    if problem.ci * problem.co == 0 or (problem.ci > _CHANNELS and not (problem.ci <= _WIDE and _each(problem, info) > 0)):
        return math.inf
    groups = _each(problem, info) > 0
    width = 0 if groups else _width(problem, info)
    cut = _cut(problem, width, _js(problem), 2)
    rows, meet, new = _rows(problem)
    part = machine.current().profile[_part(problem, width, groups)]
    counts = _row_counts(problem, info, cut, width, groups, meet, new)
    tasks = cut.blocks * cut.lane_blocks * -(-rows // cut.rows)
    memory = common.memory_counts(problem) | ({} if width else common.fill_counts(problem))
    memory |= common.plane_counts(problem, math.prod(problem.out_shape) / (2 if problem.groups == 1 else 1))
    return common.shared([(rows * part.cycles(counts), tasks)]) + part.cycles(memory)


def _part(problem, width, groups):
    """Whose kernels do it: their costs have a part each in convt.algorithms.costs."""
    if width:
        return "depthwise_cells"
    return "depthwise_groups" if groups else "depthwise_stride_1" if problem.strides[-1] == 1 else "depthwise"


def _js(problem):
    """How many j the window shows along the last axis."""
    s, begin = problem.strides[-1], problem.begin[-1]
    return max(1, -(-(begin + problem.out_sizes[-1]) // s) - begin // s)


def _row_counts(problem, info, cut, width, groups, meet, new):
    """What a row of outputs takes that ``meet`` input rows reach in the mean, ``new`` of them for the first time."""
    s, k, ci, size, vl = problem.strides[-1], problem.kernel[-1], problem.ci, problem.in_sizes[-1], info["vl"]
    js, terms = _js(problem), -(-k // s)
    phases, wide = (1, width) if width else (min(s, k), 1)
    vectors, single = -(-wide * cut.lanes // vl), -(-cut.lanes // vl)
    taps = meet * ci * (terms if width else k)  # of a j
    # Outputs all of whose taps are inside; the others are runs of their own, unless kernels skip what is not there.
    inner = js if not width and _skips(problem, groups) else max(0, min(js, size - terms + 1))
    outer = js - inner
    edges = max(0, _pairs(problem, -1) - inner * k) * taps / k * single  # multiply-adds of the others
    gathered = _gathered(problem, info, width, groups)
    calls = cut.blocks * -(-inner // (8 * wide * cut.blocks))
    loads = calls * vectors * taps + edges  # of a vector of weights
    weights = cut.lane_block * taps * info["t_size"]
    stores = js / wide * vectors * phases
    counts = {
        _fma_kind(problem, info, width, groups, gathered, meet, terms): inner / wide * vectors * taps + edges,
        "dw_edge_fma": edges,
        "dw_weight": loads,
        "dw_weight_l2": loads * common.far(weights, _NEAR),
        "dw_weight_l3": loads * common.far(common.filter_bytes(problem, info)),
        "dw_call": (calls + 2 * outer + (cut.blocks if width else 0)) * vectors * phases,
        "dw_store": stores,
        "dw_term": cut.lane_blocks * (taps * cut.blocks + edges / single),
        "dw_row": cut.lane_blocks * cut.blocks,
        "dw_in_row": cut.lane_blocks * cut.blocks * meet,
    }
    if s > 2 and not width:  # two phases store side by side, more go along the row one after the other
        counts["dw_store_phase"] = stores
    if problem.groups * problem.co * ITEMSIZE[problem.dtype] % 1024 == 0:  # outputs of a vector fall into few sets of L1
        counts["dw_store_crowded"] = stores
    if not gathered:
        return counts
    if not (width or groups or _permuted(problem, info)):  # what is gathered serves all phases
        counts["dw_gathered_fma"] = (inner / wide * vectors * taps + edges) / s
    in_rows = new + (cut.row_taps - 1) / cut.rows  # that a row gathers: each task keeps what it gathered for the rows after
    rows = in_rows * (1 if groups else ci)
    counts["dw_gather_row"] = rows * cut.blocks * cut.lane_blocks
    if groups:
        counts["dw_widen_plane" if problem.planar else "dw_widen"] = rows * size * problem.groups * ci / vl
    elif problem.planar:
        name = ("dw_gather_plane", "dw_gather_plane_crowded", "dw_gather_plane_same_set")
        counts[name[common.crowded(problem, problem.in_sizes)]] = rows * size * single
    else:
        counts["dw_gather_near" if _span(problem, info) <= 2 * vl else "dw_gather"] = rows * size * single
    return counts


def _gathered(problem, info, width, groups):
    """Whether inputs are gathered, or widened, into vectors of lanes before they are multiplied."""
    if groups:
        return problem.planar or info["t_size"] > ITEMSIZE[problem.dtype]
    contiguous = problem.ci == problem.co == 1 and not problem.planar and (not width or problem.strides[-1] == 1)
    return not (contiguous or (_permuted(problem, info) and not width))


def _fma_kind(problem, info, width, groups, gathered, meet, terms):
    """The name of a multiply-add, by how it comes by its input."""
    if width:
        return "dw_fma_cell"
    if groups:  # few accumulators let a broadcast serve few, as does a single tap
        many = info["mr"][-1] * info["nr"] // info["vl"] > 16 and problem.kernel[-1] > 1
        return "dw_fma_group" if many else "dw_fma_group_few"
    permuted = _permuted(problem, info)
    if permuted:
        return permuted
    if gathered:
        return "dw_fma_gathered"
    return "dw_fma_few" if meet * problem.ci * terms <= 4 else "dw_fma"


def _dots_cost(problem, info):
    """Cycles where vectors run over in-channels."""
    part = machine.current().profile["depthwise_dots"]
    s, k, vectors = problem.strides[-1], problem.kernel[-1], problem.ci // info["vl"]
    rows, meet, _ = _rows(problem)
    js = _js(problem)
    tiles = -(-js // max(1, info["vl"] // problem.co))
    # Terms of a stretch, by the registers that there are.
    most = 3 if info["mr"][-1] * info["nr"] // info["vl"] > 16 else max(1, min(3, 7 // problem.co))
    loads = ends = starts = 0
    for phase in range(min(s, k)):
        terms = -(-(k - phase) // s)
        stretches = -(-terms // most)
        loads += (js * stretches + tiles * (terms - stretches)) * meet * vectors
        ends += tiles
        starts += tiles * stretches * meet
    counts = {
        "dw_fma": problem.groups * _pairs(problem, -1) * meet * vectors * problem.co,
        "dw_load": problem.groups * loads,
        "dw_tile": problem.groups * ends,
        "dw_stretch": problem.groups * starts,
        "dw_row": 1,
        "dw_in_row": meet,
    }
    if info["t_size"] > ITEMSIZE[problem.dtype]:
        counts["dw_widen"] = meet * problem.in_sizes[-1] * problem.groups * vectors
    tasks = -(-rows // _cut(problem, 0, js, 2).rows)
    data = execution.data_bytes(problem)
    memory = common.memory_counts(problem) | common.fill_counts(problem)
    memory["in_byte_memory"] = data * common.far(data, machine.current().last_bytes)
    return common.shared([(rows * part.cycles(counts), tasks)]) + part.cycles(memory)


def _span(problem, info):
    """How far apart the inputs of a vector are."""
    groups = -(-min(info["vl"], problem.groups * problem.co) // problem.co)  # that a vector meets
    return (groups - 1) * problem.ci + 1


def _permuted(problem, info):
    """The name of a multiply-add whose inputs are permuted where they lie, if channels are contiguous; None where they are
    gathered."""
    if problem.ci == problem.co == 1 or problem.planar:
        return None
    span = _span(problem, info)
    if span > info["reach"]:
        return None
    if span == 1:
        return "dw_fma_broadcast"
    terms = -(-problem.kernel[-1] // problem.strides[-1])
    sliding = problem.dilations[-1] in (1, _step(problem)) and 1 < terms <= 3  # terms share a permutation
    return ("dw_fma_permuted" if span <= info["vl"] else "dw_fma_permuted_2") + ("_sliding" if sliding else "")


def _dots(problem, info):
    """Whether vectors run over in-channels, as `body_dots.h` takes them: where out channels are few, even of two groups."""
    co, vl = problem.co, info["vl"]
    few = 0 < co <= min(_core.DOTS, vl) and (problem.groups == 1 or 2 * co < vl)
    whole = problem.ci > 0 and problem.ci % vl == 0 and not problem.planar
    # (Sums of single taps are done sooner by scatter, which has no lanes to add up.)
    return few and whole and 1 < _taps(problem) <= _PRODUCTS


def _taps(problem):
    """Of a phase, at most."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, strict=True)
    return math.prod(-(-k * math.gcd(s, d) // s) for k, s, d in axes)


def _each(problem, info):
    """Groups of several channels as `convt_dw_groups` has them: how many share a vector; 0 where others are better.

    Inputs of one group for a vector, or a few of them, are loaded or permuted as fast."""
    ci, co, vl = problem.ci, problem.co, info["vl"]
    each = 2 if 2 * co == vl else 1
    if _dots(problem, info):
        return 1
    if ci * co == 1 or ci % each or _taps(problem) > _PRODUCTS or problem.groups < (2 if ci > _CHANNELS else each):
        return 0
    if co * each < _FULL * -(-co * each // vl) * vl:
        return 0
    return each if each == 2 or co % vl == 0 or info["reach"] <= 1 or problem.planar else 0


def recipe(attributes, filter, bias, key):
    width, each, dots = key[1:]
    cell = (attributes.strides[-1], width) if width else (1, 1)
    return LaneRecipe(attributes.dtype, filter, bias, cell, each, dots)


def make(problem, recipe, packed, in_strides, out_strides, threads):
    here = machine.current()
    info = here.info(problem.dtype)
    channels = problem.groups * problem.co
    item = ITEMSIZE[problem.dtype]
    adjacent = out_strides[-2] == channels * item and (channels == 1 or out_strides[-1] == item)
    each, dots = _each(problem, info), _dots(problem, info)
    width = _width(problem, info) if adjacent and not each else 0
    skips = not width and _skips(problem, each)
    runs, hole = _cells(problem, width) if width else _by_phase(problem, skips)
    step = 1 if width else _step(problem)
    ended = _abreast(runs, problem.strides[-1]) if skips else runs if width or each or step > 1 else _ended(runs)
    j0, j1 = min((r.start for r in runs), default=0), max((r.stop for r in runs), default=1)
    cycles = cost(problem)
    cut = _cut(problem, width, j1 - j0, common.threads(cycles, threads))
    offsets = [-off for r in runs for _, off in r.taps] or [0]
    outer = [common.reaching(problem, ax) for ax in range(problem.rank - 1)]
    reads = _reads(problem, info, in_strides, cut.lanes, width, each, skips)
    most_terms = max((len(run.taps) for run in ended), default=0)
    stores = _stores(problem, here, info, out_strides, outer, cut, width, each, dots, hole, most_terms, reads["contiguous_in"])
    row_taps = math.prod(max(map(len, axis), default=0) for axis in outer)
    # Ends need a kernel that reads rows where they lie; and what goes by blocks computes each alone.
    contiguous = reads["contiguous_in"] and stores["contiguous_out"]
    whole = contiguous and row_taps <= _core.DW_SOURCES and not (each or stores["staged"])
    joins_ends = stores["contiguous_out"] if each else whole
    spec = {
        "outer": outer,
        "rows": cut.rows,
        "runs": _apart(ended if joins_ends else runs, step),
        "skips": skips,
        "j0": j0,
        "block": cut.block,
        "blocks": cut.blocks,
        "lanes": cut.lanes,
        "width": max(1, width),
        "lane_block": cut.lane_block,
        "min_off": min(offsets),
        "max_off": max(offsets),
        "far": execution.data_bytes(problem) > here.limits.far,
        **reads,
        **stores,
    }
    key = ("depthwise", width, each, dots)
    packing = recipe(key)
    how = execution.execution(problem, here, info, out_strides, hole, cycles, packing.weight_bytes, False)
    return DepthwisePlan(problem, packing, in_strides, out_strides, how, spec), key


def _reads(problem, info, in_strides, lanes, width, each, skips):
    """How rows of inputs are read: where they lie, permuted by ``index`` where they lie, or gathered beforehand."""
    channels, channel = problem.groups * problem.co, in_strides[-1] // ITEMSIZE[problem.dtype]
    contiguous = info["direct_store"] and channel == 1
    single = problem.ci == problem.co == 1 and lanes == channels
    pixels = width <= 1 or in_strides[-2] == channels * ITEMSIZE[problem.dtype]  # a cell reads those of several j's
    contiguous_in = contiguous and ((single and pixels) or each > 0)
    first = np.arange(lanes) % channels // problem.co * problem.ci * channel
    at = np.arange(-(-lanes // info["vl"]) * info["vl"])
    index = first[np.minimum(at, lanes - 1)] - first[at // info["vl"] * info["vl"]]
    # The lanes of a cell repeat for each phase: for all lanes the index is the same, if there is one group. AVX2 has no kernels
    # of groups that permute.
    cells = lanes == channels or (problem.groups == 1 and info["reach"] > 1)
    permuted = info["direct_store"] and not contiguous_in and width <= 1 and channel >= 0 and cells
    permuted = permuted and index.max() < info["reach"] and not (each or skips)  # (a permutation leaves out no pixel)
    return {"contiguous_in": contiguous_in, "permuted": bool(permuted), "index": index.astype(np.int32)}


_STAGE_BYTES = 1 << 12  # of outputs, about, that non-temporal stores write in one copy: multiply-adds go on meanwhile
_AHEAD = 8  # j's that a line of the output is prefetched before it is written


def _stores(problem, here, info, out_strides, outer, cut, width, each, dots, hole, most_terms, contiguous_in):
    """How outputs are stored: ordinary, in order, gathered and then non-temporal, or non-temporal by whole vectors."""
    item, channels, limits, s = ITEMSIZE[problem.dtype], problem.groups * problem.co, here.limits, problem.strides[-1]
    lane_step = 1 if width * s > 1 else out_strides[-1] // item
    contiguous_out = info["direct_store"] and lane_step == 1 and problem.activation[0] in _IN_REGISTERS
    data, out = execution.data_bytes(problem), execution.output_bytes(problem)
    beyond = data + out > limits.depthwise_non_temporal
    row_taps = math.prod(max(map(len, axis), default=0) for axis in outer)
    width = max(1, width)
    some = 8 * width
    least = some * s * channels * item  # bytes of the outputs of so many j's
    flat = contiguous_out and cut.lane_blocks == 1 and out_strides[-2] == channels * item and not hole
    # Few terms of few rows, whose vectors are stored in the order in which they lie, need non-temporal stores only beyond any
    # cache; what is stored phase by phase or vector by vector gains by them where a cache would be full of it.
    few = row_taps <= _core.DW_ORDERED and most_terms <= _core.DW_ORDERED and channels >= info["vl"] and width == 1
    ordered = flat and contiguous_in and not each and few and data + out <= limits.depthwise_ordered
    limit = limits.depthwise_non_temporal
    scattered = not ordered and data + out > (limit // 2 if each else limit * 2 // 3)
    # Vectors that are lines, and whole: those of cells, whose channels fill none, share lines. (Lines written by halves, some
    # time apart, take memory three times as long.)
    line = info["vl"] * info["t_size"]
    full = line >= 64 and not dots and (problem.co * each or channels) % info["vl"] == 0
    alignment, part, staged = 0, cut.block, 0
    if (beyond or scattered) and full and contiguous_out and width == 1:
        alignment = execution.vector_alignment(info, out_strides)
        ordered = ordered and not alignment
    # Pixels that share lines, or are written group by group, are gathered first, where their channels are contiguous and some
    # run writes each of them.
    shared = each or channels * info["t_size"] % 64
    if beyond and not alignment and flat and shared and least <= 16 * _STAGE_BYTES and not ordered:
        part = max(1, _STAGE_BYTES // least) * some
        staged = part * s
    # Prefetching outputs: groups, which multiply more between stores, lose by it where L1 is small; what the last level holds
    # well gains nothing; and of few registers, which hold the pixels of few channels, even less does.
    prefetches = contiguous_out and not staged and not (each and limits.panel_major) and out > here.l2
    return {
        "contiguous_out": contiguous_out,
        "store_alignment": alignment,
        "part": part,
        "staged": staged,
        "ahead": _AHEAD if prefetches else 0,
        "ordered": bool(prefetches and ordered and out > here.l3 // (4 if line >= 64 else 2)),
    }


_IN_REGISTERS = ("none", "clip", "relu", "leaky_relu")  # activations that kernels apply before they store


class _Cut(NamedTuple):
    """What a task is."""

    lanes: int  # of a j
    lane_block: int
    lane_blocks: int
    block: int  # values of j
    blocks: int
    rows: int
    row_taps: int  # input rows that meet in one of outputs, at most


def _cut(problem, width, js, threads):
    """Blocks that stay in the cache, and enough of them for the threads where rows are few."""
    s, channels = problem.strides[-1], problem.groups * problem.co
    lanes = channels * (s if width else 1)
    near = _WEIGHTS // (math.prod(problem.kernel) * problem.ci * ITEMSIZE[problem.dtype])
    each = 0 if width else _each(problem, machine.current().info(problem.dtype))
    step = each * problem.co if each else 1
    step *= -(-_LANES // step)
    near = min(near, 2 * _LANES) if each else near  # (what is read of a row stays near)
    lane_block = lanes if width else min(lanes, max(1, near // step) * step)
    lane_blocks = -(-lanes // lane_block)
    row_taps = _row_taps(problem)
    rows = max(1, _rows(problem)[0])
    tasks, few = (16 * threads, 4 * threads) if threads > 1 else (1, 1)
    pixel = (lane_block // problem.co if each else lane_block) * problem.ci  # (others gather those of each lane)
    block = min(_INPUTS // (pixel * row_taps), _OUTPUTS // (channels * s))
    block = max(8, min(block, -(-js * rows * lane_blocks // few)))
    block = max(1, min(-(-block // 8) * 8, js))
    blocks = -(-js // block)
    block = min(-(-js // (8 * blocks)) * 8, js)
    blocks = -(-js // block)
    rows = max(1, min(rows, rows * blocks * lane_blocks // tasks))
    return _Cut(lanes, lane_block, lane_blocks, block, blocks, rows, row_taps)


class _Run(NamedTuple):
    """Outputs that the same taps reach, of one phase or of a cell."""

    start: int  # absolute j
    stop: int
    first_out: int  # the output of lane 0 at ``start``
    taps: list  # (row of weights, input index minus j)
    low: int  # lanes of a j
    high: int
    cut: bool = False  # the last tap is one that not all lanes have
    before: int = 0  # outputs that belong to it before its first and after its last, each of which has a tap less
    after: int = 0
    lacks: tuple = (0, 0)  # outputs at its start and end that it has not
    step: int = 1  # from each of its j's to the next one


def _width(problem, info):
    """How many j's make a cell; 0 where each phase is better computed apart.

    Cells fill their vectors; but phases that read the same inputs keep them in registers, and read them where they lie.
    """
    s, k, vl = problem.strides[-1], problem.kernel[-1], info["vl"]
    channels = problem.groups * problem.co
    vectors = channels / vl
    full = 0.6 if s == 1 else 0.5 if _permuted(problem, info) else 0.53
    if problem.ci == problem.co == 1 and k <= _KEPT * s:  # it is rather the store of a phase that a vector costs
        full = min(full, 0.25 if s == 1 else (s - 2) / 6)
    if problem.planar or problem.dilations[-1] > 1 or s > k or k > _TERMS * s or vectors >= full * math.ceil(vectors):
        return 0
    waste = lambda m: math.ceil(m * s * vectors) / (m * s * vectors)  # noqa: E731
    return min(range(1, vl + 1), key=lambda m: (max(waste(m), 1.1), m))


def _cells(problem, width):
    """Runs of cells: every phase, as a row of lanes."""
    s, k, size = problem.strides[-1], problem.kernel[-1], problem.in_sizes[-1]
    begin, end = problem.begin[-1], problem.begin[-1] + problem.out_sizes[-1]
    channels = problem.groups * problem.co
    terms = -(-k // s)
    j0, j1 = begin // s, -(-end // s)
    cuts = {j0, j1, *(u + at for u in range(terms) for at in (0, size))}
    cuts |= {-(-begin // s), end // s}  # where the window cuts a cell
    runs = []
    for a, b in itertools.pairwise(sorted(c for c in cuts if j0 <= c <= j1)):
        taps = [(u, -u) for u in range(terms) if 0 <= a - u < size]
        low, high = max(0, begin - s * a) * channels, min(s, end - s * a) * channels
        cut = k % s != 0 and (terms - 1, 1 - terms) in taps
        runs.append(_Run(a, b, s * a - begin, taps, low, high, cut))
    return runs, False


def _skips(problem, each):
    """Whether runs may read outside the input, of which kernels skip what is not there: if each term reads the pixel before."""
    s, k, d, end = problem.strides[-1], problem.kernel[-1], problem.dilations[-1], problem.begin[-1] + problem.out_sizes[-1]
    if max(s, abs(problem.begin[-1]), abs(end)) >= 2**31 or (s % d and d != _step(problem)):
        return False
    if each:
        return True
    # (Of few terms and rows weights stay in registers, in kernels that have their own way with ends.)
    single = problem.ci == problem.co == 1 and not problem.planar
    return single and s == 1 and (k > _KEPT or _row_taps(problem) > _core.DW_SOURCES)


def _step(problem):
    """How far apart the j's of a run are: of stride 1 as far as taps are dilated, so that each reads the pixel before, if lanes
    fill their vectors and such a run is no shorter than two at the borders otherwise."""
    d, vectors = problem.dilations[-1], problem.groups * problem.co / machine.current().info(problem.dtype)["vl"]
    some = problem.strides[-1] == 1 < problem.kernel[-1] and 2 * d * d <= problem.in_sizes[-1]
    return d if some and vectors >= _FULL * math.ceil(vectors) else 1


def _apart(runs, step):
    """Runs of stride 1, each as those of every ``step``-th j."""
    return [
        run._replace(start=run.start + r, first_out=run.first_out + r, step=step)
        for run in runs
        for r in range(min(step, run.stop - run.start))
    ]


def _row_taps(problem):
    """Input rows that meet in one of outputs, at most."""
    axes = zip(problem.kernel[:-1], problem.strides[:-1], problem.in_sizes[:-1], strict=True)
    return max(1, math.prod(min(-(-k // s), size) for k, s, size in axes))


def _by_phase(problem, skips):
    """Runs of single phases, and whether there are phases that no tap reaches."""
    s, k, d = problem.strides[-1], problem.kernel[-1], problem.dilations[-1]
    begin, out, size = problem.begin[-1], problem.out_sizes[-1], problem.in_sizes[-1]
    lanes = problem.groups * problem.co
    groups = _phases.phase_groups(k, s, d, merge=False)
    runs, hole = [], False
    for c in _phases.axis_classes(groups, size, s, begin, out, split=not skips):
        if c.group < 0:
            hole = True
            continue
        group = groups[c.group]
        low, high = c.valid[0]
        # Nearest first: phases share the inputs that their taps begin with.
        reached = range(len(group.offsets)) if skips else range(*c.tap_range)
        taps = [(group.taps[0][n], -group.offsets[n]) for n in reversed(reached)]
        runs.append(_Run(c.start + low, c.start + high, c.first_out[0] + s * low, taps, 0, lanes))
    return (runs if skips else _side_by_side(runs, s)), hole


def _abreast(runs, s):
    """Runs of all phases as one, where each phase has only some of the outputs; as they are, if there are runs of few taps."""
    start, stop = min((run.start for run in runs), default=0), max((run.stop for run in runs), default=0)
    if any(run.start > start + 1 or run.stop < stop - 1 for run in runs):
        return runs
    lacks = [(run.start - start, stop - run.stop) for run in runs]
    return sorted(
        run._replace(start=start, stop=stop, first_out=run.first_out - s * before, lacks=(before, after))
        for run, (before, after) in zip(runs, lacks, strict=True)
    )


def _side_by_side(runs, s):
    """Runs cut where another begins or ends, so that those of the same j are computed together; in order of j."""
    cuts = sorted({j for run in runs for j in (run.start, run.stop)})
    if len(cuts) * len(runs) > common.MANY_CLASSES:
        return sorted(runs)
    pieces = []
    for run in runs:
        inside = [j for j in cuts if run.start <= j <= run.stop]
        for a, b in itertools.pairwise(inside):
            pieces.append(run._replace(start=a, stop=b, first_out=run.first_out + s * (a - run.start)))
    return sorted(pieces)


def _ended(runs):
    """The same, but outputs at the ends of the longest runs, which some of their taps reach, belong to these."""
    size = max((run.stop - run.start for run in runs), default=0)
    main = [run for run in runs if run.stop - run.start == size > 1]
    terms = max((len(run.taps) for run in main), default=0)
    counts = [len(run.taps) for run in main]
    if not 0 < terms <= _KEPT or main[-1].start > main[0].start or counts not in ([terms] * len(main), [terms, terms - 1]):
        return runs
    if any(a[1] != b[1] for run in main for a, b in zip(run.taps, main[0].taps, strict=False)):
        return runs  # they don't read the same inputs
    single = {(run.start, *run.taps[:1]): run for run in runs if run.stop - run.start == 1}
    taken, longer = [], []
    for run in main:
        ends = []
        for wanted in (
            [(run.start - i, run.taps[: terms - i]) for i in range(1, terms)],
            [(run.stop - 1 + i, run.taps[i:]) for i in range(1, len(run.taps))],
        ):
            found = [single.get((j, taps[0])) for j, taps in wanted]
            there = [end is not None and end.taps == taps for end, (_, taps) in zip(found, wanted, strict=True)]
            ends.append([*there, False].index(False))
            taken += found[: ends[-1]]
        longer.append(run._replace(before=ends[0], after=ends[1]))
    return sorted([*longer, *(run for run in runs if run not in main and run not in taken)])


def _rows(problem):
    """Output rows of the batch; the average number of input rows that reach one, and of those that did not reach the one
    before, along the last axis but one."""
    meet, new = 1.0, 1.0
    for ax, (size, out) in enumerate(zip(problem.in_sizes[:-1], problem.out_sizes, strict=False)):
        new = meet * min(1.0, size / max(out, 1))
        meet *= _pairs(problem, ax) / max(out, 1)
    return problem.batch * math.prod(problem.out_sizes[:-1]), meet, new


def _pairs(problem, ax):
    """How many pairs of an input and a tap meet in the window along an axis."""
    s, d, size, out = problem.strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.out_sizes[ax]
    k = problem.kernel[ax]
    if k > common.MANY_CLASSES:  # too many to count one by one
        return k * size
    firsts = (t * d - problem.begin[ax] for t in range(k))  # where each tap's first input goes
    return sum(max(0, min(size, (out - 1 - first) // s + 1) - max(0, -(first // s))) for first in firsts)
