"""One problem, every library: each is checked first, then they take turns, A B A B, and are checked again.

A figure is the smallest of the rounds' medians: the median forgives a call that something else interrupted, the
smallest forgives a round in which the whole machine was busy, and turns let no library have a quieter minute to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from . import check, peers
from .problem import Problem
from .worker import Died, Setting, Worker

# Cores kept busy by other processes from which on a round counts as disturbed.
DISTURBED = 0.2


@dataclass
class Result:
    """What one library did with one problem."""

    problem: Problem
    setting: Setting
    peer: str
    status: str  # ok, WRONG, unsupported or failed
    how: str  # what ran, or why nothing did
    error: float | None = None  # the largest, in units of the output's root mean square
    rounds: list[dict] = field(default_factory=list)

    @property
    def _best(self) -> dict | None:
        return min(self.rounds, key=itemgetter("median"), default=None) if self.status == "ok" else None

    @property
    def seconds(self) -> float | None:
        return self._best and self._best["median"]

    @property
    def disturbed(self) -> bool:
        """Did other work run beside even the best round?"""
        return bool(self._best) and (self._best["neighbours"] or 0) > DISTURBED

    @property
    def noise(self) -> float:
        """How far apart its rounds lie: their median over the smallest, less one."""
        medians = [turn["median"] for turn in self.rounds]
        return median(medians) / min(medians) - 1 if medians else 0.0

    @property
    def gflops(self) -> float | None:
        return self.problem.layer.flops / self.seconds / 1e9 if self.seconds else None


def _prepared(problem: Problem, worker: Worker, truth: str, budget: float, note: Callable[[str], None]) -> Result:
    """The result so far: set up and checked. If that took all the time there is, one more call is all its timing."""

    def result(status: str, *more) -> Result:
        return Result(problem, worker.setting, worker.peer.name, status, *more)

    try:
        error, how, seconds = worker.ask("prepare", problem, truth)
    except peers.Unsupported as exc:
        return result("unsupported", str(exc))
    except (peers.Failed, Died) as exc:
        return result("failed", str(exc))
    if not check.is_right(problem, error):
        return result("WRONG", how, error)
    found = result("ok", how, error)
    if seconds > budget:
        _turn(worker, found, 0.0, note)
    return found


def measure(problem: Problem, workers: list[Worker], rounds: int, budget: float, note: Callable[[str], None]) -> list[Result]:
    """A result for each worker; `budget` seconds are shared by the turns of all of them."""
    with TemporaryDirectory() as folder:
        truth = str(Path(folder, "truth.npy"))
        np.save(truth, check.expected(problem))
        results = [_prepared(problem, worker, truth, budget, note) for worker in workers]
        pairs = zip(workers, results, strict=True)
        entrants = [(worker, result) for worker, result in pairs if result.status == "ok" and not result.rounds]
        for _ in range(rounds):
            for worker, result in entrants:
                if result.status == "ok":
                    _turn(worker, result, budget / rounds / len(entrants), note)
        for worker, result in entrants:
            if result.status == "ok":
                _checked_again(worker, result, truth)
    return results


def _turn(worker: Worker, result: Result, seconds: float, note: Callable[[str], None]) -> None:
    try:
        turn = worker.ask("time", seconds)
    except (peers.Failed, Died) as exc:
        result.status, result.how = "failed", str(exc)
        return
    calls = {"median": median(turn.durations), "calls": len(turn.durations), "neighbours": turn.neighbours}
    result.rounds.append(calls)
    if not turn.settled:
        note(f"{result.peer} still kept a core busy one second after its turn: other figures may have suffered")


def _checked_again(worker: Worker, result: Result, truth: str) -> None:
    """A library that is right at first may go wrong under way, as when its threads race."""
    try:
        result.error = max(result.error, worker.ask("error", result.problem, truth))
    except (peers.Failed, Died) as exc:
        result.status, result.how = "failed", str(exc)
        return
    if not check.is_right(result.problem, result.error):
        result.status, result.how = "WRONG", f"right at first, wrong in the end; {result.how}"
