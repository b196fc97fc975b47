"""The stages of an algorithm: it decides once, and all that follows reads what was decided.

::

    Problem --schedule--> Schedule --bind--> Plan --run-->
                             |
                             +--cost--> cycles

A `Stages` holds the functions of an algorithm. A schedule is a frozen record (a NamedTuple) of everything that is decided for a
problem on a machine: it can be printed, compared and run again. It has at least these fields:

* ``problem``: what it computes, in canonical form;
* ``unit``: the name of the unit that multiplies;
* ``threads``: of how many threads its tasks are; 1 where there is too little work for a second one;
* ``form``: how its weights are packed, a hashable value. One packed filter serves all schedules of the same form.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from . import common, machine

# The most bytes of packed weights in one form, in bytes of the filter: of a filter over LARGE_FILTER bytes, and of others.
MOST_FORM, MOST_SMALL_FORM, LARGE_FILTER = 2.5, 6, 1 << 20

EXACT = 16  # sizes up to this are a class of their own, see `alike`

SHARED = 2  # threads that schedules are compared for: the choice of an algorithm must not depend on how many there are


class Stages(NamedTuple):
    """The functions of an algorithm."""

    # (problem, here, unit, threads, finite) -> schedule, or None for a problem that it does not do. ``here`` is a
    # `machine.Machine`, ``unit`` the name of a unit. ``finite`` says whether the weights are: others must not meet the zeros
    # outside the input.
    schedule: Callable
    # (schedule, here) -> cycles of all threads together, and of threads that have nothing left to do
    cost: Callable
    # (schedule, here) -> cycles to pack the weights of a call that brings its own
    packing: Callable
    # (attributes, filter, bias, form, unit) -> how weights are packed
    recipe: Callable
    # (schedule, in_strides, out_strides, recipe) -> the plan that runs. It decides nothing; where strides do not permit what
    # the schedule says (a store, a row that is read in place), the plan does the next best, which gives the same bits.
    bind: Callable
    # (problem, here, unit) -> cycles that no schedule is below: quick to find, so that what can't win is not scheduled
    least: Callable = lambda problem, here, unit: 0.0
    planar: bool = False  # whether it computes on planes (NCX) too, as well as on channels that are contiguous


def alike(problem):
    """The problem that stands for a class of problems: sizes are rounded up to one of eight steps between powers of two, the
    batch to a power of two. The best choice for it is taken for its whole class, so that a new shape needs no new search."""
    if problem.order is not None:  # a part of a larger problem is computed as that one says
        return problem
    steps = [max(1, (1 << max(0, size - 1).bit_length()) // EXACT) for size in problem.in_sizes]
    batch = 1 << max(0, problem.batch - 1).bit_length() if problem.batch else 0
    return resized(problem, batch, [-(-size // step) * step for size, step in zip(problem.in_sizes, steps, strict=True)])


def resized(problem, batch, sizes):
    """The same operator on a batch of data of other sizes."""
    axes = zip(problem.out_sizes, problem.in_sizes, sizes, problem.strides, strict=True)
    outs = tuple([max(min(out, 1), out + (size - before) * s) for out, before, size, s in axes])
    return problem._replace(batch=batch, in_sizes=tuple(sizes), out_sizes=outs)


@functools.lru_cache(maxsize=512)
def scheduled(stages, problem, here, unit="vectors", threads=SHARED, finite=True):
    """The schedule of a problem, which is kept."""
    return stages.schedule(problem, here, unit, threads, finite)


def cost(stages, problem, unit="vectors"):
    """Cycles of a problem; infinite where the algorithm does not do it."""
    here = machine.current()
    found = scheduled(stages, problem, here, unit)
    return math.inf if found is None else stages.cost(found, here) + fetching(found, here)


def fetching(schedule, here):
    """Cycles to fetch packed weights from memory. A core's L2 is taken to have kept so many bytes of them since the last call
    as it holds, and no other cache to have kept any, because other layers of a model ran meanwhile."""
    schedule = getattr(schedule, "inner", schedule)  # of a block
    bytes = getattr(schedule, "weight_bytes", None)
    if bytes is None:
        bytes = common.filter_bytes(schedule.problem, here.info(schedule.problem.dtype, schedule.unit))
    return here.profile["weights"].cycles({"weight_byte_memory": max(0, bytes - here.limits.kept_weights)})


def preparing(stages, problem, unit="vectors"):
    """Cycles to pack the weights of a call that brings its own."""
    here = machine.current()
    return stages.packing(scheduled(stages, problem, here, unit), here)


def make(stages, problem, recipe, finite, in_strides, out_strides, threads, name, unit="vectors", otherwise=None):
    """``(plan, key of its weights)``. ``finite(key)`` is False where weights are known not to be finite, which packing finds.
    ``otherwise`` makes the plan of such weights, which this algorithm can't take; without it, the algorithm takes all."""
    here = machine.current()
    found = scheduled(stages, problem, here, unit, threads)
    key = (name, *found.form)
    if otherwise is not None and not finite(key):
        return otherwise(problem, recipe, finite, in_strides, out_strides, threads)
    return stages.bind(found, in_strides, out_strides, recipe(key)), key
