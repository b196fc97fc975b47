"""depthwise: vectors over the out channels of many small groups; no GEMM. Its weights have one key, ``("depthwise",)``."""

import itertools
import math

from .. import _config, _core, _phases
from . import common

LIMIT = "it wants groups of at most 16 in-channels"

_CHANNELS = 16  # in-channels of a group
_LANES = 64  # out channels of a task
_INPUTS = 1 << 16  # numbers that a task reads, about
_OUTPUTS = 1 << 14  # numbers that it writes


def cost(problem):
    if not 1 <= problem.ci <= _CHANNELS or problem.co == 0:
        return math.inf
    info = _core.kernel_info(problem.dtype)
    lanes = problem.groups * problem.co
    rows, meet = _rows(problem)
    taps = meet * problem.kernel[-1] / problem.strides[-1] * problem.ci
    multiply = rows * problem.out_sizes[-1] * -(-lanes // info["vl"]) * (taps * 0.7 + 4)
    gather = 0.0 if problem.ci == problem.co == 1 else rows * meet * problem.in_sizes[-1] * problem.ci * lanes * 0.5
    return multiply + gather + rows * 200


def recipe(attributes, filter, bias, key):
    return _core.PackRecipe(attributes.dtype, filter, bias, None)


def make(problem, recipe, packed, in_strides, out_strides):
    s, k, d = problem.strides[-1], problem.kernel[-1], problem.dilations[-1]
    groups = _phases.phase_groups(k, s, d, merge=False)
    runs, hole = [], False
    for c in _phases.axis_classes(groups, problem.in_sizes[-1], s, problem.begin[-1], problem.out_sizes[-1], split=True):
        if c.group < 0:
            hole = True
            continue
        group = groups[c.group]
        low, high = c.valid[0]
        taps = [(group.taps[0][n], -group.offsets[n]) for n in range(*c.tap_range)]
        runs.append((c.start + low, c.start + high, c.first_out[0] + s * low, taps))
    runs = _side_by_side(runs, s)
    j0, j1 = min((r[0] for r in runs), default=0), max((r[1] for r in runs), default=1)
    outer = _outer_axes(problem)
    lane_block = min(problem.groups * problem.co, _LANES)
    row_taps = max(1, math.prod(max(map(len, axis), default=0) for axis in outer))
    rows = max(1, _rows(problem)[0] * -(-problem.groups * problem.co // lane_block))
    # Blocks that stay in the cache, and enough of them for the threads where rows are few.
    block = min(_INPUTS // (lane_block * row_taps * problem.ci), _OUTPUTS // (lane_block * s))
    block = max(8, min(block, -(-(j1 - j0) * rows // (4 * _config.get_num_threads()))))
    block = max(1, min(block, j1 - j0))
    offsets = [-off for r in runs for _, off in r[3]] or [0]
    spec = {
        "outer": outer,
        "runs": runs,
        "j0": j0,
        "block": block,
        "blocks": -(-(j1 - j0) // block),
        "lane_block": lane_block,
        "min_off": min(offsets),
        "max_off": max(offsets),
    }
    key = ("depthwise",)
    return _core.DepthwisePlan(problem, recipe(key), in_strides, out_strides, hole, spec), key


def _side_by_side(runs, s):
    """Runs cut where another begins or ends, so that those of the same j are computed together; in order of j."""
    cuts = sorted({j for start, stop, _, _ in runs for j in (start, stop)})
    if len(cuts) * len(runs) > common.MANY_CLASSES:
        return sorted(runs)
    pieces = []
    for start, stop, first_out, taps in runs:
        inside = [j for j in cuts if start <= j <= stop]
        pieces += [(a, b, first_out + s * (a - start), taps) for a, b in itertools.pairwise(inside)]
    return sorted(pieces)


def _outer_axes(problem):
    """For each axis but the last and each of its outputs: the (tap, input index) pairs that reach it."""
    outer = []
    for ax in range(problem.rank - 1):
        s, d, size, out = problem.strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.out_sizes[ax]
        axis = [[] for _ in range(out)]
        for t in range(problem.kernel[ax]):
            first = t * d - problem.begin[ax]
            for i in range(max(0, -(first // s)), min(size, (out - 1 - first) // s + 1)):
                axis[first + i * s].append((t, i))
        outer.append(axis)
    return outer


def _rows(problem):
    """Output rows of the batch, and the average number of input rows that reach one."""
    rows = problem.batch * math.prod(problem.out_sizes[:-1])
    meet = problem.batch * math.prod(problem.in_sizes[:-1]) * math.prod(problem.kernel[:-1])
    return rows, meet / max(rows, 1)
