"""scatter: a GEMM of each row of pixels with every tap of the last axis, overlap-added; for few out channels."""

from functools import partial

from .. import stages
from .bind import bind, permits, recipe
from .cost import cost, packing
from .schedule import LIMIT, schedule

__all__ = ["BY_ROWS", "LIMIT", "STAGES", "make"]

STAGES = stages.Stages(schedule, cost, packing, recipe, bind)
BY_ROWS = STAGES._replace(schedule=partial(schedule, gathered=False))  # for memory of any strides


def make(problem, recipe, packed, in_strides, out_strides, threads, name="scatter", unit="vectors"):
    """`stages.make`: by rows where memory is not what the schedule wants, and on vectors where other units can't hold weights."""
    from .. import machine

    found = stages.scheduled(STAGES, problem, machine.current(), unit, threads)
    those = STAGES if permits(found, in_strides, out_strides) else BY_ROWS
    otherwise = None if unit == "vectors" else make
    return stages.make(those, problem, recipe, packed, in_strides, out_strides, threads, name, unit, otherwise)
