"""Timing, inside the process that is timed: calls for a while, then quiet.

`rounds` has the other half of it, whose turn it is when.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np


def sample(run: Callable[[], Any], seconds: float, before: Callable[[], Any] = lambda: None) -> tuple[list[float], Any]:
    """The durations of as many calls as fit in the time, at least one, after one that warms the caches up.

    And the result of one more call, for another check. Without any time it is a single call. ``before`` is called before each
    call that is timed, and is not timed itself.
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
    """Called, it leaves nothing in the caches of any core but memory of its own."""

    def __init__(self, threads: int, size: int):
        """``size``: bytes, more than the caches hold."""
        self._parts = np.array_split(np.zeros(size // 8), threads)
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> None:
        for done in [self._pool.submit(np.add, part, 1.0, out=part) for part in self._parts]:
            done.result()


def settle(limit: float = 1.0) -> bool:
    """Wait until this process uses no processor time; False if it still does after `limit` seconds.

    Thread pools spin for some milliseconds after their last work, which would slow down whoever is timed next.
    """
    end = time.perf_counter() + limit
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(0.01)
        if time.process_time() - before < 0.001:
            return True
    return False
