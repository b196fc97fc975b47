"""The schedule stage of depthwise: tasks, the way rows are read and stored, and the workspace.

`schedule` decides from a problem, a machine and the kernel that kinds.py chooses. cost.py, bind.py and the loops read its
decisions. An operator has one form of packed weights, ``(width, groups_per_vector, dots)``. It does not depend on data sizes.
"""

import math
from typing import NamedTuple

from ... import _core
from ..._base.problem import ITEMSIZE, Problem
from ..._run import workspace
from .. import common
from .cost import cost
from .kinds import LEAST_FILL, REGISTER_TERMS, kind_of

SCRATCH = 32  # rows of outputs that a task holds before it stores them with strides (equal to SCRATCH of loops.pyx)
_LANES = 64  # the least out-channels of a task; tasks have a multiple whose weights stay within _WEIGHT_BYTES
_WEIGHT_BYTES = 3 << 15  # bytes of the weights of a task
_INPUTS = 1 << 16  # numbers that a task reads for an output row, about
_OUTPUTS = 1 << 14  # numbers that a task writes to an output row, about
_ROUNDED_BYTES = 1 << 15  # bytes of float32 outputs, about, that are gathered before they are rounded to 16 bits
_STAGE_BYTES = 1 << 12  # bytes of outputs, about, of one non-temporal copy; small, so that multiply-adds overlap with it
_PREFETCH_J = 8  # outputs are prefetched this many j before they are written
_IN_REGISTERS = ("none", "clip", "relu", "leaky_relu")  # activations that kernels apply before storing


class Schedule(NamedTuple):
    """The decisions about a problem. See stages.py for the fields of all schedules."""

    problem: Problem
    unit: str
    threads: int
    form: tuple  # (width, groups_per_vector, dots) of the `kinds.CellKind`
    reads: str  # the source of inputs, as in `kinds.CellKind`
    is_16_bit: bool  # rows of 16-bit types are widened when they are first read, and outputs are rounded from L1
    skips_outside: bool  # runs may read outside the input, and kernels skip the taps there
    step: int  # the distance of consecutive j of a run
    joins_ends: bool  # outputs at the ends of a row belong to the run in the middle
    # a task
    lanes: int  # the lanes of one j
    lane_block: int  # the lanes of a task
    j0: int  # the first j of a row
    block: int  # the number of j of a task
    blocks: int  # the number of blocks of j in a row
    rows: int  # the output rows of a task
    row_taps: int  # the most input rows that reach an output row
    # stores
    in_registers: bool  # the kernel applies the activation and stores; otherwise a second kernel does so, from L1
    non_temporal: int  # bytes to which outputs must be aligned for non-temporal stores; 0 for ordinary stores
    part: int  # the number of j that are computed at a time
    staged_outputs: int  # outputs that are gathered before non-temporal copies or rounding; 0 if outputs are stored directly
    prefetch_j: int  # outputs are prefetched this many j before they are stored; 0 for no prefetch
    ordered: bool  # outputs are stored in memory order
    streams_rounded: bool  # non-temporal stores write the rounded outputs
    # the call
    hole: bool  # there are outputs that no tap reaches
    far: bool  # inputs do not stay in L2
    pinned: bool  # threads run the same tasks at every call
    alternate: bool  # calls run the tasks alternately forwards and backwards
    workspace: workspace.Workspace


def schedule(problem, here, unit, threads, finite):
    """Return the `Schedule` of a problem in NXC order, or None if depthwise does not accept it.

    ``finite`` has no effect, because depthwise multiplies no zeros outside the input.
    """
    kind = kind_of(problem, here)
    if kind is None or (ITEMSIZE[problem.dtype] == 2 and kind.reads != "as they are"):  # `widens` is true
        return None
    found, limit = _schedule(problem, here, kind, unit, threads), here.limits.single_thread_cycles
    if threads > 1 and problem.flops < 64 * limit and cost(found, here) < limit:  # too little work for a second thread
        return _schedule(problem, here, kind, unit, 1)
    return found


def _schedule(problem, here, kind, unit, threads):
    dtype, batch, groups, ci, co, in_sizes, kernel, strides, dilations, begin, out_sizes, activation = problem[:12]
    width, groups_per_vector, dots, reads, *_ = kind
    info, limits, item = here.info(dtype), here.limits, ITEMSIZE[dtype]
    vl, t_size = info.vl, info.t_size
    s, k, d, size, out, first = strides[-1], kernel[-1], dilations[-1], in_sizes[-1], out_sizes[-1], begin[-1]
    g = math.gcd(s, d)
    terms = -(-k * g // s)  # the most taps of a phase
    channels, wide, is_16_bit = groups * co, max(1, width), item == 2
    single = ci == co == 1
    row_taps = math.prod([common.most_taps_of_output(problem, ax) for ax in range(len(kernel) - 1)])
    phases = min(k, s // g)  # phases that have taps
    hole = not width and phases < s and _has_hole(s, d, phases, first, out)
    # With stride 1, the j of a run are `d` apart, so that a term of a run reads one pixel before that of the previous term.
    # This requires that lanes fill vectors, and that a run is at least as long as two of the end runs that step 1 would have.
    step = d if s == 1 < k and not width and 2 * d * d <= size and channels >= LEAST_FILL * -(-channels // vl) * vl else 1
    # Up to REGISTER_TERMS terms and DW_SOURCES rows, weights stay in registers, in kernels that also compute the ends of a row.
    skips_outside = (
        not width and (groups_per_vector > 0 or (single and s == 1 and (k > REGISTER_TERMS or row_taps > _core.DW_SOURCES)))
        and (s % d == 0 or d == step) and max(s, abs(first), abs(first + out)) < 2**31
    )  # fmt: skip

    # Blocks of j stay in the cache. If rows are few, blocks are smaller, so that all threads have tasks.
    data, written = batch * math.prod(in_sizes) * groups * ci * item, batch * math.prod(out_sizes) * channels * item
    lanes = channels * (s if width else 1)
    most_lanes = _WEIGHT_BYTES // (math.prod(kernel) * ci * t_size)
    lane_granule = groups_per_vector * co if groups_per_vector else 1
    lane_granule *= -(-_LANES // lane_granule)
    if groups_per_vector:
        most_lanes = min(most_lanes, 2 * _LANES)  # so that the inputs of a row stay in cache
    if is_16_bit:  # so that the outputs of a few j stay in L1 until they are rounded
        most_lanes = min(most_lanes, _ROUNDED_BYTES // (8 * s * t_size))
    lane_block = lanes if width else min(lanes, max(1, most_lanes // lane_granule) * lane_granule)
    lane_blocks = -(-lanes // lane_block)
    j0 = first // s
    js = max(1, -(-(first + out) // s) - j0)
    out_rows = max(1, batch * math.prod(out_sizes[:-1]))
    tasks, least_tasks = (16 * threads, 4 * threads) if threads > 1 else (1, 1)
    pixel = (lane_block // co if groups_per_vector else lane_block) * ci  # inputs of a pixel; per lane if lanes are channels
    block = min(_INPUTS // (pixel * row_taps), _OUTPUTS // (channels * s))
    block = max(8, min(block, -(-js * out_rows * lane_blocks // least_tasks)))
    blocks = -(-js // max(1, min(-(-block // 8) * 8, js)))
    block = min(-(-js // (8 * blocks)) * 8, js)
    blocks = -(-js // block)
    rows = max(1, min(out_rows, out_rows * blocks * lane_blocks // tasks))

    line, non_temporal, part, staged_outputs, prefetch_j, ordered = vl * t_size, 0, block, 0, 0, False
    in_registers, least_j = activation[0] in _IN_REGISTERS, 8 * wide
    limit = limits.depthwise_non_temporal
    if is_16_bit:  # outputs of a few j are gathered in L1 if they fit there and every output is written (no holes)
        least_j_bytes = least_j * s * lane_block * t_size
        in_registers = in_registers and not hole and least_j_bytes <= 4 * _ROUNDED_BYTES
        if in_registers:
            part = max(1, _ROUNDED_BYTES // least_j_bytes) * least_j
            staged_outputs = (part + _core.DW_TERMS) * s
    elif in_registers:
        moved_bytes = data + written
        stores_all = lane_blocks == 1 and not hole
        # Kernels of few terms and rows store in memory order, and need non-temporal stores only if the output exceeds all
        # caches. Kernels that store phase by phase or vector by vector gain by non-temporal stores from a smaller size on.
        few_terms = max(row_taps, terms) <= _core.DW_ORDERED and channels >= vl and wide == 1
        ordered = stores_all and reads == "as they are" and not groups_per_vector and few_terms
        ordered = ordered and moved_bytes <= limits.depthwise_ordered
        scattered = not ordered and moved_bytes > (limit // 2 if groups_per_vector else limit * 2 // 3)
        # Non-temporal stores need whole vectors that are cache lines. Vectors of cells share lines, and a line that is written
        # in two halves, some time apart, takes memory three times as long.
        full = line >= 64 and not dots and (co * groups_per_vector or channels) % vl == 0
        if (moved_bytes > limit or scattered) and full and wide == 1 and channels * item % line == 0:
            non_temporal, ordered = line, False
        # Pixels that share cache lines, or that are written group by group, are gathered first, if every output is written.
        least_bytes = least_j * s * channels * item
        shared = groups_per_vector or channels * t_size % 64
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
    # Kernels that read whole rows compute the ends of a row with its middle run, unless staged rows have several blocks.
    reads_whole_rows = reads == "as they are" and row_taps <= _core.DW_SOURCES and not (staged_outputs and blocks > 1)
    if skips_outside:
        joins_ends = in_registers and (groups_per_vector or reads_whole_rows)
    else:
        joins_ends = in_registers and reads_whole_rows and not (width or groups_per_vector or step > 1)
    pinned = problem.flops < limits.pinned_flops
    return with_workspace(Schedule(
        problem, unit, threads, (width, groups_per_vector, dots), "gathered" if is_16_bit else reads, is_16_bit, skips_outside,
        step, bool(joins_ends), lanes, lane_block, j0, block, blocks, rows, row_taps,
        in_registers, non_temporal, part, staged_outputs, prefetch_j, ordered,
        is_16_bit and in_registers and data + written > limit,
        hole, not is_16_bit and data > limits.far, pinned, pinned and packed_bytes(problem, kind, info) > limits.far, None,
    ), info)  # fmt: skip


def with_workspace(schedule, info):
    """Return a schedule with its workspace: tables of the input rows, outputs before they are stored, gathered rows."""
    p, (width, groups_per_vector, _), taps = schedule.problem, schedule.form, schedule.row_taps + 1
    of_rows = 1 if groups_per_vector else p.ci
    vectors = lambda lanes: info.padded(lanes) * info.t_size  # noqa: E731
    sizes = {
        "kept": 16 * taps,  # the input rows in "inputs"
        "taps": 16 * taps,  # the offset and the tap of each input row
        "sources": 8 * taps * p.ci,  # pointers to input rows
        "weights": 8 * taps * p.ci,  # pointers to their weights
        "outs": SCRATCH * vectors(max(1, width) * schedule.lane_block),
        "stage": schedule.staged_outputs * (schedule.lane_block if schedule.is_16_bit else p.groups * p.co) * info.t_size,
    }
    if schedule.reads == "gathered":
        span = (p.dilations[-1] * (p.kernel[-1] - 1)) // p.strides[-1] + 1
        pixels = min(schedule.block + span, max(1, p.in_sizes[-1]))
        sizes["inputs"] = schedule.row_taps * of_rows * pixels * pitch(schedule, info) * info.t_size
    return schedule._replace(workspace=workspace.book(**sizes))


def pitch(schedule, info):
    """Return the elements between consecutive j of gathered inputs."""
    p, (width, groups_per_vector, _) = schedule.problem, schedule.form
    if groups_per_vector:
        return schedule.lane_block // p.co * p.ci
    return schedule.lanes if width > 1 else info.padded(schedule.lane_block)


def adapted_to_strides(schedule, in_strides, out_strides, info):
    """Return ``schedule``, or a copy without the decisions that arrays with these byte strides do not permit."""
    p, item = schedule.problem, ITEMSIZE[schedule.problem.dtype]
    width, groups_per_vector, _ = schedule.form
    pixel = p.groups * p.co * item
    contiguous_in = in_strides[-1] == item and (width <= 1 or groups_per_vector or in_strides[-2] == pixel)
    changed = {}
    if schedule.reads != "gathered" and not contiguous_in:
        changed |= {"reads": "gathered", "joins_ends": schedule.joins_ends and groups_per_vector > 0, "ordered": False}
    if out_strides[-1] != item or (width and out_strides[-2] != pixel):
        changed |= {"in_registers": False, "joins_ends": False, "staged_outputs": 0, "part": schedule.block}
        changed |= {"non_temporal": 0, "prefetch_j": 0, "ordered": False, "streams_rounded": False}
    elif out_strides[-2] != pixel:
        changed["ordered"] = False
        if schedule.staged_outputs and not schedule.is_16_bit:
            changed |= {"staged_outputs": 0, "part": schedule.block}
    if schedule.non_temporal and any(s % schedule.non_temporal for s in out_strides[:-1]):
        changed["non_temporal"] = 0
    return with_workspace(schedule._replace(**changed), info) if changed else schedule


def _has_hole(s, d, phases, begin, out):
    """Check whether a window of ``out`` outputs shows phases without taps; ``phases`` is the number of phases with taps."""
    return out >= s or sum((d * n - begin) % s < out for n in range(phases)) < out


def packed_bytes(problem, kind, info):
    """Return the bytes of packed weights."""
    width, groups_per_vector, dots = kind[:3]
    groups, ci, co, s, k, taps = problem.groups, problem.ci, problem.co, problem.strides[-1], problem.kernel[-1], 0
    taps = math.prod(problem.kernel)
    if groups_per_vector:
        vectors = -(-groups // groups_per_vector) * -(-co * groups_per_vector // info.vl)
        return vectors * taps * ci * (co if dots else info.vl) * info.t_size
    repeats, terms = (s * width, -(-k // s)) if width else (1, k)
    return (taps // k * terms * ci + (width > 0 and k % s > 0)) * info.padded(repeats * groups * co) * info.t_size


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
