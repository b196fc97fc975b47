"""Fit of the cost model's efficiencies to measured times, and the loss of the automatic choice.

The loss is the time of the chosen algorithm divided by that of the fastest, minus one. The fit minimises the mean loss. The
choice of the cheapest algorithm is not a smooth function of the efficiencies. Therefore each algorithm gets a probability that
falls with its expected time (`SHARPNESS`), and the expected loss is minimised. Two terms of little weight are added, which
decide if the choices do not: the errors of the expected times, and the changes of the efficiencies.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

SHARPNESS = 12.0  # an algorithm with a 1% longer expected time is 12% less likely
MAX_LOSS = 2.0  # larger losses count as this one; 2 is three times the least time
ERROR_WEIGHT, OUTLIER = 0.03, 0.25  # weight of the errors; relative error above which errors count less, as disturbances
CHANGE_WEIGHT, MAX_CHANGE = 3e-4, 1.6  # weight of the squared logarithms of changes; the largest logarithm
LEAST = 0.01  # smallest start value of an efficiency


class Row(NamedTuple):
    """The measurement of one algorithm on one problem."""

    counts: dict[str, float]  # cycles that each efficiency contributes if its value is one
    cycles: float  # measured
    problem: str  # name


def fit(rows: list[Row], values: dict[str, float]) -> dict[str, float]:
    """Return the efficiencies of the least loss on the measured problems. The search starts at ``values``."""
    names = sorted({name for row in rows for name in row.counts})
    if not names:
        return dict(values)
    problems: dict[str, list[Row]] = {}
    for row in rows:
        problems.setdefault(row.problem, []).append(row)
    sizes = [len(some) for some in problems.values()]
    starts, row_problem = np.cumsum([0, *sizes[:-1]]), np.repeat(np.arange(len(sizes)), sizes)
    counts = np.array([[row.counts.get(name, 0.0) for name in names] for some in problems.values() for row in some])
    cycles = np.array([row.cycles for some in problems.values() for row in some])
    ratio = cycles / np.minimum.reduceat(cycles, starts)[row_problem]
    loss, error_weight = np.minimum(ratio - 1, MAX_LOSS), ERROR_WEIGHT / np.minimum(ratio, 1 + MAX_LOSS)
    before = np.maximum([values[name] for name in names], LEAST)

    def objective(change: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the minimised function of the logarithms of the changes, and its gradient."""
        now = before * np.exp(change)
        expected = np.maximum(counts @ now, 1e-9)
        size = np.log(expected)
        probability = np.exp(-SHARPNESS * (size - np.minimum.reduceat(size, starts)[row_problem]))
        probability /= np.add.reduceat(probability, starts)[row_problem]
        mean = np.add.reduceat(probability * loss, starts)
        scaled_error = (size - np.log(cycles)) / OUTLIER
        error = np.sqrt(1 + scaled_error**2)
        slope = error_weight * scaled_error / error / OUTLIER - SHARPNESS * probability * (loss - mean[row_problem])
        slope /= len(sizes)
        value = mean.mean() + (error_weight * (error - 1)).sum() / len(sizes) + CHANGE_WEIGHT * (change**2).sum()
        return value, (counts * (slope / expected)[:, None]).sum(0) * now + 2 * CHANGE_WEIGHT * change

    bounds = [(-MAX_CHANGE, MAX_CHANGE)] * len(names)
    found = minimize(objective, np.zeros(len(names)), jac=True, method="L-BFGS-B", bounds=bounds)
    fitted = (float(f"{value:.3g}") for value in before * np.exp(found.x))
    return {**values, **dict(zip(names, fitted, strict=True))}


class Loss(NamedTuple):
    """The loss of the automatic choice on some problems, relative to the fastest algorithm of each."""

    problems: int  # number
    within: float  # share of the problems on which the choice is at most 5% slower than the fastest
    mean: float
    worst: float
    worst_name: str  # "problem: chosen algorithm"

    def __str__(self) -> str:
        return (
            f"choice within 5% of the fastest algorithm on {self.within:.1%} of {self.problems} problems, "
            f"mean loss {self.mean:.2%}, worst {self.worst:.0%} ({self.worst_name})"
        )


def loss(problems: dict[str, dict[str, tuple[float, float]]]) -> Loss:
    """Return the loss on ``problems``: name -> algorithm -> (expected cycles, measured time)."""
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
