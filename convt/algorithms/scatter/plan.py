"""scatter: a GEMM of each row of pixels with every tap of the last axis, overlap-added; for few out channels.

The key of its weights is ``("scatter", merge, slab)``: whether phases are merged on the axes but the last, or None where the
taps of these are columns too, and every output of a small image gathers its sums from the products; and 0 where
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
            spec = _gathered_spec(problem, slab, info, common.threads(cycles, available))
            return _plan(name, problem, recipe, key, in_strides, out_strides, cycles, info, spec), key
        cycles, merge, slab, groups, classes = _choice(problem, amx, machine.current(), gathered=False)
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
    spec = {"classes": specs, "order": order, "first": first, "joined": joined, "pixels": pixels, "gathers": None}
    spec.update(j0=j0, j1=j1, block=block, blocks=blocks)
    key = (name, merge, slab)
    return _plan(name, problem, recipe, key, in_strides, out_strides, cycles, info, spec), key


def _plan(name, problem, recipe, key, in_strides, out_strides, cycles, info, spec):
    here, packing = machine.current(), recipe(key)
    how = execution.execution(problem, here, info, out_strides, False, cycles, packing.weight_bytes, False)
    bytes = problem.batch * math.prod(problem.in_sizes) * problem.ci * ITEMSIZE[problem.dtype]  # of a group
    return ScatterPlan(name, problem, packing, in_strides, out_strides, how, spec | {"far": bytes > here.limits.far})


def _gathered_spec(problem, slab, info, threads):
    """All taps as columns of the products of whole images, as many for each thread."""
    outer, tasks = problem.rank - 1, _gathered_tasks(problem, info, threads)
    first = [problem.batch * n // tasks for n in range(tasks + 1)]
    row = {"count": [1] * outer, "start": [0] * outer, "tap_in": np.zeros((1, outer), np.int64), "parts": 0, "phases": [],
           "chunks": [(0, problem.ci, 0)], "pack": 0}  # fmt: skip
    return {
        "classes": [row], "order": [], "first": first, "joined": True,
        "pixels": max(np.diff(first)) * math.prod(problem.in_sizes), "gathers": _gathers(problem),
        "j0": 0, "j1": 1, "block": 1, "blocks": 1,
    }  # fmt: skip


def _gathered_bytes(problem, images, info):
    """Of the products of so many images, and of the column that is nothing."""
    pixels = images * math.prod(problem.in_sizes) + info["nr"] + 2 * info["vl"] + 16
    return (math.prod(problem.kernel) * problem.co + 1) * pixels * info["t_size"]


def _gathered_tasks(problem, info, threads):
    """How many tasks the images are."""
    tasks = min(problem.batch, _joined_tasks(problem, threads))
    while tasks < problem.batch and _gathered_bytes(problem, -(-problem.batch // tasks), info) > _SUMS:
        tasks += threads
    return min(tasks, problem.batch)


def _may_gather(problem, info):
    """Whether images are so small that what each output sums can be listed."""
    if problem.groups > 1 or problem.planar or not problem.batch * math.prod(problem.in_sizes):
        return False
    few = _gathered_bytes(problem, 1, info) <= _SUMS and 0 < math.prod(problem.out_sizes) * problem.co <= _PICKS
    return few and _gathers(problem)[0].size <= _PICKS


@functools.lru_cache(maxsize=16)
def _gathers(problem):
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


def _gathered_cycles(problem, info):
    """Cycles of images whose outputs are gathered."""
    outputs, terms = _gathers(problem)[0].shape
    part = machine.current().profile["scatter_gathered"]
    for threads in (1, 2):
        tasks = _gathered_tasks(problem, info, threads)
        pixels = -(-problem.batch // tasks) * math.prod(problem.in_sizes)
        task = common.tile_counts(math.prod(problem.kernel) * problem.co, pixels, problem.ci, info)
        task["across_transpose"], task["across_start"] = problem.ci * -(-pixels // info["vl"]), 1
        image = {"gather_product": outputs * (1 + terms), "gathered_image": 1}
        cycles = tasks * part.cycles(task) + problem.batch * part.cycles(image)
        cycles = common.shared([(cycles, tasks)]) + part.cycles(_memory_counts(problem))
        if cycles < machine.current().limits.single_thread_cycles:
            break
    return cycles


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


def _overlap_counts(problem, js, info):
    """What finishing the outputs of so many j of a row takes."""
    vl, lanes, terms = info["vl"], problem.strides[-1] * problem.co, _more(problem) + 1
    if lanes <= vl and problem.groups == 1 and not problem.planar:
        return {"overlap_term": js * terms, "overlap_j": js}
    vectors = js * -(-lanes // vl)
    counts = {"overlap_vector_term": vectors * terms, "overlap_vector": vectors}
    if problem.groups > 1:  # outputs of several groups are stored one by one
        counts["overlap_lane"] = js * lanes
    return counts


def _across_counts(problem, pixels, js, columns, taps, chunks, packs, phases, joined, info):
    """What a row takes across: pixels transposed by vectors of channels, the GEMM, products put in the outputs' order."""
    vl, lanes, groups = info["vl"], problem.strides[-1] * problem.co, problem.groups > 1
    rows = 1
    if joined:
        rows = max(1, -(-problem.batch * math.prod(problem.in_sizes[:-1]) // _joined_tasks(problem, 2)))
    vectors = -(-rows * pixels // vl) / rows
    depth = taps * problem.ci / max(chunks, 1)
    tiles = common.tile_counts(columns, rows * pixels, depth, info)
    counts = {name: count * chunks / rows for name, count in tiles.items()}
    counts["across_transpose"], counts["across_start"] = packs * problem.ci * vectors, packs / rows
    ordered = phases * lanes * -(-js // vl)  # vectors of outputs
    order = "across_zip" if lanes in (1, 2, 4) else "across_gather"
    counts[order + "_group" if groups else order] = ordered
    if groups:  # whose products stay near
        counts["across_term_group"] = ordered * (_more(problem) + 1)
    if _more(problem):
        counts["across_edge_group" if groups else "across_edge"] = columns
    if groups and not problem.planar:
        counts["across_lane_group"] = phases * js * lanes
    counts["across_phase"] = phases
    return counts


def _ways(problem, info):
    """Phases merged on the axes but the last, or not; vectors over columns, or over pixels; outputs gathered."""
    outer = problem.rank - 1
    slab = _slab(problem, info)
    ways = list(itertools.product({(False,) * outer, (True,) * outer}, {0, slab}))
    return [*ways, (None, slab)] if slab and _may_gather(problem, info) else ways


@functools.lru_cache(maxsize=256)
def _choice(problem, amx, here, gathered=True):
    """The cheapest way: (cost, merge, slab, groups, classes), of the axes but the last; the cost is infinite where it
    can't be done. Without ``gathered``, of those for any memory."""
    k, s = problem.kernel[-1], problem.strides[-1]
    best = (math.inf, None, 0, None, None)
    if problem.dilations[-1] > 1 or s > 2 * k or problem.co == 0:
        return best
    info = here.info(problem.dtype, amx)
    outer = problem.rank - 1
    j0, j1 = _span(problem)
    for merge, slab in _ways(problem, info):
        if merge is None:
            cycles = _gathered_cycles(problem, info) if gathered else math.inf
            if cycles < best[0]:
                best = (cycles, merge, slab, None, None)
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
        cycles = 0.0
        for combo in combos:
            packs = _packs(combo, shared, len(combos))
            row = _row_cycles(problem, combo, blocks, slab, apart, joined, packs, info)
            cycles += row * math.prod(c.count for c in combo)
        cycles *= images * blocks
        if not joined:
            cycles = common.shared([(cycles, rows * blocks)])
        memory = _memory_counts(problem) | ({} if slab or problem.groups > 1 else common.plane_counts(problem))
        cycles += here.profile[_part(slab, info)].cycles(memory)
        if cycles < best[0]:
            best = (cycles, merge, slab, groups, classes)
    return best


def _packs(combo, rows, classes):
    """How many rows of pixels are packed for a row of a class: those of all its taps; where a task's rows, so many of so many
    classes, keep what they have packed, those of the last axis but one each once, and some before the first of them."""
    taps = math.prod(len(c.first_in) for c in combo)
    if not rows or not taps:
        return taps
    last = len(combo[-1].first_in)
    return min(taps, taps / last * (rows / classes + last - 1) / rows)


def _row_cycles(problem, combo, blocks, slab, apart, joined, packs, info):
    """Cycles of one of the stretches that a row of a class is cut into."""
    counts = _row_counts(problem, combo, blocks, slab, apart, joined, packs, info)
    return machine.current().profile[_part(slab, info)].cycles(counts)


def _part(slab, info):
    """The part of the costs: vectors over pixels, over columns, or AMX tiles."""
    return "scatter_across" if slab else "matrix_scatter" if info["parts"] else "scatter"


def _row_counts(problem, combo, blocks, slab, apart, joined, packs, info):
    """What one of the stretches takes that a row of a class is cut into."""
    k, s, ci = problem.kernel[-1], problem.strides[-1], problem.ci
    j0, j1 = _span(problem)
    phases = math.prod(len(c.first_out) for c in combo)
    taps = math.prod(len(c.first_in) for c in combo)
    columns, js = phases * k * problem.co, (j1 - j0) / blocks
    pixels = -(-(problem.in_sizes[-1] + (blocks - 1) * (-(-k // s) - 1)) // blocks)
    if slab:
        chunks = taps if apart and packs < taps else 1
        return _across_counts(problem, pixels, js, columns, taps, chunks, packs, phases, joined, info)
    chunks = taps if apart else 1
    bytes = common.padded(columns, info) * taps * ci * info["e_size"]
    counts = common.weight_counts(bytes, common.filter_bytes(problem, info, columns))
    tiles = common.tile_counts(pixels, columns, taps * common.filled(ci, info) / max(chunks, 1), info)
    counts |= {name: chunks * count for name, count in tiles.items()}
    counts |= {name: phases * count for name, count in _overlap_counts(problem, js, info).items()}
    counts["row"], counts["row_tap"], counts["row_phase"] = 1, taps, phases
    if info["parts"]:
        steps, rest = divmod(ci, info["kstep"])
        plane = "_plane" if problem.planar else ""
        counts["amx_pack" + plane], counts["amx_pack_rest" + plane] = packs * pixels * steps, packs * pixels * (rest > 0)
        partial = chunks * -(-ci // _core.KC) - 1  # depth chunks that add to what is there
        counts["amx_partial"] = -(-pixels // info["grain"]) * -(-columns // info["vl"]) * max(partial, 0)
        counts["amx_store"] = pixels * -(-columns // info["vl"])
    elif not apart or ITEMSIZE[problem.dtype] != info["e_size"] or problem.planar:  # else the GEMM reads them in place
        counts["pack_vector"] = packs * pixels * -(-ci // info["vl"])
    return counts


def _memory_counts(problem):
    """What data takes that L2 does not hold, or not even the last level; tiles have prefetched some."""
    counts = common.memory_counts(problem)
    for sizes, channels, name in (
        (problem.in_sizes, problem.ci, "in_byte_memory"),
        (problem.out_sizes, problem.co, "out_byte_memory"),
    ):
        bytes = problem.batch * problem.groups * math.prod(sizes) * channels * ITEMSIZE[problem.dtype]
        counts[name] = bytes * common.far(bytes, machine.current().last_bytes)
    return counts
