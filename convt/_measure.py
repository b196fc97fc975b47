"""Measuring ways to do the same, for ``backend="tune"`` and ``python -m convt plan --time``.

The ways take turns, in rounds, and two rounds in a row decide if they agree. If none do so in time, the answer is `Undecided`,
because a wrong choice would be kept for a long time. Agreement alone is not enough: beside other programs a way that waits for
its threads often is slow in every round. So a turn counts only if in most of its calls, or in ten, the system took the
processor away from no thread (involuntary context switches, which `_preempted` counts).
"""

import math
import time

from . import _config

_SECONDS = 2.0  # no round begins later, except for the first two
_TURNS = 2  # turns of each way in a round
_BURST = 0.03  # seconds of calls in a turn: they find in the caches what they would in use only after some calls
_FAR = 5  # times the best: ways as slow as that take no further turns
_FAR_AT_FIRST = 20  # times the best first call: first calls pack weights and touch memory
_EQUAL = 0.03  # ways whose times differ by no more than this share are equally fast
_STEADY = 0.25  # the share by which the fastest time may differ between two rounds
_ENOUGH = 10  # undisturbed calls, however many disturbed ones there are
_PREEMPTIONS = 10  # a second for each thread: an idle machine has fewer, a busy one a hundred


class Undecided(Exception):
    """No two rounds in a row agreed. ``seconds`` are the least times of all calls, disturbed ones too; the text says why."""

    def __init__(self, why, seconds):
        super().__init__(why)
        self.seconds = seconds


def measure(runs):
    """Seconds by name for ``runs``, a dict of callables; infinite where a run returns False, which means that it can't do it.

    They are the least of the two rounds that agree, or of the last turn of a way that is far from the best. Raises `Undecided`.
    """
    seconds = {name: _turn(run, 0)[1] for name, run in runs.items()}  # the first time packs weights and touches memory
    limit = max(_FAR_AT_FIRST * min(seconds.values()), 0.1)
    near = [name for name, each in seconds.items() if each <= limit and each < math.inf]
    least, before, end = dict.fromkeys(near, math.inf), None, time.perf_counter() + _SECONDS
    while near:
        now = dict.fromkeys(near, math.inf)
        for _ in range(_TURNS):
            for name in near:
                undisturbed, any_call = _turn(runs[name], _BURST)
                now[name], least[name] = min(now[name], undisturbed), min(least[name], any_call)
            for name in [name for name in near if _FAR * min(now.values()) < now[name] < math.inf]:
                near.remove(name)
                seconds[name] = now.pop(name)
        if before is not None:
            why = _disagreement({name: before[name] for name in near}, now)
            if not why:
                return seconds | {name: min(before[name], now[name]) for name in near}
            if time.perf_counter() >= end:
                if len(near) == 1:  # nothing to decide
                    return seconds | least
                raise Undecided(why, seconds | least)
        before = now
    return seconds


def _disagreement(before, now):
    """Why two rounds do not decide; empty where they do."""
    disturbed = [name for name in now if math.inf in (before[name], now[name])]
    if disturbed:
        return f"other programs disturbed most calls of {', '.join(disturbed)}"
    one, other = min(before, key=before.get), min(now, key=now.get)
    if max(before[other] / before[one], now[one] / now[other]) > 1 + _EQUAL:
        return f"{one} was the fastest in one round, {other} in the next"
    if abs(math.log(before[one] / now[one])) > math.log1p(_STEADY):
        return f"{one} took {before[one] * 1e3:.3g} ms in one round, {now[one] * 1e3:.3g} ms in the next"
    return ""


def _turn(run, seconds):
    """Calls in a row, for so many seconds and at least one. Returns the least time of those that were not disturbed, infinite
    where they are too few to say anything, and the least time of all."""
    times, undisturbed, end = [], [], time.perf_counter() + seconds
    allowed = _PREEMPTIONS * _config.get_num_threads()
    while True:
        preempted, start = _preempted(), time.perf_counter()
        if run() is False:
            return math.inf, math.inf
        now = time.perf_counter()
        times.append(now - start)
        if _preempted() - preempted <= allowed * times[-1]:
            undisturbed.append(times[-1])
        if now >= end:
            enough = len(undisturbed) >= min(_ENOUGH, len(times) // 2 + 1)
            return min(undisturbed) if enough else math.inf, min(times)


def _preempted():
    """Counts how often the system took the processor away from a thread of this process."""
    import resource  # who never measures needs no more modules

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
