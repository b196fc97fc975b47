"""Which backend and algorithm a problem gets, in what blocks; plans are kept per shape.

The plans themselves (tables for the loops) are made here and run in _core. Sizes are chosen by a small model in vector
multiply-adds: what a register tile costs at its true height, and what gathering the input costs.
"""

import functools
import itertools
import math
import os
import threading
import time
from dataclasses import dataclass, replace

import numpy as np

from . import _activation, _config, _core, _onednn, _phases, _reference
from ._errors import BackendUnavailableError
from ._problem import ITEMSIZE, NUMPY_DTYPE

ALGORITHMS = ("direct", "scatter", "depthwise")

CACHED_PLANS = 64
MAX_BLOCK = 126  # rows of a task, 9 tiles of 14: its input (a depth chunk) then takes about 135 KiB of L2
MAX_SUMS = 1 << 20  # bytes of sums a task may keep between depth chunks


@dataclass(frozen=True)
class Plan:
    """What will run for a data shape."""

    backend: str  # "native", "onednn" or "reference"
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

    def __init__(self, attributes, filter, bias, lasting=True):
        """``lasting``: weights will be used again, so that preparing them can pay."""
        if attributes.backend == "onednn":
            _onednn.library()  # its own error says what is missing
        self._attributes = attributes
        self._lasting = lasting
        self._filter = filter
        self._bias = bias
        self._recipes = {}
        self._packed = {}
        self._plans = {}
        self._winners = {}  # problem -> what "tune" found

    def recipe(self, key):
        """How weights are packed for ``key`` (see `_recipe`)."""
        make = lambda: _recipe(self._attributes, self._filter, self._bias, key)  # noqa: E731
        return kept(self._recipes, (key, _core.isa()), None, make)

    def packed(self, key):
        """The weights packed for ``key``, packed once."""
        place = key, _core.isa()
        found = self._packed.get(place)
        if found is None:
            with _packing:  # a second thread waits, as packing twice would cost it more
                found = self._packed.get(place)
                if found is None:
                    threads = _config.get_num_threads()
                    found = self._packed[place] = self.recipe(key).pack(self._filter, self._bias, threads)
        return found

    def made(self, problem, in_strides, out_strides, data=None, algorithm=None):
        """``(plan, key of its weights)`` of the algorithm named, else of what backend and algorithm of the operator say.

        "tune" measures on ``data``, or on zeros.
        """
        place = problem, in_strides, out_strides, algorithm, _core.isa()
        make = lambda: self._make(problem, in_strides, out_strides, data, algorithm)  # noqa: E731
        return kept(self._plans, place, CACHED_PLANS, make)

    def _make(self, problem, in_strides, out_strides, data, algorithm):
        a = self._attributes
        if algorithm is None:
            if a.backend == "onednn" or (a.backend == "auto" and self._lasting and prefer_onednn(problem, a)):
                algorithm = "onednn"
            elif a.backend == "tune":
                algorithm, _ = self._winner(problem, data)
        if algorithm == "onednn":
            plan = _onednn.Plan(problem, self._bias is not None, in_strides, out_strides, _config.get_num_threads())
            return plan, "onednn"
        a = replace(a, algorithm=algorithm or a.algorithm)
        return _make(problem, a, self.recipe, self.packed, in_strides, out_strides)

    def _winner(self, problem, data):
        """``(algorithm, note)``: the fastest of all for a problem, measured at its first call."""
        return kept(self._winners, (problem, _core.isa()), CACHED_PLANS, lambda: self._measure(problem, data))

    def _measure(self, problem, data):
        a, plans = self._attributes, {}
        source = _laid_out((problem.batch, *problem.in_sizes, problem.groups * problem.ci), problem.dtype, a.data_format)
        source[...] = 0 if data is None else data
        out = _laid_out(problem.out_shape, problem.dtype, a.data_format)
        names = [a.algorithm]
        if a.algorithm == "auto":
            names = [name for name, cost in _COSTS.items() if not math.isinf(cost(problem))]
        for name in (*names, "onednn"):
            try:
                plans[name] = self.made(problem, source.strides, out.strides, None, name)
            except BackendUnavailableError:
                continue
        best = measure({n: functools.partial(self.run, problem, found, source, out) for n, found in plans.items()})
        times = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in best.items())
        _config.say("tune", problem, times)
        return min(best, key=best.get), f"measured: {times}"

    def run(self, problem, found, data, out):
        """Compute by ``found``, a ``(plan, key)``; False, and nothing done, where the plan can't take what data holds."""
        plan, key = found
        extra = (_fill(problem, self._bias),) if plan.hole else ()
        return plan.run(data, out, self.packed(key), _config.get_num_threads(), *extra)

    def runner(self, problem):
        """The callable that computes ``problem`` on views in NXC order and returns its plan."""
        if self._attributes.backend == "reference":
            return lambda data, out: _run_reference(problem, data, self._filter, self._bias, out)

        def run(data, out):
            found = self.made(problem, data.strides, out.strides, data)
            if self.run(problem, found, data, out) is False:
                if self._attributes.backend == "onednn":
                    raise BackendUnavailableError(
                        "data: got NaN or infinity, in data, filter or bias, which oneDNN's kernel for this problem "
                        "does not keep in place; wanted finite values, or the backend 'auto' or 'native'"
                    )
                found = self.made(problem, data.strides, out.strides, None, self._attributes.algorithm)
                self.run(problem, found, data, out)
            return found[0]

        return run

    def contiguous(self, problem):
        """`made` for contiguous data and output."""
        item, data_format = ITEMSIZE[problem.dtype], self._attributes.data_format
        data_shape = (problem.batch, *problem.in_sizes, problem.groups * problem.ci)
        return self.made(
            problem, _contiguous(data_shape, item, data_format), _contiguous(problem.out_shape, item, data_format)
        )

    def bind(self, problem):
        """``(plan, key of its weights)`` where a call on contiguous arrays is nothing but its kernels, else None."""
        if self._attributes.backend == "reference" or _config.verbose():
            return None
        plan, key = self.contiguous(problem)
        return None if plan.hole else (plan, key)

    def plan(self, problem):
        """The `Plan` for contiguous data."""
        if self._attributes.backend == "reference":
            return _REFERENCE
        plan, key = self.contiguous(problem)
        packed = self.packed(key)
        threads = plan.threads(_config.get_num_threads())
        info = _core.kernel_info(problem.dtype)
        native = plan.backend == "native"
        note = "" if packed.finite else "NaN or Inf in the filter: borders computed apart"
        if self._attributes.backend == "tune":
            note = self._winner(problem, None)[1]
        return Plan(
            backend=plan.backend,
            algorithm=plan.algorithm,
            isa=plan.isa,
            tile=f"{info['mr'][info['nr'] // info['vl']]}x{info['nr']}" if native else "",
            threads=threads,
            tasks=plan.tasks,
            workspace_bytes=threads * plan.workspace,
            packed_bytes=packed.nbytes if native else plan.packed_bytes,
            note=note,
        )


_REFERENCE = Plan("reference", "scatter", "numpy", "", 1, 1, 0, 0)


_changing = threading.Lock()
_packing = threading.Lock()


def _unlock():
    """A child forked while another thread held a lock would wait for it for ever."""
    global _changing, _packing
    _changing, _packing = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def kept(cache, key, limit, make):
    """cache[key], made if absent; the oldest entries leave a cache of ``limit``. Threads may make one twice."""
    found = cache.get(key)
    if found is None:
        found = make()
        with _changing:
            while limit and key not in cache and len(cache) >= limit:
                del cache[next(iter(cache))]
            cache[key] = found
    return found


def prefer_onednn(problem, attributes):
    """Whether "auto" takes oneDNN for weights that are packed once; never for one-shot calls.

    One class gains: bfloat16 where oneDNN has AMX tiles, which convt's kernels do not use. On two cores of an Intel
    Xeon it is 1.4 to 20 times as fast (half of them above 4) on dense NXC layers with 16 in-channels or more, 2
    out-channels or more and tens of pixels; long kernels, and pads as long as the kernel, leave it its slow paths. float32
    stays native: of 45 layers of public networks oneDNN was more than a tenth faster on 7 (at most twice as fast), with no
    rule of shape that tells them from the 30 on which it was slower, up to 48 times; in NCX it has only GEMM and col2im.

    Decided without making a primitive, and the library is opened only for the class. Where the instruction set was chosen
    (CONVT_ISA), oneDNN's would not be the one asked for.
    """
    return (
        problem.dtype == "bfloat16"
        and (attributes.data_format, attributes.algorithm) == ("NXC", "auto")
        and problem.groups == 1
        and problem.ci >= 16
        and problem.co >= 2
        and max(problem.dilations) == 1
        and max(problem.kernel) <= 16
        and all(b < k and e < k for b, e, k in zip(problem.begin, _onednn.pads_end(problem), problem.kernel, strict=True))
        and math.prod(problem.in_sizes) >= 32
        and problem.flops >= 20_000_000
        and _core.isa() == _config.preferred_isa()
        and _onednn.can(problem)
        and "amx" in _onednn.library()["isa"]
    )


_TUNE_SECONDS = 0.5  # how long "tune" goes on measuring what is near the best


def measure(runs):
    """The least seconds of each run, taking turns; infinite where it returns False. Only what is near is repeated."""
    best = {name: _seconds(run) for name, run in runs.items()}  # the first time packs weights and touches memory
    near = [name for name in best if best[name] <= 20 * min(best.values())]
    best.update({name: _seconds(runs[name]) for name in near})
    deadline = time.perf_counter() + _TUNE_SECONDS
    while time.perf_counter() < deadline:
        limit = 4 * min(best.values())
        for name in near:
            if best[name] <= limit:
                best[name] = min(best[name], _seconds(runs[name]))
    return best


def _seconds(run):
    start = time.perf_counter()
    return math.inf if run() is False else time.perf_counter() - start


def _run_reference(problem, data, filter, bias, out):
    _reference.run(problem, data, filter, bias, out)
    return _REFERENCE


def contiguous_strides(shape, item):
    """Byte strides of a contiguous array."""
    strides, step = [0] * len(shape), item
    for ax in reversed(range(len(shape))):
        strides[ax] = step
        step *= max(shape[ax], 1)
    return tuple(strides)


def _laid_out(shape, dtype, data_format):
    """An empty contiguous array, for a shape and seen in an order of NXC."""
    if data_format == "NXC":
        return np.empty(shape, NUMPY_DTYPE[dtype])
    return np.moveaxis(np.empty((shape[0], shape[-1], *shape[1:-1]), NUMPY_DTYPE[dtype]), 1, -1)


def _contiguous(shape, item, data_format):
    """Strides of a contiguous user array, for a shape and in an order of NXC."""
    if data_format == "NXC":
        return contiguous_strides(shape, item)
    batch, channels, *spatial = contiguous_strides((shape[0], shape[-1], *shape[1:-1]), item)
    return (batch, *spatial, channels)


def _recipe(attributes, filter, bias, key):
    """How weights are packed for a key: "depthwise", or which axes' phases are merged, a tuple of bools (of all axes
    for direct; ("scatter", those but the last) for scatter)."""
    dtype, kernel, strides = attributes.dtype, attributes.kernel, attributes.strides
    if key == "onednn":
        return _onednn.Recipe(filter)
    if key == "depthwise":
        return _core.PackRecipe(dtype, filter, bias, None)
    merge = key[1] if key[0] == "scatter" else key
    groups = [
        _phases.phase_groups(k, s, d, m) for k, s, d, m in zip(kernel, strides, attributes.dilations, merge, strict=False)
    ]
    classes = [_taps(combo) for combo in _combos(groups, kernel)]
    if key[0] != "scatter":
        return _core.PackRecipe(dtype, filter, bias, classes)
    # The taps of the last axis are columns, after the phases of the others.
    last = kernel[-1]
    classes = [(t[:, None, :] * last + np.arange(last)[:, None]).reshape(-1, t.shape[1]) for t in classes]
    return _core.PackRecipe(dtype, filter, bias, classes, strides[-1])


def _combos(groups, kernel):
    """Every choice of one group per axis, as [(group, kernel size) per axis]."""
    return [list(zip(combo, kernel, strict=False)) for combo in itertools.product(*groups)]


def _taps(combo):
    """[phase][tap] flat kernel indices of a choice of groups, phases and taps with the last axis fastest."""
    table = np.zeros((1, 1), np.int64)
    for group, k in combo:
        taps = np.asarray(group.taps, np.int64)  # [phase][tap] of this axis
        table = table[:, None, :, None] * k + taps[None, :, None, :]
        table = table.reshape(table.shape[0] * table.shape[1], -1)
    return table


def _make(problem, attributes, recipe, packed, in_strides, out_strides):
    """The plan of the algorithm asked for, or of the one whose cost is least, and the key of its weights."""
    costs = {name: cost(problem) for name, cost in _COSTS.items()}
    name = attributes.algorithm
    if name == "auto":
        name = min(costs, key=costs.get)
    elif math.isinf(costs[name]):
        raise ValueError(
            f"algorithm: got {name!r}, which does not do this problem ({_LIMITS[name]}); wanted 'auto' or 'direct'"
        )
    return _MAKERS[name](problem, recipe, packed, in_strides, out_strides)


_LIMITS = {
    "scatter": "it wants dilation 1 on the last axis, with a stride of at most twice the kernel",
    "depthwise": "it wants groups of at most 16 in-channels",
}


def _fill(problem, bias):
    """What an output holds that no product reaches."""
    values = np.zeros(problem.groups * problem.co) if bias is None else bias.astype(np.float64)
    return _activation.reference(*problem.activation, values).astype(NUMPY_DTYPE[problem.dtype])


# ---------------------------------------------------------------- direct


def _axes(problem, merge, split):
    """The phase groups and the runs of the first axes, as many as ``merge`` speaks of."""
    groups, classes = [], []
    for ax, (m, cut) in enumerate(zip(merge, split, strict=True)):
        s, begin, out = problem.strides[ax], problem.begin[ax], problem.out_sizes[ax]
        groups.append(_phases.phase_groups(problem.kernel[ax], s, problem.dilations[ax], m))
        classes.append(_phases.axis_classes(groups[ax], problem.in_sizes[ax], s, begin, out, cut))
    return groups, classes


def _tile_cost(rows, columns, depth, info):
    """Cycles to multiply ``rows`` x ``depth`` by ``depth`` x ``columns``: two multiply-adds, two loads a cycle, and no
    tile faster than the latency of its sums."""
    nr, vl = info["nr"], info["vl"]
    full, rest = divmod(columns, nr)
    cost = 0.0
    for count, vectors in ((full, nr // vl), (1 if rest else 0, -(-rest // vl))):
        tiles = max(1, -(-rows // info["mr"][vectors])) if vectors else 0
        height = rows / max(tiles, 1)
        cost += count * tiles * max(height * vectors / 2, (height + vectors) / 2, 4.0)
    return depth / info["kstep"] * cost


def _gather_cost(rows, depth, taps, info):
    """Cycles to pack rows: a load and a store per vector, and some work per tap of a row."""
    return rows * (2.0 * depth / info["vl"] + 2.0 * taps)


def _classes_cost(problem, classes, info):
    total = 0.0
    for combo in itertools.product(*classes):
        if any(c.group < 0 for c in combo):
            continue
        rows = problem.batch * math.prod(c.count for c in combo)
        phases = math.prod(len(c.first_out) for c in combo)
        taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
        depth = taps * problem.ci
        total += _tile_cost(rows, phases * problem.co, depth, info) + _gather_cost(rows, depth, taps, info) + 200
        if phases > 1 and problem.co % info["nr"]:  # panels of several phases are stored piece by piece
            total += rows * 12.0 * phases / len(combo[-1].first_out)
    return total * problem.groups


def _cuts(problem, finite):
    """The ways to cut the axes: phases merged on no axis, the last, or all; runs whole or split at the borders."""
    rank = problem.rank
    merges = {(False,) * rank, (False,) * (rank - 1) + (True,), (True,) * rank}
    # A class per phase is too many where strides are large.
    phases = math.prod(min(s, o) for s, o in zip(problem.strides, problem.out_sizes, strict=True))
    for merge in sorted(merges, reverse=True):
        if phases > 256 and not all(merge):
            continue
        for split in (False, True) if finite else (True,):
            yield merge, (split,) * rank


# Above this many classes the tables outweigh what choosing well could save.
_MANY_CLASSES = 4096


@functools.lru_cache(maxsize=256)
def _direct_choice(problem, finite, isa):
    """The cheapest way to cut: (cost, merge, groups, classes)."""
    info = _core.kernel_info(problem.dtype)
    best = None
    for merge, split in _cuts(problem, finite):
        groups, classes = _axes(problem, merge, split)
        if best is not None and math.prod(map(len, classes)) > _MANY_CLASSES:
            continue
        cost = _classes_cost(problem, classes, info)
        if best is None or cost < best[0]:
            best = (cost, merge, groups, classes)
    return best


def _direct_cost(problem):
    return _direct_choice(problem, True, _core.isa())[0]


def _make_direct(problem, recipe, packed, in_strides, out_strides):
    info = _core.kernel_info(problem.dtype)
    choice = _direct_choice(problem, True, _core.isa())
    if not packed(choice[1]).finite:
        choice = _direct_choice(problem, False, _core.isa())
    cost, merge, groups, classes = choice
    item = ITEMSIZE[problem.dtype]
    out_elements = [s // item for s in out_strides]
    index = {combo: n for n, combo in enumerate(itertools.product(*(range(len(g)) for g in groups)))}
    target = cost / (4 * _config.get_num_threads())
    specs, hole = [], False
    for combo in itertools.product(*classes):
        if any(c.group < 0 for c in combo):
            hole = True
            continue
        if problem.batch * problem.co == 0:
            continue
        pack = index[tuple(c.group for c in combo)]
        chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
        specs.append(_direct_class(problem, combo, chosen, pack, out_elements, info, target))
    specs.sort(key=lambda spec: -spec["work"])  # large tasks first, so that the last ones even out
    return _core.DirectPlan(problem, recipe(merge), in_strides, out_strides, hole, specs), merge


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
    block = max(min(MAX_BLOCK, -(-rows // pieces)), min(rows, 28))
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


def _phase_table(combo, strides):
    """(output offset at the first pixel, [low, high of valid, per axis]) of every phase of a class."""
    table = []
    for phase in itertools.product(*(range(len(c.first_out)) for c in combo)):
        offset = sum(c.first_out[p] * step for c, p, step in zip(combo, phase, strides, strict=False))
        table.append((offset, [bound for c, p in zip(combo, phase, strict=True) for bound in c.valid[p]]))
    return table


def _columns(problem, combo, out_elements, info):
    """The tables of columns: panels, and the pieces of them that belong to one phase each."""
    co, nr, step = problem.co, info["nr"], out_elements[-1]
    phases = _phase_table(combo, out_elements[1:])
    panels, pieces = [], []
    columns = co * len(phases)
    for first in range(0, columns, nr):
        width = min(nr, columns - first)
        start, column, adjacent, expected = len(pieces), first, True, None
        while column < first + width:
            phase, channel = divmod(column, co)
            offset, valid = phases[phase]
            count = min(co - channel, first + width - column)
            offset += channel * step
            adjacent = adjacent and expected in (None, offset)
            expected = offset + count * step
            pieces.append([column - first, count, offset, *valid])
            column += count
        panels.append([width, int(adjacent), pieces[start][2], start, len(pieces)])
    return panels, pieces


# ---------------------------------------------------------------- scatter

_SCATTER_ROWS = 126  # input pixels of a task


def _scatter_span(problem):
    """The blocks of stride outputs along the last axis that the window shows."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    return begin // s, -(-(begin + out) // s)


def _scatter_block(problem, phases, info):
    """How many blocks of the last axis one task does, so that its products stay in the cache; below 1 if none would."""
    j0, j1 = _scatter_span(problem)
    bytes_per_pixel = phases * problem.kernel[-1] * problem.co * info["t_size"]
    return min(_SCATTER_ROWS, j1 - j0, MAX_SUMS // bytes_per_pixel - -(-problem.kernel[-1] // problem.strides[-1]))


def _overlap_cost(lanes, terms, info):
    """Cycles to finish the outputs of one j."""
    if 2 * lanes <= info["vl"]:
        return lanes * (terms * 1.0 + 1)
    return -(-lanes // info["vl"]) * (terms + 1) * 2.5


@functools.lru_cache(maxsize=256)
def _scatter_choice(problem, isa):
    """The cheapest way: (cost, merge, groups, classes) of the axes but the last; cost is infinite where it can't be done."""
    k, s = problem.kernel[-1], problem.strides[-1]
    best = (math.inf, None, None, None)
    if problem.dilations[-1] > 1 or s > 2 * k or problem.co == 0:
        return best
    info = _core.kernel_info(problem.dtype)
    terms, lanes, outer = -(-k // s), s * problem.co, problem.rank - 1
    j0, j1 = _scatter_span(problem)
    for merge in {(False,) * outer, (True,) * outer}:
        groups, classes = _axes(problem, merge, (True,) * outer)
        if math.prod(map(len, classes)) > _MANY_CLASSES:
            continue
        cost = 0.0
        for combo in itertools.product(*classes):
            rows = problem.batch * math.prod(c.count for c in combo)
            phases = math.prod(len(c.first_out) for c in combo)
            taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
            block = _scatter_block(problem, phases, info)
            if block < min(16, j1 - j0):
                cost = math.inf
                break
            blocks = -(-(j1 - j0) // max(block, 1))
            pixels = problem.in_sizes[-1] / blocks + terms - 1
            products = _tile_cost(pixels, phases * k * problem.co, taps * problem.ci, info)
            products += _gather_cost(pixels, taps * problem.ci, taps, info)
            overlap = phases * (pixels * _overlap_cost(lanes, terms, info) + 50)
            cost += rows * blocks * (products + overlap + 200)
        if cost * problem.groups < best[0]:
            best = (cost * problem.groups, merge, groups, classes)
    return best


def _scatter_cost(problem):
    return _scatter_choice(problem, _core.isa())[0]


def _make_scatter(problem, recipe, packed, in_strides, out_strides):
    _, merge, groups, classes = _scatter_choice(problem, _core.isa())
    info = _core.kernel_info(problem.dtype)
    item = ITEMSIZE[problem.dtype]
    out_elements = [s // item for s in out_strides[1:-2]]
    ci_p = -(-problem.ci // info["kstep"]) * info["kstep"]
    index = {combo: n for n, combo in enumerate(itertools.product(*(range(len(g)) for g in groups)))}
    specs, most_phases = [], 1
    for combo in itertools.product(*classes):
        taps = list(itertools.product(*(c.first_in for c in combo)))
        pack, chunks = 0, []
        phases = _phase_table(combo, out_elements)
        if taps:
            pack = index[tuple(c.group for c in combo)]
            chunks = _chunks(combo, [g[c.group] for g, c in zip(groups, combo, strict=True)], ci_p, info["kstep"])
            most_phases = max(most_phases, len(phases))
        specs.append({
            "count": [c.count for c in combo],
            "rows": problem.batch * math.prod(c.count for c in combo),
            "tap_in": np.asarray(taps, np.int64).reshape(len(taps), problem.rank - 1),
            "chunks": chunks,
            "phases": [[offset, *valid] for offset, valid in phases],
            "pack": pack,
        })  # fmt: skip
    specs.sort(key=lambda spec: -len(spec["tap_in"]))
    j0, j1 = _scatter_span(problem)
    rows = problem.groups * sum(spec["rows"] for spec in specs)
    block = _scatter_block(problem, most_phases, info)
    block = max(1, min(block, max(16, -(-(j1 - j0) * rows // (4 * _config.get_num_threads())))))
    blocks = max(1, -(-(j1 - j0) // block))
    spec = {"classes": specs, "j0": j0, "j1": j1, "block": -(-(j1 - j0) // blocks), "blocks": blocks}
    key = ("scatter", merge)
    return _core.ScatterPlan(problem, recipe(key), in_strides, out_strides, False, spec), key


# ---------------------------------------------------------------- depthwise


def _outer_axes(problem):
    """For each axis but the last and each of its outputs: the (tap, input index) pairs that reach it."""
    outer = []
    for ax in range(problem.rank - 1):
        s, d, size, out = problem.strides[ax], problem.dilations[ax], problem.in_sizes[ax], problem.out_sizes[ax]
        axis = [[] for _ in range(out)]
        for t in range(problem.kernel[ax]):
            first = t * d - problem.begin[ax]
            for i in range(max(0, -(first // s)), min(size, (out - 1 - first) // s + 1)):
                axis[first + i * s].append((t, i))
        outer.append(axis)
    return outer


def _rows(problem):
    """Output rows of the batch, and the average number of input rows that reach one."""
    rows = problem.batch * math.prod(problem.out_sizes[:-1])
    meet = problem.batch * math.prod(problem.in_sizes[:-1]) * math.prod(problem.kernel[:-1])
    return rows, meet / max(rows, 1)


_DEPTHWISE_CHANNELS = 16  # in-channels of a group
_DEPTHWISE_LANES = 64  # out channels of a task
_DEPTHWISE_INPUTS = 1 << 16  # numbers that a task reads, about
_DEPTHWISE_OUTPUTS = 1 << 14  # numbers that it writes


def _depthwise_cost(problem):
    if not 1 <= problem.ci <= _DEPTHWISE_CHANNELS or problem.co == 0:
        return math.inf
    info = _core.kernel_info(problem.dtype)
    lanes = problem.groups * problem.co
    rows, meet = _rows(problem)
    taps = meet * problem.kernel[-1] / problem.strides[-1] * problem.ci
    multiply = rows * problem.out_sizes[-1] * -(-lanes // info["vl"]) * (taps * 0.7 + 4)
    gather = 0.0 if problem.ci == problem.co == 1 else rows * meet * problem.in_sizes[-1] * problem.ci * lanes * 0.8
    return multiply + gather + rows * 200


def _make_depthwise(problem, recipe, packed, in_strides, out_strides):
    s, k, d = problem.strides[-1], problem.kernel[-1], problem.dilations[-1]
    groups = _phases.phase_groups(k, s, d, merge=False)
    runs, hole = [], False
    for c in _phases.axis_classes(groups, problem.in_sizes[-1], s, problem.begin[-1], problem.out_sizes[-1], split=True):
        if c.group < 0:
            hole = True
            continue
        group = groups[c.group]
        low, high = c.valid[0]
        taps = [(group.taps[0][n], -group.offsets[n]) for n in range(*c.tap_range)]
        runs.append((c.start + low, c.start + high, c.first_out[0] + s * low, taps))
    j0, j1 = min((r[0] for r in runs), default=0), max((r[1] for r in runs), default=1)
    outer = _outer_axes(problem)
    lane_block = min(problem.groups * problem.co, _DEPTHWISE_LANES)
    row_taps = max(1, math.prod(max(map(len, axis), default=0) for axis in outer))
    rows = max(1, _rows(problem)[0] * -(-problem.groups * problem.co // lane_block))
    # Blocks that stay in the cache, and enough of them for the threads where rows are few.
    block = min(_DEPTHWISE_INPUTS // (lane_block * row_taps * problem.ci), _DEPTHWISE_OUTPUTS // (lane_block * s))
    block = max(8, min(block, -(-(j1 - j0) * rows // (4 * _config.get_num_threads()))))
    block = max(1, min(block, j1 - j0))
    offsets = [-off for r in runs for _, off in r[3]] or [0]
    spec = {
        "outer": outer,
        "runs": runs,
        "j0": j0,
        "block": block,
        "blocks": -(-(j1 - j0) // block),
        "lane_block": lane_block,
        "min_off": min(offsets),
        "max_off": max(offsets),
    }
    return _core.DepthwisePlan(problem, recipe("depthwise"), in_strides, out_strides, hole, spec), "depthwise"


_COSTS = {"direct": _direct_cost, "scatter": _scatter_cost, "depthwise": _depthwise_cost}
_MAKERS = {"direct": _make_direct, "scatter": _make_scatter, "depthwise": _make_depthwise}
