"""matrix_scatter: `scatter` with its products on the CPU's matrix unit, as those of `matrix`.

The key of its weights is that of `scatter`, by this name.
"""

import functools
import math

from .. import _core
from . import common, scatter

LIMIT = "a CPU with a matrix unit (AMX), a dtype other than float64, and what scatter wants: " + scatter.LIMIT
recipe = functools.partial(scatter.recipe, matrix=True)
preparing = functools.partial(common.preparing, matrix=True)


def cost(problem):
    if _core.kernel_info(problem.dtype, True) is None:
        return math.inf
    return scatter.cost(problem, matrix=True)


def make(problem, recipe, packed, in_strides, out_strides):
    plan = scatter.make(problem, recipe, packed, in_strides, out_strides, name="matrix_scatter", matrix=True)
    if packed(plan[1]).finite:
        return plan
    return scatter.make(problem, recipe, packed, in_strides, out_strides)
