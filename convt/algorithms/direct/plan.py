"""direct: every phase is an implicit GEMM over its own taps; ``matrix`` is the same on AMX tiles.

The key of its weights is ``("direct", merge)`` or ``("matrix", merge)``: on which axes phases that read the same inputs are
merged. counts.py says what the loops do, cutting.py how a problem is cut, reading.py how the GEMM comes by its rows.
"""

import itertools
import math
import operator
from typing import NamedTuple

import numpy as np

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, execution, machine
from ..packing import PanelRecipe
from . import counts, cutting, reading
from .loops import DirectPlan


def cost(problem, unit="vectors"):
    if machine.current().info(problem.dtype, unit) is None:
        return math.inf
    return cutting.choice(problem, True, unit, machine.current())[0]


def preparing(problem, unit="vectors"):
    """As `common.preparing`; or to pack them on the fly."""
    info = machine.current().info(problem.dtype, unit)
    total, _, _, classes = cutting.choice(problem, True, unit, machine.current())
    combos = cutting.combos_of(problem, classes)
    _, cuts = cutting.splits(problem, combos, [1] * len(combos), total, info, 2)
    return common.packing_cycles(common.filter_bytes(problem, info), info, cutting.packed_again(problem, combos, cuts, info))


def recipe(attributes, filter, bias, key, unit="vectors"):
    return PanelRecipe(attributes.dtype, filter, bias, common.pack_classes(attributes, key[1]), unit)


def make(problem, recipe, packed, in_strides, out_strides, threads, name="direct", unit="vectors"):
    key = (name, cutting.choice(problem, True, unit, machine.current())[1])
    if packed(key).finite:
        return planned(problem, recipe, in_strides, out_strides, threads, name, unit=unit)
    if unit != "vectors":  # some weights that its bfloat16 parts can't hold
        return make(problem, recipe, packed, in_strides, out_strides, threads)
    return planned(problem, recipe, in_strides, out_strides, threads, finite=False)


def planned(problem, recipe, in_strides, out_strides, threads, name="direct", finite=True, unit="vectors"):
    """The plan of `direct`, for vectors or for AMX tiles."""
    here = machine.current()
    info = here.info(problem.dtype, unit)
    cycles, merge, groups, classes = cutting.choice(problem, finite, unit, here)
    index = common.pack_index(groups)
    hole = any(c.group < 0 for axis in classes for c in axis)
    combos = cutting.combos_of(problem, classes)
    specs = tables(problem, groups, combos, index, in_strides, out_strides, cycles, info, threads)
    key = (name, merge)
    packing = recipe(key)
    outgrows = execution.outgrows(problem, counts.non_temporal_from(problem, info["parts"] > 0, here))
    how = execution.execution(problem, here, info, out_strides, hole, cycles, packing.weight_bytes, outgrows)
    on_the_fly = execution.packs_on_the_fly(here, packing.weight_bytes, sum(spec["packed_again"] for spec in specs))
    order = tiles(here, info, how, on_the_fly)
    return DirectPlan(name, problem, packing, in_strides, out_strides, how, specs, order), key


class Tiles(NamedTuple):
    """How the tiles of all classes run, decided once for a plan."""

    panel_major: bool  # all rows of a task meet a panel before the next panel
    near_bytes: int  # weights of a task up to this stay in L2 beside its rows
    far_bytes: int  # weights of a group beyond this do not stay in L2: tiles prefetch them
    non_temporal: int  # as of Execution, for the stores of tiles
    packing_workspace: int  # bytes that a thread needs to pack weights on the fly; 0 where it does not


def tiles(here, info, how, on_the_fly):
    """The Tiles of a plan on a machine."""
    limits = here.limits
    return Tiles(
        panel_major=not info["parts"],
        near_bytes=limits.near_weights,
        far_bytes=limits.far,
        non_temporal=0 if limits.ordinary_stores else how.non_temporal,
        packing_workspace=2 * _core.KC * info["nr"] * info["e_size"] if on_the_fly else 0,
    )


def tables(problem, groups, combos, index, in_strides, out_strides, cycles, info, threads):
    """The tables of classes (a run per axis each) for DirectPlan; ``index`` says where the weights of each are packed."""
    chosen = [[g[c.group] for g, c in zip(groups, combo, strict=True)] for combo in combos]
    chunks = [reading.depth_chunks(problem, combo, some, info) for combo, some in zip(combos, chosen, strict=True)]
    _, cuts = cutting.splits(problem, combos, list(map(len, chunks)), cycles, info, common.threads(cycles, threads))
    specs = [
        _class(problem, combo, some, index[tuple(c.group for c in combo)], in_strides, out_strides, info, depth, split)
        for combo, some, depth, split in zip(combos, chosen, chunks, cuts, strict=True)
    ]
    specs.sort(key=lambda spec: -spec["work"])  # large tasks first, so that the last ones even out
    return specs


def _class(problem, combo, chosen, pack, in_strides, out_strides, info, chunks, split):
    """The tables of one class (one run per axis) for DirectPlan."""
    item, limits = ITEMSIZE[problem.dtype], machine.current().limits
    taps = list(itertools.product(*(c.first_in for c in combo)))
    panels, piece_table, boxes = columns(problem, combo, [s // item for s in out_strides], info)
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
        "span": cutting.chunks_at_once(split.block, info),
        "sparse": reading.sparse(problem, combo),
        "panels": panels,
        "pieces": piece_table,
        "boxes": boxes,
        "panel_block": split.panel_block,
        "panel_blocks": split.panel_blocks,
        "inner": [c.inner for c in combo],
        "pack": pack,
        "work": split.work,
        "run": reading.row_stride(problem, combo, in_strides, info),
        "wide": split.block if shallow else info["wide"],
        "strip": highest * max(1, limits.strip // strip),
        "packed_again": cutting.packed_bytes(problem, combo, split.blocks, info),
    }


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
