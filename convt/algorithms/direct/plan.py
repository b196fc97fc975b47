"""TODO(planning): what others still use of direct as it was; see schedule.py, cost.py, bind.py."""

import itertools
import math
from types import SimpleNamespace

import numpy as np

from ..._problem import ITEMSIZE
from .. import common, machine, stages
from . import STAGES, cutting, make, planned, reading  # noqa: F401
from . import schedule as scheduling
from .bind import Tiles, columns
from .bind import recipe as recipe_of


def cost(problem, unit="vectors"):
    return stages.cost(STAGES, problem, unit)


def preparing(problem, unit="vectors"):
    return stages.preparing(STAGES, problem, unit)


def recipe(attributes, filter, bias, key, unit="vectors"):
    return recipe_of(attributes, filter, bias, key[1:], unit)


def tiles(here, info, how, on_the_fly):
    """The Tiles of a plan on a machine."""
    limits = here.limits
    return Tiles(
        panel_major=not info.parts,
        near_bytes=limits.near_weights,
        far_bytes=limits.far,
        non_temporal=0 if limits.ordinary_stores else how.non_temporal,
        packing_workspace=scheduling.packing_bytes(info) if on_the_fly else 0,
        workspace=None,
    )


def book_tables(problem, specs):
    """The workspace of classes that are known by their tables."""
    classes = [
        SimpleNamespace(
            span=spec["span"], chunks=len(spec["chunks"]), block=spec["block"], panel_block=spec["panel_block"],
            deepest=max(depth for _, depth, _ in spec["chunks"]), packed=True, sparse=spec["sparse"],
        )
        for spec in specs
    ]  # fmt: skip
    return scheduling.book(problem, classes, machine.current().info(problem.dtype, specs[0]["unit"]) if specs else
                           machine.current().info(problem.dtype))  # fmt: skip


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
        "unit": info.name,
        "packed_again": cutting.packed_bytes(problem, combo, split.blocks, info),
    }
