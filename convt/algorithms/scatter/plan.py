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

from ..._problem import ITEMSIZE
from .. import common, execution, machine
from . import cutting
from .counts import cost_part, gathered_cycles, memory_counts, row_cycles, rows_packed
from .gathering import gathered_products, gathered_tasks, may_gather
from .loops import ScatterPlan
from .weights import ScatterRecipe

LIMIT = "it wants dilation 1 on the last axis, with a stride of at most twice the kernel"


def cost(problem, unit="vectors"):
    if machine.current().info(problem.dtype, unit) is None:
        return math.inf
    return choice(problem, unit, machine.current())[0]


def recipe(attributes, filter, bias, key, unit="vectors"):
    # The taps of the last axis are columns, after the phases of the others.
    last = attributes.kernel[-1]
    if key[1] is None:
        classes = [np.arange(math.prod(attributes.kernel))[:, None]]
        return ScatterRecipe(attributes.dtype, filter, bias, classes, attributes.strides[-1], key[2], unit)
    classes = [
        (t[:, None, :] * last + np.arange(last)[:, None]).reshape(-1, t.shape[1])
        for t in common.pack_classes(attributes, key[1])
    ]
    return ScatterRecipe(attributes.dtype, filter, bias, classes, attributes.strides[-1], key[2], unit)


def make(problem, recipe, packed, in_strides, out_strides, threads, name="scatter", unit="vectors"):
    plan, key = _planned(problem, recipe, in_strides, out_strides, threads, name, unit)
    if unit != "vectors" and not packed(key).finite:  # some weights that its bfloat16 parts can't hold
        return _planned(problem, recipe, in_strides, out_strides, threads, "scatter", "vectors")
    return plan, key


def _planned(problem, recipe, in_strides, out_strides, available, name, unit):
    cycles, merge, slab, groups, classes = choice(problem, unit, machine.current())
    info = machine.current().info(problem.dtype, unit)
    if merge is None:
        if _dense(problem, in_strides) and _one_stretch(problem, out_strides):
            key = (name, merge, slab)
            spec = _gathered_spec(problem, slab, info, common.threads(cycles, available))
            return _plan(name, problem, recipe, key, in_strides, out_strides, cycles, info, spec), key
        cycles, merge, slab, groups, classes = choice(problem, unit, machine.current(), gathered=False)
    item = ITEMSIZE[problem.dtype]
    out_elements = [s // item for s in out_strides[1:-2]]
    ci_p = common.filled(problem.ci, info)
    index = common.pack_index(groups)
    specs, most_taps = [], cutting.most_rows_read(classes)
    j0, j1 = cutting.blocks_shown(problem)
    images = problem.groups * problem.batch
    threads = common.threads(cycles, available)
    rows = cutting.rows_of_image(classes)
    block, blocks = cutting.cut_row(problem, images * rows, cutting.block_limit(problem, classes, slab, info), threads, info)
    joined = cutting.joins_rows(problem, classes, slab, blocks, info) and _dense(problem, in_strides)
    apart = cutting.keeps_to_tap(problem, classes, info) and not joined
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
    pixels = block + cutting.pixels_before(problem)
    if joined:
        order, first, most = _joined_order(specs, problem, threads)
        pixels = max(pixels, most)
    else:
        order = _order(specs)
        row_block = cutting.rows_of_task(len(order), images * blocks, threads) if most_taps > 1 else 1
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
    outer, tasks = problem.rank - 1, gathered_tasks(problem, info, threads)
    first = [problem.batch * n // tasks for n in range(tasks + 1)]
    row = {"count": [1] * outer, "start": [0] * outer, "tap_in": np.zeros((1, outer), np.int64), "parts": 0, "phases": [],
           "chunks": [(0, problem.ci, 0)], "pack": 0}  # fmt: skip
    return {
        "classes": [row], "order": [], "first": first, "joined": True,
        "pixels": max(np.diff(first)) * math.prod(problem.in_sizes), "gathers": gathered_products(problem),
        "j0": 0, "j1": 1, "block": 1, "blocks": 1,
    }  # fmt: skip


def _one_stretch(problem, out_strides):
    """Whether an image's outputs are one stretch of memory, in order."""
    step = ITEMSIZE[problem.dtype]
    sizes = *problem.out_sizes, problem.co
    for size, stride in zip(sizes[::-1], out_strides[:0:-1], strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True


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


def _joined_order(specs, problem, threads):
    """`_order` of all images, each row with its image, and where the tasks start: as many for each thread, class by class each,
    of the same inputs; and how many pixels they have at most."""
    sizes, width = problem.in_sizes[:-1], problem.in_sizes[-1]
    rows, count = problem.batch * math.prod(sizes), cutting.joined_tasks(problem, threads)
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


def _ways(problem, info):
    """Phases merged on the axes but the last, or not; vectors over columns, or over pixels; outputs gathered."""
    outer = problem.rank - 1
    slab = cutting.slab_depth(problem, info)
    ways = list(itertools.product({(False,) * outer, (True,) * outer}, {0, slab}))
    return [*ways, (None, slab)] if slab and may_gather(problem, info) else ways


@functools.lru_cache(maxsize=256)
def choice(problem, unit, here, gathered=True):
    """The cheapest way: (cost, merge, slab, groups, classes), of the axes but the last; the cost is infinite where it
    can't be done. Without ``gathered``, of those for any memory."""
    k, s = problem.kernel[-1], problem.strides[-1]
    best = (math.inf, None, 0, None, None)
    if problem.dilations[-1] > 1 or s > 2 * k or problem.co * math.prod(problem.out_sizes) == 0:
        return best
    info = here.info(problem.dtype, unit)
    outer = problem.rank - 1
    j0, j1 = cutting.blocks_shown(problem)
    for merge, slab in _ways(problem, info):
        if merge is None:
            cycles = gathered_cycles(problem, info) if gathered else math.inf
            if cycles < best[0]:
                best = (cycles, merge, slab, None, None)
            continue
        groups, classes = common.axes(problem, merge, (True,) * outer)
        if math.prod(map(len, classes)) > common.MANY_CLASSES:
            continue
        combos = list(itertools.product(*classes))
        rows = problem.groups * problem.batch * sum(math.prod(c.count for c in combo) for combo in combos)
        most = cutting.block_limit(problem, classes, slab, info)
        if most < min(16, j1 - j0):
            continue
        _, blocks = cutting.cut_row(problem, rows, most, 2, info)
        joined = cutting.joins_rows(problem, classes, slab, blocks, info)
        taps, apart = cutting.most_rows_read(classes), cutting.keeps_to_tap(problem, classes, info) and not joined
        images = problem.groups * problem.batch
        shared = cutting.rows_of_task(rows // max(images, 1), images * blocks, 2) if apart and taps > 1 else 0
        cycles = 0.0
        for combo in combos:
            packs = rows_packed(combo, shared, len(combos))
            row = row_cycles(problem, combo, blocks, slab, apart, joined, packs, info)
            cycles += row * math.prod(c.count for c in combo)
        cycles *= images * blocks
        if not joined:
            cycles = common.shared([(cycles, rows * blocks)])
        cycles += here.profile[cost_part(slab, info)].cycles(memory_counts(problem))
        if cycles < best[0]:
            best = (cycles, merge, slab, groups, classes)
    return best
