"""What algorithms share: axes cut into phases and runs, the cost of tiles, tables of taps and of outputs."""

import functools
import heapq
import itertools
import math

import numpy as np

from .. import _memory
from .._problem import ITEMSIZE
from . import execution, machine
from . import phases as _phases
from .tiles import tile_counts  # noqa: F401

MAX_PARTIAL = 1 << 20  # bytes of partial sums that a task may keep between depth chunks

_KEPT_OUTPUT = 28 << 20  # bytes of an output that the last level still has when its lines are written again

EVEN = 64  # so many tasks of a thread even out anyhow

# Above this many classes the tables outweigh what choosing well could save.
MANY_CLASSES = 4096


def axes(problem, merge, split):
    """The phase groups and the runs of the first axes, as many as ``merge`` speaks of."""
    groups, classes = [], []
    for ax, (m, cut) in enumerate(zip(merge, split, strict=True)):
        found = _phases.axis(
            problem.kernel[ax], problem.strides[ax], problem.dilations[ax], m, problem.in_sizes[ax], problem.begin[ax],
            problem.out_sizes[ax], cut,
        )  # fmt: skip
        groups.append(found[0])
        classes.append(found[1])
    return groups, classes


def reaching(problem, ax):
    """For each output of an axis, the (tap, input index) pairs that reach it."""
    s, d, size, out = problem.strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.out_sizes[ax]
    axis = [[] for _ in range(out)]
    for t in range(problem.kernel[ax]):
        first = t * d - problem.begin[ax]
        for i in range(max(0, -(first // s)), min(size, (out - 1 - first) // s + 1)):
            axis[first + i * s].append((t, i))
    return axis


@functools.lru_cache(maxsize=1024)
def pairs_met(k, s, d, size, begin, out):
    """How many pairs of an input and a tap meet in the window along an axis."""
    if k > MANY_CLASSES:  # too many to count one by one
        return k * size
    if k <= 16:
        firsts = [t * d - begin for t in range(k)]  # where each tap's first input goes
        return sum([max(0, min(size, (out - 1 - first) // s + 1) - max(0, -(first // s))) for first in firsts])
    firsts = np.arange(k) * float(d) - begin
    met = np.minimum(size, (out - 1 - firsts) // s + 1) - np.maximum(0, -(firsts // s))
    return int(np.maximum(0, met).sum())


def taps_met(problem, ax):
    """Inputs that meet in an output along an axis, at most."""
    s, d = problem.strides[ax], problem.dilations[ax]
    return max(1, min(-(-problem.kernel[ax] * math.gcd(s, d) // s), problem.in_sizes[ax]))


def rows_met(problem):
    """Output rows of the batch; the average number of input rows that reach one, and of those that did not reach the one
    before, along the last axis but one."""
    p, rows, meet, new = problem, problem.batch, 1.0, 1.0
    for ax in range(len(p.kernel) - 1):
        size, out = p.in_sizes[ax], max(p.out_sizes[ax], 1)
        new = meet * min(1.0, size / out)
        meet *= pairs_met(p.kernel[ax], p.strides[ax], p.dilations[ax], size, p.begin[ax], p.out_sizes[ax]) / out
        rows *= p.out_sizes[ax]
    return rows, meet, new


def weight_counts(bytes, total, again=0, here=None):
    """What reading so many ``bytes`` of panels takes, of ``total`` bytes in all; ``again`` bytes of other data are fetched with
    them, as L2 has lost them."""
    here = here or machine.current()
    fetched = far(total, here.l2) * bytes + again
    return {"weight_byte": bytes, "weight_byte_l3": fetched, "in_byte_l3": fetched}


def far(bytes, near=None):
    """The share of some data that a cache does not hold: one of ``near`` bytes, or L2."""
    near = machine.current().l2 if near is None else near
    return 1 - near / bytes if bytes > near else 0.0


def memory_counts(problem, non_temporal=False, here=None):
    """What inputs and outputs take that L2 does not hold: their bytes, and lines that a group comes back to after others."""
    here = here or machine.current()
    item, found = ITEMSIZE[problem.dtype], {"line": 0.0}
    written = "out_byte_non_temporal" if non_temporal else "out_byte_l3"
    last = far(execution.data_bytes(problem) + execution.output_bytes(problem), here.last_bytes)
    for sizes, channels, byte, beyond in (
        (problem.in_sizes, problem.ci, "in_byte_l3", "in_byte_memory"),
        (problem.out_sizes, problem.co, written, "out_byte_memory"),
    ):
        places = problem.batch * math.prod(sizes) * problem.groups
        bytes = places * channels * item
        share = far(bytes, here.l2)
        found[byte] = share * bytes
        found["line"] += share * places * (-(-channels * item // 64) if problem.groups > 1 else 0)
        if byte != "out_byte_non_temporal":
            found[beyond] = last * bytes
    return found


def plane_counts(problem, non_temporal, here):
    """Bytes of inputs and outputs in planes (NCX) that L2 does not hold. Inputs come in lines of many planes at once."""
    inputs, outputs = execution.data_bytes(problem), execution.output_bytes(problem)
    return {
        "plane_in_byte": max(0, inputs - here.l2),
        "out_byte_non_temporal" if non_temporal else "out_byte_l3": max(0, outputs - here.l2),
    }


def split_bytes(problem):
    """Bytes of an output whose cache lines are shared by panels that are stored one long after the other, of which the caches
    have lost some meanwhile."""
    bytes = math.prod(problem.out_shape) * ITEMSIZE[problem.dtype]
    return far(bytes, _KEPT_OUTPUT) * bytes if splits_lines(problem) else 0.0


def threads(cycles, available, here=None):
    """How many threads a call of so many cycles has, where so many are available."""
    return 1 if cycles < (here or machine.current()).limits.single_thread_cycles else available


def fill_counts(problem, here=None):
    """What filling the output beforehand takes, where there are phases that no tap reaches."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, strict=True)
    if all(min(k, s // math.gcd(s, d)) == s for k, s, d in axes):
        return {}
    bytes = math.prod(problem.out_shape) * ITEMSIZE[problem.dtype]
    return {"task": 1, "out_byte_l2": bytes, "out_byte_l3": far(bytes, (here or machine.current()).l2) * bytes}


def splits_lines(problem):
    """Whether pixels of an output in NXC start anywhere in a cache line."""
    return problem.groups * problem.co * ITEMSIZE[problem.dtype] % 64 > 0


def streams(problem, limit, here=None):
    """Whether a contiguous output is written by non-temporal stores, where outputs of more bytes than a limit are."""
    if not execution.outgrows(problem, limit):
        return False
    unit = (here or machine.current()).info(problem.dtype)
    return execution.vector_alignment(unit, execution.contiguous_strides(problem)) > 0


def filter_bytes(problem, info, columns=0):
    """Bytes of the weights that the window shows, in panels of so many columns in all."""
    taps = math.prod(map(min, problem.kernel, problem.out_sizes))
    total = taps * problem.groups * problem.ci * problem.co * info.e_size
    return total * info.padded(columns) / columns if columns else total


def packing_cycles(bytes, info, on_the_fly=math.inf, here=None):
    """Cycles to pack so many bytes of weights beforehand and to multiply what was only just packed: the caches write it back
    meanwhile. More than is kept from call to call is new memory. Or to pack so many ``on_the_fly``, where tasks do so."""
    here = here or machine.current()
    prices = here.profile["packing"]
    if execution.packs_on_the_fly(here, bytes, on_the_fly):
        return prices["on_the_fly_byte"] * on_the_fly
    return prices["packed_byte_new" if bytes > _memory.CACHED_WEIGHT_BYTES else "packed_byte"] * bytes


def reordering_cycles(problem, here):
    """Cycles to put a filter whose taps are side by side in the order in which it is packed (reorder.pyx)."""
    if math.prod(problem.kernel) == 1:
        return 0.0
    return packing_cycles(filter_bytes(problem, here.info(problem.dtype)), None, here=here)


def shared(tasks, here=None):
    """Cycles of tasks, (cycles in all, how many), and of a thread that has none left. Of two threads: which algorithm is
    chosen must not depend on how many there are."""
    if not few(tasks, here):
        return sum(work for work, _ in tasks)
    return 2 * makespan(sorted(((work / count, count) for work, count in tasks if count), reverse=True), 2)


def shared_alike(cycles, tasks, threads):
    """`shared` of so many tasks that are all alike, of a schedule for so many threads."""
    if threads == 1 or tasks == 0 or tasks > EVEN:
        return cycles
    return cycles * (2 * -(-tasks // 2) / tasks)


def few(tasks, here=None):
    """Whether tasks, (cycles in all, how many), are so few that threads wait for the last one."""
    cycles, count = (sum(column) for column in zip(*tasks, strict=True)) if tasks else (0, 0)
    return count <= EVEN and cycles >= (here or machine.current()).limits.single_thread_cycles


def makespan(tasks, threads):
    """When the last thread is done with tasks, (cycles, how many) each, taken in turn by the first that is free."""
    if threads == 1:
        return sum([work * count for work, count in tasks])
    busy = [0.0] * threads  # a heap
    for work, count in tasks:
        while count:
            if count >= threads and max(busy) - busy[0] <= work:  # then each thread takes one before any takes a second
                rounds, count = divmod(count, threads)
                busy = [each + rounds * work for each in busy]
            else:
                heapq.heapreplace(busy, busy[0] + work)
                count -= 1
    return max(busy)


def pack_classes(attributes, merge):
    """For each choice of one phase group per axis that ``merge`` speaks of: its taps, [phase][tap] flat kernel indices."""
    groups = [
        _phases.phase_groups(k, s, d, m)
        for k, s, d, m in zip(attributes.kernel, attributes.strides, attributes.dilations, merge, strict=False)
    ]
    return [taps_table(combo, attributes.kernel) for combo in itertools.product(*groups)]


def nested(groups):
    """Whether there is a phase that has not all the taps of its group."""
    return any(-1 in taps for group in groups for taps in group.taps)


def pack_index(groups):
    """The place in `pack_classes` of each choice of groups, as a tuple of their numbers."""
    return {combo: n for n, combo in enumerate(itertools.product(*(range(len(g)) for g in groups)))}


def taps_table(combo, kernel):
    """[phase][tap] flat kernel indices of a choice of phase groups, -1 for none."""
    table = np.zeros((1, 1), np.int64)
    for group, k in zip(combo, kernel, strict=False):
        taps = np.asarray(group.taps, np.int64)  # [phase][tap] of this axis
        before, taps = table[:, None, :, None], taps[None, :, None, :]
        table = np.where((before < 0) | (taps < 0), -1, before * k + taps)  # the last axis fastest
        table = table.reshape(table.shape[0] * table.shape[1], -1)
    return table
