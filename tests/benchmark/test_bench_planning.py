"""What `python -m bench.planning` and `python -m bench.checkouts` find out; no figure is asserted."""

import json
import sys
from pathlib import Path

import pytest

from bench import checkouts, layers, peers, planning
from bench.planning_worker import CPUS, Planning

ROOT = Path(__file__).parents[2]
TABLE = """
name   family  N  Cin  Cout  g  in   k    s  pads  op  d  source
wide   test    1  16   8     1  8x8  4x4  2  1     0   1  two axes
long   test    1  8    16    1  40   4    2  1     0   1  one axis
"""
WIDE, LONG = layers.parse(TABLE)


@pytest.fixture
def stand():
    return Planning(peers.load(peers.PEERS[0]), 1, {})


def test_new_sizes_and_batches_are_new():
    for layer in planning.CHANGING_LAYERS:
        sizes = [other.size for other in planning.new_sizes(layer)]
        assert len({layer.size, *sizes}) == 8 and all(max(size) <= max(layer.size) for size in sizes)
        largest, others = planning.new_batches(layer)
        assert len({each.batch for each in others}) == len(others) and max(each.batch for each in others) < largest.batch


@pytest.mark.parametrize("layout", ["NXC", "NCX"])
def test_new_shapes_are_planned_and_repeated_ones_are_not(stand, layout):
    found = stand.new_shapes(WIDE, layout, planning.new_sizes(WIDE)[:3], 2)
    assert len(found["least"]) == len(found["first"]) == 3 and found["warm"] > 0
    assert found["calls"] > 0
    found = stand.one_shot(LONG, layout, 1)
    assert found["calls"] > 0 and found["warm"] > 0


def test_what_is_kept_is_counted(stand):
    assert set(stand.lengths(LONG, 3)["kept"]) == {3}
    found = stand.packed([(8, 16), (16, 8)], [(2, 2), (3, 4)], "NXC")
    assert found["filters"] == 2 * 4 * 16 * 8 * 16 and len(found["kept"]) == 2


def test_the_choice_is_the_cheapest(stand):
    chosen = stand.chosen([WIDE], ["NCX"], "Zen 3")["NCX"]["wide"]
    name, costs = chosen
    assert costs[name] == min(costs.values()) > 0


def test_the_tables_and_the_choices_on_other_cpus(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(layers, "TABLE", TABLE)
    monkeypatch.setattr(planning, "CPUS", {name: CPUS[name] for name in ("Haswell", "Zen 5")})
    monkeypatch.setattr(planning, "CHANGING_LAYERS", [WIDE, LONG])
    monkeypatch.setattr(planning, "LARGE_FILTERS", [LONG])
    monkeypatch.setattr(planning, "TORCH", peers.Peer("torch", "nowhere", "torch"))
    common = ["--layout", "NXC", "--threads", "1"]
    saved = tmp_path / "tables.md"
    assert planning.main([*common, "--rounds", "1", "--part", "shapes", "--save", str(saved)]) == 0
    text = saved.read_text()
    assert text.strip() in capsys.readouterr().out and "| wide | NXC |" in text and "| target |" in text

    kept = tmp_path / "choices.json"
    assert planning.main([*common, "--choices", str(kept)]) == 0
    content = json.loads(kept.read_text())
    assert list(content) == ["Haswell", "Zen 5"] and set(content["Zen 5"]["NXC"]) == {"wide", "long"}
    name, costs = content["Zen 5"]["NXC"]["wide"]
    content["Zen 5"]["NXC"]["wide"] = ["rows", costs | {"rows": 2 * costs[name]}]
    kept.write_text(json.dumps(content))
    assert planning.main([*common, "--against", str(kept)]) == 0
    out = capsys.readouterr().out
    assert "Changed choices: 1 of 4" in out and f"| Zen 5 | NXC | wide | rows | {name} | 2.00 |" in out


def test_another_checkout_is_measured_beside_this_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(layers, "TABLE", TABLE)
    arguments = ["--threads", "1", "--rounds", "1", "--budget", "0.05", "--least", "9"]
    assert checkouts.main([str(ROOT), *arguments]) == 0
    out = capsys.readouterr().out
    assert out.count("native") == 8 and "f32 NXC: geometric mean" in out and "  below 9: " in out
    for wrong, says in (
        ([tmp_path], "has no folder convt"),
        ([ROOT, "--names", "wide,wid"], "unknown layer 'wid'; did you mean"),
    ):
        with pytest.raises(SystemExit):
            checkouts.main(list(map(str, wrong)))
        assert says in capsys.readouterr().err


def test_the_convt_of_a_checkout_is_the_one_that_is_loaded(tmp_path, monkeypatch):
    (tmp_path / "somebody.py").write_text("WHOSE = 'theirs'")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert peers.load(peers.Peer("other", "somebody", "", checkout=str(tmp_path))).WHOSE == "theirs"
