"""Tests of backend="tune": which candidates are measured, which results are kept, and that each candidate gives the right
results."""

import gc
import math
import os
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from cases import (
    ALGORITHMS,
    CURVED_ACTIVATIONS,
    EXACT_ACTIVATIONS,
    NCX_ONLY,
    cases,
    child,
    in_threads,
    kept_forms,
    matrix_unit,
    switching_often,
)
from cases import operator as operator_of
from hypothesis import given, settings
from hypothesis import strategies as st

import convt
from convt import algorithms, tuning
from convt._plan import choose
from convt._plan import measure as _measure
from convt.algorithms import name_of, onednn

NOT_HERE = (*NCX_ONLY, "unpacked", "invariant")  # unpacked is for weights that come with a call; invariant is taken by name
WAYS = [
    *(name for name in ALGORITHMS if name_of(name) not in NOT_HERE and (":amx" not in name or matrix_unit())),
    *(["onednn"] if onednn.library.available() else []),
]
FILTER = np.ones((4, 4, 8, 8), np.float32)


def tuned(filter=FILTER, **keywords):
    return convt.ConvTranspose(filter, **{"strides": 2, "backend": "tune", **keywords})


def data(size, dtype=np.float32):
    return np.ones((1, size, size, 8), dtype)


@pytest.fixture
def quick(monkeypatch):
    """Measure one call per turn and two rounds, because the winner does not matter here."""
    monkeypatch.setattr(_measure, "_BURST", 0)
    monkeypatch.setattr(_measure, "_preempted", lambda: 0)
    monkeypatch.setattr(_measure, "_disagreement", lambda before, now: "")
    monkeypatch.setattr(choose, "NEAR", math.inf)


# ---------------------------------------------------------------- results


@settings(max_examples=60)
@given(case=cases(activations=(*EXACT_ACTIVATIONS, *CURVED_ACTIVATIONS)), winner=st.integers(0, 5))
def test_whatever_wins_computes_the_definition(case, winner):
    arrays = case.arrays()
    op = operator_of(case, *arrays[1:], backend="tune")

    def measure(runs):
        able = [name for name, run in runs.items() if run() is not False]
        return {name: 0.5 + (name != able[winner % len(able)]) for name in runs}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_measure, "measure", measure)
        patch.setattr(choose, "NEAR", math.inf)
        for _ in range(2):
            case.check(op(arrays[0]), *arrays, exact=case.activation not in CURVED_ACTIVATIONS)


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_measuring_leaves_data_and_out_alone(quick, data_format):
    op, x, out = tuned(data_format=data_format), data(8), np.full((1, 18, 18, 8), 7, np.float32)
    if data_format == "NCX":
        out = np.ascontiguousarray(np.moveaxis(out, -1, 1))
    before = x.copy()
    plan = op.plan(x.shape)
    assert (out == 7).all()
    assert op(x, out=out) is out and (out != 7).any() and (x == before).all()
    assert op.plan(x.shape) == plan


def test_nan_and_infinity(quick):
    """Check candidates that do not keep NaN and infinity in place: they do not win with such data, and later data with NaN is
    computed by another algorithm."""
    bad = data(5)
    bad[0, 2, 2, 0] = np.nan
    want = convt.conv_transpose(bad, FILTER, strides=2, activation="relu", backend="reference")
    for first in (bad, data(5)):
        op = tuned(activation="relu")
        op(first)
        np.testing.assert_array_equal(op(bad), want)


# ---------------------------------------------------------------- what is measured, and kept


def test_every_way_that_does_the_problem_is_measured_once_per_shape(measured):
    op = tuned()
    for n in (3, 4, 3, 4, 3):
        op(data(n))
        op.plan(data(n).shape)
    assert measured == [WAYS, WAYS]
    convt.ConvTranspose(FILTER, dilations=2, backend="tune")(data(3))  # not accepted by the algorithms below
    assert measured[-1] == [name for name in WAYS if name_of(name) not in ("scatter", "winograd")]
    tuned(algorithm="direct")(data(3))
    assert measured[-1] == [name for name in WAYS if name_of(name) in ("direct", "onednn")]


@pytest.mark.parametrize("least, near", [
    ("direct", ["direct:vectors", "winograd:vectors"]), ("scatter", ["scatter:vectors"]),
])  # fmt: skip
def test_algorithms_that_are_expected_to_be_slow_are_not_measured(measured, monkeypatch, least, near):
    """Check that candidates within a third of the least expected cost are measured, and oneDNN."""
    monkeypatch.setattr(choose, "NEAR", 4 / 3)
    costs = {"direct": 3.0, "winograd": 4.0, "depthwise": 4.1, "scatter": 1.0 if least == "scatter" else 8.0}
    known = {"permitted": lambda _: True, "least": lambda _: 0.0, "stages": SimpleNamespace(unpacked=False, by_name=False)}
    there = {f"{name}:vectors": SimpleNamespace(cost=lambda _, cost=cost: cost, **known) for name, cost in costs.items()}
    monkeypatch.setattr(algorithms, "ALGORITHMS", there)
    tuned()(data(5))
    assert measured == [near + (["onednn"] if onednn.library.available() else [])]


def test_what_no_near_algorithm_can_take_is_as_auto_takes_it(monkeypatch, tmp_path):
    monkeypatch.setattr(_measure, "measure", lambda runs: dict.fromkeys(runs, math.inf))
    op = tuned()
    np.testing.assert_array_equal(op(data(5)), convt.ConvTranspose(FILTER, strides=2)(data(5)))
    assert op.plan(data(5).shape).note.startswith("nothing was measured") and tuning.save(tmp_path / "tuning.json") == 0


def test_an_algorithm_that_does_not_do_the_problem_is_an_error():
    op = convt.ConvTranspose(FILTER, dilations=2, algorithm="scatter", backend="tune")
    with pytest.raises(ValueError, match="algorithm: got 'scatter', which is unavailable"):
        op(data(3))


def test_the_winner_is_what_runs_and_the_plan_says_so(measured):
    op = tuned()
    for n, name in enumerate(WAYS, 3):
        op(data(n))
        plan = op.plan(data(n).shape)
        assert ("onednn" if plan.backend == "onednn" else plan.key) == name
        assert re.search(rf"\bmeasured: .*\b{name} 250.000 ms", plan.note)


def test_the_losers_leave_no_weights(measured):
    convt.set_packed_weights_limit(math.inf)
    filter = np.ones((4, 4, 8, 8), np.float32)
    op = tuned(filter)
    for n in range(3, 3 + len(WAYS)):
        op(data(n))
        gc.collect()
        names = [form.key[0] for form in kept_forms(op)]
        assert names == WAYS[: n - 2]
        held = [o for o in gc.get_objects() if type(o) is onednn.weights.Filter and o._view.base is not None]
        assert len([o for o in held if np.shares_memory(o._view, op._plans.filter)]) == names.count("onednn")


def test_verbose_says_what_was_measured(capfd, quick):
    op = tuned()
    with convt.config(verbose=True):
        for _ in range(3):
            op(data(9))
    lines = capfd.readouterr().err.splitlines()
    said = [line for line in lines if line.startswith("convt,tune,float32 mb1 g1 ic8 oc8 i9x9 ")]
    assert len(said) == 1 and len(lines) == 4 and all(name in said[0] for name in WAYS)
    plan = op.plan(data(9).shape)
    assert said[0].endswith(plan.note.removeprefix("measured: "))
    assert f"convt,exec,{plan.backend},{plan.algorithm if plan.backend == 'onednn' else plan.key}," in lines[-1]


def test_it_is_for_operators():
    with pytest.raises(ValueError, match=r"backend: got 'tune'.*wanted it in ConvTranspose"):
        convt.conv_transpose(data(3), FILTER, backend="tune")


# ---------------------------------------------------------------- what could not be decided


@pytest.fixture
def undecided(monkeypatch):
    """Let measuring decide nothing, and count how often it is asked."""
    asked = []

    def measure(runs):
        asked.append(list(runs))
        for run in runs.values():
            run()
        raise _measure.Undecided("the machine was busy", {name: 1e-9 * n for n, name in enumerate(runs, 1)})

    monkeypatch.setattr(_measure, "measure", measure)
    return asked


def test_what_could_not_be_decided_is_as_auto_takes_it_and_is_not_kept(undecided, tmp_path):
    op = tuned(activation="relu")
    with pytest.warns(RuntimeWarning, match="could not decide what is the fastest, because the machine was busy; ") as warned:
        got = op(data(9))
    automatic = convt.ConvTranspose(FILTER, strides=2, activation="relu")
    np.testing.assert_array_equal(got, automatic(data(9)))
    plan = op.plan(data(9).shape)
    assert (plan.backend, plan.algorithm) == (automatic.plan(data(9).shape).backend, automatic.plan(data(9).shape).algorithm)
    assert plan.note.startswith(f"could not decide what is the fastest, because the machine was busy; using {plan.key}")
    assert len(warned) == 1 and "float32 mb1 g1 ic8 oc8 i9x9" in str(warned[0].message)
    op(data(9))
    assert len(undecided) == 1, "this operator keeps to its choice"
    assert not tuning._results and tuning.save(tmp_path / "tuning.json") == 0
    with pytest.warns(RuntimeWarning):
        tuned(activation="relu")(data(9))
    assert len(undecided) == 2, "another one tries again"


def test_an_algorithm_asked_for_by_name_runs_though_nothing_was_decided(undecided):
    op = tuned(algorithm="scatter")
    with pytest.warns(RuntimeWarning, match="; using scatter:.* as 'auto' does"):
        op(data(9))
    assert op.plan(data(9).shape).algorithm == "scatter"


def test_verbose_says_what_could_not_be_decided(undecided, capfd):
    with pytest.warns(RuntimeWarning), convt.config(verbose=True):
        tuned().plan(data(9).shape)
    assert re.search("^convt,tune,float32 mb1 .*,could not decide what is the fastest, because", capfd.readouterr().err, re.M)


# ---------------------------------------------------------------- threads


def test_python_threads_measure_one_at_a_time_and_once(measured, monkeypatch):
    inner, busy, most = _measure.measure, [], []

    def measure(runs):
        busy.append(0)
        most.append(len(busy))
        time.sleep(0.02)
        busy.pop()
        return inner(runs)

    monkeypatch.setattr(_measure, "measure", measure)
    ops = [tuned(), tuned()]
    want = {n: convt.conv_transpose(data(n), FILTER, strides=2, backend="reference") for n in (3, 4, 5)}

    def work(first):
        for n in range(30):
            size = 3 + (first + n) % 3
            np.testing.assert_array_equal(ops[first % 2](data(size)), want[size])

    with switching_often():
        in_threads(work)
    assert len(measured) == 3 and max(most) == 1  # what one operator measured serves the other


_FORK = """
import contextlib, os, signal
import numpy as np, convt
from convt._plan import choose, keep, measure as _measure
from convt.algorithms import name_of, onednn
_measure._disagreement = lambda before, now: ""
filter, data = np.ones((4, 4, 8, 8), np.float32), np.ones((1, 5, 5, 8), np.float32)
want = convt.conv_transpose(data, filter, strides=2, backend="reference")
ours = choose._measuring, keep._packing, keep._changing
theirs = onednn.library._lock, onednn.primitive._lock, onednn.weights._reordering
with contextlib.ExitStack() as held:
    for lock in (*ours, *theirs):
        held.enter_context(lock)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        got = convt.ConvTranspose(filter, strides=2, backend="tune")(data)
        os._exit(0 if (got == want).all() else 1)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_child_forked_while_another_thread_holds_every_lock():
    assert child(_FORK)[:2] == (0, "0\n")
