"""The transforms that fit a run of an axis, and estimates of the cycles of classes.

`axis_fits` finds the transforms of each run from sizes alone. schedule.py combines them for each class and compares them with
the `estimator`, a simpler model than cost.py that does not divide classes into tasks.
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
MOST_WAITING = 13 << 18  # the most bytes of transformed rows and sums of a task


class Fit(NamedTuple):
    """A transform applied to a run of an axis."""

    kind: int  # Transform.kind; 0 if the run is not transformed
    early: bool  # tiles begin one output before the run, because that leaves out more points
    tiles: int
    points: int  # points of a tile
    outputs: int  # outputs of a tile
    windows: int  # tap windows
    kept: float  # fraction of points that is multiplied
    inside: float  # fraction of tiles of which all phases are inside the window
    phases: int
    products: float  # multiplications along the axis for an in-channel and a column
    panels: int  # transformed weights per in-channel and out-channel: points times windows times phases


class Alike(NamedTuple):
    """Runs of an axis with equal Fits."""

    runs: tuple  # numbers of the runs
    groups: tuple  # numbers of their phase groups
    fits: tuple  # first the Fit without a transform, then the one with the fewest products, then those with fewer weights


@functools.lru_cache(maxsize=1024)
def axis_fits(k, s, d, merge, begin, out, kinds, whole, every=False):
    """Return the list of `Alike` of an axis.

    ``whole`` says that no points are left out. With ``every``, Fits include every transform, else only those that may be the
    best.
    """
    found, number = {}, 0
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
        fits = [Fit(0, False, count, 1, 1, taps, 1.0, max(0, inside - 1) / count, phases, taps * count, taps * phases)]
        if count > 1 and taps > 1 and offs[0] - offs[-1] == taps - 1:
            ways = [_fit(t, taps, count, spans, inside, phases, whole) for t in kinds if t.taps <= taps]
            ways.sort(key=lambda fit: (fit.products, fit.points))
            if ways and kinds is not SMALL:
                small = [_fit(t, taps, count, spans, inside, phases, whole) for t in SMALL if t.taps <= taps]
                ways[len(ways) if every else 1 :] = small
            for fit in ways:
                if every or len(fits) == 1 or fit.panels < fits[-1].panels:
                    fits.append(fit)
        found.setdefault((tuple(fits), taps), []).append((number, index))
        number += 1
    return [Alike(*zip(*members, strict=True), fits) for (fits, _), members in found.items()]


def _fit(t, taps, count, spans, inside, phases, whole):
    """Return the Fit of a transform to a run. Its tiles begin one output earlier if that leaves out more points."""
    n, early, windows = t.outputs, 0, -(-taps // t.taps)
    points, tiles = n + t.taps - 1, -(-count // n)
    multiplied = tiles * points
    if not whole:
        multiplied = _multiplied(n, points, count, spans, 0) / phases
        if n > 2 and (less := _multiplied(n, points, count + 1, spans, 1) / phases) < multiplied:
            multiplied, early, tiles = less, 1, -(-(count + 1) // n)
    return Fit(
        t.kind, early > 0, tiles, points, n, windows, multiplied / (tiles * points), max(0, inside - n) / (count + early),
        phases, windows * multiplied, windows * points * phases,
    )  # fmt: skip


def _multiplied(outputs, points, count, spans, early):
    """Return how many points of all tiles of a run are multiplied, summed over its phases.

    Only the first output of a tile needs the first point, and only the last output needs the last point. A point is left out if
    its output is outside the window. ``spans`` are (first output inside, end, number of phases), relative to the run's start.
    Tiles begin ``early`` outputs before the run.
    """
    tiles, found = -(-count // outputs), 0
    last, inner = (tiles - 1) * outputs, points * max(0, tiles - 2)
    for low, high, phases in spans:
        low, high, some = low + early, high + early, inner
        if low < outputs:
            some += points - (low > 0) - (high < outputs)
        if last and high > last:
            some += points - (low > last) - (high < last + outputs)
        found += some * phases
    return found


@functools.lru_cache(maxsize=256)
def lasting_scheme(taps, kinds, most):
    """Return the kinds of transform of each axis that need the fewest multiplications, whatever the sizes of the data.

    ``taps`` has the taps of a phase on each axis. Transformed weights are at most ``most`` times as many as taps.
    """
    best, kinds = (math.inf, most, (0,) * len(taps)), (PLAIN, *kinds, *(SMALL if kinds is not SMALL else ()))
    for scheme in itertools.product(*[[t for t in kinds if t.taps <= n] for n in taps]):
        products = panels = 1.0
        for n, t in zip(taps, scheme, strict=True):
            points = t.points * -(-n // t.taps) / n  # per tap
            products, panels = products * points / t.outputs, panels * points
        numbers = tuple([t.kind for t in scheme])
        if transforms_together(numbers) and panels <= most:
            best = min(best, (products, panels, numbers))
    return best[2]


def transforms_together(scheme):
    """Check whether kernels exist for these kinds: one to MOST_AXES transformed axes, all SMALL or all LARGE."""
    transformed = [kind for kind in scheme if kind]
    return 0 < len(transformed) <= MOST_AXES and len({kind >= LARGE[0].kind for kind in transformed}) == 1


def nested_share(problem, merge, alikes, way, unit):
    """Return the fraction of points times columns that is multiplied in a nested merge, where some phases lack taps."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, merge, alikes, strict=True)
    chosen = tuple([phase_groups(k, s, d, m)[a.groups[0]] for k, s, d, m, a in axes])
    return _nested_share(problem.kernel, chosen, tuple([fit.kind for fit in way]), problem.co, unit)


@functools.lru_cache(maxsize=256)
def _nested_share(kernel, chosen, scheme, co, unit):
    transforms = [KINDS[kind] for kind in scheme]
    widths = panel_vectors(common.taps_table(chosen, kernel), filter_windows(chosen, transforms), co, unit)
    points, columns = math.prod([t.points for t in transforms]), co * math.prod([len(g.residues) for g in chosen])
    return float(widths.sum()) * unit.vl / (points * unit.padded(columns))


@functools.lru_cache(maxsize=32)
def prices(unit, here):
    """Return the costs for `estimator`: (of multiplying, of transforms, of packing a vector of a row)."""
    prices = cost.table(unit, here)
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
    return multiplying, (*points, prices["move"], prices["in_byte_l3"]), pack


def estimator(problem, unit, here):
    """Return a function that estimates a class.

    It maps (Fits of the axes, fraction of points times columns that is multiplied) to (cycles in one channel group, cycles of
    its multiplications).
    """
    multiplying, (read, point, product, output, zero, waits), pack = prices(unit, here)
    cycle, call, byte, stall, far, piece, task = multiplying
    batch, ci, co, groups, matrix = problem.batch, problem.ci, problem.co, problem.groups, unit.matrix
    vl, nr, high, size, grain, rows = unit.vl, unit.nr, unit.mr[-1], unit.e_size, unit.grain, unit.task_rows
    lanes, vectors, l2, near = nr // vl, -(-ci // vl), here.l2, cost.near_bytes(here)
    panel, item = here.info(problem.dtype).nr, unit.t_size
    every = math.prod(map(min, problem.kernel, problem.strides)) * co * groups * size
    zero = zero if co % nr else 0.0
    read = vectors * read + point

    def estimate(way, share=1.0):
        tiles, points, windows, kept, outputs, phases, plain, inside = batch, 1, 1, share, 1, 1, True, 1.0
        for kind, _, t, p, o, w, part, inner, n, _, _ in way:
            tiles *= t
            points *= p
            windows *= w
            kept *= part
            outputs *= o
            phases *= n
            inside *= inner
            if kind:
                plain = False
        columns, depth, chain = co * phases, windows * ci, CHAIN if points > cost.ONE_AXIS else 256
        panels, height = -(-columns // nr), rows if plain else high * MOST_TILES
        blocks = -(-tiles // height)
        if matrix and not plain:  # as many tiles as fit in L2 with their sums, or more tiles that exceed L2
            row = points * (depth * size + columns * item)
            low, high_block = (max(grain, min(height, bytes // row // grain * grain)) for bytes in (near, MOST_WAITING))
            waiting = max(0, row * min(tiles, high_block) - near) * waits / (points * depth * columns * size * (byte + stall))
            blocks = min(-(-tiles // low), -(-tiles // high_block) * (1 + waiting))
        if matrix:
            compute = -(-tiles // grain) * -(-columns // vl) * points * (depth * cycle + -(-depth // 256) * call)
        else:
            strips, (full, rest) = -(-tiles // high), divmod(columns, nr)
            h = tiles / strips
            step = full * max(h * lanes / 2, (h + lanes) / 2, 4)
            if rest:
                v = -(-rest // vl)
                step += max(h * v / 2, (h + v) / 2, 4)
            compute = strips * points * kept * (depth * step * cycle + panels * -(-depth // chain) * call)
        weights = points * depth
        bytes, total = weights * columns * size * blocks * share, weights * every
        fetched = (1 - l2 / total) * bytes if total > l2 else 0.0
        cycles = blocks * task + bytes * byte
        if not plain and not matrix:  # rows and sums that L2 evicts before the next panel reads them
            row = points * (depth * size + nr * item)
            held = row * min(tiles, high) + weights * nr * size
            if held > near:
                fetched += tiles * panels * row * min(1.0, 4 * (1 - near / held))
        cycles += max(compute, fetched * far) + fetched * stall
        stretch = co * (n if groups == 1 else 1)
        if columns > stretch and stretch % panel:
            pieces = min(-(-columns // panel), columns / stretch - 1) * (1 + min(panel, columns) / stretch)
            cycles += tiles * outputs * pieces * piece
        cycles += tiles * outputs * phases * (1 - inside) * piece
        if plain:
            return cycles + tiles * windows * vectors * pack, compute
        spread = -(-columns // vl) * (product + (zero if share < 1 else 0.0))
        return cycles + tiles * (points * (windows * read + spread) + outputs * panels * output), compute

    return estimate
