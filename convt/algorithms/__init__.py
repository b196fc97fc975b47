"""The algorithms: their one interface, their registry, and the few words of their own.

Each algorithm is a folder: ``plan.py`` (the interface, and tables for the loops), ``cutting.py`` (how a problem is cut into
tasks), ``counts.py`` (what the loops do, for the cost model), ``loops.pyx`` (the plan that runs), ``README.md`` (its page).
`ALGORITHMS` lists them; an `Algorithm` is four functions:

* ``cost(problem)``: expected cycles of all threads together; infinite for what it does not do.
* ``preparing(problem)``: cycles to pack the weights of a call that brings its own.
* ``recipe(attributes, filter, bias, key)``: how weights are packed for a key. A key is a tuple that begins with the algorithm's
  name; what follows is the algorithm's own.
* ``make(problem, recipe, packed, in_strides, out_strides, threads)``: ``(plan, key of its weights)``; ``recipe`` and ``packed``
  give the recipe and the packed weights of a key.

Their channels are contiguous. `planes.plan.by_blocks` makes of them what takes channels of any stride, such as NCX's planes.

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
from . import common, depthwise, onednn, order, phases, rows, scatter, stages, turned, winograd
from .direct import cost as direct_cost
from .direct import plan as direct
from .direct import schedule as direct_schedule
from .planes import blocks as planes_blocks
from .planes.plan import always, by_blocks, cut_into_blocks, direct_widens, make_by_blocks, never


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


def _any_channels(limit, cost, recipe, make, preparing=common.preparing, precision="highest", widens=always, exact=""):
    """An algorithm that knows contiguous channels, for all strides, and 16-bit types where it ``widens`` them (`by_blocks`)."""
    cost, recipe, make, preparing = by_blocks(cost, recipe, make, preparing, widens)
    return Algorithm(limit, cost, recipe, make, preparing, precision, exact)


def _of_planes(limit, algorithm, name, unit="vectors", precision="highest"):
    """An algorithm that computes on planes as they are; `direct` computes by blocks what it does not take."""
    otherwise = partial(make_by_blocks, direct.cost, direct.make)
    return Algorithm(limit, *stages.serving(algorithm.STAGES, name, unit, otherwise), precision)


def _of_unit(unit, name, wants, precision, exact=""):
    """Algorithms on a unit that multiplies bfloat16, by their names: direct, scatter and turned, and winograd where its
    transforms lose less than the products do."""
    prefix = f"{name}_"
    there = {
        name: _any_channels(
            wants, partial(direct.cost, unit=unit), partial(direct.recipe, unit=unit),
            partial(direct.make, name=name, unit=unit), partial(direct.preparing, unit=unit), precision, never, exact,
        ),
        prefix + "scatter": _any_channels(
            f"{wants}, and what scatter wants: {scatter.LIMIT}", partial(stages.cost, scatter.STAGES, unit=unit),
            partial(stages.recipe, scatter.STAGES, unit=unit), partial(scatter.make, name=prefix + "scatter", unit=unit),
            partial(stages.preparing, scatter.STAGES, unit=unit), precision, never, exact,
        ),
    }  # fmt: skip
    if unit in ("amx", "amx_two"):
        there[prefix + "winograd"] = _any_channels(
            f"{wants}, and what winograd wants: {winograd.LIMIT}",
            *stages.serving(winograd.STAGES, prefix + "winograd", unit, direct.make), precision,
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
    "direct": _any_channels(None, direct.cost, direct.recipe, direct.make, direct.preparing, widens=direct_widens),
    "winograd": _any_channels(winograd.LIMIT, *stages.serving(winograd.STAGES, "winograd", otherwise=direct.make)),
    "winograd6": _any_channels(
        winograd.LIMIT, *stages.serving(winograd.LARGE_STAGES, "winograd6", otherwise=direct.make), precision="high"
    ),
    "scatter": _any_channels(
        scatter.LIMIT, partial(stages.cost, scatter.STAGES), partial(stages.recipe, scatter.STAGES), scatter.make,
        partial(stages.preparing, scatter.STAGES), widens=never,
    ),
    "depthwise": _any_channels(
        depthwise.LIMIT, *stages.serving(depthwise.STAGES, "depthwise"), widens=depthwise.kinds.widens
    ),
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
        direct_schedule.choose, direct_cost.memory_cycles, winograd.schedule.choose, planes_blocks.blocks, cut_into_blocks,
        order.order_of, phases.axis, phases.kinds, stages.scheduled, common.pairs_met, depthwise.kinds.kind_of_operator,
    ):  # fmt: skip
        decided.cache_clear()


# oneDNN computes by the same interface, but is a backend, with no cost to compare: see onednn/plan.py.
BACKENDS = {"onednn": onednn}
