"""The order in which `direct` sums, as a value: what the plan of a part needs to give the same bits as the plan of the whole.

An output's products are summed tap by tap, and in chunks of depth. Which taps and chunks these are depends on the run that the
output is in, and runs are cut by what is cheapest for a problem's sizes. `order_of` says how `direct` cuts a problem,
`part_of` what this means for a part of it; a Problem that has an Order is computed so.
"""

import functools
import itertools
import math
from typing import NamedTuple

from . import common, direct
from .direct.bind import depth_chunks
from .planes import by_blocks
from .planes.blocks import Schedule
from .planes.schedule import cheaper_widened
from .stages import SHARED, scheduled

DIRECT = by_blocks(direct.STAGES, cheaper_widened(direct.STAGES), strided=True)


class Run(NamedTuple):
    """Consecutive j of a phase group on an axis (see phases.py) whose outputs have their sums in one order."""

    group: int
    low: float  # the first j, -inf for all that the window shows
    high: float
    taps: tuple  # (first, end) of the group's taps that are summed, also where they read zeros outside the input
    first: float = -math.inf  # outputs of the window to which this applies
    end: float = math.inf


class Order(NamedTuple):
    merge: tuple  # on which axes phases are merged
    axes: tuple  # the Runs of each axis
    free: tuple  # on which axes a part may be cut into blocks: where all outputs are summed alike
    depths: tuple  # of each choice of a run per axis: (depth chunks, whether `sparse`)

    def of(self, combo):
        """(depth chunks, whether `sparse`) of a class."""
        at = 0
        for c, runs in zip(combo, self.axes, strict=True):
            at = at * len(runs) + c.run
        return self.depths[at]


@functools.lru_cache(maxsize=64)
def order_of(problem, finite, here):
    """The Order in which `direct` computes a whole problem on contiguous data; ``finite``: the filter is."""
    found = scheduled(DIRECT, problem._replace(planar=_apart(problem)), here, "vectors", SHARED, finite)
    cut = found.cut if isinstance(found, Schedule) else None
    found = found if cut is None else found.inner
    sub, info = found.problem, here.info(problem.dtype)
    merge = found.merge
    groups, runs = common.axes(sub, merge, found.split)
    reached = [[n for n, c in enumerate(axis) if c.group >= 0] for axis in runs]
    axes = [[Run(c.group, c.start, c.start + c.count, c.tap_range) for c in axis if c.group >= 0] for axis in runs]
    alike = {at: c for c in found.classes for at in itertools.product(*c.runs)}
    depths = {}
    for numbers in itertools.product(*reached):
        c, combo = alike[numbers], [axis[n] for axis, n in zip(runs, numbers, strict=True)]
        chosen = [g[run.group] for g, run in zip(groups, combo, strict=True)]
        at = tuple([axis.index(n) for axis, n in zip(reached, numbers, strict=True)])
        depths[at] = tuple(map(tuple, depth_chunks(sub, c, combo, chosen, info).tolist())), c.sparse
    free = [False] * problem.rank
    for ax in range(problem.rank if cut is not None else 0):
        if cut.axes[ax].count > 1:
            free[ax], runs = _over_blocks(axes[ax], depths, ax, cut.axes[ax])
            axes, depths = _chosen(axes, depths, ax, runs)
    return Order(merge, tuple(map(tuple, axes)), tuple(free), tuple(depths.values()))


def _apart(problem):
    """Whether channels are apart in contiguous data or output, so that `direct` transposes block by block."""
    return problem.planar and (
        (problem.groups * problem.ci > 1 and math.prod(problem.in_sizes) > 1)
        or (problem.groups * problem.co > 1 and math.prod(problem.out_sizes) > 1)
    )


def _over_blocks(runs, depths, ax, axis):
    """The runs of a block on all blocks of an axis: (whether all outputs of a group are summed alike, [(run, its number in the
    block)])."""
    firsts = {run.group: n for n, run in reversed(list(enumerate(runs)))}
    alike = lambda at: (runs[at[ax]].taps, depths[at])  # noqa: E731
    if all(alike(at) == alike((*at[:ax], firsts[runs[at[ax]].group], *at[ax + 1 :])) for at in depths):
        return True, [(Run(group, -math.inf, math.inf, runs[n].taps), n) for group, n in sorted(firsts.items())]
    found = []
    for block in range(axis.count):
        start = axis.first + block * axis.step
        outs = block * axis.out, (block + 1) * axis.out
        found += [(Run(r.group, r.low + start, r.high + start, r.taps, *outs), n) for n, r in enumerate(runs)]
    return False, found


def part_of(order, problem, in_starts, out_starts):
    """The Order of a part, ``problem``, that begins at these inputs and outputs of the whole. Parts far from the ends of the
    whole have the same one."""
    axes, depths = order.axes, dict(zip(_choices(order.axes), order.depths, strict=True))
    for ax, (start, first) in enumerate(zip(in_starts, out_starts, strict=True)):
        s, begin, out, kept = problem.strides[ax], problem.begin[ax], problem.out_sizes[ax], []
        j = begin // s, (begin + out - 1) // s + 1
        for n, r in enumerate(axes[ax]):
            low, high = max(r.low - start, j[0]), min(r.high - start, j[1])
            a, b = max(r.first - first, 0), min(r.end - first, out)
            if low < high and a < b:
                kept.append((r if order.free[ax] else Run(r.group, low, high, r.taps, a, b), n))
        axes, depths = _chosen(axes, depths, ax, kept)
    return order._replace(axes=tuple(map(tuple, axes)), depths=tuple(depths.values()))


def _choices(axes):
    return itertools.product(*(range(len(runs)) for runs in axes))


def _chosen(axes, depths, ax, runs):
    """Axes and depths with other runs on an axis, [(run, the number of the one before)]."""
    axes = [*axes[:ax], [run for run, _ in runs], *axes[ax + 1 :]]
    return axes, {at: depths[(*at[:ax], runs[at[ax]][1], *at[ax + 1 :])] for at in _choices(axes)}
