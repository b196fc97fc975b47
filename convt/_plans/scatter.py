"""scatter: a GEMM of each row of pixels with every tap of the last axis, overlap-added; for few out channels.

The key of its weights is ``("scatter", merge, slab)``: whether phases are merged on the axes but the last; and 0 where
vectors run over columns, else, where they run over pixels, how deep the weights' rows are. Columns need no gathering of
pixels into vectors; pixels fill their vectors however few the columns are.
"""

import functools
import itertools
import math

import numpy as np

from .. import _config, _core
from .._problem import ITEMSIZE
from . import common

LIMIT = "it wants dilation 1 on the last axis, with a stride of at most twice the kernel"

_ROWS = 126  # input pixels of a task
_PIXELS = 1024  # the same across
_SUMS = 1 << 18  # bytes of their products


def cost(problem):
    return _choice(problem, _core.isa())[0]


def recipe(attributes, filter, bias, key):
    # The taps of the last axis are columns, after the phases of the others.
    last = attributes.kernel[-1]
    classes = [
        (t[:, None, :] * last + np.arange(last)[:, None]).reshape(-1, t.shape[1])
        for t in common.pack_classes(attributes, key[1])
    ]
    return _core.PackRecipe(attributes.dtype, filter, bias, classes, attributes.strides[-1], key[2])


def make(problem, recipe, packed, in_strides, out_strides):
    cycles, merge, slab, groups, classes = _choice(problem, _core.isa())
    info = _core.kernel_info(problem.dtype)
    item = ITEMSIZE[problem.dtype]
    out_elements = [s // item for s in out_strides[1:-2]]
    ci_p = -(-problem.ci // info["kstep"]) * info["kstep"]
    index = common.pack_index(groups)
    specs, most_phases = [], 1
    for combo in itertools.product(*classes):
        taps = list(itertools.product(*(c.first_in for c in combo)))
        pack, chunks = 0, []
        phases = common.phase_table(combo, out_elements)
        if taps:
            pack = index[tuple(c.group for c in combo)]
            chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
            chunks = common.depth_chunks(combo, chosen, ci_p, info, slab)
            most_phases = max(most_phases, len(phases))
        specs.append({
            "count": [c.count for c in combo],
            "start": [c.start for c in combo],
            "tap_in": np.asarray(taps, np.int64).reshape(len(taps), problem.rank - 1),
            "chunks": chunks,
            "phases": [[offset, *valid] for offset, valid in phases],
            "pack": pack,
        })  # fmt: skip
    j0, j1 = _span(problem)
    order = _order(specs)
    rows = problem.groups * problem.batch * len(order)
    blocks = _blocks(problem, rows, _block(problem, most_phases, slab, info), _config.get_num_threads())
    spec = {"classes": specs, "order": order, "j0": j0, "j1": j1, "block": -(-(j1 - j0) // blocks), "blocks": blocks}
    spec["cycles"] = cycles
    key = ("scatter", merge, slab)
    return _core.ScatterPlan(problem, recipe(key), in_strides, out_strides, False, spec), key


def _order(specs):
    """Rows of an image as [row][class, row of the class], so that those that read the same inputs follow each other."""
    table, keys = [], []
    for n, spec in enumerate(specs):
        at = np.indices(spec["count"]).reshape(len(spec["count"]), math.prod(spec["count"]))
        table.append(np.stack([np.full(at.shape[1], n), np.arange(at.shape[1])], 1))
        keys.append(at + np.asarray(spec["start"], np.int64)[:, None])
    table, keys = np.concatenate(table), np.concatenate(keys, 1)
    return table[np.lexsort(keys[::-1])] if len(keys) else table


def _span(problem):
    """The blocks of stride outputs along the last axis that the window shows."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    return begin // s, -(-(begin + out) // s)


def _slab(problem, info):
    """How deep the rows of the weights are across: as many whole taps as fit; 0 where it can't be."""
    fits = info["kstep"] == 1 and 0 < problem.ci <= _core.KC and problem.strides[-1] * problem.co <= _core.ACROSS
    return _core.KC // problem.ci * problem.ci if fits else 0


def _block(problem, phases, slab, info):
    """How many blocks of the last axis one task does, so that its products stay in the cache; below 1 if none would."""
    j0, j1 = _span(problem)
    bytes_per_pixel = phases * problem.kernel[-1] * problem.co * info["t_size"]
    if slab:
        return max(16, min(_PIXELS, j1 - j0, _SUMS // bytes_per_pixel))
    return min(_ROWS, j1 - j0, common.MAX_SUMS // bytes_per_pixel - -(-problem.kernel[-1] // problem.strides[-1]))


def _blocks(problem, rows, most, threads):
    """How many stretches of at most so many blocks of stride outputs a row is cut into, rows being so many in all."""
    j0, j1 = _span(problem)
    block = min(most, max(16, -(-(j1 - j0) * rows // (4 * threads))))
    return max(1, -(-(j1 - j0) // max(block, 1)))


def _overlap_cost(problem, js, start, info):
    """Cycles to finish the outputs of so many j of a row."""
    vl, lanes, terms = info["vl"], problem.strides[-1] * problem.co, -(-problem.kernel[-1] // problem.strides[-1])
    if 2 * lanes <= vl <= js and problem.groups == 1 and start >= terms - 1:  # several j's to a vector, by tables
        return lanes * (12 * vl + 17 * terms * js / vl)
    # Outputs of several groups are stored one by one.
    return js * (-(-lanes // vl) * (4 * terms + 5) + (2 * lanes if problem.groups > 1 else 0))


def _across_cost(problem, pixels, js, columns, taps, phases, info):
    """Cycles of a row across: pixels transposed by vectors of channels, the GEMM, sums put in the outputs' order."""
    vl, lanes, terms = info["vl"], problem.strides[-1] * problem.co, -(-problem.kernel[-1] // problem.strides[-1])
    full, rest = divmod(pixels, vl)
    packing = taps * (45 * -(-pixels // info["nr"]) + problem.ci * (5.6 * full + (20 if rest else 0)))
    multiply = 1.25 * common.tile_cost(columns, pixels, taps * problem.ci, info)
    vectors = -(-js // vl)
    overlap = phases * lanes * vectors * (0.6 * terms + (2.2 if lanes in (1, 2, 4) else 6.7)) + 11 * columns
    if problem.groups > 1 and not problem.planar:
        overlap += 1.8 * phases * js * lanes
    return packing + multiply + overlap


@functools.lru_cache(maxsize=256)
def _choice(problem, isa):
    """The cheapest way: (cost, merge, slab, groups, classes), of the axes but the last; the cost is infinite where it
    can't be done."""
    k, s = problem.kernel[-1], problem.strides[-1]
    best = (math.inf, None, 0, None, None)
    if problem.dilations[-1] > 1 or s > 2 * k or problem.co == 0:
        return best
    info = _core.kernel_info(problem.dtype)
    outer = problem.rank - 1
    j0, j1 = _span(problem)
    merges = {(False,) * outer, (True,) * outer}
    for merge, slab in itertools.product(merges, {0, _slab(problem, info)}):
        groups, classes = common.axes(problem, merge, (True,) * outer)
        if math.prod(map(len, classes)) > common.MANY_CLASSES:
            continue
        combos = list(itertools.product(*classes))
        rows = problem.groups * problem.batch * sum(math.prod(c.count for c in combo) for combo in combos)
        most = _block(problem, max(math.prod(len(c.first_out) for c in combo) for combo in combos), slab, info)
        if most < min(16, j1 - j0):
            continue
        blocks = _blocks(problem, rows, most, 2)
        cost = 0.0
        for combo in combos:
            cost += _row_cost(problem, combo, blocks, slab, info) * math.prod(c.count for c in combo)
        cost = common.shared([(cost * problem.groups * problem.batch * blocks, rows * blocks)])
        cost += common.memory_cost(problem, *(((0.15, 3), (0.15, 0)) if slab else ((0.07, 50), (0.08, 0))))
        cost += 0.0 if slab or problem.groups > 1 else common.planes_cost(problem)
        if cost < best[0]:
            best = (cost, merge, slab, groups, classes)
    return best


def _row_cost(problem, combo, blocks, slab, info):
    """Cycles of one of the stretches that a row of a class is cut into."""
    k, s, ci = problem.kernel[-1], problem.strides[-1], problem.ci
    j0, j1 = _span(problem)
    phases = math.prod(len(c.first_out) for c in combo)
    taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
    columns, js = phases * k * problem.co, -(-(j1 - j0) // blocks)
    pixels = -(-(problem.in_sizes[-1] + (blocks - 1) * (-(-k // s) - 1)) // blocks)
    if slab:
        row = _across_cost(problem, pixels, js, columns, taps, phases, info)
    else:
        weights = common.padded(columns, info) * taps * ci * info["e_size"]
        total = common.filter_bytes(problem, info, columns)
        row = common.fed(common.tile_cost(pixels, columns, taps * ci, info), weights, total)
        row += taps * (pixels * 5 * -(-ci // info["vl"]) + 35)
        start = -(-problem.begin[-1] // s) if blocks == 1 else js
        row += phases * _overlap_cost(problem, js, start, info)
    return row + 30 + 40 * phases
