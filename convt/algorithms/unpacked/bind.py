"""The packing and bind stages of unpacked: the recipe of the weights, and the plan with its tables."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from ..._base.problem import ITEMSIZE
from ..._model import machine
from ..scatter.gathering import gathered_products, is_contiguous, lanes_of
from .loops import UnpackedPlan, UnpackedRecipe


class UnpackedTables(NamedTuple):
    """The tables of the loops."""

    lanes: np.ndarray  # [vector of outputs of an image][1 + term][lane] index of the bias (0), then of each product
    runs: list  # (offset of the first pixel in elements, number of pixels) of pixels at a constant stride
    out_rows: list  # [output row of all images] offset in elements
    dense: bool  # the outputs of a channel of an image are contiguous


def recipe(attributes, filter, bias, form, unit="vectors"):
    """Return the recipe, which reads or copies a filter in IOX order. There is one form."""
    return UnpackedRecipe(attributes.dtype, filter, bias)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule. Strides are in bytes."""
    problem, item = schedule.problem, ITEMSIZE[schedule.problem.dtype]
    # The products of an out-channel. The index after the last tap stands for a missing product.
    taps, pixels = gathered_products(problem._replace(co=1, groups=1))
    missing = math.prod(problem.kernel)
    ins, outs = ([stride // item for stride in strides[:-1]] for strides in (in_strides, out_strides))
    products = np.where(taps < missing, pixels * schedule.ld + taps, math.prod(problem.in_sizes) * schedule.ld)
    tables = UnpackedTables(
        lanes=lanes_of(np.pad(products, ((0, 0), (1, 0))), machine.current().info(problem.dtype).vl),
        runs=_runs((problem.batch, *problem.in_sizes), ins),
        out_rows=_offsets((problem.batch, *problem.out_sizes[:-1]), outs[:-1]),
        dense=out_strides[-1] != item and is_contiguous(problem.out_sizes, outs[1:], 1),
    )
    return UnpackedPlan(schedule, recipe, in_strides, out_strides, tables)


def _offsets(sizes, strides):
    """Return the offset in elements of each index of some axes."""
    return [sum(map(int.__mul__, at, strides)) for at in itertools.product(*map(range, sizes))]


def _runs(sizes, strides):
    """Return the pixels as runs at the stride of the last axis: (offset of the first pixel in elements, number of pixels)."""
    found = []
    for at in _offsets(sizes, strides):
        if found and at == found[-1][0] + found[-1][1] * strides[-1]:
            found[-1][1] += 1
        else:
            found.append([at, 1])
    return found
