"""The transforms F(m, r) of one axis, those that fit a run, and the filter transforms of the axes of a class together.

KINDS lists the transforms. `axis_transforms` finds those of each run from sizes alone. `filter_windows` and `panel_vectors`
make the tables for WinogradRecipe (weights.pyx).
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from ..caches import remembered
from ..phases import phase_groups


class Transform(NamedTuple):
    """F(outputs, taps), the transform of one axis."""

    kind: int  # number of the kernels, and index in KINDS
    outputs: int
    taps: int
    finite_points: tuple  # evaluation points; infinity is one more, except for PLAIN
    norms: tuple  # factor of the weights at each finite point

    @property
    def points(self):
        return max(1, self.outputs + self.taps - 1)

    def weights(self):
        """Return the matrix [point][tap] of the filter transform."""
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
SMALL = KINDS[1:4]  # at every precision: errors up to about twice those of the direct sum
LARGE = KINDS[4:]  # transforms of six points, at lower precision
MOST_AXES = 3  # the most transformed axes


class AxisTransform(NamedTuple):
    """A transform applied to a run of an axis."""

    kind: int  # Transform.kind; 0 if the run is not transformed
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
    others: tuple  # AxisTransforms of more products and weights, which a given form may need


@remembered(1024)
def axis_transforms(k, s, d, merge, begin, out, kinds, all_points):
    """Return the list of `EqualRuns` of an axis.

    ``all_points`` says that no points are left out.
    """
    equal, found, number = {}, {}, 0
    for index, (residues, offs, _) in enumerate(phase_groups(k, s, d, merge)):
        spans = {}  # range of j in the window -> number of phases with this range
        for r in residues:
            span = -((r - begin) // s), -((r - begin - out) // s)
            if span[0] < span[1]:
                spans[span] = spans.get(span, 0) + 1
        if not spans:
            continue
        first = min([low for low, _ in spans])
        taps, phases, adjacent = len(offs), len(residues), offs[0] - offs[-1] == len(offs) - 1
        run = tuple([(low - first, high - first, n) for (low, high), n in spans.items()]), taps, phases, adjacent
        if run not in found:  # most runs of a long stride are equal
            found[run] = _candidates(*run, kinds, all_points)
        equal.setdefault((*found[run], taps), []).append((number, index))
        number += 1
    return [EqualRuns(*zip(*members, strict=True), *fits) for (*fits, _), members in equal.items()]


def _candidates(spans, taps, phases, adjacent, kinds, all_points):
    """Return the `candidates` and `others` of an `EqualRuns`.

    ``spans`` are (first output inside the window, end, number of phases), relative to the start of the run.
    """
    lows, highs, _ = zip(*spans, strict=True)
    count, inside, others = max(highs), min(highs) - max(lows) + 1, []
    all_inside = max(0, inside - 1) / count
    candidates = [AxisTransform(0, count, 1, 1, taps, 1.0, all_inside, phases, taps * count, taps * phases)]
    if taps > 1 and adjacent and max([high - low for low, high, _ in spans]) > 1:
        for some in (kinds,) if kinds is SMALL else (kinds, SMALL):
            found = [_axis_transform(t, taps, count, spans, inside, phases, all_points) for t in some if t.taps <= taps]
            if not found:
                break
            for transform in sorted(found, key=lambda transform: (transform.products, transform.points)):
                last = candidates[-1]
                (candidates if last.kind == 0 or transform.weights < last.weights else others).append(transform)
    return tuple(candidates), tuple(others)


def _axis_transform(t, taps, count, spans, inside, phases, all_points):
    """Return the AxisTransform of a run."""
    n, windows = t.outputs, -(-taps // t.taps)
    points, tiles = n + t.taps - 1, -(-count // n)
    multiplied = tiles * points if all_points else _multiplied(n, points, count, spans) / phases
    return AxisTransform(
        t.kind, tiles, points, n, windows, multiplied / (tiles * points), max(0, inside - n) / count, phases,
        windows * multiplied, windows * points * phases,
    )  # fmt: skip


def _multiplied(outputs, points, count, spans):
    """Return how many points of all tiles of a run are multiplied, summed over its phases.

    Only the first output of a tile needs the first point, and only the last output needs the last point. A point is left out if
    its output is outside the window. ``spans`` are (first output inside, end, number of phases), relative to the run's start.
    """
    tiles, total = -(-count // outputs), 0
    last, inner = (tiles - 1) * outputs, points * max(0, tiles - 2)
    for low, high, phases in spans:
        points_of_phase = inner
        if low < outputs:
            points_of_phase += points - (low > 0) - (high < outputs)
        if last and high > last:
            points_of_phase += points - (low > last) - (high < last + outputs)
        total += points_of_phase * phases
    return total


@remembered(256)
def with_kernels(kinds):
    """Return the choices that have kernels, one place per axis. ``kinds`` has the kinds to choose from on each axis.

    There are kernels for one to MOST_AXES transformed axes, all SMALL or all LARGE.
    """
    found = []
    for places in itertools.product(*[range(len(axis)) for axis in kinds]):
        transformed = [axis[n] for axis, n in zip(kinds, places, strict=True) if axis[n]]
        if 0 < len(transformed) <= MOST_AXES and len({kind >= LARGE[0].kind for kind in transformed}) == 1:
            found.append(places)
    return found


def nested_share(problem, merge, equal_runs, transforms, unit):
    """Return the fraction of points times columns that is multiplied in a nested merge, where some phases lack taps."""
    axes = zip(problem.kernel, problem.strides, problem.dilations, merge, equal_runs, strict=True)
    chosen = tuple([phase_groups(k, s, d, m)[a.groups[0]] for k, s, d, m, a in axes])
    return _nested_share(chosen, tuple([transform.kind for transform in transforms]), problem.co, unit)


@remembered(256)
def _nested_share(chosen, scheme, co, unit):
    transforms = [KINDS[kind] for kind in scheme]
    points, columns = math.prod([t.points for t in transforms]), co * math.prod([len(g.residues) for g in chosen])
    return float(panel_vectors(chosen, transforms, co, unit).sum()) * unit.vl / (points * unit.padded(columns))


def panel_vectors(chosen, transforms, co, unit):
    """Return [panel][point], the number of vectors of columns up to the last one that has weights at the point.

    ``chosen`` and ``transforms`` have a phase group and a transform for each axis.
    """
    there = np.ones((1, 1), bool)  # [point][phase]
    for group, transform in zip(chosen, transforms, strict=True):
        taps = np.array(group.taps).T >= 0
        axis = sum([(points != 0).astype(int) @ taps[some] for some, points in _windows(transform, len(taps))]) > 0
        there = (there[:, None, :, None] & axis[:, None, :]).reshape(len(there) * len(axis), -1)
    columns = np.repeat(there, co, axis=1)
    columns = np.pad(columns, ((0, 0), (0, -columns.shape[1] % unit.nr)))
    vectors = columns.reshape(len(columns), -1, unit.nr // unit.vl, unit.vl).any(-1)
    return (vectors * np.arange(1, vectors.shape[2] + 1)).max(-1).T


def _windows(transform, count):
    """Return the tap windows of one axis, (taps, matrix [point][tap] of the transform), for phases of ``count`` taps."""
    weights, firsts = transform.weights(), range(0, count, transform.taps)
    return [(np.arange(n, min(count, n + transform.taps)), weights[:, : count - n]) for n in firsts]


def filter_windows(chosen, transforms):
    """Return for each tap window of a phase group per axis: (its taps, matrix [point][tap] of its transform)."""
    windows = [(np.zeros(1, np.int64), np.ones((1, 1)))]
    for group, transform in zip(chosen, transforms, strict=True):
        count = len(group.offsets)
        windows = [
            ((taps[:, None] * count + more).reshape(-1), np.kron(weights, others))
            for taps, weights in windows for more, others in _windows(transform, count)
        ]  # fmt: skip
    return windows
