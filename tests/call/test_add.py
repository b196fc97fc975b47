"""Tests of ``add``: an array that is added to the output before the activation."""

import gc

import numpy as np
import pytest
from cases import DTYPES

import convt
import convt.onnx
import convt.openvino

RNG = np.random.default_rng(0)
KEYWORDS = {"strides": 2, "pads_begin": 1, "pads_end": 1}


def rand(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(DTYPES[dtype][0])


def arrays(dtype="float32", data_format="NXC"):
    data = rand(2, 7, 6, 5, dtype=dtype) if data_format == "NXC" else rand(2, 5, 7, 6, dtype=dtype)
    return data, rand(3, 3, 5, 8, dtype=dtype), rand(8, dtype=dtype)


def added(plain, add, activation):
    """Return what a call with ``add`` returns, given the result of a call without ``add`` and activation."""
    sums = plain.astype(np.float64) + add
    want = {None: lambda x: x, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}[activation](sums)
    return want.astype(plain.dtype)


@pytest.mark.parametrize("backend", ["native", "onednn", "reference", "auto"])
@pytest.mark.parametrize("activation", [None, "relu", "tanh"])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keywords", [KEYWORDS, {"strides": 4, "output_padding": 3}], ids=["", "outputs that no tap reaches"])
def test_the_array_is_added_before_the_activation(keywords, dtype, data_format, activation, backend):
    data, filter, bias = arrays(dtype, data_format)
    k = dict(keywords, data_format=data_format, backend=backend)
    try:
        op = convt.ConvTranspose(filter, bias, activation=activation, **k)
        plain = convt.ConvTranspose(filter, bias, **k)(data)
    except convt.BackendUnavailableError as error:
        pytest.skip(str(error))
    add = rand(*plain.shape, dtype=dtype)
    kept = add.copy()
    want = added(plain, add, activation).astype(np.float64)
    for _ in range(3):  # repeated calls take another path
        for out in (None, np.empty_like(plain)):
            one_shot = convt.conv_transpose(data, filter, bias, out=out, add=add, activation=activation, **k)
            for got in (one_shot.copy() if out is None else one_shot, op(data, out, add=add)):
                assert out is None or got is out
                np.testing.assert_allclose(got.astype(np.float64), want, rtol=2 * DTYPES[dtype][1], atol=2 * DTYPES[dtype][1])
    assert (add == kept).all()
    assert op(data).dtype == plain.dtype  # a call without `add` still takes none


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_any_layout_of_add_and_out(data_format):
    data, filter, bias = arrays(data_format=data_format)
    op = convt.ConvTranspose(filter, bias, data_format=data_format, activation="relu", **KEYWORDS)
    plain = convt.ConvTranspose(filter, bias, data_format=data_format, **KEYWORDS)(data)
    shape = plain.shape
    wide = rand(*shape[:-1], 2 * shape[-1])
    adds = {
        "contiguous": rand(*shape), "transposed": rand(*shape[::-1]).T, "reversed": rand(*shape)[:, ::-1, ::-1],
        "with gaps": wide[..., ::2], "broadcast": np.broadcast_to(rand(*shape[-1:]), shape),
        "one value": np.broadcast_to(np.float32(3), shape),
        "unaligned": np.frombuffer(b"x" + rand(*shape).tobytes(), np.uint8)[1:].view(np.float32).reshape(shape),
        "swapped bytes": rand(*shape).astype(">f4").astype("f4"),
    }  # fmt: skip
    outs = {
        "none": lambda: None,
        "contiguous": lambda: np.empty(shape, np.float32),
        "Fortran": lambda: np.empty(shape, np.float32, "F"),
        "with gaps": lambda: np.zeros(wide.shape, np.float32)[..., ::2],
        "reversed": lambda: np.empty(shape, np.float32)[::-1, :, ::-1],
    }
    for name, add in adds.items():
        want = added(plain, add, "relu")
        for out in outs.values():
            np.testing.assert_allclose(op(data, out(), add=add), want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_wrong_arrays_are_refused_before_anything_is_written():
    data, filter, bias = arrays()
    op = convt.ConvTranspose(filter, bias, **KEYWORDS)
    shape = op(data).shape
    out = np.full(shape, 7, np.float32)
    wrong = [
        (rand(*shape, dtype="float64"), TypeError, "add: got dtype float64, wanted float32"),
        (rand(*shape[:-1], 1), ValueError, r"add: got shape \(2, 13, 11, 1\), wanted \(2, 13, 11, 8\), the output's"),
        (rand(8), ValueError, "add: got shape"),
        ([1.0], TypeError, "add: got list"),
        (3.0, TypeError, "add: got float"),
        (np.zeros(shape, np.int32), TypeError, "add: got dtype int32"),
        (out, ValueError, "out: got an array that overlaps add in memory"),
        (out[:, ::-1], ValueError, "out: got an array that overlaps add in memory"),
    ]
    for add, error, message in wrong:
        for _ in range(2):
            with pytest.raises(error, match=message):
                op(data, out, add=add)
            with pytest.raises(error, match=message):
                convt.conv_transpose(data, filter, bias, out=out, add=add, **KEYWORDS)
        assert (out == 7).all()


def test_nan_and_infinity_reach_their_output_alone():
    data, filter, bias = arrays()
    op = convt.ConvTranspose(filter, bias, **KEYWORDS)
    add = np.zeros_like(op(data))
    add[0, 1, 2, 3], add[1, 12, 10, 7], add[0, 0, 0, 0] = np.nan, np.inf, -np.inf
    got = op(data, add=add)
    assert np.isnan(got).sum() == 1 and np.isinf(got).sum() == 2
    assert np.isnan(got[0, 1, 2, 3]) and got[1, 12, 10, 7] == np.inf and got[0, 0, 0, 0] == -np.inf
    data[0, 3, 3, 0] = np.nan
    assert np.isnan(op(data, add=add)).sum() > 1


def test_special_sizes():
    filter = rand(3, 3, 5, 8)
    op = convt.ConvTranspose(filter, **KEYWORDS)
    for shape in ((0, 4, 4, 5), (1, 1, 1, 5)):
        add = rand(*op.output_shape(shape))
        assert (op(np.zeros(shape, np.float32), add=add) == add).all()
    large, filter = rand(1, 64, 64, 16), rand(4, 4, 16, 33)  # each thread adds a part
    op = convt.ConvTranspose(filter, activation="tanh", **KEYWORDS)
    add = rand(*op.output_shape(large.shape))
    results = []
    for threads in (1, 2, 3, 7):
        with convt.num_threads(threads):
            results.append(op(large, add=add))
    assert all((each == results[0]).all() for each in results)
    plain = convt.ConvTranspose(filter, **KEYWORDS)(large)
    np.testing.assert_allclose(results[0], added(plain, add, "tanh"), rtol=1e-5, atol=1e-5)


def test_calls_after_an_update_and_after_caches_are_cleared():
    data, filter, bias = arrays()
    op = convt.ConvTranspose(filter, bias, activation="relu", **KEYWORDS)
    add = rand(*op(data).shape)
    op(data, add=add)
    other = rand(*filter.shape)
    op.update(other, bias)
    want = added(convt.ConvTranspose(other, bias, **KEYWORDS)(data), add, "relu")
    for _ in range(3):
        np.testing.assert_allclose(op(data, add=add), want, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(op(data), np.maximum(convt.ConvTranspose(other, bias, **KEYWORDS)(data), 0), rtol=1e-6)
        convt.clear_caches()
        gc.collect()


def test_tune_measures_a_call_that_adds():
    data, filter, bias = arrays()
    op = convt.ConvTranspose(filter, bias, backend="tune", **KEYWORDS)
    plain = convt.ConvTranspose(filter, bias, **KEYWORDS)(data)
    add = rand(*plain.shape)
    for _ in range(2):
        np.testing.assert_allclose(op(data, add=add), plain + add, rtol=1e-4, atol=1e-4)


def test_operators_by_onnx_and_openvino():
    x, w = rand(2, 5, 7, 6), rand(5, 8, 3, 3)
    onnx = convt.onnx.ConvTransposeOperator(w, strides=[2, 2])
    openvino = convt.openvino.ConvolutionBackpropData(w, strides=[2, 2], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1])
    add = rand(*onnx(x).shape)
    np.testing.assert_allclose(onnx(x, add=add), onnx(x) + add, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(openvino(x, add=add), openvino(x) + add, rtol=1e-6, atol=1e-6)
    shaped = openvino(x, output_shape=(13, 12))
    add = rand(*shaped.shape)
    np.testing.assert_allclose(openvino(x, output_shape=(13, 12), add=add), shaped + add, rtol=1e-6, atol=1e-6)
