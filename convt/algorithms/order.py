"""The order in which `direct` sums, as a value. With it, the plan of a part gives the same bits as the plan of the whole.

`direct` sums an output's products tap by tap within depth chunks. The taps and chunks depend on the run of the output, and the
cost model ends runs according to the sizes of the problem. `order_of` returns the Order of a whole problem, `part_of` the Order
of a part of it. A Problem with an Order is computed in that order. `invariant_order` returns the Order of the algorithm
"invariant", which does not depend on sizes.
"""

import itertools
import math
from typing import NamedTuple

from . import common, direct, phases
from .caches import remembered
from .direct import tables
from .direct.bind import depth_chunks
from .planes import by_blocks
from .planes.blocks import Schedule
from .planes.schedule import cheaper_widened
from .stages import SHARED, cached_schedule

DIRECT = by_blocks(direct.STAGES, cheaper_widened(direct.STAGES), strided=True)


class Run(NamedTuple):
    """A range of consecutive j of a phase group on an axis (see phases.py) whose outputs are summed in one order."""

    group: int
    low: float  # the first j; -inf for every j in the window
    high: float  # one past the last j
    taps: tuple  # (first, end) of the group's taps that are summed, including those that read zeros outside the input
    first: float = -math.inf  # the first output of the window that the run applies to
    end: float = math.inf  # one past the last one


class Order(NamedTuple):
    merge: tuple  # for each axis, whether phases are merged
    axes: tuple  # the Runs of each axis
    divisible: tuple  # for each axis, whether a part may be cut into blocks, because all outputs are summed alike
    depths: tuple  # for each choice of a run per axis: (depth chunks, whether the class is sparse)

    def depths_of(self, combo):
        """Return (depth chunks, whether it is sparse) of a class."""
        at = 0
        for c, runs in zip(combo, self.axes, strict=True):
            at = at * len(runs) + c.run
        return self.depths[at]


@remembered(64)
def order_of(problem, finite, here):
    """Return the Order of a whole problem on contiguous data. ``finite`` says whether the filter is finite."""
    found = cached_schedule(DIRECT, problem._replace(planar=_has_separate_channels(problem)), here, "vectors", SHARED, finite)
    cut = found.cut if isinstance(found, Schedule) else None
    found = found if cut is None else found.inner
    sub, info = found.problem, here.info(problem.dtype)
    merge = found.merge
    groups, runs = common.axes(sub, merge, found.split)
    reached = [[n for n, c in enumerate(axis) if c.group >= 0] for axis in runs]
    axes = [[Run(c.group, c.start, c.start + c.count, c.tap_range) for c in axis if c.group >= 0] for axis in runs]
    class_at = {at: c for c in found.classes for at in itertools.product(*c.runs)}
    depths = {}
    for numbers in itertools.product(*reached):
        c, combo = class_at[numbers], [axis[n] for axis, n in zip(runs, numbers, strict=True)]
        chosen = [g[run.group] for g, run in zip(groups, combo, strict=True)]
        at = tuple([axis.index(n) for axis, n in zip(reached, numbers, strict=True)])
        depths[at] = tuple(map(tuple, depth_chunks(sub, c, combo, chosen, info).tolist())), c.sparse
    divisible = [False] * problem.rank
    for ax in range(problem.rank if cut is not None else 0):
        if cut.axes[ax].count > 1:
            divisible[ax], runs = _runs_of_blocks(axes[ax], depths, ax, cut.axes[ax])
            axes, depths = _with_runs(axes, depths, ax, runs)
    return Order(merge, tuple(map(tuple, axes)), tuple(divisible), tuple(depths.values()))


def _has_separate_channels(problem):
    """Check whether channels of contiguous data or output are not adjacent, so that `direct` transposes block by block."""
    return problem.planar and (
        (problem.groups * problem.ci > 1 and math.prod(problem.in_sizes) > 1)
        or (problem.groups * problem.co > 1 and math.prod(problem.out_sizes) > 1)
    )


def _runs_of_blocks(runs, depths, ax, axis):
    """Return the runs of all blocks of an axis: (whether all outputs of a phase group are summed alike, [(run, its number in
    the block)])."""
    firsts = {run.group: n for n, run in reversed(list(enumerate(runs)))}
    summation = lambda at: (runs[at[ax]].taps, depths[at])  # noqa: E731
    if all(summation(at) == summation((*at[:ax], firsts[runs[at[ax]].group], *at[ax + 1 :])) for at in depths):
        return True, [(Run(group, -math.inf, math.inf, runs[n].taps), n) for group, n in sorted(firsts.items())]
    found = []
    for block in range(axis.count):
        start = axis.first + block * axis.step
        outs = block * axis.out, (block + 1) * axis.out
        found += [(Run(r.group, r.low + start, r.high + start, r.taps, *outs), n) for n, r in enumerate(runs)]
    return False, found


def part_of(order, problem, in_starts, out_starts):
    """Return the Order of ``problem``, a part that begins at these inputs and outputs of the whole.

    Parts far from the ends of the whole have equal Orders.
    """
    axes, depths = order.axes, dict(zip(_choices(order.axes), order.depths, strict=True))
    for ax, (start, first) in enumerate(zip(in_starts, out_starts, strict=True)):
        s, begin, out, kept = problem.strides[ax], problem.begin[ax], problem.out_sizes[ax], []
        j = begin // s, (begin + out - 1) // s + 1
        for n, r in enumerate(axes[ax]):
            low, high = max(r.low - start, j[0]), min(r.high - start, j[1])
            a, b = max(r.first - first, 0), min(r.end - first, out)
            if low < high and a < b:
                kept.append((r if order.divisible[ax] else Run(r.group, low, high, r.taps, a, b), n))
        axes, depths = _with_runs(axes, depths, ax, kept)
    return order._replace(axes=tuple(map(tuple, axes)), depths=tuple(depths.values()))


def _choices(axes):
    return itertools.product(*(range(len(runs)) for runs in axes))


def _with_runs(axes, depths, ax, runs):
    """Return axes and depths with other runs on axis ``ax``; ``runs`` are pairs (run, number of the run that it replaces)."""
    axes = [*axes[:ax], [run for run, _ in runs], *axes[ax + 1 :]]
    return axes, {at: depths[(*at[:ax], runs[at[ax]][1], *at[ax + 1 :])] for at in _choices(axes)}


def invariant_order(problem, finite, here):
    """Return an Order in which the sum of an output depends on the operator and on the inputs that reach the output alone.

    Sizes, the position of the output, the batch and the layout have no influence. With finite weights, an output sums all taps
    of its phase, and those outside the input read zeros. Otherwise it sums the taps that are inside the input.
    """
    info, rank = here.info(problem.dtype), problem.rank
    axes = phases.axes_of(problem)
    groups = [axis.groups(True) for axis in axes]
    if finite:
        runs = [tuple([Run(n, -math.inf, math.inf, (0, len(g.offsets))) for n, g in enumerate(axis)]) for axis in groups]
    else:
        found = [[c for c in axis.runs(True, True) if c.group >= 0] for axis in axes]
        runs = [tuple([Run(c.group, c.start, c.start + c.count, c.tap_range) for c in axis]) for axis in found]
    depths = []
    for combo in itertools.product(*runs):
        totals = [len(axis[run.group].offsets) for axis, run in zip(groups, combo, strict=True)]
        chunks = tables.depth_chunks([run.taps for run in combo], totals, info.filled(problem.ci), info.kstep, 0)
        depths.append((tuple(map(tuple, chunks.tolist())), False))
    return Order((True,) * rank, tuple(runs), (finite,) * rank, tuple(depths))
