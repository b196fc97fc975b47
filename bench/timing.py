"""Timing of calls, inside the process of a library. `rounds` decides which process takes its turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


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
    durations = []
    end = time.perf_counter() + seconds
    while not durations or time.perf_counter() < end:
        before()
        start = time.perf_counter()
        run()
        durations.append(time.perf_counter() - start)
    return durations, run()


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
