"""direct: every phase is an implicit GEMM over its own taps; ``matrix`` and ``dots`` are the same on other units."""

from .. import machine, stages
from . import bind, cost, schedule

NAMES = bind.NAMES
STAGES = stages.Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least)


def make(problem, recipe, packed, in_strides, out_strides, threads, name="direct", unit="vectors"):
    """``(plan, key of its weights)``, whatever the weights hold."""
    otherwise = _not_finite if unit == "vectors" else make  # some weights that bfloat16 parts can't hold
    return stages.make(STAGES, problem, recipe, packed, in_strides, out_strides, threads, name, unit, otherwise)


def _not_finite(problem, recipe, packed, in_strides, out_strides, threads):
    return planned(problem, recipe, in_strides, out_strides, threads, finite=False)


def planned(problem, recipe, in_strides, out_strides, threads, finite=True):
    """The same on vectors, of weights that are known to be finite or not."""
    found = stages.scheduled(STAGES, problem, machine.current(), "vectors", threads, finite)
    key = ("direct", *found.form)
    return bind.bind(found, in_strides, out_strides, recipe(key)), key
