"""winograd: phases of two or three taps an axis, with fewer multiplications than taps.

A phase of r taps done m outputs at a time needs m + r - 1 multiplications instead of m * r: F(m, r). Phases of more taps
are several such windows, summed as depth of the GEMM. Axes and phases of one tap stay as they are; classes that gain
nothing run as those of `direct`.

The key of its weights is ``("winograd", merge, schemes)``: on which axes phases are merged, and for each class, by the
numbers of its phase groups, the transform of each axis.
"""

import itertools
import math

import numpy as np

from ..._problem import ITEMSIZE
from .. import common, execution, machine
from .. import phases as _phases
from ..direct import cutting as direct_cutting
from ..direct import plan as direct
from .counts import class_shape, cost_table, depth_chunks, gathers
from .cutting import by_transform, choice, cut_classes, packed_again
from .loops import WinogradPlan
from .transforms import KINDS, PLAIN, SMALL, filter_windows, panel_vectors
from .weights import WinogradRecipe

LIMIT = "it wants a phase of two or more taps one input apart, on an axis with two outputs or more"
_STAGE_BYTES = 3 << 17  # of outputs that are gathered for non-temporal stores
_ALL = 0.98  # of points multiplied: more are not worth leaving any out


def cost(problem, kinds=SMALL, unit="vectors"):
    return choice(problem, kinds, unit, machine.current())[0]


def preparing(problem, unit="vectors"):
    """As `direct.preparing`: of every point, which takes no longer to make than to write."""
    total, _, groups, classes, schemes = choice(problem, SMALL, unit, machine.current())
    info = machine.current().info(problem.dtype, unit)
    slices = 0
    for numbers, scheme in schemes.items():
        chosen = [(g[n], KINDS[kind]) for g, n, kind in zip(groups, numbers, scheme, strict=True)]
        slices += math.prod(len(g.residues) * -(-len(g.offsets) // t.taps) * t.points for g, t in chosen)
    size = problem.groups * problem.ci * problem.co * info["e_size"]
    plain, transformed = by_transform(problem, groups, classes, schemes, info)
    _, splits = direct_cutting.splits(problem, plain, [1] * len(plain), total, info, 2)
    first = [(s.work, problem.groups * s.blocks * s.panel_blocks) for s in splits]
    _, cuts = cut_classes(problem, transformed, first, total, info, 2)
    again = direct_cutting.packed_again(problem, plain, splits, info)
    for (combo, chosen, scheme), cut in zip(transformed, cuts, strict=True):
        again += packed_again(problem, combo, chosen, scheme, cut, info)
    return cost_table(info)["transform_weights"] + common.packing_cycles(slices * size, info, again)


def recipe(attributes, filter, bias, key, unit="vectors"):
    _, merge, schemes = key
    info = machine.current().info(attributes.dtype, unit)
    groups = [
        _phases.phase_groups(k, s, d, m)
        for k, s, d, m in zip(attributes.kernel, attributes.strides, attributes.dilations, merge, strict=True)
    ]
    tables, transforms = [], []
    for numbers, scheme in schemes:
        chosen = [g[n] for g, n in zip(groups, numbers, strict=True)]
        tables.append(common.taps_table(chosen, attributes.kernel))
        transforms.append(None)
        if any(scheme):
            windows = filter_windows(chosen, [KINDS[kind] for kind in scheme])
            transforms[-1] = windows, panel_vectors(tables[-1], windows, filter.shape[2], info)
    return WinogradRecipe(attributes.dtype, filter, bias, tables, transforms, unit)


def make(problem, recipe, packed, in_strides, out_strides, threads, kinds=SMALL, name="winograd", unit="vectors"):
    here = machine.current()
    total, merge, groups, classes, schemes = choice(problem, kinds, unit, here)
    key = (name, merge, tuple(schemes.items()))
    if not packed(key).finite:  # as the filter is, or as its transform has become
        return direct.make(problem, recipe, packed, in_strides, out_strides, threads)
    info = here.info(problem.dtype, unit)
    in_elements, out_elements = ([s // ITEMSIZE[problem.dtype] for s in strides] for strides in (in_strides, out_strides))
    packs = {numbers: n for n, numbers in enumerate(schemes)}
    hole = any(c.group < 0 for axis in classes for c in axis)
    plain, transformed = by_transform(problem, groups, classes, schemes, info)
    plain = direct.tables(problem, groups, plain, packs, in_strides, out_strides, total, info, threads)
    first = [(spec["work"], problem.groups * spec["blocks"] * spec["panel_blocks"]) for spec in plain]
    _, cuts = cut_classes(problem, transformed, first, total, info, common.threads(total, threads))
    specs = [_class(problem, *c, cut, packs, in_elements, out_elements, info) for c, cut in zip(transformed, cuts, strict=True)]
    specs.sort(key=lambda spec: -spec["work"])
    packing = recipe(key)
    outgrows = execution.outgrows(problem, here.limits.non_temporal)
    how = execution.execution(problem, here, info, out_strides, hole, total, packing.weight_bytes, outgrows)
    again = sum(spec["packed_again"] for spec in plain)
    for (combo, chosen, scheme), cut in zip(transformed, cuts, strict=True):
        again += packed_again(problem, combo, chosen, scheme, cut, info, packing.out_channel_stride)
    on_the_fly = execution.packs_on_the_fly(here, packing.weight_bytes, again)
    order = direct.tiles(here, info, how, on_the_fly)
    prefetches = execution.data_bytes(problem) > here.l2
    return WinogradPlan(name, problem, packing, in_strides, out_strides, how, plain, specs, order, prefetches), key


def _class(problem, combo, chosen, scheme, cut, packs, in_elements, out_elements, info):
    """The tables of a transformed class for WinogradPlan."""
    pack = packs[tuple(c.group for c in combo)]
    offsets = [g.offsets for g in chosen]
    rows, _, outputs, splits, *_, kept = class_shape(problem, combo, chosen, scheme, info)
    depth, _, step = depth_chunks(problem, splits, info)
    panels, piece_table, boxes = direct.columns(problem, combo, out_elements, info)
    staged = _staged(problem, combo, cut, outputs, info)
    parts, runs = _runs(panels, piece_table, cut.panel_block, staged)
    windows = [
        [c.start - offs[0] + n * t.taps for n in range(-(-len(offs) // t.taps))]
        if t is not PLAIN
        else [c.start - off for off in offs]
        for c, offs, t in zip(combo, offsets, scheme, strict=True)
    ]
    axes = [(ax, t.points, t.kind) for ax, t in enumerate(scheme) if t is not PLAIN]
    axes = [(-1, 1, 0)] * (3 - len(axes)) + axes
    places = list(itertools.product(*(range(t.outputs) for t in scheme)))
    tiles = [-(-c.count // t.outputs) for c, t in zip(combo, scheme, strict=True)]
    # An axis of one input or of one output may have any stride, and a window beyond the input start anywhere: products with
    # these would overflow.
    windows = [
        [max(-t.outputs * n - t.points, min(start, size)) for start in axis]
        for axis, t, n, size in zip(windows, scheme, tiles, problem.in_sizes, strict=True)
    ]
    in_step = [step if size > 1 else 0 for step, size in zip(in_elements[1:-1], problem.in_sizes, strict=True)]
    out_step = [s * step if c.count > 1 else 0 for s, step, c in zip(problem.strides, out_elements[1:-1], combo, strict=True)]
    dot = lambda place, step: sum(map(math.prod, zip(place, step, strict=True)))  # noqa: E731
    points = [dot(place, in_step) for place in itertools.product(*(range(t.points) for t in scheme))]
    split_in = list(itertools.product(*windows))
    ends = [[(p == 0) | (p == n - 1) << 1 for p in range(n)] if n > 1 else [0] for _, n, _ in axes]
    return {
        "tiles": tiles,
        "outputs": [t.outputs for t in scheme],
        "out_j": places,
        "out_at": [dot(place, out_step) for place in places],
        "axes": axes,
        "ends": [z | y << 2 | x << 4 for z, y, x in itertools.product(*ends)],
        "shown": _shown(panels, piece_table, problem.rank),
        "sorted": math.prod(share for share, _ in kept) < _ALL,
        "rows": rows,
        "block": cut.block,
        "blocks": cut.blocks,
        "split_in": split_in,
        "reads": [dot(first, in_step) + point for first in split_in for point in points],
        "whole": [(-min(w), n - max(w) - t.points + 1) for w, n, t in zip(windows, problem.in_sizes, scheme, strict=True)],
        "in_step": in_step,
        "out_step": out_step,
        "chunks": [(k, min(step, depth - k)) for k in range(0, depth, step)],
        "span": cut.span,
        "across": cut.across,
        "panels": panels,
        "pieces": piece_table,
        "boxes": boxes,
        "staged": staged,
        "parts": parts,
        "runs": runs,
        "panel_block": cut.panel_block,
        "panel_blocks": cut.panel_blocks,
        "inner": [c.inner for c in combo],
        "pack": pack,
        "work": cut.work,
    }


def _shown(panels, pieces, rank):
    """For each panel: where some phase of it is inside the window, (low, high) per axis."""
    boxes = []
    for *_, start, end in panels:
        spans = np.array([piece[3:] for piece in pieces[start:end]] or [[0] * 2 * rank])
        boxes.append(np.stack([spans[:, ::2].min(0), spans[:, 1::2].max(0)], -1))
    return boxes


def _staged(problem, combo, cut, outputs, info):
    """How many panels' outputs a task gathers at a time, 0 where it does not."""
    if not gathers(problem, len(combo[-1].first_out), info):
        return 0
    return min(cut.panel_block, max(2, _STAGE_BYTES // (cut.block * outputs * info["nr"] * info["t_size"])))


def _runs(panels, pieces, block, staged):
    """For each part of so many panels of each block of panels: its first run and one past the last; and the runs, (first
    column of the part, columns that are adjacent in the output, its offset)."""
    parts, runs = [], []
    for start in range(0, len(panels), block) if staged else ():
        for first in range(start, min(start + block, len(panels)), staged):
            low, column, end = len(runs), 0, None
            for panel in panels[first : min(first + staged, start + block)]:
                for at, count, offset, *_ in pieces[panel[3] : panel[4]]:
                    if (column + at, offset) == end:
                        runs[-1][1] += count
                    else:
                        runs.append([column + at, count, offset])
                    end = column + at + count, offset + count
                column += panel[0]
            parts.append((low, len(runs)))
    return parts, runs
