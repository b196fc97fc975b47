"""scatter: a GEMM of each row of pixels with every tap of the last axis, overlap-added; for few out channels."""

from functools import partial

from .. import machine, stages
from . import bind, cost, schedule
from .schedule import LIMIT

__all__ = ["BY_ROWS", "LIMIT", "STAGES", "make"]

STAGES = stages.Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind)
BY_ROWS = STAGES._replace(schedule=partial(schedule.schedule, gathered=False))  # for memory of any strides


def make(problem, recipe, packed, in_strides, out_strides, threads, name="scatter", unit="vectors"):
    """`stages.make`; by rows where memory is not what the schedule wants, on vectors where another unit can't hold weights."""
    found = stages.scheduled(STAGES, problem, machine.current(), unit, threads)
    those = STAGES if bind.permits(found, in_strides, out_strides) else BY_ROWS
    otherwise = None if unit == "vectors" else make
    return stages.make(those, problem, recipe, packed, in_strides, out_strides, threads, name, unit, otherwise)
