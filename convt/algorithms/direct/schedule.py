"""All decisions of `direct` about a problem on a machine, as a `Schedule`.

`choose` merges phases and ends runs in the cheapest of a few ways. For each class, shapes.pyx decides which rows are packed.
`cut` divides classes into tasks. bind.py makes tables from the schedule, and cost.py computes its expected cycles.
"""

import itertools
import math
from typing import NamedTuple

from ... import _core
from ..._model.costs import overlapped
from ..._run import execution, workspace
from .. import common, phases
from ..caches import remembered
from ..stages import SHARED, class_representative
from . import cost
from .loops import TILE_ROWS
from .shapes import LEAST_ROWS, Shape, Terms

_GAIN_RATIO = 0.98  # a division into fewer tasks is taken only if it ends at least 2% earlier
_EVEN_RATIO = 1.01  # no further division is tried if one ends within 1% of an even share of the work
_MOST_KINDS = 64  # a way with more kinds of classes is skipped, because tables and tasks outweigh what it could save
_MOST_INSIDE = 0.85  # if fewer of the merged rows have outputs of every phase, unmerged phases are tried
_MOST_PHASES = 256  # with more phases, unmerged phases are not tried, because each of them is a class


class Class(NamedTuple):
    """Classes whose runs have the same kinds: how their GEMM reads its rows, and how each class is divided into tasks."""

    runs: tuple  # for each axis, the numbers of its runs of one kind; each choice of one run per axis is a class
    count: int  # type: ignore[assignment]  # number of classes
    rows: int
    taps: int
    columns: int
    sparse: bool  # each tap multiplies only the rows that it reaches
    window: int  # a depth chunk stays within this many taps; 0 for any number
    chunks: int  # number of depth chunks
    deepest: int  # depth of the deepest chunk
    packed: bool  # some rows are packed, even if data is contiguous
    cut: common.Division
    pair_rows: int  # tasks of at most this many rows multiply two panels at once
    strip: int  # rows of a strip, which all panels of a task multiply before the next strip; used if the panels stay in L2
    cycles: float  # cycles of one class in all channel groups
    most_tasks: int  # the most tasks of one class in all channel groups


class Schedule(NamedTuple):
    """Every decision about a problem on a machine."""

    problem: object
    unit: str
    threads: int
    form: tuple  # (for each axis, whether packed weights merge phases,)
    merge: tuple  # for each axis, whether classes merge phases
    split: tuple  # for each axis, where runs end (`split` of phases.axis_classes)
    classes: tuple
    execution: execution.Execution
    panel_major: bool  # a panel multiplies all rows of a task before the next panel
    near_bytes: int  # weights of a task up to this size stay in L2 beside its rows
    far_bytes: int  # larger weights of a channel group do not stay in L2, so that tiles prefetch them
    tile_stores: bool  # tiles may use non-temporal stores
    same_set: int  # rows at a distance of a multiple of this many bytes are packed, because they would share sets of L1
    weight_bytes: int  # bytes of all packed weights
    again_bytes: int  # bytes of weights that tasks pack if they pack on the fly
    packing_bytes: int  # bytes that a thread needs to pack weights on the fly; 0 if they are packed beforehand
    workspace: workspace.Workspace  # regions of a thread, for contiguous data


class Way(NamedTuple):
    """A way to merge phases and to end runs."""

    merge: tuple
    split: tuple
    shapes: tuple  # (runs, number of classes, Shape) for each combination of kinds
    cycles: float


def schedule(problem, here, unit, threads, finite=True):
    """Return the Schedule of a problem, or None if the unit is unavailable for its dtype.

    ``finite`` says whether the filter is finite. If it is not, no weight multiplies a zero outside the input.
    """
    info = here.info(problem.dtype, unit)
    if info is None:
        return None
    way, limits = choose(problem, here, unit, finite), here.limits
    _, classes = cut(problem, info, here, way.shapes, way.cycles, threads)
    axes = phases.axes_of(problem)
    has_empty_phases = any([axis.has_empty_phases() for axis in axes])
    bytes = _weight_bytes(problem, info, [axis.groups(merge) for axis, merge in zip(axes, way.merge, strict=True)])
    outgrows = execution.outgrows(problem, limits.direct_non_temporal)
    repacked = cost.repacked_bytes(problem, classes, info)
    on_the_fly = execution.packs_on_the_fly(here, bytes, repacked)
    return Schedule(
        problem, unit, threads, (packed_merge(problem, info, way.merge),), way.merge, way.split, classes,
        execution.decide(problem, here, info, threads, bytes, has_empty_phases, outgrows),
        not info.matrix, limits.near_weights, limits.far, not limits.ordinary_stores,
        limits.same_set, bytes, repacked, packing_bytes(info) if on_the_fly else 0, book(problem, classes, info),
    )  # fmt: skip


def packed_merge(problem, unit, merge):
    """Return for each axis whether packed weights merge phases.

    If each panel has columns of one phase only, weights are packed with all phases merged: the panels of an unmerged phase are
    then some of these panels, and one form serves all ways to merge.
    """
    return merge if problem.co % unit.nr else (True,) * problem.rank


def packing_bytes(unit):
    """Return the bytes that a thread needs to pack weights on the fly: a depth chunk of two panels."""
    return 2 * _core.KC * unit.nr * unit.e_size


def _weight_bytes(problem, unit, groups):
    """Return the bytes of all packed weights."""
    bytes, depth = 0, unit.filled(problem.ci) * unit.e_size
    for chosen in itertools.product(*groups):
        panels = -(-problem.co * math.prod([len(g.residues) for g in chosen]) // unit.nr)
        bytes += -(-problem.groups * panels * unit.nr * math.prod([len(g.offsets) for g in chosen]) * depth // 64) * 64
    return bytes


@remembered(512)
def choose(problem, here, unit, finite):
    """Return the cheapest Way.

    All ways are compared for the problem that represents a problem class (stages.class_representative). Other problems merge
    phases and end runs in the same way.
    """
    info = here.info(problem.dtype, unit)
    terms, (memory, serial) = Terms(problem, info, here), cost.memory_cycles(problem, info, here)
    axes, best, tried = phases.axes_of(problem), None, []
    representative = class_representative(problem)
    ways = _ways(problem, info, finite) if problem == representative else [choose(representative, here, unit, finite)[:2]]
    for merge, split in ways:
        kinds = [axis.kinds(merged, cut) for axis, merged, cut in zip(axes, merge, split, strict=True)]
        if kinds in tried or (best is not None and math.prod(map(len, kinds)) > _MOST_KINDS):
            continue
        tried.append(kinds)
        shapes, tasks, cycles = [], [], serial
        for chosen in itertools.product(*kinds) if problem.batch * problem.co else ():
            runs = tuple([numbers for _, numbers in chosen])
            count = math.prod(map(len, runs))
            given = None if problem.order is None else chunks_in_order(problem, runs)
            shape = Shape(terms, [kind for kind, _ in chosen], given)
            shapes.append((runs, count, shape))
            tasks.append((shape.total * count, shape.most_tasks * count))
            cycles += shape.total * count
            if best is not None and cycles >= best.cycles:
                break
        else:
            if common.has_few_tasks(tasks, here):
                # a lower bound, which avoids most calls of `cut`
                cycles = common.cycles_with_idle_thread(tasks, SHARED, here) + serial
                if best is None or cycles < best.cycles:
                    cycles = SHARED * cut(problem, info, here, shapes, cycles, SHARED)[0] + serial
            cycles = overlapped(cycles, memory)
            if best is None or cycles < best.cycles:
                best = Way(merge, split, tuple(shapes), cycles)
    return best


def chunks_in_order(problem, runs):
    """Return (depth chunks, whether it is sparse) of a class according to the order of the problem (order.py)."""
    order = problem.order
    axes = zip(phases.axes_of(problem), order.merge, order.axes, runs, strict=True)
    return order.depths_of([axis.runs(merge, given)[numbers[0]] for axis, merge, given, numbers in axes])


def _ways(problem, unit, finite):
    """Yield the pairs (merge, split) to compare.

    Phases are merged on all axes, on the last axis, or on none. Runs are whole, or split at the borders of the input; they are
    always split if weights are not finite. If the problem has an order (order.py), yield only the pair of this order.
    """
    if problem.order is not None:
        yield problem.order.merge, problem.order.axes
        return
    rank, splits = problem.rank, (False, True) if finite else (True,)
    for split in splits:
        yield (True,) * rank, (split,) * rank
    if max(problem.strides) == 1 or math.prod(map(min, problem.strides, problem.out_sizes)) > _MOST_PHASES:
        return
    if rank > 1 and problem.co % unit.nr:  # phases that share a panel are stored piece by piece
        for split in splits:
            yield (False,) * (rank - 1) + (True,), (split,) * rank
    inside = 1.0
    for out, s in zip(problem.out_sizes, problem.strides, strict=True):
        inside *= out / (out + s) if s > 1 else 1.0
    if inside < _MOST_INSIDE or problem.groups > 1:  # merged phases compute every row that one of them needs
        for split in splits if problem.groups > 1 else splits[:1]:
            yield (False,) * rank, (split,) * rank


def cut(problem, unit, here, shapes, total, threads):
    """Return (time at which the last thread is done, Classes) of ``shapes`` (`Way.shapes`), which take ``total`` cycles.

    A few divisions into tasks are compared, and the one that ends first is taken. A task takes a fraction of a thread's part of
    ``total``, but has a least number of rows. Few tasks cost less in total; many tasks balance the threads.
    """
    best, low, high = None, LEAST_ROWS, unit.task_rows
    ways = ((1, high),) if threads == 1 else ((4, low), (1, low), (1, high))
    if threads > SHARED:
        ways = (4, low), (4, high), (8, low), (2, low), (2, high), (1, low), (1, high)
    even_end = _EVEN_RATIO * sum([shape.total * count for _, count, shape in shapes]) / threads
    for share, height in ways:
        target = max(total / (share * threads), 1.0)
        cuts = [shape.tasks(target, height, threads) for _, _, shape in shapes]
        tasks = [
            (each.cycles, problem.groups * count * each.tasks)
            for each, (_, count, _) in zip(cuts, shapes, strict=True)
        ]
        tasks.sort(reverse=True)
        many = sum([count for _, count in tasks]) > common.BALANCED_TASKS * threads
        end = sum([work * count for work, count in tasks]) / threads if many else common.makespan(tasks, threads)
        if best is None or end < best[0] * (1 if share > 3 else _GAIN_RATIO):
            best = end, cuts
        if many or end <= even_end:
            break
    classes = [_class(runs, count, shape, each) for (runs, count, shape), each in zip(shapes, best[1], strict=True)]
    classes.sort(key=lambda c: -c.cut.cycles)  # large tasks first, so that the last ones balance the threads
    return best[0], tuple(classes)


def _class(runs, count, shape, division):
    """Return the Class of a Shape and its `Division`."""
    pair_rows, strip = shape.order(division.block)
    packed = shape.packed > 0 or shape.terms.problem.order is not None  # depth chunks of an order may begin anywhere
    total = shape.total
    if shape.terms.traced:
        total = shape.cycles(shape.rows, shape.columns) * shape.terms.groups
        columns = min(shape.columns, division.panel_block * shape.terms.unit.nr)
        division = division._replace(cycles=shape.cycles(min(division.block, shape.rows), columns))
    return Class(
        runs, count, shape.rows, shape.taps, shape.columns, shape.sparse, shape.window, shape.chunks, shape.deepest, packed,
        division, pair_rows, strip, total, shape.most_tasks,
    )  # fmt: skip


def book(problem, classes, unit):
    """Return the workspace of a thread for these classes, for contiguous data."""
    height = deepest = chunks = packed = reached = sparse = partial = 0
    for c in classes:
        cut, span = c.cut, min(c.cut.span, c.chunks)
        height, chunks, deepest = max(height, cut.block), max(chunks, c.chunks), max(deepest, c.deepest)
        if c.packed:
            packed = max(packed, cut.block * span)
        if c.sparse:
            reached, sparse = max(reached, cut.block * span), max(sparse, span)
        if c.chunks > 1:
            partial = max(partial, min(2, cut.panel_block) if cut.span >= c.chunks else cut.panel_block)
    return workspace.book(
        rows=(packed + unit.m_step) * odd_line_stride(deepest, unit) * unit.e_size,
        chunk_inputs=chunks * 8,  # for each depth chunk, the address of its rows in the input, or NULL
        out_rows=height * 8,  # address of each row in the output
        sum_rows=height * 8,  # address of each row in the partial sums
        reached_rows=reached * 8,  # addresses in the partial sums of the rows that a sparse chunk reaches
        reached_counts=sparse * 8,  # number of rows that each sparse chunk reaches
        coords=height * problem.rank * 8,  # position of each row on each axis
        next_outside=(height + 1) * 8,  # for each row, the next row where some phase is outside the window
        scratch=2 * TILE_ROWS * unit.nr * unit.t_size,  # a tile to be stored row by row, and one whose stores are deferred
        sums=partial * height * unit.nr * unit.t_size,  # partial sums between depth chunks
    )


def odd_line_stride(depth, unit):
    """Return the elements between packed rows: an odd number of cache lines or, on AMX, of steps of depth.

    An odd number puts rows into different sets of the caches.
    """
    line = max(unit.kstep, 64 // unit.e_size)
    return (-(-depth // line) | 1) * line
