"""Tests of the fuzzer of calls: half a minute of fuzzing without findings, replay of schedules, shrinking, and proof that it
finds planted errors."""

import os
import signal
import sys

import numpy as np
import pytest
from cases import ISAS, child

from convt import _core
from fuzz import draw, memory, oracle, perform, schedules, shrink, shrinking
from fuzz.__main__ import main

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect (Linux)")
SECONDS = 25, 5  # with all instruction sets of the CPU; with the one that CONVT_ISA names


def test_a_while_of_fuzzing_finds_nothing(capsys):
    one = os.environ.get("CONVT_ISA")
    arguments = ["--seconds", str(SECONDS[bool(one)]), *(["--isa", one] if one else [])]
    status = main(arguments)
    said = capsys.readouterr().out
    print(said)
    assert status == 0 and " right" in said, said


def plain(**problem):
    """Return a small case with changes of its problem."""
    found = {"problem": {}, "calls": {name: {} for name in ("data", "filter", "bias", "add")}}
    for name, value in (shrink.PLAIN | shrink.PLAIN_CORE).items():
        holder, _, key = name.rpartition(".")
        (found[holder] if holder else found)[key] = value
    axis = {"in_sizes": [5], "kernel": [3], "strides": [2], "dilations": [1], "pads_begin": [0], "pads_end": [0]}
    found["problem"] |= axis | {"output_padding": [0], "batch": 1, "groups": 1, "ci": 4, "co": 6} | problem
    return found | {"isa": ISAS[0], "dialect": "core", "form": "operator", "calls": [found["calls"] | {"out": {}}]}


def plans(told):
    """Return the (algorithm, schedule) of each plan that a case told of."""
    return [(name.partition(",")[0], name.splitlines()[2]) for name in told if "\n" in name]


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("algorithm", ["direct", "winograd", "scatter", "depthwise", "rows", "turned"])
def test_a_schedule_is_read_as_it_was_written_and_replayed(algorithm, data_format):
    """Check that a case that names a schedule uses it even if another one would be decided now."""
    if data_format == "NXC" and algorithm in ("rows", "turned"):
        pytest.skip("the algorithm needs NCX")
    key = f"{algorithm}:vectors"
    case = plain(data_format=data_format, in_sizes=[40], dtype="float32") | {"algorithm": key}
    outcome, told = perform.perform(case)
    (name, text), *_ = plans(told)
    assert outcome == "right" and name == key
    schedule = schedules.from_text(text)
    assert schedules.to_text(schedule) == text and schedule.problem.in_sizes == (40,)
    other = schedule._replace(problem=schedule.problem._replace(activation=("relu", 0.0, 0.0)))
    assert schedules.from_text(schedules.to_text(other)) == other != schedule
    assert plans(perform.perform(case | {"schedules": [text]})[1])[0][1] == text
    if algorithm == "scatter" and data_format == "NXC":
        altered = schedules.to_text(schedule._replace(prefetch=not schedule.prefetch))
        outcome, told = perform.perform(case | {"schedules": [altered]})
        assert outcome == "right" and plans(told)[0][1] == altered != text


@pytest.mark.parametrize("which", ["an output", "a sign", "NaN"])
def test_a_wrong_result_is_seen(which, monkeypatch):
    check = oracle.assert_right

    def spoilt(call, algorithms, got, *sums):
        got = got.copy()
        got.reshape(-1)[3] = {"an output": got.reshape(-1)[3] + 1, "a sign": -got.reshape(-1)[3] or 1, "NaN": np.nan}[which]
        check(call, algorithms, got, *sums)

    for values in ("integers", "real"):
        case = plain() | {"values": values}
        assert perform.perform(case)[0] == "right"
        monkeypatch.setattr(oracle, "assert_right", spoilt)
        with pytest.raises(AssertionError):
            perform.perform(case)
        monkeypatch.setattr(oracle, "assert_right", check)


def test_what_winograd_rounds_among_denormal_numbers_is_expected():
    """Check the bound on rounding of denormals for three axes of F(5, 2), each of which multiplies earlier rounding errors by
    up to 34."""
    sizes = {"in_sizes": [20] * 3, "kernel": [4] * 3, "strides": [1] * 3, "dilations": [1] * 3, "ci": 11, "co": 1}
    sizes |= {each: [0] * 3 for each in ("pads_begin", "pads_end", "output_padding")}
    case = plain(**sizes) | {"values": "denormal", "algorithm": "winograd:six:vectors"}
    assert perform.perform(case)[0] == "right"


@pytest.mark.parametrize("form", ["operator", "shot"])
def test_winograd_leaves_weights_that_are_not_finite_to_others(form):
    sizes = {"in_sizes": [3, 14], "kernel": [6, 5], "strides": [1, 2], "dilations": [1, 1], "ci": 96, "co": 12}
    sizes |= {"pads_begin": [0, 1], "pads_end": [0, 1], "output_padding": [0, 0]}
    case = plain(**sizes) | {"values": "special", "algorithm": "winograd", "seed": 2189, "form": form}
    outcome, told = perform.perform(case)
    assert outcome == "right" and plans(told)[-1][0] == "direct:vectors"


def test_what_is_written_between_the_elements_of_out_is_seen():
    held = memory.Guarded((3, 4), np.dtype(np.float32), {"gap": 2, "end": True})
    held.view[...] = 1
    assert held.only_elements_written() and held.untouched()
    held.view[...] = 1
    np.lib.stride_tricks.as_strided(held.view, (3, 5), held.view.strides)[1, 4] = 1
    assert not held.only_elements_written()


_TOUCH = """
import sys
import fuzz.memory, numpy as np
layout, step, write = sys.argv[1] == "end", int(sys.argv[2]), sys.argv[3] == "write"
held = fuzz.memory.guarded_copy(np.ones((3, 5), np.float32), {"end": layout, "steps": [1, -1]})
at = held.view.__array_interface__["data"][0] - 16 + (60 if layout else 0) + step
view = fuzz.memory.ctypes.c_char.from_address(at)
if write:
    view.value = b"1"
else:
    view.value
print("survived")
"""


@pytest.mark.parametrize("where, step, how, dies", [
    ("start", 0, "read", False), ("start", -1, "read", True), ("start", 0, "write", True),
    ("end", -1, "read", False), ("end", 0, "read", True),
])  # fmt: skip
def test_arrays_border_on_walls(where, step, how, dies):
    code, out, errors = child(_TOUCH, where, step, how)
    assert (code, out) == ((-signal.SIGSEGV, "") if dies else (0, "survived\n")), errors


def test_what_fails_is_made_smaller():
    fails = lambda case: case["problem"]["ci"] > 1 and max(case["problem"]["strides"]) > 1  # noqa: E731
    case = next(case for case in map(draw.case, range(99)) if fails(case) and len(case["problem"]["kernel"]) == 3)
    small = shrinking.shrink(case, shrink.smaller, fails)
    problem = small["problem"]
    assert fails(small) and problem["ci"] == 2 and problem["strides"] == [2] and problem["in_sizes"] == problem["kernel"] == [1]
    assert small["machine"] == {} and len(small["calls"]) == 1 and small["calls"][0]["data"] == {}


def test_repeated_calls_are_made_smaller_axis_by_axis():
    """Check that the layouts of repeated calls lose one entry with each axis, as those of other calls do."""
    rank = lambda case: len(case["problem"]["kernel"])  # noqa: E731
    layouts = lambda case: [call["data"].get("steps") for call in case["calls"]]  # noqa: E731
    fails = lambda case: len(layouts(case)) > 2 and all(layouts(case))  # noqa: E731
    case = next(case for case in map(draw.case, range(9999)) if fails(case) and rank(case) == 3)
    small = shrinking.shrink(case, shrink.smaller, fails)
    assert rank(small) == 1 and [len(steps) for steps in layouts(small)] == [3] * len(layouts(case))


def test_every_argument_of_every_type_is_right_or_refused():
    from fuzz import odd

    before = _core.isa()
    for name in odd.VALUES:
        for argument in odd.NAMES:
            case = plain() | {"odd": [argument, name], "isa": before}
            assert perform.perform(case)[0] in ("right", "refused", "another problem"), (argument, name)
