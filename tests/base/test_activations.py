"""Tests of every activation, with several parameters each, on every backend, dtype and layout."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cases import (
    ALL_DTYPES,
    DATA_FORMATS,
    DTYPES,
    PARAMETERS,
    Case,
    activate,
    codes_of_activations,
    needs_checkout,
    onednn_has,
    operator,
    run,
    slopes,
)

import convt
from convt import tuning
from convt._base import activation as _activation
from convt._plan import measure as _measure
from convt.algorithms import onednn

ROWS = {name: [None if name == "none" else name] for name in _activation.ACTIVATIONS} | {
    name: [(name, *numbers) for numbers in rows] for name, rows in PARAMETERS.items()
}
BACKENDS = ("native", "reference", "onednn", "tune", "tune: onednn", "auto, tuned: onednn")
# Of one output, in units of max(1, |y|): of the function in float64 or float32, and of its rounding.
TOLERANCE = {
    each.name: 1e-14 if each.itemsize == 8 else max(2e-6, 1.03 * float(ml_dtypes.finfo(each).eps)) for each in ALL_DTYPES
}


def test_rows_are_activations():
    assert all(_activation.parse(row)[0] == name for name, rows in ROWS.items() for row in rows)


def test_slopes_are_those_of_the_functions():
    found = {each: slopes(each) for each in (None, "tanh", "hard_swish", ("elu", 2.5), ("leaky_relu", -2), ("clip", 2, 2))}
    wanted = [(1, 1), (0, 1), (-0.5, 1.5), (0, 2.5), (-2, 1), (0, 0)]
    np.testing.assert_allclose(list(found.values()), wanted, atol=0.01)


@needs_checkout
def test_the_codes_are_those_of_the_kernels():
    codes, named = codes_of_activations(), {"relu": "CLIP", "leaky_relu": "LEAKY"}
    assert {name: each.code for name, each in _activation.ACTIVATIONS.items()} == {
        name: codes[named.get(name, name.upper())] for name in _activation.ACTIVATIONS
    }
    assert max(codes.values()) == max(each.code for each in _activation.ACTIVATIONS.values())


@pytest.fixture
def fresh_results():
    """Remove the results of "tune" before and after a test."""
    tuning.clear()
    yield
    tuning.clear()


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
    if backend == "onednn" and not onednn_has(dtype):
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
        assert op.plan(data.shape).backend == ("onednn" if onednn_has(dtype) else "native")
    want = case.expected(data, filter, bias)
    for got in (op(data), op(data), *([run(case, data, filter, bias, backend=backend)] if backend != "tune" else [])):
        close(got, want, dtype)
    sums = replace(case, activation=None).expected(data, filter, bias).astype(case.numpy_dtype).astype(np.float64)
    close(op(data, add=np.full(case.out_shape, -1.5, case.numpy_dtype)), activate(activation, sums - 1.5), dtype)


def close(got, want, dtype):
    """Assert that each output is right, to an error relative to itself or to 1."""
    error = np.abs(got.astype(np.float64) - want) / np.maximum(1, np.abs(want))
    assert error.max() <= TOLERANCE[dtype]
