"""The stages of onednn, and `preferred`, which decides when "auto" takes it.

The schedule holds no decisions, because oneDNN takes them when it creates a primitive. All weights have the key
``("onednn",)``.
"""

import math
from typing import NamedTuple

from ... import _core
from ..._base.problem import Problem
from ..._run import config
from .. import stages
from . import library, primitive
from .run import OneDnnPlan
from .weights import Recipe


def preferred(problem, attributes, native):
    """Check whether "auto" takes oneDNN instead of the key ``native``, the one of least cost. Only for prepacked weights.

    oneDNN is taken only for bfloat16 on AMX if the native choice is `scatter` on AMX and `_suits_amx` holds. In float32 the
    native algorithms are faster, and for NCX oneDNN has only GEMM and col2im. oneDNN is not taken if CONVT_ISA names another
    instruction set, because oneDNN chooses its own.

    The check creates no primitive, and opens the library only if all other conditions hold.
    """
    return (
        problem.dtype == "bfloat16"
        and native == "scatter:amx"
        and (attributes.data_format, attributes.algorithm) == ("NXC", "auto")
        and _suits_amx(problem)
        and _core.isa() == config.preferred_isa()
        and primitive.can(problem)
        and "amx" in library.opened()["isa"]
    )


_FEW_CHANNELS = 16  # with fewer channels, most of an AMX tile is empty


def _suits_amx(problem):
    """Check whether oneDNN's bfloat16 kernels for AMX are expected to be faster than `scatter` on AMX.

    They are faster for problems without groups or dilation, on one or two axes, with at least 16 channels on both sides and
    enough work to share. oneDNN uses slow kernels if a pad is as long as the kernel, or if the kernel is long.
    """
    ends = primitive.pads_end(problem)
    return (
        problem.groups == 1
        and problem.rank <= 2
        and min(problem.ci, problem.co) >= _FEW_CHANNELS
        and max(problem.dilations) == 1
        and max(problem.kernel) <= 16
        and all(b < k and e < k for b, e, k in zip(problem.begin, ends, problem.kernel, strict=True))
        and math.prod(problem.in_sizes) >= 9
        and problem.flops >= 4_000_000
    )


class Schedule(NamedTuple):
    """The fields of all schedules (see stages.py)."""

    problem: Problem
    unit: str
    threads: int
    form: tuple = ()  # one form: a `weights.Filter`, which keeps the layouts of all primitives


def schedule(problem, here, unit, threads, finite):
    """Return the `Schedule` of any problem. `primitive.reason` tells whether oneDNN can compute it."""
    return Schedule(problem, unit, threads)


def cost(schedule, here):
    """Return infinity, because oneDNN has no cost model here. `preferred` decides instead."""
    return math.inf


def recipe(attributes, filter, bias, form, unit):
    """Return the recipe that makes a `weights.Filter`."""
    return Recipe(attributes.dtype, filter, bias)


def bind(schedule, in_strides, out_strides, recipe):
    """Return the plan of a schedule. Strides are in bytes."""
    return OneDnnPlan(schedule.problem, recipe.biased, in_strides, out_strides, schedule.threads)


STAGES = stages.Stages(schedule, cost, recipe, bind)
