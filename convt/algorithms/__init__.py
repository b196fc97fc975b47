"""The algorithms: their registry, the choice among them, and the few words of their own.

Each algorithm is a folder: ``schedule.py`` (decides everything about a problem on a machine, as a record), ``cost.py``
(expected cycles, read off the schedule), ``bind.py`` (tables for the loops, from the schedule, strides and packed weights),
``loops.pyx`` (the plan that runs), ``README.md`` (its page). stages.py is their interface. `ALGORITHMS` has an `Algorithm` for
each combination of an algorithm and a unit (unit.py), under the name that users know it by.

Most know channels that are contiguous alone. `planes.by_blocks` makes of them what takes channels of any stride, such as NCX's
planes.

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

import functools
import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .._problem import PRECISIONS
from . import (
    common,
    depthwise,
    direct,
    machine,
    onednn,
    order,
    phases,
    planes,
    reorder,
    rows,
    scatter,
    stages,
    turned,
    unpacked,
    winograd,
)  # fmt: skip
from .planes import blocks
from .planes.schedule import always, never


class Algorithm(NamedTuple):
    """An algorithm on a unit."""

    stages: stages.Stages
    make: Callable  # (problem, recipe, finite, in_strides, out_strides, threads) -> (plan, key of its weights)
    unit: str = "vectors"
    limit: str | None = None  # what it wants, in words for an error; None if it does every problem
    precision: str = "highest"  # of float32: the least exact that a caller of "auto" must have permitted
    exact: str = ""  # another dtype that it computes as exactly as can be, whatever its precision of float32
    unpacked: bool = False  # whether it reads the filter of a call where it lies, if it lies in rows: "auto" takes it for these

    def permitted(self, problem):
        """Whether "auto" may take it for a problem: other types than float32 are computed as exactly as they can hold."""
        allowed = problem.precision if problem.dtype == "float32" else "highest"
        return problem.dtype == self.exact or PRECISIONS.index(self.precision) <= PRECISIONS.index(allowed)

    def schedule(self, problem, threads=stages.SHARED):
        """Everything that is decided about a problem on the machine in use; None where the algorithm does not do it."""
        return stages.scheduled(self.stages, problem, machine.current(), self.unit, threads)

    def cost(self, problem):
        """Expected cycles of all threads together; infinite where the algorithm does not do the problem."""
        return stages.cost(self.stages, problem, self.unit)

    def preparing(self, problem):
        """Cycles to pack the weights of a call that brings its own."""
        return stages.preparing(self.stages, problem, self.unit)

    def least(self, problem):
        """Cycles that `cost` is not below: quick to find."""
        return self.stages.least(problem, machine.current(), self.unit)

    def recipe(self, attributes, filter, bias, key):
        """How weights are packed for a key: the algorithm's name, and the form that a schedule says."""
        return self.stages.recipe(attributes, filter, bias, key[1:], self.unit)


def _any_channels(limit, these, name, unit="vectors", precision="highest", widens=always, exact="", permits=None):
    """An algorithm of ``these`` stages, which knows contiguous channels, for all strides, and 16-bit types where it ``widens``
    them (`planes.by_blocks`)."""
    return _of_blocks(limit, planes.by_blocks(these, widens), name, unit, precision, exact, permits)


def _of_blocks(limit, these, name, unit="vectors", precision="highest", exact="", permits=None):
    """An algorithm for all strides. `direct` computes what it does not take."""
    make = partial(planes.bind.make, these, name=name, unit=unit, otherwise=_direct, permits=permits)
    return Algorithm(these, make, unit, limit, precision, exact)


def _of_planes(limit, these, name, unit="vectors", precision="highest"):
    """An algorithm that computes on planes as they are. `direct` computes by blocks what it does not take."""
    return Algorithm(these, partial(stages.make, these, name=name, unit=unit, otherwise=_direct), unit, limit, precision)


def _direct(*call):
    return ALGORITHMS["direct"].make(*call)


def _of_unit(unit, name, wants, precision, exact=""):
    """Algorithms on a unit that multiplies bfloat16, by their names: direct, scatter and turned, and winograd where its
    transforms lose less than the products do."""
    prefix = f"{name}_"
    there = {
        name: _any_channels(wants, direct.STAGES, name, unit, precision, never, exact),
        prefix + "scatter": _any_channels(
            f"{wants}, and what scatter wants: {scatter.LIMIT}", scatter.STAGES, prefix + "scatter", unit, precision, never,
            exact, scatter.permits,
        ),
    }  # fmt: skip
    if unit in ("amx", "amx_two"):
        there[prefix + "winograd"] = _any_channels(
            f"{wants}, and what winograd wants: {winograd.LIMIT}", winograd.STAGES, prefix + "winograd", unit, precision,
            always if unit == "amx" else never,
        )  # fmt: skip
    if unit != "dots":
        there[prefix + "turned"] = _of_planes(
            f"{wants}, and what turned wants: {turned.LIMIT}", turned.STAGES, prefix + "turned", unit, precision
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
    "rows": _of_planes(rows.LIMIT, rows.STAGES, "rows"),
    "turned": _of_planes(turned.LIMIT, turned.STAGES, "turned"),
    "unpacked": _of_planes(unpacked.LIMIT, unpacked.STAGES, "unpacked")._replace(unpacked=True),
    **_of_unit("amx", "matrix", f"{_AMX} and a dtype other than float64", "highest"),
    **_of_unit("amx_two", "matrix_high", f"{_AMX} and float32", "high"),
    **_of_unit("amx_one", "matrix_medium", f"{_AMX} and float32", "medium"),
    **_of_unit("dots", "dots", _DOTS, "medium", exact="bfloat16"),
}  # fmt: skip


def candidates(problem, within=math.inf):
    """``{name: expected cycles}`` of the algorithms that "auto" may take for a problem: of those that take at most ``within``
    times the least."""
    found, least = {}, math.inf
    for bound, name in _by_least(problem, False):
        if bound > within * least or math.isinf(bound):
            break
        found[name] = ALGORITHMS[name].cost(problem)
        least = min(least, found[name])
    near = {name for name, cycles in found.items() if cycles <= within * least and not math.isinf(cycles)}
    return {name: found[name] for name in ALGORITHMS if name in near}


def fastest(problem, here, brought=None):
    """The name of the algorithm that "auto" takes on the machine ``here``, which is the one in use: the fastest one for
    problems of its class, or for itself if it is so unlike the others that this one does not do it. ``brought`` says how the
    filter lies that a call brings (`reorder.lies`), and is None where weights were packed beforehand."""
    name = _fastest(stages.alike(problem), here, brought)
    return name if math.isfinite(ALGORITHMS[name].least(problem)) else _fastest(problem, here, brought)


@functools.lru_cache(maxsize=1024)
def _fastest(problem, here, brought):
    """The name of the algorithm of the least cost. Packing the weights counts where a call brings them."""
    best, chosen = math.inf, None
    for bound, name in _by_least(problem, brought == reorder.IN_ROWS):
        if bound >= best:
            break
        cycles = ALGORITHMS[name].cost(problem)
        if brought is not None and cycles < best:
            cycles += ALGORITHMS[name].preparing(problem)
            if brought == reorder.IN_ROWS and not ALGORITHMS[name].unpacked:
                cycles += common.reordering_cycles(problem, here)
        if cycles < best:
            best, chosen = cycles, name
    return chosen


def _by_least(problem, unpacked):
    """Pairs of the cycles that an algorithm is not below and its name, in order: of those that "auto" may take."""
    may = lambda each: each.permitted(problem) and (unpacked or not each.unpacked)  # noqa: E731
    return sorted((each.least(problem), name) for name, each in ALGORITHMS.items() if may(each))


def forget():
    """Empty the caches of what was decided for problems."""
    for decided in (
        _fastest, direct.schedule.choose, direct.cost.memory_cycles, winograd.schedule.choose, blocks.blocks,
        planes.schedule.chosen_blocks, planes.schedule.cheaper_on_planes, order.order_of, phases.axis, phases.kinds,
        stages.scheduled, common.pairs_met, depthwise.kinds.kind_of_operator,
    ):  # fmt: skip
        decided.cache_clear()


# oneDNN computes by the same interface, but is a backend, with no cost to compare: see onednn/schedule.py.
BACKENDS = {"onednn": Algorithm(onednn.STAGES, partial(stages.make, onednn.STAGES, name="onednn", unit="onednn"), "onednn")}
