"""Measuring ways to do the same, for ``backend="tune"``."""

import math
import time

_SECONDS = 0.5  # how long `measure` goes on with what is near the best
_ROUNDS = 4  # and how often at least
_TRIAL = 0.05  # seconds that nothing is given up before, lest something else on the machine decide
_BURST = 0.03  # seconds of calls in a row: they find in the caches what they would in use only after some calls


def measure(runs):
    """The least seconds of each run, taking turns; infinite where it returns False. Only what is near is repeated."""
    best = {name: _least(run, 0) for name, run in runs.items()}  # the first time packs weights and touches memory
    limit = max(20 * min(best.values()), 0.1)
    near = [name for name in best if best[name] <= limit]
    spent, rounds, deadline = dict.fromkeys(near, 0.0), 0, time.perf_counter() + _SECONDS
    while len(near) > 1 and (rounds < _ROUNDS or time.perf_counter() < deadline):
        for name in near:
            start = time.perf_counter()
            best[name] = min(best[name], _least(runs[name], _BURST))
            spent[name] += time.perf_counter() - start
        near = [name for name in near if spent[name] < _TRIAL or best[name] <= 1.5 * min(best.values())]
        rounds += 1
    return best


def _least(run, seconds):
    """The least time of calls in a row, for so many seconds and at least one."""
    best, end = math.inf, time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        if run() is False:
            return math.inf
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best
