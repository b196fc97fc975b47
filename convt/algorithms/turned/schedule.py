"""The schedule stage of turned: the division of each class into tasks, the stores and the workspace. Only for NCX data.

`schedule` decides from a problem, a machine and a unit. cost.py, bind.py and the loops read its decisions. Rows of the GEMM are
outputs, columns are pixels. A *unit* of rows is all phases of the last axis, for one channel and one phase of the other axes. A
tile has whole units.
"""

import itertools
import math
from typing import NamedTuple

from ... import _core
from ..._base.problem import Problem
from ..._run import execution
from ..._run.workspace import Workspace, book
from .. import common
from ..phases import NESTED
from .loops import MOST_PHASES, PACKED_LINES

LIMIT = "NCX data with a tap in each phase of the last axis"
_PANEL_BYTES = 400 << 10, 1000 << 10  # the most bytes of packed inputs of a task, on vectors and on AMX
_MOST_PIXELS = 1024  # the most pixels of a task
_THREAD_TASKS = 8  # the fewest tasks of a thread, if each still has _LEAST_PIXELS pixels
_LEAST_PIXELS = 96
_LEAST_ROWS = 64  # the fewest rows of a task if rows are divided among tasks, because each task packs its inputs
_CALL_ROWS = 48  # the most rows of the tiles of one call, because they stay in L1 until they are interleaved
_CALL_BYTES = 1 / 4  # the largest share of L2 for the weights of one call


class Class(NamedTuple):
    """A class (a run on each axis), divided into tasks."""

    runs: tuple  # the index of the run on each axis
    pixels: int  # pixels of all images
    row: int  # contiguous pixels along the last axis
    taps: int
    depth: int  # taps times in-channels, as packed
    units: int  # units of rows, see the head of the module
    tiles: int
    cut: common.Division  # rows are pixels, panels are tiles
    call_tiles: int  # the most tiles that one call multiplies by a panel


class Schedule(NamedTuple):
    """The decisions about a problem. See stages.py for the fields of all schedules."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # (), because there is one form
    flat: bool  # the axes become one axis if strides permit it (1x1 kernel, stride 1)
    classes: tuple  # the `Class`es, those with the largest tasks first
    execution: execution.Execution
    stream: bool  # non-temporal stores write the outputs
    prefetch_outputs: bool  # output lines are prefetched, because ordinary stores write an output larger than L2
    far: bool  # weights do not stay in L2
    workspace: Workspace


def merges(rank):
    """Return how phases are merged on each axis: on the last axis all phases, because they alternate in the output row; on the
    other axes the phases that read the same inputs."""
    return (True,) * (rank - 1) + (NESTED,)


def accepts(problem, unit):
    """Check whether turned accepts a problem: NCX data, a tap in each phase of the last axis, and a register tile with room for
    all phases of a channel."""
    s, k = problem.strides[-1], problem.kernel[-1]
    if unit is None or not problem.planar or s > k or s > unit.mr[2] or s > MOST_PHASES:
        return False
    return math.gcd(s, problem.dilations[-1]) == 1 and problem.ci > 0 and 0 not in problem.out_shape


def flattened(problem):
    """Return the problem with all axes as one if each output reads only the input at its place; otherwise return the
    problem."""
    axes = zip(problem.kernel, problem.strides, problem.begin, problem.in_sizes, problem.out_sizes, strict=True)
    if problem.rank == 1 or any((k, s, begin, size) != (1, 1, 0, out) for k, s, begin, size, out in axes):
        return problem
    pixels, one = (math.prod(problem.in_sizes),), (1,)
    return problem._replace(in_sizes=pixels, out_sizes=pixels, kernel=one, strides=one, dilations=one, begin=(0,))


def schedule(problem, here, unit, threads, finite=True):
    """Return the `Schedule` of a problem, or None if turned does not accept it. Weights must be finite, because inputs are
    packed with zeros."""
    info = here.info(problem.dtype, unit)
    if not finite or not accepts(problem, info):
        return None
    flat = flattened(problem)
    _, axes = common.axes(flat, merges(flat.rank), (False,) * flat.rank)
    if math.prod(map(len, axes)) > common.MANY_CLASSES:
        return None
    reached = [[(n, run) for n, run in enumerate(runs) if run.group >= 0] for runs in axes]
    combos, has_empty_phases = list(itertools.product(*reached)), sum(map(len, axes)) > sum(map(len, reached))
    least_tasks = _THREAD_TASKS * threads / (problem.groups * max(1, len(combos)))
    classes = [_class(flat, combo, info, here, least_tasks) for combo in combos]
    if len(classes) > 1:
        classes.sort(key=lambda c: -c.cut.cycles)
    weights = sum(c.units * c.depth for c in classes) * flat.strides[-1] * problem.groups * info.e_size
    stream = execution.outgrows(problem, here.limits.direct_non_temporal) and flat.out_sizes[-1] * info.s_size % 64 == 0
    return Schedule(
        problem=problem,
        unit=unit,
        threads=threads,
        form=(),
        flat=flat is not problem,
        classes=tuple(classes),
        execution=execution.decide(problem, here, info, threads, weights, has_empty_phases),
        stream=stream,
        prefetch_outputs=not stream and execution.outgrows(problem, here.l2),
        far=weights > here.limits.far,
        workspace=_workspace(problem, classes, info),
    )


def _class(problem, combo, info, here, least_tasks):
    """Return the `Class` of the runs ``combo``, with at least ``least_tasks`` tasks if the limits above permit it."""
    s, taps, phases, pixels = problem.strides[-1], 1, 1, problem.batch
    for _, run in combo:
        taps, phases, pixels = taps * len(run.first_in), phases * len(run.first_out), pixels * run.count
    depth, nr, tile_units = taps * info.filled(problem.ci), info.nr, info.mr[2] // s
    units = problem.co * phases // s
    tiles = -(-units // tile_units)
    room = _PANEL_BYTES[info.matrix] // (max(depth, 1) * info.e_size)
    block = max(nr, min(_MOST_PIXELS, room) // nr * nr)
    if block > _LEAST_PIXELS and -(-pixels // block) < least_tasks:  # the largest blocks that are enough
        block = max(min(block, (pixels - 1) // (math.ceil(least_tasks) - 1) // nr * nr), _LEAST_PIXELS // nr * nr)
    blocks = -(-pixels // block)
    block = -(-pixels // (blocks * nr)) * nr
    blocks = -(-pixels // block)
    most = max(1, tiles * tile_units * s // _LEAST_ROWS)
    tile_block = -(-tiles // max(1, min(most, tiles, math.ceil(least_tasks / blocks))))
    bytes = tile_units * s * max(depth, 1) * info.e_size
    most_tiles = min(_CALL_ROWS // (tile_units * s), int(_CALL_BYTES * here.l2) // bytes, tile_block)
    call_tiles = 1 if info.matrix else max(1, most_tiles)
    tile_blocks, rows, peak = -(-tiles // tile_block), units * s, common.product_price(info, here.profile["turned"])
    cut = common.Division(
        block, blocks, tile_block, tile_blocks, -(-depth // _core.KC), peak * min(block, pixels) * depth * rows / tile_blocks
    )
    return Class(tuple([n for n, _ in combo]), pixels, combo[-1][1].count, taps, depth, units, tiles, cut, call_tiles)


def _workspace(problem, classes, info):
    """Return the workspace of a thread."""
    block, depth = max((c.cut.block for c in classes), default=0), max((c.depth for c in classes), default=0)
    rows = max((c.call_tiles for c in classes), default=1) * info.mr[2]
    units = max((-(-c.units // c.tiles) * c.cut.panel_block for c in classes), default=0)
    return book(
        panels=block * depth * info.e_size,  # packed inputs of a task
        staging=PACKED_LINES * info.nr * info.s_size,  # inputs before they are converted to the elements of a unit
        sums=(rows * info.nr + info.vl) * info.t_size,  # the tiles of a call
        sum_rows=rows * 8,  # pointers to the rows of "sums"
        plane_rows=rows * 8,  # pointers to the output rows into which tiles store directly
        unit_rows=rows * 8,  # pointers to the output rows into which phases are interleaved
        unit_offsets=units * 8,  # the output offset of each unit of rows
        # A row of zeros (-0.0), then the bias of each unit: a row of equal values for tiles that store directly, else a number.
        bias=(info.nr + units * (info.nr if problem.strides[-1] == 1 else 1)) * info.t_size,
        pieces=block * (3 + problem.rank) * 8,  # contiguous runs of pixels, cut at the ends of panels
        first_piece=(block // info.nr + 1) * 8,  # the index of the first piece of each panel
    )
