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

from . import common, onednn, order
from .depthwise import plan as depthwise
from .direct import cutting as direct_cutting
from .direct import plan as direct
from .planes import cutting as planes_cutting
from .planes import turned
from .planes.plan import by_blocks
from .rows import plan as rows
from .scatter import gathering
from .scatter import plan as scatter
from .winograd import cutting as winograd_cutting
from .winograd import plan as winograd
from .winograd import transforms


class Algorithm(NamedTuple):
    """See the head of this file."""

    limit: str | None  # what it wants, in words for an error; None if it does every problem
    cost: Callable
    recipe: Callable
    make: Callable
    preparing: Callable = common.preparing
    automatic: bool = True  # "auto" may take it: it is as exact as the sum of products


def _any_channels(limit, cost, recipe, make, preparing=common.preparing, automatic=True):
    """An algorithm that knows contiguous channels, for channels of any stride, too."""
    cost, make, preparing = by_blocks(cost, make, preparing)
    return Algorithm(limit, cost, recipe, make, preparing, automatic)


_AMX = "a CPU with a matrix unit (AMX)"

ALGORITHMS = {
    "direct": _any_channels(None, direct.cost, direct.recipe, direct.make, direct.preparing),
    "matrix": _any_channels(
        f"{_AMX} and a dtype other than float64",
        partial(direct.cost, amx=True), partial(direct.recipe, amx=True), partial(direct.make, name="matrix", amx=True),
        partial(direct.preparing, amx=True),
    ),
    "winograd": _any_channels(winograd.LIMIT, winograd.cost, winograd.recipe, winograd.make, winograd.preparing),
    "matrix_winograd": _any_channels(
        f"{_AMX}, float32 and a phase of two or more taps one input apart",
        partial(winograd.cost, amx=True), partial(winograd.recipe, amx=True),
        partial(winograd.make, name="matrix_winograd", amx=True), partial(winograd.preparing, amx=True),
    ),
    "winograd6": _any_channels(
        winograd.LIMIT, partial(winograd.cost, kinds=transforms.LARGE), winograd.recipe,
        partial(winograd.make, kinds=transforms.LARGE, name="winograd6"), automatic=False,
    ),
    "scatter": _any_channels(scatter.LIMIT, scatter.cost, scatter.recipe, scatter.make),
    "matrix_scatter": _any_channels(
        f"{_AMX}, a dtype other than float64, and what scatter wants: {scatter.LIMIT}",
        partial(scatter.cost, amx=True), partial(scatter.recipe, amx=True),
        partial(scatter.make, name="matrix_scatter", amx=True), partial(common.preparing, amx=True),
    ),
    "depthwise": _any_channels(depthwise.LIMIT, depthwise.cost, depthwise.recipe, depthwise.make),
    "rows": Algorithm(rows.LIMIT, rows.cost, rows.recipe, rows.make),
    "turned": Algorithm(turned.LIMIT, turned.cost, turned.recipe, turned.make),
    "matrix_turned": Algorithm(
        f"{_AMX}, a dtype other than float64, and what turned wants: {turned.LIMIT}",
        partial(turned.cost, amx=True), partial(turned.recipe, amx=True),
        partial(turned.make, name="matrix_turned", amx=True), partial(common.preparing, amx=True),
    ),
}  # fmt: skip


def forget():
    """Empty the caches of what was decided for problems."""
    for decided in (direct_cutting.choice, winograd_cutting.choice, winograd_cutting.least_cost, scatter.choice,
                    gathering.gathered_products, planes_cutting.blocks, turned.cut, order.order_of):  # fmt: skip
        decided.cache_clear()


# oneDNN computes by the same interface, but is a backend, with no cost to compare: see onednn/plan.py.
BACKENDS = {"onednn": onednn}
