"""direct: every phase is an implicit GEMM over its own taps.

The key of its weights is ``("direct", merge)``: on which axes phases that read the same inputs are merged.
"""

import functools
import itertools
import math

import numpy as np

from .. import _config, _core
from .._problem import ITEMSIZE
from . import common

LIMIT = None

_MAX_BLOCK = 126  # rows of a task, 9 tiles of 14: a depth chunk of its input then takes about 135 KiB of L2
_MAX_INPUT = 560 << 10  # bytes of L2 for depth chunks packed at once: their sums then need not wait for one another


def cost(problem):
    return _choice(problem, True, _core.isa())[0]


def recipe(attributes, filter, bias, key):
    return _core.PackRecipe(attributes.dtype, filter, bias, common.pack_classes(attributes, key[1]))


def make(problem, recipe, packed, in_strides, out_strides):
    info = _core.kernel_info(problem.dtype)
    total, merge, groups, classes = _choice(problem, True, _core.isa())
    if not packed(("direct", merge)).finite:
        total, merge, groups, classes = _choice(problem, False, _core.isa())
    item = ITEMSIZE[problem.dtype]
    out_elements = [s // item for s in out_strides]
    index = common.pack_index(groups)
    target = total / (4 * _config.get_num_threads())
    specs, hole = [], False
    for combo in itertools.product(*classes):
        if any(c.group < 0 for c in combo):
            hole = True
            continue
        if problem.batch * problem.co == 0:
            continue
        pack = index[tuple(c.group for c in combo)]
        chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
        specs.append(_class(problem, combo, chosen, pack, out_elements, info, target))
    specs.sort(key=lambda spec: -spec["work"])  # large tasks first, so that the last ones even out
    key = ("direct", merge)
    return _core.DirectPlan(problem, recipe(key), in_strides, out_strides, hole, specs), key


@functools.lru_cache(maxsize=256)
def _choice(problem, finite, isa):
    """The cheapest way to cut: (cost, merge, groups, classes)."""
    info = _core.kernel_info(problem.dtype)
    best = None
    for merge, split in _cuts(problem, finite):
        groups, classes = common.axes(problem, merge, split)
        if best is not None and math.prod(map(len, classes)) > common.MANY_CLASSES:
            continue
        cost = _classes_cost(problem, classes, info)
        if best is None or cost < best[0]:
            best = (cost, merge, groups, classes)
    return best


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


def _classes_cost(problem, classes, info):
    total = 0.0
    for combo in itertools.product(*classes):
        if any(c.group < 0 for c in combo):
            continue
        rows = problem.batch * math.prod(c.count for c in combo)
        phases = math.prod(len(c.first_out) for c in combo)
        taps = math.prod(c.tap_range[1] - c.tap_range[0] for c in combo)
        depth = taps * problem.ci
        total += common.tile_cost(rows, phases * problem.co, depth, info) + common.gather_cost(rows, depth, taps, info) + 200
        if phases > 1 and problem.co % info["nr"]:  # panels of several phases are stored piece by piece
            total += rows * 12.0 * phases / len(combo[-1].first_out)
    return total * problem.groups


def _class(problem, combo, chosen, pack, out_elements, info, target):
    """The tables of one class (one run per axis) for DirectPlan."""
    ci, co, kstep = problem.ci, problem.co, info["kstep"]
    ci_p = -(-ci // kstep) * kstep
    rank = problem.rank
    rows = problem.batch * math.prod(c.count for c in combo)
    taps = list(itertools.product(*(c.first_in for c in combo)))
    columns = co * math.prod(len(c.first_out) for c in combo)
    npanels = -(-columns // info["nr"])

    # Split rows into blocks, and panels where rows alone give too few tasks.
    work = max(common.tile_cost(rows, columns, max(len(taps) * ci, 1), info), 1.0)
    pieces = max(1, math.ceil(work * problem.groups / max(target, 1.0) / problem.groups))
    block = max(min(_MAX_BLOCK, -(-rows // pieces)), min(rows, 28))
    blocks = -(-rows // block)
    block = -(-rows // blocks)
    blocks = -(-rows // block)
    wanted = max(1, min(npanels, pieces // blocks))
    panel_block = -(-npanels // wanted)
    chunks = common.depth_chunks(combo, chosen, ci_p, kstep)
    span = max(1, _MAX_INPUT // (block * _core.LDA * info["e_size"]))
    if span < len(chunks):
        panel_block = min(panel_block, max(1, common.MAX_SUMS // (block * info["nr"] * info["t_size"])))

    panels, piece_table = _columns(problem, combo, out_elements, info)
    return {
        "count": [c.count for c in combo],
        "rows": rows,
        "block": block,
        "blocks": blocks,
        "tap_in": np.asarray(taps, np.int64).reshape(len(taps), rank),
        "chunks": chunks,
        "span": span,
        "panels": panels,
        "pieces": piece_table,
        "panel_block": panel_block,
        "panel_blocks": -(-npanels // panel_block),
        "inner": [(max(lo for lo, _ in c.valid), min(hi for _, hi in c.valid)) for c in combo],
        "pack": pack,
        "depth": math.prod(len(g.offsets) for g in chosen) * ci_p,
        "work": work / (blocks * -(-npanels // panel_block)),
    }


def _columns(problem, combo, out_elements, info):
    """The tables of columns: panels, and the pieces of them that belong to one phase each."""
    co, nr, step = problem.co, info["nr"], out_elements[-1]
    phases = common.phase_table(combo, out_elements[1:])
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
