"""The packing and bind stages of turned: the recipe of the weights, and the plan with the tables that its loops read."""

import itertools
from typing import NamedTuple

import numpy as np

from ..._base.problem import ITEMSIZE
from ..._model import machine
from .. import common
from ..direct import tables
from ..direct.schedule import odd_line_stride
from ..packing import Copy, TableRecipe, tap_bytes
from .loops import TurnedPlan
from .schedule import Class, flattened, merges


class TurnedTables(NamedTuple):
    """The decisions and the tables of a class, which the loops read. A class has one run per axis."""

    decided: Class
    runs: list  # the phases.AxisClass of each axis
    chunks: np.ndarray  # [chunk] (first depth in a panel, depth, first depth in the weights)
    outer_at: list  # [outer phase] offset of its output at the first pixel, in elements
    outer_valid: list  # [outer phase] (low, high) per axis before the last: the pixels that the window shows
    x_first: int  # output index of phase 0 at the first pixel of the last axis
    weights: tuple  # of the class, in the layout of `recipe`
    nested: bool  # some phases lack taps


def recipe(attributes, filter, bias, form, unit="vectors"):
    """Return the recipe that packs weights. There is one form.

    The layout has for each class (elements between rows, byte offset, bytes of a channel group). Rows are (channel, phase),
    depth is (tap, in-channel). Weights are zero where a phase lacks a tap.
    """
    info = machine.current().info(attributes.dtype, unit)
    (groups, ci, co, *kernel), (group, channel, out, *steps) = filter.shape, filter.strides
    depth, step, bytes, layout, copies = info.filled(ci), 0 if bias is None else bias.strides[0] // info.s_size, 0, [], []
    classes = common.pack_classes(attributes, merges(len(kernel)))
    for taps in classes:
        phases, count = taps.shape
        lda, at = odd_line_stride(count * depth, info), tap_bytes(np.maximum(taps, 0), kernel, steps)
        group_weights = -(-co * phases * lda * info.e_size // 64) * 64
        copies += [
            Copy(
                at[p, t], bytes + (p * lda + t * depth) * info.e_size, ci, channel // info.s_size, co, out // info.s_size,
                phases * lda, depth, ((groups, group, group_weights),),
            )
            for p, t in zip(*np.nonzero(taps >= 0), strict=True)
        ]  # fmt: skip
        layout.append((lda, bytes, group_weights))
        # A tile may start at any row and reads whole M steps, so there is room for these after the last group.
        bytes += groups * group_weights + -(-(info.m_step - 1) * lda * info.e_size // 64) * 64
    biases, has_gaps = [Copy(0, 0, groups * co, step)], any((taps < 0).any() for taps in classes)
    return TableRecipe(
        attributes.dtype, filter, bias, layout, copies, biases, bytes, groups * co * info.t_size, has_gaps, unit=unit
    )


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
        weights = recipe.layout[index[tuple([run.group for run in runs])]]
        found.append(_tables(problem, runs, groups, c, weights, out_strides, info))
    return TurnedPlan(problem, recipe, in_strides, out_strides, found, schedule)


def _flat_strides(problem, strides):
    """Return the strides of an array of a `flattened` problem, or None if its pixels are not at a constant stride."""
    for size, outer, inner in zip(problem.in_sizes[1:], strides[1:-2], strides[2:-1], strict=True):
        if outer != size * inner:
            return None
    return strides[0], *strides[-2:]


def _tables(problem, runs, groups, c, weights, out_strides, info):
    """Return the `TurnedTables` of a class, which has these runs."""
    chosen = [of_axis[run.group] for of_axis, run in zip(groups, runs, strict=True)]
    totals = [len(group.offsets) for group in chosen]
    *outer, last = runs
    steps = [stride // ITEMSIZE[problem.dtype] for stride in out_strides[1:-2]]
    phases = list(itertools.product(*(range(len(run.first_out)) for run in outer)))
    return TurnedTables(
        decided=c,
        runs=runs,
        chunks=tables.depth_chunks([run.tap_range for run in runs], totals, info.filled(problem.ci), info.kstep, 0),
        outer_at=[sum(run.first_out[p] * step for run, p, step in zip(outer, at, steps, strict=True)) for at in phases],
        outer_valid=[[bound for run, p in zip(outer, at, strict=True) for bound in run.valid[p]] for at in phases],
        x_first=problem.strides[-1] * last.start - problem.begin[-1],
        weights=weights,
        nested=common.nested(chosen),
    )
