"""Fitting the values of a cost profile to measured times, and what the planner loses by a profile."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

# What holds a value that few measurements speak of to what it was: changing it by all of itself is as bad as one measurement
# that is wrong by this share.
PRIOR = 0.1
# What is wrong alike for all algorithms of a problem (a slow second of the machine, memory that is shared) changes no choice.
# Algorithms that take at most so many times as long as the fastest one are therefore also held to each other's error: an error
# that differs by one counts as much as a measurement that is wrong by this share.
PAIR = 0.5
CLOSE = 2.0
# A value of zero may become this share of a cycle as easily as another one may change by all of itself.
LEAST = 0.01
NOTHING = 1e-4  # cycles that are written as zero


class Row(NamedTuple):
    """One measurement: counts by (part, name), the cycles that it took, and the problem's name."""

    counts: dict[tuple[str, str], float]
    cycles: float
    problem: str


def fit(rows: list[Row], values: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Values of least squares of the relative errors, and of their differences among the fast algorithms of a problem; none is
    below zero."""
    fitted = {part: dict(names) for part, names in values.items()}
    keys = sorted({key for row in rows for key in row.counts})
    if not keys:
        return fitted
    at = {key: n for n, key in enumerate(keys)}
    before = np.array([values[part][name] for part, name in keys], float)
    size = np.maximum(before, LEAST)
    expected = np.zeros((len(rows), len(keys)))  # over what was measured
    for n, row in enumerate(rows):
        for key, count in row.counts.items():
            expected[n, at[key]] = count / row.cycles * size[at[key]]
    left, right = np.array(_pairs(rows), int).reshape(-1, 2).T
    matrix = np.vstack([expected, PAIR * (expected[left] - expected[right]), PRIOR * np.eye(len(keys))])
    wanted = np.concatenate([np.ones(len(rows)), np.zeros(len(left)), PRIOR * before / size])
    found = lsq_linear(matrix, wanted, bounds=(0, np.inf), method="trf", lsq_solver="exact").x * size
    for (part, name), value in zip(keys, found, strict=True):
        fitted[part][name] = float(f"{value:.4g}") if value >= NOTHING else 0.0
    return fitted


def _pairs(rows: list[Row]) -> list[tuple[int, int]]:
    """Places of two rows of a problem that both are among its fast ones."""
    problems: dict[str, list[int]] = {}
    for n, row in enumerate(rows):
        problems.setdefault(row.problem, []).append(n)
    pairs = []
    for places in problems.values():
        limit = CLOSE * min(rows[n].cycles for n in places)
        pairs += itertools.combinations([n for n in places if rows[n].cycles <= limit], 2)
    return pairs


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
