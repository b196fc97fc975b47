"""scatter: a GEMM of each row of pixels with every tap of the last axis, overlap-added; for few out channels.

The key of its weights is ``("scatter", merge)``: whether phases are merged on the axes but the last.
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


def cost(problem):
    return _choice(problem, _core.isa())[0]


def recipe(attributes, filter, bias, key):
    # The taps of the last axis are columns, after the phases of the others.
    last = attributes.kernel[-1]
    classes = [
        (t[:, None, :] * last + np.arange(last)[:, None]).reshape(-1, t.shape[1])
        for t in common.pack_classes(attributes, key[1])
    ]
    return _core.PackRecipe(attributes.dtype, filter, bias, classes, attributes.strides[-1])


def make(problem, recipe, packed, in_strides, out_strides):
    _, merge, groups, classes = _choice(problem, _core.isa())
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
            chunks = common.depth_chunks(combo, [g[c.group] for g, c in zip(groups, combo, strict=True)], ci_p, info["kstep"])
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
    j0, j1 = _span(problem)
    rows = problem.groups * sum(spec["rows"] for spec in specs)
    block = _block(problem, most_phases, info)
    block = max(1, min(block, max(16, -(-(j1 - j0) * rows // (4 * _config.get_num_threads())))))
    blocks = max(1, -(-(j1 - j0) // block))
    spec = {"classes": specs, "j0": j0, "j1": j1, "block": -(-(j1 - j0) // blocks), "blocks": blocks}
    key = ("scatter", merge)
    return _core.ScatterPlan(problem, recipe(key), in_strides, out_strides, False, spec), key


def _span(problem):
    """The blocks of stride outputs along the last axis that the window shows."""
    s, begin, out = problem.strides[-1], problem.begin[-1], problem.out_sizes[-1]
    return begin // s, -(-(begin + out) // s)


def _block(problem, phases, info):
    """How many blocks of the last axis one task does, so that its products stay in the cache; below 1 if none would."""
    j0, j1 = _span(problem)
    bytes_per_pixel = phases * problem.kernel[-1] * problem.co * info["t_size"]
    return min(_ROWS, j1 - j0, common.MAX_SUMS // bytes_per_pixel - -(-problem.kernel[-1] // problem.strides[-1]))


def _overlap_cost(lanes, terms, info):
    """Cycles to finish the outputs of one j."""
    if 2 * lanes <= info["vl"]:
        return lanes * (terms * 1.0 + 1)
    return -(-lanes // info["vl"]) * (terms + 1) * 2.5


@functools.lru_cache(maxsize=256)
def _choice(problem, isa):
    """The cheapest way: (cost, merge, groups, classes) of the axes but the last; cost is infinite where it can't be done."""
    k, s = problem.kernel[-1], problem.strides[-1]
    best = (math.inf, None, None, None)
    if problem.dilations[-1] > 1 or s > 2 * k or problem.co == 0:
        return best
    info = _core.kernel_info(problem.dtype)
    terms, lanes, outer = -(-k // s), s * problem.co, problem.rank - 1
    j0, j1 = _span(problem)
    for merge in {(False,) * outer, (True,) * outer}:
        groups, classes = common.axes(problem, merge, (True,) * outer)
        if math.prod(map(len, classes)) > common.MANY_CLASSES:
            continue
        cost = 0.0
        for combo in itertools.product(*classes):
            rows = problem.batch * math.prod(c.count for c in combo)
            phases = math.prod(len(c.first_out) for c in combo)
            taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
            block = _block(problem, phases, info)
            if block < min(16, j1 - j0):
                cost = math.inf
                break
            blocks = -(-(j1 - j0) // max(block, 1))
            pixels = problem.in_sizes[-1] / blocks + terms - 1
            products = common.tile_cost(pixels, phases * k * problem.co, taps * problem.ci, info)
            products += common.gather_cost(pixels, taps * problem.ci, taps, info)
            overlap = phases * (pixels * _overlap_cost(lanes, terms, info) + 50)
            weights = common.weights_cost(taps * problem.ci * phases * k * problem.co, 1, info)
            cost += rows * blocks * (products + overlap + weights + 200)
        if cost * problem.groups < best[0]:
            best = (cost * problem.groups, merge, groups, classes)
    return best
