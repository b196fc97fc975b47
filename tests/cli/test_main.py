"""Tests of python -m convt and of the text that describes plans."""

import contextlib
import itertools
import json
import re

import numpy as np
import pytest
from cases import ALGORITHMS, child

import convt
from convt import __main__ as cli
from convt import tuning
from convt._base import words
from convt._base.problem import PRECISIONS, Problem
from convt._model import costs, limits, machine
from convt._plan import measure as _measure
from convt.algorithms import ALGORITHMS as ALL
from convt.algorithms import NAMES, name_of

LAYER = '{"Cin": 64, "Cout": 32, "in": [16, 12], "k": 4, "s": 2, "pb": 1, "pe": 1}'


def _op(**more):
    return convt.ConvTranspose(np.ones((4, 4, 64, 32), np.float32), strides=2, pads_begin=1, pads_end=1, **more)


def test_a_plan_says_why():
    plan = _op(backend="native").plan((1, 16, 12, 64))
    text = plan.explain()
    lines = text.splitlines()
    assert lines[0].startswith(f"{plan.algorithm}: ") and "it has the lowest expected cost" in lines[1]
    assert re.fullmatch(rf"runs: {plan.tasks} tasks? on {plan.threads} threads?, {plan.isa}", lines[2])
    shares = [int(share) for share in re.findall(r"(\d+)% (?:computing|fetching|moving)", lines[3])]
    assert 97 <= sum(shares) <= 103
    for name in {f"{name}:vectors" for name in NAMES} - {plan.key, "invariant:vectors"}:
        ratio = re.search(rf"^  {name} (\d+\.\d\d)$", text, re.M)
        assert (ratio and float(ratio[1]) >= 1) or f"  {name}: unavailable (needs " in text


@pytest.mark.parametrize("name", ["direct", "winograd", "winograd:six:vectors", "scatter"])
def test_a_plan_that_was_asked_for_says_so(name):
    text = _op(backend="native", algorithm=name).plan((1, 16, 12, 64)).explain()
    assert text.startswith(f"{name_of(name)}: ") and ("requested by name" in text or "the lowest expected cost" in text)


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_explained(name, data_format):
    op = convt.ConvTranspose(
        np.ones((4, 1, 3, 3), np.float32), strides=2, groups=4, data_format=data_format, filter_format="IOX", backend="native",
        algorithm=name,
    )  # fmt: skip
    try:
        plan = op.plan((1, 4, 9, 9) if data_format == "NCX" else (1, 9, 9, 4))
    except ValueError:
        pytest.skip(f"{name} is unavailable for this problem")
    assert plan.explain().startswith(f"{name_of(name)}: ")
    for part in plan.cycles:
        assert costs.NAMES[part.rpartition(".")[2]].meaning


def test_other_backends_are_explained():
    assert _op(backend="reference").plan((1, 4, 4, 64)).explain().startswith("reference: ")


def test_what_keeps_weights_from_an_algorithm_is_the_reason():
    weights = np.ones((4, 4, 64, 32), np.float32)
    weights[0, 0, 0, 0] = np.nan
    text = convt.ConvTranspose(weights, strides=2, backend="native").plan((1, 16, 12, 64)).explain()
    assert "why: NaN or Inf in the filter" in text


def test_info(capsys):
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("version: ")
    assert cli.main(["info"]) == 0 and capsys.readouterr().out == printed
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == convt.__version__
    assert cli.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == convt.__version__


def test_bench_is_pointed_to(capsys):
    assert cli.main(["bench"]) == 0 and "convt-bench --quick" in capsys.readouterr().out
    assert cli.main(["bench", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"command": "convt-bench --quick"}


def test_plan(capsys):
    assert cli.main(["plan", LAYER]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("layer: (1, 16, 12, 64) -> (1, 32, 24, 32)\n") and "why: " in printed
    assert cli.main(["plan", LAYER, "--json", "--time", "--layout", "NCX", "--dtype", "float64", "--threads", "1"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["data"] == [1, 64, 16, 12] and found["threads"] == 1
    key = f"{found['algorithm']}:{found['unit']}"
    assert key in found["milliseconds"] and all(time > 0 for time in found["milliseconds"].values())
    assert found["cycles"][key] == min(found["cycles"].values())
    assert set(found["expected_milliseconds"]) == set(found["cycles"])
    assert found["limit"]["milliseconds"] > 0 and found["limit"]["gflops"] > 0 and found["limit"]["copy_gbs"] > 0
    for name, share in found["of_limit"].items():
        assert share == pytest.approx(found["limit"]["milliseconds"] / found["milliseconds"][name])
    assert cli.main(["plan", LAYER, "--algorithm", "direct"]) == 0
    assert "\ndirect: " in capsys.readouterr().out
    for precision in PRECISIONS:
        wide = LAYER.replace("64", "256").replace("32", "256")
        assert cli.main(["plan", wide, "--json", "--precision", precision]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        plan = convt.ConvTranspose(
            np.ones((4, 4, 256, 256), np.float32), strides=2, pads_begin=1, pads_end=1, backend="native", precision=precision
        ).plan((1, 16, 12, 256))
        assert (found["algorithm"], found["unit"]) == (plan.algorithm, plan.unit) and plan.problem.precision == precision
        permitted = {name for name, each in ALL.items() if PRECISIONS.index(each.precision) <= PRECISIONS.index(precision)}
        assert plan.key in permitted and set(found["cycles"]) <= permitted


@pytest.mark.parametrize("family", ["zen4", "neoverse_n1"])
def test_expected_times_use_the_clock_of_the_machine_file(family, capsys):
    with machine.pretend(family=family):
        clock = machine.current().constants.clock
        assert cli.main(["plan", LAYER, "--json", "--threads", "1"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    for name, cycles in found["cycles"].items():
        assert found["expected_milliseconds"][name] == pytest.approx(cycles / clock / 1e6)


def test_a_plan_has_a_table(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # all columns are printed without it
    assert cli.main(["plan", LAYER, "--time"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^algorithm +cycles +relative +expected ms +measured ms +of limit +bar *$", printed, re.M)
    assert re.search(r"^direct:vectors +\S+ +\d\.\d\d( +\d\S*){1,2} +\d+% +#+>? *$", printed, re.M)
    assert re.search(r"^hardware limit: \d\S* ms, from a peak of \d+ GFLOP/s and a copy at \d+\.\d GB/s", printed, re.M)


def test_bars_are_in_proportion():
    bars = cli._bars([2.0, None, 3.0, 8.0, 8.4, 1e9])
    assert [bar.rstrip() for bar in bars] == ["#" * 5, "", "#" * 8, "#" * 20, "#" * 19 + ">", "#" * 19 + ">"]
    assert {len(bar) for bar in bars} == {20}


def test_one_that_auto_does_not_take_is_in_the_table(capsys):
    assert cli.main(["plan", LAYER, "--algorithm", "winograd:six:vectors", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["algorithm"], found["unit"]) == ("winograd", "vectors") and found["cycles"]["winograd:six:vectors"] > 0


def test_operations_of_the_limit_are_those_that_meet_in_the_output():
    for n, k, s, d, begin, out in itertools.product((1, 4), (1, 2, 5), (1, 3), (1, 2), (-2, 0, 3), (0, 1, 7)):
        meetings = sum(0 <= i * s + t * d - begin < out for i in range(n) for t in range(k))
        problem = Problem("float32", 2, 3, 4, 5, (n, 2), (k, 1), (s, 1), (d, 1), (begin, 0), (out, 2))
        assert limits.operations(problem) == 2 * 2 * 3 * 4 * 5 * meetings * 2


def test_plans_of_a_file(tmp_path, capsys):
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"layers": [{**json.loads(LAYER), "name": name} for name in ("one", "two")]}))
    assert cli.main(["plan", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "one: (1, 16, 12, 64)" in printed and "two: (1, 16, 12, 64)" in printed


SMALL = LAYER.replace("64", "3").replace("32", "2")


def test_tune_keeps_on_request_what_is_not_sure(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(_measure, "_disagreement", lambda before, now: "the machine was busy")
    monkeypatch.setattr(_measure, "_SECONDS", 0)
    path = tmp_path / "tuning.json"
    assert cli.main(["tune", LAYER, "--out", str(path), "--best-effort"]) == 0
    printed = capsys.readouterr()
    assert "kept, but not sure, because the machine was busy" in printed.err and f"1 entry in {path}" in printed.out
    assert tuning.load(path).taken == 1


def test_tune(tmp_path, capsys, direct_wins):
    path = tmp_path / "tuning.json"
    assert cli.main(["tune", SMALL, "--out", str(path), "--threads", "1"]) == 0
    assert f"1 entry in {path}" in capsys.readouterr().out
    assert cli.main(["tune", SMALL.replace("16", "9"), "--out", str(path), "--threads", "1"]) == 0
    assert f"2 entries in {path}" in capsys.readouterr().out
    tuning.clear()
    assert cli.main(["tune", SMALL, "--out", str(path), "--threads", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["entries"] == 2 and found["file"] == str(path)
    (layer,) = found["layers"]
    assert layer["note"].startswith("measured earlier: ") and layer["algorithm"] == "direct:vectors"
    assert layer["milliseconds"][layer["algorithm"]] == min(layer["milliseconds"].values())
    tuning.clear()
    assert tuning.load(path).taken == 2
    assert cli.main(["tune", SMALL, "--out", str(path), "--threads", "1", "--precision", "medium"]) == 0
    assert f"3 entries in {path}" in capsys.readouterr().out  # one entry for each precision, which has its own algorithms


@pytest.mark.parametrize("command", [["plan", "--time"], ["tune"], ["plan"]], ids=" ".join)
def test_long_steps_say_what_they_do(command, tmp_path, monkeypatch, direct_wins):
    totals, begun = [], []
    monkeypatch.setattr(
        cli.terminal, "progress", lambda total: contextlib.nullcontext(totals.append(total) or begun.append)
    )  # fmt: skip
    layers = [json.loads(SMALL) | {"name": name} for name in ("one", "two")]
    out = ["--out", str(tmp_path / "tuning.json")] if command == ["tune"] else []
    assert cli.main([*command, json.dumps(layers), *out]) == 0
    word = {"tune": "tuning", "plan": "timing"}[command[0]]
    assert totals == [0 if command == ["plan"] else 2] and begun == [f"{word} one", f"{word} two"]


def test_one_is_not_several():
    with convt.num_threads(1):
        plan = _op(backend="native").plan((1, 4, 4, 64))
        assert f": {plan.tasks} task{'s' * (plan.tasks != 1)} on 1 thread, " in plan.explain()
    for number, text in ((0, "0 entries"), (1, "1 entry"), (2, "2 entries")):
        assert words.count(number, "entry", "entries") == text
    assert [words.count(number, "layer") for number in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]


def test_what_could_not_be_decided_is_said_and_not_kept(tmp_path, capsys, monkeypatch):
    def measure(runs):
        for run in runs.values():
            run()
        raise _measure.Undecided("it was noisy", dict.fromkeys(runs, 1e-3))

    monkeypatch.setattr(_measure, "measure", measure)
    path = tmp_path / "tuning.json"
    path.write_text(before := f'{{"format": "{tuning.FORMAT}", "entries": [\n\n]}}\n')
    with pytest.raises(SystemExit) as stopped:
        cli.main(["tune", SMALL, "--out", str(path)])
    printed = capsys.readouterr()
    assert stopped.value.code == 1 and path.read_text() == before and not printed.out
    (line,) = printed.err.splitlines()
    assert line.startswith("python -m convt: layer: could not decide what is the fastest, because it was noisy; ")
    assert cli.main(["plan", SMALL, "--time"]) == 0
    assert "the measured times are unreliable, because it was noisy" in capsys.readouterr().out
    assert cli.main(["plan", SMALL, "--time", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["undecided"] == "it was noisy"


def test_it_runs_as_a_module():
    code, out, errors = child("import runpy, sys; sys.argv = ['convt', 'info']; runpy.run_module('convt', run_name='__main__')")
    assert code == 0 and out.startswith("version: "), errors


def test_info_says_what_set_the_threads(capsys):
    assert cli.main(["info"]) == 0
    assert "threads set by: " in (text := capsys.readouterr().out) and "threads set by: num_threads" not in text
