"""Algorithms: the registry, the choice of an algorithm for a problem, and the glossary.

Each algorithm is a folder:

* ``schedule.py`` takes every decision for a problem on a machine and returns a record, the schedule;
* ``cost.py`` computes the expected cycles of a schedule;
* ``bind.py`` makes tables for the loops from a schedule, byte strides and packed weights;
* ``loops.pyx`` holds the plan that runs;
* ``README.md`` describes the algorithm.

stages.py defines the interface of these functions. Users see the NAMES of algorithms and, in a plan, the unit that multiplies
(unit.py). `ALGORITHMS` has an `Algorithm` for each pair of them, under a key such as "direct:amx". A call that names "direct"
lets convt choose its unit; tests, benchmarks, tuning files and recorded times name a key, which stands for that unit alone.

Most algorithms need contiguous channels. `planes.by_blocks` extends such an algorithm to channels of any stride, for example
NCX data. docs/how-it-works.md explains the flow of a call.

Glossary
--------
Terms of BLIS, oneDNN and the Winograd papers (GEMM, micro-kernel, non-temporal store, F(m, r)) are not repeated here. An
algorithm's README explains the terms that it alone uses, and the docstring of a class explains the class.

**The operator**

axis
    A spatial dimension of the data. Channels and batch are not axes.
tap
    One position of the kernel, on one axis or on all axes.
full scatter
    The output of a transposed convolution before pads are cut off: tap t of input i adds to position stride * i + dilation * t.
window
    The part of the full scatter that the output shows: one begin and one size per axis. The begin may be negative.
phase, residue
    The output positions with one residue modulo the stride. Each phase is a stride-1 convolution of the input (phases.py).
j
    The index of a position within its phase: position = stride * j + residue.
offset
    The distance from j to the input that a tap reads: input = j - offset.
empty phase
    A phase that no tap reaches. Its outputs are bias and activation only.
phase group
    Phases that are computed together because they read the same inputs. Phases of a group are *merged*.
nested
    A merge of all phases of an axis, also of those with fewer taps than others. Taps that a phase lacks are zero weights.
run
    A range of consecutive j of one phase group on one axis.
kind
    The properties of a run that its cost depends on. Runs that are mirror images have one kind (phases.Kind).
class
    A choice of one run per axis. One set of tables describes a class.
problem class
    Problems whose sizes are rounded to the same value (stages.class_representative). They share the choice of the algorithm.
split
    Whether runs end where a tap leaves the input or a phase leaves the window.
channel group
    A group of a grouped convolution. Code calls it group; phase groups are always called phase groups in prose.
finite
    Said of weights without NaN and infinity. Weights that are not finite must not be multiplied by zeros outside the input.

**GEMM and memory**

row, column, depth
    The M, N and K dimensions of a GEMM. In NXC algorithms rows are pixels, columns are out-channels of merged phases, and depth
    is taps times in-channels. In `turned`, rows are outputs and columns are pixels.
panel
    Packed weights of as many columns as a register tile has (n_r).
register tile, tile
    The m_r x n_r accumulators of one micro-kernel call. In Winograd, a tile is the m outputs of F(m, r) on each axis.
step of depth
    The in-channels that a micro-kernel consumes at a time: 1 on vectors, 2 for dot products, 32 on AMX.
M step
    The number of rows that a unit multiplies at least: 16 on AMX, whose tiles are multiplied whole.
depth chunk
    At most 256 of depth, the part of a panel that one kernel call multiplies (KC).
span
    The number of depth chunks that a task packs or transforms at once.
piece
    Adjacent columns of a panel that are adjacent in the output; also a part of a row that is stored or copied separately.
row block, panel block, block
    The rows, and the panels, of a task. Without a qualifier, block means a block of `planes`.
near, far
    Said of data that stays in L2, or does not.
planes, planar
    Data whose channels are not contiguous, such as NCX.
workspace, region
    The scratch memory of a thread, and a named part of it (workspace.py).

**Weights**

filter, weights
    The array that the user passes; the values after packing.
pack, form
    To copy a filter to the layout that loops read; the value that names this layout. One packed filter serves every schedule
    of the same form.
recipe
    The object that packs a filter in one form (packing.pyx).
packing on the fly
    Tasks of a one-shot call pack the weights that they multiply, just before they multiply them.
prepacked, one-shot
    Weights packed once by `ConvTranspose`; weights that come with a call.
part (of an element)
    One of the one to three bfloat16 values into which an element is split for AMX or dot products.

**Planning**

unit
    The hardware that multiplies: vectors, AMX with three, two or one parts, or dot products (unit.py). In `turned`, a unit is
    also the phases of one channel.
stage
    One of the functions of an algorithm: schedule, cost, recipe, bind, least (stages.py).
schedule
    A frozen record of every decision about a problem on a machine.
bind, plan
    To make tables from a schedule, strides and packed weights; the object with these tables that runs a call.
task
    The smallest amount of work that a thread takes. Tasks of a plan write disjoint outputs.
pinned, alternate
    Said of plans whose threads run the same tasks at every call; said of plans whose calls run tasks alternately forwards and
    backwards.
way, cut, scheme
    An alternative that a schedule compares; a division of axes or classes into blocks or tasks; the transforms of each axis.

**Cost model**

count
    The number of times that loops do something, by name: kernel calls, bytes from L2, packed vectors (costs.NAMES).
cost, price
    The cycles of one of a count: an efficiency times a unit of cost.
unit of cost
    Cycles that follow from the constants of a machine: of a vector operation, a kernel call, a byte from a cache (costs.units).
constant
    A measured property of a CPU, such as bytes per cycle from L2 (constants.py).
efficiency
    The cost of one of a count in units of cost; equal on all machines (efficiencies.py).
side
    Whether a count is serial, computing or fetching. Fetching overlaps with computing (costs.py).
profile, part (of a profile)
    The costs of a machine; their name for the counts of one algorithm, for example "direct" (costs.Profile).
lower bound, `least`
    Cycles that no schedule of an algorithm can undercut. It is quick to compute and prunes the search.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from .._base.problem import PRECISIONS
from .._model import machine
from .._model.unit import UNITS
from .._run.addition import Addition  # fmt: skip
from . import (
    common,
    depthwise,
    direct,
    invariant,
    onednn,
    order,
    planes,
    reference,
    rows,
    scatter,
    stages,
    turned,
    unpacked,
    winograd,
)  # fmt: skip
from .caches import remembered
from .reorder import IN_ROWS


class Algorithm(NamedTuple):
    """An algorithm on one unit."""

    stages: stages.Stages
    make: Callable  # (problem, recipe, finite, in_strides, out_strides, threads) -> (plan, key of its weights)
    unit: str = "vectors"
    limit: str | None = None  # requirements on CPU and problem, for error messages; None if every problem is accepted
    precision: str = "highest"  # the precision of float32 that the caller must permit
    exact: str = ""  # a dtype that the algorithm computes at its full precision, whatever ``precision`` says of float32
    addition: Callable = Addition  # (dtype, activation) -> object whose ``run`` adds an array to the plans' outputs
    repeats: bool = True  # the plans also run on arrays in the user's order of axes

    def permitted(self, problem):
        """Check whether the precision of a problem permits the algorithm. Dtypes other than float32 require the full one."""
        allowed = problem.precision if problem.dtype == "float32" else "highest"
        return problem.dtype == self.exact or PRECISIONS.index(self.precision) <= PRECISIONS.index(allowed)

    def schedule(self, problem, threads=stages.SHARED):
        """Return the schedule of a problem on the current machine, or None if the algorithm does not accept the problem."""
        return stages.cached_schedule(self.stages, problem, machine.current(), self.unit, threads)

    def cost(self, problem):
        """Return the expected cycles of all threads together, infinite if the algorithm does not accept the problem."""
        return stages.cost(self.stages, problem, self.unit)

    def packing_cost(self, problem):
        """Return the cycles to pack the weights of a one-shot call."""
        return stages.packing_cost(self.stages, problem, self.unit)

    def least(self, problem):
        """Return a lower bound of `cost` that is quick to compute."""
        return self.stages.least(problem, machine.current(), self.unit)

    def recipe(self, attributes, filter, bias, key):
        """Return the recipe for a key, which is the algorithm's own key followed by the form of a schedule."""
        return self.stages.recipe(attributes, filter, bias, key[1:], self.unit)


def _direct(*call):
    return ALGORITHMS["direct:vectors"].make(*call)


def _named(make, *call):
    """Return ``(plan, key of its weights)`` of a `make`, and set the plan's algorithm, which may be the fallback."""
    plan, key = make(*call)
    plan.algorithm = key[0]
    return plan, key


def _on(unit, key, these):
    """Return an algorithm on a unit. `direct` computes the calls that it does not accept.

    A unit of lower precision accepts float32 alone, so it widens nothing.
    """
    here = UNITS[unit]
    limit = "; also ".join(filter(None, (here.limit, these.limit))) or None
    precision = max(here.precision, these.precision, key=PRECISIONS.index)
    more = {"name": key, "unit": unit, "fallback": _direct}
    if these.by_name:  # it computes block by block already
        make = partial(_named, partial(planes.bind.make, these, **more))
        return Algorithm(these, make, unit, limit, precision, here.exact)
    if these.widens is None:
        make = partial(_named, partial(stages.make, these, **more))
        return Algorithm(these, make, unit, limit, precision, here.exact)
    if key == "direct:vectors":
        blocks = order.DIRECT
    else:
        blocks = planes.by_blocks(these, these.widens if here.precision == "highest" else stages.never)
    make = partial(_named, partial(planes.bind.make, blocks, permits=these.permits, **more))
    return Algorithm(blocks, make, unit, limit, precision, here.exact)


# Name -> stages. "winograd:six" is a scheme of "winograd" that has keys of its own, because it needs another precision.
_STAGES = {
    "direct": direct.STAGES, "winograd": winograd.STAGES, "winograd:six": winograd.LARGE_STAGES, "scatter": scatter.STAGES,
    "depthwise": depthwise.STAGES, "rows": rows.STAGES, "turned": turned.STAGES, "unpacked": unpacked.STAGES,
    "invariant": invariant.STAGES,
}  # fmt: skip
ALGORITHMS = {
    f"{name}:{unit}": _on(unit, f"{name}:{unit}", these)
    for unit in UNITS for name, these in _STAGES.items() if unit in these.units
}  # fmt: skip


def name_of(key):
    """Return the name that users see of a key: "direct" of "direct:amx"."""
    return key.partition(":")[0]


NAMES = tuple(dict.fromkeys(map(name_of, _STAGES)))


def summary(key):
    """Return a line that says what an algorithm does, for `Plan.explain`."""
    name, _, unit = key.rpartition(":")
    return f"{_STAGES[name].does} ({UNITS[unit].does})"


def allowed(problem, algorithm="auto"):
    """Return the keys from which ``algorithm`` lets convt choose: "auto", a name, or a key, which precision does not limit."""
    if algorithm in ALGORITHMS:
        return [algorithm]
    if algorithm == "auto":
        return [key for key, each in ALGORITHMS.items() if each.permitted(problem) and not each.stages.by_name]
    return [key for key, each in ALGORITHMS.items() if each.permitted(problem) and name_of(key) == algorithm]


def candidates(problem, algorithm="auto", within=math.inf):
    """Return ``{key: expected cycles}`` of what ``algorithm`` allows, at most ``within`` times the least cycles."""
    found, least = {}, math.inf
    for bound, key in _by_lower_bound(problem, algorithm, False):
        if bound > within * least or math.isinf(bound):
            break
        found[key] = ALGORITHMS[key].cost(problem)
        least = min(least, found[key])
    near = {key for key, cycles in found.items() if cycles <= within * least and not math.isinf(cycles)}
    return {key: found[key] for key in ALGORITHMS if key in near}


def fastest(problem, here, algorithm="auto", filter_order=None):
    """Return the key that ``algorithm`` means on ``here``, which must be the current machine; None if none accepts the problem.

    It is the fastest for the problem class. If that one does not accept this problem, it is the fastest for the problem itself.
    ``filter_order`` is the memory order of a one-shot call's filter (`reorder.memory_order`), or None if the weights are packed
    already.
    """
    key = _fastest(stages.class_representative(problem), here, algorithm, filter_order)
    if key is not None:
        # What "auto" takes accepts a problem if its lower bound is finite, which is quick to compute.
        bound = ALGORITHMS[key].least if algorithm == "auto" else ALGORITHMS[key].cost
        if math.isfinite(bound(problem)):
            return key
    return _fastest(problem, here, algorithm, filter_order)


@remembered(1024)
def _fastest(problem, here, algorithm, filter_order):
    """Return the cheapest key, or None. The cost of a one-shot call includes packing its weights."""
    best, chosen = math.inf, None
    for bound, key in _by_lower_bound(problem, algorithm, filter_order == IN_ROWS):
        if bound >= best:
            break
        cycles = ALGORITHMS[key].cost(problem)
        if filter_order is not None and cycles < best:
            cycles += ALGORITHMS[key].packing_cost(problem)
            if filter_order == IN_ROWS and not ALGORITHMS[key].stages.unpacked:
                cycles += common.reordering_cycles(problem, here)
        if cycles < best:
            best, chosen = cycles, key
    return chosen


def _by_lower_bound(problem, algorithm, unpacked):
    """Return sorted pairs (lower bound of the cycles, key). "auto" means `unpacked` only with ``unpacked``."""
    unpacked = unpacked or algorithm != "auto"
    keys = [key for key in allowed(problem, algorithm) if unpacked or not ALGORITHMS[key].stages.unpacked]
    return sorted([(ALGORITHMS[key].least(problem), key) for key in keys])


# Backends have the same interface, without comparable costs.
BACKENDS = {
    "onednn": Algorithm(onednn.STAGES, partial(stages.make, onednn.STAGES, name="onednn", unit="onednn"), "onednn"),
    "reference": Algorithm(
        reference.STAGES, partial(stages.make, reference.STAGES, name="reference", unit="numpy"), "numpy",
        addition=reference.ReferenceAddition, repeats=False,
    ),
}  # fmt: skip
MAKERS = {**ALGORITHMS, **BACKENDS}
