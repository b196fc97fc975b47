"""The transforms F(m, r) of one axis, and the filter transforms of the axes of a class together.

KINDS lists the transforms. `filter_windows` and `panel_vectors` make the tables for WinogradRecipe (weights.pyx).
"""

from typing import NamedTuple

import numpy as np


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
SMALL = KINDS[1:4]  # allowed for "auto": errors up to about twice those of the direct sum
LARGE = KINDS[4:]  # `winograd6` only


def filter_windows(chosen, scheme):
    """Return for each tap window of a phase group per axis: (its taps, matrix [point][tap] of its transform)."""
    windows = [(np.zeros(1, np.int64), np.ones((1, 1)))]
    for group, transform in zip(chosen, scheme, strict=True):
        windows = _both(windows, _axis_windows(transform, len(group.offsets)), len(group.offsets))
    return windows


def panel_vectors(taps, windows, co, info):
    """Return [panel][point], the number of vectors of columns up to the last one that has weights at the point.

    ``taps`` is [phase][tap], -1 for a tap that a phase lacks.
    """
    there = sum((points != 0).astype(int) @ (taps[:, some] >= 0).T.astype(int) for some, points in windows)
    columns = np.repeat(there > 0, co, axis=1)
    columns = np.pad(columns, ((0, 0), (0, -columns.shape[1] % info.nr)))
    vectors = columns.reshape(len(columns), -1, info.nr // info.vl, info.vl).any(-1)
    return (vectors * np.arange(1, vectors.shape[2] + 1)).max(-1).T


def _axis_windows(transform, count):
    """Return the tap windows of one axis, for phases of ``count`` taps."""
    weights = transform.weights()
    windows = []
    for first in range(0, count, transform.taps):
        taps = np.arange(first, min(count, first + transform.taps))
        windows.append((taps, weights[:, taps - first]))
    return windows


def _both(first, second, count):
    """Return the tap windows of two axes together; phases have ``count`` taps on the second axis."""
    return [
        ((taps[:, None] * count + more).reshape(-1), np.kron(weights, others))
        for taps, weights in first
        for more, others in second
    ]
