"""What direct decides for a problem, once: how phases are merged and runs end, what is read in place, which rows and panels
are a task."""

import functools
import itertools
import math
from typing import NamedTuple

from ... import _core
from .. import common, execution, phases, workspace
from ..costs import beside
from ..stages import SHARED, alike
from . import cost
from .loops import TILE_ROWS
from .shapes import LEAST_ROWS, Shape, Terms

_SHOWS = 0.98  # fewer tasks are taken where that is so much cheaper
_EVEN = 1.01  # tasks that take no longer than this beyond an even share of the whole are cut no other way
_MOST_KINDS = 64  # classes of more kinds are not worth a look: tables and tasks outweigh what they could save
_MOST_INSIDE = 0.85  # of rows of merged phases that are outputs of each: of less, phases are looked at one by one
_MOST_PHASES = 256  # a class for each phase is too many where strides are large


class Class(NamedTuple):
    """Classes that are alike (a run per axis each), how their GEMM comes by its rows, and how each is cut into tasks."""

    runs: tuple  # for each axis, the numbers of runs that are alike: each choice of one per axis is a class
    count: int  # type: ignore[assignment]  # so many classes
    rows: int
    taps: int
    columns: int
    sparse: bool  # as of shapes.Shape
    window: int
    chunks: int  # depth chunks,
    deepest: int  # the depth of the deepest,
    span: int  # and how many are packed at once
    packed: bool  # some rows are packed, for contiguous data
    block: int  # rows of a task
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    wide: int  # tasks of up to so many rows meet two panels at once
    strip: int  # rows that meet all panels of a task before the next rows, where the panels stay in L2
    cycles: float  # of the class, in all groups
    most_tasks: int  # that it could be cut into, in all groups
    work: float  # cycles of a task


class Schedule(NamedTuple):
    """How a problem is computed."""

    problem: object
    unit: str
    threads: int
    form: tuple  # (on which axes phases are merged as weights are packed,)
    merge: tuple  # on which axes phases are merged
    split: tuple  # for each axis, where runs end (see phases.py)
    classes: tuple
    execution: execution.Execution
    panel_major: bool  # all rows of a task meet a panel before the next panel
    near_bytes: int  # weights of a task up to this stay in L2 beside its rows
    far_bytes: int  # weights of a group beyond this do not stay in L2: tiles prefetch them
    tile_stores: bool  # tiles may use non-temporal stores
    same_set: int  # rows that are a multiple of so many bytes apart are packed: they would share sets of L1
    weight_bytes: int  # packed
    packing_bytes: int  # that a thread needs to pack weights on the fly; 0 where it does not
    workspace: workspace.Workspace  # for contiguous data


class Way(NamedTuple):
    """A way to cut the axes."""

    merge: tuple
    split: tuple
    shapes: tuple  # (runs, how many classes, Shape) of each kind
    cycles: float


def schedule(problem, here, unit, threads, finite=True):
    """The Schedule of a problem; None where there is no such unit."""
    info = here.info(problem.dtype, unit)
    if info is None:
        return None
    way, limits = choose(problem, here, unit, finite), here.limits
    if way.cycles < limits.single_thread_cycles:
        threads = 1
    _, classes = cut(problem, info, here, way.shapes, way.cycles, threads)
    axes, hole = _axes(problem), False
    for k, s, d, begin, out in zip(*axes[:3], *axes[4:], strict=True):
        hole = hole or phases.has_hole(k, s, d, begin, out)
    bytes = _weight_bytes(problem, info, [phases.phase_groups(*axis) for axis in zip(*axes[:3], way.merge, strict=True)])
    outgrows = execution.outgrows(problem, cost.non_temporal_from(problem, info, here))
    on_the_fly = execution.packs_on_the_fly(here, bytes, cost.packed_again(problem, classes, info))
    return Schedule(
        problem, unit, threads, (packed_merge(problem, info, way.merge),), way.merge, way.split, classes,
        execution.decide(problem, here, info, hole, way.cycles, bytes, outgrows),
        not info.matrix, limits.near_weights, limits.far, not limits.ordinary_stores,
        limits.same_set, bytes, packing_bytes(info) if on_the_fly else 0, book(problem, classes, info),
    )  # fmt: skip


def packed_merge(problem, unit, merge):
    """On which axes phases are merged as weights are packed: on all where each panel is of one phase, because the panels of
    phases that are not merged then lie among those of all, and one form serves all ways to merge."""
    return merge if problem.co % unit.nr else (True,) * problem.rank


def packing_bytes(unit):
    """Bytes that a thread needs to pack weights on the fly: a depth chunk of two panels."""
    return 2 * _core.KC * unit.nr * unit.e_size


def _axes(problem):
    p = problem
    return p.kernel, p.strides, p.dilations, p.in_sizes, p.begin, p.out_sizes


def _weight_bytes(problem, unit, groups):
    """Bytes of all packed weights."""
    bytes, depth = 0, unit.filled(problem.ci) * unit.e_size
    for chosen in itertools.product(*groups):
        panels = -(-problem.co * math.prod([len(g.residues) for g in chosen]) // unit.nr)
        bytes += -(-problem.groups * panels * unit.nr * math.prod([len(g.offsets) for g in chosen]) * depth // 64) * 64
    return bytes


@functools.lru_cache(maxsize=512)
def choose(problem, here, unit, finite):
    """The cheapest Way to cut the axes: of all for a problem that stands for its class, which has this way, too."""
    info = here.info(problem.dtype, unit)
    terms, (memory, serial) = Terms(problem, info, here), cost.memory_cycles(problem, info, here)
    k, s, d, *sizes = _axes(problem)
    best, tried = None, []
    usual = alike(problem)
    ways = _ways(problem, info, finite) if problem == usual else [choose(usual, here, unit, finite)[:2]]
    for merge, split in ways:
        kinds = [phases.kinds(*axis) for axis in zip(k, s, d, merge, *sizes, split, strict=True)]
        if kinds in tried or (best is not None and math.prod(map(len, kinds)) > _MOST_KINDS):
            continue
        tried.append(kinds)
        shapes, tasks, cycles = [], [], serial
        for chosen in itertools.product(*kinds) if problem.batch * problem.co else ():
            runs = tuple([numbers for _, numbers in chosen])
            count = math.prod(map(len, runs))
            shape = Shape(terms, [kind for kind, _ in chosen], None if problem.order is None else ordered(problem, runs))
            shapes.append((runs, count, shape))
            tasks.append((shape.total * count, shape.most_tasks * count))
            cycles += shape.total * count
            if best is not None and cycles >= best.cycles:
                break
        else:
            if common.few(tasks, here):
                cycles = common.shared(tasks, here) + serial  # at least
                if best is None or cycles < best.cycles:
                    cycles = SHARED * cut(problem, info, here, shapes, cycles, SHARED)[0] + serial
            cycles = beside(cycles, memory)
            if best is None or cycles < best.cycles:
                best = Way(merge, split, tuple(shapes), cycles)
    return best


def ordered(problem, runs):
    """(depth chunks, whether `sparse`) that a problem's order says of a class."""
    order, (k, s, d, *sizes) = problem.order, _axes(problem)
    axes = zip(k, s, d, order.merge, *sizes, order.axes, strict=True)
    return order.of([phases.axis(*axis)[1][numbers[0]] for axis, numbers in zip(axes, runs, strict=True)])


def _ways(problem, unit, finite):
    """The ways to cut the axes that are worth a look: phases merged on all axes, the last, or none; runs whole, or split at the
    borders of the input, as they must be where weights are not finite. Or the one way that the problem's order says."""
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
    if inside < _MOST_INSIDE or problem.groups > 1:  # phases that are merged have more rows together than each alone
        for split in splits if problem.groups > 1 else splits[:1]:
            yield (False,) * rank, (split,) * rank


def cut(problem, unit, here, shapes, total, threads):
    """When the last thread is done, and the Classes of `Way.shapes`: of a few ways to cut them all into tasks, the one that
    ends first. Tasks are of a share of a thread's ``total``, but blocks have some rows at least: few tasks are cheaper, many
    even out."""
    best, low, high = None, LEAST_ROWS, unit.task_rows
    ways = ((1, high),) if threads == 1 else ((4, low), (1, low), (1, high))
    if threads > SHARED:
        ways = (4, low), (4, high), (8, low), (2, low), (2, high), (1, low), (1, high)
    enough = _EVEN * sum([shape.total * count for _, count, shape in shapes]) / threads
    for share, height in ways:
        target = max(total / (share * threads), 1.0)
        cuts = [shape.tasks(target, height, threads) for _, _, shape in shapes]
        tasks = [
            (each[-1], problem.groups * count * each[1] * each[3]) for each, (_, count, _) in zip(cuts, shapes, strict=True)
        ]
        tasks.sort(reverse=True)
        many = sum([count for _, count in tasks]) > common.EVEN * threads
        end = sum([work * count for work, count in tasks]) / threads if many else common.makespan(tasks, threads)
        if best is None or end < best[0] * (1 if share > 3 else _SHOWS):
            best = end, cuts
        if many or end <= enough:
            break
    classes = [_class(runs, count, shape, each) for (runs, count, shape), each in zip(shapes, best[1], strict=True)]
    classes.sort(key=lambda c: -c.work)  # large tasks first, so that the last ones even out
    return best[0], tuple(classes)


def _class(runs, count, shape, each):
    block, blocks, panel_block, panel_blocks, span, work = each
    wide, strip = shape.order(block)
    packed = shape.packed > 0 or shape.terms.problem.order is not None  # whose depth chunks may begin anywhere
    total = shape.total
    if shape.terms.traced:
        total = shape.cycles(shape.rows, shape.columns) * shape.terms.groups
        work = shape.cycles(min(block, shape.rows), min(shape.columns, panel_block * shape.terms.unit.nr))
    return Class(
        runs, count, shape.rows, shape.taps, shape.columns, shape.sparse, shape.window, shape.chunks, shape.deepest, span,
        packed, block, blocks, panel_block, panel_blocks, wide, strip, total, shape.most_tasks, work,
    )  # fmt: skip


def book(problem, classes, unit):
    """The workspace of a thread for classes, for contiguous data."""
    height = deepest = chunks = packed = reached = sparse = partial = 0
    for c in classes:
        span = min(c.span, c.chunks)
        height, chunks, deepest = max(height, c.block), max(chunks, c.chunks), max(deepest, c.deepest)
        if c.packed:
            packed = max(packed, c.block * span)
        if c.sparse:
            reached, sparse = max(reached, c.block * span), max(sparse, span)
        if c.chunks > 1:
            partial = max(partial, min(2, c.panel_block) if c.span >= c.chunks else c.panel_block)
    return workspace.book(
        rows=(packed + unit.grain) * odd_line_stride(deepest, unit) * unit.e_size,
        found=chunks * 8,  # where rows lie that are not packed
        to=height * 8,  # where each row goes in the output,
        lines=height * 8,  # and in the partial sums
        reached=reached * 8,  # those in the partial sums that a chunk reaches,
        heights=sparse * 8,  # and how many
        coords=height * problem.rank * 8,  # of each row
        edge=(height + 1) * 8,  # the next row where some phase is outside the window
        tile=2 * TILE_ROWS * unit.nr * unit.t_size,  # on its way to the store, and one late
        sums=partial * height * unit.nr * unit.t_size,  # partial ones, between depth chunks
    )


def odd_line_stride(depth, unit):
    """Elements from row to row of packed rows: an odd number of cache lines, or of AMX steps of depth, so that rows fall into
    different sets of the caches."""
    line = max(unit.kstep, 64 // unit.e_size)
    return (-(-depth // line) | 1) * line
