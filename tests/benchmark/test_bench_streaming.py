"""Tests of `python -m bench.streaming`; no figure is asserted."""

import math
import sys

import pytest

streaming = pytest.importorskip("bench.streaming", reason="bench is not installed")


def test_the_table_has_a_row_for_each_layer_and_layout(monkeypatch, capsys):
    monkeypatch.setattr(streaming, "LAYERS", {"small": (16, 8, 1, 4, 2), "depthwise": (8, 8, 8, 4, 2)})
    monkeypatch.setattr(sys, "argv", ["bench.streaming", "--rounds", "1"])
    streaming.main()
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert [line[:2] for line in lines[2:]] == [[n, f] for n in ("small", "depthwise") for f in ("NXC", "NCX")]
    assert all(math.isfinite(float(value)) for line in lines[2:] for value in line[2:])
