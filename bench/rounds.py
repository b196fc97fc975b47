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
    cold: list[dict] = field(default_factory=list)  # the same with caches emptied before each call, if that was asked for

    @property
    def _best(self) -> dict | None:
        return min(self.rounds, key=itemgetter("median"), default=None) if self.status == "ok" else None

    @property
    def seconds(self) -> float | None:
        return self._best and self._best["median"]

    @property
    def cold_seconds(self) -> float | None:
        medians = [turn["median"] for turn in self.cold]
        return min(medians, default=None) if self.status == "ok" else None

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


def _prepared(
    problem: Problem, worker: Worker, truth: str, budget: float, note: Callable[[str], None], cold: bool
) -> Result:
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
        _turns(worker, found, 0.0, note, cold)
    return found


def measure(
    problem: Problem, workers: list[Worker], rounds: int, budget: float, note: Callable[[str], None], cold: bool = False
) -> list[Result]:
    """A result for each worker; `budget` seconds are shared by the turns of all of them, half of it those with cold caches."""
    with TemporaryDirectory() as folder:
        truth = str(Path(folder, "truth.npy"))
        np.save(truth, check.expected(problem))
        results = [_prepared(problem, worker, truth, budget, note, cold) for worker in workers]
        pairs = zip(workers, results, strict=True)
        entrants = [(worker, result) for worker, result in pairs if result.status == "ok" and not result.rounds]
        for _ in range(rounds):
            for worker, result in entrants:
                if result.status == "ok":
                    _turns(worker, result, budget / rounds / len(entrants), note, cold)
        for worker, result in entrants:
            if result.status == "ok":
                _checked_again(worker, result, truth)
    return results


def _turns(worker: Worker, result: Result, seconds: float, note: Callable[[str], None], cold: bool) -> None:
    """A worker's turn, which with cold caches is a second one."""
    _turn(worker, result, "time", seconds / (1 + cold), result.rounds, note)
    if cold and result.status == "ok":
        _turn(worker, result, "time_cold", seconds / 2, result.cold, note)


def _turn(
    worker: Worker, result: Result, how: str, seconds: float, rounds: list[dict], note: Callable[[str], None]
) -> None:
    try:
        turn = worker.ask(how, seconds)
    except (peers.Failed, Died) as exc:
        result.status, result.how = "failed", str(exc)
        return
    rounds.append({"median": median(turn.durations), "calls": len(turn.durations), "neighbours": turn.neighbours})
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
