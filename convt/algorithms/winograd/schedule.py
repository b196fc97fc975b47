"""All decisions of `winograd` about a problem on a machine, as a `Schedule`.

`choose` selects the way to merge phases. For each way, it selects the transforms of each class that take fewest cycles
(cost.pyx), and compares them with `direct`'s computation of the class. If the filter exceeds LARGE_FILTER, the transforms are
those for data of a typical size, so that one form of packed weights serves all sizes. `_cut_all` divides classes into tasks.
bind.py makes a plan from the schedule.
"""

import itertools
import math
from typing import NamedTuple

from ..._model.costs import overlapped
from ..._run import execution, workspace
from .. import common, phases
from ..caches import remembered
from ..direct import cost as direct_cost
from ..direct import schedule as direct_schedule
from ..direct.bind import Tiles
from ..direct.shapes import Shape, Terms
from ..phases import NESTED, phase_groups
from ..stages import LARGE_FILTER, MOST_FORM, MOST_SMALL_FORM, SHARED, class_representative, resized
from . import cost
from .loops import PLACE
from .transforms import MOST_AXES, SMALL, axis_transforms, nested_share, with_kernels

_MOST_CLASSES = 256
_TYPICAL_PIXELS = 1024  # about the number of pixels of the image that decides the form of a large filter
_STAGE_BYTES = 3 << 17  # bytes of outputs that are gathered for non-temporal stores
_ALL_POINTS = 0.98  # no points are left out if at least this fraction would be multiplied


class Class(NamedTuple):
    """Classes with equal transforms. Each choice of one run per axis is a class."""

    runs: tuple  # for each axis, the numbers of its runs
    scheme: tuple  # for each axis, the kind of its transform
    count: int  # type: ignore[assignment]  # number of classes times channel groups
    rows: int  # tiles of all images
    points: int  # points of a tile
    outputs: int  # outputs of a tile
    columns: int
    depth: int  # tap windows times in-channels, in whole steps of depth
    step: int  # depth of a depth chunk; the last one may have less
    chain: int  # depth that is summed alone, a part of a chunk
    cut: common.Division
    sorted: bool  # tiles at the ends of an axis are adjacent, and points that they do not need are left out
    staged_panels: int  # panels whose outputs are gathered for non-temporal stores; 0 if outputs are stored at once
    strides: tuple  # (elements between transformed rows, bytes between rows of points, elements between sums of points)


class Schedule(NamedTuple):
    """Every decision about a problem on a machine."""

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


class Fit(NamedTuple):
    """The transforms of classes with equal runs, one AxisTransform per axis."""

    equal_runs: tuple  # an EqualRuns per axis
    count: int  # type: ignore[assignment]  # number of classes times channel groups
    transforms: tuple
    work: object  # a cost.Work
    cuts: tuple  # Divisions for SHARED threads
    cycles: float  # cycles of all classes
    weights: int  # transformed weights of a class per in-channel and out-channel


class Choice(NamedTuple):
    """The decisions that do not depend on the number of threads."""

    merge: tuple
    fits: tuple  # transformed classes
    plain: tuple  # pairs (EqualRuns of each axis, result of _plain_shapes)
    cycles: float


def schedule(problem, here, unit, threads, finite=True, kinds=SMALL):
    """Return the Schedule of a problem, or None if no axis can be transformed or the filter is not finite.

    The transform of infinite weights would be NaN.
    """
    choice = choose(problem, here, unit, kinds) if finite else None
    if choice is None:
        return None
    info, limits, merge = here.info(problem.dtype, unit), here.limits, choice.merge
    plain = _plain_classes(problem, choice.plain, choice.cycles, threads, info, here)
    repacked = direct_cost.repacked_bytes(problem, plain, info)
    _, cuts = _cut_all(choice.fits, direct_cost.tasks(plain, problem.groups), threads)
    schemes, classes, weight_bytes = [], [], 0
    for fit, cut in zip(choice.fits, cuts, strict=True):
        scheme, work = tuple([t.kind for t in fit.transforms]), fit.work
        schemes += [(numbers, scheme) for numbers in itertools.product(*[a.groups for a in fit.equal_runs])]
        weight_bytes += fit.count // problem.groups * _panel_bytes(problem, work.points * work.windows, work.columns, info)
        repacked += fit.count // problem.groups * _repacked_bytes(problem, merge, fit, cut, info, here)
        classes.append(Class(
            tuple([a.runs for a in fit.equal_runs]), scheme, fit.count, work.rows, work.points, work.outputs, work.columns,
            work.depth, work.step, work.chain, cut, work.point_share < _ALL_POINTS,
            _staged_panels(problem, fit.transforms[-1].phases, cut, work.outputs, info), work.strides(cut.block),
        ))  # fmt: skip
    for equal_runs, _ in choice.plain:
        numbers, untransformed = list(itertools.product(*[a.groups for a in equal_runs])), [a.candidates[0] for a in equal_runs]
        schemes += [(each, (0,) * problem.rank) for each in numbers]
        columns = problem.co * math.prod([t.phases for t in untransformed])
        weight_bytes += len(numbers) * _panel_bytes(problem, math.prod([t.windows for t in untransformed]), columns, info)
    has_empty_phases = any([axis.has_empty_phases() for axis in phases.axes_of(problem)])
    classes.sort(key=lambda c: -c.cut.cycles)  # large tasks first, so that the last ones balance the threads
    on_the_fly = execution.packs_on_the_fly(here, weight_bytes, repacked)
    outgrows = execution.outgrows(problem, limits.non_temporal)
    how = execution.decide(problem, here, info, threads, weight_bytes, has_empty_phases, outgrows)
    tiles = Tiles(
        not info.matrix, limits.near_weights, limits.far, 0 if limits.ordinary_stores else how.non_temporal,
        direct_schedule.packing_bytes(info) if on_the_fly else 0, direct_schedule.book(problem, plain, info),
    )  # fmt: skip
    return Schedule(
        problem, unit, threads, (merge, tuple(sorted(schemes))), choice.cycles,
        tuple(classes), plain, tiles, limits.same_set, how, weight_bytes, repacked, on_the_fly,
        execution.data_bytes(problem) > here.l2, book(problem, classes, info, on_the_fly),
    )  # fmt: skip


# ---------------------------------------------------------------- merges and transforms


@remembered(256)
def choose(problem, here, unit, kinds):
    """Return the Choice for a problem, or None if no axis can be transformed.

    Phases are merged as for the representative of the problem class (stages.class_representative). A large filter is merged and
    transformed as in `typical`.
    """
    info = here.info(problem.dtype, unit)
    if info is None or not _is_supported(problem):
        return None
    most_weights = math.prod(problem.kernel) * info.s_size / info.e_size  # per in-channel and out-channel
    large = most_weights * problem.groups * problem.ci * problem.co * info.e_size > LARGE_FILTER
    most_weights *= max(MOST_FORM if large else MOST_SMALL_FORM, here.packed_limit)
    merges, schemes = _merges(problem.kernel, problem.strides, problem.dilations, info), None
    representative = typical(problem) if large else class_representative(problem)
    if problem != representative:
        chosen = choose(representative, here, unit, kinds)
        if chosen is None:
            return None
        merges, schemes = (chosen.merge,), _schemes(chosen) if large else None
    terms, best = (cost.WorkTerms(problem, info, here), Terms(problem, info, here)), None
    for merge in merges:
        axes = [
            axis_transforms(*axis, kinds, info.matrix)
            for axis in zip(problem.kernel, problem.strides, problem.dilations, merge, problem.begin, problem.out_sizes,
                            strict=True)
        ]  # fmt: skip
        if best is not None and math.prod([sum([len(a.runs) for a in axis]) for axis in axes]) > _MOST_CLASSES:
            continue
        fits, plain = _choose_transforms(problem, merge, axes, schemes, most_weights, terms)
        if not fits or (NESTED in merge and plain):
            continue
        shapes = [(shape, count) for _, some in plain for _, count, shape in some]
        cycles = sum([fit.cycles for fit in fits])
        cycles += sum([shape.cycles(shape.rows, shape.columns) * problem.groups * count for shape, count in shapes])
        if best is None or cycles < best[0]:
            best = cycles, merge, fits, plain
    if best is None:
        return None
    cycles, merge, fits, plain = best
    tasks = sum([min(fit.cuts, key=lambda cut: cut.total).tasks * fit.count for fit in fits])
    tasks += sum([shape.most_tasks * count for _, some in plain for _, count, shape in some])
    if common.has_few_tasks([(cycles, tasks)], here):
        first = direct_cost.tasks(_plain_classes(problem, plain, cycles, SHARED, info, here), problem.groups)
        cycles = SHARED * _cut_all(fits, first, SHARED)[0]
    last = phase_groups(problem.kernel[-1], problem.strides[-1], problem.dilations[-1], merge[-1])
    gathered = _gathers(problem, max([len(group.residues) for group in last]), info)
    memory, fill = cost.memory_cycles(problem, gathered, info, here)
    return Choice(merge, tuple(fits), tuple(plain), overlapped(cycles + fill, memory))


def typical(problem):
    """Return the operator on data of a typical size, which decides the form of a large filter.

    One form serves all sizes, because two forms would exceed the bound of packed weights, and packing takes longer than a call.
    """
    return resized(problem, 1, [round(_TYPICAL_PIXELS ** (1 / problem.rank))] * problem.rank)


def _schemes(choice):
    """Return the kinds of transform of the transformed classes of a Choice, a dict from their phase groups."""
    return {
        numbers: tuple([t.kind for t in fit.transforms])
        for fit in choice.fits for numbers in itertools.product(*[a.groups for a in fit.equal_runs])
    }  # fmt: skip


def _is_supported(problem):
    """Check whether the problem has work, and a dtype with transforms."""
    return problem.dtype in ("float32", "float64") and problem.ci * math.prod(problem.out_shape) > 0


@remembered(256)
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


def _choose_transforms(problem, merge, axes, schemes, most_weights, terms):
    """Return (Fits of the transformed classes, pairs (EqualRuns, shapes) of the other classes) of a merge.

    ``schemes`` is the result of `_schemes` if the transforms are given, else None. A class is then transformed if that takes
    fewer cycles than `direct`; the class that gains most is transformed in any case. If the weights of all classes together
    exceed ``most_weights``, classes whose weights grow most get another transform or none.
    """
    nested, fits, total = NESTED in merge, [], 0
    kinds = list(itertools.product(*axes))
    growth = lambda n: fits[n].weights / _plain_weights(kinds[n])  # noqa: E731
    for equal_runs in kinds:
        nclasses = math.prod([len(a.runs) for a in equal_runs])
        fits.append(_fit(problem, merge, equal_runs, schemes, most_weights / nclasses + 1e-9, terms[0]))
        total += nclasses * (fits[-1].weights if fits[-1] else _plain_weights(equal_runs))
    while total > most_weights and any(fits) and schemes is None:
        n = max([n for n, fit in enumerate(fits) if fit], key=growth)
        before, fits[n] = fits[n], _fit(problem, merge, kinds[n], None, fits[n].weights, terms[0])
        after = fits[n].weights if fits[n] else _plain_weights(kinds[n])
        total -= before.count // problem.groups * (before.weights - after)
    if nested or not any(fits):
        return [fit for fit in fits if fit], [(each, ()) for each, fit in zip(kinds, fits, strict=True) if not fit]
    chosen, plain, gains = [], [], []
    for equal_runs, fit in zip(kinds, fits, strict=True):
        shapes = None
        if fit is None or schemes is None:
            shapes = _plain_shapes(problem, merge, equal_runs, terms[1])
            gains.append(fit.cycles / sum([shape.total * count for _, count, shape in shapes]) if fit else math.inf)
        chosen.append((fit, equal_runs, shapes))
    best = min(gains, default=0)
    for n, (fit, equal_runs, shapes) in enumerate(chosen):
        if fit is None or (schemes is None and gains[n] >= 1 and gains[n] > best):
            plain.append((equal_runs, shapes))
            fits[n] = None
    return [fit for fit in fits if fit], plain


def _fit(problem, merge, equal_runs, schemes, most_weights, terms):
    """Return the Fit of fewest cycles with fewer than ``most_weights`` weights, None if there is no transform.

    Weights are counted per in-channel and out-channel (AxisTransform.weights). On each axis, the transform of fewest products
    is tried first, and the others if its weights are too many.
    """
    count, best = math.prod([len(a.runs) for a in equal_runs]) * problem.groups, None
    ways = [[a.candidates[:2] for a in equal_runs], [a.candidates for a in equal_runs]]
    if schemes is not None:
        scheme, most_weights = schemes.get(tuple([a.groups[0] for a in equal_runs]), (0,) * problem.rank), math.inf
        ways = [[
            [t for t in a.candidates + a.others if t.kind == kind] or a.candidates[:1]
            for a, kind in zip(equal_runs, scheme, strict=True)
        ]]  # fmt: skip
    for way in ways:
        choices = []
        for places in with_kernels(tuple([tuple([t.kind for t in axis]) for axis in way])):
            transforms, products, weights = tuple([axis[n] for axis, n in zip(way, places, strict=True)]), 1.0, 1
            for t in transforms:
                products *= t.products
                weights *= t.weights
            choices.append((products, weights, transforms))
        fitting = [choice for choice in choices if choice[1] < most_weights]
        for products, weights, transforms in sorted(fitting):
            if best is not None and terms.least(products, transforms) * count >= best.cycles:
                break
            share = nested_share(problem, merge, equal_runs, transforms, terms.unit) if NESTED in merge else 1.0
            work = cost.Work(terms, transforms, share)
            cuts = cost.cuts(work, count, SHARED)
            cycles = min([cut.total for cut in cuts]) * count
            if best is None or cycles < best.cycles:
                best = Fit(equal_runs, count, transforms, work, cuts, cycles, weights)
        if best is not None and len(fitting) == len(choices):
            break
    return best


def _plain_weights(equal_runs):
    """Return the weights of a class without a transform, per in-channel and out-channel."""
    return math.prod([a.candidates[0].weights for a in equal_runs])


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


def _cut_all(fits, first, threads):
    """Return (time at which the last thread is done, Division of each class).

    Two choices are compared: those with the least work, and those that keep all threads busy. ``first`` are the tasks that run
    before, pairs (cycles, number).
    """
    class_cuts = [(fit.count, fit.cuts if threads == SHARED else cost.cuts(fit.work, fit.count, threads)) for fit in fits]
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


def _repacked_bytes(problem, merge, fit, cut, unit, here):
    """Return the bytes that the tasks of a class pack if they pack on the fly, infinite if they cannot."""
    work, taps = fit.work, 1
    for k, s, d, m, a in zip(problem.kernel, problem.strides, problem.dilations, merge, fit.equal_runs, strict=True):
        taps *= len(phase_groups(k, s, d, m)[a.groups[0]].offsets)
    if unit.matrix:  # each point reads the taps again, which must stay in L2 beside the rows of a point
        packed_bytes = (cut.panel_block if cut.point_major else 2) * unit.nr * taps * problem.ci * unit.s_size
        contiguous = unit.nr if work.phases > 1 else unit.vl  # out-channels that a panel needs contiguous in the filter
        if NESTED in merge or problem.co % contiguous or unit.s_size != unit.t_size:
            return math.inf
    else:
        packed_bytes = work.points * unit.nr * work.chain * unit.e_size
    if packed_bytes > here.l2 // 2:
        return math.inf
    return cut.blocks * work.windows * work.points * work.phases * problem.groups * problem.ci * problem.co * unit.e_size


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


def book(problem, classes, unit, on_the_fly):
    """Return the workspace of a thread for the transformed classes."""
    rows = sums = stage = block = points = packed_panel = 0
    for c in classes:
        cut, (lda, point_rows, point_sums) = c.cut, c.strides
        sum_panels = cut.panel_block if cut.point_major or cut.span * c.step < c.depth else 1  # panels with separate sums
        # A register tile may start at any row and reads whole M steps, for the last point beyond its rows.
        rows = max(rows, cut.span * c.points * point_rows + (unit.m_step - 1) * lda * unit.e_size)
        sums = max(sums, sum_panels * c.points * point_sums * unit.t_size)
        stage = max(stage, cut.block * c.outputs * c.staged_panels * unit.nr * unit.t_size)
        block, points = max(block, cut.block), max(points, c.points)
        packed_panel = max(packed_panel, c.points * unit.nr * c.chain * unit.e_size)
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
    ci, columns, transformed, price = problem.ci, problem.co, 0, cost.prices_of(info, here)
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
    each, read = common.product_price(info, price), price["wino_in_vector"]
    if info.matrix:
        read += price["store"] + price["amx_pack"] * info.vl / info.kstep
    share = (2 / 3 if kinds is SMALL else 1 / 2) ** min(transformed, MOST_AXES)  # F(2, 3) and F(3, 2), or F(4, 3)
    return (
        products * ci * problem.co * share * each + weights * price["weight_byte"]
        + tiles * (-(-ci // info.vl) * read + price["store"] + -(-columns // info.vl) * price["wino_product_vector"]
                   + -(-columns // info.nr) * price["wino_output"])
    )  # fmt: skip
