"""How direct's GEMM comes by its rows: packed, or read where they lie; in which chunks of depth."""

import collections
import itertools
import math

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, machine

LEAST_DEPTH = 96  # in-channels that a chunk of a single tap should have
MOST_SHARE = 0.92  # of rows times taps that are not zeros: up to here leaving the zeros out pays
# Rows of a task, for vectors (10 tiles of 14) and AMX: a depth chunk of its input is 150 or 540 KiB of L2.
MOST_ROWS = 140, 320
LEAST_ROWS = 28  # low blocks spread the packing of inputs over threads, high ones share weights


def most_rows(info):
    return MOST_ROWS[info["parts"] > 0]


def depth_chunks(problem, combo, chosen, info):
    """The depth chunks of a class, each within a window of `reading`; tap by tap if the class is `sparse`, those that reach
    most rows at either end, where every row takes part."""
    if problem.order is not None:
        return list(problem.order.of(combo)[0])
    ci_p = common.filled(problem.ci, info)
    if not sparse(problem, combo):
        window, _ = reading(problem, combo, info)
        taps = 1 if window == 1 else len(chosen[-1].offsets)
        return common.depth_chunks(combo, chosen, ci_p, info, slab=taps * ci_p if window else 0)
    reached = [math.prod(taps) for taps in itertools.product(*reached_rows(problem, combo))]
    chunks = common.depth_chunks(combo, chosen, ci_p, info, slab=ci_p)
    chunks.sort(key=lambda chunk: -reached[chunk[0] // ci_p])
    return [chunks[0], *chunks[2:], chunks[1]]


def reached_rows(problem, combo):
    """For each axis and tap: how many pixels of the class it reaches, with an input that is there."""
    return [
        [max(0, min(c.count, size - i) - max(0, -i)) for i in c.first_in]
        for c, size in zip(combo, problem.in_sizes, strict=True)
    ]


def sparse(problem, combo):
    """Whether a class leaves out rows where a tap does not reach them, at the cost of chunks of a tap each."""
    if problem.order is not None:
        return problem.order.of(combo)[1]
    chunks = math.prod(len(c.first_in) for c in combo) * -(-problem.ci // _core.KC)
    return problem.ci >= LEAST_DEPTH and chunks > 3 and dense_share(problem, combo) <= MOST_SHARE


def dense_share(problem, combo):
    """The share of rows times taps that is not zeros."""
    axes = zip(combo, reached_rows(problem, combo), strict=True)
    return math.prod(sum(reached) / max(1, c.count * len(reached)) for c, reached in axes)


def depths(problem, combo, info):
    """(share of the rows, depth) of what a class multiplies: of a `sparse` one, all rows at either end of the depth, between
    them those that a tap reaches."""
    taps, ci = math.prod(len(c.first_in) for c in combo), common.filled(problem.ci, info)
    if not sparse(problem, combo):
        return [(1.0, taps * ci)]
    rows, end = math.prod(c.count for c in combo), min(ci, _core.KC)
    reached = sorted((math.prod(axes) for axes in itertools.product(*reached_rows(problem, combo))), reverse=True)
    depths = collections.Counter({rows: 2 * end})
    for n, count in enumerate(reached):
        depths[count] += ci - end * (n < 2)
    return [(count / rows, depth) for count, depth in depths.items()]


def reading(problem, combo, info):
    """How the GEMM comes by its rows: (taps that a depth chunk keeps to, as they follow each other in memory, or 0; the share
    of rows times taps that is packed). What is not packed is read in place, if data is contiguous."""
    taps, ci = math.prod(len(c.first_in) for c in combo), problem.ci
    same = ITEMSIZE[problem.dtype] == info["e_size"] and not info["parts"]
    _, apart = constant_stride(problem, combo)
    aliased = apart * problem.groups * ci * info["e_size"] % machine.current().limits.same_set == 0
    if not same or taps * ci == 0 or ci % info["kstep"] or aliased or sparse(problem, combo):
        return 0, 1.0
    last = combo[-1].first_in
    follow = len(last) if problem.groups == 1 and all(b - a == 1 for a, b in itertools.pairwise(last)) else 1
    uneven, windows = uneven_share(problem, combo, info), taps // follow
    if uneven == 1 or windows == 1:
        return 0, uneven
    # A chunk beyond the end of a window has to be packed, more and shorter chunks take more calls.
    chunks = -(-taps * ci // _core.KC)
    crossing = min(1, (windows - 1) / chunks)
    panels = problem.co * math.prod(len(c.first_out) for c in combo) / info["nr"]
    prices = machine.current().profile["direct"]
    call = prices["tile_call"] / info["mr"][-1] + prices["tile_accumulator"] * info["nr"] / info["vl"]  # of a row
    calls = panels * call * (windows * -(-follow * ci // _core.KC) - chunks)
    if calls <= crossing * taps * (prices["pack_vector"] * (ci // info["vl"]) + prices["pack_rest"] * (ci % info["vl"] > 0)):
        return follow, uneven
    return 0, uneven + (1 - uneven) * crossing


def uneven_share(problem, combo, info):
    """The share of a class's rows in blocks that are not evenly spaced in a contiguous input, or have a tap outside."""
    rows = problem.batch * math.prod(c.count for c in combo)
    block, share, inner = min(rows, most_rows(info)), 0.0, 1
    for c, size in zip(reversed(combo), reversed(problem.in_sizes), strict=True):
        ends = (c.first_in[0] < 0) + (c.first_in[-1] + c.count > size)
        share += ends * max(block, inner) / (inner * c.count)
        inner *= c.count
    run, _ = constant_stride(problem, combo)
    return min(1.0, max(share, block / run if run < rows else 0.0))


def constant_stride(problem, combo):
    """How many rows of a class are evenly spaced in a contiguous input, from each multiple of it on, and how many pixels
    apart: those of an axis, or of images, with one row each are an axis or image apart."""
    run, apart, step = 1, 1, 1
    counts = [problem.batch, *(c.count for c in combo)]
    for count, size in zip(reversed(counts), (*reversed(problem.in_sizes), 1), strict=True):
        if run == 1:
            apart = step
        elif count > 1 and step != apart * run:
            break
        run *= count
        step *= size
    return run, apart


def row_stride(problem, combo, in_strides, info):
    """Which rows of a class the GEMM may read unpacked: (how many are at a constant stride, from each multiple of that on,
    or 0; the stride in elements; whether the GEMM reads them in place)."""
    *spatial, channel = (s // ITEMSIZE[problem.dtype] for s in in_strides)
    if math.prod(len(c.first_in) for c in combo) * problem.ci == 0 or sparse(problem, combo) or channel != 1:
        return 0, 0, False
    # In place: whole steps of depth, of the panels' type, and rows that don't fall into the same set of L1.
    in_place = not info["parts"] and info["s_size"] == info["e_size"] and problem.ci % info["kstep"] == 0
    run, stride = 1, 0
    for count, step in zip(reversed([problem.batch, *(c.count for c in combo)]), reversed(spatial), strict=True):
        if run == 1:
            in_place = in_place and step * info["e_size"] % machine.current().limits.same_set != 0
            stride = step
        elif count > 1 and step != stride * run:
            break
        run *= count
    return run, stride, in_place
