"""How rows computes a problem: which outputs a micro-kernel computes at a time, what a task is. All is decided here.

An operator has one form of packed weights, ``()``.
"""

import functools
import math
from typing import NamedTuple

from ..._problem import ITEMSIZE, Problem
from .. import common, execution, workspace
from .cost import cost, interleaving
from .loops import MOST_PHASES

LIMIT = "it wants channels as planes (NCX), and a tap in each phase of the last axis"
_MOST_TABLE = 1 << 22  # entries of the tables of weights
_PIXELS = 2048  # values of j of a task, at most
_INPUTS = 1 << 19  # bytes of packed input rows: they stay in L2
_NEAR = 24 << 10  # bytes of a channel block's outputs on their way to the store: they stay in L1
_TASK_BYTES = 1 << 16  # of outputs, about
_TASKS = 8  # of a thread, at least
_SHOWS = 0.9  # of the time of tasks as they come: others have to take less


class Block(NamedTuple):
    """Phases of the last axis that a micro-kernel computes at a time, of some out-channels: they read the same inputs."""

    residues: tuple
    taps: tuple  # the first one of each phase; the others follow at distances of the stride
    terms: int  # taps of a phase
    offset: int  # j less the input that its first tap reads


class Schedule(NamedTuple):
    problem: Problem
    unit: str
    threads: int
    form: tuple  # ()
    phases: tuple  # a `Block` each
    channel_blocks: int  # parts of the out-channels, which are even
    # a task
    js: int  # values of j along an output row
    j0: int
    block: int  # those of a task
    blocks: int
    rows: int
    row_taps: int  # input rows that meet in one of outputs, at most
    #
    pitch: int  # elements from one packed input row to the next
    stream: bool  # outputs are written by non-temporal stores
    pinned: bool  # a thread runs the same tasks at every call
    alternate: bool  # calls run their tasks forwards and backwards in turns
    workspace: workspace.Workspace


def takes(problem):
    """Whether rows does a problem."""
    s, d, k = problem.strides[-1], problem.dilations[-1], problem.kernel[-1]
    if not problem.planar or s > min(k, MOST_PHASES) or math.gcd(s, d) > 1 or not problem.ci * math.prod(problem.out_shape):
        return False
    return math.prod(problem.kernel) * problem.co <= _MOST_TABLE and max(d, abs(problem.begin[-1])) < 2**31


@functools.lru_cache(maxsize=256)
def phase_blocks(k, s, d, most):
    """The `Block`s of an out-channel, of at most so many phases."""
    groups = {}
    for tap in range(s):
        offset, residue = divmod(d * tap, s)
        groups.setdefault((offset, -(-(k - tap) // s)), []).append((residue, tap))
    found = []
    for (offset, terms), phases in groups.items():
        phases.sort()
        parts = -(-len(phases) // most)  # more than one only where a channel block is a channel
        for part in range(parts):
            some = phases[len(phases) * part // parts : len(phases) * (part + 1) // parts]
            found.append(Block(*zip(*some, strict=True), terms, offset))
    return tuple(found)


def channel_blocks(co, phases, most):
    """How many parts the out-channels fall into: a micro-kernel takes ``most`` outputs of a channel block and its phases."""
    return -(-co // max(1, most // max([len(block.residues) for block in phases])))


def bounds(co, count):
    """Where channel blocks start and end."""
    return [co * n // count for n in range(count + 1)]


def schedule(problem, here, unit, threads, finite):
    """The `Schedule` of a problem; None where rows does not do it, and for weights that are not finite, which must not meet the
    zeros beside a row."""
    if not finite or not takes(problem):
        return None
    found, limit = _schedule(problem, here, unit, threads), here.limits.single_thread_cycles
    if threads > 1 and problem.flops < 64 * limit and cost(found, here) < limit:  # too little work for a second thread
        return _schedule(problem, here, unit, 1)
    return found


def _schedule(problem, here, unit, threads):
    dtype, batch, groups, ci, co, _, kernel, strides, dilations, begin, out_sizes = problem[:11]
    info, item, limits = here.info(dtype), ITEMSIZE[dtype], here.limits
    vl, t_size, most = info.vl, info.t_size, info.mr[2]
    s, k, d, out, rank = strides[-1], kernel[-1], dilations[-1], out_sizes[-1], len(kernel)
    phases = phase_blocks(k, s, d, most)
    parts = channel_blocks(co, phases, most)
    j0 = begin[-1] // s
    js = max(1, -(-(begin[-1] + out) // s) - j0)
    # Outputs of a channel block with all phases stay in L1, but each block of pixels reads its edges again.
    channels = -(-co // parts)
    near = max(4 * vl, _NEAR // (channels * s * t_size))
    met = math.prod([-(-n // step) for n, step in zip(kernel[:-1], strides, strict=False)])  # input rows of an output row
    count = -(-js // max(4 * vl, min(_PIXELS, near, _INPUTS // (ci * met * t_size))))
    rows = batch * math.prod(out_sizes[:-1])
    count = max(count, min(-(-_TASKS * threads // (rows * groups)), js // (8 * vl)))
    block = -(-js // (count * vl)) * vl
    blocks = -(-js // block)
    tasks = blocks * groups
    each = max(1, min(_TASK_BYTES // max(block * s * co * item, 1), rows * tasks // (_TASKS * threads)))
    if rank > 1:  # rows of a task read each input row once: at least as many as share one
        each = max(each, min(max(1, strides[-2] * 4), rows * tasks // (2 * threads)))
    each = _evened(max(1, min(each, rows)), rows, tasks, threads)

    row_taps = math.prod([common.taps_met(problem, ax) for ax in range(rank - 1)])
    # Vectors are read and written as a whole; rows that are packed start in different sets of L1.
    pixels = info.padded(block)
    pitch = info.padded(pixels + d * (k - 1) // s)
    pitch += vl if pitch // vl % 2 == 0 else 0
    pinned = problem.flops < limits.pinned_flops
    return Schedule(
        problem, unit, threads, (), phases, parts, js, j0, block, blocks, each, row_taps, pitch,
        execution.outgrows(problem, limits.non_temporal), pinned,
        pinned and math.prod(kernel) * groups * ci * co * t_size > limits.far,
        workspace.book(
            kept=16 * (row_taps + 1),  # which input rows are packed
            taps=16 * (row_taps + 1),  # offset and tap of each input row
            sources=8 * (row_taps + 1) * ci,
            weights=8 * (row_taps + 1) * ci,
            made=channels * s * (pixels + vl) * t_size,  # phases of a channel block, before they are interleaved
            inputs=row_taps * -(-ci * pitch * t_size // 64) * 64,
        ),
    )  # fmt: skip


def _evened(each, rows, tasks, threads):
    """About ``each`` rows of a task, but so that threads have as many tasks each, where more than two would wait for those with
    one more; there are ``tasks`` of the same rows."""
    if threads <= 2:
        return each

    def slowest(each):
        return -(-(-(-rows // each) * tasks) // threads) * each

    low, high = max(1, each * 3 // 4), each * 5 // 4 + 1
    best = min(range(low, high, 1 + (high - low) // 32), key=slowest)
    return best if slowest(best) < _SHOWS * slowest(each) else each


def least(problem, here, unit):
    """Cycles that no schedule is below: those of its multiply-adds and of interleaving."""
    if not takes(problem):
        return math.inf
    info, part, s = here.info(problem.dtype), here.profile["rows"], problem.strides[-1]
    rows, meet, _ = common.rows_met(problem)
    vectors = rows * problem.groups * problem.co * problem.out_sizes[-1] / s / info.vl  # of a phase
    fmas = vectors * meet * problem.ci * problem.kernel[-1]
    return fmas / 2 * part["rows_cycle"] + vectors * s * part[interleaving(problem, info)]
