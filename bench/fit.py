"""Fitting the efficiencies of the cost model to measured times, and what the planner loses by them."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

# What holds an efficiency that few measurements speak of to what it was: changing it by all of itself is as bad as one
# measurement of a hundred that is wrong by this share.
PRIOR = 0.03
# What is wrong alike for all algorithms of a problem (a slow second of the machine, memory that is shared) changes no choice.
# Algorithms that take at most so many times as long as the fastest one are therefore also held to each other's error: an error
# that differs by one counts as much as a measurement that is wrong by this share.
PAIR = 0.7
CLOSE = 2.0
SLOW = 0.4  # the weight of an algorithm that takes longer than that
# A disturbed measurement is wrong by much: what is off by more than this share counts less the more it is off.
TRUSTED = 0.25
# An efficiency of zero may become this as easily as another one may change by all of itself.
LEAST = 0.01


class Row(NamedTuple):
    """One measurement: what an efficiency of one would take of each, in cycles; the cycles that it took; the problem's name."""

    counts: dict[str, float]
    cycles: float
    problem: str


def fit(rows: list[Row], values: dict[str, float]) -> dict[str, float]:
    """Efficiencies of least squares of the relative errors, and of their differences among the fast algorithms of a problem;
    none is below zero."""
    names = sorted({name for row in rows for name in row.counts})
    if not names:
        return dict(values)
    before = np.array([values[name] for name in names], float)
    size = np.maximum(before, LEAST)
    expected = np.array([[row.counts.get(name, 0.0) / row.cycles for name in names] for row in rows]) * size
    least: dict[str, float] = {}
    for row in rows:
        least[row.problem] = min(row.cycles, least.get(row.problem, np.inf))
    weight = np.array([1.0 if row.cycles <= CLOSE * least[row.problem] else SLOW for row in rows])
    left, right = np.array(_pairs(rows), int).reshape(-1, 2).T
    prior = PRIOR * np.sqrt(max(len(rows), 100) / 100)
    matrix = np.vstack([expected * weight[:, None], PAIR * (expected[left] - expected[right]), prior * np.eye(len(names))])
    wanted = np.concatenate([weight, np.zeros(len(left)), prior * before / size])
    trust = np.ones(len(wanted))
    for _ in range(4):
        found = lsq_linear(matrix * trust[:, None], wanted * trust, bounds=(0, np.inf)).x
        trust = np.minimum(1, TRUSTED / np.maximum(abs(matrix @ found - wanted), 1e-9)) ** 0.5
        trust[-len(names) :] = 1
    fitted = (float(f"{value:.3g}") for value in found * size)
    return {**values, **dict(zip(names, fitted, strict=True))}


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
