"""All decisions of `scatter` about a problem on a machine, as a `Schedule`.

`schedule` makes a candidate for each layout of products (COLUMNS, ACROSS, BANDS, GATHERED) and takes the cheapest by cost.py. A
candidate divides output rows, parts of a row along the last axis, and images into tasks. bind.py makes the plan.
"""

import math
from typing import NamedTuple

from ... import _core
from ..._base.problem import Problem
from ..._run.execution import Execution, decide
from ..._run.workspace import Workspace, book
from .. import common, phases, stages
from . import cost, reach

LIMIT = "dilation 1 on the last axis, with a stride of at most twice the kernel"

COLUMNS, ACROSS, BANDS, GATHERED = "columns", "across", "bands", "gathered"  # layouts of products: see `Schedule.form`

_COLUMNS_PIXELS = 126, 160  # the most input pixels of a task with COLUMNS, on vectors (9 register tiles of 14) and on AMX
_ACROSS_PIXELS = 1024  # the most input pixels of a task with ACROSS
_LEAST_PIXELS = 256  # the fewest pixels of a task of joined rows, unless that gives fewer tasks than threads
_PRODUCT_BYTES = 1 << 18  # the most bytes of products of a task with ACROSS or GATHERED
_BAND_SHARE = 0.45  # the share of L2 that the products of a task with BANDS take at most
# A thread has _BAND_TASKS tasks with BANDS if each still has _BAND_ROWS input positions along the first axis, because tasks
# share some of them; otherwise it has one.
_BAND_TASKS, _BAND_ROWS = 4, 12
_KEPT_BYTES = 1 << 20  # the most bytes of input rows that a task keeps packed
_TASK_ROWS = 16  # the most output rows of a task
_LEAST_DEPTH = 32  # the fewest in-channels for depth chunks of one tap, if several input rows reach an output row
_GATHERED_TERMS = 1 << 14  # the most terms of all outputs of an image with GATHERED
_TABLE_ENTRIES = 1 << 16  # the most entries of the tables of a plan
_PACKED_ROW = 16  # bytes of `PackedRow` in loops.pyx


class Schedule(NamedTuple):
    """Every decision about a problem on a machine."""

    problem: Problem
    unit: str
    threads: int
    # ``(layout of products, slab)``, which also names the layout of packed weights:
    # ("columns", 0): vectors run over the columns (phase, tap of the last axis, out-channel), in panels.
    # ("across", slab): vectors run over pixels. Rows of weights have a depth of ``slab`` (see `slab_of`).
    # ("bands", slab): vectors run over pixels, columns are (tap of all axes, out-channel), and rows of products are added.
    # ("gathered", slab): the same products, and outputs gather their terms.
    form: tuple
    js: tuple  # (first, end) of the j of a row along the last axis
    block: int  # number of j that a task computes of a row
    blocks: int  # number of parts with this many j in a row
    tasks: int  # tasks of the rows of an image; of all images if rows are joined or images are gathered
    joined: bool  # rows that are consecutive in the input, across images too, are multiplied as one
    chunks_of_tap: int  # depth chunks per tap, if each chunk has one tap and pixels are packed once for all rows; else 0
    in_place: bool  # with chunks of one tap: the GEMM reads pixels in place, without packing
    depth: int  # the most depth of a chunk
    pixels: int  # the most pixels of one GEMM
    slots: int  # number of input rows that a task keeps packed
    # memory, see `_with_memory`
    lda: int = 0  # elements between packed pixels
    ld: int = 0  # elements between columns of products for vectors over pixels
    tile_first: bool = False  # a register tile's weights stay in L1 for several panels; otherwise a panel does for all tiles
    slot_bytes: int = 0  # bytes of a slot, which holds one packed input row
    prefetch: bool = False  # L2 does not hold the input, so that tiles prefetch the input of the next row
    workspace: Workspace | None = None  # "zeros" (a row of -0.0), "kept" (which row each slot holds), "packed", "products"
    execution: Execution | None = None


def schedule(problem, here, unit, threads, finite):
    """Return the cheapest Schedule, or None if `scatter` does not accept the problem."""
    info = here.info(problem.dtype, unit)
    if info is None or (unit != "vectors" and not finite):
        return None
    if problem.dilations[-1] > 1 or problem.strides[-1] > 2 * problem.kernel[-1]:
        return None
    if problem.co * math.prod(problem.out_sizes) == 0:
        return None
    rows = reach.of_problem(problem)
    if rows.entries > _TABLE_ENTRIES:
        return None
    best, found = math.inf, None
    for layout in _layouts(problem, info):
        if problem.planar and layout not in (ACROSS, BANDS):  # only these read the contiguous pixels of planes
            continue
        candidate = _schedule_layout(layout, problem, here, info, rows, stages.SHARED)
        if candidate is not None and (cycles := cost.cost(candidate, here)) < best:
            best, found = cycles, candidate
    if found is None:
        return None
    if threads != stages.SHARED:
        found = _schedule_layout(found.form[0], problem, here, info, rows, threads)
    weights = problem.groups * math.prod(problem.kernel) * info.filled(problem.ci) * problem.co * info.e_size
    return found._replace(execution=decide(problem, here, info, threads, weights))


def _layouts(problem, info):
    """Return the layouts of products that the problem permits."""
    if info.kstep > 1 or not slab_of(problem.ci) or problem.strides[-1] * problem.co > _core.ACROSS:
        return (COLUMNS,)
    bands = (BANDS,) if problem.rank > 1 else ()
    return (COLUMNS, ACROSS, *bands, GATHERED) if _may_gather(problem, info) else (COLUMNS, ACROSS, *bands)


def slab_of(ci):
    """Return the depth of rows of weights for vectors over pixels, 0 if there is none.

    It is as many whole taps as fit in a depth chunk, or a part of a tap that does not fit.
    """
    parts = -(-ci // _core.KC)
    return 0 if ci == 0 else _core.KC // ci * ci if parts == 1 else -(-ci // parts)


def _schedule_layout(layout, problem, here, info, rows, threads):
    """Return the Schedule for a layout of products, or None if its products or input rows exceed the workspace bounds."""
    if layout == GATHERED:
        return _schedule_gathered(problem, here, info, threads)
    if layout == BANDS:
        return _schedule_bands(problem, here, info, rows, threads)
    ci, width, kernel = problem.ci, problem.in_sizes[-1], problem.kernel[-1]
    j0, j1 = shown_js(problem)
    js, halo = j1 - j0, phases.most_taps(kernel, problem.strides[-1], 1) - 1
    slab = slab_of(ci) if layout == ACROSS else 0
    # With depth chunks of one tap, pixels are packed once for all rows that read them, or read in place.
    chunks_by_tap = rows.taps == 1 or (ci >= _LEAST_DEPTH and rows.taps * ci * info.e_size <= _KEPT_BYTES // 16)
    columns = rows.phases * kernel * problem.co
    product_bytes, kept_bytes = max(1, columns * info.t_size), max(1, rows.taps * ci * info.e_size) if chunks_by_tap else 1
    if slab:
        most = max(16, min(_ACROSS_PIXELS, js, _PRODUCT_BYTES // product_bytes, _KEPT_BYTES // kept_bytes))
    else:
        most = min(_COLUMNS_PIXELS[info.matrix], js, _KEPT_BYTES // kept_bytes, common.MAX_PARTIAL // product_bytes - halo - 1)
    if most < min(16, js):
        return None
    images = problem.groups * problem.batch
    block, blocks = _cut_row(js, images * rows.rows, most, halo, threads, info)
    joined = slab > 0 and blocks == 1 and 0 not in problem.in_sizes and (rows.taps == 1 or width <= info.vl)
    pixels = block + halo
    if joined:
        read = problem.batch * math.prod(problem.in_sizes[:-1])
        tasks = min(_joined_tasks(read * width, threads), max(1, problem.batch * rows.row_js))
        pixels = max(pixels, (-(-max(read, problem.batch * rows.row_js) // tasks) + 1) * width)
    elif rows.taps > 1:
        tasks = _row_tasks(rows.rows, images * blocks, threads)
    else:
        tasks = max(1, rows.rows)
    tap_depth = info.filled(ci)
    chunks_of_tap, depth = 0, min(rows.taps * tap_depth, slab or _core.KC)
    # With ACROSS, pixels that only one output row reads are packed one panel (or a few, see `_with_memory`) at a time, to
    # stay in L1.
    packs_by_panel = slab and rows.taps == 1
    if chunks_by_tap and not joined and ci and not packs_by_panel:
        chunks_of_tap = -(-tap_depth // _core.KC)
        depth = info.filled(-(-tap_depth // chunks_of_tap))
    in_place = chunks_of_tap > 0 and not slab and not info.matrix and info.s_size == info.e_size and ci % info.kstep == 0
    slots = 0 if in_place else rows.taps if chunks_of_tap else 1
    return _with_memory(here, info, columns, Schedule(
        problem, info.name, threads, (layout, slab), (j0, j1), block, blocks, tasks, joined, chunks_of_tap, in_place, depth,
        pixels, slots,
    ))  # fmt: skip


def _schedule_bands(problem, here, info, rows, threads):
    """Return the Schedule for BANDS, or None if a task would have too many products: columns are all taps of all axes.

    A task has some output rows of an image. It multiplies the band of all pixels between the first and the last input row that
    reach them.
    """
    columns, images, size = math.prod(problem.kernel) * problem.co, problem.groups * problem.batch, problem.in_sizes[0]
    place = math.prod(problem.in_sizes[1:])  # pixels of a position along the first axis
    most = int(_BAND_SHARE * here.l2) // max(1, columns * info.t_size * place)  # the most positions of a task
    axis, inner = reach.of_axes(problem)
    shared = reach.shared_inputs(problem)
    if not min(size, place, images) or most < min(size, shared + 3):
        return None

    def positions(tasks):
        of_task = -(-(-(-rows.rows // tasks) - 1) // inner.rows) + 1  # rows along the first axis, at most
        return min(size, -(-(min(of_task, axis.rows) - 1) // axis.groups) + 1 + shared)

    more = min(-(-_BAND_TASKS * threads // images), size // _BAND_ROWS) // threads * threads if threads > 1 else 1
    tasks = max(-(-size // most), more)
    while positions(tasks) > most or (tasks * images % threads and tasks * images < 32 * threads):
        tasks += 1
    tasks = min(tasks, max(1, rows.rows))
    return _with_memory(here, info, columns, Schedule(
        problem, info.name, threads, (BANDS, slab_of(problem.ci)), shown_js(problem), max(1, problem.in_sizes[-1]), 1,
        tasks, False, 0, False, slab_of(problem.ci), positions(tasks) * place, 1,
    ))  # fmt: skip


def _schedule_gathered(problem, here, info, threads):
    """Return the Schedule for GATHERED: columns are all taps of all axes, and a task has whole images."""
    pixels = math.prod(problem.in_sizes)
    tasks = min(problem.batch, _joined_tasks(problem.batch * pixels, threads))
    while tasks < problem.batch and _gathered_bytes(problem, -(-problem.batch // tasks), info) > _PRODUCT_BYTES:
        tasks += threads
    tasks = min(tasks, problem.batch)
    columns = math.prod(problem.kernel) * problem.co + 1  # with a dummy column of -0.0
    return _with_memory(here, info, columns, Schedule(
        problem, info.name, threads, (GATHERED, slab_of(problem.ci)), shown_js(problem), 1, 1, tasks, True, 0, False,
        problem.ci, -(-problem.batch // tasks) * pixels, 1,
    ))  # fmt: skip


def _with_memory(here, info, columns, schedule):
    """Return a Schedule with the layout of its packed pixels and products in the workspace."""
    s, problem, nr = schedule, schedule.problem, info.nr
    wide = -(-s.pixels // nr) * nr
    # A column has a vector of padding on both sides, and a cache line that puts columns into different sets of L1.
    lda, ld = info.lda, wide + 2 * info.vl + 16
    if s.form[0] == COLUMNS:
        if info.matrix:  # an odd number of steps of depth, just enough
            lda = (s.depth // info.kstep | 1) * info.kstep
        packed, products = (s.pixels + info.m_step) * lda, s.pixels * (-(-columns // nr) * nr + 16)
    else:
        packed, products = (wide if s.chunks_of_tap else min(wide, nr)) * s.depth, columns * ld
    slot_bytes = -(-packed * info.e_size // 64) * 64 * max(1, s.chunks_of_tap)
    return s._replace(
        lda=lda, ld=ld, tile_first=columns * s.depth * info.e_size > here.l1, slot_bytes=slot_bytes,
        prefetch=problem.batch * math.prod(problem.in_sizes) * problem.ci * info.s_size > here.limits.far,
        workspace=book(
            zeros=nr * info.t_size, kept=s.slots * _PACKED_ROW, packed=s.slots * slot_bytes, products=products * info.t_size
        ),
    )  # fmt: skip


def shown_js(problem):
    """Return the range (first, end) of j along the last axis that the window shows, in part or whole."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    return begin // s, -(-(begin + out) // s)


def _cut_row(js, rows, most, halo, threads, info):
    """Return ``(block, blocks)``: the ``js`` j of a row are divided into ``blocks`` parts of ``block`` j, at most ``most``.

    ``rows`` is the number of rows of the problem, ``halo`` the number of pixels that a part reads before its own j.
    """
    block = min(most, max(16, -(-js * rows // (4 * threads))))
    block = max(1, -(-js // max(1, -(-js // max(block, 1)))))
    if info.matrix and block < js:  # whole register tiles, except for the last part
        tile = info.mr[-1]
        block = max(1, min(-(-(block + halo) // tile), max(1, (most + halo) // tile)) * tile - halo)
    return block, max(1, -(-js // block))


def _row_tasks(rows, others, threads):
    """Return the number of tasks for the ``rows`` rows of an image. Each task packs its pixels once for all its rows.

    ``others`` is the number of images times channel groups times parts of a row.
    """
    count = max(-(-rows // _TASK_ROWS), min(rows, -(-8 * threads // max(others, 1))) if threads > 1 else 1)
    while count < rows and count * others < 32 * threads and count * others % threads:
        count += 1  # until all threads have as many tasks
    return max(1, count)


def _joined_tasks(pixels, threads):
    """Return the number of tasks for joined rows with this many pixels in all, a multiple of the threads."""
    most = max(pixels // _ACROSS_PIXELS, min(4 * threads, pixels // _LEAST_PIXELS))
    return max(1, -(-most // threads)) * threads


def _gathered_bytes(problem, images, info):
    """Return the bytes of the products of some images, including the dummy column."""
    pixels = images * math.prod(problem.in_sizes) + info.nr + 2 * info.vl + 16
    return (math.prod(problem.kernel) * problem.co + 1) * pixels * info.t_size


def _may_gather(problem, info):
    """Check whether images are small enough for a table of the terms of each output."""
    if problem.groups > 1 or problem.ci > _core.KC or not problem.batch * math.prod(problem.in_sizes):
        return False
    outputs = math.prod(problem.out_sizes) * problem.co
    if max(outputs, outputs * reach.most_terms(problem)) > _GATHERED_TERMS:
        return False
    return _gathered_bytes(problem, 1, info) <= _PRODUCT_BYTES
