"""The stages of an algorithm. The schedule holds every decision; the later stages only read it.

::

    Problem --schedule--> Schedule --bind--> Plan --run-->
                             |
                             +--cost--> cycles

A `Stages` holds the functions of an algorithm. A schedule is a frozen record (a NamedTuple) of every decision about a problem
on a machine. You can print it, compare it, and bind it again. It has at least these fields:

* ``problem``: the problem, in canonical form;
* ``unit``: the name of the unit that multiplies;
* ``threads``: the number of threads that its tasks are divided for;
* ``form``: a hashable value that names the layout of the packed weights. One packed filter serves every schedule of its form.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from .._model import costs, machine
from . import common
from .caches import remembered

# The most bytes of packed weights in one form, in multiples of the filter: MOST_FORM for filters of more than LARGE_FILTER
# bytes, MOST_SMALL_FORM for others. Nested phases of a 3x3 filter with stride 2 take 7.1 times its bytes.
MOST_FORM, MOST_SMALL_FORM, LARGE_FILTER = 2.5, 7.5, 1 << 20

EXACT = 16  # sizes up to this are not rounded, see `class_representative`

# The most floating-point operations of a problem per cycle: of vectors with a transform that halves them, and of other units.
MOST_OPERATIONS, MOST_MATRIX_OPERATIONS = 128, 2048

SHARED = 2  # schedules are compared for two threads, so that the choice of an algorithm does not depend on the threads in use


def always(problem, here):
    """Return True: every 16-bit problem is widened."""
    return True


def never(problem, here):
    """Return False: no problem is widened."""
    return False


class Stages(NamedTuple):
    """The functions and properties of an algorithm."""

    # (problem, here, unit, threads, finite) -> schedule, or None if the algorithm does not accept the problem. ``here`` is a
    # `machine.Machine`, ``unit`` the name of a unit. If ``finite`` is False, the weights contain NaN or infinity, and must
    # not be multiplied by zeros outside the input.
    schedule: Callable
    # (schedule, here) -> cycles of all threads together, including idle threads at the end
    cost: Callable
    # (attributes, filter, bias, form, unit) -> recipe, which packs the weights
    recipe: Callable
    # (schedule, in_strides, out_strides, recipe) -> plan. It decides nothing. If strides do not permit a decision of the
    # schedule (a kind of store, a row read in place), the plan uses the next best one, which gives the same bits.
    bind: Callable
    # (problem, here, unit) -> lower bound of the cycles. It is quick to compute, so that hopeless algorithms are not scheduled.
    least: Callable = lambda problem, here, unit: 0.0
    planar: bool = False  # the algorithm computes on planes (NCX) as well as on contiguous channels

    # What the registry reads of an algorithm.
    does: str = ""  # a summary, for `Plan.explain`
    limit: str | None = None  # requirements on a problem, for error messages; None if every problem is accepted
    units: tuple = ("vectors",)  # the units that it can multiply on
    precision: str = "highest"  # precision of float32 on vectors
    # (problem, here) -> whether blocks of a 16-bit problem are widened to float32. With it, the algorithm computes on
    # contiguous channels, and `planes.by_blocks` extends it to channels of any stride. None if it computes on planes itself.
    widens: Callable | None = None
    permits: Callable | None = None  # (schedule, in_strides, out_strides) -> whether strides permit it; None: all do
    by_name: bool = False  # "auto" never takes it
    unpacked: bool = False  # it reads one-shot filters in rows without packing; "auto" takes it only for these
    transforms: bool = False  # packing transforms all weights, which takes no longer than writing them


def class_representative(problem):
    """Return the problem that represents the problem class.

    Sizes are rounded up to one of eight steps between powers of two, the batch to a power of two. The whole class uses the best
    choice for this problem, so that a new shape needs no new search.
    """
    if problem.order is not None:  # the order decides
        return problem
    steps = [max(1, (1 << max(0, size - 1).bit_length()) // EXACT) for size in problem.in_sizes]
    batch = 1 << max(0, problem.batch - 1).bit_length() if problem.batch else 0
    return resized(problem, batch, [-(-size // step) * step for size, step in zip(problem.in_sizes, steps, strict=True)])


def resized(problem, batch, sizes):
    """Return the problem of the same operator with another batch and other data sizes.

    Each additional input adds a stride of outputs. If the window is shorter than the stride, it adds the size of the window,
    because windows of huge strides must stay small.
    """
    axes = zip(problem.out_sizes, problem.in_sizes, sizes, problem.strides, strict=True)
    outs = tuple([max(min(out, 1), out + (size - before) * min(s, out)) for out, before, size, s in axes])
    return problem._replace(batch=batch, in_sizes=tuple(sizes), out_sizes=outs)


@remembered(512)
def cached_schedule(stages, problem, here, unit="vectors", threads=SHARED, finite=True):
    """Return `schedule_of` a problem from a cache."""
    return schedule_of(stages, problem, here, unit, threads, finite)


def schedule_of(stages, problem, here, unit, threads, finite):
    """Return the schedule of a problem for some threads, or for one if the work is too small for a second one."""
    limit = here.limits.single_thread_cycles
    if threads > 1 and problem.flops < limit * (MOST_OPERATIONS if unit == "vectors" else MOST_MATRIX_OPERATIONS):
        found = stages.schedule(problem, here, unit, 1, finite)
        if found is None or stages.cost(found, here) < limit:
            return found
    return stages.schedule(problem, here, unit, threads, finite)


def cost(stages, problem, unit="vectors"):
    """Return the expected cycles of a problem, infinite if the algorithm does not accept it."""
    here = machine.current()
    found = cached_schedule(stages, problem, here, unit)
    return math.inf if found is None else costs.overlapped(stages.cost(found, here), fetch_cost(found, here))


def fetch_cost(schedule, here):
    """Return the cycles to fetch packed weights from memory: all of them if the last-level cache does not hold all."""
    schedule = getattr(schedule, "inner", schedule)  # the inner schedule of a block
    bytes = getattr(schedule, "weight_bytes", None)
    if bytes is None:
        bytes = common.filter_bytes(schedule.problem, here.info(schedule.problem.dtype, schedule.unit))
    return here.profile["weights"].cycles({"weight_byte_memory": bytes if bytes > max(here.l2, here.last_bytes) else 0})


def packing_cost(stages, problem, unit="vectors"):
    """Return the cycles to pack the weights of a one-shot call that the window shows, beforehand or on the fly."""
    if stages.unpacked:
        return 0.0
    here = machine.current()
    found = cached_schedule(stages, problem, here, unit)
    found = getattr(found, "inner", found)  # the inner schedule of a block
    again_bytes = getattr(found, "again_bytes", math.inf)
    if stages.transforms:
        return here.profile["packing"]["transform_weights"] + common.packing_cycles(found.weight_bytes, again_bytes, here)
    info = here.info(found.problem.dtype, found.unit)
    return common.packing_cycles(common.filter_bytes(found.problem, info), again_bytes, here)


def make(stages, problem, recipe, finite, in_strides, out_strides, threads, name, unit="vectors", fallback=None):
    """Return ``(plan, key of its weights)``.

    ``finite(key)`` is False if packing found NaN or infinity in the weights. ``fallback`` makes the plan for these weights.
    If it is None, the algorithm accepts all weights.
    """
    here = machine.current()
    found = cached_schedule(stages, problem, here, unit, threads)
    key = (name, *found.form)
    if fallback is not None and not finite(key):
        return fallback(problem, recipe, finite, in_strides, out_strides, threads)
    return stages.bind(found, in_strides, out_strides, recipe(key)), key
