"""Functions that algorithms share: axes as phases and runs, counts of the cost model, tables of taps."""

import heapq
import itertools
import math
from typing import NamedTuple

import numpy as np

from .._base.problem import ITEMSIZE
from .._model import costs, machine
from .._run import execution, memory
from . import phases as _phases
from .caches import remembered
from .tiles import tile_counts  # noqa: F401

MAX_PARTIAL = 1 << 20  # bytes of partial sums that a task may keep between depth chunks

_KEPT_OUTPUT = 28 << 20  # bytes of output that the last-level cache still holds when their cache lines are written again

BALANCED_TASKS = 64  # with more tasks than this the threads are assumed to be balanced

# Above this many classes the tables cost more than a good choice could save.
MANY_CLASSES = 4096


class Division(NamedTuple):
    """A division of a class into tasks, in one channel group."""

    block: int  # rows of a task; tiles of `winograd`
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    span: int  # depth chunks that are packed, or transformed, at once
    cycles: float  # cycles of a task
    point_major: bool = False  # `winograd` multiplies a point for all panels before the next point, not a panel for all points

    @property
    def tasks(self):
        """Return the number of tasks."""
        return self.blocks * self.panel_blocks

    @property
    def total(self):
        """Return the cycles of all tasks."""
        return self.cycles * self.tasks


def axes(problem, merge, split):
    """Return the phase groups and the runs of the axes, one list each."""
    axes = _phases.axes_of(problem)
    return (
        [axis.groups(m) for axis, m in zip(axes, merge, strict=True)],
        [axis.runs(m, cut) for axis, m, cut in zip(axes, merge, split, strict=True)],
    )


def taps_of_outputs(problem, ax):
    """Return for each output of an axis the (tap, input index) pairs that reach it."""
    axis = _phases.axes_of(problem)[ax]
    found = [[] for _ in range(axis.out)]
    for tap in range(axis.k):
        low, high, out = axis.reach(tap)
        for i in range(low, high):
            found[out + (i - low) * axis.s].append((tap, i))
    return found


@remembered(1024)
def tap_pair_count(k, s, d, size, begin, out):
    """Return the number of pairs of an input and a tap whose position is in the window, along an axis."""
    if k > MANY_CLASSES:  # too many to count one by one
        return k * size
    if k <= 16:
        reach = map(_phases.Axis(k, s, d, size, begin, out).reach, range(k))
        return sum([max(0, high - low) for low, high, _ in reach])
    firsts = np.arange(k) * float(d) - begin
    met = np.minimum(size, (out - 1 - firsts) // s + 1) - np.maximum(0, -(firsts // s))
    return int(np.maximum(0, met).sum())


def most_taps_of_output(problem, ax):
    """Return an upper bound of the inputs that an output sums along an axis."""
    s, d = problem.strides[ax], problem.dilations[ax]
    return max(1, min(-(-problem.kernel[ax] * math.gcd(s, d) // s), problem.in_sizes[ax]))


def input_row_counts(problem):
    """Return (output rows of the batch, mean number of input rows that reach an output row, mean number of those that did not
    reach the output row before it along the second-last axis)."""
    rows, reaching, new = problem.batch, 1.0, 1.0
    for axis in _phases.axes_of(problem)[:-1]:
        out = max(axis.out, 1)
        new = reaching * min(1.0, axis.size / out)
        reaching *= tap_pair_count(*axis) / out
        rows *= axis.out
    return rows, reaching, new


def weight_counts(bytes, total, refetched=0, here=None):
    """Return the counts of reading ``bytes`` of panels, of ``total`` bytes of weights.

    ``refetched`` bytes of other data are fetched with them, because L2 does not hold them any more.
    """
    here = here or machine.current()
    fetched = uncached_fraction(total, here.l2) * bytes + refetched
    return {"weight_byte": bytes, "weight_byte_l3": fetched, "in_byte_l3": fetched}


def uncached_fraction(bytes, cache_bytes=None):
    """Return the fraction of ``bytes`` that a cache of ``cache_bytes`` bytes (by default L2) does not hold."""
    cache_bytes = machine.current().l2 if cache_bytes is None else cache_bytes
    return 1 - cache_bytes / bytes if bytes > cache_bytes else 0.0


def memory_counts(problem, non_temporal=False, here=None):
    """Return the counts of inputs and outputs outside L2: bytes, and cache lines that several channel groups touch in turn."""
    here = here or machine.current()
    item, found = ITEMSIZE[problem.dtype], {"line": 0.0}
    written = "out_byte_non_temporal" if non_temporal else "out_byte_l3"
    last = uncached_fraction(execution.data_bytes(problem) + execution.output_bytes(problem), here.last_bytes)
    for sizes, channels, byte, beyond in (
        (problem.in_sizes, problem.ci, "in_byte_l3", "in_byte_memory"),
        (problem.out_sizes, problem.co, written, "out_byte_memory"),
    ):
        places = problem.batch * math.prod(sizes) * problem.groups
        bytes = places * channels * item
        share = uncached_fraction(bytes, here.l2)
        found[byte] = share * bytes
        found["line"] += share * places * (-(-channels * item // 64) if problem.groups > 1 else 0)
        if byte != "out_byte_non_temporal":
            found[beyond] = last * bytes
    return found


def plane_counts(problem, non_temporal, here):
    """Return the bytes of NCX inputs and outputs outside L2. Inputs come in cache lines of many planes at once."""
    inputs, outputs = execution.data_bytes(problem), execution.output_bytes(problem)
    return {
        "plane_in_byte": max(0, inputs - here.l2),
        "out_byte_non_temporal" if non_temporal else "out_byte_l3": max(0, outputs - here.l2),
    }


def split_bytes(problem):
    """Return the bytes of output in cache lines that several panels write, and that caches evict between two panels."""
    bytes = math.prod(problem.out_shape) * ITEMSIZE[problem.dtype]
    return uncached_fraction(bytes, _KEPT_OUTPUT) * bytes if splits_lines(problem) else 0.0


def fill_counts(problem, here=None):
    """Return the counts of filling the output beforehand, if there are phases that no tap reaches."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, strict=True)
    if all(min(k, s // math.gcd(s, d)) == s for k, s, d in axes):
        return {}
    bytes = math.prod(problem.out_shape) * ITEMSIZE[problem.dtype]
    return {"task": 1, "out_byte_l2": bytes, "out_byte_l3": uncached_fraction(bytes, (here or machine.current()).l2) * bytes}


def interleaving(rows, unit):
    """Return the name of the count of interleaving vectors of ``rows`` rows, for each vector of outputs."""
    if rows <= 8 and (unit.vl * unit.t_size >= 32 or rows & (rows - 1) == 0):  # CAN_ZIP in body_interleave.h
        return "zip"
    return "gather" if rows <= 16 and unit.t_size == unit.s_size else "single"


def splits_lines(problem):
    """Check whether pixels of an NXC output may start inside a cache line."""
    return problem.groups * problem.co * ITEMSIZE[problem.dtype] % 64 > 0


def stores_non_temporally(problem, limit, here=None):
    """Check whether a contiguous output is written with non-temporal stores: larger than ``limit``, and aligned to vectors."""
    if not execution.outgrows(problem, limit):
        return False
    unit = (here or machine.current()).info(problem.dtype)
    return execution.vector_alignment(unit, execution.contiguous_strides(problem)) > 0


def product_price(info, prices):
    """Return the cycles of a multiply-add at the peak rate of a unit, for lower bounds. ``prices`` are costs.Costs."""
    if info.matrix:
        return prices["amx_product"] * info.products / (info.m_step * info.vl * info.kstep)
    return prices["tile_cycle" if info.kstep == 1 else "dot_cycle"] / (costs.FMA_PORTS * info.vl * info.kstep)


def filter_bytes(problem, info, columns=0):
    """Return the bytes of the weights that the window shows, in panels padded from ``columns`` columns (0: not padded)."""
    taps = math.prod(map(min, problem.kernel, problem.out_sizes))
    total = taps * problem.groups * problem.ci * problem.co * info.e_size
    return total * info.padded(columns) / columns if columns else total


def packing_cycles(bytes, again_bytes, here):
    """Return the cycles to pack ``bytes`` of weights beforehand, including the write-back of fresh panels while they are used.

    Weights larger than the memory that is kept between calls go to new memory, which costs more. If tasks pack on the fly,
    return the cycles to pack ``again_bytes`` bytes, the repeated packing of all row blocks.
    """
    prices = here.profile["packing"]
    if execution.packs_on_the_fly(here, bytes, again_bytes):
        return prices["on_the_fly_byte"] * again_bytes
    return prices["packed_byte_new" if bytes > memory.CACHED_WEIGHT_BYTES else "packed_byte"] * bytes


def reordering_cycles(problem, here):
    """Return the cycles to reorder a filter whose taps are contiguous, before it is packed (reorder.pyx)."""
    if math.prod(problem.kernel) == 1:
        return 0.0
    return packing_cycles(filter_bytes(problem, here.info(problem.dtype)), math.inf, here)


def cycles_with_idle_thread(tasks, threads, here):
    """Return the cycles of tasks, pairs (total cycles, number), including an idle thread at the end.

    ``threads`` is that of the schedule. If it is not 1, the result is for two threads, because the choice of an algorithm must
    not depend on the number of threads.
    """
    if threads == 1 or not has_few_tasks(tasks, here):
        return sum([work for work, _ in tasks])
    return 2 * makespan(sorted([(work / count, count) for work, count in tasks if count], reverse=True), 2)


def has_few_tasks(tasks, here):
    """Check whether tasks, pairs (total cycles, number), are so few that threads wait for the last one.

    Tasks that are too little work for a second thread are not, because they run on one.
    """
    cycles, count = [sum(column) for column in zip(*tasks, strict=True)] if tasks else (0, 0)
    return count <= BALANCED_TASKS and cycles >= here.limits.single_thread_cycles


def makespan(tasks, threads):
    """Return when the last thread is done with tasks, (cycles, number) each. The first free thread takes the next task."""
    if threads == 1:
        return sum([work * count for work, count in tasks])
    busy = [0.0] * threads  # a heap
    for work, count in tasks:
        while count:
            if count >= threads and max(busy) - busy[0] <= work:  # each thread takes one before any thread takes a second one
                rounds, count = divmod(count, threads)
                busy = [each + rounds * work for each in busy]
            else:
                heapq.heapreplace(busy, busy[0] + work)
                count -= 1
    return max(busy)


def pack_classes(attributes, merge):
    """Return for each choice of one phase group per axis of ``merge`` its taps, [phase][tap] flat kernel indices."""
    groups = [
        _phases.phase_groups(k, s, d, m)
        for k, s, d, m in zip(attributes.kernel, attributes.strides, attributes.dilations, merge, strict=False)
    ]
    return [taps_table(combo, attributes.kernel) for combo in itertools.product(*groups)]


def nested(groups):
    """Check whether some phase lacks taps of its group."""
    return any(-1 in taps for group in groups for taps in group.taps)


def pack_index(groups):
    """Return the index in `pack_classes` of each choice of phase groups, a dict from tuples of group numbers."""
    return {combo: n for n, combo in enumerate(itertools.product(*(range(len(g)) for g in groups)))}


def taps_table(combo, kernel):
    """Return the [phase][tap] flat kernel indices of a choice of phase groups, -1 for a missing tap."""
    table = np.zeros((1, 1), np.int64)
    for group, k in zip(combo, kernel, strict=False):
        taps = np.asarray(group.taps, np.int64)  # [phase][tap] of this axis
        before, taps = table[:, None, :, None], taps[None, :, None, :]
        table = np.where((before < 0) | (taps < 0), -1, before * k + taps)  # the last axis varies fastest
        table = table.reshape(table.shape[0] * table.shape[1], -1)
    return table
