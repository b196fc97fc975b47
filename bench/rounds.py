"""Measurement of one problem with all libraries, which are checked, timed in turns (A B A B) and checked again.

The time of a library is the smallest of the medians of its rounds. The median ignores single interrupted calls. The smallest
median ignores rounds in which the machine was busy. The libraries take turns, so that busy phases of the machine affect all.
A turn in which the cores were slow is repeated.
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
from .timing import Gauge
from .worker import Died, Setting, Worker

# A round counts as disturbed if other processes keep more than this number of cores busy.
DISTURBED = 0.2


@dataclass
class Result:
    """The result of one library on one problem."""

    problem: Problem
    setting: Setting
    peer: str
    status: str  # ok, WRONG, unsupported or failed
    how: str  # algorithm or implementation that ran, or the reason why none did
    error: float | None = None  # largest error, in units of the root mean square of the output
    rounds: list[dict] = field(default_factory=list)
    cold: list[dict] = field(default_factory=list)  # rounds with emptied caches, with --cold

    @property
    def _best(self) -> dict | None:
        return min(self.rounds, key=itemgetter("median"), default=None) if self.status == "ok" else None

    @property
    def seconds(self) -> float | None:
        """Return the smallest median of the rounds, or None without a correct result."""
        return self._best and self._best["median"]

    @property
    def cold_seconds(self) -> float | None:
        """Return the smallest median of the rounds with emptied caches, or None without one."""
        medians = [turn["median"] for turn in self.cold]
        return min(medians, default=None) if self.status == "ok" else None

    @property
    def disturbed(self) -> bool:
        """Check whether other processes were busy, or the cores slow, during the best round."""
        return bool(self._best) and ((self._best["neighbours"] or 0) > DISTURBED or self._best["slowed"])

    @property
    def noise(self) -> float:
        """Return the spread of the rounds: their median divided by the smallest, minus one."""
        medians = [turn["median"] for turn in self.rounds]
        return median(medians) / min(medians) - 1 if medians else 0.0

    @property
    def gflops(self) -> float | None:
        return self.problem.layer.flops / self.seconds / 1e9 if self.seconds else None


def _prepared(
    problem: Problem, worker: Worker, truth: str, budget: float, note: Callable[[str], None], cold: bool, gauge: Gauge
) -> Result:
    """Set a problem up and check the first result. If the first call exceeds the budget, only one more call is timed."""

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
        _turns(worker, found, 0.0, note, cold, gauge)
    return found


def measure(
    problem: Problem, workers: list[Worker], rounds: int, budget: float, note: Callable[[str], None], cold: bool = False
) -> list[Result]:
    """Return a result for each worker. All turns together take `budget` seconds; with ``cold``, half of it with cold caches.

    Disturbed turns are repeated, beyond the budget. Only convt's worker can tell, because it measures the speed of the cores.
    """
    convt = next((worker for worker in workers if worker.peer.name == "convt"), None)
    gauge = Gauge(convt and (lambda: convt.ask("speeds")))
    with TemporaryDirectory() as folder:
        truth = str(Path(folder, "truth.npy"))
        np.save(truth, check.expected(problem))
        results = [_prepared(problem, worker, truth, budget, note, cold, gauge) for worker in workers]
        pairs = zip(workers, results, strict=True)
        untimed = [(worker, result) for worker, result in pairs if result.status == "ok" and not result.rounds]
        for _ in range(rounds):
            for worker, result in untimed:
                if result.status == "ok":
                    _turns(worker, result, budget / rounds / len(untimed), note, cold, gauge)
        for worker, result in untimed:
            if result.status == "ok":
                _checked_again(worker, result, truth)
    return results


def _turns(
    worker: Worker, result: Result, seconds: float, note: Callable[[str], None], cold: bool, gauge: Gauge
) -> None:
    """Run a worker's turn and, with ``cold``, a second turn with cold caches."""
    _turn(worker, result, "time", seconds / (1 + cold), result.rounds, note, gauge)
    if cold and result.status == "ok":
        _turn(worker, result, "time_cold", seconds / 2, result.cold, note, gauge)


def _turn(
    worker: Worker, result: Result, how: str, seconds: float, rounds: list[dict], note: Callable[[str], None], gauge: Gauge
) -> None:
    """Run one turn by the worker's method ``how``, repeat it while the cores are slow, and append all of them to ``rounds``."""
    for _ in range(1 + (Gauge.REPEATS if seconds else 0)):
        try:
            turn = worker.ask(how, seconds)
        except (peers.Failed, Died) as exc:
            result.status, result.how = "failed", str(exc)
            return
        slowed, found = gauge.slowed(), turn.durations
        rounds.append({"median": median(found), "calls": len(found), "neighbours": turn.busy_cores, "slowed": slowed})
        if not turn.became_idle:
            note(f"{result.peer} kept a core busy for a second after its turn, which may have slowed other libraries down")
        if not slowed:
            break


def _checked_again(worker: Worker, result: Result, truth: str) -> None:
    """Check the last result of a library, because later results can be wrong, for example if threads race."""
    try:
        result.error = max(result.error, worker.ask("error", result.problem, truth))
    except (peers.Failed, Died) as exc:
        result.status, result.how = "failed", str(exc)
        return
    if not check.is_right(result.problem, result.error):
        result.status, result.how = "WRONG", f"correct before timing, wrong after it; {result.how}"
