"""python -m convt, and plans in words."""

import json
import re

import numpy as np
import pytest
from cases import ALGORITHMS, child

import convt
from convt import __main__ as cli
from convt import tuning
from convt._problem import PRECISIONS
from convt.algorithms import ALGORITHMS as ALL
from convt.algorithms import costs

LAYER = '{"Cin": 64, "Cout": 32, "in": [16, 12], "k": 4, "s": 2, "pb": 1, "pe": 1}'


def _op(**more):
    return convt.ConvTranspose(np.ones((4, 4, 64, 32), np.float32), strides=2, pads_begin=1, pads_end=1, **more)


# ------------------------------------------------------------------------------------------------ plans in words


def test_a_plan_says_why():
    plan = _op(backend="native").plan((1, 16, 12, 64))
    text = plan.explain()
    lines = text.splitlines()
    assert lines[0].startswith(f"{plan.algorithm}: ") and "it has the least expected cost" in lines[1]
    assert f"{plan.tasks} tasks on {plan.threads} threads, {plan.isa}" in lines[2]
    shares = [int(share) for share in re.findall(r"(\d+)% (?:computing|fetching|moving)", lines[3])]
    assert 97 <= sum(shares) <= 103
    for name in set(ALGORITHMS) - {plan.algorithm}:
        ratio = re.search(rf"^  {name} (\d+\.\d\d)$", text, re.M)
        assert (ratio and float(ratio[1]) >= 1) or f"  {name} does not do this problem (" in text


@pytest.mark.parametrize("name", ["direct", "winograd", "winograd6", "scatter"])
def test_a_plan_that_was_asked_for_says_so(name):
    text = _op(backend="native", algorithm=name).plan((1, 16, 12, 64)).explain()
    assert text.startswith(f"{name}: ") and ("asked for by name" in text or "the least expected cost" in text)


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
        pytest.skip(f"{name} does not do this problem")
    assert plan.explain().startswith(f"{name}: ")
    for part in plan.cycles:
        assert costs.NAMES[part.rpartition(".")[2]].meaning


def test_other_backends_are_explained():
    assert _op(backend="reference").plan((1, 4, 4, 64)).explain().startswith("reference: ")


def test_what_keeps_weights_from_an_algorithm_is_the_reason():
    weights = np.ones((4, 4, 64, 32), np.float32)
    weights[0, 0, 0, 0] = np.nan
    text = convt.ConvTranspose(weights, strides=2, backend="native").plan((1, 16, 12, 64)).explain()
    assert "why: NaN or Inf in the filter" in text


# ------------------------------------------------------------------------------------------------ the command line


def test_info(capsys):
    assert cli.main([]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("version: ")
    assert cli.main(["info"]) == 0 and capsys.readouterr().out == printed
    assert cli.main(["info", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == convt.__version__
    assert cli.main(["bench"]) == 0 and "python -m bench" in capsys.readouterr().out


def test_plan(capsys):
    assert cli.main(["plan", LAYER]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("layer: (1, 16, 12, 64) -> (1, 32, 24, 32)\n") and "why: " in printed
    assert cli.main(["plan", LAYER, "--json", "--time", "--layout", "NCX", "--dtype", "float64", "--threads", "1"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["data"] == [1, 64, 16, 12] and found["threads"] == 1
    assert found["algorithm"] in found["milliseconds"] and all(time > 0 for time in found["milliseconds"].values())
    assert cli.main(["plan", LAYER, "--algorithm", "direct"]) == 0
    assert "\ndirect: " in capsys.readouterr().out
    for precision in PRECISIONS:
        wide = LAYER.replace("64", "256").replace("32", "256")
        assert cli.main(["plan", wide, "--json", "--precision", precision]) == 0
        (found,) = json.loads(capsys.readouterr().out)
        plan = convt.ConvTranspose(
            np.ones((4, 4, 256, 256), np.float32), strides=2, pads_begin=1, pads_end=1, backend="native", precision=precision
        ).plan((1, 16, 12, 256))
        assert found["algorithm"] == plan.algorithm and plan.problem.precision == precision
        permitted = {name for name, each in ALL.items() if PRECISIONS.index(each.precision) <= PRECISIONS.index(precision)}
        assert found["algorithm"] in permitted and set(found["cycles"]) <= permitted


def test_plans_of_a_file(tmp_path, capsys):
    path = tmp_path / "layers.json"
    path.write_text(json.dumps({"layers": [{**json.loads(LAYER), "name": name} for name in ("one", "two")]}))
    assert cli.main(["plan", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "one: (1, 16, 12, 64)" in printed and "two: (1, 16, 12, 64)" in printed


def test_tune(tmp_path, capsys):
    path = tmp_path / "tuning.json"
    small = LAYER.replace("64", "3").replace("32", "2")
    tuning.clear()
    try:
        for n, layer in enumerate((small, small.replace("16", "9")), 1):
            assert cli.main(["tune", layer, "--out", str(path), "--threads", "1"]) == 0
            assert f"{n} entries in {path}" in capsys.readouterr().out
        tuning.clear()
        assert tuning.load(path).taken == 2
        assert cli.main(["tune", small, "--out", str(path), "--threads", "1", "--precision", "medium"]) == 0
        assert f"3 entries in {path}" in capsys.readouterr().out  # each precision chooses from algorithms of its own
    finally:
        tuning.clear()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "nothing"], "layer: got 'nothing', wanted JSON"),
        (["plan", '{"Cin": 4, "Cou": 3}'], "layer: got ['Cin', 'Cou'], wanted Cin, Cout, in and k"),
        (["plan", "3"], "layer: got 3, wanted"),
        (["plan", LAYER.replace('"s": 2', '"s": 0')], "strides: got 0"),
        (["plan", LAYER, "--algorithm", "depthwise"], "algorithm: got 'depthwise', which does not do this problem"),
        (["plan", LAYER, "--threads", "0"], "n: got 0"),
    ],
)
def test_mistakes_are_said(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 1 and said in capsys.readouterr().err


def test_it_runs_as_a_module():
    code, out, errors = child("import runpy, sys; sys.argv = ['convt', 'info']; runpy.run_module('convt', run_name='__main__')")
    assert code == 0 and out.startswith("version: "), errors
