"""The plan of a schedule of `winograd` for the strides of data and output, and its recipe of packed weights.

All decisions are in the schedule (schedule.py). Classes that are not transformed get the tables of direct/bind.py.
"""

import itertools

from ..._model import machine
from .. import common
from .. import phases as _phases
from ..direct.bind import class_tables
from .loops import WinogradPlan
from .transforms import KINDS, filter_windows, panel_vectors
from .weights import WinogradRecipe


def recipe(attributes, filter, bias, form, unit="vectors"):
    """Return the recipe that packs a filter in a form: (for each axis, whether phases are merged; schemes).

    ``schemes`` are pairs (one phase group number per axis, the kind of transform of each axis).
    """
    merge, schemes = form
    info = machine.current().info(attributes.dtype, unit)
    groups = [
        _phases.phase_groups(k, s, d, m)
        for k, s, d, m in zip(attributes.kernel, attributes.strides, attributes.dilations, merge, strict=True)
    ]
    tables, transforms = [], []
    for numbers, scheme in schemes:
        chosen, kinds = [g[n] for g, n in zip(groups, numbers, strict=True)], [KINDS[kind] for kind in scheme]
        tables.append(common.taps_table(chosen, attributes.kernel))
        widths = panel_vectors(chosen, kinds, filter.shape[2], info)
        transforms.append((filter_windows(chosen, kinds), widths) if any(scheme) else None)
    return WinogradRecipe(attributes.dtype, filter, bias, tables, transforms, unit)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule for data and output of these strides in bytes."""
    problem, (merge, schemes) = schedule.problem, schedule.form
    unit = machine.current().info(problem.dtype, schedule.unit)
    groups, runs = common.axes(problem, merge, (False,) * problem.rank)
    packs = {numbers: (n, 0) for n, (numbers, _) in enumerate(schemes)}
    plain = class_tables(problem, schedule.plain, groups, runs, packs, schedule.same_set, in_strides, out_strides, unit)
    classes = []
    for c in schedule.classes:
        for numbers in itertools.product(*c.runs):
            chosen = [axis[n] for axis, n in zip(runs, numbers, strict=True)]
            offsets = [axis[run.group].offsets for axis, run in zip(groups, chosen, strict=True)]
            pack, _ = packs[tuple([run.group for run in chosen])]
            classes.append((c, chosen, offsets, pack))
    how = schedule.execution.for_strides(out_strides)
    # On AMX, packing on the fly needs out-channels that are contiguous in the filter.
    on_the_fly = schedule.on_the_fly and (not unit.matrix or recipe.out_channel_stride == 1)
    tiles = schedule.tiles._replace(
        non_temporal=min(schedule.tiles.non_temporal, how.non_temporal),
        packing_workspace=schedule.tiles.packing_workspace if on_the_fly else 0,
    )
    return WinogradPlan(schedule, recipe, in_strides, out_strides, how, plain, classes, tiles)
