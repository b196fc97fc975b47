"""The plan of a schedule of `scatter` for data and output of given strides, and the recipe of its packed weights.

All decisions are in the schedule (schedule.py). `permits` says whether the strides of a call suit it.
"""

import itertools
import math

import numpy as np

from ..._base.problem import ITEMSIZE
from ..._model import machine
from .. import common, phases
from .gathering import gathered_products, is_contiguous, lanes_of
from .loops import ScatterPlan
from .schedule import BANDS, GATHERED
from .weights import ScatterRecipe


def recipe(attributes, filter, bias, form, unit="vectors"):
    """Return the recipe that packs a filter in a form, ``(layout of products, slab)`` (Schedule.form).

    Columns are (phase of the other axes, tap of the last axis, out-channel) or, for BANDS and GATHERED, (tap of all axes,
    out-channel).
    """
    layout, slab = form
    if layout in (BANDS, GATHERED):
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
    problem, index, columns = schedule.problem, None, None
    if schedule.form[0] == GATHERED:
        axes, index = [_ONE_RUN] * (problem.rank - 1), _gather_index(schedule)
    else:
        axes = list(zip(*common.axes(problem, *[(True,) * problem.rank] * 2), strict=True))[:-1]
        if schedule.form[0] == BANDS:
            columns = [_tap_columns(problem, axes, runs) for runs in itertools.product(*[runs for _, runs in axes])]
    dense = [_dense(problem, in_strides, images) for images in (False, True)]
    return ScatterPlan(schedule, axes, index, columns, recipe, in_strides, out_strides, *dense)


def _tap_columns(problem, axes, runs):
    """Return the first column of each tap of each phase of a class, [tap][phase], for BANDS. ``runs`` has a run per axis."""
    found = np.zeros((1, 1), np.int64)
    for kernel, (groups, _), run in zip(problem.kernel, axes, runs, strict=False):
        if not run.first_in:  # no input reaches these outputs
            return np.zeros(1, np.int64)
        taps = np.array(groups[run.group].taps, np.int64).T[slice(*run.tap_range)]  # [tap][phase] of this axis
        found = found[:, None, :, None] * kernel + taps[None, :, None, :]
        found = found.reshape(found.shape[0] * found.shape[1], -1)
    return found * (problem.kernel[-1] * problem.co)


# An axis with GATHERED: one run, from which `compute_products` finds the first pixel.
_ONE_RUN = [phases.PhaseGroup((), (0,), ())], [phases.AxisClass(0, 1, (0, 1), (0,), (), (), 0, (), (0, 1))]


def _gather_index(schedule):
    """Return the indices [vector of outputs][bias, terms][lane] of the bias and the products that each output gathers."""
    problem, vl = schedule.problem, machine.current().info(schedule.problem.dtype).vl
    columns, pixels = gathered_products(problem)
    bias = np.arange(len(columns)) % problem.co
    return lanes_of(np.column_stack((bias, columns * schedule.ld + pixels)), vl)


def permits(schedule, in_strides, out_strides):
    """Check whether a schedule can run with these strides in bytes. GATHERED needs dense images and outputs."""
    problem = schedule.problem
    return schedule.form[0] != GATHERED or (
        _dense(problem, in_strides)
        and is_contiguous((*problem.out_sizes, problem.co), out_strides[1:], ITEMSIZE[problem.dtype])
    )


def _dense(problem, in_strides, images=True):
    """Check whether pixels have one constant stride across the rows of an image and, with ``images``, across all images."""
    sizes, strides = (problem.batch, *problem.in_sizes), in_strides[:-1]
    first = 0 if images else 1
    return strides[-1] != 0 and is_contiguous(sizes[first:], strides[first:], strides[-1])
