"""python -m bench.calibrate: what is sampled, fitted, kept and said."""

import itertools
import json

import numpy as np
import pytest

from bench import calibrate, fit, layers, samples
from bench.problem import DTYPES, LAYOUTS
from convt._model.efficiencies import EFFICIENCIES

KNOWN = layers.parse(layers.TABLE)


def test_a_sample_is_the_same_for_a_seed_and_of_every_class():
    some = [list(itertools.islice(samples.sample(KNOWN, list(DTYPES), list(LAYOUTS), seed), 400)) for seed in (0, 0, 1)]
    assert some[0] == some[1] != some[2]
    names = {layer.name for layer, _, _ in some[0]}
    assert len(names) > 300
    measurable = [x for x in KNOWN if x.elements <= samples.MOST_ELEMENTS and x.flops <= samples.MOST_OPERATIONS]
    assert {layer.name for layer in measurable} <= names
    assert {dtype for _, dtype, _ in some[0]} == set(DTYPES)
    assert {layout for _, _, layout in some[0]} == set(LAYOUTS)
    kinds = {layer.name.split(" ")[0] for layer, _, _ in some[0]}
    assert {"dense", "few", "depthwise", "groups", "audio", "volume", "brief"} <= kinds
    assert any(name.startswith(samples.NEAR) for name in names)


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


def test_a_calibration_writes_a_profile_and_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch):
    out = tmp_path / "mine.json"
    monkeypatch.setattr(samples, "MOST_OPERATIONS", 5e6)
    options = ["--out", str(out), "--problems", "12", "--dtype", "f32", "--minutes", "5"]
    assert calibrate.main(options) == 0
    printed = capsys.readouterr().out
    assert "before:" in printed and "after:" in printed
    assert set(json.loads(out.read_text())["efficiencies"]) == set(EFFICIENCIES)
    kept = (tmp_path / "mine.json.measured").read_text().splitlines()
    assert len(kept) == 1 + 2 * 12 and all(json.loads(line)["seconds"] for line in kept[1:])  # two visits to each
    measured = []
    monkeypatch.setattr(calibrate, "measure", lambda *arguments: measured.append(arguments) or {})
    assert calibrate.main(options) == 0
    assert not measured


def test_measurements_of_another_machine_are_refused(tmp_path):
    path = tmp_path / "x.measured"
    calibrate.Measurements(path, {"cpu": "one"})
    assert calibrate.Measurements(path, {"cpu": "one"}).entries == {}
    with pytest.raises(ValueError, match="another machine"):
        calibrate.Measurements(path, {"cpu": "two"})


def test_layers_that_can_not_be_read_are_said_before_anything_is_measured(tmp_path, capsys):
    path = tmp_path / "layers.json"
    path.write_text('[{"Cin": 4, "Cout": 2, "in": 8, "k": 3, "stride": 2}]')
    for layers_file, says in ((path, f"{path}: layer 1: got the unknown key 'stride'"), (tmp_path / "no.json", "no.json")):
        with pytest.raises(SystemExit) as stopped:
            calibrate.main(["--out", str(tmp_path / "mine.json"), "--layers", str(layers_file)])
        assert stopped.value.code == 2 and says in capsys.readouterr().err
    assert [each.name for each in tmp_path.iterdir()] == ["layers.json"]
