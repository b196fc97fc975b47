"""unpacked's tables: where pixels lie, where outputs go and what they sum."""

import itertools
import math

import numpy as np

from ..._problem import ITEMSIZE
from ..scatter.gathering import gathered_products
from .loops import UnpackedPlan
from .schedule import NAME
from .weights import UnpackedRecipe


def recipe(attributes, filter, bias, form, unit="vectors"):
    return UnpackedRecipe(attributes.dtype, filter, bias)


def bind(schedule, in_strides, out_strides, recipe):
    problem, item = schedule.problem, ITEMSIZE[schedule.problem.dtype]
    taps, pixels = gathered_products(problem._replace(co=1, groups=1))  # of an out-channel; the tap behind the last is nothing
    nothing = math.prod(problem.kernel)
    places = np.where(taps < nothing, pixels * schedule.ld + taps, math.prod(problem.in_sizes) * schedule.ld)
    ins, outs = ([stride // item for stride in strides[:-1]] for strides in (in_strides, out_strides))
    dense = out_strides[-1] != item and _dense(problem.out_sizes, outs[1:])
    rows = _offsets((problem.batch, *problem.out_sizes[:-1]), outs[:-1])
    return UnpackedPlan(
        NAME, schedule, recipe, in_strides, out_strides, places, _runs((problem.batch, *problem.in_sizes), ins), rows, dense
    )


def _offsets(sizes, strides):
    """Elements from the first index of some axes to each."""
    return [sum(map(int.__mul__, at, strides)) for at in itertools.product(*map(range, sizes))]


def _runs(sizes, strides):
    """Pixels in runs at the stride of the last axis: (elements to the first one, number)."""
    found = []
    for at in _offsets(sizes, strides):
        if found and at == found[-1][0] + found[-1][1] * strides[-1]:
            found[-1][1] += 1
        else:
            found.append([at, 1])
    return found


def _dense(sizes, strides):
    """Whether pixels are one stretch of memory, in order."""
    step = 1
    for size, stride in zip(sizes[::-1], strides[::-1], strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
