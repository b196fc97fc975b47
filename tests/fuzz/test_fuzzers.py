"""Tests of what all fuzzers share: cases are seeds, the first seeds are right, cases are replayed, findings are reduced."""

import importlib
import json
import re
import sys

import pytest

from fuzz import command, pool

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect (Linux)")
# Package of a fuzzer -> packages that it needs, and the first seeds to run. Findings at other seeds fail nothing.
FUZZERS = {
    "fuzz": ((), 60), "fuzz.graphs": (("onnx", "onnxruntime"), 300), "fuzz.models": (("torch",), 60),
    "fuzz.jax": (("jax",), 40),
}  # fmt: skip
each_fuzzer = pytest.mark.parametrize("package", FUZZERS)


def module(package, name):
    for each in FUZZERS[package][0]:
        pytest.importorskip(each)
    return importlib.import_module(f"{package}.{name}")


@each_fuzzer
def test_a_case_is_its_seed_and_its_json(package):
    draw = module(package, "draw")
    for seed in range(200):
        case = draw.case(seed)
        assert case == draw.case(seed) == json.loads(json.dumps(case))


@each_fuzzer
def test_the_first_seeds_are_right(package, capsys):
    status = module(package, "__main__").main(["--seeds", f"0-{FUZZERS[package][1]}"])
    said = capsys.readouterr().out
    assert status == 0 and " 0 findings" in said and f"{FUZZERS[package][1]} cases" in said, said
    if package == "fuzz.graphs":
        served, kept = (sum(map(int, re.findall(rf"^  (\d+) {name}", said, re.M))) for name in ("served", "kept: "))
        assert served > 4 * kept, said


@each_fuzzer
def test_replaying_prints_the_case_as_a_test(package, capsys):
    draw, main = module(package, "draw"), module(package, "__main__").main
    case = next(case for case in map(draw.case, range(99)) if pool.outcome_of(package, case).kind == "right")
    assert main(["--replay", json.dumps(case)]) == 0
    test, names = command.shown(package, case), {}
    said = capsys.readouterr().out
    assert said.startswith(test) and said.endswith("right \n")
    exec(test[test.index("\nfrom fuzz") :], names)
    names["test_that_convt_is_right"]()


TOY = {
    "__init__": "",
    "draw": "def case(seed): return {'size': seed, 'plain': [seed]}",
    "perform": """
import os
from fuzz.pool import Difference

def perform(case):
    if case["size"] == 4:
        os.abort()
    if case["size"] > 5:
        error = Difference("size", "too large")
        error.more = {"schedules": []}
        raise error
    return "right", {"number": 2, f"detail\\n{case['size'] % 2}": 1}
""",
    "shrink": """
from fuzz.shrinking import steps

def smaller(case): return steps(case, {}, {"*": 0}, lambda name, holder: name == "plain")
""",
}


def test_findings_are_printed_with_their_cases_and_reduced(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "toy"
    folder.mkdir()
    for name, text in TOY.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert command.main("toy", "", ["--seeds", "0-8", "--workers", "2"]) == 1
    said = capsys.readouterr().out
    assert "FOUND crash at seed 4: SIGABRT\n" in said and "FOUND wrong size at seed 6: " in said and "size: too large" in said
    assert """python -m tests.toy --replay '{"size": 7, "plain": [7], "schedules": []}'""" in said
    assert "seeds 0-8 done, 3 findings; continue with --seeds 8-\n8 cases: 1 crash, 5 right, 2 wrong size\n" in said
    assert "  10 number\n  5 detail, 2 different\n" in said
    for kind, size in ("crash", 4), ("wrong size", 6):
        assert f"""reduced {kind}:  python -m tests.toy --replay '{{"size": {size}}}'""" in said
