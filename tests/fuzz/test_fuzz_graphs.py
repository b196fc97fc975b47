"""Tests of the fuzzer of ONNX graphs in tests/fuzz/graphs: cases, planted faults that it must see, its oracle, reduced cases of
faults that it found."""

import functools
import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

import onnxruntime

from convt.onnxruntime import InferenceSession
from fuzz import shrinking
from fuzz.graphs import build, draw, oracle, perform, shrink
from fuzz.pool import Difference

FOUND = [json.loads(line) for line in Path(perform.__file__).with_name("found.jsonl").read_text().splitlines()]
CONV = {"op": "conv", "weights": {"values": "integers"}, "out": 2, "kernel": [3], "strides": [2]}


def test_a_model_is_its_case():
    for case in map(draw.case, range(200)):
        first, second = build.build(case), build.build(case)
        assert first.model == second.model and first.files == second.files


@pytest.mark.parametrize("found", FOUND, ids=lambda found: f"{found['fault']}, seed {found['seed']}")
def test_faults_that_were_found_stay_mended(found):
    outcome, _ = perform.perform(found["case"])  # which raises `Difference` for a difference
    assert outcome in ("right", "refused", "beyond")


def plain(*more, **keys):
    return {"nodes": [CONV, *more], "runs": [{"values": "integers"}, {"sizes": [6], "batch": 2}], **keys}


def test_what_two_sessions_have_in_common_is_counted():
    outcome, told = perform.perform(plain({"op": "activation", "type": "Tanh"}, {**CONV, "pads": [[-1], [0]]}))
    assert outcome == "right" and told["served"] == 1 and told["runs"] == 2 and told["compared elements"] > 0
    assert told["kept: it has a negative pad"] == 1
    outcome, told = perform.perform(plain(mutation={"kind": "unknown operator"}))
    assert outcome == "refused" and set(told) == {"load: InvalidGraph"}
    assert perform.perform(plain(dtype="float64"))[0] == "beyond"


@pytest.mark.parametrize("fault", [
    "numbers", "NaN", "shape", "dtype", "run", "warning", "get_inputs", "get_outputs", "providers", "no reason", "lost node",
])  # fmt: skip
def test_a_difference_is_seen(fault, monkeypatch):
    def spoilt(session, *arguments):
        (got,) = onnxruntime.InferenceSession.run(session, *arguments)
        if fault == "run":
            raise ValueError("planted")
        if fault == "warning":
            print("[W:onnxruntime:, planted.cc:1 f] planted")
        if fault in ("numbers", "NaN"):
            got.reshape(-1)[3] = got.reshape(-1)[3] * (1 + 1e-4) + 1e-4 if fault == "numbers" else np.nan
        return [got[None] if fault == "shape" else got.astype(np.float64) if fault == "dtype" else got]

    kind = {"NaN": "numbers", "dtype": "shape", "run": "error at run", "no reason": "report", "lost node": "report"}
    case = plain({"op": "activation", "type": "Sigmoid"}, level=0)
    assert perform.perform(case)[0] == "right"
    if fault in ("get_inputs", "get_outputs", "providers"):
        monkeypatch.setattr(InferenceSession, "get_providers" if fault == "providers" else fault, lambda session: [])
    elif kind.get(fault) == "report":
        name = "v2"
        kept = {name: ""} if fault == "no reason" else {}
        monkeypatch.setattr(InferenceSession, "report", convt_report(kept))
    else:
        monkeypatch.setattr(InferenceSession, "run", spoilt)
    with pytest.raises(Difference) as raised:
        perform.perform(case)
    assert raised.value.kind == f"wrong {kind.get(fault, fault)}"


def convt_report(kept):
    from convt.onnxruntime import Report

    return Report((), (), {}, kept)


def test_an_error_at_load_that_onnxruntime_does_not_raise_is_seen(monkeypatch):
    def refused(session, *arguments, **keywords):
        raise ValueError("planted")

    monkeypatch.setattr(InferenceSession, "__init__", refused)
    with pytest.raises(Difference, match="convt: ValueError, ONNX Runtime: NoneType"):
        perform.perform(plain())


def test_the_oracle_bounds_what_onnxruntime_computes():
    """Check values and errors of the oracle on random models, and that they leave little unsure."""
    elements = unsure = 0
    for seed in range(150):
        case = draw.case(seed)
        built = build.build(case)
        if built.files or "model" in case or "mutation" in case:
            continue
        comparison = perform._Comparison(case, built)
        made = perform._heard(lambda c=comparison: c._session(onnxruntime.InferenceSession, c.source, c._options(0)))
        for feed in built.feeds if made.error is None else ():
            feed = comparison._known(made.result, feed)
            ran = perform._heard(functools.partial(made.result.run, None, feed))
            bounds = {} if ran.error else oracle.bounds(built.model, feed, built.added)
            for value, (v, e) in zip(ran.result or (), bounds.values(), strict=True):
                comparison._check_numbers("", v, value, v, e)
                elements, unsure = elements + e.size, unsure + np.isinf(e).sum()
    assert elements > 50_000 and unsure < elements / 10


def test_what_fails_is_made_smaller():
    def fails(case):
        text = json.dumps(case)
        return '"op": "if"' in text and '"op": "prelu"' in text and len(case["runs"]) > 1

    case = next(case for case in map(draw.case, range(9999)) if fails(case) and len(case["nodes"]) > 2)
    small = shrinking.shrink(case, shrink.smaller, fails, 9999)
    text = json.dumps(small)
    assert text.count('"op"') == 2 and small["runs"] == [{}, {}] and set(small) == {"nodes", "runs"}
