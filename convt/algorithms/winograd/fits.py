"""The transforms that fit a run of an axis, and estimates of the cycles of classes.

`axis_transforms` finds the transforms of each run from sizes alone. schedule.py combines them for each class and compares them
with the `estimator`, a simpler model than cost.py that does not divide classes into tasks.
"""

import functools
import itertools
import math
from typing import NamedTuple

from .. import common
from ..phases import phase_groups
from . import cost
from .loops import CHAIN
from .transforms import KINDS, LARGE, PLAIN, SMALL, filter_windows, panel_vectors

MOST_AXES = 3  # the most transformed axes
MOST_TILES = 6  # the most register tiles of rows of a task
MOST_TASK_BYTES = 13 << 18  # the most bytes of transformed rows and sums of a task


class AxisTransform(NamedTuple):
    """A transform applied to a run of an axis."""

    kind: int  # Transform.kind; 0 if the run is not transformed
    starts_early: bool  # tiles begin one output before the run, because that leaves out more points
    tiles: int
    points: int  # points of a tile
    outputs: int  # outputs of a tile
    windows: int  # tap windows
    point_share: float  # fraction of points that is multiplied
    inside: float  # fraction of tiles of which all phases are inside the window
    phases: int
    products: float  # multiplications along the axis for an in-channel and a column
    weights: int  # transformed weights per in-channel and out-channel: points times windows times phases


class EqualRuns(NamedTuple):
    """Runs of an axis that have the same `AxisTransform` candidates."""

    runs: tuple  # numbers of the runs
    groups: tuple  # numbers of their phase groups
    candidates: tuple  # AxisTransforms: first the untransformed one, then that of fewest products, then those of fewer weights


@functools.lru_cache(maxsize=1024)
def axis_transforms(k, s, d, merge, begin, out, kinds, all_points, all_kinds=False):
    """Return the list of `EqualRuns` of an axis.

    ``all_points`` says that no points are left out. With ``all_kinds``, the candidates include every transform, else only those
    that may be the best.
    """
    equal, number = {}, 0
    for index, (residues, offs, _) in enumerate(phase_groups(k, s, d, merge)):
        spans = {}  # range of j in the window -> number of phases with this range
        for r in residues:
            span = -((r - begin) // s), -((r - begin - out) // s)
            if span[0] < span[1]:
                spans[span] = spans.get(span, 0) + 1
        if not spans:
            continue
        lows, highs = zip(*spans, strict=True)
        first, taps, phases = min(lows), len(offs), len(residues)
        count, inside = max(highs) - first, min(highs) - max(lows) + 1
        spans = [(low - first, high - first, n) for (low, high), n in spans.items()]
        all_inside = max(0, inside - 1) / count
        candidates = [AxisTransform(0, False, count, 1, 1, taps, 1.0, all_inside, phases, taps * count, taps * phases)]
        if count > 1 and taps > 1 and offs[0] - offs[-1] == taps - 1:
            transformed = [_axis_transform(t, taps, count, spans, inside, phases, all_points) for t in kinds if t.taps <= taps]
            transformed.sort(key=lambda transform: (transform.products, transform.points))
            if transformed and kinds is not SMALL:
                small = [_axis_transform(t, taps, count, spans, inside, phases, all_points) for t in SMALL if t.taps <= taps]
                transformed[len(transformed) if all_kinds else 1 :] = small
            for transform in transformed:
                if all_kinds or len(candidates) == 1 or transform.weights < candidates[-1].weights:
                    candidates.append(transform)
        equal.setdefault((tuple(candidates), taps), []).append((number, index))
        number += 1
    return [EqualRuns(*zip(*members, strict=True), candidates) for (candidates, _), members in equal.items()]


def _axis_transform(t, taps, count, spans, inside, phases, all_points):
    """Return the AxisTransform of a run. Its tiles begin one output before the run if that leaves out more points."""
    n, early, windows = t.outputs, 0, -(-taps // t.taps)
    points, tiles = n + t.taps - 1, -(-count // n)
    multiplied = tiles * points
    if not all_points:
        multiplied = _multiplied(n, points, count, spans, 0) / phases
        if n > 2 and (less := _multiplied(n, points, count + 1, spans, 1) / phases) < multiplied:
            multiplied, early, tiles = less, 1, -(-(count + 1) // n)
    return AxisTransform(
        t.kind, early > 0, tiles, points, n, windows, multiplied / (tiles * points), max(0, inside - n) / (count + early),
        phases, windows * multiplied, windows * points * phases,
    )  # fmt: skip


def _multiplied(outputs, points, count, spans, early):
    """Return how many points of all tiles of a run are multiplied, summed over its phases.

    Only the first output of a tile needs the first point, and only the last output needs the last point. A point is left out if
    its output is outside the window. ``spans`` are (first output inside, end, number of phases), relative to the run's start.
    Tiles begin ``early`` outputs before the run.
    """
    tiles, total = -(-count // outputs), 0
    last, inner = (tiles - 1) * outputs, points * max(0, tiles - 2)
    for low, high, phases in spans:
        low, high, points_of_phase = low + early, high + early, inner
        if low < outputs:
            points_of_phase += points - (low > 0) - (high < outputs)
        if last and high > last:
            points_of_phase += points - (low > last) - (high < last + outputs)
        total += points_of_phase * phases
    return total


@functools.lru_cache(maxsize=256)
def fixed_scheme(taps, kinds, most_growth):
    """Return the kinds of transform of each axis that need the fewest multiplications, whatever the sizes of the data.

    ``taps`` has the taps of a phase on each axis. Transformed weights are at most ``most_growth`` times as many as taps.
    """
    best, kinds = (math.inf, most_growth, (0,) * len(taps)), (PLAIN, *kinds, *(SMALL if kinds is not SMALL else ()))
    for scheme in itertools.product(*[[t for t in kinds if t.taps <= n] for n in taps]):
        products = weights = 1.0
        for n, t in zip(taps, scheme, strict=True):
            points = t.points * -(-n // t.taps) / n  # per tap
            products, weights = products * points / t.outputs, weights * points
        scheme_kinds = tuple([t.kind for t in scheme])
        if has_kernels(scheme_kinds) and weights <= most_growth:
            best = min(best, (products, weights, scheme_kinds))
    return best[2]


def has_kernels(scheme):
    """Check whether kernels exist for these kinds: one to MOST_AXES transformed axes, all SMALL or all LARGE."""
    transformed = [kind for kind in scheme if kind]
    return 0 < len(transformed) <= MOST_AXES and len({kind >= LARGE[0].kind for kind in transformed}) == 1


def nested_share(problem, merge, equal_runs, transforms, unit):
    """Return the fraction of points times columns that is multiplied in a nested merge, where some phases lack taps."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, merge, equal_runs, strict=True)
    chosen = tuple([phase_groups(k, s, d, m)[a.groups[0]] for k, s, d, m, a in axes])
    return _nested_share(problem.kernel, chosen, tuple([transform.kind for transform in transforms]), problem.co, unit)


@functools.lru_cache(maxsize=256)
def _nested_share(kernel, chosen, scheme, co, unit):
    transforms = [KINDS[kind] for kind in scheme]
    widths = panel_vectors(common.taps_table(chosen, kernel), filter_windows(chosen, transforms), co, unit)
    points, columns = math.prod([t.points for t in transforms]), co * math.prod([len(g.residues) for g in chosen])
    return float(widths.sum()) * unit.vl / (points * unit.padded(columns))


@functools.lru_cache(maxsize=32)
def prices(unit, here):
    """Return the costs for `estimator`: (of multiplying, of transforms, of packing a vector of a row)."""
    prices = cost.unit_prices(unit, here)
    read, names = prices["wino_in_vector"], ("weight_byte_l3", "piece", "task")
    if unit.matrix:
        read += prices["store"] + prices["amx_pack"] * unit.vl / unit.kstep
        first = prices["amx_product"] * unit.products / unit.kstep, prices["amx_call"]
        stall, pack = prices["in_byte_l3"] + prices["weight_byte_amx"], prices["amx_pack"] * unit.vl / unit.kstep
    else:
        first, stall = (prices["tile_cycle"], prices["tile_call"]), prices["in_byte_l3"]
        pack = prices["move"] / 2  # about half of the rows are packed
    multiplying = *first, prices["weight_byte"], stall, *[prices[name] for name in names]
    points = read, prices["store"], prices["wino_product_vector"], prices["wino_output"]
    return multiplying, (*points, prices["in_byte_l3"]), pack


def estimator(problem, unit, here):
    """Return a function that estimates a class.

    It maps (AxisTransforms of the axes, fraction of points times columns that is multiplied) to (cycles in one channel group,
    cycles of its multiplications).
    """
    multiplying, (read, store, product, output, l3_byte), pack = prices(unit, here)
    cycle, call, byte, stall, far, piece, task = multiplying
    batch, ci, co, groups, matrix = problem.batch, problem.ci, problem.co, problem.groups, unit.matrix
    vl, nr, high, size, grain, rows = unit.vl, unit.nr, unit.mr[-1], unit.e_size, unit.grain, unit.task_rows
    lanes, vectors, l2, near = nr // vl, -(-ci // vl), here.l2, cost.near_bytes(here)
    panel, item = here.info(problem.dtype).nr, unit.t_size
    weight_row_bytes = math.prod(map(min, problem.kernel, problem.strides)) * co * groups * size
    zero_vector = store if co % nr else 0.0
    read = vectors * read + store

    def estimate(transforms, share=1.0):
        tiles, points, windows, point_share, outputs, phases, plain, inside = batch, 1, 1, share, 1, 1, True, 1.0
        for kind, _, t, p, o, w, part, inner, n, _, _ in transforms:
            tiles *= t
            points *= p
            windows *= w
            point_share *= part
            outputs *= o
            phases *= n
            inside *= inner
            if kind:
                plain = False
        columns, depth, chain = co * phases, windows * ci, CHAIN if points > cost.ONE_AXIS_POINTS else 256
        panels, height = -(-columns // nr), rows if plain else high * MOST_TILES
        blocks = -(-tiles // height)
        if matrix and not plain:  # as many tiles as fit in L2 with their sums, or more tiles that exceed L2
            row = points * (depth * size + columns * item)
            low, high_block = (max(grain, min(height, bytes // row // grain * grain)) for bytes in (near, MOST_TASK_BYTES))
            spilled = max(0, row * min(tiles, high_block) - near) * l3_byte / (points * depth * columns * size * (byte + stall))
            blocks = min(-(-tiles // low), -(-tiles // high_block) * (1 + spilled))
        if matrix:
            compute = -(-tiles // grain) * -(-columns // vl) * points * (depth * cycle + -(-depth // 256) * call)
        else:
            strips, (full, rest) = -(-tiles // high), divmod(columns, nr)
            h = tiles / strips
            step = full * max(h * lanes / 2, (h + lanes) / 2, 4)
            if rest:
                v = -(-rest // vl)
                step += max(h * v / 2, (h + v) / 2, 4)
            compute = strips * points * point_share * (depth * step * cycle + panels * -(-depth // chain) * call)
        weights = points * depth
        bytes, total = weights * columns * size * blocks * share, weights * weight_row_bytes
        fetched = (1 - l2 / total) * bytes if total > l2 else 0.0
        cycles = blocks * task + bytes * byte
        if not plain and not matrix:  # rows and sums that L2 evicts before the next panel reads them
            row = points * (depth * size + nr * item)
            working_set = row * min(tiles, high) + weights * nr * size
            if working_set > near:
                fetched += tiles * panels * row * min(1.0, 4 * (1 - near / working_set))
        cycles += max(compute, fetched * far) + fetched * stall
        adjacent = co * (n if groups == 1 else 1)
        if columns > adjacent and adjacent % panel:
            pieces = min(-(-columns // panel), columns / adjacent - 1) * (1 + min(panel, columns) / adjacent)
            cycles += tiles * outputs * pieces * piece
        cycles += tiles * outputs * phases * (1 - inside) * piece
        if plain:
            return cycles + tiles * windows * vectors * pack, compute
        spread = -(-columns // vl) * (product + (1 - share) * zero_vector)
        return cycles + tiles * (points * (windows * read + spread) + outputs * panels * output), compute

    return estimate
