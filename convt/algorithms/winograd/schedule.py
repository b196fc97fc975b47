"""All decisions of `winograd` about a problem on a machine, as a `Schedule`.

1. `choose` selects the transforms of each class and the way to merge phases by the estimates of fits.py. If the filter exceeds
   LARGE_FILTER, the transforms depend on the taps alone, so that one form of packed weights serves all sizes.
2. `_compare` compares each transformed class with `direct`'s computation of it.
3. `_cuts` lists a few divisions of a class into tasks, and `_cut_all` selects one of them by the counts of cost.py.

bind.py makes tables from the schedule.
"""

import functools
import itertools
import math
from typing import NamedTuple

from ..._model.costs import overlapped
from ..._run import execution, workspace
from .. import common, phases
from ..direct import cost as direct_cost
from ..direct import schedule as direct_schedule
from ..direct.bind import Tiles
from ..direct.shapes import Shape, Terms
from ..phases import NESTED, phase_groups
from ..stages import LARGE_FILTER, MOST_FORM, MOST_SMALL_FORM, SHARED, class_representative, resized
from . import cost
from .fits import (
    MOST_AXES,
    MOST_TASK_BYTES,
    MOST_TILES,
    axis_transforms,
    estimator,
    fixed_scheme,
    has_kernels,
    nested_share,
    prices,
)
from .loops import CHAIN, PLACE
from .transforms import SMALL

_NAMES = {"vectors": "winograd", "amx": "matrix_winograd", "amx_two": "matrix_high_winograd"}
_MOST_CLASSES = 256
_TYPICAL_PIXELS = 1024  # about the number of pixels of the image that decides the form of a large filter
_CLEAR_GAIN = 0.6  # a transform whose estimated cycles are below this fraction of direct's is taken without further comparison
_TASKS_PER_THREAD = 8  # threads with at least this many tasks each are balanced
_STAGE_BYTES = 3 << 17  # bytes of outputs that are gathered for non-temporal stores
_ALL_POINTS = 0.98  # no points are left out if at least this fraction would be multiplied


class Cut(NamedTuple):
    """A division of a class into tasks."""

    block: int  # tiles of a task
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    span: int  # depth chunks transformed at once
    point_major: bool  # a point is multiplied for all panels before the next point; otherwise, a panel for all points
    cycles: float  # cycles of a task

    @property
    def tasks(self):
        """Return the number of tasks of a class in one channel group."""
        return self.blocks * self.panel_blocks


class Class(NamedTuple):
    """Classes with equal transforms. Each choice of one run per axis is a class."""

    runs: tuple  # for each axis, the numbers of its runs
    scheme: tuple  # for each axis, the kind of its transform
    starts_early: tuple  # for each axis, whether tiles begin one output before the run
    work: cost.Work
    count: int  # type: ignore[assignment]  # number of classes times channel groups
    cut: Cut
    sorted: bool  # tiles at the ends of an axis are adjacent, and points that they do not need are left out
    staged_panels: int  # panels whose outputs are gathered for non-temporal stores; 0 if outputs are stored at once
    chain: int  # depth that is summed alone, a part of a depth chunk
    strides: tuple  # (elements between transformed rows, bytes between rows of points, elements between sums of points)


class Schedule(NamedTuple):
    """Every decision about a problem on a machine."""

    algorithm: str
    problem: object
    unit: str
    threads: int
    form: tuple  # (for each axis, whether phases are merged; pairs (phase groups of the axes, kinds of transform))
    cycles: float  # cycles of all threads together, including threads that idle at the end
    classes: tuple  # transformed classes
    plain: tuple  # untransformed classes, as direct.schedule.Class
    tiles: Tiles  # the register tiles of untransformed classes
    same_set: int  # direct.schedule.Schedule.same_set
    execution: execution.Execution
    weight_bytes: int  # bytes of all packed weights
    again_bytes: float  # bytes of weights that tasks pack if they pack on the fly
    on_the_fly: bool  # tasks of a one-shot call pack weights on the fly
    prefetches: bool  # tasks prefetch input tiles, because L2 does not hold the input
    workspace: workspace.Workspace


class Choice(NamedTuple):
    """The decisions that do not depend on the number of threads."""

    merge: tuple
    classes: tuple  # (EqualRuns and AxisTransform of each axis, Work, classes times channel groups, Cuts for SHARED threads)
    plain: tuple  # (EqualRuns of each axis, result of _plain_shapes)
    cycles: float


def schedule(problem, here, unit, threads, finite=True, kinds=SMALL):
    """Return the Schedule of a problem, or None if no axis can be transformed or the filter is not finite.

    The transform of infinite weights would be NaN.
    """
    choice = choose(problem, here, unit, kinds) if finite else None
    if choice is None:
        return None
    info, merge = here.info(problem.dtype, unit), choice.merge
    if choice.cycles < here.limits.single_thread_cycles:
        threads = 1
    plain = _plain_classes(problem, choice.plain, choice.cycles, threads, info, here)
    repacked = direct_cost.repacked_bytes(problem, plain, info)
    _, cuts = _cut_all(problem, choice.classes, direct_cost.tasks(plain, problem.groups), threads, info, here)
    schemes, classes, weight_bytes = [], [], 0
    for (equal_runs, transforms, work, count, _), cut in zip(choice.classes, cuts, strict=True):
        scheme, point_share = tuple([t.kind for t in transforms]), math.prod([share for share, _ in work.axis_shares])
        schemes += [(numbers, scheme) for numbers in itertools.product(*[a.groups for a in equal_runs])]
        nclasses = count // problem.groups
        weight_bytes += nclasses * _panel_bytes(problem, work.points * work.windows, work.columns, info)
        repacked += nclasses * _repacked_bytes(problem, merge, equal_runs, work, cut, info, here)
        classes.append(Class(
            tuple([a.runs for a in equal_runs]), scheme, tuple([t.starts_early for t in transforms]), work, count, cut,
            point_share < _ALL_POINTS, _staged_panels(problem, transforms[-1].phases, cut, work.outputs, info),
            work.step if info.matrix else chain_depth(work.points, work.step), row_bytes(work, cut.block, info),
        ))  # fmt: skip
    for equal_runs, _ in choice.plain:
        numbers, untransformed = list(itertools.product(*[a.groups for a in equal_runs])), [a.candidates[0] for a in equal_runs]
        schemes += [(each, (0,) * problem.rank) for each in numbers]
        columns = problem.co * math.prod([t.phases for t in untransformed])
        weight_bytes += len(numbers) * _panel_bytes(problem, math.prod([t.windows for t in untransformed]), columns, info)
    hole = any(map(phases.has_hole, problem.kernel, problem.strides, problem.dilations, problem.begin, problem.out_sizes))
    outgrows, limits = execution.outgrows(problem, here.limits.non_temporal), here.limits
    classes.sort(key=lambda c: -c.cut.cycles)  # large tasks first, so that the last ones balance the threads
    on_the_fly = execution.packs_on_the_fly(here, weight_bytes, repacked)
    how = execution.decide(problem, here, info, hole, choice.cycles, weight_bytes, outgrows)
    tiles = Tiles(
        not info.matrix, limits.near_weights, limits.far, 0 if limits.ordinary_stores else how.non_temporal,
        direct_schedule.packing_bytes(info) if on_the_fly else 0, direct_schedule.book(problem, plain, info),
    )  # fmt: skip
    return Schedule(
        _NAMES[unit] if kinds is SMALL else "winograd6", problem, unit, threads, (merge, tuple(sorted(schemes))), choice.cycles,
        tuple(classes), plain, tiles, limits.same_set, how, weight_bytes, repacked, on_the_fly,
        execution.data_bytes(problem) > here.l2, book(problem, classes, info, on_the_fly),
    )  # fmt: skip


# ---------------------------------------------------------------- merges and transforms


@functools.lru_cache(maxsize=256)
def choose(problem, here, unit, kinds):
    """Return the Choice for a problem, or None if no axis can be transformed.

    Phases are merged as for the representative of the problem class (stages.class_representative) or, for a large filter, as in
    `typical`.
    """
    info = here.info(problem.dtype, unit)
    if info is None or not _is_supported(problem):
        return None
    most_weights = math.prod(problem.kernel) * info.s_size / info.e_size  # per in-channel and out-channel
    large = most_weights * problem.groups * problem.ci * problem.co * info.e_size > LARGE_FILTER
    most_weights *= max(MOST_FORM if large else MOST_SMALL_FORM, here.packed_limit)
    merges = _merges(problem.kernel, problem.strides, problem.dilations, info)
    representative = typical(problem) if large else class_representative(problem)
    if problem != representative:
        chosen = choose(representative, here, unit, kinds)
        if chosen is None:
            return None
        merges = (chosen.merge,)
    estimate, best = estimator(problem, info, here), (math.inf, None, None)
    for merge in merges:
        axes = [
            axis_transforms(k, s, d, m, begin, out, kinds, info.matrix, large)
            for k, s, d, m, begin, out in zip(problem.kernel, problem.strides, problem.dilations, merge, problem.begin,
                                              problem.out_sizes, strict=True)
        ]  # fmt: skip
        if best[1] and math.prod([sum([len(a.runs) for a in axis]) for axis in axes]) > _MOST_CLASSES:
            continue
        if large:
            class_choices = _fixed_transforms(problem, merge, axes, kinds, info, estimate, most_weights)
        else:
            class_choices = _transforms(problem, merge, axes, info, estimate, most_weights)
        transformed = [chosen for *_, chosen in class_choices if chosen]
        if not transformed or (NESTED in merge and len(transformed) < len(class_choices)):
            continue
        cycles = sum([min(plain, least) * nclasses for _, nclasses, plain, least, _ in class_choices])
        if cycles < best[0]:
            best = cycles, merge, class_choices
    return None if best[1] is None else _compare(problem, *best[1:], large, info, here)


def typical(problem):
    """Return the operator on data of a typical size, which decides the form of a large filter.

    One form serves all sizes, because two forms would exceed the bound of packed weights, and packing takes longer than a call.
    """
    return resized(problem, 1, [round(_TYPICAL_PIXELS ** (1 / problem.rank))] * problem.rank)


def _is_supported(problem):
    """Check whether the problem has work, and a dtype with transforms."""
    return problem.dtype in ("float32", "float64") and problem.ci * math.prod(problem.out_shape) > 0


@functools.lru_cache(maxsize=256)
def _merges(kernel, strides, dilations, unit):
    """Return the distinct ways to merge phases: on all axes, on the last axis, on none, and nested.

    Nested merges gain only on vectors with many registers. An axis without phases to merge counts as merged, because its
    weights are packed in the same way.
    """
    axes = [(k, s, d) for k, s, d in zip(kernel, strides, dilations, strict=True)]
    merged = [len(phase_groups(*axis, True)) for axis in axes]
    alone = [len(phase_groups(*axis, False)) == count for axis, count in zip(axes, merged, strict=True)]
    found = dict.fromkeys([(True,) * len(axes), (*alone[:-1], True), tuple(alone)])
    if not unit.matrix and 5 * unit.wide >= 2 * unit.mr[-1] and max(merged) > 1:
        found[(NESTED,) * len(axes)] = None
    return tuple(found)


def _transforms(problem, merge, axes, unit, estimate, most_weights):
    """Return a list with one item for each kind of classes of a merge.

    An item is [EqualRuns of the axes, number of classes, estimated cycles without a transform, estimated cycles of the best
    transform, (its weights, its AxisTransforms)]; the last one is None if there is no transform. Weights are counted per
    in-channel and out-channel (AxisTransform.weights). If all classes together exceed ``most_weights``, classes whose weights
    grow most get another transform or none.
    """
    nested, class_choices, total = NESTED in merge, [], 0

    def best(equal_runs, most_weights, count):
        choices = []
        for transforms in itertools.product(*[a.candidates[:count] for a in equal_runs]):
            weights, products = math.prod([t.weights for t in transforms]), math.prod([t.products for t in transforms])
            if weights < most_weights and has_kernels([t.kind for t in transforms]):
                choices.append((products, weights, transforms))
        choices.sort()
        least, chosen, rate = math.inf, None, 0.0
        for products, weights, transforms in choices:
            if rate * products >= least:  # its multiplications alone take longer than the best choice
                break
            share = nested_share(problem, merge, equal_runs, transforms, unit) if nested else 1.0
            cycles, compute = estimate(transforms, share)
            rate = rate or 0.98 * compute / products
            if cycles < least:
                least, chosen = cycles, (weights, transforms)
        return least, chosen

    for equal_runs in itertools.product(*axes):
        nclasses, plain = math.prod([len(a.runs) for a in equal_runs]), tuple([a.candidates[0] for a in equal_runs])
        class_weights = most_weights / nclasses + 1e-9
        least, chosen = best(equal_runs, class_weights, 2)
        if chosen is None:
            least, chosen = best(equal_runs, class_weights, None)
        class_choices.append([equal_runs, nclasses, math.inf if nested else estimate(plain)[0], least, chosen])
        total += nclasses * (chosen[0] if chosen else _plain_weights(equal_runs))
    while total > most_weights and any([chosen for *_, chosen in class_choices]):
        each = max([c for c in class_choices if c[4]], key=lambda c: c[4][0] / _plain_weights(c[0]))
        equal_runs, nclasses, _, _, (weights, _) = each
        each[3:] = best(equal_runs, weights, None)
        total -= nclasses * (weights - (each[4][0] if each[4] else _plain_weights(equal_runs)))
    return class_choices


def _fixed_transforms(problem, merge, axes, kinds, unit, estimate, most_weights):
    """Return the result of `_transforms` for a large filter, whose transforms depend on the taps alone."""
    nested, class_choices, plain_weights = NESTED in merge, [], 1  # weights without a transform
    for axis in zip(problem.kernel, problem.strides, problem.dilations, merge, strict=True):
        plain_weights *= sum([len(group.residues) * len(group.offsets) for group in phase_groups(*axis)])
    for equal_runs in itertools.product(*axes):
        nclasses, plain = math.prod([len(a.runs) for a in equal_runs]), tuple([a.candidates[0] for a in equal_runs])
        scheme = fixed_scheme(tuple([t.windows for t in plain]), kinds, most_weights / plain_weights)
        transforms = tuple([
            next((t for t in a.candidates if t.kind == kind), a.candidates[0])
            for a, kind in zip(equal_runs, scheme, strict=True)
        ])  # fmt: skip
        least, chosen = math.inf, None
        if any([t.kind for t in transforms]):
            share = nested_share(problem, merge, equal_runs, transforms, unit) if nested else 1.0
            least, chosen = estimate(transforms, share)[0], (math.prod([t.weights for t in transforms]), transforms)
        class_choices.append([equal_runs, nclasses, math.inf if nested else estimate(plain)[0], least, chosen])
    return class_choices


def _plain_weights(equal_runs):
    """Return the weights of a class without a transform, per in-channel and out-channel."""
    return math.prod([a.candidates[0].weights for a in equal_runs])


def _compare(problem, merge, class_choices, large, unit, here):
    """Return the Choice for a merge. A class is transformed if that takes fewer cycles than `direct`.

    The class that gains most from its transform is transformed in any case. If ``large``, so is every class that has a
    transform, because the form of a large filter must not depend on sizes.
    """
    nested, classes, plain, tasks, terms = NESTED in merge, [], [], [], None
    largest_gain = min([each for each in class_choices if each[4]], key=lambda each: each[3] / each[2])
    for each in class_choices:
        equal_runs, nclasses, without, least, chosen = each
        count, direct = nclasses * problem.groups, math.inf
        if chosen is None or not (nested or large or each is largest_gain or least <= _CLEAR_GAIN * without):
            terms = terms or Terms(problem, unit, here)
            shapes = _plain_shapes(problem, merge, equal_runs, terms)
            direct = shapes[0][2].total
        if chosen is not None and 0.9 * least * problem.groups < direct:
            share = nested_share(problem, merge, equal_runs, chosen[1], unit) if nested else 1.0
            work = _work(problem, chosen[1], share, unit, here)
            cuts = _cuts(work, count, SHARED, unit, here)
            cycles, cut = min([(cut.cycles * cut.tasks, cut) for cut in cuts])
            if cycles * problem.groups < direct:
                classes.append((equal_runs, chosen[1], work, count, cuts))
                tasks.append((cycles * count, cut.tasks * count))
                continue
        plain.append((equal_runs, shapes))
        for _, nclasses, shape in shapes:
            tasks.append((shape.cycles(shape.rows, shape.columns) * problem.groups * nclasses, shape.most_tasks * nclasses))
    cycles = sum([each for each, _ in tasks])
    if cycles >= here.limits.single_thread_cycles and sum([count for _, count in tasks]) <= common.BALANCED_TASKS:
        first = direct_cost.tasks(_plain_classes(problem, plain, cycles, SHARED, unit, here), problem.groups)
        cycles = SHARED * _cut_all(problem, classes, first, SHARED, unit, here)[0]
    memory, fill = _memory_cycles(problem, merge, unit, here)
    return Choice(merge, tuple(classes), tuple(plain), overlapped(cycles + fill, memory))


def _work(problem, transforms, share, unit, here):
    """Return the `cost.Work` of a class. ``transforms`` has the AxisTransform of each axis, ``share`` is Work.share."""
    ci, co = problem.ci, problem.co
    rows, points, windows, outputs, phases, inside, axis_shares = problem.batch, 1, 1, 1, 1, 1.0, []
    for kind, _, tiles, p, o, w, point_share, inner, n, _, _ in transforms:
        rows *= tiles
        points *= p
        windows *= w
        outputs *= o
        phases *= n
        inside *= inner
        if kind:
            axis_shares.append((point_share, tiles))
    columns, pieces = co * phases, 0.0
    adjacent, panel = co * (n if problem.groups == 1 else 1), here.info(problem.dtype).nr
    if columns > adjacent and adjacent % panel:
        pieces = min(-(-columns // panel), columns / adjacent - 1) * (1 + min(panel, columns) / adjacent)
    depth, chunks, step = cost.depth_chunks(ci, windows, unit)
    all_phases = math.prod(map(min, problem.kernel, problem.strides))
    weight_bytes = points * depth * unit.e_size * problem.groups * co * all_phases * (unit.padded(columns) / columns) * share
    return cost.Work(rows, points, outputs, windows, columns, ci, co, pieces, phases * (1 - inside), share, tuple(axis_shares),
                     max(weight_bytes, 1), depth, chunks, step)  # fmt: skip


def _memory_cycles(problem, merge, unit, here):
    """Return (cycles to stream data that L2 does not hold, cycles to fill outputs beforehand)."""
    last = problem.kernel[-1], problem.strides[-1], problem.dilations[-1]
    most = max([len(group.residues) for group in phase_groups(*last, merge[-1])])
    non_temporal = common.stores_non_temporally(problem, here.limits.non_temporal, here)
    return cost.memory_cycles(problem, non_temporal, _gathers(problem, most, unit), unit, here)


# ---------------------------------------------------------------- untransformed classes


def _plain_shapes(problem, merge, equal_runs, terms):
    """Return the untransformed classes of ``equal_runs``: [(numbers of the runs of each axis, number of classes, Shape)]."""
    p, shapes = problem, []
    axes = zip(p.kernel, p.strides, p.dilations, merge, p.in_sizes, p.begin, p.out_sizes, equal_runs, strict=True)
    kinds = [
        [(kind, some) for kind, runs in phases.kinds(*axis, False) if (some := tuple([n for n in runs if n in equal.runs]))]
        for *axis, equal in axes
    ]
    for chosen in itertools.product(*kinds):
        runs = tuple([numbers for _, numbers in chosen])
        shapes.append((runs, math.prod(map(len, runs)), Shape(terms, [kind for kind, _ in chosen])))
    return shapes


def _plain_classes(problem, plain, cycles, threads, unit, here):
    """Return the classes of Choice.plain as direct.schedule.Class, divided into tasks."""
    shapes = [shape for _, shapes in plain for shape in shapes]
    return direct_schedule.cut(problem, unit, here, shapes, cycles, threads)[1] if shapes else ()


# ---------------------------------------------------------------- tasks


def _cuts(work, count, threads, unit, here):
    """Return the Cuts of a class to compare. ``count`` is the number of classes times channel groups."""
    rows, points, depth, chunks, step = work.rows, work.points, work.depth, work.chunks, work.step
    nr, size, high, grain = unit.nr, unit.e_size, unit.mr[-1], unit.grain
    panels, most_blocks, prices, cuts = -(-work.columns // nr), -(-rows // grain), cost.unit_prices(unit, here), {}

    def add_cut(blocks, n, span, point_major=False):
        block, panel_block = -(-rows // (blocks * grain)) * grain, -(-panels // n)
        if (block, panel_block, span, point_major) not in cuts:
            cycles = prices.cycles(cost.task_counts(work, block, panel_block, span, point_major, unit, here))
            cuts[block, panel_block, span, point_major] = Cut(
                block, -(-rows // block), panel_block, -(-panels // panel_block), span, point_major, cycles
            )  # fmt: skip

    def add_cuts(blocks, n, span, point_major=False):
        """Add the Cut with ``blocks`` tile blocks and ``n`` panel blocks, and some with more blocks that balance threads."""
        add_cut(blocks, n, span, point_major)
        tasks = count * blocks * n
        if threads == 1 or tasks % threads == 0 or tasks >= _TASKS_PER_THREAD * threads:
            return
        each = threads // math.gcd(threads, count * n)
        add_cut(min(-(-blocks // each) * each, most_blocks), n, span, point_major)
        if tasks < threads and panels > n:
            add_cut(blocks, min(panels, n * -(-threads // tasks)), span, point_major)
            balanced = next((b for b in range(blocks + 1, threads) if threads % b == 0 and n * threads <= panels * b), threads)
            if balanced < min(threads, most_blocks):
                add_cut(balanced, n * threads // balanced, span, point_major)

    near = cost.near_bytes(here) // (size * points)
    most = near if unit.matrix else MOST_TASK_BYTES // (size * points)
    if unit.matrix:  # all panels meet a point while its rows are in L2
        row = points * (depth * size + panels * nr * unit.t_size)
        for bytes in (cost.near_bytes(here), MOST_TASK_BYTES):
            height = min(MOST_TILES * high, bytes // row // grain * grain)
            if height:
                add_cuts(-(-rows // height), 1, chunks, True)
    room_for_rows = max(most - depth * nr, most // 2)
    for span in (chunks, 1) if chunks > 1 else (1,):
        span_depth = min(depth, span * step)
        height = min(MOST_TILES, room_for_rows // ((span_depth + nr) * high)) * high
        if not height and span > 1:
            continue
        height = height or high
        near_height = (near - span_depth * nr) // ((span_depth + nr) * high) * high
        for each in (height, near_height) if high <= near_height < height else (height,):
            blocks = -(-rows // each)
            block = -(-rows // (blocks * grain)) * grain
            # With several spans, partial sums of all panels are kept while the next span is transformed.
            n = -(-panels * nr * block // max(room_for_rows - block * step, nr * block)) if span < chunks else 1
            add_cuts(-(-rows // block), n, span)
        if near_height >= min(height, rows):  # L2 holds all data that is read again
            break
    return tuple(cuts.values())


def _cut_all(problem, classes, first, threads, unit, here):
    """Return (time at which the last thread is done, Cut of each class).

    Two choices are compared: Cuts with the least work, and Cuts that keep all threads busy. ``first`` are the tasks that run
    before, pairs (cycles, number).
    """
    class_cuts = [
        (count, cuts if threads == SHARED else _cuts(work, count, threads, unit, here)) for *_, work, count, cuts in classes
    ]
    best = None
    for workers in (1, threads):
        cuts = [min([(cut.cycles * -(-count * cut.tasks // workers), cut) for cut in some])[1] for count, some in class_cuts]
        tasks = [(cut.cycles, count * cut.tasks) for cut, (count, _) in zip(cuts, class_cuts, strict=True)]
        end = common.makespan(first + sorted(tasks, reverse=True), threads)
        if best is None or end < best[0]:
            best = end, cuts
        if threads == 1 or sum([count for _, count in tasks]) > common.BALANCED_TASKS * threads:
            break
    return best


# ---------------------------------------------------------------- bytes


def _panel_bytes(problem, points, columns, unit):
    """Return the bytes of the panels of a class; ``points`` counts the points of all tap windows."""
    size = problem.groups * -(-columns // unit.nr) * unit.nr * points * unit.filled(problem.ci) * unit.e_size
    return -(-size // 64) * 64


def _repacked_bytes(problem, merge, equal_runs, work, cut, unit, here):
    """Return the bytes that the tasks of a class pack if they pack on the fly, infinite if they cannot."""
    phases, taps = work.columns // work.co, 1
    for k, s, d, m, a in zip(problem.kernel, problem.strides, problem.dilations, merge, equal_runs, strict=True):
        taps *= len(phase_groups(k, s, d, m)[a.groups[0]].offsets)
    if unit.matrix:  # each point reads the taps again, which must stay in L2 beside the rows of a point
        packed_bytes = (cut.panel_block if cut.point_major else 2) * unit.nr * taps * problem.ci * unit.s_size
        contiguous = unit.nr if phases > 1 else unit.vl  # out-channels that a panel needs contiguous in the filter
        if NESTED in merge or problem.co % contiguous or unit.s_size != unit.t_size:
            return math.inf
    else:
        packed_bytes = work.points * unit.nr * chain_depth(work.points, work.step) * unit.e_size
    if packed_bytes > here.l2 // 2:
        return math.inf
    return cut.blocks * work.windows * work.points * phases * problem.groups * problem.ci * problem.co * unit.e_size


def chain_depth(points, step):
    """Return the depth of a chain, the part of a depth chunk of ``step`` that is summed alone."""
    return -(-step // -(-step // CHAIN)) if points > cost.ONE_AXIS_POINTS else step


def _gathers(problem, phases, unit):
    """Check whether outputs are gathered in the workspace before non-temporal stores write them.

    They are if the output is large, its pixels are not aligned to cache lines, and a pixel with ``phases`` adjacent phases of
    the last axis has at least two panels of columns.
    """
    return problem.co * phases >= 2 * unit.nr and common.split_bytes(problem) > 0


def _staged_panels(problem, phases, cut, outputs, unit):
    """Return the number of panels whose outputs a task gathers at a time, 0 if it does not gather."""
    if not _gathers(problem, phases, unit):
        return 0
    return min(cut.panel_block, max(2, _STAGE_BYTES // (cut.block * outputs * unit.nr * unit.t_size)))


def row_bytes(work, block, unit):
    """Return the strides of the regions `rows` and `sums`.

    They are (elements between transformed rows, bytes between the rows of points, elements between the sums of points).
    """
    lda = direct_schedule.odd_line_stride(work.step, unit)
    rows = -(-block // unit.grain) * unit.grain * lda * unit.e_size + unit.vl * unit.t_size
    return lda, spread_over_sets(rows), spread_over_sets(block * unit.nr * unit.t_size) // unit.t_size


def spread_over_sets(bytes):
    """Return a stride of at least ``bytes`` whose multiples are in different sets of the caches.

    It is five cache lines more than a multiple of 4 KiB or, if it is short, an odd number of lines.
    """
    lines = -(-bytes // 64)
    return (lines + (69 - lines % 64) % 64 if lines > 32 else lines | 1) * 64


def book(problem, classes, unit, on_the_fly):
    """Return the workspace of a thread for the transformed classes."""
    rows = sums = stage = block = points = packed_panel = 0
    for c in classes:
        work, cut = c.work, c.cut
        lda, point_rows, point_sums = c.strides
        sum_panels = cut.panel_block if cut.point_major or cut.span < work.chunks else 1  # number of panels with separate sums
        # A register tile may start at any row and reads whole grains of rows, for the last point beyond its rows.
        rows = max(rows, cut.span * work.points * point_rows + (unit.grain - 1) * lda * unit.e_size)
        sums = max(sums, sum_panels * work.points * point_sums * unit.t_size)
        stage = max(stage, cut.block * work.outputs * c.staged_panels * unit.nr * unit.t_size)
        block, points = max(block, cut.block), max(points, work.points)
        packed_panel = max(packed_panel, work.points * unit.nr * c.chain * unit.e_size)
    line = unit.lda * unit.t_size
    return workspace.book(
        rows=rows,  # transformed input tiles: the A of the GEMMs
        sums=sums,  # products of each point
        sum_rows=block * 8,  # addresses of the rows of a panel's sums
        stage=stage,  # outputs gathered for non-temporal stores
        places=(block + 1) * (PLACE + problem.rank) * 8,  # places of the tiles, and of one that is not sorted yet
        check=unit.nr * unit.t_size,  # not zero if some output is not finite
        tile_buffer=points * line,  # an input tile before its transform; outputs before they are stored in pieces
        intermediate=points * line,  # intermediate results of transforms of three axes
        packed_panel=packed_panel if on_the_fly else 0,  # weights packed on the fly
    )


# ---------------------------------------------------------------- lower bound


def least(problem, here, unit, kinds=SMALL):
    """Return a lower bound of the cycles: multiplications at the peak rate, transforms, and weights read once."""
    info = here.info(problem.dtype, unit)
    if info is None or not _is_supported(problem):
        return math.inf
    ci, columns, transformed = problem.ci, problem.co, 0
    products = tiles = problem.batch * problem.groups
    weights = problem.groups * ci * problem.co * info.e_size
    axes = problem.kernel, problem.strides, problem.dilations, problem.in_sizes, problem.begin, problem.out_sizes
    for k, s, d, size, begin, out in zip(*axes, strict=True):
        products *= min(out // s * k, common.tap_pair_count(k, s, d, size, begin, out))
        tiles *= max(1, out // s)
        weights *= min(k, out)
        if s % d == 0 and k > s // d and out > s // d:
            transformed += 1
            columns *= min(s // d, k - s // d)  # phases that have a second tap
    if not transformed:
        return math.inf
    (cycle, _, byte, *_), (read, point, product, output, *_), _ = prices(info, here)
    share = (2 / 3 if kinds is SMALL else 1 / 2) ** min(transformed, MOST_AXES)  # F(2, 3) and F(3, 2), or F(4, 3)
    return (
        products * ci * problem.co * share * cycle / (info.vl * (info.grain if info.matrix else 2)) + weights * byte
        + tiles * (-(-ci // info.vl) * read + point + -(-columns // info.vl) * product + -(-columns // info.nr) * output)
    )  # fmt: skip
