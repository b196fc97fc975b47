"""scatter: a GEMM of each row of pixels with every tap of the last axis, overlap-added; for few out channels.

The key of its weights is ``("scatter", merge, slab)``: whether phases are merged on the axes but the last, or None where the
taps of these are columns too, and every output of a small image picks its sums from the products; and 0 where
vectors run over columns, else, where they run over pixels, how deep the weights' rows are. Columns need no gathering of
pixels into vectors; pixels fill their vectors however few the columns are.
"""

import functools
import itertools
import math

import numpy as np

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, execution, machine
from .loops import ScatterPlan
from .weights import ScatterRecipe

LIMIT = "it wants dilation 1 on the last axis, with a stride of at most twice the kernel"

_ROWS = 126, 160  # input pixels of a task, for vectors (9 tiles of 14) and matrices
_PIXELS = 1024  # the same across
_FEW_PIXELS = 256  # of a task that has company
_JOINED = 1 << 16  # output rows, of all images, that may be listed
_SUMS = 1 << 18  # bytes of their products
_KEPT = 1 << 20  # of input rows that are kept packed
_PICKS = 1 << 14  # sums of an image that may be listed
_ROWS_SHARE = 16  # output rows of a task
_LEAST_DEPTH = 32  # in-channels that a chunk should have
# Cycles across: of a channel of a vector of pixels, a stretch that is begun, those of a tile, a vector of outputs put in order
# by shuffles or by indices, the ends of a column that is shifted, a row of a phase.
_ACROSS = 4.7, 150, 1.35, 3, 20, 40, 130
_PICK = 0.75  # of a product that is picked
_MEMORY = (  # cycles of a byte read, of one written; of those beyond the last-level cache
    (0.03, 0.0, 0.06, 0.24),  # across
    (0.01, 0.04, 0.05, 0.33),  # vectors over columns
    (0.045, 0.01, 0.18, 0.13),  # matrices
)


def cost(problem, amx=False):
    if machine.current().info(problem.dtype, amx) is None:
        return math.inf
    return _choice(problem, amx, machine.current())[0]


def recipe(attributes, filter, bias, key, amx=False):
    # The taps of the last axis are columns, after the phases of the others.
    last = attributes.kernel[-1]
    if key[1] is None:
        classes = [np.arange(math.prod(attributes.kernel))[:, None]]
        return ScatterRecipe(attributes.dtype, filter, bias, classes, attributes.strides[-1], key[2], amx)
    classes = [
        (t[:, None, :] * last + np.arange(last)[:, None]).reshape(-1, t.shape[1])
        for t in common.pack_classes(attributes, key[1])
    ]
    return ScatterRecipe(attributes.dtype, filter, bias, classes, attributes.strides[-1], key[2], amx)


def make(problem, recipe, packed, in_strides, out_strides, threads, name="scatter", amx=False):
    plan, key = _planned(problem, recipe, in_strides, out_strides, threads, name, amx)
    if amx and not packed(key).finite:  # some weights that AMX's bfloat16 parts can't hold
        return _planned(problem, recipe, in_strides, out_strides, threads, "scatter", False)
    return plan, key


def _planned(problem, recipe, in_strides, out_strides, available, name, amx):
    cycles, merge, slab, groups, classes = _choice(problem, amx, machine.current())
    info = machine.current().info(problem.dtype, amx)
    if merge is None:
        if _dense(problem, in_strides) and _one_stretch(problem, out_strides):
            key = (name, merge, slab)
            spec = _picked_spec(problem, slab, info, common.threads(cycles, available))
            return _plan(name, problem, recipe, key, in_strides, out_strides, cycles, info, spec), key
        cycles, merge, slab, groups, classes = _choice(problem, amx, machine.current(), picked=False)
    item = ITEMSIZE[problem.dtype]
    out_elements = [s // item for s in out_strides[1:-2]]
    ci_p = common.filled(problem.ci, info)
    index = common.pack_index(groups)
    specs, most_taps = [], _most_taps(classes)
    j0, j1 = _span(problem)
    images = problem.groups * problem.batch
    threads = common.threads(cycles, available)
    rows = _rows(classes)
    block, blocks = _cut(problem, images * rows, _block(problem, classes, slab, info), threads, info)
    joined = _joined(problem, classes, slab, blocks, info) and _dense(problem, in_strides)
    apart = _apart(problem, classes, info) and not joined
    for combo in itertools.product(*classes):
        taps = list(itertools.product(*(c.first_in for c in combo)))
        pack, chunks = 0, []
        phases = common.phase_table(combo, out_elements)
        if taps:
            pack = index[tuple(c.group for c in combo)]
            chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
            chunks = common.depth_chunks(combo, chosen, ci_p, info, ci_p if apart else slab)
        specs.append({
            "count": [c.count for c in combo],
            "start": [c.start for c in combo],
            "tap_in": np.asarray(taps, np.int64).reshape(len(taps), problem.rank - 1),
            "chunks": chunks,
            "parts": len(chunks) // len(taps) if apart and taps and not (slab and most_taps == 1) else 0,
            "phases": [[offset, *valid] for offset, valid in phases],
            "pack": pack,
        })  # fmt: skip
    pixels = block + _more(problem)
    if joined:
        order, first, most = _joined_order(specs, problem, threads)
        pixels = max(pixels, most)
    else:
        order = _order(specs)
        row_block = _row_block(len(order), images * blocks, threads) if most_taps > 1 else 1
        first = [*range(0, len(order), row_block), len(order)]
    spec = {"classes": specs, "order": order, "first": first, "joined": joined, "pixels": pixels, "picks": None}
    spec.update(j0=j0, j1=j1, block=block, blocks=blocks)
    key = (name, merge, slab)
    return _plan(name, problem, recipe, key, in_strides, out_strides, cycles, info, spec), key


def _plan(name, problem, recipe, key, in_strides, out_strides, cycles, info, spec):
    here, packing = machine.current(), recipe(key)
    how = execution.execution(problem, here, info, out_strides, False, cycles, packing.weight_bytes, False)
    bytes = problem.batch * math.prod(problem.in_sizes) * problem.ci * ITEMSIZE[problem.dtype]  # of a group
    return ScatterPlan(name, problem, packing, in_strides, out_strides, how, spec | {"far": bytes > here.limits.far})


def _picked_spec(problem, slab, info, threads):
    """All taps as columns of the products of whole images, as many for each thread."""
    outer, tasks = problem.rank - 1, _picked_tasks(problem, info, threads)
    first = [problem.batch * n // tasks for n in range(tasks + 1)]
    row = {"count": [1] * outer, "start": [0] * outer, "tap_in": np.zeros((1, outer), np.int64), "parts": 0, "phases": [],
           "chunks": [(0, problem.ci, 0)], "pack": 0}  # fmt: skip
    return {
        "classes": [row], "order": [], "first": first, "joined": True,
        "pixels": max(np.diff(first)) * math.prod(problem.in_sizes), "picks": _picks(problem),
        "j0": 0, "j1": 1, "block": 1, "blocks": 1,
    }  # fmt: skip


def _picked_bytes(problem, images, info):
    """Of the products of so many images, and of the column that is nothing."""
    pixels = images * math.prod(problem.in_sizes) + info["nr"] + 2 * info["vl"] + 16
    return (math.prod(problem.kernel) * problem.co + 1) * pixels * info["t_size"]


def _picked_tasks(problem, info, threads):
    """How many tasks the images are."""
    tasks = min(problem.batch, _joined_tasks(problem, threads))
    while tasks < problem.batch and _picked_bytes(problem, -(-problem.batch // tasks), info) > _SUMS:
        tasks += threads
    return min(tasks, problem.batch)


def _may_pick(problem, info):
    """Whether images are so small that what each output sums can be listed."""
    if problem.groups > 1 or problem.planar or not problem.batch * math.prod(problem.in_sizes):
        return False
    few = _picked_bytes(problem, 1, info) <= _SUMS and 0 < math.prod(problem.out_sizes) * problem.co <= _PICKS
    return few and _picks(problem)[0].size <= _PICKS


@functools.lru_cache(maxsize=16)
def _picks(problem):
    """``(columns, pixels)``, [output][term]: the products that outputs of an image sum. Where there are fewer than terms, the
    others are of the column that is nothing."""
    nothing = math.prod(problem.kernel) * problem.co
    taps, pixels, valid = (np.full((1, 1), n, np.int64) for n in (0, 0, 1))
    for ax, (kernel, size) in enumerate(zip(problem.kernel, problem.in_sizes, strict=True)):
        pairs = common.reaching(problem, ax)
        table = np.full((len(pairs), max(map(len, pairs), default=0), 2), -1, np.int64)
        for row, some in zip(table, pairs, strict=True):
            row[: len(some)] = np.reshape(some, (-1, 2))
        shape = len(taps) * len(table), taps.shape[1] * table.shape[1]
        tap, at = (table[None, :, None, :, n] for n in (0, 1))
        taps = (taps[:, None, :, None] * kernel + tap).reshape(shape)
        pixels = (pixels[:, None, :, None] * size + at).reshape(shape)
        valid = (valid[:, None, :, None] * (tap >= 0)).reshape(shape)
    columns = taps[:, None] * problem.co + np.arange(problem.co)[:, None]
    valid = np.broadcast_to(valid[:, None], columns.shape)
    columns, pixels = np.where(valid, columns, nothing), np.where(valid, pixels[:, None], 0)
    return tuple(a.reshape(len(taps) * problem.co, taps.shape[1]) for a in (columns, pixels))


def _one_stretch(problem, out_strides):
    """Whether an image's outputs are one stretch of memory, in order."""
    step = ITEMSIZE[problem.dtype]
    sizes = *problem.out_sizes, problem.co
    for size, stride in zip(sizes[::-1], out_strides[:0:-1], strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


def _picked_cost(problem, slab, info):
    """Cycles of images whose outputs are picked."""
    transpose, start, tile = _ACROSS[:3]
    images = problem.batch
    outputs, terms = _picks(problem)[0].shape
    pick = images * (outputs * (1 + terms) * _PICK + _ACROSS[-1])
    for threads in (1, 2):
        tasks = _picked_tasks(problem, info, threads)
        pixels = -(-images // tasks) * math.prod(problem.in_sizes)
        multiply = tile * common.tile_cost(math.prod(problem.kernel) * problem.co, pixels, problem.ci, info)
        cost = tasks * (transpose * problem.ci * -(-pixels // info["vl"]) + start + multiply) + pick
        cost = common.shared([(cost, tasks)]) + _memory_cost(problem, slab, info)
        if cost < machine.current().limits.single_thread_cycles:
            break
    return cost


def _most_taps(classes):
    """How many input rows a row reads at most."""
    return math.prod(max((len(c.first_in) for c in axis), default=0) for axis in classes)


def _apart(problem, classes, info):
    """Whether a depth chunk keeps to a tap, so that pixels are packed once for all rows that read them, or used in place."""
    taps = _most_taps(classes)
    return taps == 1 or (problem.ci >= _LEAST_DEPTH and taps * problem.ci * info["e_size"] <= _KEPT // 16)


def _row_block(rows, others, threads):
    """How many rows of an image are a task, which packs its pixels once for all of them; ``others`` are stretches of a row,
    images and groups."""
    count = max(-(-rows // _ROWS_SHARE), min(rows, -(-8 * threads // max(others, 1))) if threads > 1 else 1)
    while count < rows and count * others < 32 * threads and count * others % threads:
        count += 1  # so that threads have as many each
    return max(1, -(-rows // max(count, 1)))


def _order(specs):
    """Rows of an image as [row][class, 0, j of every axis but the last], so that those that read the same inputs follow each
    other."""
    table, keys = [], []
    for n, spec in enumerate(specs):
        at = np.indices(spec["count"]).reshape(len(spec["count"]), math.prod(spec["count"]))
        table.append(np.vstack([np.full((2, at.shape[1]), [[n], [0]]), at]))
        keys.append(at + np.asarray(spec["start"], np.int64)[:, None])
    table, keys = np.hstack(table).T, np.hstack(keys)
    return table[np.lexsort(keys[::-1])] if len(keys) else table


def _joined(problem, classes, slab, blocks, info):
    """Whether rows that follow each other in the input, of images too, are multiplied as one: where each is packed for one row
    of outputs, or too short to fill vectors."""
    if not slab or blocks > 1 or problem.batch * _rows(classes) > _JOINED:
        return False
    return _most_taps(classes) == 1 or problem.in_sizes[-1] <= info["vl"]


def _dense(problem, in_strides):
    """Whether pixels are at even distances, through all rows and images."""
    pixel = step = in_strides[-2]
    for size, stride, inner in zip(
        (problem.batch, *problem.in_sizes[:-1])[::-1], in_strides[-3::-1], problem.in_sizes[::-1], strict=True
    ):
        step *= inner
        if size > 1 and stride != step:
            return False
    return pixel != 0


def _joined_tasks(problem, threads):
    """How many tasks joined rows are."""
    pixels = problem.batch * math.prod(problem.in_sizes)
    most = max(pixels // _PIXELS, min(4 * threads, pixels // _FEW_PIXELS))
    return max(1, -(-most // threads)) * threads


def _joined_order(specs, problem, threads):
    """`_order` of all images, each row with its image, and where the tasks start: as many for each thread, class by class each,
    of the same inputs; and how many pixels they have at most."""
    sizes, width = problem.in_sizes[:-1], problem.in_sizes[-1]
    rows, count = problem.batch * math.prod(sizes), _joined_tasks(problem, threads)
    table, tasks = [], []
    for n, spec in enumerate(specs):
        shape = problem.batch, *spec["count"]
        at = np.indices(shape).reshape(len(shape), math.prod(shape))
        table.append(np.vstack([np.full((1, at.shape[1]), n), at]))
        for ax, (size, start) in enumerate(zip(sizes, spec["start"], strict=True), 1):
            at[ax] = np.clip(at[ax] + start, 0, size - 1)
        tasks.append(np.ravel_multi_index(at, (problem.batch, *sizes)) * count // rows)
    table, tasks = np.hstack(table).T, np.hstack(tasks)
    order = np.argsort(tasks, kind="stable")
    first = np.flatnonzero(np.diff(tasks[order], prepend=-1))
    return table[order], [*first, len(order)], (-(-rows // count) + 1) * width


def _rows(classes):
    """How many rows of outputs an image has, over all classes."""
    return sum(math.prod(c.count for c in combo) for combo in itertools.product(*classes))


def _span(problem):
    """The blocks of stride outputs along the last axis that the window shows."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    return begin // s, -(-(begin + out) // s)


def _slab(problem, info):
    """How deep the rows of the weights are across: as many whole taps as fit; 0 where it can't be."""
    fits = info["kstep"] == 1 and 0 < problem.ci <= _core.KC and problem.strides[-1] * problem.co <= _core.ACROSS
    return _core.KC // problem.ci * problem.ci if fits else 0


def _block(problem, classes, slab, info):
    """How many blocks of the last axis one task does, so that its products and pixels stay in the cache; below 1 if none
    would."""
    j0, j1 = _span(problem)
    phases = max(math.prod(len(c.first_out) for c in combo) for combo in itertools.product(*classes))
    pixels = max(1, phases * problem.kernel[-1] * problem.co * info["t_size"])
    kept = max(1, _most_taps(classes) * problem.ci * info["e_size"] if _apart(problem, classes, info) else 1)
    if slab:
        return max(16, min(_PIXELS, j1 - j0, _SUMS // pixels, _KEPT // kept))
    return min(_ROWS[info["parts"] > 0], j1 - j0, _KEPT // kept, common.MAX_PARTIAL // pixels - _more(problem) - 1)


def _more(problem):
    """How many pixels before its own a stretch reads."""
    return -(-problem.kernel[-1] // problem.strides[-1]) - 1


def _cut(problem, rows, most, threads, info):
    """``(block, blocks)``: the stretches of so many, at most ``most``, blocks of stride outputs that a row is cut into; rows
    are so many in all."""
    j0, j1 = _span(problem)
    block = min(most, max(16, -(-(j1 - j0) * rows // (4 * threads))))
    block = max(1, -(-(j1 - j0) // max(1, -(-(j1 - j0) // max(block, 1)))))
    if info["parts"] and block < j1 - j0:  # in whole tiles but for the last one
        tile, more = info["mr"][-1], _more(problem)
        block = max(1, min(-(-(block + more) // tile), max(1, (most + more) // tile)) * tile - more)
    return block, max(1, -(-(j1 - j0) // block))


def _overlap_cost(problem, js, info):
    """Cycles to finish the outputs of so many j of a row."""
    vl, lanes, terms = info["vl"], problem.strides[-1] * problem.co, _more(problem) + 1
    if lanes <= vl and problem.groups == 1 and not problem.planar:
        return js * (3 * terms + 2)
    # Outputs of several groups are stored one by one.
    return js * (-(-lanes // vl) * (3.5 * terms + 2.5) + (2 * lanes if problem.groups > 1 else 0))


def _across_cost(problem, pixels, js, columns, taps, chunks, packs, phases, joined, info):
    """Cycles of a row across: pixels transposed by vectors of channels, the GEMM, sums put in the outputs' order."""
    vl, lanes = info["vl"], problem.strides[-1] * problem.co
    transpose, start, tile, zip, gather, edge, row = _ACROSS
    each = zip if lanes in (1, 2, 4) else gather
    if problem.groups > 1:  # whose products stay near
        each, edge = 0.6 * (_more(problem) + 1) + (2.2 if lanes in (1, 2, 4) else 6.7), edge / 3
    rows = 1
    if joined:
        rows = max(1, -(-problem.batch * math.prod(problem.in_sizes[:-1]) // _joined_tasks(problem, 2)))
    vectors = -(-rows * pixels // vl) / rows
    depth = taps * problem.ci / max(chunks, 1)
    multiply = chunks * common.tile_cost(columns, rows * pixels, depth, info) / rows
    overlap = phases * lanes * -(-js // vl) * each + (edge * columns if _more(problem) else 0.0) + row * phases
    if problem.groups > 1 and not problem.planar:
        overlap += 1.8 * phases * js * lanes
    return packs * (transpose * problem.ci * vectors + start / rows) + tile * multiply + overlap


def _ways(problem, info):
    """Phases merged on the axes but the last, or not; vectors over columns, or over pixels; outputs picked."""
    outer = problem.rank - 1
    slab = _slab(problem, info)
    ways = list(itertools.product({(False,) * outer, (True,) * outer}, {0, slab}))
    return [*ways, (None, slab)] if slab and _may_pick(problem, info) else ways


@functools.lru_cache(maxsize=256)
def _choice(problem, amx, isa, picked=True):
    """The cheapest way: (cost, merge, slab, groups, classes), of the axes but the last; the cost is infinite where it
    can't be done. Without ``picked``, of those for any memory."""
    k, s = problem.kernel[-1], problem.strides[-1]
    best = (math.inf, None, 0, None, None)
    if problem.dilations[-1] > 1 or s > 2 * k or problem.co == 0:
        return best
    info = machine.current().info(problem.dtype, amx)
    outer = problem.rank - 1
    j0, j1 = _span(problem)
    for merge, slab in _ways(problem, info):
        if merge is None:
            cost = _picked_cost(problem, slab, info) if picked else math.inf
            if cost < best[0]:
                best = (cost, merge, slab, None, None)
            continue
        groups, classes = common.axes(problem, merge, (True,) * outer)
        if math.prod(map(len, classes)) > common.MANY_CLASSES:
            continue
        combos = list(itertools.product(*classes))
        rows = problem.groups * problem.batch * sum(math.prod(c.count for c in combo) for combo in combos)
        most = _block(problem, classes, slab, info)
        if most < min(16, j1 - j0):
            continue
        _, blocks = _cut(problem, rows, most, 2, info)
        joined = _joined(problem, classes, slab, blocks, info)
        taps, apart = _most_taps(classes), _apart(problem, classes, info) and not joined
        images = problem.groups * problem.batch
        shared = _row_block(rows // max(images, 1), images * blocks, 2) if apart and taps > 1 else 0
        cost = 0.0
        for combo in combos:
            packs = _packs(combo, shared, len(combos))
            cost += _row_cost(problem, combo, blocks, slab, apart, joined, packs, info) * math.prod(c.count for c in combo)
        cost *= images * blocks
        if not joined:
            cost = common.shared([(cost, rows * blocks)])
        cost += _memory_cost(problem, slab, info)
        cost += 0.0 if slab or problem.groups > 1 else common.planes_cost(problem)
        if cost < best[0]:
            best = (cost, merge, slab, groups, classes)
    return best


def _packs(combo, rows, classes):
    """How many rows of pixels are packed for a row of a class: those of all its taps; where a task's rows, so many of so many
    classes, keep what they have packed, those of the last axis but one each once, and some before the first of them."""
    taps = math.prod(len(c.first_in) for c in combo)
    if not rows or not taps:
        return taps
    last = len(combo[-1].first_in)
    return min(taps, taps / last * (rows / classes + last - 1) / rows)


def _row_cost(problem, combo, blocks, slab, apart, joined, packs, info):
    """Cycles of one of the stretches that a row of a class is cut into."""
    k, s, ci = problem.kernel[-1], problem.strides[-1], problem.ci
    j0, j1 = _span(problem)
    phases = math.prod(len(c.first_out) for c in combo)
    taps = math.prod(len(c.first_in) for c in combo)
    columns, js = phases * k * problem.co, (j1 - j0) / blocks
    pixels = -(-(problem.in_sizes[-1] + (blocks - 1) * (-(-k // s) - 1)) // blocks)
    if slab:
        chunks = taps if apart and packs < taps else 1
        return _across_cost(problem, pixels, js, columns, taps, chunks, packs, phases, joined, info)
    chunks = taps if apart else 1
    weights = common.padded(columns, info) * taps * ci * info["e_size"]
    total = common.filter_bytes(problem, info, columns)
    row = chunks * common.tile_cost(pixels, columns, taps * common.filled(ci, info) / max(chunks, 1), info)
    row = common.fed(row, weights, total)
    if info["parts"]:
        groups, rest = divmod(ci, info["kstep"])
        sums = -(-pixels // info["grain"]) * -(-columns // info["vl"]) * (chunks * -(-ci // _core.KC) - 1)
        row += (44 if problem.planar else 16) * packs * pixels * groups + 100 * max(sums, 0) + 85 * taps
        row += (55 if problem.planar else 19) * packs * pixels * (rest > 0) + 5.5 * pixels * -(-columns // info["vl"])
        row *= 1.1 if problem.planar else 1.0
        return row + phases * (1.75 * _overlap_cost(problem, js, info) + 340) + 90
    same = ITEMSIZE[problem.dtype] == info["e_size"] and not problem.planar
    row = 1.05 * row + 20 * taps + 60
    if not (apart and same):  # else they are used in place
        row += packs * pixels * 5 * -(-ci // info["vl"])
    return row + phases * _overlap_cost(problem, js, info) + 90 + 100 * phases


def _memory_cost(problem, slab, info):
    """Cycles that data takes which the second-level cache does not hold, or not even the last; tiles have asked for some."""
    read, write, far_read, far_write = _MEMORY[0 if slab else 2 if info["parts"] else 1]
    cost = common.memory_cost(problem, (read, 3 if slab else 50), (write, 0))
    for sizes, channels, byte in ((problem.in_sizes, problem.ci, far_read), (problem.out_sizes, problem.co, far_write)):
        bytes = problem.batch * problem.groups * math.prod(sizes) * channels * ITEMSIZE[problem.dtype]
        cost += byte * bytes * common.far(bytes, machine.current().last_bytes)
    return cost
