"""Tests of `Worth`: share, bound and verdict follow from the times. Its forms are complete, and its text fits 80 columns."""

import doctest
import json
import math

import pytest

from convt._call import worth
from convt._call.worth import LayerTime, Worth

UP = LayerTime("decoder.up", (1, 512, 16, 16), (1, 256, 32, 32), 0.003, 0.001, "winograd:amx_two", 0.4, ("ReLU",), 2)
LEFT = LayerTime("a" * 90 + ".last", (2, 64, 8, 8, 8), (2, 32, 16, 16, 16), 0.001, algorithm="it is complex")


def test_share_bound_and_what_is_reached():
    found = Worth("PyTorch", (UP, LEFT), 0.01, 0.008)
    assert found.share == pytest.approx(0.4) and found.bound == pytest.approx(1 / 0.6) and found.reached == pytest.approx(1.25)
    assert Worth("PyTorch", (UP,), 0.002, 0.001).share == 1  # layers are timed apart from the whole
    assert Worth("PyTorch", (UP,), 0.002, 0.001).bound == math.inf
    measured = Worth("PyTorch", (UP,), 0.01, 0.004, rest_seconds=0.002)  # more than the layer's own time
    assert (measured.share, measured.bound) == pytest.approx((0.8, 5.0))
    assert Worth("PyTorch", (UP,), 0.01, 0.01, rest_seconds=0.011).share == 0


def test_the_table_fits_and_is_plain():
    text = str(Worth("PyTorch", (UP, LEFT), 0.01, 0.008))
    assert text.isascii() and all(len(line) <= 80 for line in text.splitlines())
    head, up = text.splitlines()[:2]
    assert head.split() == ["layer", "shape", "host", "ms", "convt", "ms", "algorithm", "limit"]
    assert up.split()[-1] == "40%" and "512x16x16 -> 256x32x32" in up
    assert "with ReLU: decoder.up" in text and "left to PyTorch because it is complex" in text
    assert LayerTime("\x1b[0m", (1,), (1,), 1.0).name not in str(Worth("PyTorch", (LEFT._replace(name="\x1b[0m"),), 1.0, 1.0))


@pytest.mark.parametrize(("layers", "times", "says"), [
    ((), (1, 1), "Nothing is to gain: PyTorch computed no transposed convolution; looked for functions."),
    ((UP,), (1, 0.99), "Nothing is to gain: transposed convolution takes 0.3% of PyTorch's time, so the whole can get at most"),
    ((UP,), (0.01, 0.01), "Nothing is gained: transposed convolution takes 30% of PyTorch's time, so the whole can get at"),
    ((LEFT,), (0.01, 0.01), "but convt computes none of it: it is complex."),
    ((UP,), (0.01, 0.008), "so the whole can get at most 1.43 times as fast. With convt it is 1.25 times as fast. Use it."),
    ((UP,), (0.03, 0.02), "With convt it is 1.50 times as fast: more than the bound, so the times vary."),
    ((UP,), (0.003, 0.001), "takes 100% of PyTorch's time, so it decides alone. With convt it is 3.00 times as fast."),
])  # fmt: skip
def test_the_verdict(layers, times, says):
    assert says in Worth("PyTorch", layers, *times, "functions", "Use it.").verdict()


def test_json_has_no_infinity():
    found = json.loads(json.dumps(Worth("PyTorch", (UP, LEFT), 0.002, 0.001).as_dict(), allow_nan=False))
    assert found["bound"] is None and found["share"] == 1 and found["layers"][1]["convt_seconds"] is None
    assert found["layers"][0]["fused"] == ["ReLU"] and found["layers"][0]["calls"] == 2 and found["verdict"]


def test_html_is_escaped():
    found = Worth("PyTorch", (UP._replace(name="<b>"),), 0.01, 0.008)._repr_html_()
    assert found.startswith("<table>") and "<b>" not in found and "&lt;b&gt;" in found
    assert Worth("PyTorch", (), 1, 1)._repr_html_().startswith("<p>Nothing")


def test_one_line_says_what_it_is():
    assert repr(Worth("PyTorch", (UP,), 0.01, 0.008)) == "<Worth of 1 layer in PyTorch: share 30%, bound 1.43, reached 1.25>"


def test_turns():
    order = []
    calls = [lambda: order.append("a"), lambda: order.append("b")]
    found = worth.in_turns(calls, 0, rounds=2, before=[lambda: order.append("A"), lambda: order.append("B")])
    assert len(found) == 2 and "".join(order) == "AaBb" + "AaaaBbbb" * 2


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_what_commands_print_fits_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    Worth("PyTorch", (UP, LEFT), 0.01, 0.008).show()
    printed = capsys.readouterr().out
    table, _, notes = printed.partition("with ReLU: ")
    assert max(map(len, table.splitlines())) <= int(columns) and "decoder.up" in table and "1.000" in table
    assert ("a wider terminal also shows: " in table) == (columns == "60")
    assert "1.25 times as fast" in " ".join(notes.split())


def test_examples():
    assert doctest.testmod(worth).failed == 0
