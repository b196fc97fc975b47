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

from ... import _core
from ..._problem import ITEMSIZE
from .. import common, execution, machine
from .. import phases as _phases
from ..direct import counts as direct_counts
from ..direct import cutting
from ..direct import plan as direct
from .loops import BRIDGE, CHAIN, WinogradPlan
from .weights import WinogradRecipe

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
_HEIGHTS = (1, 2, 3, 4, 6)  # register tiles of a block of tiles
_PANEL_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16)
_SHARES = (0, 1, 2, 3, 4, 6, 8)  # tasks of a thread, at least, 0 for whatever ends first: few are cheaper, many even out
_ONE_AXIS = 6  # points: more are of two axes, and summed in shorter chains
_MOST_WAITING = 13 << 18  # bytes of a task between its transforms
_STAGE_BYTES = 3 << 17  # of outputs on their way past the caches
_LEAST_WORK = 20_000  # cycles worth a task
_ALL = 0.98  # of points multiplied: more are not worth leaving any out


def _l2_share():
    """Bytes of L2 that a task may count on."""
    return machine.current().l2 // 8 * 7


def cost(problem, kinds=SMALL, amx=False):
    return _choice(problem, kinds, amx, machine.current())[0]


def preparing(problem, amx=False):
    """As `direct.preparing`: of every point, which takes no longer to make than to write."""
    total, _, groups, classes, schemes = _choice(problem, SMALL, amx, machine.current())
    info = machine.current().info(problem.dtype, amx)
    slices = 0
    for numbers, scheme in schemes.items():
        chosen = [(g[n], KINDS[kind]) for g, n, kind in zip(groups, numbers, scheme, strict=True)]
        slices += math.prod(len(g.residues) * -(-len(g.offsets) // t.taps) * t.points for g, t in chosen)
    size = problem.groups * problem.ci * problem.co * info["e_size"]
    plain, transformed = _kinds(problem, groups, classes, schemes, info)
    _, splits = cutting.splits(problem, plain, [1] * len(plain), total, info, 2)
    first = [(s.work, problem.groups * s.blocks * s.panel_blocks) for s in splits]
    _, cuts = _cuts(problem, transformed, first, total, info, 2)
    passing = cutting.packed_again(problem, plain, splits, info)
    for (combo, chosen, scheme), cut in zip(transformed, cuts, strict=True):
        passing += _packed_again(problem, combo, chosen, scheme, cut, info)
    return _costs(amx)["transform_weights"] + common.packing_cycles(slices * size, info, passing)


def recipe(attributes, filter, bias, key, amx=False):
    _, merge, schemes = key
    info = machine.current().info(attributes.dtype, amx)
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
            windows = _windows(chosen, [KINDS[kind] for kind in scheme])
            transforms[-1] = windows, _widths(tables[-1], windows, filter.shape[2], info)
    return WinogradRecipe(attributes.dtype, filter, bias, tables, transforms, amx)


def make(problem, recipe, packed, in_strides, out_strides, threads, kinds=SMALL, name="winograd", amx=False):
    here = machine.current()
    total, merge, groups, classes, schemes = _choice(problem, kinds, amx, here)
    key = (name, merge, tuple(schemes.items()))
    if not packed(key).finite:  # as the filter is, or as its transform has become
        return direct.make(problem, recipe, packed, in_strides, out_strides, threads)
    info = here.info(problem.dtype, amx)
    in_elements, out_elements = ([s // ITEMSIZE[problem.dtype] for s in strides] for strides in (in_strides, out_strides))
    packs = {numbers: n for n, numbers in enumerate(schemes)}
    hole = any(c.group < 0 for axis in classes for c in axis)
    plain, transformed = _kinds(problem, groups, classes, schemes, info)
    plain = direct.tables(problem, groups, plain, packs, in_strides, out_strides, total, info, threads)
    first = [(spec["work"], problem.groups * spec["blocks"] * spec["panel_blocks"]) for spec in plain]
    _, cuts = _cuts(problem, transformed, first, total, info, common.threads(total, threads))
    specs = [_class(problem, *c, cut, packs, in_elements, out_elements, info) for c, cut in zip(transformed, cuts, strict=True)]
    specs.sort(key=lambda spec: -spec["work"])
    packing = recipe(key)
    outgrows = execution.outgrows(problem, here.limits.non_temporal)
    how = execution.execution(problem, here, info, out_strides, hole, total, packing.weight_bytes, outgrows)
    again = sum(spec["packed_again"] for spec in plain)
    for (combo, chosen, scheme), cut in zip(transformed, cuts, strict=True):
        again += _packed_again(problem, combo, chosen, scheme, cut, info, packing.out_channel_stride)
    on_the_fly = execution.packs_on_the_fly(here, packing.weight_bytes, again)
    order = direct.tiles(here, info, how, on_the_fly)
    prefetches = execution.data_bytes(problem) > here.l2
    return WinogradPlan(name, problem, packing, in_strides, out_strides, how, plain, specs, order, prefetches), key


def _packed_again(problem, combo, chosen, scheme, cut, info, out_channel_stride=1):
    """Bytes that the tasks of a class pack if they pack what they multiply; infinite where they can't."""
    phases, taps = math.prod(len(c.first_out) for c in combo), math.prod(len(g.offsets) for g in chosen)
    windows = math.prod(-(-len(g.offsets) // t.taps) for g, t in zip(chosen, scheme, strict=True))
    points = math.prod(t.points for t in scheme)
    if info["parts"]:  # taps are read for each point: beside the rows of one point, or of all
        once = (cut.panel_block if cut.across else 2) * info["nr"] * taps * problem.ci * ITEMSIZE[problem.dtype]
        whole = info["nr"] if phases > 1 else info["vl"]  # columns that must be contiguous in the filter
        if common.nested(chosen) or problem.co % whole or out_channel_stride != 1 or info["s_size"] != info["t_size"]:
            return math.inf
    else:
        once = points * info["nr"] * _link(points, _chunks(problem, windows, info)[2]) * info["e_size"]
    if once > machine.current().l2 // 2:
        return math.inf
    return cut.blocks * windows * points * phases * problem.groups * problem.ci * problem.co * info["e_size"]


def _kinds(problem, groups, classes, schemes, info):
    """The classes without a transform; those with one, each with its phase groups and the transform of each axis."""
    plain, transformed = [], []
    for combo in itertools.product(*classes):
        scheme = schemes.get(tuple(c.group for c in combo))
        if scheme and any(scheme):
            chosen = [g[c.group] for g, c in zip(groups, combo, strict=True)]
            scheme = [KINDS[kind] for kind in scheme]
            transformed.append((_all_placed(problem, combo, scheme, info), chosen, scheme))
        elif scheme:
            plain.append(combo)
    return plain, transformed


@functools.lru_cache(maxsize=256)
def _choice(problem, kinds, amx, isa):
    """The cheapest way: (cost, merge, groups, classes, scheme of each class by its numbers); cost infinite if there is none."""
    rank = problem.rank
    best = (math.inf, None, None, None, None)
    if problem.dtype not in ("float32", "float64") or problem.batch * problem.co * problem.ci == 0:
        return best
    info = machine.current().info(problem.dtype, amx)
    if info is None:
        return best
    phases = math.prod(min(s, o) for s, o in zip(problem.strides, problem.out_sizes, strict=True))
    for merge in _merges(rank, info):
        if phases > 256 and not all(merge):
            continue
        groups, classes = common.axes(problem, merge, (False,) * rank)
        nested = any(map(common.nested, groups))
        if _phases.NESTED in merge and not nested:
            continue
        if math.prod(map(len, classes)) > common.MANY_CLASSES // 8:
            continue
        tasks, schemes, losses, plains, transformed = [], {}, [], [], []
        for combo in itertools.product(*classes):
            numbers = tuple(c.group for c in combo)
            if min(numbers) < 0:
                continue
            chosen = [g[n] for g, n in zip(groups, numbers, strict=True)]
            cost, scheme = min(_schemes(problem, combo, chosen, kinds, amx), default=(math.inf, None))
            plain, count = direct_counts.class_cost(problem, combo, info)
            if nested:  # its taps that are not there would be zeros
                plain = math.inf
            tasks.append((min(cost, plain), count))  # transformed or not, about as many
            schemes[numbers] = scheme if cost < plain else (0,) * rank
            if cost < plain:
                transforms = [KINDS[kind] for kind in scheme]
                transformed.append((_all_placed(problem, combo, transforms, info), chosen, transforms))
            else:
                plains.append(combo)
            losses.append((cost - plain, numbers, scheme))
        if nested and plains:
            continue
        memory = _memory_cycles(problem, max(len(c.first_out) for c in classes[-1]), info)
        total = common.shared(tasks) + memory  # at least
        if total < best[0] and common.few(tasks) and transformed:
            total = memory + 2 * _end(problem, transformed, plains, total, info, 2)
        if not any(map(any, schemes.values())):  # asked for by name, it is used where it loses least
            loss, numbers, scheme = min(losses, default=(math.inf, None, None))
            total += loss
            schemes[numbers] = scheme
        if total < best[0]:
            best = (total, merge, groups, classes, schemes)
    return best


def _merges(rank, info):
    """The ways to merge phases: of no axis, the last, or all; nested where registers are many, else nothing is gained by it."""
    merges = {(False,) * rank, (False,) * (rank - 1) + (True,), (True,) * rank}
    if not info["parts"] and 5 * info["wide"] >= 2 * info["mr"][-1]:
        merges.add((_phases.NESTED,) * rank)
    return sorted(merges, reverse=True)


def _schemes(problem, combo, chosen, kinds, amx):
    """The ways to transform a class that are worth a look, as (cost, kind of each axis)."""
    axes, info = [], machine.current().info(problem.dtype, amx)
    for c, group, stride in zip(combo, chosen, problem.strides, strict=True):
        offs, fits = group.offsets, []
        if c.count > 1 and all(a - b == 1 for a, b in itertools.pairwise(offs)):
            fits = [t for t in kinds if t.taps <= len(offs)]
        products = lambda t: -(-len(offs) // t.taps) * _multiplied(_placed(c, t, stride, info), t, info)  # noqa: B023, E731
        axes.append([PLAIN, *sorted(fits, key=lambda t: (products(t), t.points))[:1]])
    for scheme in itertools.product(*axes):
        if 0 < sum(t is not PLAIN for t in scheme) <= _MOST_AXES:
            shape = _shape(problem, _all_placed(problem, combo, scheme, info), chosen, scheme, info)
            yield _least_cost(problem, shape, amx, machine.current()), tuple(t.kind for t in scheme)


def _placed(c, transform, stride, info):
    """A run of an axis, begun an output earlier where that leaves out more points: then tiles are cut short at both ends."""
    ways = [c, c.earlier(stride)] if transform.outputs > 2 else [c]
    return min(ways, key=lambda c: _multiplied(c, transform, info))


def _all_placed(problem, combo, scheme, info):
    """The runs of a class, `_placed`."""
    return [_placed(c, t, stride, info) for c, t, stride in zip(combo, scheme, problem.strides, strict=True)]


def _multiplied(c, transform, info):
    """Points of all tiles of a run that are multiplied, in the mean of its phases: the first output of a tile alone needs the
    first point, the last alone the last, and those are left out where such an output is outside."""
    n, tiles = transform.outputs, -(-c.count // transform.outputs)
    if transform is PLAIN or info["parts"]:
        return tiles * transform.points
    points = 0
    for low, high in c.shown:
        for j in {0, (tiles - 1) * n}:
            shown = low < j + n and j < high
            points += (transform.points - (j < low) - (j + n > high)) * shown
        points += max(0, tiles - 2) * transform.points
    return points / len(c.valid)


def _shape(problem, combo, chosen, scheme, info):
    """What a class costs depends on: (tiles, points and outputs of a tile, windows that are summed, columns, pieces of an output
    of all columns, those at the window's edge, the share of points times columns that is multiplied, and for each axis that has
    ends where points are left out: the share that is kept, tiles)."""
    rows = problem.batch * math.prod(-(-c.count // t.outputs) for c, t in zip(combo, scheme, strict=True))
    points, outputs = math.prod(t.points for t in scheme), math.prod(t.outputs for t in scheme)
    splits = math.prod(-(-len(g.offsets) // t.taps) for g, t in zip(chosen, scheme, strict=True))
    columns = problem.co * math.prod(len(c.first_out) for c in combo)
    pieces = common.pieces(combo, problem, columns, machine.current().info(problem.dtype))
    edges = columns / problem.co * common.outside(combo, [t.outputs for t in scheme])
    share = 1.0
    if common.nested(chosen):
        widths = _widths(common.taps_table(chosen, problem.kernel), _windows(chosen, scheme), problem.co, info)
        share = float(widths.sum()) * info["vl"] / (points * common.padded(columns, info))
    return rows, points, outputs, splits, columns, pieces, edges, share, _kept(combo, scheme, info)


def _kept(combo, scheme, info):
    """For each transformed axis: the share of points that is kept, and its tiles."""
    tiles = [(c, t, -(-c.count // t.outputs)) for c, t in zip(combo, scheme, strict=True) if t is not PLAIN]
    return tuple((_multiplied(c, t, info) / (n * t.points), n) for c, t, n in tiles)


@functools.lru_cache(maxsize=256)
def _least_cost(problem, shape, amx, isa):
    """Cycles of a class cut as is cheapest."""
    cuts = _ways(problem, shape, machine.current().info(problem.dtype, amx), 1, (1,))
    return min(cut.work * cut.tasks for cut in cuts) * problem.groups


@dataclass(frozen=True)
class _Cut:
    """How a class is cut into tasks."""

    block: int  # tiles of a task
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    span: int  # depth chunks transformed at once
    across: bool  # a point of all panels after the other, instead of a panel of all points
    work: float  # cycles of a task

    @property
    def tasks(self):
        return self.blocks * self.panel_blocks


def _ways(problem, shape, info, threads, panel_blocks):
    """The ways to cut a class that are worth a look."""
    rows, points, _, splits, columns, *_ = shape
    nr, size, high, grain = info["nr"], info["e_size"], info["mr"][-1], info["grain"]
    panels = -(-columns // nr)
    depth, chunks, step = _chunks(problem, splits, info)
    ways = {}
    for height in _HEIGHTS:
        fewest = -(-rows // (high * height))
        for blocks in {fewest, -(-fewest // threads) * threads}:
            block = -(-rows // (blocks * grain)) * grain
            # A point's rows stay in L2 for all panels, whose weights pass by but once; points and sums are let go. Blocks can
            # then be so high that weights of six bytes are fetched while they are multiplied.
            for n in panel_blocks if info["parts"] else ():
                panel_block = -(-panels // min(n, panels))
                if _waiting(points, block, depth, panel_block, info) <= _MOST_WAITING:
                    cut = block, -(-rows // block), panel_block, -(-panels // panel_block), chunks, True
                    ways[cut] = _Cut(*cut, _work(problem, shape, block, panel_block, info, chunks, across=True))
            # A panel of all points after the other, which all the rows are read again for: on a matrix unit only from L2. Of
            # more depth a chunk is transformed at a time, and the sums of all panels wait in between.
            most = _l2_share() if info["parts"] else _MOST_WAITING
            space = max(most // (size * points) - depth * nr, most // (size * points) // 2)
            for span in dict.fromkeys((chunks, 1)):
                if block * (min(depth, span * step) + nr) > space and (height > 1 or span > 1):
                    continue
                least = -(-panels * nr * block // max(space - block * step, nr * block)) if span < chunks else 1
                for n in {max(least, n) for n in panel_blocks if n <= panels}:
                    panel_block = -(-panels // n)
                    cut = block, -(-rows // block), panel_block, -(-panels // panel_block), span, False
                    ways[cut] = _Cut(*cut, _work(problem, shape, block, panel_block, info, span))
    return ways.values()


def _waiting(points, block, depth, panel_block, info):
    """Bytes of the points of a block and of all its sums."""
    return points * block * (depth * info["e_size"] + panel_block * info["nr"] * info["t_size"])


def _costs(amx):
    return machine.current().profile["matrix_winograd" if amx else "winograd"]


def _work(problem, shape, block, panel_block, info, span, across=False):
    """Cycles of a task."""
    return _costs(info["parts"] > 0).cycles(_counts(problem, shape, block, panel_block, info, span, across))


def _counts(problem, shape, block, panel_block, info, span, across):
    """What a task takes: its GEMMs, the weights that they wait for, the transforms of inputs and of products."""
    _, points, outputs, splits, width, pieces, edges, share, kept = shape
    size, vl = info["e_size"], info["vl"]
    depth, chunks, step = _chunks(problem, splits, info)
    phases = math.prod(map(min, problem.kernel, problem.strides))
    wide = common.padded(width, info) / width * share
    total = points * depth * size * problem.groups * problem.co * phases * wide  # of all classes, if they are alike
    columns = min(width, panel_block * info["nr"])
    chain = min(step, CHAIN) if points > _ONE_AXIS and not info["parts"] else step
    multiplied = share * points
    for n, (part, tiles) in enumerate(kept):  # between stretches of tiles some are multiplied in vain, but on the first axis
        multiplied *= part if n == 0 or 2 * block >= 3 * BRIDGE * tiles else (2 + part) / 3
    again = 0 if info["parts"] else _again(points, block, span * step, chunks > span, panel_block, info) * -(-chunks // span)
    bytes = points * depth * columns * wide * size
    counts = common.weight_counts(bytes, total, again)
    for name, count in common.tile_counts(block, columns, depth, info, chain).items():
        counts[name] = multiplied * count
    if info["parts"]:
        counts["weight_byte_amx"] = common.far(total) * bytes
    if across:
        waiting = _waiting(points, block, depth, panel_block, info)
        counts["wino_waiting_byte"] = common.far(waiting, _l2_share()) * waiting
    reads = block * splits * points  # of transformed vectors of a tile's window
    vectors = -(-problem.ci // max(vl, info["kstep"])) * max(1, info["kstep"] // vl)
    counts["wino_in_vector"], counts["wino_in_point"] = reads * vectors, reads
    if problem.planar:  # a number at a time
        counts["wino_in_element"] = reads * vectors * vl
    counts["wino_in_chunk"] = block * splits * chunks
    if info["parts"]:
        counts["amx_split_vector"] = reads * vectors
        counts["amx_split_step"] = block * splits * -(-problem.ci // info["kstep"])
    products = block * points * -(-columns // vl)
    counts["wino_product_vector"], counts["wino_output"] = products, block * outputs * panel_block
    if info["parts"]:
        counts["wino_output_panel"] = block * panel_block
    if share < 1 and problem.co % info["nr"]:  # points multiply a part of a panel, and what is left becomes zeros
        counts["wino_zero_vector"] = products
    stored = block * outputs * columns / width
    counts["piece"], counts["edge_piece"], counts["task"] = stored * pieces, stored * edges, 1
    return counts


def _memory_cycles(problem, phases, info):
    """Cycles that data takes which L2 does not hold, planes, and outputs that no tap reaches; of runs of so many phases."""
    non_temporal = common.streams(problem)
    counts = common.memory_counts(problem, non_temporal) | common.fill_counts(problem)
    counts |= common.plane_counts(problem, math.prod(problem.out_shape) / min(problem.groups, 2))
    if not non_temporal and not _gathers(problem, phases, info):
        counts["out_byte_split"] = common.far(execution.output_bytes(problem)) * common.split_bytes(problem)
    return _costs(info["parts"] > 0).cycles(counts)


def _again(points, block, depth, waits, panel_block, info):
    """Bytes of a task's rows and sums that L2 has lost when vectors read them again: lines that are used in turn are lost as
    soon as there are a few more of them than it holds. With ``waits`` the sums of all panels wait for the next depth."""
    lost = lambda bytes: min(1.0, 4 * common.far(bytes, _l2_share()))  # noqa: E731
    rows, sums = points * block * depth * info["e_size"], points * block * info["nr"] * info["t_size"]
    weights = points * depth * info["nr"] * info["e_size"]
    again = panel_block * (rows + sums) * lost(rows + sums + weights)
    return again + 4 * panel_block * sums * lost(rows + panel_block * (sums + weights)) * waits


def _end(problem, transformed, plain, total, info, threads):
    """When the last thread is done with all classes."""
    _, splits = cutting.splits(problem, plain, [1] * len(plain), total, info, threads)
    first = [(s.work, problem.groups * s.blocks * s.panel_blocks) for s in splits]
    return _cuts(problem, transformed, first, total, info, threads)[0]


def _cuts(problem, classes, first, total, info, threads):
    """When the last thread is done, and a `_Cut` for each class: of a few ways to cut them all, the one that ends first.
    ``first`` are the tasks that come before, (cycles, how many) each."""
    ways = []
    for combo, chosen, scheme in classes:
        shape = _shape(problem, combo, chosen, scheme, info)
        found = _ways(problem, shape, info, threads, _PANEL_BLOCKS)
        ways.append(sorted(found, key=lambda cut: cut.work * -(-problem.groups * cut.tasks // threads)))
    best = None
    for share in _SHARES:
        target = max(total / (share * threads), _LEAST_WORK) if share else math.inf
        cuts = [next((c for c in each if c.work <= target), min(each, key=lambda c: c.work)) for each in ways]
        tasks = first + sorted(((c.work, problem.groups * c.tasks) for c in cuts), reverse=True)
        if best is not None and sum(n for _, n in tasks) > common.EVEN * threads:
            break
        end = common.makespan(tasks, threads)
        if best is None or end < 1.005 * best[0]:
            best = min(end, best[0] if best else end), cuts
    return best


def _chunks(problem, splits, info):
    """(depth of the windows that are summed, number of its chunks, depth of one)."""
    kstep = info["kstep"]
    depth = splits * common.filled(problem.ci, info)
    step = -(-depth // (-(-depth // _core.KC) * kstep)) * kstep
    return depth, -(-depth // step), step


def _link(points, step):
    """The depth that vectors sum in one go, of a chunk of ``step``."""
    return -(-step // -(-step // CHAIN)) if points > _ONE_AXIS else step


def _class(problem, combo, chosen, scheme, cut, packs, in_elements, out_elements, info):
    """The tables of a transformed class for WinogradPlan."""
    pack = packs[tuple(c.group for c in combo)]
    offsets = [g.offsets for g in chosen]
    rows, _, outputs, splits, *_, kept = _shape(problem, combo, chosen, scheme, info)
    depth, _, step = _chunks(problem, splits, info)
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


def _gathers(problem, phases, info):
    """Whether outputs are gathered, so many phases of the last axis side by side, before they go past the caches: a large
    output's whose vectors are not aligned there."""
    wide = problem.co * phases >= 2 * info["nr"]
    return wide and not problem.planar and common.split_bytes(problem) > 0


def _staged(problem, combo, cut, outputs, info):
    """How many panels' outputs a task gathers at a time, 0 where it does not."""
    if not _gathers(problem, len(combo[-1].first_out), info):
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


def _windows(chosen, scheme):
    """For each window of some phases: the taps it has, and [point][tap] of its transform."""
    windows = [(np.zeros(1, np.int64), np.ones((1, 1)))]
    for group, transform in zip(chosen, scheme, strict=True):
        windows = _both(windows, _axis_windows(transform, len(group.offsets)), len(group.offsets))
    return windows


def _widths(taps, windows, co, info):
    """[panel][point]: up to which vector of columns, those of phases with these taps, [phase][tap], there are weights."""
    there = sum((points != 0).astype(int) @ (taps[:, some] >= 0).T.astype(int) for some, points in windows)
    columns = np.repeat(there > 0, co, axis=1)
    columns = np.pad(columns, ((0, 0), (0, -columns.shape[1] % info["nr"])))
    vectors = columns.reshape(len(columns), -1, info["nr"] // info["vl"], info["vl"]).any(-1)
    return (vectors * np.arange(1, vectors.shape[2] + 1)).max(-1).T


def _axis_windows(transform, count):
    """The windows of one axis of phases of ``count`` taps."""
    weights = transform.weights()
    windows = []
    for first in range(0, count, transform.taps):
        taps = np.arange(first, min(count, first + transform.taps))
        windows.append((taps, weights[:, taps - first]))
    return windows


def _both(first, second, count):
    """The windows of two axes from those of each, the second of so many taps."""
    return [
        ((taps[:, None] * count + more).reshape(-1), np.kron(weights, others))
        for taps, weights in first
        for more, others in second
    ]
