"""The schedule stage of rows: output blocks, tasks and the workspace.

`schedule` decides from a problem and a machine. cost.py, bind.py and the loops read its decisions. `phase_blocks` and
`channel_blocks` depend on the operator alone, because weights are packed before sizes are known. There is one form of packed
weights, ``()``.
"""

import math
from typing import NamedTuple

from ..._base.problem import ITEMSIZE, Problem
from ..._run import execution, workspace
from .. import common
from ..caches import remembered
from .loops import MOST_PHASES

LIMIT = "NCX data with a tap in each phase of the last axis"
_MOST_TABLE = 1 << 22  # the most entries of the tables of weights
_PIXELS = 2048  # the most j of a task
_INPUTS = 1 << 19  # the most bytes of packed input rows, so that they stay in L2
_PHASE_BYTES = 24 << 10  # the most bytes of the outputs of a channel block before they are interleaved, so that they stay in L1
_TASK_BYTES = 1 << 16  # bytes of the outputs of a task, about
_TASKS = 8  # the fewest tasks of a thread, if rows are enough
_GAIN_RATIO = 0.9  # another number of rows is taken only if the slowest thread then takes less than this fraction of its time


class Block(NamedTuple):
    """Phases of the last axis that a micro-kernel computes together for some out-channels, because they read the same
    inputs."""

    residues: tuple  # the residue of each phase
    taps: tuple  # the first tap of each phase; its other taps follow at distances of the stride
    terms: int  # the number of taps of a phase
    offset: int  # j minus the input index that the first tap reads


class Schedule(NamedTuple):
    """The decisions about a problem. See stages.py for the fields of all schedules."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # ()
    phases: tuple  # the `Block`s
    channel_blocks: int  # number of equal parts of the out-channels of a channel group
    # a task
    js: int  # the number of j of an output row
    j0: int  # the first j
    block: int  # the number of j of a task
    blocks: int  # the number of blocks of j in a row
    rows: int  # the output rows of a task
    row_taps: int  # the most input rows that reach an output row
    # memory
    pitch: int  # elements between packed input rows
    stream: bool  # non-temporal stores write the outputs
    execution: execution.Execution
    workspace: workspace.Workspace


def takes(problem):
    """Check whether rows accepts a problem."""
    s, d, k = problem.strides[-1], problem.dilations[-1], problem.kernel[-1]
    if not problem.planar or s > min(k, MOST_PHASES) or math.gcd(s, d) > 1 or not problem.ci * math.prod(problem.out_shape):
        return False
    return math.prod(problem.kernel) * problem.co <= _MOST_TABLE and max(d, abs(problem.begin[-1])) < 2**31


@remembered(256)
def phase_blocks(k, s, d, most):
    """Return the `Block`s of an out-channel. A block has at most ``most`` phases."""
    groups = {}
    for tap in range(s):
        offset, residue = divmod(d * tap, s)
        groups.setdefault((offset, -(-(k - tap) // s)), []).append((residue, tap))
    found = []
    for (offset, terms), phases in groups.items():
        phases.sort()
        parts = -(-len(phases) // most)  # more than one only if a channel block is one channel
        for part in range(parts):
            some = phases[len(phases) * part // parts : len(phases) * (part + 1) // parts]
            found.append(Block(*zip(*some, strict=True), terms, offset))
    return tuple(found)


def channel_blocks(co, phases, most):
    """Return the number of channel blocks. A micro-kernel computes at most ``most`` outputs: channels times phases of a
    block."""
    return -(-co // max(1, most // max([len(block.residues) for block in phases])))


def schedule(problem, here, unit, threads, finite):
    """Return the `Schedule` of a problem, or None if rows does not accept it.

    Weights that are not finite are not accepted, because the zeros at the ends of rows would be multiplied by them.
    """
    if not finite or not takes(problem):
        return None
    dtype, batch, groups, ci, co, _, kernel, strides, dilations, begin, out_sizes = problem[:11]
    info, item = here.info(dtype), ITEMSIZE[dtype]
    vl, t_size, most = info.vl, info.t_size, info.mr[2]
    s, k, d, out, rank = strides[-1], kernel[-1], dilations[-1], out_sizes[-1], len(kernel)
    phases = phase_blocks(k, s, d, most)
    parts = channel_blocks(co, phases, most)
    j0 = begin[-1] // s
    js = max(1, -(-(begin[-1] + out) // s) - j0)
    # Blocks of j are so small that the outputs of a channel block stay in L1, but not smaller, because each reads its edges
    # again.
    channels = -(-co // parts)
    most_js = max(4 * vl, _PHASE_BYTES // (channels * s * t_size))
    # input rows that reach an output row
    input_rows = math.prod([-(-n // step) for n, step in zip(kernel[:-1], strides, strict=False)])
    count = -(-js // max(4 * vl, min(_PIXELS, most_js, _INPUTS // (ci * input_rows * t_size))))
    rows = batch * math.prod(out_sizes[:-1])
    count = max(count, min(-(-_TASKS * threads // (rows * groups)), js // (8 * vl)))
    block = -(-js // (count * vl)) * vl
    blocks = -(-js // block)
    tasks = blocks * groups
    task_rows = max(1, min(_TASK_BYTES // max(block * s * co * item, 1), rows * tasks // (_TASKS * threads)))
    if rank > 1:  # a task reads each input row once, so it has at least the output rows that share an input row
        task_rows = max(task_rows, min(max(1, strides[-2] * 4), rows * tasks // (2 * threads)))
    task_rows = _balanced_rows(max(1, min(task_rows, rows)), rows, tasks, threads)

    row_taps = math.prod([common.most_taps_of_output(problem, ax) for ax in range(rank - 1)])
    # Rows have room for whole vectors. The pitch is an odd number of vectors, so that packed rows start in different sets of
    # L1.
    pixels = info.padded(block)
    pitch = info.padded(pixels + d * (k - 1) // s)
    pitch += vl if pitch // vl % 2 == 0 else 0
    weight_bytes = math.prod(kernel) * groups * ci * co * t_size
    stream = execution.outgrows(problem, here.limits.non_temporal)
    return Schedule(
        problem, unit, threads, (), phases, parts, js, j0, block, blocks, task_rows, row_taps, pitch,
        stream,
        execution.decide(problem, here, info, threads, weight_bytes),
        workspace.book(
            kept=16 * (row_taps + 1),  # the input rows in "inputs"
            taps=16 * (row_taps + 1),  # the offset and the tap of each input row
            sources=8 * (row_taps + 1) * ci,  # pointers to input rows
            weights=8 * (row_taps + 1) * ci,  # pointers to their weights
            phase_rows=channels * s * (pixels + vl) * t_size,  # the phases of a channel block before they are interleaved
            stage=s * block * item + 64 if stream else 0,  # a row of outputs before non-temporal stores
            inputs=row_taps * -(-ci * pitch * t_size // 64) * 64,  # packed input rows
        ),
    )  # fmt: skip


def _balanced_rows(task_rows, rows, tasks, threads):
    """Return the rows of a task, about ``task_rows``, with which more than two threads have equal numbers of tasks.

    ``tasks`` is the number of tasks of the same rows.
    """
    if threads <= 2:
        return task_rows

    def slowest(task_rows):
        """Return the rows, of all tasks, of the thread with the most tasks."""
        return -(-(-(-rows // task_rows) * tasks) // threads) * task_rows

    low, high = max(1, task_rows * 3 // 4), task_rows * 5 // 4 + 1
    best = min(range(low, high, 1 + (high - low) // 32), key=slowest)
    return best if slowest(best) < _GAIN_RATIO * slowest(task_rows) else task_rows


def least(problem, here, unit):
    """Return a lower bound of the cycles: those of the multiply-adds and of interleaving."""
    if not takes(problem):
        return math.inf
    info, part, s = here.info(problem.dtype), here.profile["rows"], problem.strides[-1]
    rows, input_rows, _ = common.input_row_counts(problem)
    vectors = rows * problem.groups * problem.co * problem.out_sizes[-1] / s / info.vl  # vectors of a phase
    fmas = vectors * input_rows * problem.ci * problem.kernel[-1]
    return fmas / 2 * part["rows_cycle"] + vectors * s * part[common.interleaving(s, info)]
