"""python -m bench.recorded: what is measured, kept and fitted; and random neighbours of layers."""

import json

import numpy as np
import pytest
from cases import ISAS

from bench import fit, layers, recorded, samples
from convt._model.efficiencies import EFFICIENCIES
from convt._run import config

KNOWN = layers.parse(layers.TABLE)


def test_neighbours_are_the_same_for_a_seed_of_all_classes_and_none_is_a_layer_known():
    near = samples.neighbours(KNOWN, 60, 0)
    assert near == samples.neighbours(KNOWN, 60, 0) != samples.neighbours(KNOWN, 60, 1)
    assert near[:9] == samples.neighbours(KNOWN, 9, 0)
    assert len({layer.name for layer in near}) == 60 and {layer.family for layer in near} == {layer.family for layer in KNOWN}
    shapes = {(layer.data_shape, layer.filter_shape, layer.strides) for layer in KNOWN}
    assert not shapes & {(layer.data_shape, layer.filter_shape, layer.strides) for layer in near}


def test_a_fit_finds_the_values_that_made_the_times():
    rng = np.random.default_rng(0)
    truth = {"tile": 55.0, "row": 2.0, "task": 900.0}
    values = {"tile": 40.0, "row": 5.0, "task": 400.0, "piece": 11.0}
    rows = []
    for _ in range(300):
        counts = {name: float(10 ** rng.uniform(0, 3)) / size for name, size in truth.items()}
        cycles = sum(truth[name] * count for name, count in counts.items())
        rows.append(fit.Row(counts, cycles * rng.uniform(0.98, 1.02), f"{len(rows)}"))
    found = fit.fit(rows, values)
    assert found == pytest.approx({**truth, "piece": 11.0}, rel=0.02)
    assert values["row"] == 5.0


def test_no_value_becomes_negative_and_none_moves_without_measurements():
    values = {"row": 20.0, "task": 400.0}
    rows = [fit.Row({"row": 10.0 * n, "task": 1.0}, 10.0 * n * 50, f"{n}") for n in range(1, 200)]
    found = fit.fit(rows, values)
    assert found["row"] == pytest.approx(50, rel=0.1) and found["task"] >= 0
    assert fit.fit([], values) == values


def test_the_loss_is_that_of_the_choice():
    near = {"x": (3.0, 1.0), "y": (1.0, 1.04)}
    found = fit.loss({"a": {"x": (1.0, 2.0), "y": (2.0, 1.0)}, "b": {"x": (1.0, 1.0)}, "c": near})
    assert (found.problems, found.worst, found.worst_name) == (3, 1.0, "a: x")
    assert found.within == pytest.approx(2 / 3) and found.mean == pytest.approx(1.04 / 3)


ROWS = [
    {"N": 1, "Cin": 8, "Cout": 8, "g": 1, "in": [9, 9], "k": [2, 2], "s": [2, 2]},
    {"N": 1, "Cin": 16, "Cout": 4, "g": 1, "in": [30], "k": [4], "s": [2], "pb": [1], "pe": [1]},
]


@pytest.mark.skipif("avx2" not in ISAS, reason="this CPU lacks avx2")
def test_a_record_is_measured_once_and_fitted(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    monkeypatch.setattr(recorded, "SECONDS", 1e-3)
    wanted = [{"name": f"{n}", "layout": layout, "layer": row} for n, row in enumerate(ROWS) for layout in ("NXC", "NCX")]
    recorded.record(recorded.LAYERS).write_text("".join(json.dumps(each | {"threads": 9, "ms": {}}) + "\n" for each in wanted))
    for left in (8, 0):  # the second time, nothing is left
        assert recorded.main(["--measure", "zen3", "--dtype", "f32,bf16"]) == 0
        assert f": {left} layers\n" in capsys.readouterr().out
    lines = recorded.lines("zen3")
    assert [line.get("dtype", "f32") for line in lines] == ["f32"] * 4 + ["bf16"] * 4
    assert {line["threads"] for line in lines} == {config.get_num_threads()}
    for line in lines:
        problem = recorded.problem_of(line)
        assert problem.dtype == {"bf16": "bfloat16"}.get(line.get("dtype"), "float32") and min(line["ms"].values()) > 0
    out = tmp_path / "fitted.json"
    assert recorded.main(["--fit", str(out), "--families", "zen3", "--json", "-"]) == 0
    losses = json.loads(capsys.readouterr().out)
    assert {each["when"] for each in losses} >= {"before", "after fit 4"} and json.loads(
        out.read_text()
    ).keys() == EFFICIENCIES.keys()
