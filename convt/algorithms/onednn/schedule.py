"""oneDNN as one more algorithm, in stages: when "auto" chooses it, and its plans. Its weights have one key, ``("onednn",)``."""

import math
from typing import NamedTuple

from ... import _config, _core
from ..._problem import Problem
from .. import stages
from . import library, primitive
from .run import Plan
from .weights import Recipe


def preferred(problem, attributes, native):
    """Whether "auto" chooses oneDNN instead of the ``native`` algorithm of least cost, for weights that are packed once; never
    for one-shot calls.

    One class of problems gains: bfloat16 on AMX where the native choice is "matrix_scatter"; see `_suits_amx`. In float32 the
    native algorithms are faster; in NCX oneDNN has only GEMM and col2im.

    Decided without making a primitive, and the library is opened only for that class. Where CONVT_ISA chose the instruction
    set, oneDNN's own choice would not be the one requested.
    """
    return (
        problem.dtype == "bfloat16"
        and native == "matrix_scatter"
        and (attributes.data_format, attributes.algorithm) == ("NXC", "auto")
        and _suits_amx(problem)
        and _core.isa() == _config.preferred_isa()
        and primitive.can(problem)
        and "amx" in library.opened()["isa"]
    )


_FEW_CHANNELS = 16  # below, most of an AMX tile is empty


def _suits_amx(problem):
    """Whether oneDNN's bfloat16 kernels for AMX are expected to be faster than "matrix_scatter".

    They are for dense problems on one or two axes with 16 channels or more on both sides, and enough work to share. Pads as
    long as the kernel and long kernels leave oneDNN only its slow paths.
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
    """What is decided: see stages.py. All else is oneDNN's own decision, when it makes a primitive for so many threads."""

    problem: Problem
    unit: str
    threads: int
    form: tuple = ()  # weights are one filter, which has a layout for each primitive


def schedule(problem, here, unit, threads, finite):
    return Schedule(problem, unit, threads)


def cost(schedule, here):
    """It has none that could be compared: `preferred` says where it is chosen."""
    return math.inf


def packing(schedule, here):
    return 0.0


def recipe(attributes, filter, bias, form, unit):
    return Recipe(attributes.dtype, filter, bias)


def bind(schedule, in_strides, out_strides, recipe):
    return Plan(schedule.problem, recipe.biased, in_strides, out_strides, schedule.threads)


STAGES = stages.Stages(schedule, cost, packing, recipe, bind)
