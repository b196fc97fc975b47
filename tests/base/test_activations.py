"""Tests of every activation, with several parameters each, on every backend, dtype and layout."""

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from cases import ALL_DTYPES, DATA_FORMATS, DTYPES, Case, activate, needs_checkout, operator, run

import convt
from convt import tuning
from convt._base import activation as _activation
from convt._plan import measure as _measure
from convt.algorithms import onednn

# Every activation, with parameters at the ends of their ranges, of both signs, and those of usual networks.
ROWS = {name: [name] for name, each in _activation.ACTIVATIONS.items() if not each.parameters} | {
    "none": [None], "leaky_relu": [("leaky_relu", slope) for slope in (0.25, 0.01, 0, 1, 3, -2)],
    "clip": [("clip", *ends) for ends in ((-3, 5.5), (0, 6), (2, 2), (-4, -1), (-np.inf, 1), (-1, np.inf), (-np.inf, np.inf))],
    "elu": [("elu", alpha) for alpha in (0.75, 1, 0, 2.5, -0.5)],
}  # fmt: skip
BACKENDS = ("native", "reference", "onednn", "tune", "tune: onednn", "auto, tuned: onednn")
# Of one output, in units of max(1, |y|): of the function in float64 or float32, and of its rounding.
TOLERANCE = {
    each.name: 1e-14 if each.itemsize == 8 else max(2e-6, 1.03 * float(ml_dtypes.finfo(each).eps)) for each in ALL_DTYPES
}


def test_the_table_has_every_activation():
    assert ROWS.keys() == _activation.ACTIVATIONS.keys()
    assert all(_activation.parse(row)[0] == name for name, rows in ROWS.items() for row in rows)


@needs_checkout
def test_the_codes_are_those_of_the_kernels():
    text = (Path(convt.__file__).parent / "kernels/convt_kernels.h").read_text(encoding="utf-8")
    names = re.sub(r"/\*.*?\*/", "", re.search(r"enum \{\s*(CONVT_NONE.*?)\};", text, re.S)[1]).split(",")
    codes = {name.strip(): code for code, name in enumerate(names)}
    named = {"relu": "CONVT_CLIP", "leaky_relu": "CONVT_LEAKY"}
    for name, each in _activation.ACTIVATIONS.items():
        assert codes[named.get(name, f"CONVT_{name.upper()}")] == each.code, name


@pytest.fixture
def fresh_results():
    """Remove the results of "tune" before and after a test."""
    tuning.clear()
    yield
    tuning.clear()


def has(dtype):
    """Check whether oneDNN has a deconvolution of a dtype for the instruction set that it uses."""
    wanted = {"float64": "none", "float16": "fp16|amx", "bfloat16": "avx512_core"}.get(dtype, "")
    return bool(re.search(wanted, onednn.library.opened()["isa"]))


@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", [row for rows in ROWS.values() for row in rows], ids=str)
def test_activation(activation, backend, dtype, data_format, monkeypatch, fresh_results):
    backend, _, winner = backend.partition(": ")
    needs_onednn = "onednn" in (backend, winner)
    if needs_onednn and not onednn.library.available():
        pytest.skip(f"oneDNN {onednn.library.describe()}")
    case = Case(
        dtype=dtype, data_format=data_format, batch=2, ci=5, co=19, in_sizes=(4, 5), kernel=3, strides=2, pads_begin=1,
        pads_end=1, output_padding=(1, 0), activation=activation,
    )  # fmt: skip
    data, filter, bias = case.arrays()
    data, bias = data / data.dtype.type(8), bias / bias.dtype.type(2)  # sums of -12 to 12 in steps of 1/8, all exact
    if backend == "onednn" and not has(dtype):
        for refused in (replace(case, activation=None), case):
            with pytest.raises(convt.BackendUnavailableError):
                run(refused, data, filter, bias, backend=backend)
        return

    def measure(runs):
        return {name: 0.5 - 0.25 * (name == winner) for name, call in runs.items() if call() is not False}

    monkeypatch.setattr(_measure, "measure", measure)
    if backend == "auto, tuned":  # as with a file that CONVT_TUNING names
        operator(case, filter, bias, backend="tune")(data)
        backend = "auto"
    op = operator(case, filter, bias, backend=backend)
    if winner:
        assert op.plan(data.shape).backend == ("onednn" if has(dtype) else "native")
    want = case.expected(data, filter, bias)
    for got in (op(data), op(data), *([run(case, data, filter, bias, backend=backend)] if backend != "tune" else [])):
        close(got, want, dtype)
    sums = replace(case, activation=None).expected(data, filter, bias).astype(case.numpy_dtype).astype(np.float64)
    close(op(data, add=np.full(case.out_shape, -1.5, case.numpy_dtype)), activate(activation, sums - 1.5), dtype)


def close(got, want, dtype):
    """Assert that each output is right, to an error relative to itself or to 1."""
    error = np.abs(got.astype(np.float64) - want) / np.maximum(1, np.abs(want))
    assert error.max() <= TOLERANCE[dtype]
