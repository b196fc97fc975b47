"""Measuring ways to do the same, for ``backend="tune"``."""

import math
import time

_SECONDS = 0.5  # how long `measure` goes on measuring what is near the best


def measure(runs):
    """The least seconds of each run, taking turns; infinite where it returns False. Only what is near is repeated."""
    best = {name: _time(run) for name, run in runs.items()}  # the first time packs weights and touches memory
    near = [name for name in best if best[name] <= 20 * min(best.values())]
    best.update({name: _time(runs[name]) for name in near})
    deadline = time.perf_counter() + _SECONDS
    while time.perf_counter() < deadline:
        limit = 4 * min(best.values())
        for name in near:
            if best[name] <= limit:
                best[name] = min(best[name], _time(runs[name]))
    return best


def _time(run):
    start = time.perf_counter()
    return math.inf if run() is False else time.perf_counter() - start
