"""The order in which `direct` sums, as a value, for the algorithm "invariant".

`direct` sums an output's products tap by tap within depth chunks. The taps and chunks depend on the run of the output, and the
cost model ends runs according to the sizes of the problem. A Problem with an Order is computed in that order.
`invariant_order` returns an Order that does not depend on sizes.
"""

import itertools
import math
from typing import NamedTuple

from . import direct, phases
from .direct import tables
from .planes import by_blocks
from .planes.schedule import cheaper_widened

DIRECT = by_blocks(direct.STAGES, cheaper_widened(direct.STAGES), strided=True)


class Run(NamedTuple):
    """A range of consecutive j of a phase group on an axis (see phases.py) whose outputs are summed in one order."""

    group: int
    low: float  # the first j; -inf for every j in the window
    high: float  # one past the last j
    taps: tuple  # (first, end) of the group's taps that are summed, including those that read zeros outside the input


class Order(NamedTuple):
    merge: tuple  # for each axis, whether phases are merged
    axes: tuple  # the Runs of each axis
    divisible: bool  # whether the problem may be cut into blocks, because all outputs are summed alike
    depths: tuple  # for each choice of a run per axis: (depth chunks, whether the class is sparse)

    def depths_of(self, combo):
        """Return (depth chunks, whether it is sparse) of a class."""
        at = 0
        for c, runs in zip(combo, self.axes, strict=True):
            at = at * len(runs) + c.run
        return self.depths[at]


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
    return Order((True,) * rank, tuple(runs), finite, tuple(depths))
