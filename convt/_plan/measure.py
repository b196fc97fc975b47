"""Measurement of alternative algorithms, for ``backend="tune"`` and ``python -m convt plan --time``.

The algorithms take turns, in rounds. Two consecutive rounds that agree decide. If no two rounds agree in time, `measure` raises
`Undecided`, because a wrong choice would be kept for a long time.

Agreement is not enough, because beside other programs an algorithm that synchronises its threads often is slow in every round.
A turn therefore counts only if most of its calls, or at least ten, were undisturbed. The number of involuntary context switches
(`_preempted`) during a call tells whether it was disturbed.
"""

import contextlib
import math
import time

from .._run import config

_SECONDS = 2.0  # no round begins later than this, except for the first two
_TURNS = 2  # turns of each algorithm in a round
_BURST = 0.03  # seconds of calls in a turn: several calls, because the caches reach their usual state only after some
_FAR = 5  # algorithms slower than this multiple of the best time take no further turns
_FAR_AT_FIRST = 20  # algorithms whose first call exceeds this multiple of the best first call are not measured further
_EQUAL = 0.03  # relative difference of two times up to which they count as equal
_STEADY = 0.25  # largest relative difference of the fastest time between two rounds that agree
_ENOUGH = 10  # undisturbed calls that make a turn count, whatever the number of disturbed ones
_PREEMPTIONS = 10  # per second and thread, in an undisturbed call: an idle machine has fewer, a busy one a hundred


class Undecided(Exception):
    """Raised when no two consecutive rounds agree; the message is the reason.

    ``seconds`` maps each algorithm to the minimum time of its calls, including disturbed ones.
    """

    def __init__(self, why, seconds):
        super().__init__(why)
        self.seconds = seconds


_doubts = None  # see `best_effort`


@contextlib.contextmanager
def best_effort():
    """Make `measure` return the minimum times instead of raising `Undecided`; yield a list to which it adds the reasons."""
    global _doubts
    _doubts = []
    try:
        yield _doubts
    finally:
        _doubts = None


def measure(runs):
    """Measure callables and return ``{name: seconds}``.

    ``runs`` maps names to callables; one that returns False does not support the data, and its time is infinite. A time is the
    minimum of the two rounds that agree, or of the last turn of a callable that is far slower than the best. Raise `Undecided`
    if no two rounds agree.
    """
    seconds = {name: _turn(run, 0)[1] for name, run in runs.items()}  # first calls pack weights and touch new memory
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
                if len(near) > 1 and _doubts is None:
                    raise Undecided(why, seconds | least)
                if len(near) > 1:  # a single candidate needs no decision
                    _doubts.append(why)
                return seconds | least
        before = now
    return seconds


def _disagreement(before, now):
    """Return the reason why two rounds disagree, or "" if they agree. Each maps names to seconds."""
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
    """Call ``run`` repeatedly for ``seconds`` seconds, at least once.

    Return the minimum time of the undisturbed calls, infinite if these are too few, and the minimum time of all calls.
    """
    times, undisturbed, end = [], [], time.perf_counter() + seconds
    allowed = _PREEMPTIONS * config.get_num_threads()
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
    """Return the number of involuntary context switches of this process so far."""
    import resource  # imported here because few processes measure

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
