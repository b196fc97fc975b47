"""Tests of measuring: candidates take turns in rounds, two consecutive rounds must agree, and calls that other programs disturb
do not count. A simulated clock and simulated preemptions make the tests deterministic."""

import itertools
import math
import re
import subprocess
import sys

import pytest

from convt._plan import measure as _measure
from convt._run.config import get_num_threads


class Machine:
    """A simulated clock. Runs advance it and may be preempted."""

    def __init__(self, monkeypatch):
        self.now, self.preempted, self.calls = 0.0, 0, []
        monkeypatch.setattr(_measure.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(_measure, "_preempted", lambda: self.preempted)

    def run(self, name, times):
        """Run with these times, one after the other. A time of (seconds, preemptions) is disturbed."""
        times = itertools.cycle([times]) if isinstance(times, float) else iter(times)

        def run():
            self.calls.append(name)
            each = next(times)
            seconds, preemptions = each if isinstance(each, tuple) else (each, 0)
            self.now += seconds
            self.preempted += preemptions

        return run

    def measure(self, **times):
        return _measure.measure({name: self.run(name, each) for name, each in times.items()})


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def disturbed(seconds):
    """Return a time with many more preemptions than on an idle machine."""
    return seconds, 10 + int(1000 * seconds * get_num_threads())


def test_the_least_of_many_times_is_what_counts(machine):
    noisy = itertools.chain([0.09], itertools.cycle([0.015, 0.011, 0.010]))  # the first call also packs
    assert machine.measure(a=noisy, b=0.0104) == pytest.approx({"a": 0.010, "b": 0.0104})


def test_ways_take_turns(machine):
    machine.measure(a=0.02, b=0.021)
    turns = [name for name, _ in itertools.groupby(machine.calls)]
    assert turns == ["a", "b"] * 5  # first calls, then two rounds of two turns
    assert machine.calls.count("a") == 9


def test_what_is_far_off_takes_no_further_turns(machine):
    found = machine.measure(a=0.02, b=0.021, slow=0.11, hopeless=3.0)
    assert found == pytest.approx({"a": 0.02, "b": 0.021, "slow": 0.11, "hopeless": 3.0})
    assert machine.calls.count("slow") == 2 and machine.calls.count("hopeless") == 1


def test_slow_runs_are_not_repeated_for_long(machine):
    assert machine.measure(a=1.0, b=1.1, c=6.0, d=30.0) == pytest.approx({"a": 1.0, "b": 1.1, "c": 6.0, "d": 30.0})
    assert [machine.calls.count(name) for name in "abcd"] == [5, 5, 2, 1]


def test_what_refuses_the_data_never_wins(machine):
    found = _measure.measure({"a": lambda: False, "b": machine.run("b", 5.0)})
    assert found == {"a": math.inf, "b": 5.0}
    assert _measure.measure({"a": lambda: False}) == {"a": math.inf}


def test_load_that_ends_does_not_decide(machine):
    """Check another program that runs during the first round."""
    winograd = itertools.chain([0.008] * 9, itertools.cycle([0.0012]))
    assert machine.measure(direct=0.002, winograd=winograd) == pytest.approx({"direct": 0.002, "winograd": 0.0012})


def test_load_that_stays_is_undecided(machine):
    """Check another program that slows down winograd in every round. The rounds agree, but on the effect of that program."""
    winograd = itertools.cycle([disturbed(0.008), disturbed(0.0079), 0.0078, disturbed(0.009)])
    with pytest.raises(_measure.Undecided, match="^other programs disturbed most calls of winograd$") as undecided:
        machine.measure(direct=0.002, winograd=winograd)
    assert undecided.value.seconds == pytest.approx({"direct": 0.002, "winograd": 0.0078})
    assert machine.now < 2 * _measure._SECONDS, "it does not go on for ever"


def test_the_best_effort_takes_the_minimum_and_says_why_it_is_not_sure(machine):
    winograd = itertools.cycle([disturbed(0.008), disturbed(0.0079), 0.0078, disturbed(0.009)])
    with _measure.best_effort() as doubts:
        assert machine.measure(direct=0.002, winograd=winograd) == pytest.approx({"direct": 0.002, "winograd": 0.0078})
        assert doubts == ["other programs disturbed most calls of winograd"]
    with pytest.raises(_measure.Undecided):
        machine.measure(direct=0.002, winograd=winograd)


def test_a_round_is_held_against_the_one_before_it(machine, monkeypatch):
    """Check a machine that alternates between fast and slow. Every second round has the same winner, no two consecutive rounds
    have."""
    turns = dict.fromkeys("ab", -2)  # the first call belongs to no round

    def turn(name, _):
        turns[name] += 1
        machine.now += 0.05
        slow = turns[name] // _measure._TURNS % 2
        return (({"a": 0.002, "b": 0.003}, {"a": 0.0055, "b": 0.004})[slow][name],) * 2

    monkeypatch.setattr(_measure, "_turn", turn)
    monkeypatch.setattr(_measure, "_FAR_AT_FIRST", 100)
    with pytest.raises(_measure.Undecided, match="^[ab] was the fastest in one round, [ab] in the next$"):
        _measure.measure({"a": "a", "b": "b"})
    assert turns["a"] > 4 * _measure._TURNS


def test_preempted_calls_do_not_count(machine):
    noisy = itertools.cycle([0.004, disturbed(0.009), 0.004, disturbed(0.001), 0.004])
    assert machine.measure(a=noisy, b=0.005) == pytest.approx({"a": 0.004, "b": 0.005})


def test_ten_quiet_calls_are_enough(machine):
    found = machine.measure(a=itertools.cycle([0.0005, disturbed(0.0011), disturbed(0.0011)]), b=0.0006)
    assert found == pytest.approx({"a": 0.0005, "b": 0.0006})


def test_an_idle_machine_preempts_too(machine):
    """Check calls of seconds, which tasks of the system interrupt a few times a second on an idle machine."""
    slow = (1.0, 5 * get_num_threads())
    assert machine.measure(a=itertools.cycle([slow]), b=itertools.cycle([(1.2, 1)])) == pytest.approx({"a": 1.0, "b": 1.2})


def test_equal_ways_agree_whichever_is_first(machine):
    """Check two rounds with different winners, which agree if the candidates differ by less than the noise."""
    calls = itertools.count()
    runs = {}
    for name in "ab":

        def run(name=name):
            machine.now += 0.0100 + 0.0002 * ((name == "a") == (next(calls) // 13 % 2))

        runs[name] = run
    found = _measure.measure(runs)
    assert found == pytest.approx({"a": 0.01, "b": 0.01}, rel=0.03)


def test_rounds_that_disagree_go_on_until_two_agree(machine):
    a = itertools.chain([0.01] * 7, itertools.cycle([0.02]))
    found = machine.measure(a=a, b=0.015)
    assert found == pytest.approx({"a": 0.02, "b": 0.015})


def test_a_winner_whose_time_moves_is_no_winner_yet(machine):
    """Check a machine that becomes faster: a wins both rounds, but its two times differ too much."""
    a = itertools.chain([0.08] * 3, itertools.cycle([0.02]))
    b = itertools.chain([0.09] * 3, itertools.cycle([0.03]))
    assert machine.measure(a=a, b=b) == pytest.approx({"a": 0.02, "b": 0.03})
    assert machine.calls.count("a") > 3 + 2


def test_a_lone_way_needs_no_decision(machine):
    found = machine.measure(only=itertools.cycle([disturbed(0.02)]), refuses=0.5)
    assert found == pytest.approx({"only": 0.02, "refuses": 0.5})


def test_real_preemptions_are_counted():
    """Check that the preemptions of a process are counted if others share its processor."""
    spin = "import time; end = time.monotonic() + 3\nwhile time.monotonic() < end: pass"
    code = f"""if True:
        import os, subprocess, sys, time
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
        from convt._plan import measure as _measure
        other = subprocess.Popen([sys.executable, "-c", {spin!r}])
        before, end = _measure._preempted(), time.monotonic() + 2
        while time.monotonic() < end: pass
        print(_measure._preempted() - before)
        other.kill()
    """
    if sys.platform != "linux":
        pytest.skip("CPU affinity needs Linux")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.fullmatch(r"\d+\n", done.stdout) and int(done.stdout) > 20, done.stdout
