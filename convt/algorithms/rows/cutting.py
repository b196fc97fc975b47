"""How a problem of rows is cut: outputs into blocks of a micro-kernel, rows and pixels into tasks."""

import itertools
import math
from typing import NamedTuple

import numpy as np

from ..._problem import ITEMSIZE
from .. import phases as _phases

_PIXELS = 2048  # values of j of a task, at most
_INPUTS = 1 << 19  # bytes of packed input rows: they stay in L2
_NEAR = 24 << 10  # bytes of a channel block's outputs on their way to the store: they stay in L1
_TASK_BYTES = 1 << 16  # of outputs, about
_TASKS = 8  # of a thread, at least
_SHOWS = 0.9  # of the time of tasks as they come: others have to take less


class Block(NamedTuple):
    """Outputs that a micro-kernel computes at a time, of phases that read the same inputs."""

    group: int  # number of their phase group
    channels: np.ndarray  # of each output
    phases: np.ndarray  # residue of each output
    taps: np.ndarray  # [output][shift]


def phase_groups(problem):
    """The phases of the last axis, as groups that read the same inputs."""
    return _phases.phase_groups(problem.kernel[-1], problem.strides[-1], problem.dilations[-1], True)


def channel_blocks(co, groups, most):
    """Out-channels in blocks: as many as a micro-kernel takes with all phases of the largest group, evened out."""
    each = max(1, most // max(len(g.residues) for g in groups))
    count = -(-co // each)
    return [co * n // count for n in range(count + 1)]


def blocks(co, groups, most):
    """The `Block`s of a problem with ``co`` out-channels, and how many of them each channel block has."""
    found, bounds = [], channel_blocks(co, groups, most)
    for first, end in itertools.pairwise(bounds):
        for n, group in enumerate(groups):
            parts = -(-len(group.residues) // most)  # more than one only where a channel block is a channel
            for part in range(parts):
                some = slice(len(group.residues) * part // parts, len(group.residues) * (part + 1) // parts)
                residues, taps = np.array(group.residues[some]), np.array(group.taps[some])
                channels = np.repeat(np.arange(first, end), len(residues))
                found.append(Block(n, channels, np.tile(residues, end - first), np.tile(taps, (end - first, 1))))
    return found, len(bounds) - 1


class Cut(NamedTuple):
    js: int  # values of j
    j0: int
    block: int  # of a task
    blocks: int
    rows: int  # output rows of a task


def cut_rows(problem, info, threads):
    """Pixels and rows of a task: enough tasks for the threads, and no more output than stays near."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    j0 = begin // s
    js = max(1, -(-(begin + out) // s) - j0)
    # Outputs of a channel block with all phases stay in L1, but each block of pixels reads its edges again.
    groups = phase_groups(problem)
    bounds = channel_blocks(problem.co, groups, info["mr"][2])
    channels = max(b - a for a, b in itertools.pairwise(bounds))
    near = max(4 * info["vl"], _NEAR // (channels * s * info["t_size"]))
    met = math.prod(-(-k // s) for k, s in zip(problem.kernel[:-1], problem.strides, strict=False))  # by an output row
    inputs = problem.ci * met * info["t_size"]
    most = max(4 * info["vl"], min(_PIXELS, near, _INPUTS // inputs))
    count = -(-js // most)
    rows = problem.batch * math.prod(problem.out_sizes[:-1])
    while count * rows * problem.groups < _TASKS * threads and js // (count + 1) >= 8 * info["vl"]:
        count += 1
    block = -(-js // (count * info["vl"])) * info["vl"]
    bytes = block * s * problem.co * ITEMSIZE[problem.dtype]
    tasks = -(-js // block) * problem.groups
    each = max(1, min(_TASK_BYTES // max(bytes, 1), rows * tasks // (_TASKS * threads)))
    # Rows of a task read each input row once: at least as many as share one.
    if problem.rank > 1:
        shared = max(1, problem.strides[-2] * 4)
        each = max(each, min(shared, rows * tasks // (2 * threads)))
    return Cut(js, j0, block, -(-js // block), _evened(max(1, min(each, rows)), rows, tasks, threads))


def _evened(each, rows, tasks, threads):
    """About ``each`` rows of a task, but so that threads have as many tasks each, where more than two would wait for those with
    one more; there are ``tasks`` of the same rows."""

    def slowest(each):
        blocks = -(-rows // each)
        return -(-blocks * tasks // threads) * each

    best = min(range(max(1, each * 3 // 4), each * 5 // 4 + 1), key=slowest)
    return best if threads > 2 and slowest(best) < _SHOWS * slowest(each) else each
