"""What scatter decides for a problem: how products are held, and which rows, stretches of a row and images are a task."""

import math
from typing import NamedTuple

from ... import _core
from ..._problem import ITEMSIZE, Problem
from .. import common, execution, stages
from ..workspace import Workspace, book
from . import cost, reach
from .loops import PANELS

LIMIT = "it wants dilation 1 on the last axis, with a stride of at most twice the kernel"

NAMES = {
    "vectors": "scatter", "amx": "matrix_scatter", "amx_two": "matrix_high_scatter", "amx_one": "matrix_medium_scatter",
    "dots": "dots_scatter",
}  # fmt: skip

COLUMNS, ACROSS, GATHERED = "columns", "across", "gathered"  # how products are held: see `Schedule.form`

_ROWS = 126, 160  # input pixels of a task, for vectors (9 tiles of 14) and matrices
_PIXELS = 1024  # the same across
_FEW_PIXELS = 256  # of a task, where there are several
_SUMS = 1 << 18  # bytes of their products
_KEPT = 1 << 20  # of input rows that are kept packed
_ROWS_SHARE = 16  # output rows of a task
_LEAST_DEPTH = 32  # in-channels that a chunk should have
_PICKS = 1 << 14  # sums of an image that may be listed
_ENTRIES = 1 << 16  # of the tables of a plan
_PACKED_ROW = 16  # bytes that say which input row is packed: of `PackedRow` in loops.pxd


class Schedule(NamedTuple):
    """Everything that is decided: see stages.py."""

    problem: Problem
    unit: str
    threads: int
    # How products are held and weights are packed: ``(way, slab)``.
    # ("columns", 0): vectors run over the columns (phase, tap of the last axis, out-channel), in panels.
    # ("across", slab): vectors run over pixels. The rows of weights are ``slab`` deep: see `slab_of`.
    # ("gathered", slab): the same, whose columns are the taps of all axes: outputs gather what they sum.
    form: tuple
    block: int  # blocks of stride outputs along the last axis that a task does of a row,
    blocks: int  # which is cut into so many of them
    tasks: int  # that the rows of an image are, or those of all images if they are joined, or all images if gathered
    joined: bool  # rows that follow each other in the input, of images too, are multiplied as one
    chunks_of_tap: int  # chunks of depth that a tap is, whose pixels are packed once for all rows; 0 if chunks span taps
    in_place: bool  # such pixels are not packed, but read where they lie
    depth: int  # of a chunk at most
    pixels: int  # that are multiplied as one at most
    panels: int  # of pixels that are met once, which are packed and multiplied at a time
    slots: int  # input rows that a task keeps packed
    slot_bytes: int
    prefetch: bool  # input comes from far: tiles prefetch what the next row reads
    workspace: Workspace  # "zeros", "kept" (what the slots hold), "packed" (the slots), "products"
    execution: execution.Execution


def schedule(problem, here, unit, threads, finite):
    """The cheapest `Schedule`; None if there is none."""
    info = here.info(problem.dtype, unit)
    if info is None or (unit != "vectors" and not finite):
        return None
    if problem.dilations[-1] > 1 or problem.strides[-1] > 2 * problem.kernel[-1]:
        return None
    if problem.co * math.prod(problem.out_sizes) == 0:
        return None
    rows = reach.of_problem(problem)
    if rows.entries > _ENTRIES:
        return None
    best, found = math.inf, None
    for way in _ways(problem, info):
        if problem.planar and way != ACROSS:  # the pixels of a plane are side by side, as they are across
            continue
        candidate = _of_way(way, problem, here, info, rows, stages.SHARED)
        if candidate is not None and (cycles := cost.cost(candidate, here)) < best:
            best, found = cycles, candidate
    if found is None:
        return None
    threads = common.threads(best, threads, here)
    if threads != stages.SHARED:
        found = _of_way(found.form[0], problem, here, info, rows, threads)
    weights = problem.groups * math.prod(problem.kernel) * info.filled(problem.ci) * problem.co * info.e_size
    return found._replace(execution=execution.decide(problem, here, info, False, best, weights, False))


def _ways(problem, info):
    """How products may be held."""
    if info.kstep > 1 or not slab_of(problem.ci) or problem.strides[-1] * problem.co > _core.ACROSS:
        return (COLUMNS,)
    return (COLUMNS, ACROSS, GATHERED) if _may_gather(problem, info) else (COLUMNS, ACROSS)


def slab_of(ci):
    """The depth of rows of weights, across: as many whole taps as a chunk has room for, or an even part of one; 0 if there is
    none."""
    parts = -(-ci // _core.KC)
    return 0 if ci == 0 or ci % parts else _core.KC // ci * ci if parts == 1 else ci // parts


def _of_way(way, problem, here, info, rows, threads):
    """The schedule of a way to hold products; None if they do not fit."""
    if way == GATHERED:
        return _gathered(problem, here, info, threads)
    ci, width, kernel = problem.ci, problem.in_sizes[-1], problem.kernel[-1]
    j0, j1 = blocks_shown(problem)
    js, before = j1 - j0, terms(problem) - 1
    slab = slab_of(ci) if way == ACROSS else 0
    # Depth chunks of a tap each: pixels are packed once for all rows that read them, or read where they lie.
    keeps = rows.taps == 1 or (ci >= _LEAST_DEPTH and rows.taps * ci * info.e_size <= _KEPT // 16)
    columns = rows.phases * kernel * problem.co
    sums, kept = max(1, columns * info.t_size), max(1, rows.taps * ci * info.e_size) if keeps else 1
    if slab:
        most = max(16, min(_PIXELS, js, _SUMS // sums, _KEPT // kept))
    else:
        most = min(_ROWS[info.matrix], js, _KEPT // kept, common.MAX_PARTIAL // sums - before - 1)
    if most < min(16, js):
        return None
    images = problem.groups * problem.batch
    block, blocks = _cut_row(js, images * rows.rows, most, before, threads, info)
    joined = slab > 0 and blocks == 1 and 0 not in problem.in_sizes and (rows.taps == 1 or width <= info.vl)
    pixels = block + before
    if joined:
        read = problem.batch * math.prod(problem.in_sizes[:-1])
        tasks = min(_joined_tasks(read * width, threads), max(1, problem.batch * rows.places))
        pixels = max(pixels, (-(-max(read, problem.batch * rows.places) // tasks) + 1) * width)
    elif rows.taps > 1:
        tasks = _row_tasks(rows.rows, images * blocks, threads)
    else:
        tasks = max(1, rows.rows)
    deep = info.filled(ci)
    chunks_of_tap, depth = 0, min(rows.taps * deep, slab or _core.KC)
    # Across, pixels that are met once are packed by the panel, which stays in L1, or by some panels (see `_found`).
    once = slab and rows.taps == 1
    if keeps and not joined and ci and not once:
        chunks_of_tap = -(-deep // _core.KC)
        depth = info.filled(-(-deep // chunks_of_tap))
    in_place = chunks_of_tap > 0 and not slab and not info.matrix and info.s_size == info.e_size and ci % info.kstep == 0
    return _found(
        problem, here, info, threads, (way, slab), block=block, blocks=blocks, tasks=tasks, joined=joined,
        chunks_of_tap=chunks_of_tap, in_place=in_place, depth=depth, pixels=pixels, slots=rows.taps, columns=columns,
    )  # fmt: skip


def _gathered(problem, here, info, threads):
    """All taps as columns of the products of whole images, as many for each task."""
    pixels = math.prod(problem.in_sizes)
    tasks = min(problem.batch, _joined_tasks(problem.batch * pixels, threads))
    while tasks < problem.batch and _gathered_bytes(problem, -(-problem.batch // tasks), info) > _SUMS:
        tasks += threads
    tasks = min(tasks, problem.batch)
    return _found(
        problem, here, info, threads, (GATHERED, slab_of(problem.ci)), block=1, blocks=1, tasks=tasks,
        joined=True, chunks_of_tap=0, in_place=False, depth=problem.ci, pixels=-(-problem.batch // tasks) * pixels, slots=1,
        columns=math.prod(problem.kernel) * problem.co + 1,  # one more is -0, the sum of nothing
    )  # fmt: skip


def _found(
    problem, here, info, threads, form, block, blocks, tasks, joined, chunks_of_tap, in_place, depth, pixels, slots, columns
):
    """The `Schedule` of these decisions, and its workspace."""
    # A panel has only a line of each plane, so that planes are packed a stretch at a time.
    nr, wide, panels = info.nr, -(-pixels // info.nr) * info.nr, PANELS if problem.planar else 1
    if form[0] == COLUMNS:
        packed = (pixels + info.grain) * row_elements(depth, info)
        products = pixels * (-(-columns // nr) * nr + 16)
    else:
        packed = (wide if chunks_of_tap else min(wide, panels * nr)) * depth
        products = columns * column_elements(pixels, info)
    slots = 0 if in_place else slots if chunks_of_tap else 1
    slot_bytes = -(-packed * info.e_size // 64) * 64 * max(1, chunks_of_tap)
    item = ITEMSIZE[problem.dtype]
    return Schedule(
        problem, info.name, threads, form, block, blocks, tasks, joined, chunks_of_tap, in_place, depth, pixels, panels, slots,
        slot_bytes, problem.batch * math.prod(problem.in_sizes) * problem.ci * item > here.limits.far,
        book(zeros=nr * info.t_size, kept=slots * _PACKED_ROW, packed=slots * slot_bytes, products=products * info.t_size),
        _UNDECIDED,
    )  # fmt: skip


_UNDECIDED = execution.Execution(False, False, False, False, 0)


def row_elements(depth, info):
    """Elements from one packed pixel to the next: for AMX they are as close as an odd number of steps allows."""
    return (depth // info.kstep | 1) * info.kstep if info.matrix else info.lda


def column_elements(pixels, info):
    """Across, the elements of a column's products: a vector before, one behind, and a cache line, so that columns fall into
    different sets of L1."""
    return -(-pixels // info.nr) * info.nr + 2 * info.vl + 16


def terms(problem):
    """How many products along the last axis an output sums."""
    return -(-problem.kernel[-1] // problem.strides[-1])


def blocks_shown(problem):
    """The blocks of stride outputs along the last axis that the window shows."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    return begin // s, -(-(begin + out) // s)


def _cut_row(js, rows, most, before, threads, info):
    """``(block, blocks)``: the stretches of so many, at most ``most``, blocks of stride outputs that a row is cut into; rows
    are so many in all."""
    block = min(most, max(16, -(-js * rows // (4 * threads))))
    block = max(1, -(-js // max(1, -(-js // max(block, 1)))))
    if info.matrix and block < js:  # in whole tiles but for the last one
        tile = info.mr[-1]
        block = max(1, min(-(-(block + before) // tile), max(1, (most + before) // tile)) * tile - before)
    return block, max(1, -(-js // block))


def _row_tasks(rows, others, threads):
    """How many tasks the rows of an image are, each of which packs its pixels once for all of them; ``others`` are stretches of
    a row, images and groups."""
    count = max(-(-rows // _ROWS_SHARE), min(rows, -(-8 * threads // max(others, 1))) if threads > 1 else 1)
    while count < rows and count * others < 32 * threads and count * others % threads:
        count += 1  # so that threads have as many each
    return max(1, count)


def _joined_tasks(pixels, threads):
    """How many tasks the pixels of joined rows are."""
    most = max(pixels // _PIXELS, min(4 * threads, pixels // _FEW_PIXELS))
    return max(1, -(-most // threads)) * threads


def _gathered_bytes(problem, images, info):
    """Of the products of so many images, and of the column that is nothing."""
    pixels = images * math.prod(problem.in_sizes) + info.nr + 2 * info.vl + 16
    return (math.prod(problem.kernel) * problem.co + 1) * pixels * info.t_size


def _may_gather(problem, info):
    """Whether images are so small that what each output sums can be listed."""
    if problem.groups > 1 or problem.ci > _core.KC or not problem.batch * math.prod(problem.in_sizes):
        return False
    outputs = math.prod(problem.out_sizes) * problem.co
    return outputs * reach.most_terms(problem) <= _PICKS and outputs <= _PICKS and _gathered_bytes(problem, 1, info) <= _SUMS
