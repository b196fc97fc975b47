"""How a problem is cut: which phases are merged, which classes are transformed and how, which tiles and panels are a task."""

import functools
import itertools
import math
from typing import NamedTuple

from ..._problem import ITEMSIZE
from .. import common, machine
from .. import phases as _phases
from ..direct import counts as direct_counts
from ..direct import cutting as direct_cutting
from .counts import (
    ONE_AXIS,
    all_placed,
    class_shape,
    depth_chunks,
    l2_share,
    memory_cycles,
    multiplied_points,
    placed,
    task_cycles,
    waiting_bytes,
)
from .loops import CHAIN
from .transforms import KINDS, PLAIN

_MOST_AXES = 3
_HEIGHTS = (1, 2, 3, 4, 6)  # register tiles of a block of tiles
_PANEL_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)
_SHARES = (0, 1, 2, 3, 4, 6, 8)  # tasks of a thread, at least, 0 for whatever ends first: few are cheaper, many even out
_MOST_WAITING = 13 << 18  # bytes of a task between its transforms
_LEAST_WORK = 20_000  # cycles worth a task


def packed_again(problem, combo, chosen, scheme, cut, info, out_channel_stride=1):
    """Bytes that the tasks of a class pack if they pack what they multiply; infinite where they can't."""
    phases, taps = math.prod(len(c.first_out) for c in combo), math.prod(len(g.offsets) for g in chosen)
    windows = math.prod(-(-len(g.offsets) // t.taps) for g, t in zip(chosen, scheme, strict=True))
    points = math.prod(t.points for t in scheme)
    if info["parts"]:  # taps are read for each point: beside the rows of one point, or of all
        once = (cut.panel_block if cut.across else 2) * info["nr"] * taps * problem.ci * ITEMSIZE[problem.dtype]
        whole = info["nr"] if phases > 1 else info["vl"]  # columns that must be contiguous in the filter
        if common.nested(chosen) or problem.co % whole or out_channel_stride != 1 or info["s_size"] != info["t_size"]:
            return math.inf
    else:
        once = points * info["nr"] * _link(points, depth_chunks(problem, windows, info)[2]) * info["e_size"]
    if once > machine.current().l2 // 2:
        return math.inf
    return cut.blocks * windows * points * phases * problem.groups * problem.ci * problem.co * info["e_size"]


def by_transform(problem, groups, classes, schemes, info):
    """The classes without a transform; those with one, each with its phase groups and the transform of each axis."""
    plain, transformed = [], []
    for combo in itertools.product(*classes):
        scheme = schemes.get(tuple(c.group for c in combo))
        if scheme and any(scheme):
            chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
            scheme = [KINDS[kind] for kind in scheme]
            transformed.append((all_placed(problem, combo, scheme, info), chosen, scheme))
        elif scheme:
            plain.append(combo)
    return plain, transformed


@functools.lru_cache(maxsize=256)
def choice(problem, kinds, unit, isa):
    """The cheapest way: (cost, merge, groups, classes, scheme of each class by its numbers); cost infinite if there is none."""
    rank = problem.rank
    best = (math.inf, None, None, None, None)
    if problem.dtype not in ("float32", "float64") or problem.ci * math.prod(problem.out_shape) == 0:
        return best
    info = machine.current().info(problem.dtype, unit)
    if info is None:
        return best
    phases = math.prod(min(s, o) for s, o in zip(problem.strides, problem.out_sizes, strict=True))
    for merge in _merges(rank, info):
        if phases > 256 and not all(merge):
            continue
        groups, classes = common.axes(problem, merge, (False,) * rank)
        nested = any(map(common.nested, groups))
        if _phases.NESTED in merge and not nested:
            continue
        if math.prod(map(len, classes)) > common.MANY_CLASSES // 8:
            continue
        tasks, schemes, losses, plains, transformed = [], {}, [], [], []
        for combo in itertools.product(*classes):
            numbers = tuple(c.group for c in combo)
            if min(numbers) < 0:
                continue
            chosen = [g[n] for g, n in zip(groups, numbers, strict=True)]
            cost, scheme = min(_schemes(problem, combo, chosen, kinds, unit), default=(math.inf, None))
            plain, count = direct_counts.class_cost(problem, combo, info)
            if nested:  # its taps that are not there would be zeros
                plain = math.inf
            tasks.append((min(cost, plain), count))  # transformed or not, about as many
            schemes[numbers] = scheme if cost < plain else (0,) * rank
            if cost < plain:
                transforms = [KINDS[kind] for kind in scheme]
                transformed.append((all_placed(problem, combo, transforms, info), chosen, transforms))
            else:
                plains.append(combo)
            losses.append((cost - plain, numbers, scheme))
        if nested and plains:
            continue
        memory = memory_cycles(problem, max(len(c.first_out) for c in classes[-1]), info)
        total = common.shared(tasks) + memory  # at least
        if total < best[0] and common.few(tasks) and transformed:
            total = memory + 2 * _end(problem, transformed, plains, total, info, 2)
        if not any(map(any, schemes.values())):  # asked for by name, it is used where it loses least
            loss, numbers, scheme = min(losses, default=(math.inf, None, None))
            total += loss
            schemes[numbers] = scheme
        if total < best[0]:
            best = (total, merge, groups, classes, schemes)
    return best


def _merges(rank, info):
    """The ways to merge phases: of no axis, the last, or all; nested where registers are many, else nothing is gained by it."""
    merges = {(False,) * rank, (False,) * (rank - 1) + (True,), (True,) * rank}
    if not info["parts"] and 5 * info["wide"] >= 2 * info["mr"][-1]:
        merges.add((_phases.NESTED,) * rank)
    return sorted(merges, reverse=True)


def _schemes(problem, combo, chosen, kinds, unit):
    """The ways to transform a class that are worth a look, as (cost, kind of each axis)."""
    axes, info = [], machine.current().info(problem.dtype, unit)
    for c, group, stride in zip(combo, chosen, problem.strides, strict=True):
        offs, fits = group.offsets, []
        if c.count > 1 and all(a - b == 1 for a, b in itertools.pairwise(offs)):
            fits = [t for t in kinds if t.taps <= len(offs)]
        products = lambda t: -(-len(offs) // t.taps) * multiplied_points(placed(c, t, stride, info), t, info)  # noqa: B023, E731
        axes.append([PLAIN, *sorted(fits, key=lambda t: (products(t), t.points))[:1]])
    for scheme in itertools.product(*axes):
        if 0 < sum(t is not PLAIN for t in scheme) <= _MOST_AXES:
            shape = class_shape(problem, all_placed(problem, combo, scheme, info), chosen, scheme, info)
            yield least_cost(problem, shape, unit, machine.current()), tuple(t.kind for t in scheme)


@functools.lru_cache(maxsize=256)
def least_cost(problem, shape, unit, isa):
    """Cycles of a class cut as is cheapest."""
    cuts = ways_to_cut(problem, shape, machine.current().info(problem.dtype, unit), 1, (1,))
    return min(cut.work * cut.tasks for cut in cuts) * problem.groups


class Cut(NamedTuple):
    """How a class is cut into tasks."""

    block: int  # tiles of a task
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    span: int  # depth chunks transformed at once
    across: bool  # a point of all panels after the other, instead of a panel of all points
    work: float  # cycles of a task

    @property
    def tasks(self):
        return self.blocks * self.panel_blocks


def ways_to_cut(problem, shape, info, threads, panel_blocks):
    """The ways to cut a class that are worth a look."""
    rows, points, _, splits, columns, *_ = shape
    nr, size, high, grain = info["nr"], info["e_size"], info["mr"][-1], info["grain"]
    panels = -(-columns // nr)
    depth, chunks, step = depth_chunks(problem, splits, info)
    ways = {}
    for height in _HEIGHTS:
        fewest = -(-rows // (high * height))
        for blocks in {fewest, -(-fewest // threads) * threads}:
            block = -(-rows // (blocks * grain)) * grain
            # A point's rows stay in L2 for all panels, whose weights pass by but once; points and sums are let go. Blocks can
            # then be so high that weights of six bytes are fetched while they are multiplied.
            for n in panel_blocks if info["parts"] else ():
                panel_block = -(-panels // min(n, panels))
                if waiting_bytes(points, block, depth, panel_block, info) <= _MOST_WAITING:
                    cut = block, -(-rows // block), panel_block, -(-panels // panel_block), chunks, True
                    ways[cut] = Cut(*cut, task_cycles(problem, shape, block, panel_block, info, chunks, across=True))
            # A panel of all points after the other, which all the rows are read again for: on AMX only from L2. Of
            # more depth a chunk is transformed at a time, and the sums of all panels wait in between.
            most = l2_share() if info["parts"] else _MOST_WAITING
            space = max(most // (size * points) - depth * nr, most // (size * points) // 2)
            for span in dict.fromkeys((chunks, 1)):
                if block * (min(depth, span * step) + nr) > space and (height > 1 or span > 1):
                    continue
                least = -(-panels * nr * block // max(space - block * step, nr * block)) if span < chunks else 1
                for n in {max(least, n) for n in panel_blocks if n <= panels}:
                    panel_block = -(-panels // n)
                    cut = block, -(-rows // block), panel_block, -(-panels // panel_block), span, False
                    ways[cut] = Cut(*cut, task_cycles(problem, shape, block, panel_block, info, span))
    return ways.values()


def _end(problem, transformed, plain, total, info, threads):
    """When the last thread is done with all classes."""
    _, splits = direct_cutting.splits(problem, plain, [1] * len(plain), total, info, threads)
    first = [(s.work, problem.groups * s.blocks * s.panel_blocks) for s in splits]
    return cut_classes(problem, transformed, first, total, info, threads)[0]


def cut_classes(problem, classes, first, total, info, threads):
    """When the last thread is done, and a `Cut` for each class: of a few ways to cut them all, the one that ends first.
    ``first`` are the tasks that come before, (cycles, how many) each."""
    ways = []
    for combo, chosen, scheme in classes:
        shape = class_shape(problem, combo, chosen, scheme, info)
        found = ways_to_cut(problem, shape, info, threads, _PANEL_BLOCKS)
        ways.append(sorted(found, key=lambda cut: cut.work * -(-problem.groups * cut.tasks // threads)))
    best = None
    for share in _SHARES:
        target = max(total / (share * threads), _LEAST_WORK) if share else math.inf
        cuts = [next((c for c in each if c.work <= target), min(each, key=lambda c: c.work)) for each in ways]
        tasks = first + sorted(((c.work, problem.groups * c.tasks) for c in cuts), reverse=True)
        if best is not None and sum(n for _, n in tasks) > common.EVEN * threads:
            break
        end = common.makespan(tasks, threads)
        if best is None or end < 1.005 * best[0]:
            best = min(end, best[0] if best else end), cuts
    return best


def _link(points, step):
    """The depth of a chain of sums, of a chunk of ``step``."""
    return -(-step // -(-step // CHAIN)) if points > ONE_AXIS else step
