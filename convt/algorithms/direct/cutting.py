"""How a problem is cut: which phases are merged, where runs end, which rows and panels are a task."""

import functools
import itertools
import math
from typing import NamedTuple

from ... import _core
from .. import common, machine
from . import counts, reading

_L1_BYTES = 40 << 10  # beside a panel
# Bytes of L2 for depth chunks packed at once, for vectors and AMX: only one panel's partial sums wait between them.
_MAX_INPUT = 640 << 10, 1300 << 10
_SHARES = (4, 5, 6, 8, 10, 12)  # tasks of a thread, at least: few are cheaper, many even out
_FEW = (3, 2, 1)  # fewer, where that is so much cheaper that it shows: small problems, whose tasks would pack the same inputs
_SHOWS = 0.98


@functools.lru_cache(maxsize=256)
def choice(problem, finite, unit, here):
    """The cheapest way to cut: (cost, merge, groups, classes)."""
    info = here.info(problem.dtype, unit)
    best, tried = None, None
    for merge, split in _ways(problem, finite):
        groups, classes = common.axes(problem, merge, split)
        if classes == tried or (best is not None and math.prod(map(len, classes)) > common.MANY_CLASSES):
            continue
        tried = classes
        combos = combos_of(problem, classes)
        tasks, memory = [counts.class_cost(problem, combo, info) for combo in combos], counts.memory_cycles(problem, info)
        cycles = common.shared(tasks) + memory  # at least
        if best is not None and cycles >= best[0]:
            continue
        if common.few(tasks):
            cycles = 2 * splits(problem, combos, [1] * len(combos), cycles, info, 2)[0] + memory
        if best is None or cycles < best[0]:
            best = (cycles, merge, groups, classes)
    return best


def combos_of(problem, classes):
    """The classes that have outputs which taps reach: a run per axis each."""
    if problem.batch * problem.co == 0:
        return []
    return [combo for combo in itertools.product(*classes) if all(c.group >= 0 for c in combo)]


def _ways(problem, finite):
    """The ways to cut the axes: phases merged on no axis, the last, or all; runs whole, split at the borders, or also where
    the window ends for some phase. Or the one way that the problem's order says."""
    if problem.order is not None:
        yield problem.order.merge, problem.order.axes
        return
    rank = problem.rank
    merges = {(False,) * rank, (False,) * (rank - 1) + (True,), (True,) * rank}
    # A class per phase is too many where strides are large.
    phases = math.prod(min(s, o) for s, o in zip(problem.strides, problem.out_sizes, strict=True))
    for merge in sorted(merges, reverse=True):
        if phases > 256 and not all(merge):
            continue
        for split in (False, True) if finite else (True,):
            yield merge, (split,) * rank


class Split(NamedTuple):
    """How a class is cut into tasks."""

    block: int  # rows of a task
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    work: float  # cycles of a task


def splits(problem, combos, chunks, total, info, threads):
    """When the last thread is done, and a `Split` for each class: of a few ways to cut them all, the one that ends first."""
    best = None
    work = functools.cache(lambda n, rows, columns: counts.task_cycles(problem, combos[n], rows, columns, info))
    for share, height in itertools.product(_SHARES + _FEW, (reading.LEAST_ROWS, reading.most_rows(info))):
        target = total / (share * threads)
        found = [
            _split(problem, combo, chunks[n], target, height, info, threads, functools.partial(work, n))
            for n, combo in enumerate(combos)
        ]
        tasks = sorted(((s.work, problem.groups * s.blocks * s.panel_blocks) for s in found), reverse=True)
        if sum(count for _, count in tasks) > common.EVEN * threads:
            return best or (sum(work * count for work, count in tasks) / threads, found)
        end = common.makespan(tasks, threads)
        if best is None or end < best[0] * (_SHOWS if share in _FEW else 1):
            best = end, found
    return best


def _split(problem, combo, chunks, target, height, info, threads, work):
    """A class in tasks of about ``target`` cycles: blocks of rows, but of ``height`` rows at least,
    and of panels where that gives too few."""
    rows = problem.batch * math.prod(c.count for c in combo)
    width = problem.co * math.prod(len(c.first_out) for c in combo)
    npanels = -(-width // info["nr"])
    pieces = max(1, math.ceil(work(rows, width) / max(target, 1.0) - 0.01))  # not one more for a rounding error
    most = _task_rows(problem, combo, info)
    block = max(min(most, -(-rows // pieces)), min(rows, height, most))
    blocks = -(-rows // block)
    if blocks > threads:  # as many for each thread
        blocks = -(-blocks // threads) * threads
    tile = info["mr"][-1] if info["parts"] else 1  # AMX multiplies all rows of a tile, there or not
    block = -(-rows // (blocks * tile)) * tile
    blocks = -(-rows // block)
    panel_block = -(-npanels // max(1, min(npanels, pieces // blocks)))
    if chunks > chunks_at_once(block, info):
        panel_block = min(panel_block, max(1, common.MAX_PARTIAL // (block * info["nr"] * info["t_size"])))
    width = min(width, panel_block * info["nr"])
    return Split(block, blocks, panel_block, -(-npanels // panel_block), work(min(block, rows), width))


def _task_rows(problem, combo, info):
    """The most rows of a task: as many as stay in L1 with the lines of the output that they write, if those are enough; of
    little depth more, as they are soon done, and of a tap for few panels, as they are read once."""
    taps, columns = math.prod(len(c.first_in) for c in combo), problem.co * math.prod(len(c.first_out) for c in combo)
    depth = problem.ci * taps
    more = 4 if depth <= machine.current().limits.shallow_depth else 1
    if taps == 1 and columns <= 2 * info["nr"]:
        more = max(more, min(8, _core.KC // max(depth, 1)))
    if more > 1 and not info["parts"]:
        return more * reading.most_rows(info)
    near = _L1_BYTES // (depth * info["e_size"] + 192)
    highest = reading.most_rows(info)
    return near if highest > near > highest // 2 else highest


def chunks_at_once(block, info):
    """How many depth chunks of a block's input are packed at once."""
    return max(1, _MAX_INPUT[info["parts"] > 0] // (block * info["lda"] * info["e_size"]))


def packed_again(problem, combos, cuts, info):
    """Bytes that tasks pack if they pack what they multiply: of a block of rows those that the blocks before it packed, too."""
    return sum(packed_bytes(problem, combo, cut.blocks, info) for combo, cut in zip(combos, cuts, strict=True))


def packed_bytes(problem, combo, blocks, info):
    """Bytes of the weights that a class reads, for each of its blocks of rows."""
    taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
    phases = math.prod(len(c.first_out) for c in combo)
    return blocks * taps * phases * problem.groups * problem.ci * problem.co * info["e_size"]
