"""Timing of calls, inside the process of a library. `rounds` decides which process takes its turn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import numpy as np


def durations(
    run: Callable[[], Any], seconds: float, least: int = 1, before: Callable[[], Any] = lambda: None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:  # fmt: skip
    """Time calls for ``seconds``, at least ``least`` calls. ``before`` is called before each and is not timed."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < least or time.perf_counter() < end:
        before()
        start = clock()
        run()
        found.append(clock() - start)
    return found


class Gauge:
    """The speed of the cores before and after each turn.

    Other machines on the same hardware can run on the second hyperthread of a core. They halve its multiply-adds for seconds,
    and the system's counters do not show it.
    """

    SLOW = 0.88  # the share of the highest speed below which a turn counts as disturbed; clocks vary by less
    REPEATS = 3  # the most repetitions of a disturbed turn

    def __init__(self, speeds: Callable[[], Sequence[float]] | None):
        """``speeds`` measures the speeds of several kinds of work; None: no turn counts as disturbed."""
        self._speeds = speeds
        self._best = self._last = tuple(speeds()) if speeds else ()

    def slowed(self) -> bool:
        """Check whether the cores are slow now, or were when this was called last."""
        if not self._speeds:
            return False
        before, self._last = self._last, tuple(self._speeds())
        self._best = tuple(map(max, self._best, self._last))
        return any(min(pair) < self.SLOW * best for *pair, best in zip(before, self._last, self._best, strict=True))


def in_turns(
    calls: Sequence[Callable[[], Any]], seconds: float, turns: int, of: Callable = median, least: int = 1, pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter, speeds: Callable[[], Sequence[float]] | None = None,
) -> list[float]:  # fmt: skip
    """Time calls in turns, of ``seconds`` for each call in all. Return the least of each call's turns, in seconds.

    ``of`` makes a turn's time of its durations. There are ``pause`` seconds before each turn. A call that is four times as long
    as all its turns together has one turn. With ``speeds`` for a `Gauge`, disturbed turns are repeated.
    """
    found, gauge = [math.inf] * len(calls), Gauge(speeds)
    for turn in range(turns):
        for n, call in enumerate(calls):
            if turn and found[n] > 4 * seconds:
                continue
            for _ in range(1 + Gauge.REPEATS):
                time.sleep(pause)
                found[n] = min(found[n], of(durations(call, seconds / turns, least, clock=clock)))
                if not gauge.slowed():
                    break
    return found


def sample(run: Callable[[], Any], seconds: float, before: Callable[[], Any] = lambda: None) -> tuple[list[float], Any]:
    """Time calls for ``seconds``, at least one. Return their durations in seconds, and the result of one more call to check.

    An untimed call first warms the caches. If ``seconds`` is 0, there is only a single call. ``before`` is called before each
    timed call and is not timed.
    """
    if not seconds:
        before()
        start = time.perf_counter()
        result = run()
        return [time.perf_counter() - start], result
    run()
    return durations(run, seconds, before=before), run()


class EmptyCaches:
    """A callable that replaces the content of all caches of all cores with its own memory."""

    def __init__(self, threads: int, size: int):
        """Allocate ``size`` bytes, which must exceed the caches."""
        self._parts = np.array_split(np.zeros(size // 8), threads)
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        for done in [self._pool.submit(np.add, part, 1.0, out=part) for part in self._parts]:
            done.result()


def wait_until_idle(limit: float = 1.0) -> bool:
    """Wait until this process uses no CPU time. Return False if it still uses some after `limit` seconds.

    Thread pools spin for some milliseconds after their last work, which would slow down the library that is timed next.
    """
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.001:
            return True
    return False
