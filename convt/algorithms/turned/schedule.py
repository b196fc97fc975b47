"""What turned decides: how the pixels and the rows of a class are cut into tasks. It computes on planes (NCX) alone.

Rows are outputs: the phases of the last axis of a channel and of a phase of the other axes make a unit, and a tile has whole
units. Columns are pixels.
"""

import itertools
import math
from typing import NamedTuple

from ..._problem import Problem
from .. import common, execution
from ..phases import NESTED
from ..workspace import Workspace, book
from .loops import MOST_PHASES, PACKED_LINES

NAMES = {
    "vectors": "turned", "amx": "matrix_turned", "amx_two": "matrix_high_turned", "amx_one": "matrix_medium_turned",
}  # fmt: skip
LIMIT = "it wants channels as planes (NCX), and in each phase of the last axis a tap"
_PANELS = 400 << 10, 1000 << 10  # bytes of L2 for the inputs of a task, for vectors and AMX
_MOST_PIXELS = 1024  # of a task
_TASKS = 8  # of a thread, at least, if each still has so many pixels:
_LEAST_PIXELS = 96
_LEAST_ROWS = 64  # of a task, whose inputs are packed for each
_CALL_ROWS = 48  # A call multiplies tiles of at most so many rows, because they wait in L1 until they are interleaved,
_CALL_BYTES = 1 / 4  # and whose weights take at most this share of L2.


class Class(NamedTuple):
    """A run on every axis, and how it is cut into tasks."""

    runs: tuple  # the number of the run on each axis
    pixels: int  # of all images,
    row: int  # and those that are beside each other along the last axis
    taps: int
    depth: int  # taps times in-channels, as packed
    units: int
    block: int  # pixels of a task
    blocks: int
    tiles: int
    tile_block: int  # tiles of a task
    tile_blocks: int
    together: int  # tiles that a call multiplies by a panel, at most


class Schedule(NamedTuple):
    """See stages.py."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # empty: there is one way to pack the weights
    flat: bool  # all axes are one, where strides permit it: every output reads but the input at its place
    classes: tuple  # of Class, those with the largest tasks first
    how: execution.Execution
    stream: bool  # outputs take non-temporal stores
    fetch: bool  # outputs take ordinary stores and are larger than L2: their lines are prefetched before they are stored
    far: bool  # weights do not stay in L2
    workspace: Workspace


def merges(rank):
    """On which axes phases are merged: on the last all, as they alternate in the output; on others those that read the same."""
    return (True,) * (rank - 1) + (NESTED,)


def takes(problem, unit):
    """Whether channels are planes, each phase of the last axis has a tap, and a tile has room for all phases of a channel."""
    s, k = problem.strides[-1], problem.kernel[-1]
    if unit is None or not problem.planar or s > k or s > unit.mr[2] or s > MOST_PHASES:
        return False
    return math.gcd(s, problem.dilations[-1]) == 1 and problem.ci > 0 and 0 not in problem.out_shape


def flattened(problem):
    """The problem with its axes as one, where that is the same; else the problem."""
    axes = zip(problem.kernel, problem.strides, problem.begin, problem.in_sizes, problem.out_sizes, strict=True)
    if problem.rank == 1 or any((k, s, begin, size) != (1, 1, 0, out) for k, s, begin, size, out in axes):
        return problem
    pixels, one = (math.prod(problem.in_sizes),), (1,)
    return problem._replace(in_sizes=pixels, out_sizes=pixels, kernel=one, strides=one, dilations=one, begin=(0,))


def schedule(problem, here, unit, threads, finite=True):
    """The `Schedule`; None for a problem that it does not do, and for weights that are not finite."""
    info = here.info(problem.dtype, unit)
    if not finite or not takes(problem, info):
        return None
    flat = flattened(problem)
    _, axes = common.axes(flat, merges(flat.rank), (False,) * flat.rank)
    if math.prod(map(len, axes)) > common.MANY_CLASSES:
        return None
    reached = [[(n, run) for n, run in enumerate(runs) if run.group >= 0] for runs in axes]
    combos, hole = list(itertools.product(*reached)), sum(map(len, axes)) > sum(map(len, reached))
    cycles = _work(flat, combos) / (2 * info.vl)
    if cycles < here.limits.single_thread_cycles:
        threads = 1
    few = _TASKS * threads / (problem.groups * max(1, len(combos)))
    classes = [_class(flat, combo, info, here, few) for combo in combos]
    if len(classes) > 1:
        classes.sort(key=lambda c: -min(c.block, c.pixels) * c.depth * c.units / c.tile_blocks)
    weights = sum(c.units * c.depth for c in classes) * flat.strides[-1] * problem.groups * info.e_size
    stream = execution.outgrows(problem, here.limits.direct_non_temporal) and problem.out_sizes[-1] * info.s_size % 64 == 0
    return Schedule(
        problem=problem,
        unit=unit,
        threads=threads,
        form=(),
        flat=flat is not problem,
        classes=tuple(classes),
        how=execution.decide(problem, here, info, hole, cycles, weights, False),
        stream=stream,
        fetch=not stream and execution.outgrows(problem, here.l2),
        far=weights > here.limits.far,
        workspace=_workspace(problem, classes, info),
    )


def _work(problem, combos):
    """Multiply-adds, about."""
    per_pixel = sum(math.prod([run.count * len(run.first_in) * len(run.first_out) for _, run in combo]) for combo in combos)
    return problem.batch * problem.groups * problem.ci * problem.co * per_pixel


def _class(problem, combo, info, here, few):
    """A class in tasks: ``few`` are too few, if they can be more."""
    s, taps, phases, pixels = problem.strides[-1], 1, 1, problem.batch
    for _, run in combo:
        taps, phases, pixels = taps * len(run.first_in), phases * len(run.first_out), pixels * run.count
    depth, nr, each = taps * info.filled(problem.ci), info.nr, info.mr[2] // s
    units = problem.co * phases // s
    tiles = -(-units // each)
    room = _PANELS[info.matrix] // (max(depth, 1) * info.e_size)
    block = max(nr, min(_MOST_PIXELS, room) // nr * nr)
    if block > _LEAST_PIXELS and -(-pixels // block) < few:  # smaller ones, but no smaller than need be
        block = max(min(block, (pixels - 1) // (math.ceil(few) - 1) // nr * nr), _LEAST_PIXELS // nr * nr)
    blocks = -(-pixels // block)
    block = -(-pixels // (blocks * nr)) * nr
    blocks = -(-pixels // block)
    most = max(1, tiles * each * s // _LEAST_ROWS)
    tile_block = -(-tiles // max(1, min(most, tiles, math.ceil(few / blocks))))
    bytes = each * s * max(depth, 1) * info.e_size
    together = 1 if info.matrix else max(1, min(_CALL_ROWS // (each * s), int(_CALL_BYTES * here.l2) // bytes, tile_block))
    return Class(
        runs=tuple([n for n, _ in combo]), pixels=pixels, row=combo[-1][1].count, taps=taps, depth=depth, units=units,
        block=block, blocks=blocks, tiles=tiles, tile_block=tile_block, tile_blocks=-(-tiles // tile_block), together=together,
    )  # fmt: skip


def _workspace(problem, classes, info):
    """Panels of inputs; lines that are laid out to be packed; tiles of a call, and where their rows, planes and outputs begin;
    where the units of a task go, and their bias; runs of pixels, and where each panel's begin."""
    block, depth = max((c.block for c in classes), default=0), max((c.depth for c in classes), default=0)
    rows = max((c.together for c in classes), default=1) * info.mr[2]
    units = max((-(-c.units // c.tiles) * c.tile_block for c in classes), default=0)
    return book(
        panels=block * depth * info.e_size,
        lines=PACKED_LINES * info.nr * info.s_size,
        made=(rows * info.nr + info.vl) * info.t_size,
        rows=rows * 8,
        planes=rows * 8,
        outs=rows * 8,
        units=units * 8,
        # A row of accumulators; then one for each unit, where tiles are stored as they are, else a number.
        bias=(info.nr + units * (info.nr if problem.strides[-1] == 1 else 1)) * info.t_size,
        pieces=block * (3 + problem.rank) * 8,
        first_piece=(block // info.nr + 1) * 8,
    )
