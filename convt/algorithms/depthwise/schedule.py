"""How depthwise computes a problem: which kernels take it, what a task is, how rows are read and stored. All is decided here.

An operator has one form of packed weights, ``(width, each, dots)``: it depends on channels, filter and stride, not on sizes.
"""

import math
from typing import NamedTuple

from ... import _core
from ..._problem import ITEMSIZE, Problem
from .. import common, workspace
from .cost import cost
from .kinds import FULL, KEPT, kind_of

SCRATCH = 32  # rows of outputs on their way to the store
_LANES = 64  # out channels of a task, or a multiple of that whose weights stay near
_WEIGHTS = 3 << 15  # bytes of those
_INPUTS = 1 << 16  # numbers that a task reads, about
_OUTPUTS = 1 << 14  # numbers that it writes to a row
_ROUNDED_BYTES = 1 << 15  # of outputs of 16-bit types, about, that are gathered before they are rounded
_STAGE_BYTES = 1 << 12  # of outputs, about, that non-temporal stores write in one copy: multiply-adds go on meanwhile
_AHEAD = 8  # j's that a line of the output is prefetched before it is written
_IN_REGISTERS = ("none", "clip", "relu", "leaky_relu")  # activations that kernels apply before they store


class Schedule(NamedTuple):
    problem: Problem
    unit: str
    threads: int
    form: tuple  # the width, each and dots of its `Kind`
    reads: str  # as `Kind` has it
    converts: bool  # rows of 16-bit types are widened as they are first read, and outputs rounded from L1
    skips: bool  # runs may read outside the input: kernels skip what is not there
    step: int  # from each j of a run to the next one
    ends: bool  # outputs at the ends of a row belong to the run between them
    # a task
    lanes: int  # of a j
    lane_block: int
    j0: int
    block: int  # values of j
    blocks: int
    rows: int
    row_taps: int  # input rows that meet in one of outputs, at most
    # how outputs are stored
    in_registers: bool  # by the kernel that computes them, which knows the activation; else on the way through L1
    non_temporal: int  # bytes to which outputs have to be aligned for non-temporal stores; 0 for ordinary ones
    part: int  # j's that are computed at a time
    staged: int  # outputs that are gathered before they are copied by non-temporal stores, or rounded; 0 where none are
    ahead: int  # j's that outputs are prefetched before they are stored
    ordered: bool  # they are stored in the order in which they lie in memory
    stream: bool  # they are rounded by non-temporal stores
    #
    hole: bool  # there are outputs that no tap reaches
    far: bool  # inputs do not stay in L2
    pinned: bool  # a thread runs the same tasks at every call
    alternate: bool  # calls run their tasks forwards and backwards in turns
    workspace: workspace.Workspace


def schedule(problem, here, unit, threads, finite):
    """The `Schedule` of a problem, in NXC order; None where depthwise does not take it. All weights are the same to it, as it
    multiplies no zeros outside the input."""
    kind = kind_of(problem, here)
    if kind is None or (ITEMSIZE[problem.dtype] == 2 and kind.reads != "as they are"):  # (see `widens`)
        return None
    found, limit = _schedule(problem, here, kind, unit, threads), here.limits.single_thread_cycles
    if threads > 1 and problem.flops < 64 * limit and cost(found, here) < limit:  # too little work for a second thread
        return _schedule(problem, here, kind, unit, 1)
    return found


def _schedule(problem, here, kind, unit, threads):
    dtype, batch, groups, ci, co, in_sizes, kernel, strides, dilations, begin, out_sizes, activation = problem[:12]
    width, each, dots, reads, *_ = kind
    info, limits, item = here.info(dtype), here.limits, ITEMSIZE[dtype]
    vl, t_size = info.vl, info.t_size
    s, k, d, size, out, first = strides[-1], kernel[-1], dilations[-1], in_sizes[-1], out_sizes[-1], begin[-1]
    g = math.gcd(s, d)
    terms = -(-k * g // s)  # of a phase
    channels, wide, converts = groups * co, max(1, width), item == 2
    single = ci == co == 1
    row_taps = math.prod([common.taps_met(problem, ax) for ax in range(len(kernel) - 1)])
    phases = min(k, s // g)  # that have taps
    hole = not width and phases < s and _hole(s, d, phases, first, out)
    # The j's of a run of stride 1 are as far apart as taps are dilated, so that each term reads the pixel before, if lanes fill
    # their vectors and such a run is no shorter than two at the borders otherwise.
    step = d if s == 1 < k and not width and 2 * d * d <= size and channels >= FULL * -(-channels // vl) * vl else 1
    # (Of few terms and rows weights stay in registers, in kernels that have their own way with ends.)
    skips = (
        not width and (each > 0 or (single and s == 1 and (k > KEPT or row_taps > _core.DW_SOURCES)))
        and (s % d == 0 or d == step) and max(s, abs(first), abs(first + out)) < 2**31
    )  # fmt: skip

    # Blocks stay in the cache; there are enough of them for the threads where rows are few.
    data, written = batch * math.prod(in_sizes) * groups * ci * item, batch * math.prod(out_sizes) * channels * item
    lanes = channels * (s if width else 1)
    near = _WEIGHTS // (math.prod(kernel) * ci * t_size)
    some = each * co if each else 1
    some *= -(-_LANES // some)
    if each:
        near = min(near, 2 * _LANES)  # (what is read of a row stays near)
    if converts:  # as do the outputs of a few j until they are rounded
        near = min(near, _ROUNDED_BYTES // (8 * s * t_size))
    lane_block = lanes if width else min(lanes, max(1, near // some) * some)
    lane_blocks = -(-lanes // lane_block)
    j0 = first // s
    js = max(1, -(-(first + out) // s) - j0)
    out_rows = max(1, batch * math.prod(out_sizes[:-1]))
    tasks, few = (16 * threads, 4 * threads) if threads > 1 else (1, 1)
    pixel = (lane_block // co if each else lane_block) * ci  # (others gather those of each lane)
    block = min(_INPUTS // (pixel * row_taps), _OUTPUTS // (channels * s))
    block = max(8, min(block, -(-js * out_rows * lane_blocks // few)))
    blocks = -(-js // max(1, min(-(-block // 8) * 8, js)))
    block = min(-(-js // (8 * blocks)) * 8, js)
    blocks = -(-js // block)
    rows = max(1, min(out_rows, out_rows * blocks * lane_blocks // tasks))

    line, non_temporal, part, staged, ahead, ordered = vl * t_size, 0, block, 0, 0, False
    in_registers, fit = activation[0] in _IN_REGISTERS, 8 * wide
    limit = limits.depthwise_non_temporal
    if converts:  # outputs of a few j are gathered in L1, where these are not too many and none are left out
        fit_bytes = fit * s * lane_block * t_size
        in_registers = in_registers and not hole and fit_bytes <= 4 * _ROUNDED_BYTES
        if in_registers:
            part = max(1, _ROUNDED_BYTES // fit_bytes) * fit
            staged = (part + _core.DW_TERMS) * s
    elif in_registers:
        both = data + written
        flat = lane_blocks == 1 and not hole
        # Few terms of few rows, whose vectors are stored in the order in which they lie, need non-temporal stores only beyond
        # any cache; what is stored phase by phase or vector by vector gains by them where a cache would be full of it.
        few = max(row_taps, terms) <= _core.DW_ORDERED and channels >= vl and wide == 1
        ordered = flat and reads == "as they are" and not each and few and both <= limits.depthwise_ordered
        scattered = not ordered and both > (limit // 2 if each else limit * 2 // 3)
        # Vectors that are lines, and whole: those of cells, whose channels fill none, share lines. (Lines written by halves,
        # some time apart, take memory three times as long.)
        full = line >= 64 and not dots and (co * each or channels) % vl == 0
        if (both > limit or scattered) and full and wide == 1 and channels * item % line == 0:
            non_temporal, ordered = line, False
        # Pixels that share lines, or are written group by group, are gathered first, where some run writes each of them.
        least_bytes = fit * s * channels * item
        shared = each or channels * t_size % 64
        if both > limit and not non_temporal and flat and shared and least_bytes <= 16 * _STAGE_BYTES and not ordered:
            part = max(1, _STAGE_BYTES // least_bytes) * fit
            staged = (part + _core.DW_TERMS) * s  # (with those after a run that belong to it)
        # Prefetching outputs: groups, which multiply more between stores, lose by it where L1 is small; what the last level
        # holds well gains nothing; and of few registers, which hold the pixels of few channels, even less does.
        if not staged and not (each and limits.ordinary_stores) and written > here.l2:
            ahead, ordered = _AHEAD, ordered and written > here.l3 // (4 if line >= 64 else 2)
        else:
            ordered = False
    # Ends need a kernel that reads whole rows; and what goes by blocks computes each alone.
    whole = reads == "as they are" and row_taps <= _core.DW_SOURCES and not (staged and blocks > 1)
    ends = in_registers and (each or whole if skips else whole and not (width or each or step > 1))
    pinned = problem.flops < limits.pinned_flops
    return regioned(Schedule(
        problem, unit, threads, (width, each, dots), "gathered" if converts else reads, converts, skips, step,
        bool(ends), lanes, lane_block, j0, block, blocks, rows, row_taps,
        in_registers, non_temporal, part, staged, ahead, ordered, converts and in_registers and data + written > limit,
        hole, not converts and data > limits.far, pinned, pinned and packed_bytes(problem, kind, info) > limits.far, None,
    ), info)  # fmt: skip


def regioned(found, info):
    """A schedule with its workspace: input rows of an output row, outputs on their way to the store, gathered rows."""
    p, (width, each, _), taps = found.problem, found.form, found.row_taps + 1
    of_rows = 1 if each else p.ci
    vectors = lambda lanes: info.padded(lanes) * info.t_size  # noqa: E731
    sizes = {
        "kept": 16 * taps,  # which input rows are gathered
        "taps": 16 * taps,  # offset and tap of each input row
        "sources": 8 * taps * p.ci,
        "weights": 8 * taps * p.ci,
        "outs": SCRATCH * vectors(max(1, width) * found.lane_block),
        "stage": found.staged * (found.lane_block if found.converts else p.groups * p.co) * info.t_size,
    }
    if found.reads == "gathered":
        span = (p.dilations[-1] * (p.kernel[-1] - 1)) // p.strides[-1] + 1
        pixels = min(found.block + span, max(1, p.in_sizes[-1]))
        sizes["inputs"] = found.row_taps * of_rows * pixels * pitch(found, info) * info.t_size
    return found._replace(workspace=workspace.book(**sizes))


def pitch(found, info):
    """Elements from j to j of gathered inputs."""
    p, (width, each, _) = found.problem, found.form
    if each:
        return found.lane_block // p.co * p.ci
    return found.lanes if width > 1 else info.padded(found.lane_block)


def permitted(found, in_strides, out_strides, info):
    """What of a schedule byte strides permit: a schedule for contiguous arrays, or the next best."""
    p, item = found.problem, ITEMSIZE[found.problem.dtype]
    width, each, _ = found.form
    pixel = p.groups * p.co * item
    contiguous_in = in_strides[-1] == item and (width <= 1 or each or in_strides[-2] == pixel)
    changed = {}
    if found.reads != "gathered" and not contiguous_in:
        changed |= {"reads": "gathered", "ends": found.ends and each > 0, "ordered": False}
    if out_strides[-1] != item or (width and out_strides[-2] != pixel):
        changed |= {"in_registers": False, "ends": False, "staged": 0, "part": found.block, "non_temporal": 0, "ahead": 0}
        changed |= {"ordered": False, "stream": False}
    elif out_strides[-2] != pixel:
        changed["ordered"] = False
        if found.staged and not found.converts:
            changed |= {"staged": 0, "part": found.block}
    if found.non_temporal and any(s % found.non_temporal for s in out_strides[:-1]):
        changed["non_temporal"] = 0
    return regioned(found._replace(**changed), info) if changed else found


def _hole(s, d, phases, begin, out):
    """Whether a window shows phases that no tap reaches, where so many have one."""
    return out >= s or sum((d * n - begin) % s < out for n in range(phases)) < out


def packed_bytes(problem, kind, info):
    """Bytes of packed weights."""
    width, each, dots = kind[:3]
    groups, ci, co, s, k, taps = problem.groups, problem.ci, problem.co, problem.strides[-1], problem.kernel[-1], 0
    taps = math.prod(problem.kernel)
    if each:
        vectors = -(-groups // each) * -(-co * each // info.vl)
        return vectors * taps * ci * (co if dots else info.vl) * info.t_size
    repeats, terms = (s * width, -(-k // s)) if width else (1, k)
    return (taps // k * terms * ci + (width > 0 and k % s > 0)) * info.padded(repeats * groups * co) * info.t_size


def products(problem):
    """Products of an input and a weight that meet in the window."""
    p, found = problem, problem.batch * problem.groups * problem.ci * problem.co
    for ax in range(len(p.kernel)):
        found *= common.pairs_met(p.kernel[ax], p.strides[ax], p.dilations[ax], p.in_sizes[ax], p.begin[ax], p.out_sizes[ax])
    return found


def least(problem, here, unit):
    """Cycles that no schedule is below: those of its multiply-adds."""
    kind = kind_of(problem, here)
    if kind is None:
        return math.inf
    return products(problem) / here.info(problem.dtype).vl * kind.operations * here.profile["depthwise"]["dw_fma"]
