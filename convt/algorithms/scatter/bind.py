"""The plan of a schedule of `scatter` for data and output of given strides, and the recipe of its packed weights.

All decisions are in the schedule (schedule.py). `permits` says whether the strides of a call suit it.
"""

import math

import numpy as np

from ..._base.problem import ITEMSIZE
from .. import common, phases
from .gathering import gathered_products
from .loops import ScatterPlan
from .schedule import GATHERED, NAMES
from .weights import ScatterRecipe


def recipe(attributes, filter, bias, form, unit="vectors"):
    """Return the recipe that packs a filter in a form, ``(layout of products, slab)`` (Schedule.form).

    Columns are (phase of the other axes, tap of the last axis, out-channel) or, for GATHERED, (tap of all axes, out-channel).
    """
    layout, slab = form
    if layout == GATHERED:
        classes = [np.arange(math.prod(attributes.kernel))[:, None]]
    else:
        last = attributes.kernel[-1]
        classes = [
            (taps[:, None, :] * last + np.arange(last)[:, None]).reshape(-1, taps.shape[1])
            for taps in common.pack_classes(attributes, (True,) * (len(attributes.kernel) - 1))
        ]
    return ScatterRecipe(attributes.dtype, filter, bias, classes, attributes.strides[-1], slab, unit)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule for data and output of these strides in bytes."""
    problem, name = schedule.problem, NAMES[schedule.unit]
    dense = _dense(problem, in_strides)
    if schedule.form[0] == GATHERED:
        return ScatterPlan(name, schedule, [], gathered_products(problem), recipe, in_strides, out_strides, dense)
    axes = [
        phases.axis(*axis, split=True)
        for axis in zip(
            problem.kernel[:-1], problem.strides, problem.dilations, (True,) * problem.rank, problem.in_sizes, problem.begin,
            problem.out_sizes, strict=False,
        )
    ]  # fmt: skip
    return ScatterPlan(name, schedule, axes, None, recipe, in_strides, out_strides, dense)


def permits(schedule, in_strides, out_strides):
    """Check whether a schedule can run with these strides in bytes. GATHERED needs dense images and outputs."""
    return schedule.form[0] != GATHERED or (
        _dense(schedule.problem, in_strides) and _contiguous_outputs(schedule.problem, out_strides)
    )


def _dense(problem, in_strides):
    """Check whether pixels have one constant stride across all rows and images."""
    pixel = step = in_strides[-2]
    for size, stride, inner in zip(
        (problem.batch, *problem.in_sizes[:-1])[::-1], in_strides[-3::-1], problem.in_sizes[::-1], strict=True
    ):
        step *= inner
        if size > 1 and stride != step:
            return False
    return pixel != 0


def _contiguous_outputs(problem, out_strides):
    """Check whether the outputs of an image are contiguous, in NXC order."""
    step = ITEMSIZE[problem.dtype]
    sizes = *problem.out_sizes, problem.co
    for size, stride in zip(sizes[::-1], out_strides[:0:-1], strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
