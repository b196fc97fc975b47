"""How winograd computes a problem: which phases are merged, how classes are transformed, which tiles and panels are a task.

The transforms, and the way to merge phases, are those that are estimated to take least (fits.py). A few cuts of each class into
tasks are then counted as cost.py does.
"""

import functools
import itertools
import math
from typing import NamedTuple

from .. import common, execution, phases, workspace
from ..costs import beside
from ..direct import cost as direct_cost
from ..direct import schedule as direct_schedule
from ..direct.bind import Tiles
from ..direct.shapes import Shape, Terms
from ..phases import NESTED, phase_groups
from ..stages import LARGE_FILTER, MOST_FORM, MOST_SMALL_FORM, SHARED, alike, resized
from . import cost
from .fits import MOST_AXES, MOST_TILES, MOST_WAITING, axis_fits, estimator, lasting_scheme, nested_share, prices
from .fits import transforms_together as together
from .loops import CHAIN, PLACE
from .transforms import SMALL

_NAMES = {"vectors": "winograd", "amx": "matrix_winograd", "amx_two": "matrix_high_winograd"}
_MOST_CLASSES = 256
_TYPICAL = 1024  # pixels of an image, about
_SURELY = 0.6  # a transform that is estimated to take less than this share of what direct does is not compared further
_EVEN = 8  # so many tasks of a thread even out anyhow
_STAGE_BYTES = 3 << 17  # of outputs that are gathered for non-temporal stores
_ALL = 0.98  # of points multiplied: more are not worth leaving any out


class Cut(NamedTuple):
    """How a class is cut into tasks."""

    block: int  # tiles of a task
    blocks: int
    panel_block: int  # panels of a task
    panel_blocks: int
    span: int  # depth chunks transformed at once
    across: bool  # a point of all panels after the other, instead of a panel of all points
    cycles: float  # of a task

    @property
    def tasks(self):
        """Tasks of a class and a group of channels."""
        return self.blocks * self.panel_blocks


class Class(NamedTuple):
    """Classes that are transformed alike: each choice of one run per axis is one."""

    runs: tuple  # of each axis, the numbers of runs
    scheme: tuple  # of each axis, the kind of its transform
    early: tuple  # of each axis, whether tiles begin an output before the run
    work: cost.Work
    count: int  # type: ignore[assignment]  # so many classes times groups of channels
    cut: Cut
    sorted: bool  # tiles at the ends of an axis lie side by side, and points that they do not need are left out
    staged: int  # panels whose outputs are gathered before non-temporal stores write them; 0 where they are stored at once


class Schedule(NamedTuple):
    """How a problem is computed."""

    algorithm: str
    problem: object
    unit: str
    threads: int
    form: tuple  # on which axes phases are merged; for each choice of a phase group per axis, the kinds of transform
    cycles: float  # of all threads together, and of threads that have nothing left to do
    classes: tuple  # those that are transformed,
    plain: tuple  # and those that are direct's, as of its schedule
    tiles: Tiles  # how tiles of these run
    same_set: int  # as of direct's schedule
    execution: execution.Execution
    weight_bytes: int
    again_bytes: float  # of the weights that tasks pack if they pack what they multiply
    on_the_fly: bool  # which they do in a call that brings its own
    prefetches: bool  # windows ahead, of an input that L2 does not hold
    workspace: workspace.Workspace


class Choice(NamedTuple):
    """What does not depend on the number of threads."""

    merge: tuple
    classes: tuple  # (Alikes of each axis, Fits of each axis, Work, classes times groups, Cuts for SHARED threads)
    plain: tuple  # (Alikes of each axis, their shapes as of direct)
    cycles: float


def schedule(problem, here, unit, threads, finite=True, kinds=SMALL):
    """The Schedule of a problem; None where no axis can be transformed, and of weights that are not finite, whose transform
    would be NaN."""
    choice = choose(problem, here, unit, kinds) if finite else None
    if choice is None:
        return None
    info, merge = here.info(problem.dtype, unit), choice.merge
    if choice.cycles < here.limits.single_thread_cycles:
        threads = 1
    plain = _plain_classes(problem, choice.plain, choice.cycles, threads, info, here)
    again = direct_cost.packed_again(problem, plain, info)
    _, cuts = _cut_all(problem, choice.classes, direct_cost.tasks(plain, problem.groups), threads, info, here)
    schemes, classes, weight_bytes = [], [], 0
    for (alikes, way, work, count, _), cut in zip(choice.classes, cuts, strict=True):
        scheme, kept = tuple([fit.kind for fit in way]), math.prod([share for share, _ in work.ends])
        schemes += [(numbers, scheme) for numbers in itertools.product(*[a.groups for a in alikes])]
        many = count // problem.groups
        weight_bytes += many * _panel_bytes(problem, work.points * work.windows, work.columns, info)
        again += many * _packed_again(problem, merge, alikes, work, cut, info, here)
        classes.append(Class(
            tuple([a.runs for a in alikes]), scheme, tuple([fit.early for fit in way]), work, count, cut, kept < _ALL,
            _staged(problem, way[-1].phases, cut, work.outputs, info),
        ))  # fmt: skip
    for alikes, _ in choice.plain:
        numbers, fits = list(itertools.product(*[a.groups for a in alikes])), [a.fits[0] for a in alikes]
        schemes += [(each, (0,) * problem.rank) for each in numbers]
        columns = problem.co * math.prod([fit.phases for fit in fits])
        weight_bytes += len(numbers) * _panel_bytes(problem, math.prod([fit.windows for fit in fits]), columns, info)
    hole = any(map(phases.has_hole, problem.kernel, problem.strides, problem.dilations, problem.begin, problem.out_sizes))
    outgrows, limits = execution.outgrows(problem, here.limits.non_temporal), here.limits
    classes.sort(key=lambda c: -c.cut.cycles)  # large tasks first, so that the last ones even out
    on_the_fly = execution.packs_on_the_fly(here, weight_bytes, again)
    how = execution.decide(problem, here, info, hole, choice.cycles, weight_bytes, outgrows)
    tiles = Tiles(
        not info.matrix, limits.near_weights, limits.far, 0 if limits.ordinary_stores else how.non_temporal,
        direct_schedule.packing_bytes(info) if on_the_fly else 0, direct_schedule.book(problem, plain, info),
    )  # fmt: skip
    return Schedule(
        _NAMES[unit] if kinds is SMALL else "winograd6", problem, unit, threads, (merge, tuple(sorted(schemes))), choice.cycles,
        tuple(classes), plain, tiles, limits.same_set, how, weight_bytes, again, on_the_fly,
        execution.data_bytes(problem) > here.l2, book(problem, classes, info, on_the_fly),
    )  # fmt: skip


# ---------------------------------------------------------------- merges and transforms


@functools.lru_cache(maxsize=256)
def choose(problem, here, unit, kinds):
    """The Choice for a problem; None where no axis can be transformed."""
    info = here.info(problem.dtype, unit)
    if info is None or not _does(problem):
        return None
    most = math.prod(problem.kernel) * info.s_size / info.e_size  # panels, for an in-channel and an output channel
    large = most * problem.groups * problem.ci * problem.co * info.e_size > LARGE_FILTER
    most *= max(MOST_FORM if large else MOST_SMALL_FORM, here.packed_limit)
    merges = _merges(problem.kernel, problem.strides, problem.dilations, info)
    usual = typical(problem) if large else alike(problem)
    if problem != usual:  # then phases are merged as in the one that stands for its class
        chosen = choose(usual, here, unit, kinds)
        if chosen is None:
            return None
        merges = (chosen.merge,)
    estimate, best = estimator(problem, info, here), (math.inf, None, None)
    for merge in merges:
        axes = [
            axis_fits(k, s, d, m, begin, out, kinds, info.matrix, large)
            for k, s, d, m, begin, out in zip(problem.kernel, problem.strides, problem.dilations, merge, problem.begin,
                                              problem.out_sizes, strict=True)
        ]  # fmt: skip
        if best[1] and math.prod([sum([len(a.runs) for a in axis]) for axis in axes]) > _MOST_CLASSES:
            continue
        if large:
            found = _lasting_transforms(problem, merge, axes, kinds, info, estimate, most)
        else:
            found = _transforms(problem, merge, axes, info, estimate, most)
        ways = [way for *_, way in found if way]
        if not ways or (NESTED in merge and len(ways) < len(found)):
            continue
        cycles = sum([min(plain, least) * many for _, many, plain, least, _ in found])
        if cycles < best[0]:
            best = cycles, merge, found
    return None if best[1] is None else _compare(problem, *best[1:], large, info, here)


def typical(problem):
    """The same operator on data of a typical size, which decides in what form a large filter is packed. One form serves all
    sizes, because a second one would not fit within the bound of packed weights, and packing takes longer than a call."""
    return resized(problem, 1, [round(_TYPICAL ** (1 / problem.rank))] * problem.rank)


def _does(problem):
    """Whether there is something to transform, of a type that transforms are made for."""
    return problem.dtype in ("float32", "float64") and problem.ci * math.prod(problem.out_shape) > 0


@functools.lru_cache(maxsize=256)
def _merges(kernel, strides, dilations, unit):
    """The ways to merge phases that differ: all, those of the last axis, none; nested where registers are many, else nothing is
    gained by it. An axis where nothing can be merged counts as merged: its weights are packed the same."""
    axes = [(k, s, d) for k, s, d in zip(kernel, strides, dilations, strict=True)]
    merged = [len(phase_groups(*axis, True)) for axis in axes]
    alone = [len(phase_groups(*axis, False)) == count for axis, count in zip(axes, merged, strict=True)]
    found = dict.fromkeys([(True,) * len(axes), (*alone[:-1], True), tuple(alone)])
    if not unit.matrix and 5 * unit.wide >= 2 * unit.mr[-1] and max(merged) > 1:
        found[(NESTED,) * len(axes)] = None
    return tuple(found)


def _transforms(problem, merge, axes, unit, estimate, most):
    """For each class of a merge: [its Alikes, how many classes it is, estimated cycles without a transform, those of the best
    way to transform it, (its panels, the Fits): None if there is none]. Where all together have more than ``most`` panels, the
    classes whose panels grow most are transformed in another way."""
    nested, found, total = NESTED in merge, [], 0

    def best(alikes, most, count):
        ways = []
        for way in itertools.product(*[a.fits[:count] for a in alikes]):
            panels, products = math.prod([fit.panels for fit in way]), math.prod([fit.products for fit in way])
            if panels < most and together([fit.kind for fit in way]):
                ways.append((products, panels, way))
        ways.sort()
        least, chosen, rate = math.inf, None, 0.0
        for products, panels, way in ways:
            if rate * products >= least:  # by its multiplications alone
                break
            cycles, compute = estimate(way, nested_share(problem, merge, alikes, way, unit) if nested else 1.0)
            rate = rate or 0.98 * compute / products
            if cycles < least:
                least, chosen = cycles, (panels, way)
        return least, chosen

    for alikes in itertools.product(*axes):
        many, plain = math.prod([len(a.runs) for a in alikes]), tuple([a.fits[0] for a in alikes])
        room = most / many + 1e-9
        least, way = best(alikes, room, 2)
        if way is None:
            least, way = best(alikes, room, None)
        found.append([alikes, many, math.inf if nested else estimate(plain)[0], least, way])
        total += many * (way[0] if way else _plain_panels(alikes))
    while total > most and any([way for *_, way in found]):
        each = max([c for c in found if c[4]], key=lambda c: c[4][0] / _plain_panels(c[0]))
        alikes, many, _, _, (panels, _) = each
        each[3:] = best(alikes, panels, None)
        total -= many * (panels - (each[4][0] if each[4] else _plain_panels(alikes)))
    return found


def _lasting_transforms(problem, merge, axes, kinds, unit, estimate, most):
    """What `_transforms` gives, for a large filter: its transforms depend on the taps alone."""
    nested, found, whole = NESTED in merge, [], 1  # panels without a transform
    for axis in zip(problem.kernel, problem.strides, problem.dilations, merge, strict=True):
        whole *= sum([len(group.residues) * len(group.offsets) for group in phase_groups(*axis)])
    for alikes in itertools.product(*axes):
        many, plain = math.prod([len(a.runs) for a in alikes]), tuple([a.fits[0] for a in alikes])
        scheme = lasting_scheme(tuple([fit.windows for fit in plain]), kinds, most / whole)
        way = tuple([
            next((fit for fit in a.fits if fit.kind == kind), a.fits[0]) for a, kind in zip(alikes, scheme, strict=True)
        ])  # fmt: skip
        least, chosen = math.inf, None
        if any([fit.kind for fit in way]):
            share = nested_share(problem, merge, alikes, way, unit) if nested else 1.0
            least, chosen = estimate(way, share)[0], (math.prod([fit.panels for fit in way]), way)
        found.append([alikes, many, math.inf if nested else estimate(plain)[0], least, chosen])
    return found


def _plain_panels(alikes):
    """The panels of a class without a transform."""
    return math.prod([a.fits[0].panels for a in alikes])


def _compare(problem, merge, found, lasting, unit, here):
    """The Choice of a merge: classes are transformed where that takes less than to multiply them as direct does, and one class
    in any case: the one that a transform helps most. ``lasting``: every class that has a transform is transformed, because the
    form of a large filter must not depend on sizes."""
    nested, classes, plain, tasks, terms = NESTED in merge, [], [], [], None
    surest = min([each for each in found if each[4]], key=lambda each: each[3] / each[2])
    for each in found:
        alikes, many, without, least, way = each
        count, direct = many * problem.groups, math.inf
        if way is None or not (nested or lasting or each is surest or least <= _SURELY * without):
            terms = terms or Terms(problem, unit, here)
            shapes = _plain_shapes(problem, merge, alikes, terms)
            direct = shapes[0][2].total
        if way is not None and 0.9 * least * problem.groups < direct:
            share = nested_share(problem, merge, alikes, way[1], unit) if nested else 1.0
            work = _work(problem, way[1], share, unit, here)
            cuts = _cuts(work, count, SHARED, unit, here)
            cycles, cut = min([(cut.cycles * cut.tasks, cut) for cut in cuts])
            if cycles * problem.groups < direct:
                classes.append((alikes, way[1], work, count, cuts))
                tasks.append((cycles * count, cut.tasks * count))
                continue
        plain.append((alikes, shapes))
        for _, many, shape in shapes:
            tasks.append((shape.cycles(shape.rows, shape.columns) * problem.groups * many, shape.most_tasks * many))
    cycles = sum([each for each, _ in tasks])
    if cycles >= here.limits.single_thread_cycles and sum([count for _, count in tasks]) <= common.EVEN:
        first = direct_cost.tasks(_plain_classes(problem, plain, cycles, SHARED, unit, here), problem.groups)
        cycles = SHARED * _cut_all(problem, classes, first, SHARED, unit, here)[0]
    memory, fill = _memory_cycles(problem, merge, unit, here)
    return Choice(merge, tuple(classes), tuple(plain), beside(cycles + fill, memory))


def _work(problem, way, share, unit, here):
    """What the cost of a class depends on."""
    ci, co = problem.ci, problem.co
    rows, points, windows, outputs, phases, inside, ends = problem.batch, 1, 1, 1, 1, 1.0, []
    for kind, _, tiles, p, o, w, kept, inner, n, _, _ in way:
        rows *= tiles
        points *= p
        windows *= w
        outputs *= o
        phases *= n
        inside *= inner
        if kind:
            ends.append((kept, tiles))
    columns, pieces = co * phases, 0.0
    stretch, panel = co * (n if problem.groups == 1 else 1), here.info(problem.dtype).nr
    if columns > stretch and stretch % panel:
        pieces = min(-(-columns // panel), columns / stretch - 1) * (1 + min(panel, columns) / stretch)
    depth, chunks, step = cost.depth_chunks(ci, windows, unit)
    every = math.prod(map(min, problem.kernel, problem.strides))
    weight_bytes = points * depth * unit.e_size * problem.groups * co * every * (unit.padded(columns) / columns) * share
    return cost.Work(rows, points, outputs, windows, columns, ci, co, pieces, phases * (1 - inside), share, tuple(ends),
                     max(weight_bytes, 1), depth, chunks, step)  # fmt: skip


def _memory_cycles(problem, merge, unit, here):
    """``(cycles to stream data that L2 does not hold, cycles to fill outputs beforehand)``."""
    last = problem.kernel[-1], problem.strides[-1], problem.dilations[-1]
    most = max([len(group.residues) for group in phase_groups(*last, merge[-1])])
    non_temporal = common.streams(problem, here.limits.non_temporal, here)
    return cost.memory_cycles(problem, non_temporal, _gathers(problem, most, unit), unit, here)


# ---------------------------------------------------------------- classes that are direct's


def _plain_shapes(problem, merge, alikes, terms):
    """Classes in numbers: [(of each axis, the numbers of runs; how many classes; their Shape)]."""
    p, found = problem, []
    axes = zip(p.kernel, p.strides, p.dilations, merge, p.in_sizes, p.begin, p.out_sizes, alikes, strict=True)
    kinds = [
        [(kind, some) for kind, runs in phases.kinds(*axis, False) if (some := tuple([n for n in runs if n in alike.runs]))]
        for *axis, alike in axes
    ]
    for chosen in itertools.product(*kinds):
        runs = tuple([numbers for _, numbers in chosen])
        found.append((runs, math.prod(map(len, runs)), Shape(terms, [kind for kind, _ in chosen])))
    return found


def _plain_classes(problem, plain, cycles, threads, unit, here):
    """The classes of Choice.plain in tasks, as of direct's schedule."""
    shapes = [shape for _, shapes in plain for shape in shapes]
    return direct_schedule.cut(problem, unit, here, shapes, cycles, threads)[1] if shapes else ()


# ---------------------------------------------------------------- tasks


def _cuts(work, count, threads, unit, here):
    """Ways to cut a class into tasks that are worth a look, for so many classes times groups."""
    rows, points, depth, chunks, step = work.rows, work.points, work.depth, work.chunks, work.step
    nr, size, high, grain = unit.nr, unit.e_size, unit.mr[-1], unit.grain
    panels, most_blocks, prices, found = -(-work.columns // nr), -(-rows // grain), cost.table(unit, here), {}

    def look(blocks, n, span, across=False):
        block, panel_block = -(-rows // (blocks * grain)) * grain, -(-panels // n)
        if (block, panel_block, span, across) not in found:
            cycles = prices.cycles(cost.task_counts(work, block, panel_block, span, across, unit, here))
            found[block, panel_block, span, across] = Cut(
                block, -(-rows // block), panel_block, -(-panels // panel_block), span, across, cycles
            )  # fmt: skip

    def spread(blocks, n, span, across=False):
        """Cuts with at least so many blocks and blocks of panels; beside them some that give all threads as many tasks."""
        look(blocks, n, span, across)
        tasks = count * blocks * n
        if threads == 1 or tasks % threads == 0 or tasks >= _EVEN * threads:
            return
        each = threads // math.gcd(threads, count * n)
        look(min(-(-blocks // each) * each, most_blocks), n, span, across)
        if tasks < threads and panels > n:
            look(blocks, min(panels, n * -(-threads // tasks)), span, across)
            both = next((b for b in range(blocks + 1, threads) if threads % b == 0 and n * threads <= panels * b), threads)
            if both < min(threads, most_blocks):
                look(both, n * threads // both, span, across)

    near = cost.near_bytes(here) // (size * points)
    most = near if unit.matrix else MOST_WAITING // (size * points)
    if unit.matrix:  # all panels meet a point while its rows are in L2
        row = points * (depth * size + panels * nr * unit.t_size)
        for bytes in (cost.near_bytes(here), MOST_WAITING):
            height = min(MOST_TILES * high, bytes // row // grain * grain)
            if height:
                spread(-(-rows // height), 1, chunks, True)
    space = max(most - depth * nr, most // 2)
    for span in (chunks, 1) if chunks > 1 else (1,):
        deep = min(depth, span * step)
        height = min(MOST_TILES, space // ((deep + nr) * high)) * high
        if not height and span > 1:
            continue
        height = height or high
        close = (near - deep * nr) // ((deep + nr) * high) * high
        for each in (height, close) if high <= close < height else (height,):
            blocks = -(-rows // each)
            block = -(-rows // (blocks * grain)) * grain
            # The sums of all panels wait while the next depth is transformed.
            n = -(-panels * nr * block // max(space - block * step, nr * block)) if span < chunks else 1
            spread(-(-rows // block), n, span)
        if close >= min(height, rows):  # L2 holds what is read again
            break
    return tuple(found.values())


def _cut_all(problem, classes, first, threads, unit, here):
    """When the last thread is done, and the `Cut` of each class: those of the least work, or those that keep all threads busy.
    ``first`` are the tasks that come before, (cycles, how many)."""
    ways = [
        (count, cuts if threads == SHARED else _cuts(work, count, threads, unit, here)) for *_, work, count, cuts in classes
    ]
    best = None
    for busy in (1, threads):
        cuts = [min([(cut.cycles * -(-count * cut.tasks // busy), cut) for cut in some])[1] for count, some in ways]
        tasks = [(cut.cycles, count * cut.tasks) for cut, (count, _) in zip(cuts, ways, strict=True)]
        end = common.makespan(first + sorted(tasks, reverse=True), threads)
        if best is None or end < best[0]:
            best = end, cuts
        if threads == 1 or sum([count for _, count in tasks]) > common.EVEN * threads:
            break
    return best


# ---------------------------------------------------------------- bytes


def _panel_bytes(problem, points, columns, unit):
    """Bytes of the panels of a class, of so many points of windows."""
    size = problem.groups * -(-columns // unit.nr) * unit.nr * points * unit.filled(problem.ci) * unit.e_size
    return -(-size // 64) * 64


def _packed_again(problem, merge, alikes, work, cut, unit, here):
    """Bytes that the tasks of a class pack if they pack what they multiply; infinite where they can't."""
    phases, taps = work.columns // work.co, 1
    for k, s, d, m, a in zip(problem.kernel, problem.strides, problem.dilations, merge, alikes, strict=True):
        taps *= len(phase_groups(k, s, d, m)[a.groups[0]].offsets)
    if unit.matrix:  # taps are read for each point: beside the rows of one point, or of all
        once = (cut.panel_block if cut.across else 2) * unit.nr * taps * problem.ci * unit.s_size
        whole = unit.nr if phases > 1 else unit.vl  # columns that must be contiguous in the filter
        if NESTED in merge or problem.co % whole or unit.s_size != unit.t_size:
            return math.inf
    else:
        once = work.points * unit.nr * link_depth(work.points, work.step) * unit.e_size
    if once > here.l2 // 2:
        return math.inf
    return cut.blocks * work.windows * work.points * phases * problem.groups * problem.ci * problem.co * unit.e_size


def link_depth(points, step):
    """The depth of a chain of sums, of a chunk of ``step``."""
    return -(-step // -(-step // CHAIN)) if points > cost.ONE_AXIS else step


def _gathers(problem, phases, unit):
    """Whether outputs are gathered, so many phases of the last axis side by side, before non-temporal stores write them: those
    of a large output whose vectors are not aligned there."""
    return problem.co * phases >= 2 * unit.nr and common.split_bytes(problem) > 0


def _staged(problem, phases, cut, outputs, unit):
    """How many panels' outputs a task gathers at a time, 0 where it does not."""
    if not _gathers(problem, phases, unit):
        return 0
    return min(cut.panel_block, max(2, _STAGE_BYTES // (cut.block * outputs * unit.nr * unit.t_size)))


def row_bytes(work, block, unit):
    """(elements from one transformed row of a block to the next, bytes from one point's rows to the next one's, elements from
    one point's sums to the next one's)."""
    lda = direct_schedule.odd_line_stride(work.step, unit)
    rows = -(-block // unit.grain) * unit.grain * lda * unit.e_size + unit.vl * unit.t_size
    return lda, spread_over_sets(rows), spread_over_sets(block * unit.nr * unit.t_size) // unit.t_size


def spread_over_sets(bytes):
    """A stride of at least ``bytes`` whose multiples fall into different sets of the caches: five lines more than a multiple of
    4 KiB, or an odd number of lines where it is short."""
    lines = -(-bytes // 64)
    return (lines + (69 - lines % 64) % 64 if lines > 32 else lines | 1) * 64


def book(problem, classes, unit, on_the_fly):
    """The workspace of a thread for the classes that are transformed."""
    rows = sums = stage = block = points = made = 0
    for c in classes:
        work, cut = c.work, c.cut
        lda, point_rows, point_sums = row_bytes(work, cut.block, unit)
        apart = cut.panel_block if cut.across or cut.span < work.chunks else 1  # panels that have sums of their own
        # (A tile may start at any row, and reads whole grains of them: those of the last point, behind it.)
        rows = max(rows, cut.span * work.points * point_rows + (unit.grain - 1) * lda * unit.e_size)
        sums = max(sums, apart * work.points * point_sums * unit.t_size)
        stage = max(stage, cut.block * work.outputs * c.staged * unit.nr * unit.t_size)
        block, points = max(block, cut.block), max(points, work.points)
        made = max(made, work.points * unit.nr * link_depth(work.points, work.step) * unit.e_size)
    places, line = block * (PLACE + problem.rank) * 8, unit.lda * unit.t_size
    return workspace.book(
        rows=rows,  # of the transformed tiles
        sums=sums,
        lines=block * 8,  # where each row of a panel's sums begins
        stage=stage,  # outputs that non-temporal stores will write
        where=places,  # the tiles are,
        unsorted=places,  # and where they were before they were sorted
        zeros=unit.lda * unit.t_size,  # a row of them
        nothing=unit.nr * unit.t_size,  # zeros with a sign
        check=unit.nr * unit.t_size,  # of sums that are not finite
        window=points * line,  # on its way to the transform, outputs to the store
        between=points * line,  # the transforms of three axes
        panel=made if on_the_fly else 0,  # weights that were only just made
    )


# ---------------------------------------------------------------- at least


def least(problem, here, unit, kinds=SMALL):
    """Cycles that no schedule is below: its multiplications at the peak, its transforms, and its weights read once."""
    info = here.info(problem.dtype, unit)
    if info is None or not _does(problem):
        return math.inf
    ci, columns, transformed = problem.ci, problem.co, 0
    products = tiles = problem.batch * problem.groups
    weights = problem.groups * ci * problem.co * info.e_size
    axes = problem.kernel, problem.strides, problem.dilations, problem.in_sizes, problem.begin, problem.out_sizes
    for k, s, d, size, begin, out in zip(*axes, strict=True):
        products *= min(out // s * k, common.pairs_met(k, s, d, size, begin, out))
        tiles *= max(1, out // s)
        weights *= min(k, out)
        if s % d == 0 and k > s // d and out > s // d:
            transformed += 1
            columns *= min(s // d, k - s // d)  # phases that have a second tap
    if not transformed:
        return math.inf
    (cycle, _, byte, *_), (read, point, product, output, *_), _ = prices(info, here)
    share = (2 / 3 if kinds is SMALL else 1 / 2) ** min(transformed, MOST_AXES)  # of F(2, 3) and F(3, 2), or F(4, 3)
    return (
        products * ci * problem.co * share * cycle / (info.vl * (info.grain if info.matrix else 2)) + weights * byte
        + tiles * (-(-ci // info.vl) * read + point + -(-columns // info.vl) * product + -(-columns // info.nr) * output)
    )  # fmt: skip
