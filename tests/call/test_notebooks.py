"""Tests of what notebooks and prompts show of operators, plans and reports: HTML tables, and text of one line."""

import re

import numpy as np
import pytest

import convt

W = np.ones((3, 3, 8, 16), np.float32)


def cells(html):
    """Return the cells of the rows of a table."""
    assert html.startswith("<table>") and html.endswith("</table>")
    return [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]


def test_operators():
    op = convt.ConvTranspose(W, strides=2, activation=("leaky_relu", 0.2))
    assert "\n" not in repr(op) and "8 -> 16" in repr(op) and repr(op).endswith(", activation=('leaky_relu', 0.2))")
    shown = dict(cells(op._repr_html_()))
    assert shown["channels"] == "8 -&gt; 16" and shown["strides"] == "(2, 2)" and shown["dtype"] == "float32"
    assert shown["activation"] == "(&#x27;leaky_relu&#x27;, 0.2)" and "auto_pad" not in shown
    plain = convt.ConvTranspose(W)
    assert "activation" not in dict(cells(plain._repr_html_())) and "activation" not in repr(plain)
    assert "activation='relu'" in repr(convt.ConvTranspose(W, activation="relu"))


def test_plans():
    plan = convt.ConvTranspose(W, backend="native").plan((1, 4, 4, 8))
    shown = dict(cells(plan._repr_html_()))
    assert shown["algorithm"] == plan.algorithm and shown["threads"] == str(plan.threads) and "problem" not in shown
    assert "\n" not in repr(plan)


def test_reports_of_torch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    import convt.torch as ct

    report = ct.Report(("up", "last"), {"<own>": "it is"}, {"up": ("BatchNorm2d", "ReLU")}, functional=("",))
    assert repr(report) == "<Report of convt.torch: 2 swapped, 1 fused, 1 functional, 1 kept>"
    rows = cells(report._repr_html_())[1:]
    assert rows[0] == ["up", "convt", "fused with BatchNorm2d and ReLU in inference"] and rows[1] == ["last", "convt", ""]
    assert rows[2][:2] == ["", "convt"] and rows[3] == ["&lt;own&gt;", "torch", "it is"]
    assert "has no module" in ct.Report((), {}, {})._repr_html_()


def test_reports_of_onnxruntime():
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    import convt.onnxruntime as ort

    report = ort.Report(("up",), ("other",), {"up": ("Relu",)}, {"kept": "it is"})
    assert repr(report) == "<Report of convt.onnxruntime: 1 packed, 1 unpacked, 1 fused, 1 kept>"
    rows = cells(report._repr_html_())[1:]
    assert [row[:2] for row in rows] == [["up", "convt"], ["other", "convt"], ["kept", "ONNX Runtime"]]
    assert "the model has none" in ort.Report((), (), {}, {}, "the model has none")._repr_html_()
