"""How a problem is cut: which lanes, j and rows are a task."""

import math
from typing import NamedTuple

from .. import common, machine
from .kernels import converts, groups_in_vector, row_taps_met

_LANES = 64  # out channels of a task, or a multiple of that whose weights stay near
_WEIGHTS = 3 << 15  # bytes of those
_INPUTS = 1 << 16  # numbers that a task reads, about
_OUTPUTS = 1 << 14  # numbers that it writes to a row
ROUNDED_BYTES = 1 << 15  # of outputs of 16-bit types, about, that are gathered before they are rounded


def js_shown(problem):
    """How many j the window shows along the last axis."""
    s, begin = problem.strides[-1], problem.begin[-1]
    return max(1, -(-(begin + problem.out_sizes[-1]) // s) - begin // s)


class Cut(NamedTuple):
    """What a task is."""

    lanes: int  # of a j
    lane_block: int
    lane_blocks: int
    block: int  # values of j
    blocks: int
    rows: int
    row_taps: int  # input rows that meet in one of outputs, at most


def cut_rows(problem, width, js, threads):
    """Blocks that stay in the cache, and enough of them for the threads where rows are few."""
    s, channels = problem.strides[-1], problem.groups * problem.co
    lanes = channels * (s if width else 1)
    info = machine.current().info(problem.dtype)
    near = _WEIGHTS // (math.prod(problem.kernel) * problem.ci * info["t_size"])
    each = 0 if width else groups_in_vector(problem, info)
    step = each * problem.co if each else 1
    step *= -(-_LANES // step)
    near = min(near, 2 * _LANES) if each else near  # (what is read of a row stays near)
    if converts(problem):  # as do the outputs of a few j until they are rounded
        near = min(near, ROUNDED_BYTES // (8 * problem.strides[-1] * info["t_size"]))
    lane_block = lanes if width else min(lanes, max(1, near // step) * step)
    lane_blocks = -(-lanes // lane_block)
    row_taps = row_taps_met(problem)
    rows = max(1, rows_met(problem)[0])
    tasks, few = (16 * threads, 4 * threads) if threads > 1 else (1, 1)
    pixel = (lane_block // problem.co if each else lane_block) * problem.ci  # (others gather those of each lane)
    block = min(_INPUTS // (pixel * row_taps), _OUTPUTS // (channels * s))
    block = max(8, min(block, -(-js * rows * lane_blocks // few)))
    block = max(1, min(-(-block // 8) * 8, js))
    blocks = -(-js // block)
    block = min(-(-js // (8 * blocks)) * 8, js)
    blocks = -(-js // block)
    rows = max(1, min(rows, rows * blocks * lane_blocks // tasks))
    return Cut(lanes, lane_block, lane_blocks, block, blocks, rows, row_taps)


def rows_met(problem):
    """Output rows of the batch; the average number of input rows that reach one, and of those that did not reach the one
    before, along the last axis but one."""
    meet, new = 1.0, 1.0
    for ax, (size, out) in enumerate(zip(problem.in_sizes[:-1], problem.out_sizes, strict=False)):
        new = meet * min(1.0, size / max(out, 1))
        meet *= pairs_met(problem, ax) / max(out, 1)
    return problem.batch * math.prod(problem.out_sizes[:-1]), meet, new


def pairs_met(problem, ax):
    """How many pairs of an input and a tap meet in the window along an axis."""
    s, d, size, out = problem.strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.out_sizes[ax]
    k = problem.kernel[ax]
    if k > common.MANY_CLASSES:  # too many to count one by one
        return k * size
    firsts = (t * d - problem.begin[ax] for t in range(k))  # where each tap's first input goes
    return sum(max(0, min(size, (out - 1 - first) // s + 1) - max(0, -(first // s))) for first in firsts)
