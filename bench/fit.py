"""Fitting the values of a cost profile to measured times, and what the planner loses by a profile."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

# What holds a value that few measurements speak of to what it was: changing it by all of itself is as bad as one measurement
# that is wrong by this share.
PRIOR = 0.3
# A value of zero may become this share of a cycle as easily as another one may change by all of itself.
LEAST = 0.01


class Row(NamedTuple):
    """One measurement: counts by (part, name), and the cycles that it took."""

    counts: dict[tuple[str, str], float]
    cycles: float


def fit(rows: list[Row], values: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Values of least squares of the relative errors, none below zero; algorithm by algorithm, as none shares a value."""
    fitted = {part: dict(names) for part, names in values.items()}
    keys = sorted({key for row in rows for key in row.counts})
    if not keys:
        return fitted
    at = {key: n for n, key in enumerate(keys)}
    before = np.array([values[part][name] for part, name in keys], float)
    size = np.maximum(before, LEAST)
    matrix = np.zeros((len(rows) + len(keys), len(keys)))
    wanted = np.ones(len(rows) + len(keys))
    for n, row in enumerate(rows):
        for key, count in row.counts.items():
            matrix[n, at[key]] = count / row.cycles * size[at[key]]
    for n in range(len(keys)):
        matrix[len(rows) + n, n] = PRIOR
        wanted[len(rows) + n] = PRIOR * before[n] / size[n]
    found = lsq_linear(matrix, wanted, bounds=(0, np.inf), method="trf", lsq_solver="exact").x * size
    for (part, name), value in zip(keys, found, strict=True):
        fitted[part][name] = float(f"{max(0.0, value):.4g}")
    return fitted


class Loss(NamedTuple):
    """What the planner's choices cost on some problems, against the fastest algorithm of each."""

    problems: int
    within: float  # share of the problems on which the choice is at most 5% slower than the best
    mean: float  # mean loss
    worst: float
    worst_name: str

    def __str__(self) -> str:
        return (
            f"{self.within:.1%} of {self.problems} problems within 5% of the best algorithm, mean loss {self.mean:.2%}, "
            f"worst {self.worst:.0%} ({self.worst_name})"
        )


def loss(problems: dict[str, dict[str, tuple[float, float]]]) -> Loss:
    """The loss on ``problems``: name -> algorithm -> (expected cycles, measured seconds)."""
    losses = []
    for name, found in problems.items():
        chosen = min(found, key=lambda algorithm: found[algorithm][0])
        best = min(seconds for _, seconds in found.values())
        losses.append((found[chosen][1] / best - 1, f"{name}: {chosen}"))
    if not losses:
        return Loss(0, 1.0, 0.0, 0.0, "none")
    shares = np.array([share for share, _ in losses])
    worst, name = max(losses)
    return Loss(len(losses), float((shares <= 0.05).mean()), float(shares.mean()), float(worst), name)
