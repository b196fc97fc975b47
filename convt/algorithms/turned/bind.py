"""The packing and bind stages of turned: the recipe of the weights, and the plan with the tables that its loops read."""

import itertools

from ..._base.problem import ITEMSIZE
from ..._model import machine
from .. import common
from ..direct import tables
from .loops import TurnedPlan
from .schedule import NAMES, flattened, merges
from .weights import TurnedRecipe


def recipe(attributes, filter, bias, form, unit="vectors"):
    """Return the recipe that packs weights. There is one form."""
    return TurnedRecipe(attributes.dtype, filter, bias, common.pack_classes(attributes, merges(len(attributes.kernel))), unit)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule. Strides are in bytes.

    The axes of a ``flat`` schedule become one axis if the pixels of an image are at a constant stride in data and output.
    """
    problem, classes = schedule.problem, schedule.classes
    if schedule.flat:
        ins, outs = _flat_strides(problem, in_strides), _flat_strides(problem, out_strides)
        if ins and outs:
            problem, in_strides, out_strides = flattened(problem), ins, outs
        else:  # keep the axes; each has one run
            last = problem.in_sizes[-1]
            classes = tuple([c._replace(runs=c.runs * problem.rank, row=last) for c in classes])
    info = machine.current().info(problem.dtype, schedule.unit)
    groups, axes = common.axes(problem, merges(problem.rank), (False,) * problem.rank)
    index = common.pack_index(groups)
    found = []
    for c in classes:
        runs = [axis[n] for axis, n in zip(axes, c.runs, strict=True)]
        found.append(_tables(problem, runs, groups, c, index[tuple([run.group for run in runs])], out_strides, info))
    return TurnedPlan(NAMES[schedule.unit], problem, recipe, in_strides, out_strides, found, schedule)


def _flat_strides(problem, strides):
    """Return the strides of an array of a `flattened` problem, or None if its pixels are not at a constant stride."""
    for size, outer, inner in zip(problem.in_sizes[1:], strides[1:-2], strides[2:-1], strict=True):
        if outer != size * inner:
            return None
    return strides[0], *strides[-2:]


def _tables(problem, runs, groups, c, pack, out_strides, info):
    """Return the tables of a class as a dict, which `TurnedPlan` copies to a `TurnedClass`."""
    chosen = [of_axis[run.group] for of_axis, run in zip(groups, runs, strict=True)]
    totals = [len(group.offsets) for group in chosen]
    *outer, last = runs
    steps = [stride // ITEMSIZE[problem.dtype] for stride in out_strides[1:-2]]
    phases = list(itertools.product(*(range(len(run.first_out)) for run in outer)))
    return {
        "count": [run.count for run in runs],
        "pixels": c.pixels,
        "block": c.block,
        "blocks": c.blocks,
        "tap_in": tables.taps([run.first_in for run in runs]),
        "chunks": tables.depth_chunks([run.tap_range for run in runs], totals, info.filled(problem.ci), info.kstep, 0),
        # Tiles with more units come first, so that tiles of equal height are adjacent.
        "units": [c.units // c.tiles * n + min(n, c.units % c.tiles) for n in range(c.tiles + 1)],
        "tile_block": c.tile_block,
        "tile_blocks": c.tile_blocks,
        "call_tiles": c.call_tiles,
        "outer_at": [sum(run.first_out[p] * step for run, p, step in zip(outer, at, steps, strict=True)) for at in phases],
        "outer_valid": [[bound for run, p in zip(outer, at, strict=True) for bound in run.valid[p]] for at in phases],
        "whole": all((low, high) == (0, run.count) for run in outer for low, high in run.valid),
        "x_first": problem.strides[-1] * last.start - problem.begin[-1],
        "pack": pack,
        "nested": common.nested(chosen),
        "work": float(min(c.block, c.pixels) * c.depth * c.units / c.tile_blocks),
    }
