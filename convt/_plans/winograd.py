"""winograd: phases of two or three taps an axis, with fewer multiplications than taps.

A phase of r taps done m outputs at a time needs m + r - 1 multiplications instead of m * r: F(m, r). Phases of more taps
are several such windows, summed as depth of the GEMM. Axes and phases of one tap stay as they are; classes that gain
nothing run as those of `direct`.

The key of its weights is ``("winograd", merge, schemes)``: on which axes phases are merged, and for each class, by the
numbers of its phase groups, the transform of each axis.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from .. import _config, _core, _phases
from .._problem import ITEMSIZE
from . import common, direct

LIMIT = "it wants float32 or float64 and a phase of two or more taps one input apart, on an axis with two outputs or more"


@dataclass(frozen=True)
class Transform:
    """F(outputs, taps): how one axis is transformed."""

    kind: int  # of the kernels
    outputs: int
    taps: int
    finite_points: tuple  # and infinity, but for the plain one
    norms: tuple  # what the weights are scaled with at each of them

    @property
    def points(self):
        return max(1, self.outputs + self.taps - 1)

    def weights(self):
        """[point][tap] of the transform of the filter."""
        if self.taps == 1:
            return np.ones((1, 1))
        rows = [[norm * a**tap for tap in range(self.taps)] for a, norm in zip(self.finite_points, self.norms, strict=True)]
        return np.array([*rows, [0.0] * (self.taps - 1) + [1.0]])


_FOUR = (0, 1, -1), (1, 1 / 2, 1 / 2)
_SIX = (0, 1, -1, 2, -2), (1 / 4, -1 / 6, -1 / 6, 1 / 24, 1 / 24)
PLAIN = Transform(0, 1, 1, (), ())
KINDS = (
    PLAIN,
    Transform(1, 2, 2, (0, 1), (1, 1)),
    Transform(2, 2, 3, *_FOUR),
    Transform(3, 3, 2, *_FOUR),
    Transform(4, 4, 3, *_SIX),
    Transform(5, 5, 2, *_SIX),
)
SMALL = KINDS[1:4]  # what "auto" may use: as exact as the direct sum
LARGE = KINDS[4:]

_MOST_AXES = 3
_BLOCK_BYTES = 5 << 17
_SUMS_BYTES = 1 << 19
_MAX_BLOCK = 168  # tiles
_LEAST_WORK = 20_000  # cycles worth a task


def cost(problem, kinds=SMALL):
    return _choice(problem, kinds, _core.isa())[0]


def preparing(problem):
    """Cycles to transform the weights, which a call on weights of its own has to pay."""
    _, _, groups, _, schemes = _choice(problem, SMALL, _core.isa())
    slices = 0
    for numbers, scheme in schemes.items():
        chosen = [(g[n], KINDS[kind]) for g, n, kind in zip(groups, numbers, scheme, strict=True)]
        slices += math.prod(len(g.residues) * -(-len(g.offsets) // t.taps) * t.points for g, t in chosen)
    return 20_000 + 5.0 * slices * problem.groups * problem.ci * problem.co


def recipe(attributes, filter, bias, key):
    _, merge, schemes = key
    groups = [
        _phases.phase_groups(k, s, d, m)
        for k, s, d, m in zip(attributes.kernel, attributes.strides, attributes.dilations, merge, strict=True)
    ]
    tables, transforms = [], []
    for numbers, scheme in schemes:
        chosen = [g[n] for g, n in zip(groups, numbers, strict=True)]
        tables.append(common.taps_table(chosen, attributes.kernel))
        windows = [(np.zeros(1, np.int64), np.ones((1, 1)))]
        for group, kind in zip(chosen, scheme, strict=True):
            windows = _both(windows, _windows(KINDS[kind], len(group.offsets)), len(group.offsets))
        transforms.append(windows if any(scheme) else None)
    return _core.PackRecipe(attributes.dtype, filter, bias, tables, transforms=transforms)


def make(problem, recipe, packed, in_strides, out_strides, kinds=SMALL, name="winograd"):
    total, merge, groups, classes, schemes = _choice(problem, kinds, _core.isa())
    key = (name, merge, tuple(schemes.items()))
    if not packed(key).finite:  # as the filter is, or as its transform has become
        return direct.make(problem, recipe, packed, in_strides, out_strides)
    info = _core.kernel_info(problem.dtype)
    out_elements = [s // ITEMSIZE[problem.dtype] for s in out_strides]
    target = total / (4 * _config.get_num_threads())
    packs = {numbers: n for n, numbers in enumerate(schemes)}
    hole = any(c.group < 0 for axis in classes for c in axis)
    plain, transformed = [], []
    for combo in itertools.product(*classes):
        scheme = schemes.get(tuple(c.group for c in combo))
        if scheme and any(scheme):
            chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
            transformed.append(_class(problem, combo, chosen, scheme, packs, out_elements, info, target))
        elif scheme:
            plain.append(combo)
    transformed.sort(key=lambda spec: -spec["work"])
    plain = direct.tables(problem, groups, plain, packs, out_elements, total, info)
    return _core.WinogradPlan(name, problem, recipe(key), in_strides, out_strides, hole, plain, transformed), key


@functools.lru_cache(maxsize=256)
def _choice(problem, kinds, isa):
    """The cheapest way: (cost, merge, groups, classes, scheme of each class by its numbers); cost infinite if there is none."""
    rank = problem.rank
    best = (math.inf, None, None, None, None)
    if problem.dtype not in ("float32", "float64") or problem.batch * problem.co * problem.ci == 0:
        return best
    info = _core.kernel_info(problem.dtype)
    phases = math.prod(min(s, o) for s, o in zip(problem.strides, problem.out_sizes, strict=True))
    for merge in sorted({(False,) * rank, (False,) * (rank - 1) + (True,), (True,) * rank}, reverse=True):
        if phases > 256 and not all(merge):
            continue
        groups, classes = common.axes(problem, merge, (False,) * rank)
        if math.prod(map(len, classes)) > common.MANY_CLASSES // 8:
            continue
        total, schemes, losses = 0.0, {}, []
        for combo in itertools.product(*classes):
            numbers = tuple(c.group for c in combo)
            if min(numbers) < 0:
                continue
            offsets = [g[n].offsets for g, n in zip(groups, numbers, strict=True)]
            cost, scheme = min(_schemes(problem, combo, offsets, kinds, info), default=(math.inf, None))
            plain = direct.classes_cost(problem, [[c] for c in combo], info)
            total += min(cost, plain)
            schemes[numbers] = scheme if cost < plain else (0,) * rank
            losses.append((cost - plain, numbers, scheme))
        if not any(map(any, schemes.values())):  # asked for by name, it is used where it loses least
            loss, numbers, scheme = min(losses, default=(math.inf, None, None))
            total += loss
            schemes[numbers] = scheme
        if total < best[0]:
            best = (total, merge, groups, classes, schemes)
    return best


def _schemes(problem, combo, offsets, kinds, info):
    """The ways to transform a class that are worth a look, as (cost, kind of each axis)."""
    axes = []
    for c, offs in zip(combo, offsets, strict=True):
        fits = []
        if c.count > 1 and all(b - a == 1 for a, b in itertools.pairwise(offs)):
            fits = [t for t in kinds if t.taps <= len(offs)]
        products = lambda t: t.points * -(-len(offs) // t.taps) * -(-c.count // t.outputs)  # noqa: B023, E731
        axes.append([PLAIN, *sorted(fits, key=lambda t: (products(t), -t.points))[:1]])  # four points are more exact than three
    for scheme in itertools.product(*axes):
        if 0 < sum(t is not PLAIN for t in scheme) <= _MOST_AXES:
            yield _class_cost(problem, combo, offsets, scheme, info), tuple(t.kind for t in scheme)


def _sizes(problem, combo, offsets, scheme):
    """(tiles per axis, tiles, points of a tile, windows that are summed, columns) of a class."""
    tiles = [-(-c.count // t.outputs) for c, t in zip(combo, scheme, strict=True)]
    points = math.prod(t.points for t in scheme)
    splits = math.prod(-(-len(offs) // t.taps) for offs, t in zip(offsets, scheme, strict=True))
    columns = problem.co * math.prod(len(c.first_out) for c in combo)
    return tiles, problem.batch * math.prod(tiles), points, splits, columns


def _class_cost(problem, combo, offsets, scheme, info):
    """Cycles: the GEMMs, the transforms, and weights that come from beyond the caches once per block."""
    _, rows, points, splits, columns = _sizes(problem, combo, offsets, scheme)
    depth = splits * problem.ci
    block, _, panel_blocks = _blocks(rows, points, depth, columns, 1, info)
    outputs = math.prod(t.outputs for t in scheme)
    vectors = lambda n: -(-n // info["vl"])  # noqa: E731
    panels, high = -(-columns // info["nr"]), info["mr"][-1]
    gemm = points * (common.tile_cost(rows, columns, depth, info) + panels * -(-rows // high) * 60)
    read = rows * splits * (vectors(problem.ci) * 3.5 * points + 100 + 8 * points) * panel_blocks
    write = rows * (vectors(columns) * (2.5 * points + 2.5 * outputs) + panels * (100 + 6 * outputs))
    weights = common.weights_cost(points * depth * columns, -(-rows // block), info)
    return (gemm + read + write + weights + 500) * problem.groups


def _blocks(rows, points, depth, columns, pieces, info):
    """(tiles of a block, panels of a task, blocks of panels) so that there are at least so many tasks, about."""
    size, nr = info["t_size"], info["nr"]
    high = info["mr"][nr // info["vl"]]
    panels = -(-columns // nr)
    kc = min(depth, _core.KC)
    most = _BLOCK_BYTES // (points * kc * size)
    most = min(rows, max(high, min(_MAX_BLOCK, most // high * high)))
    for least_rows, least_panels in ((2 * high, 4), (high, 2), (high, 1)):  # splitting has its price: transforms are redone
        blocks = max(-(-rows // most), min(pieces, rows // least_rows))
        block = -(-rows // blocks)
        blocks = -(-rows // block)
        panel_block = panels
        if depth > kc:
            panel_block = min(panels, max(1, _SUMS_BYTES // (points * block * nr * size)))
        panel_block = min(panel_block, max(min(least_panels, panels), -(-panels * blocks // pieces)))
        panel_blocks = -(-panels // panel_block)
        if blocks * panel_blocks >= pieces:
            break
    return block, -(-panels // panel_blocks), panel_blocks


def _class(problem, combo, chosen, scheme, packs, out_elements, info, target):
    """The tables of a transformed class for WinogradPlan."""
    pack = packs[tuple(c.group for c in combo)]
    scheme = [KINDS[kind] for kind in scheme]
    offsets = [g.offsets for g in chosen]
    tiles, rows, points, splits, columns = _sizes(problem, combo, offsets, scheme)
    depth = splits * problem.ci
    work = _class_cost(problem, combo, offsets, scheme, info) / problem.groups
    pieces = max(1, math.ceil(min(work / max(target, 1.0), work / _LEAST_WORK)))
    block, panel_block, panel_blocks = _blocks(rows, points, depth, columns, pieces, info)
    panels, piece_table = direct.columns(problem, combo, out_elements, info)
    windows = [
        [c.start - offs[0] - n * t.taps - (t.taps - 1) for n in range(-(-len(offs) // t.taps))]
        if t is not PLAIN
        else [c.start - off for off in offs]
        for c, offs, t in zip(combo, offsets, scheme, strict=True)
    ]
    active = [(ax, t.points, t.kind) for ax, t in enumerate(scheme) if t is not PLAIN]
    places = list(itertools.product(*(range(t.outputs) for t in scheme)))
    steps = [s * out if t is not PLAIN else 0 for s, out, t in zip(problem.strides, out_elements[1:-1], scheme, strict=True)]
    chunks = -(-depth // _core.KC)
    step = -(-depth // chunks)
    return {
        "tiles": tiles,
        "outputs": [t.outputs for t in scheme],
        "out_j": places,
        "out_at": [sum(j * step for j, step in zip(place, steps, strict=True)) for place in places],
        "axes": [(-1, 1, 0)] * (3 - len(active)) + active,
        "rows": rows,
        "block": block,
        "blocks": -(-rows // block),
        "split_in": list(itertools.product(*windows)),
        "chunks": [(k, min(step, depth - k)) for k in range(0, depth, step)],
        "panels": panels,
        "pieces": piece_table,
        "panel_block": panel_block,
        "panel_blocks": panel_blocks,
        "together": 1 if points <= 16 else rows,
        "inner": [(max(lo for lo, _ in c.valid), min(hi for _, hi in c.valid)) for c in combo],
        "pack": pack,
        "work": work / (-(-rows // block) * panel_blocks),
    }


def _windows(transform, count):
    """For each window of one axis of phases of ``count`` taps: the taps it has, and [point][tap] of its transform."""
    weights = transform.weights()
    windows = []
    for first in range(0, count, transform.taps):
        taps = np.arange(first, min(count, first + transform.taps))
        windows.append((taps, weights[:, transform.taps - 1 - (taps - first)]))  # windows ascend in inputs, taps descend
    return windows


def _both(first, second, count):
    """The windows of two axes from those of each, the second of so many taps."""
    return [
        ((taps[:, None] * count + more).reshape(-1), np.kron(weights, others))
        for taps, weights in first
        for more, others in second
    ]
