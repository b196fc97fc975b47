"""The transforms F(m, r) of an axis, and those of the filter for all axes of a class."""

from typing import NamedTuple

import numpy as np


class Transform(NamedTuple):
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


def filter_windows(chosen, scheme):
    """For each window of some phases: the taps it has, and [point][tap] of its transform."""
    windows = [(np.zeros(1, np.int64), np.ones((1, 1)))]
    for group, transform in zip(chosen, scheme, strict=True):
        windows = _both(windows, _axis_windows(transform, len(group.offsets)), len(group.offsets))
    return windows


def panel_vectors(taps, windows, co, info):
    """[panel][point]: up to which vector of columns, those of phases with these taps, [phase][tap], there are weights."""
    there = sum((points != 0).astype(int) @ (taps[:, some] >= 0).T.astype(int) for some, points in windows)
    columns = np.repeat(there > 0, co, axis=1)
    columns = np.pad(columns, ((0, 0), (0, -columns.shape[1] % info.nr)))
    vectors = columns.reshape(len(columns), -1, info.nr // info.vl, info.vl).any(-1)
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
