"""Fitting the efficiencies of the cost model to measured times, and what the planner loses by them.

The fit looks for the efficiencies by which the planner loses least. The choice of the cheapest algorithm is no smooth function
of them, so each algorithm is taken with a likelihood that falls with its expected time (`SHARPNESS`). To that come the errors
of the expected times, and how far efficiencies are from what they were, both with little weight: they decide where choices do
not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

SHARPNESS = 12.0  # an algorithm that is expected to take 1% longer than another one is 12% less likely
MOST_LOSS = 2.0  # the largest loss of a choice that counts: 2 is three times the least time
ERRORS, TRUSTED = 0.03, 0.25  # the weight of errors; the share of a time beyond which an error counts less, as disturbed
CHANGES, MOST_CHANGE = 3e-4, 1.6  # the weight of the squared logarithms of changes, and the largest logarithm
LEAST = 0.01  # an efficiency of zero is taken for this one


class Row(NamedTuple):
    """One measurement: what an efficiency of one would take of each, in cycles; the cycles that it took; the problem's name."""

    counts: dict[str, float]
    cycles: float
    problem: str


def fit(rows: list[Row], values: dict[str, float]) -> dict[str, float]:
    """The efficiencies of the least loss on the problems of some measurements, near other ``values``."""
    names = sorted({name for row in rows for name in row.counts})
    if not names:
        return dict(values)
    problems: dict[str, list[Row]] = {}
    for row in rows:
        problems.setdefault(row.problem, []).append(row)
    sizes = [len(some) for some in problems.values()]
    starts, which = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)
    counts = np.array([[row.counts.get(name, 0.0) for name in names] for some in problems.values() for row in some])
    cycles = np.array([row.cycles for some in problems.values() for row in some])
    ratio = cycles / np.minimum.reduceat(cycles, starts)[which]
    loss, trust = np.minimum(ratio - 1, MOST_LOSS), ERRORS / np.minimum(ratio, 1 + MOST_LOSS)
    before = np.maximum([values[name] for name in names], LEAST)

    def judged(change: np.ndarray) -> tuple[float, np.ndarray]:
        """The function that is minimised, of the logarithms of the changes, and its gradient."""
        now = before * np.exp(change)
        expected = np.maximum(counts @ now, 1e-9)
        size = np.log(expected)
        likely = np.exp(-SHARPNESS * (size - np.minimum.reduceat(size, starts)[which]))
        likely /= np.add.reduceat(likely, starts)[which]
        mean = np.add.reduceat(likely * loss, starts)
        wrong = (size - np.log(cycles)) / TRUSTED
        error = np.sqrt(1 + wrong**2)
        slope = (trust * wrong / error / TRUSTED - SHARPNESS * likely * (loss - mean[which])) / len(sizes)
        value = mean.mean() + (trust * (error - 1)).sum() / len(sizes) + CHANGES * (change**2).sum()
        return value, (counts * (slope / expected)[:, None]).sum(0) * now + 2 * CHANGES * change

    bounds = [(-MOST_CHANGE, MOST_CHANGE)] * len(names)
    found = minimize(judged, np.zeros(len(names)), jac=True, method="L-BFGS-B", bounds=bounds)
    fitted = (float(f"{value:.3g}") for value in before * np.exp(found.x))
    return {**values, **dict(zip(names, fitted, strict=True))}


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
