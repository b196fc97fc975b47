"""Tests of the command ``python -m convt.onnxruntime``: its output, its arguments, and errors of one line."""

import json
import math

import numpy as np
import pytest
from onnx_models import conv, helper, info, model_of, onnx, weights

from convt.onnxruntime import __main__ as cli

QUICK = ["--budget", "0.02"]


@pytest.fixture
def path(tmp_path):
    model = model_of([conv(strides=[2, 2])], {"X": ("N", 6, "H", "V")}, constants={"W": weights(6, 4, 3, 3)})
    onnx.save(model, tmp_path / "m.onnx")
    return str(tmp_path / "m.onnx")


def refused(capsys, *arguments):
    """Return the text that the command prints when it refuses its arguments."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([*QUICK, *arguments])
    printed = capsys.readouterr()
    assert stopped.value.code in (1, 2) and not printed.out and "Traceback" not in printed.err
    return printed.err


def test_what_it_prints(path, capsys):
    assert cli.main([path, "--shape", "X=2,6,5,7", *QUICK]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("layer  shape ") and "\nY      2x6x5x7 -> 2x4x11x15 " in printed
    assert "\nONNX Runtime alone takes " in printed and " of ONNX Runtime's time, so " in " ".join(printed.split())
    assert "ONNX Runtime against itself without graph optimisations " in printed


def test_fused_kept_and_unnamed_nodes_have_times(tmp_path, capsys):
    nodes = [
        conv(output="A", strides=[2, 2]), helper.make_node("Relu", ["A"], ["B"], name="A"),
        helper.make_node("Exp", ["B"], ["C"]),
        conv(inputs=("C", "V"), output="Y", name="kept", strides=[3, 3], auto_pad="SAME_UPPER"),
    ]  # fmt: skip
    model = model_of(nodes, {"X": (1, 6, 20, 20)}, constants={"W": weights(6, 4, 3, 3), "V": weights(4, 4, 2, 2)})
    onnx.save(model, tmp_path / "m.onnx")
    assert cli.main([str(tmp_path / "m.onnx"), "--json", *QUICK]) == 0
    served, kept = json.loads(capsys.readouterr().out)["layers"]
    assert served["fused"] == ["Relu"] and served["convt_seconds"] > 0 and served["algorithm"] and served["of_limit"] > 0
    assert kept["name"] == "kept" and kept["convt_seconds"] is None and "smaller than its stride" in kept["algorithm"]
    assert served["host_seconds"] > 0 and kept["host_seconds"] > 0


@pytest.mark.parametrize("precision", [None, "medium"])
def test_json(path, capsys, precision):
    words = ["--precision", precision] if precision else []
    assert cli.main([path, "--json", "--threads", "1", "--shape", "X=1,6,1,1", *words, *QUICK]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["nodes"][0]["in"] == [1, 6, 1, 1] and found["speed_up"] > 0 and found["precision"] == precision
    assert found["layers"][0]["name"] == "Y" and found["layers"][0]["host_seconds"] > 0 and 0 < found["share"] <= 1
    assert found["difference"] < (3e-2 if precision else 1e-5) and found["own_difference"] < 1e-5


def test_arrays_of_a_file(path, capsys, tmp_path, monkeypatch):
    data = weights(1, 6, 4, 3)
    np.savez(tmp_path / "feed.npz", X=data)
    fed = []
    monkeypatch.setattr(cli, "in_turns", lambda calls, *others: [call() and 1.0 for call in calls])
    monkeypatch.setattr(cli, "difference", lambda before, after: fed.append(before) or 0.0)
    assert cli.main([path, "--input", str(tmp_path / "feed.npz"), *QUICK]) == 0
    session = cli.InferenceSession(path)
    np.testing.assert_allclose(fed[0][0], session.run(None, {"X": data})[0], rtol=1e-4, atol=1e-5)
    capsys.readouterr()
    np.savez(tmp_path / "other.npz", Z=data)
    assert "input Z: got an unknown name, wanted an input of the model: X" in refused(
        capsys, path, "--input", str(tmp_path / "other.npz")
    )
    assert "wanted an .npz file of arrays" in refused(capsys, path, "--input", path)
    assert "wanted an .npz file of arrays" in refused(capsys, path, "--input", "/nowhere.npz")


def test_sizes_that_were_not_given_are_refused(path, capsys):
    printed = refused(capsys, path)
    assert "input X: got no sizes for the open axes of ['N', 6, 'H', 'V'], wanted --shape X=N,6,N,N" in printed


@pytest.mark.parametrize(("words", "wanted"), [
    (["--shape", "foo"], "got 'foo', wanted NAME=N,N,... of integers of at least 0, as in X=1"),
    (["--shape", "Z=1,6,4,4"], "input Z: got an unknown name, wanted an input of the model: X"),
    (["--budget", "-1"], "got '-1', wanted a number above 0"),
    (["--threads", "-2"], "got '-2', wanted an integer of at least 1"),
    (["--shape", "X=1,5,4,4"], "INVALID_ARGUMENT"),
])  # fmt: skip
def test_bad_arguments(path, capsys, words, wanted):
    assert wanted in refused(capsys, path, *words)


def test_models_that_are_none(capsys, tmp_path):
    assert "nowhere.onnx" in refused(capsys, "/nowhere.onnx")
    relu = model_of([helper.make_node("Relu", ["X"], ["Y"])], {"X": (1, 2)})
    onnx.save(relu, tmp_path / "relu.onnx")
    assert cli.main([str(tmp_path / "relu.onnx"), *QUICK]) == 0
    assert "convt computes no node of the model because the model has no ConvTranspose nodes" in capsys.readouterr().out


def test_ctrl_c_is_no_traceback(path, capsys, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "in_turns", interrupt)
    with pytest.raises(SystemExit) as stopped:
        cli.main([path, "--shape", "X=1,6,4,4"])
    assert stopped.value.code == 130 and capsys.readouterr().err == "python -m convt.onnxruntime: interrupted\n"


def test_differences():
    a = np.array([1.0, -4.0, np.inf, np.nan], np.float32)
    assert cli.difference([a], [a]) == 0
    assert cli.difference([a], [a + np.float32([0, 1, 0, 0])]) == 0.25
    assert cli.difference([a], [np.array([1, -4, 5, np.nan], np.float32)]) == math.inf
    assert cli.difference([a], [np.array([1, -4, np.inf, 0], np.float32)]) == math.inf
    assert cli.difference([a], [a[:2]]) == math.inf
    assert cli.difference([np.zeros(0)], [np.zeros(0)]) == 0


def test_types_that_are_not_made_up(capsys, tmp_path):
    model = model_of([helper.make_node("Identity", ["X"], ["Y"])], {}, outputs=())
    model.graph.input.append(info("X", onnx.TensorProto.STRING, (2,)))
    model.graph.output.append(info("Y", onnx.TensorProto.STRING, (2,)))
    onnx.save(model, tmp_path / "text.onnx")
    assert "input X: got tensor(string), wanted an array by --input" in refused(capsys, str(tmp_path / "text.onnx"))
