"""Tables for the loops of `winograd`, from a schedule and the strides of data and output; and its recipe of packed weights.

All decisions are in the schedule (schedule.py). Classes that are not transformed get the tables of direct/bind.py.
"""

import itertools
import math

import numpy as np

from ..._base.problem import ITEMSIZE
from ..._model import machine
from .. import common
from .. import phases as _phases
from ..direct.bind import class_tables
from ..direct.tables import columns
from . import schedule as _schedule
from .loops import WinogradPlan
from .transforms import KINDS, PLAIN, filter_windows, panel_vectors
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
        chosen = [g[n] for g, n in zip(groups, numbers, strict=True)]
        tables.append(common.taps_table(chosen, attributes.kernel))
        transforms.append(None)
        if any(scheme):
            windows = filter_windows(chosen, [KINDS[kind] for kind in scheme])
            transforms[-1] = windows, panel_vectors(tables[-1], windows, filter.shape[2], info)
    return WinogradRecipe(attributes.dtype, filter, bias, tables, transforms, unit)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule for data and output of these strides in bytes."""
    problem, (merge, schemes) = schedule.problem, schedule.form
    unit = machine.current().info(problem.dtype, schedule.unit)
    groups, runs = common.axes(problem, merge, (False,) * problem.rank)
    packs = {numbers: (n, 0) for n, (numbers, _) in enumerate(schemes)}
    plain = class_tables(problem, schedule.plain, groups, runs, packs, schedule.same_set, in_strides, out_strides, unit)
    ins, outs = ([s // ITEMSIZE[problem.dtype] for s in strides] for strides in (in_strides, out_strides))
    specs = [
        _class(problem, c, numbers, groups, runs, packs, ins, outs, unit)
        for c in schedule.classes
        for numbers in itertools.product(*c.runs)
    ]
    how = schedule.execution.for_strides(out_strides)
    # On AMX, packing on the fly needs out-channels that are contiguous in the filter.
    on_the_fly = schedule.on_the_fly and (not unit.matrix or recipe.out_channel_stride == 1)
    tiles = schedule.tiles._replace(
        non_temporal=min(schedule.tiles.non_temporal, how.non_temporal),
        packing_workspace=schedule.tiles.packing_workspace if on_the_fly else 0,
    )
    return WinogradPlan(schedule, recipe, in_strides, out_strides, how, plain, specs, tiles)


def _class(problem, c, numbers, groups, runs, packs, ins, outs, unit):
    """Return the tables of one transformed class; ``numbers`` are the numbers of its runs, one per axis.

    ``ins`` and ``outs`` are strides in elements.
    """
    runs = [r[n] for r, n in zip(runs, numbers, strict=True)]
    groups = [g[run.group] for g, run in zip(groups, runs, strict=True)]
    pack, _ = packs[tuple([run.group for run in runs])]
    runs = [run.extended_back(s) if early else run for run, s, early in zip(runs, problem.strides, c.starts_early, strict=True)]
    scheme, work, cut = [KINDS[kind] for kind in c.scheme], c.work, c.cut
    panels, pieces, boxes = columns(problem, runs, outs, unit)
    parts, stage_runs = _stage_tables(panels, pieces, cut.panel_block, c.staged_panels)
    axes = [(ax, t.points, t.kind) for ax, t in enumerate(scheme) if t is not PLAIN]
    axes = [(-1, 1, 0)] * (3 - len(axes)) + axes
    out_positions = list(itertools.product(*[range(t.outputs) for t in scheme]))
    tiles = [-(-run.count // t.outputs) for run, t in zip(runs, scheme, strict=True)]
    # Products of positions and strides must not overflow: an axis of one input or output may have any stride, and an input tile
    # outside the input may start anywhere.
    axis_starts = []
    for run, group, t, n, size in zip(runs, groups, scheme, tiles, problem.in_sizes, strict=True):
        offs = group.offsets
        starts = [run.start - off for off in offs[:: t.taps]]  # offsets of a transformed axis are consecutive
        axis_starts.append([max(-t.outputs * n - t.points, min(start, size)) for start in starts])
    in_step = [step if size > 1 else 0 for step, size in zip(ins[1:-1], problem.in_sizes, strict=True)]
    out_step = [s * step if run.count > 1 else 0 for s, step, run in zip(problem.strides, outs[1:-1], runs, strict=True)]
    dot = lambda position, step: sum(map(math.prod, zip(position, step, strict=True)))  # noqa: E731
    points = [dot(position, in_step) for position in itertools.product(*[range(t.points) for t in scheme])]
    window_starts = list(itertools.product(*axis_starts))
    ends = [[(p == 0) | (p == n - 1) << 1 for p in range(n)] if n > 1 else [0] for _, n, _ in axes]
    lda, point_rows, point_sums = _schedule.row_bytes(work, cut.block, unit)
    return {
        "tiles": tiles,
        "outputs": [t.outputs for t in scheme],
        "out_j": out_positions,
        "out_at": [dot(position, out_step) for position in out_positions],
        "axes": axes,
        "end_bits": [z | y << 2 | x << 4 for z, y, x in itertools.product(*ends)],
        "shown": _shown(panels, pieces, problem.rank),
        "sorted": c.sorted,
        "rows": work.rows,
        "block": cut.block,
        "blocks": cut.blocks,
        "window_starts": window_starts,
        "reads": [dot(first, in_step) + point for first in window_starts for point in points],
        "reads_inside": [
            (-min(starts), n - max(starts) - t.points + 1)
            for starts, n, t in zip(axis_starts, problem.in_sizes, scheme, strict=True)
        ],
        "in_step": in_step,
        "out_step": out_step,
        "chunks": [(k, min(work.step, work.depth - k)) for k in range(0, work.depth, work.step)],
        "span": cut.span,
        "point_major": cut.point_major,
        "lda": lda,
        "point_rows": point_rows,
        "point_sums": point_sums,
        "panels": panels,
        "pieces": pieces,
        "boxes": boxes,
        "staged_panels": c.staged_panels,
        "parts": parts,
        "runs": stage_runs,
        "panel_block": cut.panel_block,
        "panel_blocks": cut.panel_blocks,
        "inner": [run.inner for run in runs],
        "pack": pack,
        "work": cut.cycles,
    }


def _shown(panels, pieces, rank):
    """Return for each panel the positions [low, high) per axis at which some phase of it is inside the window."""
    boxes, has_pieces = np.zeros((len(panels), rank, 2), np.int64), panels[:, 3] < panels[:, 4]
    if has_pieces.any():
        starts = panels[has_pieces, 3]
        boxes[has_pieces, :, 0] = np.minimum.reduceat(pieces[:, 3::2], starts)
        boxes[has_pieces, :, 1] = np.maximum.reduceat(pieces[:, 4::2], starts)
    return boxes


def _stage_tables(panels, pieces, block, staged_panels):
    """Return the tables `parts` and `runs` of WinogradClass (loops.pyx), both empty if ``staged_panels`` is 0.

    A part is ``staged_panels`` panels of a panel block of ``block`` panels. For each part, the first table has (first run, end
    of runs). A run is (first column in the part, number of columns that are adjacent in the output, output offset).
    """
    parts, stage_runs = [], []
    for start in range(0, len(panels), block) if staged_panels else ():
        for first in range(start, min(start + block, len(panels)), staged_panels):
            low, column, end = len(stage_runs), 0, None
            for panel in panels[first : min(first + staged_panels, start + block)]:
                for at, count, offset, *_ in pieces[panel[3] : panel[4]]:
                    if (column + at, offset) == end:
                        stage_runs[-1][1] += count
                    else:
                        stage_runs.append([column + at, count, offset])
                    end = column + at + count, offset + count
                column += panel[0]
            parts.append((low, len(stage_runs)))
    return parts, stage_runs
