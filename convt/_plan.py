"""Which backend and algorithm a problem gets, in what blocks; plans are kept per shape.

The plans themselves (tables for the loops) are made here and run in _core. Sizes are chosen by a small model in vector
multiply-adds: what a register tile costs at its true height, and what gathering the input costs.
"""

import itertools
import math
import threading
from dataclasses import dataclass

import numpy as np

from . import _activation, _config, _core, _phases, _reference
from ._errors import BackendUnavailableError
from ._problem import ITEMSIZE, NUMPY_DTYPE

ALGORITHMS = ("direct", "depthwise")

CACHED_PLANS = 64
MAX_BLOCK = 112  # rows of a task: its input (a depth chunk) then takes about 120 KiB of L2
MAX_SUMS = 1 << 20  # bytes of sums a task may keep between depth chunks


@dataclass(frozen=True)
class Plan:
    """What will run for a data shape."""

    backend: str  # "native" or "reference"
    algorithm: str
    isa: str
    tile: str  # rows x columns of the register tile
    threads: int
    tasks: int
    workspace_bytes: int  # of all threads together, beyond input and output
    packed_bytes: int  # weights as packed for this plan
    note: str = ""


class Operator:
    """Packed weights and plans of one ConvTranspose: attributes fixed, any data shape."""

    def __init__(self, attributes, filter, bias):
        check_backend(attributes)
        self._attributes = attributes
        self._filter = filter
        self._bias = bias
        self._packed = {}
        self._plans = {}
        self._lock = threading.Lock()

    def packed(self, key):
        """The weights packed for ``key`` (see `_pack`), packed once."""
        found = self._packed.get(key)
        if found is None:
            with self._lock:
                found = self._packed.get(key)
                if found is None:
                    found = self._packed[key] = _pack(self._attributes, self._filter, self._bias, key)
        return found

    def native(self, problem, in_strides, out_strides):
        key = (problem, in_strides, out_strides)
        plan = self._plans.get(key)
        if plan is None:
            plan = _make(problem, self._attributes, self.packed, self._bias, in_strides, out_strides)
            with self._lock:
                while len(self._plans) >= CACHED_PLANS:
                    del self._plans[next(iter(self._plans))]
                self._plans[key] = plan
        return plan

    def runner(self, problem):
        """The callable that computes ``problem`` on views in NXC order and returns its plan."""
        if self._attributes.backend == "reference":
            return lambda data, out: _run_reference(problem, data, self._filter, self._bias, out)

        def run(data, out):
            plan = self.native(problem, data.strides, out.strides)
            plan.run(data, out, _config.get_num_threads())
            return plan

        return run

    def plan(self, problem):
        """The `Plan` for contiguous data."""
        a = self._attributes
        if a.backend == "reference":
            return _REFERENCE
        item = ITEMSIZE[problem.dtype]
        channels = problem.groups * problem.ci
        plan = self.native(
            problem,
            _contiguous((problem.batch, *problem.in_sizes, channels), item, a.data_format),
            _contiguous(problem.out_shape, item, a.data_format),
        )
        threads = plan.threads(_config.get_num_threads())
        info = _core.kernel_info(problem.dtype)
        finite = plan.packed_finite()
        return Plan(
            backend="native",
            algorithm=plan.algorithm,
            isa=plan.isa,
            tile=f"{info['mr']}x{info['nr']}",
            threads=threads,
            tasks=plan.tasks,
            workspace_bytes=threads * plan.workspace,
            packed_bytes=plan.packed_bytes(),
            note="" if finite else "NaN or Inf in the filter: borders computed apart",
        )


_REFERENCE = Plan("reference", "scatter", "numpy", "", 1, 1, 0, 0)


def one_shot(attributes, problem, filter, bias):
    """The callable that packs, plans and computes once."""
    return Operator(attributes, filter, bias).runner(problem)


def check_backend(attributes):
    if attributes.backend == "onednn":
        raise BackendUnavailableError(
            "backend: got 'onednn', which this version of convt has no binding for yet; wanted 'auto', 'native' or 'reference'"
        )


def _run_reference(problem, data, filter, bias, out):
    _reference.run(problem, data, filter, bias, out)
    return _REFERENCE


def _contiguous(shape, item, data_format):
    """Strides of a contiguous user array, in NXC axis order."""
    order = range(len(shape)) if data_format == "NXC" else (0, len(shape) - 1, *range(1, len(shape) - 1))
    strides, step = [0] * len(shape), item
    for ax in reversed(list(order)):
        strides[ax] = step
        step *= max(shape[ax], 1)
    return tuple(strides)


def _pack(attributes, filter, bias, key):
    """Weights for a key: "depthwise", or which axes' phases are merged, a tuple of bools."""
    if key == "depthwise":
        return _core.PackedFilter(attributes.dtype, filter, bias, None, True)
    groups = [
        _phases.phase_groups(k, s, d, m)
        for k, s, d, m in zip(attributes.kernel, attributes.strides, attributes.dilations, key, strict=True)
    ]
    return _core.PackedFilter(attributes.dtype, filter, bias, [_taps(combo) for combo in _combos(groups, attributes.kernel)])


def _combos(groups, kernel):
    """Every choice of one group per axis, as [(group, kernel size) per axis]."""
    return [list(zip(combo, kernel, strict=True)) for combo in itertools.product(*groups)]


def _taps(combo):
    """[phase][tap] flat kernel indices of a choice of groups, phases and taps with the last axis fastest."""
    table = np.zeros((1, 1), np.int64)
    for group, k in combo:
        taps = np.asarray(group.taps, np.int64)  # [phase][tap] of this axis
        table = table[:, None, :, None] * k + taps[None, :, None, :]
        table = table.reshape(table.shape[0] * table.shape[1], -1)
    return table


def _make(problem, attributes, packed, bias, in_strides, out_strides):
    depthwise = problem.ci == 1 and problem.co == 1 and problem.groups > 1
    if attributes.algorithm == "depthwise" and not (problem.ci == 1 and problem.co == 1):
        raise ValueError(
            f"algorithm: got 'depthwise' with {problem.ci} in and {problem.co} out channels per group, wanted 1 and 1"
        )
    if attributes.algorithm == "depthwise" or (depthwise and attributes.algorithm == "auto"):
        return _make_depthwise(problem, packed("depthwise"), bias, in_strides, out_strides)
    return _make_direct(problem, packed, bias, in_strides, out_strides)


def _fill(problem, bias):
    """What an output holds that no product reaches."""
    values = np.zeros(problem.groups * problem.co) if bias is None else bias.astype(np.float64)
    return _activation.reference(*problem.activation, values).astype(NUMPY_DTYPE[problem.dtype])


# ---------------------------------------------------------------- direct


def _axes(problem, merge, split):
    """Per axis, the phase groups and the runs."""
    groups, classes = [], []
    for ax in range(problem.rank):
        groups.append(
            _phases.phase_groups(problem.kernel[ax], problem.strides[ax], problem.dilations[ax], merge[ax])
        )
        classes.append(
            _phases.axis_classes(
                groups[ax], problem.in_sizes[ax], problem.strides[ax], problem.begin[ax], problem.out_sizes[ax], split[ax]
            )
        )
    return groups, classes


def _tile_cost(rows, columns, depth, info):
    """Cycles to multiply ``rows`` x ``depth`` by ``depth`` x ``columns``: two multiply-adds, two loads a cycle, and no
    tile faster than the latency of its sums."""
    mr, nr, vl = info["mr"], info["nr"], info["vl"]
    tiles = -(-rows // mr)
    height = rows / tiles
    full, rest = divmod(columns, nr)
    cost = 0
    for count, vectors in ((full, nr // vl), (1 if rest else 0, -(-rest // vl))):
        cost += count * max(height * vectors / 2, (height + vectors) / 2, 4.0)
    return tiles * (depth / info["kstep"]) * cost


def _cost(problem, groups, classes, info):
    total = 0.0
    for combo in itertools.product(*classes):
        if any(c.group < 0 for c in combo):
            continue
        rows = problem.batch * math.prod(c.count for c in combo)
        phases = math.prod(len(c.first_out) for c in combo)
        depth = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo) * problem.ci
        # Gathering costs a load and a store per vector, and some work per tap of a row.
        gather = rows * depth * (2.0 / info["vl"]) + rows * (depth / max(problem.ci, 1)) * 2
        total += _tile_cost(rows, phases * problem.co, depth, info) + gather + 200
    return total * problem.groups


def _choices(problem, finite):
    """The ways to cut the axes: phases merged on no axis, the last, or all; runs whole or split at the borders."""
    rank = problem.rank
    merges = {(False,) * rank, (False,) * (rank - 1) + (True,), (True,) * rank}
    splits = [(False,) * rank, (True,) * rank] if finite else [(True,) * rank]
    for merge in sorted(merges):
        for split in splits:
            yield merge, split


# Above this many runs the tables outweigh what choosing well could save.
_MANY_CLASSES = 4096


def _make_direct(problem, packed, bias, in_strides, out_strides):
    info = _core.kernel_info(problem.dtype)
    finite = packed((True,) * problem.rank).finite
    best = None
    for merge, split in _choices(problem, finite):
        if all(merge) is False and math.prod(min(s, o) for s, o in zip(problem.strides, problem.out_sizes, strict=True)) > 256:
            continue  # a class per phase: too many
        groups, classes = _axes(problem, merge, split)
        if best is not None and math.prod(map(len, classes)) > _MANY_CLASSES:
            continue
        cost = _cost(problem, groups, classes, info)
        if best is None or cost < best[0]:
            best = (cost, merge, groups, classes)
    cost, merge, groups, classes = best
    weights = packed(merge)
    item = ITEMSIZE[problem.dtype]
    out_elements = [s // item for s in out_strides]
    index = {combo: n for n, combo in enumerate(itertools.product(*(range(len(g)) for g in groups)))}
    target = cost / (4 * _config.get_num_threads())
    specs, hole = [], False
    for combo in itertools.product(*classes):
        if any(c.group < 0 for c in combo):
            hole = True
            continue
        pack = index[tuple(c.group for c in combo)]
        chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
        specs.append(_direct_class(problem, combo, chosen, pack, out_elements, info, target))
    specs.sort(key=lambda spec: -spec["work"])  # large tasks first, so that the last ones even out
    fill = _fill(problem, bias) if hole else None
    return _core.DirectPlan(problem, weights, in_strides, out_strides, fill, specs)


def _direct_class(problem, combo, chosen, pack, out_elements, info, target):
    """The tables of one class (one run per axis) for DirectPlan."""
    ci, co, kstep = problem.ci, problem.co, info["kstep"]
    ci_p = -(-ci // kstep) * kstep
    rank = problem.rank
    rows = problem.batch * math.prod(c.count for c in combo)
    taps = list(itertools.product(*(c.first_in for c in combo)))
    columns = co * math.prod(len(c.first_out) for c in combo)
    npanels = -(-columns // info["nr"])

    # Split rows into blocks, and panels where rows alone give too few tasks.
    work = max(_tile_cost(rows, columns, max(len(taps) * ci, 1), info), 1.0)
    pieces = max(1, math.ceil(work * problem.groups / max(target, 1.0) / problem.groups))
    block = max(min(MAX_BLOCK, -(-rows // pieces)), min(rows, 2 * info["mr"]))
    blocks = -(-rows // block)
    block = -(-rows // blocks)
    blocks = -(-rows // block)
    wanted = max(1, min(npanels, pieces // blocks))
    panel_block = min(-(-npanels // wanted), max(1, MAX_SUMS // (block * info["nr"] * info["t_size"])))

    panels, piece_table = _columns(problem, combo, out_elements, info)
    return {
        "count": [c.count for c in combo],
        "rows": rows,
        "block": block,
        "blocks": blocks,
        "tap_in": np.asarray(taps, np.int64).reshape(len(taps), rank),
        "chunks": _chunks(combo, chosen, ci_p, kstep),
        "panels": panels,
        "pieces": piece_table,
        "panel_block": panel_block,
        "panel_blocks": -(-npanels // panel_block),
        "inner": [(max(lo for lo, _ in c.valid), min(hi for _, hi in c.valid)) for c in combo],
        "pack": pack,
        "depth": math.prod(len(g.offsets) for g in chosen) * ci_p,
        "work": work / (blocks * -(-npanels // panel_block)),
    }


def _chunks(combo, chosen, ci_p, kstep):
    """Depth in pieces of at most KC: (first depth of the class, depth, first depth of the panel).

    A class uses a box of the panel's taps; taps that are adjacent in the panel make one stretch.
    """
    stretches, at = [], 0
    if ci_p:
        for tap in itertools.product(*(range(*c.tap_range) for c in combo)):
            flat = 0
            for n, group in zip(tap, chosen, strict=True):
                flat = flat * len(group.offsets) + n
            if stretches and stretches[-1][1] + stretches[-1][2] == flat * ci_p:
                stretches[-1][2] += ci_p
            else:
                stretches.append([at, flat * ci_p, ci_p])
            at += ci_p
    chunks = []
    for first, panel_first, depth in stretches:
        count = -(-depth // _core.KC)
        step = -(-depth // count // kstep) * kstep
        for k in range(0, depth, step):
            chunks.append((first + k, min(step, depth - k), panel_first + k))
    return chunks or [(0, 0, 0)]


def _columns(problem, combo, out_elements, info):
    """The tables of columns: panels, and the pieces of them that belong to one phase each."""
    co, nr, step = problem.co, info["nr"], out_elements[-1]
    phases = []  # (output offset, (low, high) per axis flattened)
    for phase in itertools.product(*(range(len(c.first_out)) for c in combo)):
        offset = sum(c.first_out[p] * out_elements[1 + ax] for ax, (c, p) in enumerate(zip(combo, phase, strict=True)))
        valid = [bound for c, p in zip(combo, phase, strict=True) for bound in c.valid[p]]
        phases.append((offset, valid))
    panels, pieces = [], []
    columns = co * len(phases)
    for first in range(0, columns, nr):
        width = min(nr, columns - first)
        start, column, adjacent = len(pieces), first, True
        while column < first + width:
            phase, channel = divmod(column, co)
            offset, valid = phases[phase]
            count = min(co - channel, first + width - column)
            offset += channel * step
            if len(pieces) > start:
                adjacent = adjacent and offset == expected
            expected = offset + count * step
            pieces.append([column - first, count, offset, *valid])
            column += count
        panels.append([width, int(adjacent), pieces[start][2], start, len(pieces)])
    return panels, pieces


# ---------------------------------------------------------------- depthwise

_ROW_FLOATS = 16384  # inputs of one task's run: about an L1's worth of sums' type per row tap


def _make_depthwise(problem, packed, bias, in_strides, out_strides):
    hole = False
    outer = []
    for ax in range(problem.rank - 1):
        axis = [[] for _ in range(problem.out_sizes[ax])]
        for t in range(problem.kernel[ax]):
            first = t * problem.dilations[ax] - problem.begin[ax]
            s = problem.strides[ax]
            low = max(0, -(first // s))
            high = min(problem.in_sizes[ax], (problem.out_sizes[ax] - 1 - first) // s + 1)
            for i in range(low, high):
                axis[first + i * s].append((t, i))
        outer.append(axis)

    x = problem.rank - 1
    groups = _phases.phase_groups(problem.kernel[x], problem.strides[x], problem.dilations[x], merge=False)
    runs = []
    for c in _phases.axis_classes(
        groups, problem.in_sizes[x], problem.strides[x], problem.begin[x], problem.out_sizes[x], split=True
    ):
        if c.group < 0:
            hole = True
            continue
        group = groups[c.group]
        low, high = c.valid[0]
        taps = [
            (group.taps[0][n], -group.offsets[n]) for n in range(*c.tap_range)
        ]
        runs.append((c.start + low, c.start + high, c.first_out[0] + problem.strides[x] * low, taps))
    j0 = min((r[0] for r in runs), default=0)
    j1 = max((r[1] for r in runs), default=1)
    channel_block = min(problem.groups, 64)
    rows = max(1, problem.batch * math.prod(problem.out_sizes[:-1]) * -(-problem.groups // channel_block))
    block = max(8, _ROW_FLOATS // channel_block)
    # Enough tasks for the threads where rows are few.
    block = max(8, min(block, -(-(j1 - j0) * rows // (4 * _config.get_num_threads()))))
    block = max(1, min(block, j1 - j0))
    offsets = [-off for r in runs for _, off in r[3]] or [0]
    spec = {
        "outer": outer,
        "runs": runs,
        "j0": j0,
        "block": block,
        "blocks": -(-(j1 - j0) // block),
        "channel_block": channel_block,
        "min_off": min(offsets),
        "max_off": max(offsets),
    }
    return _core.DepthwisePlan(problem, packed, in_strides, out_strides, _fill(problem, bias) if hole else None, spec)
