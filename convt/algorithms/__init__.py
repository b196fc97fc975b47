"""The algorithms: their one interface, their registry, and the few words of their own.

Each algorithm is a folder: ``schedule.py`` (what is decided for a problem, once), ``cost.py`` (what that costs), ``bind.py``
(tables for the loops), ``loops.pyx`` (the plan that runs), ``README.md`` (its page). Its functions are the `Stages` of
stages.py; `ALGORITHMS` lists what the rest of convt knows of each, an `Algorithm`:

* ``cost(problem)``: expected cycles of all threads together; infinite for what it does not do.
* ``preparing(problem)``: cycles to pack the weights of a call that brings its own.
* ``recipe(attributes, filter, bias, key)``: how weights are packed for a key. A key is a tuple that begins with the algorithm's
  name; what follows is the form of its schedule.
* ``make(problem, recipe, packed, in_strides, out_strides, threads)``: ``(plan, key of its weights)``; ``recipe`` and ``packed``
  give the recipe and the packed weights of a key.

Their channels are contiguous. `planes.by_blocks` makes of them what takes channels of any stride, such as NCX's planes.

Glossary
--------
phase
    The output positions of one residue modulo the stride: a small stride-1 convolution of the input (phases.py).
window
    The part of the full scatter that the output shows: one begin and one size per axis.
run
    Consecutive positions j of one phase, or of phases that share their taps, on one axis.
class
    A run on every axis: what one set of tables describes.
piece
    Adjacent columns of a panel that are adjacent in the output.
panel
    Packed weights of as many columns as a register tile has.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .._problem import PRECISIONS
from . import common, depthwise, direct, onednn, order, phases, planes, rows, scatter, stages, turned, winograd
from .direct import cost as direct_cost
from .direct import schedule as direct_schedule
from .planes import blocks
from .planes.schedule import always, never


class Algorithm(NamedTuple):
    """See the head of this file."""

    limit: str | None  # what it wants, in words for an error; None if it does every problem
    cost: Callable
    recipe: Callable
    make: Callable
    preparing: Callable = common.preparing
    precision: str = "highest"  # of float32: the least exact that a caller of "auto" must have permitted
    exact: str = ""  # another dtype that it computes as exactly as can be, whatever its precision of float32

    def permitted(self, problem):
        """Whether "auto" may take it for a problem: other types than float32 are computed as exactly as they can hold."""
        allowed = problem.precision if problem.dtype == "float32" else "highest"
        return problem.dtype == self.exact or PRECISIONS.index(self.precision) <= PRECISIONS.index(allowed)


def _any_channels(limit, these, name, unit="vectors", precision="highest", widens=always, exact="", permits=None):
    """An algorithm of ``these`` stages, which knows contiguous channels, for all strides, and 16-bit types where it ``widens``
    them (`planes.by_blocks`)."""
    return _of_blocks(limit, planes.by_blocks(these, widens), name, unit, precision, exact, permits)


def _of_blocks(limit, these, name, unit="vectors", precision="highest", exact="", permits=None):
    """An algorithm for all strides. `direct` computes what it does not take."""
    make = partial(planes.bind.make, these, name=name, unit=unit, otherwise=_direct, permits=permits)
    cost, recipe, _, preparing = stages.serving(these, name, unit)
    return Algorithm(limit, cost, recipe, make, preparing, precision, exact)


def _direct(*call):
    return ALGORITHMS["direct"].make(*call)


def _of_planes(limit, algorithm, name, unit="vectors", precision="highest"):
    """An algorithm that computes on planes as they are. `direct` computes what it does not take."""
    return Algorithm(limit, *stages.serving(algorithm.STAGES, name, unit, _direct), precision)


def _of_unit(unit, name, wants, precision, exact=""):
    """Algorithms on a unit that multiplies bfloat16, by their names: direct, scatter and turned, and winograd where its
    transforms lose less than the products do."""
    prefix = f"{name}_"
    there = {
        name: _any_channels(wants, direct.STAGES, name, unit, precision, never, exact),
        prefix + "scatter": _any_channels(
            f"{wants}, and what scatter wants: {scatter.LIMIT}", scatter.STAGES, prefix + "scatter", unit, precision, never,
            exact, permits=scatter.permits,
        ),
    }  # fmt: skip
    if unit in ("amx", "amx_two"):
        there[prefix + "winograd"] = _any_channels(
            f"{wants}, and what winograd wants: {winograd.LIMIT}", winograd.STAGES, prefix + "winograd", unit, precision,
            always if unit == "amx" else never,
        )  # fmt: skip
    if unit != "dots":
        there[prefix + "turned"] = _of_planes(
            f"{wants}, and what turned wants: {turned.LIMIT}", turned, turned.NAMES[unit], unit, precision
        )
    return there


_AMX = "a CPU with a matrix unit (AMX)"
_DOTS = "a CPU with dot products of bfloat16 (AVX512_BF16) and float32 or bfloat16"

ALGORITHMS = {
    "direct": _of_blocks(None, order.DIRECT, "direct"),
    "winograd": _any_channels(winograd.LIMIT, winograd.STAGES, "winograd"),
    "winograd6": _any_channels(winograd.LIMIT, winograd.LARGE_STAGES, "winograd6", precision="high"),
    "scatter": _any_channels(scatter.LIMIT, scatter.STAGES, "scatter", widens=never, permits=scatter.permits),
    "depthwise": _any_channels(depthwise.LIMIT, depthwise.STAGES, "depthwise", widens=depthwise.widens),
    "rows": _of_planes(rows.LIMIT, rows, "rows"),
    "turned": _of_planes(turned.LIMIT, turned, "turned"),
    **_of_unit("amx", "matrix", f"{_AMX} and a dtype other than float64", "highest"),
    **_of_unit("amx_two", "matrix_high", f"{_AMX} and float32", "high"),
    **_of_unit("amx_one", "matrix_medium", f"{_AMX} and float32", "medium"),
    **_of_unit("dots", "dots", _DOTS, "medium", exact="bfloat16"),
}  # fmt: skip


def forget():
    """Empty the caches of what was decided for problems."""
    for decided in (
        direct_schedule.choose, direct_cost.memory_cycles, winograd.schedule.choose, blocks.blocks, planes.schedule.wide_blocks,
        order.order_of, phases.axis, phases.kinds, stages.scheduled, common.pairs_met, depthwise.kinds.kind_of_operator,
    ):  # fmt: skip
        decided.cache_clear()


# oneDNN computes by the same interface, but is a backend, with no cost to compare: see onednn/plan.py.
BACKENDS = {"onednn": onednn}
