"""The schedule stage of depthwise: tasks, the way rows are read and stored, and the workspace.

`schedule` decides from a problem, a machine and the kernel that kinds.py chooses. cost.py, bind.py and the loops read its
decisions. An operator has one form of packed weights, ``(width, groups_per_vector, dots)``. It does not depend on data sizes.
"""

import math
from typing import NamedTuple

from ... import _core
from ..._base.problem import ITEMSIZE, Problem
from ..._run import execution
from ..._run.workspace import Workspace, book
from .. import common, phases
from .kinds import LEAST_FILL, REGISTER_TERMS, kind_of
from .layout import lanes
from .loops import SCRATCH_ROWS

_LANES = 64  # the least out-channels of a task; tasks have a multiple whose weights stay within _WEIGHT_BYTES
_WEIGHT_BYTES = 3 << 15  # bytes of the weights of a task
_INPUTS = 1 << 16  # numbers that a task reads for an output row, about
_OUTPUTS = 1 << 14  # numbers that a task writes to an output row, about
_ROUNDED_BYTES = 1 << 15  # bytes of float32 outputs, about, that are gathered before they are rounded to 16 bits
_STAGE_BYTES = 1 << 12  # bytes of outputs, about, of one non-temporal copy; small, so that multiply-adds overlap with it
_PREFETCH_J = 8  # outputs are prefetched this many j before they are written
_IN_REGISTERS = ("none", "clip", "relu", "leaky_relu")  # activations that kernels apply before storing


class Task(NamedTuple):
    """The outputs of a task."""

    lanes: int  # the lanes of one j
    lane_block: int  # the lanes of a task
    j0: int  # the first j of a row
    block: int  # the number of j of a task
    blocks: int  # the number of blocks of j in a row
    rows: int  # the output rows of a task
    row_taps: int  # the most input rows that reach an output row


class Stores(NamedTuple):
    """The way outputs are stored."""

    part: int  # the number of j that are computed at a time
    in_registers: bool = False  # the kernel applies the activation and stores; otherwise a second kernel does so, from L1
    non_temporal: int = 0  # bytes to which outputs must be aligned for non-temporal stores; 0 for ordinary stores
    staged_outputs: int = 0  # outputs that are gathered before non-temporal copies or rounding; 0: they are stored directly
    prefetch_j: int = 0  # outputs are prefetched this many j before they are stored; 0 for no prefetch
    ordered: bool = False  # outputs are stored in memory order
    streams_rounded: bool = False  # non-temporal stores write the rounded outputs


class Reads(NamedTuple):
    """The way inputs are read."""

    way: str  # the source of inputs, as in `kinds.CellKind`
    is_16_bit: bool  # rows of 16-bit types are widened when they are first read, and outputs are rounded from L1
    skips_outside: bool  # runs may read outside the input, and kernels skip the taps there
    step: int  # the distance of consecutive j of a run
    joins_ends: bool  # outputs at the ends of a row belong to the run in the middle
    far: bool  # inputs do not stay in L2
    max_off: int  # the largest j minus input index of a tap
    max_inputs: int  # the most input pixels of a task
    pitch: int  # elements between consecutive j of gathered inputs


class Schedule(NamedTuple):
    """The decisions about a problem. See stages.py for the fields of all schedules."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # (width, groups_per_vector, dots) of the `kinds.CellKind`
    task: Task
    reads: Reads
    stores: Stores
    execution: execution.Execution
    workspace: Workspace


def schedule(problem, here, unit, threads, finite):
    """Return the `Schedule` of a problem in NXC order, or None if depthwise does not accept it.

    ``finite`` has no effect, because depthwise multiplies no zeros outside the input.
    """
    kind = kind_of(problem, here)
    info = here.info(problem.dtype)
    if kind is None or (info.s_size < info.t_size and kind.reads != "as they are"):  # `widens` is true
        return None
    ci, co, out, first = problem.ci, problem.co, problem.out_sizes[-1], problem.begin[-1]
    s, k, d, size = problem.strides[-1], problem.kernel[-1], problem.dilations[-1], problem.in_sizes[-1]
    width, groups_per_vector, _, reads, _ = kind
    channels = problem.groups * co
    is_16_bit = info.s_size < info.t_size
    row_taps = math.prod([common.most_taps_of_output(problem, ax) for ax in range(problem.rank - 1)])
    has_empty_phases = phases.empty_phase_count(k, s, d, first, out) > 0
    # With stride 1, the j of a run are `d` apart, so that a term of a run reads one pixel before that of the previous term.
    # This requires that lanes fill vectors, and that a run is at least as long as two of the end runs that step 1 would have.
    step = d if s == 1 < k and not width and 2 * d * d <= size and channels >= LEAST_FILL * info.padded(channels) else 1
    # Up to REGISTER_TERMS terms and DW_SOURCES rows, weights stay in registers, in kernels that also compute the ends of a row.
    many = ci == co == s == 1 and (k > REGISTER_TERMS or row_taps > _core.DW_SOURCES)
    skips_outside = (
        not width and (groups_per_vector > 0 or many) and (s % d == 0 or d == step)
        and max(s, abs(first), abs(first + out)) < 2**31
    )  # fmt: skip
    task = _cut_tasks(problem, kind, info, threads, row_taps)
    stores = _choose_stores(problem, here, kind, info, task, has_empty_phases)
    # Kernels that read whole rows compute the ends of a row with its middle run, unless staged rows have several blocks.
    joins_ends = reads == "as they are" and row_taps <= _core.DW_SOURCES and not (stores.staged_outputs and task.blocks > 1)
    if skips_outside:
        joins_ends = joins_ends or groups_per_vector > 0
    else:
        joins_ends = joins_ends and not (width or groups_per_vector or step > 1)
    max_off = d * (k - 1) // s
    pitch = task.lane_block // co * ci if groups_per_vector else task.lanes if width > 1 else info.padded(task.lane_block)
    reads = Reads(
        "gathered" if is_16_bit else reads, is_16_bit, skips_outside, step, stores.in_registers and joins_ends,
        not is_16_bit and execution.data_bytes(problem) > here.limits.far, max_off, min(task.block + max_off + 1, max(1, size)),
        pitch,
    )  # fmt: skip
    how = execution.decide(problem, here, info, threads, lanes(problem, kind[:3], info).bytes, has_empty_phases)
    space = _workspace(problem, kind[:3], task, reads, stores, info)
    return Schedule(problem, unit, threads, kind[:3], task, reads, stores, how, space)


def _cut_tasks(problem, kind, info, threads, row_taps):
    """Return the `Task` of a problem. Blocks of j stay in the cache. If rows are few, blocks are smaller, so that all threads
    have tasks."""
    ci, co, s, first = problem.ci, problem.co, problem.strides[-1], problem.begin[-1]
    channels, lanes, groups_per_vector = problem.groups * co, problem.groups * co, kind.groups_per_vector
    if kind.width:
        lane_block = lanes = channels * s
    else:
        most_lanes, granule = _WEIGHT_BYTES // (math.prod(problem.kernel) * ci * info.t_size), _LANES
        if groups_per_vector:  # the inputs of a row stay in cache
            most_lanes, granule = min(most_lanes, 2 * _LANES), -(-_LANES // (groups_per_vector * co)) * groups_per_vector * co
        if info.s_size < info.t_size:  # the outputs of a few j stay in L1 until they are rounded
            most_lanes = min(most_lanes, _ROUNDED_BYTES // (8 * s * info.t_size))
        lane_block = min(lanes, max(1, most_lanes // granule) * granule)
    lane_blocks = -(-lanes // lane_block)
    j0 = first // s
    js = max(1, -(-(first + problem.out_sizes[-1]) // s) - j0)
    out_rows = max(1, problem.batch * math.prod(problem.out_sizes[:-1]))
    tasks, least_tasks = (16 * threads, 4 * threads) if threads > 1 else (1, 1)
    pixel = (lane_block // co if groups_per_vector else lane_block) * ci  # inputs of a pixel; per lane if lanes are channels
    block = min(_INPUTS // (pixel * row_taps), _OUTPUTS // (channels * s))
    block = max(8, min(block, -(-js * out_rows * lane_blocks // least_tasks)))
    blocks = -(-js // max(1, min(-(-block // 8) * 8, js)))
    block = min(-(-js // (8 * blocks)) * 8, js)
    blocks = -(-js // block)
    rows = max(1, min(out_rows, out_rows * blocks * lane_blocks // tasks))
    return Task(lanes, lane_block, j0, block, blocks, rows, row_taps)


def _choose_stores(problem, here, kind, info, task, has_empty_phases):
    """Return the `Stores` of a problem with these tasks."""
    s, channels, groups_per_vector = problem.strides[-1], problem.groups * problem.co, kind.groups_per_vector
    least_j, limits, line = 8 * max(1, kind.width), here.limits, info.vl * info.t_size
    if problem.activation[0] not in _IN_REGISTERS:
        return Stores(task.block)
    limit, written = limits.depthwise_non_temporal, execution.output_bytes(problem)
    moved_bytes = execution.data_bytes(problem) + written
    # Outputs of a few j are gathered in L1 if they fit there and every output is written (no empty phases).
    if info.s_size < info.t_size:
        least_bytes = least_j * s * task.lane_block * info.t_size
        if has_empty_phases or least_bytes > 4 * _ROUNDED_BYTES:
            return Stores(task.block)
        part = max(1, _ROUNDED_BYTES // least_bytes) * least_j
        return Stores(part, True, 0, (part + _core.DW_TERMS) * s, streams_rounded=moved_bytes > limit)
    non_temporal, part, staged_outputs, prefetch_j = 0, task.block, 0, 0
    stores_all = task.lane_block == task.lanes and not has_empty_phases
    # Kernels of few terms and rows store in memory order, and need non-temporal stores only if the output exceeds all
    # caches. Kernels that store phase by phase or vector by vector gain by non-temporal stores from a smaller size on.
    terms = phases.most_taps(problem.kernel[-1], s, problem.dilations[-1])
    few_terms = max(task.row_taps, terms) <= _core.DW_ORDERED and channels >= info.vl and least_j == 8
    ordered = stores_all and kind.reads == "as they are" and not groups_per_vector and few_terms
    ordered = ordered and moved_bytes <= limits.depthwise_ordered
    scattered = not ordered and moved_bytes > (limit // 2 if groups_per_vector else limit * 2 // 3)
    # Non-temporal stores need whole vectors that are cache lines. Vectors of cells share lines, and a line that is written
    # in two halves, some time apart, takes memory three times as long.
    full = line >= 64 and not kind.dots and (problem.co * groups_per_vector or channels) % info.vl == 0
    if (moved_bytes > limit or scattered) and full and least_j == 8 and channels * info.s_size % line == 0:
        non_temporal, ordered = line, False
    # Pixels that share cache lines, or that are written group by group, are gathered first, if every output is written.
    least_bytes = least_j * s * channels * info.s_size
    shared = groups_per_vector or channels * info.t_size % 64
    stageable = stores_all and shared and least_bytes <= 16 * _STAGE_BYTES and not ordered
    if moved_bytes > limit and not non_temporal and stageable:
        part = max(1, _STAGE_BYTES // least_bytes) * least_j
        staged_outputs = (part + _core.DW_TERMS) * s  # with the outputs after a run that belong to it
    # Outputs are prefetched, except in the groups kernel on cores with a small L1, where prefetching loses because that
    # kernel multiplies more between stores. Memory order gains only if the output exceeds a share of the last-level cache,
    # which is larger for vectors shorter than a cache line.
    if not staged_outputs and not (groups_per_vector and limits.ordinary_stores) and written > here.l2:
        prefetch_j, ordered = _PREFETCH_J, ordered and written > here.l3 // (4 if line >= 64 else 2)
    else:
        ordered = False
    return Stores(part, True, non_temporal, staged_outputs, prefetch_j, ordered)


def _workspace(problem, form, task, reads, stores, info):
    """Return the workspace of a schedule: tables of the input rows, outputs before they are stored, gathered rows."""
    p, (width, groups_per_vector, _) = problem, form
    gathered_rows = task.row_taps * (1 if groups_per_vector else p.ci) if reads.way == "gathered" else 0
    rows = task.row_taps + 1
    return book(
        kept=16 * rows,  # the input rows in "inputs"
        taps=16 * rows,  # the offset and the tap of each input row
        sources=8 * rows * p.ci,  # pointers to input rows
        weights=8 * rows * p.ci,  # pointers to their weights
        outs=SCRATCH_ROWS * info.padded(max(1, width) * task.lane_block) * info.t_size,
        stage=stores.staged_outputs * (task.lane_block if reads.is_16_bit else p.groups * p.co) * info.t_size,
        inputs=gathered_rows * reads.max_inputs * reads.pitch * info.t_size,
    )  # fmt: skip


def adapted_to_strides(schedule, in_strides, out_strides, info):
    """Return ``schedule``, or a copy without the decisions that arrays with these byte strides do not permit."""
    p, item, reads, stores = schedule.problem, ITEMSIZE[schedule.problem.dtype], schedule.reads, schedule.stores
    width, groups_per_vector, _ = schedule.form
    pixel = p.groups * p.co * item
    contiguous_in = in_strides[-1] == item and (width <= 1 or groups_per_vector or in_strides[-2] == pixel)
    if reads.way != "gathered" and not contiguous_in:
        reads = reads._replace(way="gathered", joins_ends=reads.joins_ends and groups_per_vector > 0)
        stores = stores._replace(ordered=False)
    if out_strides[-1] != item or (width and out_strides[-2] != pixel):
        reads, stores = reads._replace(joins_ends=False), Stores(schedule.task.block)
    elif out_strides[-2] != pixel:
        stores = stores._replace(ordered=False)
        if stores.staged_outputs and not reads.is_16_bit:
            stores = stores._replace(staged_outputs=0, part=schedule.task.block)
    if stores.non_temporal and any(s % stores.non_temporal for s in out_strides[:-1]):
        stores = stores._replace(non_temporal=0)
    if reads == schedule.reads and stores == schedule.stores:
        return schedule
    space = _workspace(p, schedule.form, schedule.task, reads, stores, info)
    return schedule._replace(reads=reads, stores=stores, workspace=space)


def products(problem):
    """Return the number of products of an input and a weight in the window."""
    p, count = problem, problem.batch * problem.groups * problem.ci * problem.co
    for axis in zip(p.kernel, p.strides, p.dilations, p.in_sizes, p.begin, p.out_sizes, strict=True):
        count *= common.tap_pair_count(*axis)
    return count


def least(problem, here, unit):
    """Return a lower bound of the cycles: those of the multiply-adds."""
    kind = kind_of(problem, here)
    if kind is None:
        return math.inf
    return products(problem) / here.info(problem.dtype).vl * kind.operations * here.profile["depthwise"]["dw_fma"]
