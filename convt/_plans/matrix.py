"""matrix: `direct` on the CPU's matrix unit, which multiplies bfloat16 and sums in float32.

A float32 is three bfloat16 parts, and six products of parts are one of float32's, as exact as its own rounding; sixteen times
the multiply-adds pay for them. float16 has two parts and four products. Numbers so small or so large that a part of a
product could be lost are left to `direct`, those of the filter when it is packed, those of the data as they are met.

The key of its weights is ``("matrix", merge)``, as of `direct`.
"""

import functools
import math

from .. import _core
from . import direct

LIMIT = "a CPU with a matrix unit (AMX) and a dtype other than float64"


def cost(problem):
    if _core.kernel_info(problem.dtype, True) is None:
        return math.inf
    return direct._choice(problem, True, True, _core.isa())[0]


preparing = functools.partial(direct.preparing, matrix=True)


def recipe(attributes, filter, bias, key):
    return direct.recipe(attributes, filter, bias, key, matrix=True)


def make(problem, recipe, packed, in_strides, out_strides):
    key = ("matrix", direct._choice(problem, True, True, _core.isa())[1])
    if not packed(key).finite:  # some weights the parts can't hold
        return direct.make(problem, recipe, packed, in_strides, out_strides)
    return direct.planned(problem, recipe, in_strides, out_strides, "matrix", matrix=True)
