"""direct: every phase is an implicit GEMM over its own taps.

The key of its weights is ``("direct", merge)``: on which axes phases that read the same inputs are merged.
"""

import collections
import functools
import itertools
import math
import operator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, execution, machine
from ..packing import PanelRecipe
from ..phases import SHOWN
from .loops import DirectPlan

LIMIT = None

_MOST_ROWS = 140, 320  # of a task, for vectors (10 tiles of 14) and matrices: a depth chunk of its input is 150, 540 KiB of L2
_LEAST_DEPTH = 96  # in-channels that a chunk should have
_MOST_SHARE = 0.92  # of rows times taps not zeros, that leaving the zeros out pays
_L1_BYTES = 40 << 10  # beside a panel
_MAX_INPUT = 640 << 10, 1300 << 10  # bytes of L2 for depth chunks packed at once: only one panel's sums wait between them


def cost(problem, amx=False):
    if machine.current().info(problem.dtype, amx) is None:
        return math.inf
    return _choice(problem, True, amx, machine.current())[0]


def preparing(problem, amx=False):
    """As `common.preparing`; or to pack them in passing."""
    info = machine.current().info(problem.dtype, amx)
    total, _, _, classes = _choice(problem, True, amx, machine.current())
    combos = _combos(problem, classes)
    _, cuts = splits(problem, combos, [1] * len(combos), total, info, 2)
    return common.packing(common.filter_bytes(problem, info), info, passing(problem, combos, cuts, info))


def passing(problem, combos, cuts, info):
    """Bytes that tasks pack if they pack what they multiply: of a block of rows those that the blocks before it packed too."""
    numbers = 0
    for combo, cut in zip(combos, cuts, strict=True):
        taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
        numbers += cut.blocks * taps * math.prod(len(c.first_out) for c in combo)
    return numbers * problem.groups * problem.ci * problem.co * info["e_size"]


def recipe(attributes, filter, bias, key, amx=False):
    return PanelRecipe(attributes.dtype, filter, bias, common.pack_classes(attributes, key[1]), amx)


def make(problem, recipe, packed, in_strides, out_strides, threads, name="direct", amx=False):
    key = (name, _choice(problem, True, amx, machine.current())[1])
    if packed(key).finite:
        return planned(problem, recipe, in_strides, out_strides, threads, name, amx=amx)
    if amx:  # some weights that its bfloat16 parts can't hold
        return make(problem, recipe, packed, in_strides, out_strides, threads)
    return planned(problem, recipe, in_strides, out_strides, threads, finite=False)


def planned(problem, recipe, in_strides, out_strides, threads, name="direct", finite=True, amx=False):
    """The plan of `direct`, for vectors or for AMX tiles."""
    here = machine.current()
    info = here.info(problem.dtype, amx)
    cycles, merge, groups, classes = _choice(problem, finite, amx, here)
    index = common.pack_index(groups)
    hole = any(c.group < 0 for axis in classes for c in axis)
    combos = _combos(problem, classes)
    specs = tables(problem, groups, combos, index, in_strides, out_strides, cycles, info, threads)
    key = (name, merge)
    packing = recipe(key)
    bytes = execution.output_bytes(problem) + (execution.data_bytes(problem) if amx else 0)
    outgrows = bytes > (here.limits.amx_non_temporal if amx else here.limits.non_temporal)
    how = execution.execution(problem, here, info, out_strides, hole, cycles, packing.weight_bytes, outgrows)
    on_the_fly = execution.packs_on_the_fly(here, packing.weight_bytes, sum(spec["packed_again"] for spec in specs))
    order = tiles(here, info, how, on_the_fly)
    return DirectPlan(name, problem, packing, in_strides, out_strides, how, specs, order), key


class Tiles(NamedTuple):
    """How the tiles of all classes run, decided once for a plan."""

    panel_major: bool  # all rows of a task meet a panel before the next panel, whatever there is in L1
    near_bytes: int  # weights of a task up to this stay in L2 beside its rows
    far_bytes: int  # weights of a group beyond this do not stay in L2: tiles prefetch them
    page_bytes: int  # outputs of a pixel from which the next pixel's are in another page
    non_temporal: int  # as of Execution, for the stores of tiles
    packing_workspace: int  # bytes that a thread needs to pack weights on the fly; 0 where it does not


def tiles(here, info, how, on_the_fly):
    """The Tiles of a plan on a machine."""
    limits = here.limits
    return Tiles(
        panel_major=limits.panel_major,
        near_bytes=limits.near_weights,
        far_bytes=limits.far,
        page_bytes=limits.page,
        non_temporal=0 if limits.panel_major else how.non_temporal,
        packing_workspace=2 * _core.KC * info["nr"] * info["e_size"] if on_the_fly else 0,
    )


def tables(problem, groups, combos, index, in_strides, out_strides, cycles, info, threads):
    """The tables of classes (a run per axis each) for DirectPlan; ``index`` says where the weights of each are packed."""
    chosen = [[g[c.group] for g, c in zip(groups, combo, strict=True)] for combo in combos]
    chunks = [_chunks(problem, combo, some, info) for combo, some in zip(combos, chosen, strict=True)]
    _, cuts = splits(problem, combos, list(map(len, chunks)), cycles, info, common.threads(cycles, threads))
    specs = [
        _class(problem, combo, some, index[tuple(c.group for c in combo)], in_strides, out_strides, info, depth, split)
        for combo, some, depth, split in zip(combos, chosen, chunks, cuts, strict=True)
    ]
    specs.sort(key=lambda spec: -spec["work"])  # large tasks first, so that the last ones even out
    return specs


def _chunks(problem, combo, chosen, info):
    """The depth chunks of a class, each within a window of `_reading`; tap by tap if the class is `_sparse`, those that reach
    most rows at either end, where every row takes part."""
    ci_p = common.filled(problem.ci, info)
    if not _sparse(problem, combo):
        window, _ = _reading(problem, combo, info)
        taps = 1 if window == 1 else len(chosen[-1].offsets)
        return common.depth_chunks(combo, chosen, ci_p, info, slab=taps * ci_p if window else 0)
    reached = [math.prod(taps) for taps in itertools.product(*_reached(problem, combo))]
    chunks = common.depth_chunks(combo, chosen, ci_p, info, slab=ci_p)
    chunks.sort(key=lambda chunk: -reached[chunk[0] // ci_p])
    return [chunks[0], *chunks[2:], chunks[1]]


def _reached(problem, combo):
    """For each axis and tap: how many pixels of the class it reaches, with an input that is there."""
    return [
        [max(0, min(c.count, size - i) - max(0, -i)) for i in c.first_in]
        for c, size in zip(combo, problem.in_sizes, strict=True)
    ]


def _sparse(problem, combo):
    """Whether a class leaves out rows where a tap does not reach them, at the cost of chunks of a tap each."""
    chunks = math.prod(len(c.first_in) for c in combo) * -(-problem.ci // _core.KC)
    return problem.ci >= _LEAST_DEPTH and chunks > 3 and _share(problem, combo) <= _MOST_SHARE


def _share(problem, combo):
    """The share of rows times taps that is not zeros."""
    axes = zip(combo, _reached(problem, combo), strict=True)
    return math.prod(sum(reached) / max(1, c.count * len(reached)) for c, reached in axes)


@functools.lru_cache(maxsize=256)
def _choice(problem, finite, amx, isa):
    """The cheapest way to cut: (cost, merge, groups, classes)."""
    info = machine.current().info(problem.dtype, amx)
    best, tried = None, None
    for merge, split in _cuts(problem, finite):
        groups, classes = common.axes(problem, merge, split)
        if classes == tried or (best is not None and math.prod(map(len, classes)) > common.MANY_CLASSES):
            continue
        tried = classes
        combos = _combos(problem, classes)
        tasks, memory = [class_cost(problem, combo, info) for combo in combos], memory_cost(problem, info)
        cost = common.shared(tasks) + memory  # at least
        if best is not None and cost >= best[0]:
            continue
        if common.few(tasks):
            cost = 2 * splits(problem, combos, [1] * len(combos), cost, info, 2)[0] + memory
        if best is None or cost < best[0]:
            best = (cost, merge, groups, classes)
    return best


def _combos(problem, classes):
    """The classes that have outputs which taps reach: a run per axis each."""
    if problem.batch * problem.co == 0:
        return []
    return [combo for combo in itertools.product(*classes) if all(c.group >= 0 for c in combo)]


def _work(problem, combo, rows, columns, info):
    """Cycles of some rows and columns of a class, of which panels that the window does not show are left out: tiles, rows
    packed before, outputs stored piece by piece after."""
    columns = math.ceil(columns * _seen(problem, combo, info))
    taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
    depth = taps * common.filled(problem.ci, info)
    bytes = common.padded(columns, info) * depth * info["e_size"] * -(-rows // _highest(info))
    share = _share(problem, combo) if _sparse(problem, combo) else 1.0
    total = common.filter_bytes(problem, info, columns)
    most = machine.current().limits.shallow_depth if taps == 1 else 0 if info["parts"] else machine.current().limits.shallow_depth // 2
    pace = 0.85 if depth <= most and (info["parts"] or 5 * info["wide"] >= 2 * info["mr"][-1]) else 1.0
    window, packed = _reading(problem, combo, info)
    chain = min(_core.KC, window * problem.ci) if window else _core.KC
    tiles = [common.tile_cost(rows * part, columns, d, info, chain, info["wide"]) for part, d in _depths(problem, combo, info)]
    multiply = common.fed(sum(tiles), bytes, total)
    runs = rows / max(1, min(combo[-1].count, _highest(info)))
    pack = packed * taps * (rows * share * _row_cost(problem, info) + runs * (115 if info["parts"] else 40))
    edges, outside = _edges(combo, info), common.outside(combo, [1] * len(combo))
    piece, edge_piece = (16, 45) if info["parts"] else (11, 18)
    store = piece * (1 - outside) * common.pieces(combo, problem, columns, info) + 3 * edges * -(-columns // info["nr"])
    store += edge_piece * outside * common.pieces(combo, problem, columns, info, edge=True)
    if info["parts"]:  # weights of six bytes come slower than they are multiplied
        multiply += 0.1 * common.far(total, 2 * machine.current().l2) * bytes  # of both cores
        store += 11 + (7 if common.bent(problem) else 4.5) * columns / info["vl"]
        return pace * (multiply + pack + rows * store + 450)
    return pace * (multiply + pack + rows * (5 + store) + 400)


def _seen(problem, combo, info):
    """The share of a class's panels that the window shows."""
    *shares, last = (len(c.shown) / len(c.first_out) for c in combo)
    if last < 1:  # they may start and end within one
        last = min(1.0, last + info["nr"] / (problem.co * len(combo[-1].first_out)))
    return math.prod(shares) * last


def _depths(problem, combo, info):
    """(share of the rows, depth) of what a class multiplies: of a `_sparse` one, all rows at either end of the depth, between
    them those that a tap reaches."""
    taps, ci = math.prod(len(c.first_in) for c in combo), common.filled(problem.ci, info)
    if not _sparse(problem, combo):
        return [(1.0, taps * ci)]
    rows, end = math.prod(c.count for c in combo), min(ci, _core.KC)
    reached = sorted((math.prod(axes) for axes in itertools.product(*_reached(problem, combo))), reverse=True)
    depths = collections.Counter({rows: 2 * end})
    for n, count in enumerate(reached):
        depths[count] += ci - end * (n < 2)
    return [(count / rows, depth) for count, depth in depths.items()]


def _row_cost(problem, info):
    """Cycles to pack a tap of a row."""
    if info["parts"]:
        groups, rest = divmod(problem.ci, info["kstep"])
        return (50 if problem.planar else 21) * (groups + 0.7 * (rest > 0))
    whole, rest = divmod(problem.ci, info["vl"])
    return 8 * whole + 1.5 * rest if problem.planar else 6 * (whole + (rest > 0))


def _edges(combo, info):
    """The share of a class's tiles with a row where some phase is outside the window."""
    high, inside = info["mr"][-1], 1.0
    for n, c in enumerate(reversed(combo)):
        out = c.count - max(0, c.inner[1] - c.inner[0])
        # Along the last axis the end of a run and the start of the next one are neighbours.
        share = out if n else high + out - 1 if out else 0
        inside *= max(0.0, 1 - share / max(c.count, 1))
    return 1 - inside


def _reading(problem, combo, info):
    """How the GEMM comes by its rows: (taps that a depth chunk keeps to, as they follow each other in memory, or 0; the share
    of rows times taps that is packed). What is not packed is read in place, if data is contiguous."""
    taps, ci = math.prod(len(c.first_in) for c in combo), problem.ci
    same = ITEMSIZE[problem.dtype] == info["e_size"] and not info["parts"] and not problem.planar
    _, apart = _run(problem, combo)
    aliased = apart * problem.groups * ci * info["e_size"] % machine.current().limits.same_set == 0
    if not same or taps * ci == 0 or ci % info["kstep"] or aliased or _sparse(problem, combo):
        return 0, 1.0
    last = combo[-1].first_in
    follow = len(last) if problem.groups == 1 and all(b - a == 1 for a, b in itertools.pairwise(last)) else 1
    bent, windows = _bent(problem, combo, info), taps // follow
    if bent == 1 or windows == 1:
        return 0, bent
    # A chunk beyond the end of a window has to be packed, more and shorter chunks take more calls.
    chunks = -(-taps * ci // _core.KC)
    crossing = min(1, (windows - 1) / chunks)
    panels = problem.co * math.prod(len(c.first_out) for c in combo) / info["nr"]
    calls = panels * (40 / info["mr"][-1] + 3 * info["nr"] / info["vl"]) * (windows * -(-follow * ci // _core.KC) - chunks)
    if calls <= crossing * taps * 6 * -(-ci // info["vl"]):
        return follow, bent
    return 0, bent + (1 - bent) * crossing


def _bent(problem, combo, info):
    """The share of a class's rows in blocks that are not evenly spaced in a contiguous input, or have a tap outside."""
    rows = problem.batch * math.prod(c.count for c in combo)
    block, share, inner = min(rows, _highest(info)), 0.0, 1
    for c, size in zip(reversed(combo), reversed(problem.in_sizes), strict=True):
        ends = (c.first_in[0] < 0) + (c.first_in[-1] + c.count > size)
        share += ends * max(block, inner) / (inner * c.count)
        inner *= c.count
    run, _ = _run(problem, combo)
    return min(1.0, max(share, block / run if run < rows else 0.0))


def _run(problem, combo):
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


def _cuts(problem, finite):
    """The ways to cut the axes: phases merged on no axis, the last, or all; runs whole, split at the borders, or also where
    the window ends for some phase."""
    rank = problem.rank
    merges = {(False,) * rank, (False,) * (rank - 1) + (True,), (True,) * rank}
    # A class per phase is too many where strides are large.
    phases = math.prod(min(s, o) for s, o in zip(problem.strides, problem.out_sizes, strict=True))
    for merge in sorted(merges, reverse=True):
        if phases > 256 and not all(merge):
            continue
        for split in (False, True, SHOWN) if finite else (True, SHOWN):
            yield merge, (split,) * rank


def class_cost(problem, combo, info):
    """(cycles, the most tasks) of a class in all groups."""
    rows = problem.batch * math.prod(c.count for c in combo)
    columns = problem.co * math.prod(len(c.first_out) for c in combo)
    tasks = max(1, rows // _LOWEST) * max(1, -(-columns // info["nr"]))
    return _work(problem, combo, rows, columns, info) * problem.groups, tasks * problem.groups


def memory_cost(problem, info):
    """Cycles that data from beyond L2 takes; tiles have asked for the outputs that are not streamed. Matrices multiply so fast
    that they wait for what goes to memory, and for what even the last-level cache does not hold."""
    streams = common.streams(problem) and not machine.current().limits.panel_major
    write = 0.02 if info["parts"] else 0.0 if streams else 0.05
    read = 0.02 if info["parts"] else 0.03
    cost = common.memory_cost(problem, (read, 35), (write, 8)) + common.planes_cost(problem) / min(problem.groups, 2)
    cost += common.unreached(problem)
    if info["parts"]:
        data = math.prod(problem.in_shape) * ITEMSIZE[problem.dtype]
        cost += 0.12 * common.far(data, machine.current().last_bytes) * data
    return cost


_SHARES = (4, 5, 6, 8, 10, 12)  # tasks of a thread, at least: few are cheaper, many even out
_FEW = (3, 2, 1)  # where they are so much cheaper that it shows: small problems, whose tasks would pack the same inputs
_SHOWS = 0.98
_LOWEST = 28  # rows of a task, at least this or `_highest`: low blocks spread the packing of inputs, high ones share weights


def _highest(info):
    return _MOST_ROWS[info["parts"] > 0]


@dataclass(frozen=True)
class _Split:
    """How a class is cut into tasks."""

    block: int  # rows of a task
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    work: float  # cycles of a task


def splits(problem, combos, chunks, total, info, threads):
    """When the last thread is done, and a `_Split` for each class: of a few ways to cut them all, the one that ends first."""
    best = None
    work = functools.cache(lambda n, rows, columns: _work(problem, combos[n], rows, columns, info))
    for share, height in itertools.product(_SHARES + _FEW, (_LOWEST, _highest(info))):
        target = total / (share * threads)
        found = [
            _split(problem, combo, chunks[n], target, height, info, threads, functools.partial(work, n))
            for n, combo in enumerate(combos)
        ]
        tasks = sorted(((s.work, problem.groups * s.blocks * s.panel_blocks) for s in found), reverse=True)
        if sum(count for _, count in tasks) > common.EVEN * threads:
            return best or (sum(work * count for work, count in tasks) / threads, found)
        end = common.makespan(tasks, threads)
        if best is None or end < best[0] * (_SHOWS if share in _FEW else 1):
            best = end, found
    return best


def _split(problem, combo, chunks, target, height, info, threads, work):
    """A class in tasks of about ``target`` cycles: blocks of rows, but of ``height`` rows at least,
    and of panels where that gives too few."""
    rows = problem.batch * math.prod(c.count for c in combo)
    width = problem.co * math.prod(len(c.first_out) for c in combo)
    npanels = -(-width // info["nr"])
    pieces = max(1, math.ceil(work(rows, width) / max(target, 1.0) - 0.01))  # not one more for a rounding error
    most = _most_rows(problem, combo, info)
    block = max(min(most, -(-rows // pieces)), min(rows, height, most))
    blocks = -(-rows // block)
    if blocks > threads:  # as many for each thread
        blocks = -(-blocks // threads) * threads
    tile = info["mr"][-1] if info["parts"] else 1  # of a matrix all rows are multiplied
    block = -(-rows // (blocks * tile)) * tile
    blocks = -(-rows // block)
    panel_block = -(-npanels // max(1, min(npanels, pieces // blocks)))
    if chunks > _span(block, info):
        panel_block = min(panel_block, max(1, common.MAX_SUMS // (block * info["nr"] * info["t_size"])))
    width = min(width, panel_block * info["nr"])
    return _Split(block, blocks, panel_block, -(-npanels // panel_block), work(min(block, rows), width))


def _most_rows(problem, combo, info):
    """The most rows of a task: as many as stay in L1 with the lines of the output that they write, if those are enough; of
    little depth more, as they are soon done, and of a tap for few panels, as they are read once."""
    taps, columns = math.prod(len(c.first_in) for c in combo), problem.co * math.prod(len(c.first_out) for c in combo)
    depth = problem.ci * taps
    more = 4 if depth <= machine.current().limits.shallow_depth else 1
    if taps == 1 and columns <= 2 * info["nr"]:
        more = max(more, min(8, _core.KC // max(depth, 1)))
    if more > 1 and not info["parts"]:
        return more * _highest(info)
    near = _L1_BYTES // (depth * info["e_size"] + 192)
    highest = _highest(info)
    return near if highest > near > highest // 2 else highest


def _span(block, info):
    """How many depth chunks of a block's input are packed at once."""
    return max(1, _MAX_INPUT[info["parts"] > 0] // (block * info["lda"] * info["e_size"]))


def _class(problem, combo, chosen, pack, in_strides, out_strides, info, chunks, split):
    """The tables of one class (one run per axis) for DirectPlan."""
    item, limits = ITEMSIZE[problem.dtype], machine.current().limits
    taps = list(itertools.product(*(c.first_in for c in combo)))
    panels, piece_table, boxes = columns(problem, combo, [s // item for s in out_strides], info)
    phases = math.prod(len(c.first_out) for c in combo)
    depth = math.prod(len(g.offsets) for g in chosen) * common.filled(problem.ci, info)
    highest = info["mr"][2 if info["nr"] > info["vl"] else 1]
    # Lower, wider tiles have as many accumulators where registers are many, and write two panels' stretch of a row at once.
    shallow = len(chunks) == 1 and chunks[0][1] <= limits.shallow_depth and 5 * info["wide"] >= 2 * highest
    strip = highest * (depth * info["e_size"] + len(panels) * info["nr"] * info["s_size"])
    return {
        "count": [c.count for c in combo],
        "rows": problem.batch * math.prod(c.count for c in combo),
        "block": split.block,
        "blocks": split.blocks,
        "tap_in": np.asarray(taps, np.int64).reshape(len(taps), problem.rank),
        "chunks": chunks,
        "span": _span(split.block, info),
        "sparse": _sparse(problem, combo),
        "panels": panels,
        "pieces": piece_table,
        "boxes": boxes,
        "stretch": problem.co * len(combo[-1].first_out),
        "panel_block": split.panel_block,
        "panel_blocks": split.panel_blocks,
        "inner": [c.inner for c in combo],
        "pack": pack,
        "work": split.work,
        "run": row_stride(problem, combo, in_strides, info),
        "wide": split.block if shallow else info["wide"],
        "strip": highest * max(1, limits.strip // strip),
        "packed_again": split.blocks * sum(c[1] for c in chunks) * phases * problem.co * problem.groups * info["e_size"],
    }


def row_stride(problem, combo, in_strides, info):
    """Which rows of a class the GEMM may read unpacked: (how many are at a constant stride, from each multiple of that on, or 0;
    the stride in elements; whether the GEMM reads them in place)."""
    *spatial, channel = (s // ITEMSIZE[problem.dtype] for s in in_strides)
    if math.prod(len(c.first_in) for c in combo) * problem.ci == 0 or _sparse(problem, combo) or channel != 1:
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


def columns(problem, combo, out_elements, info):
    """The tables of columns: panels, the pieces of them that are adjacent in the output and inside the window together, and
    where all pieces of a panel are inside it: (low, high) per axis. Phases that the window does not show have no pieces."""
    co, nr, step = problem.co, info["nr"], out_elements[-1]
    phases = common.phase_table(combo, out_elements[1:])
    panels, pieces, boxes = [], [], []
    columns = co * len(phases)
    for first in range(0, columns, nr):
        width = min(nr, columns - first)
        found, column, end = [], first, None
        while column < first + width:
            phase, channel = divmod(column, co)
            offset, valid = phases[phase]
            count = min(co - channel, first + width - column)
            offset += channel * step
            if all(map(operator.lt, valid[::2], valid[1::2])):
                if end == [column, offset, valid]:
                    found[-1][1] += count
                else:
                    found.append([column - first, count, offset, *valid])
                end = [column + count, offset + count * step, valid]
            column += count
        starts = {offset - at * step for at, _, offset, *_ in found}
        adjacent = len(starts) == 1 and sum(count for _, count, *_ in found) == width
        panels.append([width, int(adjacent), min(starts, default=0), len(pieces), len(pieces) + len(found)])
        sides = (list(zip(*(piece[3 + side :: 2] for piece in found), strict=True)) for side in range(2))
        lows, highs = (side or [(0,)] * problem.rank for side in sides)
        boxes.append([bound for low, high in zip(lows, highs, strict=True) for bound in (max(low), min(high))])
        pieces += found
    return panels, pieces, boxes
