"""depthwise: vectors over the out channels of many small groups, or over the in-channels where out channels are few; no GEMM.

The key of its weights is ``("depthwise", width, each, dots)``, of `cell_width`, `groups_in_vector` and `takes_dots`.
"""

import math

import numpy as np

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, execution, machine
from .counts import conversion_counts, cost_part, dots_cost, row_counts
from .cutting import ROUNDED_BYTES, cut_rows, js_shown, rows_met
from .kernels import cell_width, converts, groups_in_vector, run_step, skips_outside, takes, takes_dots
from .loops import DepthwisePlan
from .runs import all_abreast, runs_by_phase, runs_of_cells, steps_apart, with_ends
from .weights import LaneRecipe

_FAR = 2**62  # a window that begins so far in the scatter is beyond its integers
LIMIT = "it wants groups of at most 16 in-channels, 64 if their out channels fill vectors, or few out channels"


def cost(problem):
    info = machine.current().info(problem.dtype)
    if max(problem.begin) >= _FAR:
        return math.inf
    if takes_dots(problem, info):
        return dots_cost(problem, info)
    if not takes(problem, info):
        return math.inf
    groups = groups_in_vector(problem, info) > 0
    width = 0 if groups else cell_width(problem, info)
    cut = cut_rows(problem, width, js_shown(problem), 2)
    rows, meet, new = rows_met(problem)
    part = machine.current().profile[cost_part(problem, width, groups)]
    row = part.cycles(row_counts(problem, info, cut, width, groups, meet, new))
    row += machine.current().profile["planes"].cycles(conversion_counts(problem, cut, new, info))
    tasks = cut.blocks * cut.lane_blocks * -(-rows // cut.rows)
    memory = common.memory_counts(problem) | ({} if width else common.fill_counts(problem))
    return common.shared([(rows * row, tasks)]) + part.cycles(memory)


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
    each, dots = groups_in_vector(problem, info), takes_dots(problem, info)
    width = cell_width(problem, info) if adjacent and not each else 0
    skips = not width and skips_outside(problem, each)
    runs, hole = runs_of_cells(problem, width) if width else runs_by_phase(problem, skips)
    step = 1 if width else run_step(problem)
    ended = all_abreast(runs, problem.strides[-1]) if skips else runs if width or each or step > 1 else with_ends(runs)
    j0, j1 = min((r.start for r in runs), default=0), max((r.stop for r in runs), default=1)
    cycles = cost(problem)
    cut = cut_rows(problem, width, j1 - j0, common.threads(cycles, threads))
    offsets = [-off for r in runs for _, off in r.taps] or [0]
    outer = [common.reaching(problem, ax) for ax in range(problem.rank - 1)]
    reads = _reads(problem, info, in_strides, cut.lanes, width, each, skips)
    most_terms = max((len(run.taps) for run in ended), default=0)
    stores = _stores(problem, here, info, out_strides, outer, cut, width, each, dots, hole, most_terms, reads["contiguous_in"])
    row_taps = math.prod(max(map(len, axis), default=0) for axis in outer)
    # Ends need a kernel that reads whole rows; and what goes by blocks computes each alone.
    contiguous = (reads["contiguous_in"] or converts(problem)) and stores["contiguous_out"]
    whole = contiguous and row_taps <= _core.DW_SOURCES and not each and not (stores["staged"] and cut.blocks > 1)
    joins_ends = stores["contiguous_out"] if each else whole
    spec = {
        "outer": outer,
        "rows": cut.rows,
        "runs": steps_apart(ended if joins_ends else runs, step),
        "skips": skips,
        "j0": j0,
        "block": cut.block,
        "blocks": cut.blocks,
        "lanes": cut.lanes,
        "width": max(1, width),
        "lane_block": cut.lane_block,
        "min_off": min(offsets),
        "max_off": max(offsets),
        "far": not converts(problem) and execution.data_bytes(problem) > here.limits.far,
        "converts": converts(problem),
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
    if converts(problem):
        return _rounded_stores(problem, here, info, cut, max(1, width), hole)
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
        staged = (part + _core.DW_TERMS) * s  # (with those after a run that belong to it)
    # Prefetching outputs: groups, which multiply more between stores, lose by it where L1 is small; what the last level holds
    # well gains nothing; and of few registers, which hold the pixels of few channels, even less does.
    prefetches = contiguous_out and not staged and not (each and limits.ordinary_stores) and out > here.l2
    return {
        "contiguous_out": contiguous_out,
        "store_alignment": alignment,
        "part": part,
        "staged": staged,
        "ahead": _AHEAD if prefetches else 0,
        "ordered": bool(prefetches and ordered and out > here.l3 // (4 if line >= 64 else 2)),
        "stream": False,
    }


def _rounded_stores(problem, here, info, cut, width, hole):
    """How outputs of 16 bits are stored: those of a few j are gathered in L1, then rounded; where they are too many or some
    are left out, by `store`, row after row."""
    s, some, limit = problem.strides[-1], 8 * width, here.limits.depthwise_non_temporal
    least = some * s * cut.lane_block * info["t_size"]
    together = not hole and problem.activation[0] in _IN_REGISTERS and least <= 4 * ROUNDED_BYTES
    part = max(1, ROUNDED_BYTES // max(1, least)) * some if together else cut.block
    return {
        "contiguous_out": together,
        "store_alignment": 0,
        "part": part,
        "staged": (part + _core.DW_TERMS) * s if together else 0,
        "ahead": 0,
        "ordered": False,
        "stream": together and execution.data_bytes(problem) + execution.output_bytes(problem) > limit,
    }


_IN_REGISTERS = ("none", "clip", "relu", "leaky_relu")  # activations that kernels apply before they store
