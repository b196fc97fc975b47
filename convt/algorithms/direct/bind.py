"""Tables for the loops of `direct`, from a schedule, the strides of data and output, and a recipe of packed weights.

All decisions are in the schedule (schedule.py). `class_tables` also makes the tables of the untransformed classes of winograd.
"""

import itertools
from typing import NamedTuple

import numpy as np

from ..._base.problem import ITEMSIZE
from ..._model import machine
from ..._run import workspace
from .. import common, phases
from ..packing import PanelRecipe
from . import tables
from .loops import DirectPlan
from .tables import columns

# The name of the algorithm on each unit.


class Tiles(NamedTuple):
    """The loop order and the stores of register tiles, and the workspace of a thread; the same for all classes."""

    panel_major: bool  # Schedule.panel_major
    near_bytes: int  # Schedule.near_bytes
    far_bytes: int  # Schedule.far_bytes
    non_temporal: int  # Execution.non_temporal, for stores of register tiles
    packing_workspace: int  # Schedule.packing_bytes
    workspace: workspace.Workspace


def recipe(attributes, filter, bias, form, unit):
    """Return the recipe that packs a filter in a form, ``(for each axis, whether phases are merged,)``."""
    return PanelRecipe(attributes.dtype, filter, bias, common.pack_classes(attributes, form[0]), unit)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule for data and output of these strides in bytes."""
    s, problem = schedule, schedule.problem
    info = machine.current().info(problem.dtype, s.unit)
    groups, runs = common.axes(problem, s.merge, s.split)
    packs = pack_positions(problem, s.form[0], groups, info)
    specs = class_tables(problem, s.classes, groups, runs, packs, s.same_set, in_strides, out_strides, info)
    how = s.execution.for_strides(out_strides)
    stores = how.non_temporal if s.tile_stores else 0
    tiles = Tiles(s.panel_major, s.near_bytes, s.far_bytes, stores, s.packing_bytes, s.workspace)
    return DirectPlan(problem, recipe, in_strides, out_strides, how, specs, tiles)


def pack_positions(problem, merge, groups, unit):
    """Return where weights are packed: a dict from phase group numbers (one per axis) to (number of pack class, first panel).

    ``groups`` are the phase groups of each axis in the schedule. ``merge`` says on which axes packed weights merge phases;
    these may be more axes than in the schedule.
    """
    packed = [axis.groups(merged) for axis, merged in zip(phases.axes_of(problem), merge, strict=True)]
    index, panels, places = common.pack_index(packed), problem.co // unit.nr, []
    for axis, own in zip(packed, groups, strict=True):
        at = {r: (n, place, len(g.residues)) for n, g in enumerate(axis) for place, r in enumerate(g.residues)}
        places.append([at[group.residues[0]] for group in own])
    positions = {}
    for numbers in itertools.product(*[range(len(own)) for own in groups]):
        chosen, first = [axis[n] for axis, n in zip(places, numbers, strict=True)], 0
        for _, place, count in chosen:
            first = first * count + place
        positions[numbers] = index[tuple([n for n, _, _ in chosen])], first * panels
    return positions


class ClassTables(NamedTuple):
    """The decisions and the tables of a class, which the loops read. A class has one run per axis."""

    decided: object  # the schedule.Class
    runs: list  # the phases.AxisClass of each axis
    chunks: np.ndarray  # result of `depth_chunks`
    panels: np.ndarray  # tables.columns
    pieces: np.ndarray
    boxes: np.ndarray
    pack: tuple  # (number of the pack class, first panel)
    row_stride: tuple  # result of `row_stride`


def class_tables(problem, classes, groups, runs, packs, same_set, in_strides, out_strides, unit):
    """Return the `ClassTables` of each class of ``classes`` (schedule.Class), in order.

    ``groups`` and ``runs`` are the phase groups and the runs of each axis. ``packs`` is the result of `pack_positions`. Strides
    are in bytes.
    """
    found, out_elements = [], [s // ITEMSIZE[problem.dtype] for s in out_strides]
    for c in classes:
        for numbers in itertools.product(*c.runs):
            chosen = [axis[n] for axis, n in zip(runs, numbers, strict=True)]
            chunks = depth_chunks(problem, c, chosen, [g[run.group] for g, run in zip(groups, chosen, strict=True)], unit)
            stride = row_stride(problem, c, [run.count for run in chosen], same_set, in_strides, unit)
            pack = packs[tuple([run.group for run in chosen])]
            found.append(ClassTables(c, chosen, chunks, *columns(problem, chosen, out_elements, unit), pack, stride))
    return found


def depth_chunks(problem, c, runs, groups, unit):
    """Return the depth chunks of a class: rows of (first depth in the class, depth, first depth in the panel).

    Each chunk of a sparse class has one tap. The two chunks whose taps reach most rows are the first and the last, because
    these two multiply all rows.
    """
    if problem.order is not None:
        return np.array(problem.order.depths_of(runs)[0], np.int64)
    filled, totals = unit.filled(problem.ci), [len(group.offsets) for group in groups]
    slab = 1 if c.sparse or c.window == 1 else c.window and totals[-1]
    chunks = tables.depth_chunks([run.tap_range for run in runs], totals, filled, unit.kstep, slab * filled)
    if not c.sparse:
        return chunks
    reached = np.ones(1, np.int64)
    for run, size in zip(runs, problem.in_sizes, strict=True):
        first = np.array(run.first_in)
        inside = np.minimum(run.count, size - first) - np.maximum(0, -first)
        reached = np.multiply.outer(reached, np.maximum(0, inside)).ravel()
    at = np.argsort(-reached[chunks[:, 0] // filled], kind="stable")
    return chunks[[at[0], *at[2:], at[1]]]


def row_stride(problem, c, counts, same_set, in_strides, unit):
    """Return (count, stride, in place): which rows of a class have a constant stride in the input.

    From each multiple of ``count`` on, ``count`` rows are ``stride`` elements apart; 0 if there are none. The last item says
    whether the GEMM reads these rows in place.
    """
    *spatial, channel = (s // ITEMSIZE[problem.dtype] for s in in_strides)
    if c.taps * problem.ci == 0 or c.sparse or channel != 1:
        return 0, 0, False
    # The GEMM reads rows in place if elements have the type of the panels, each tap has whole steps of depth, and rows do not
    # share sets of L1.
    in_place = not unit.matrix and unit.s_size == unit.e_size and problem.ci % unit.kstep == 0
    run, stride = 1, 0
    for count, step in zip(reversed([problem.batch, *counts]), reversed(spatial), strict=True):
        if run == 1:
            in_place = in_place and step * unit.e_size % same_set != 0
            stride = step
        elif count > 1 and step != stride * run:
            break
        run *= count
    return run, stride, in_place
