"""Tests of operators with packed weights: `update`, and the operators by ONNX's and OpenVINO's rules."""

import pickle

import numpy as np
import pytest
from cases import ALGORITHMS, NCX_ONLY, meanwhile

import convt
import convt.onnx
import convt.openvino
from convt.algorithms import name_of

f32 = np.float32
FORMATS = {"XIO": (4, 3, 6, 8), "OIX": (8, 6, 4, 3), "IOX": (6, 8, 4, 3), "XOI": (4, 3, 8, 6), "GIOX": (2, 3, 8, 4, 3)}


def rand(shape, seed=0, dtype=f32):
    return np.random.default_rng(seed).standard_normal(shape, f32).astype(dtype)


@pytest.mark.parametrize("filter_format", FORMATS)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_updated_weights_are_used_and_plans_are_kept(filter_format, bias):
    shape = FORMATS[filter_format]
    keywords = {"strides": (2, 3), "filter_format": filter_format, "activation": "relu"}
    co = 16 if filter_format == "GIOX" else 8
    biases = [rand(co, seed) if bias else None for seed in (2, 3)]
    op = convt.ConvTranspose(rand(shape, 0), biases[0], **keywords)
    inputs = [rand((1, 5, 7, 6), 4), rand((2, 9, 3, 6), 5)]
    for x in inputs:
        op(x)
    plans = [op._plans.calls.entries[key].plan for key in op._plans.calls.entries]
    new, new_bias = rand(shape, 1), biases[1]
    assert op.update(new, new_bias) is None
    assert [each.plan for each in op._plans.calls.entries.values()] == plans
    wanted = [convt.ConvTranspose(new, new_bias, **keywords)(x) for x in inputs]
    new[...] = np.nan  # it was copied
    for x, want in zip(inputs, wanted, strict=True):
        assert op(x).tobytes() == want.tobytes()
        assert op.plan(x.shape).packed_bytes > 0
    again = pickle.loads(pickle.dumps(op))
    assert again(inputs[0]).tobytes() == wanted[0].tobytes()
    again.update(rand(shape, 0), biases[0])
    op.update(rand(shape, 0), biases[0])
    assert again(inputs[0]).tobytes() == op(inputs[0]).tobytes() != wanted[0].tobytes()


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "auto"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_update_of_every_algorithm(algorithm, dtype):
    groups = 16 if algorithm == "depthwise:vectors" else 1
    shape = (3, 3, 16, 1) if groups > 1 else (3, 3, 16, 16)
    planes = name_of(algorithm) in NCX_ONLY
    keywords = {"strides": 3 if planes else 2, "groups": groups, "algorithm": algorithm}
    keywords["data_format"] = "NCX" if planes else "NXC"
    x = rand((1, 16, 6, 5) if planes else (1, 6, 5, 16), dtype=dtype)
    try:
        op = convt.ConvTranspose(rand(shape, 1, dtype), rand(16, 2, dtype), **keywords)
        op(x)
    except ValueError as error:
        assert "unavailable" in str(error)
        pytest.skip(str(error))
    new = rand(shape, 3, dtype), rand(16, 4, dtype)
    op.update(*new)
    assert op(x).tobytes() == convt.ConvTranspose(*new, **keywords)(x).tobytes()


@pytest.mark.parametrize("backend", ["reference", "tune", "onednn"])
def test_update_of_other_backends(backend):
    w, x = rand((3, 3, 16, 16), 1), rand((1, 6, 5, 16))
    try:
        op = convt.ConvTranspose(w, strides=2, backend=backend)
    except convt.BackendUnavailableError as error:
        pytest.skip(str(error))
    want = op(x)
    op.update(2 * w)
    np.testing.assert_allclose(op(x), 2 * want, rtol=1e-5, atol=1e-5)


def test_update_with_weights_that_are_not_finite():
    x, w = rand((1, 8, 9, 16)), rand((4, 4, 16, 16), 1)
    op = convt.ConvTranspose(w, strides=2, pads_begin=1, pads_end=1)
    want = op(x)
    bad = w.copy()
    bad[1, 2, 3, 4] = np.inf
    op.update(bad)
    np.testing.assert_array_equal(
        np.isfinite(op(x)), np.isfinite(convt.conv_transpose(x, bad, strides=2, pads_begin=1, pads_end=1, backend="reference"))
    )
    op.update(w)
    assert op(x).tobytes() == want.tobytes()


@pytest.mark.parametrize(
    ("algorithm", "sizes", "kernel", "channels", "pads", "at"),
    [("direct", (37, 23), (3, 5), (128, 16), 0, (1, 4, 86, 0)), ("winograd", (31, 11), (5, 2), (16, 64), 1, (1, 0, 10, 18))],
)
def test_plans_of_weights_that_are_packed_later_are_checked(algorithm, sizes, kernel, channels, pads, at):
    """Check an update while no weights are packed, with two layouts of one plan that does not support the new weights."""
    keywords = {"strides": 2, "pads_begin": pads, "pads_end": pads}
    x, w = rand((1, *sizes, channels[0])), rand((*kernel, *channels), 1)
    other = np.lib.stride_tricks.as_strided(x, strides=(2 * x.strides[0], *x.strides[1:]))  # the batch is 1
    op = convt.ConvTranspose(w, algorithm=algorithm, **keywords)
    for data in (x, other):
        op(data)
    op._plans.weights.clear()
    w[at] = np.inf
    op.update(w)
    want = convt.conv_transpose(x, w, backend="reference", **keywords)
    for data in (x, other):
        np.testing.assert_array_equal(np.isfinite(op(data)), np.isfinite(want))


def test_update_fills_outputs_without_products():
    x, w = rand((1, 4, 4)), rand((1, 4, 3), 1)
    op = convt.ConvTranspose(w, np.array([1, 2, 3], f32), strides=3)
    assert op(x)[0, 1].tolist() == [1, 2, 3]
    op.update(w, np.array([4, 5, 6], f32))
    assert op(x)[0, 1].tolist() == [4, 5, 6]


def test_errors_of_update_leave_the_weights():
    x, w = rand((1, 4, 4, 6)), rand((3, 3, 6, 8), 1)
    plain, biased = convt.ConvTranspose(w), convt.ConvTranspose(w, rand(8, 2))
    wanted = plain(x), biased(x)
    for op, arguments, error, match in [
        (plain, (w.astype(np.float64),), TypeError, "filter: got dtype float64, wanted float32, the operator's"),
        (plain, (w.transpose(0, 1, 3, 2),), ValueError, r"filter: got shape \(3, 3, 8, 6\), wanted \(3, 3, 6, 8\)"),
        (plain, (w, rand(8)), ValueError, "bias: got an array, wanted None, because the operator has no bias"),
        (biased, (w,), ValueError, "bias: got None, wanted an array, because the operator has a bias"),
        (biased, (w, rand(7)), ValueError, r"bias: got shape \(7,\), wanted \(8,\)"),
        (biased, (w, rand(8, 0, np.float64)), TypeError, "bias: got dtype float64"),
        (plain, ("no",), TypeError, "filter: got str, wanted an array"),
    ]:
        with pytest.raises(error, match=match):
            op.update(*arguments)
    assert plain(x).tobytes() == wanted[0].tobytes() and biased(x).tobytes() == wanted[1].tobytes()


def test_calls_beside_updates_use_one_set_of_weights():
    """Check that each call beside updates uses the filter and the bias of one update, also where outputs have no products."""
    x = np.ones((1, 40, 8, 16), f32)
    sets = [(np.full((2, 2, 16, 16), n, f32), np.full(16, 1000 * n, f32)) for n in range(1, 4)]
    keywords = {"strides": (3, 2)}  # every third row has no products
    wanted = {convt.ConvTranspose(*each, **keywords)(x).tobytes() for each in sets}
    assert len(wanted) == 3
    op = convt.ConvTranspose(*sets[0], **keywords)

    def call():
        assert op(x).tobytes() in wanted

    with meanwhile(call, 2):
        for n in range(300):
            op.update(*sets[n % 3])


def test_update_packs_only_what_is_kept():
    op = convt.ConvTranspose(rand((4, 4, 64, 64)), strides=2)
    op.update(rand((4, 4, 64, 64), 1))
    assert op._plans.weights.bytes == 0 and not op._plans.calls.entries
    op(rand((1, 8, 8, 64)))
    kept = op._plans.weights.bytes
    op.update(rand((4, 4, 64, 64), 2))
    assert op._plans.weights.bytes == kept > 0


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"output_shape": [17, 19], "strides": [2, 2]},
        {"group": 2, "dilations": [2, 1], "auto_pad": "VALID"},
    ],
    ids=str,
)
def test_onnx_operator(keywords):
    groups = keywords.get("group", 1)
    W, B = rand((6, 8 // groups, 3, 3), 1), rand(8, 2)
    op = convt.onnx.ConvTransposeOperator(W, B, **keywords)
    for shape in ((1, 6, 8, 9), (2, 6, 8, 9)):
        X = rand(shape, 3)
        want = convt.onnx.conv_transpose(X, W, B, **keywords)
        for _ in range(2):
            got = op(X)
            assert got.shape == want.shape == op.output_shape(shape)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    again = pickle.loads(pickle.dumps(op))
    assert type(again) is convt.onnx.ConvTransposeOperator and again(X).tobytes() == got.tobytes()
    op.update(2 * W, 2 * B)
    np.testing.assert_allclose(op(X), 2 * want, rtol=1e-5, atol=1e-5)


def test_names_in_errors_of_the_onnx_operator():
    W = rand((6, 8, 3, 3))
    op = convt.onnx.ConvTransposeOperator(W)
    for call, error, match in [
        (lambda: op(rand((1, 5, 4, 4))), ValueError, "X: got 5 channels"),
        (lambda: op(rand((1, 6, 4, 4), dtype=np.float64)), TypeError, "X: got dtype float64"),
        (lambda: op([1]), TypeError, "X: got list"),
        (lambda: op.update(rand((6, 8, 3, 2))), ValueError, "W: got shape"),
        (lambda: op.update(W, rand(8)), ValueError, "B: got an array, wanted None"),
        (lambda: convt.onnx.ConvTransposeOperator(W, group=4), ValueError, "group: got 4"),
        (lambda: convt.onnx.ConvTransposeOperator(W, opset=0), ValueError, "opset: got 0"),
    ]:
        with pytest.raises(error, match=match):
            call()


PADS = {"strides": [2, 2], "pads_begin": [1, 0], "pads_end": [0, 1], "dilations": [1, 1]}


@pytest.mark.parametrize("auto_pad", [None, "same_upper", "same_lower", "valid"])
@pytest.mark.parametrize("grouped", [False, True], ids=["one group", "groups"])
def test_openvino_operators(auto_pad, grouped):
    module = convt.openvino
    kind = module.GroupConvolutionBackpropData if grouped else module.ConvolutionBackpropData
    function = module.group_convolution_backprop_data if grouped else module.convolution_backprop_data
    w = rand((2, 3, 4, 3, 3) if grouped else (6, 4, 3, 3), 1)
    op = kind(w, auto_pad=auto_pad, **PADS)
    shapes = [(1, 6, 7, 5), (1, 6, 7, 5), (2, 6, 4, 4), (1, 6, 7, 5)]
    for shape, sizes in zip(shapes, [None, (14, 10), np.array([9, 8]), None], strict=True):
        x = rand(shape, 2)
        want = function(x, w, sizes, auto_pad=auto_pad, **PADS)
        for _ in range(2):
            got = op(x, output_shape=sizes)
            assert got.shape == want.shape == op.output_shape(shape, sizes)
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        out = np.empty_like(want)
        assert op(x, out, output_shape=sizes) is out and out.tobytes() == got.tobytes()
        assert op.plan(shape, sizes).backend
    again = pickle.loads(pickle.dumps(op))
    assert type(again) is kind and again(x).tobytes() == got.tobytes()
    op.update(-w)
    np.testing.assert_allclose(op(x), -want, rtol=1e-5, atol=1e-5)


def test_weights_of_an_openvino_operator_are_packed_once():
    op = convt.openvino.ConvolutionBackpropData(rand((64, 64, 4, 4)), **PADS)
    packed = []
    for _ in range(2):
        for size in (None, (17, 18), (18, 18), (19, 18)):
            op(rand((1, 64, 8, 8)), output_shape=size)
        packed.append([form.weights() for form in op._plans._forms.values()])
    assert packed[0] and [*map(id, packed[0])] == [*map(id, packed[1])]


def test_errors_of_openvino_operators():
    op = convt.openvino.ConvolutionBackpropData(rand((6, 4, 3, 3)), **PADS)
    x = rand((1, 6, 7, 5))
    for call, error, match in [
        (lambda: op(x, output_shape=[14]), ValueError, "output_shape: got 1 value, wanted 2"),
        (lambda: op(x, output_shape="14"), TypeError, "output_shape"),
        (lambda: op(x[0], output_shape=[14, 10]), ValueError, "data: got rank 3"),
        (lambda: op("x", output_shape=[14, 10]), TypeError, "data: got str"),
        (lambda: op(x, np.empty((1, 4, 14, 11), f32), output_shape=[14, 10]), ValueError, "out: got shape"),
        (lambda: convt.openvino.ConvolutionBackpropData(rand((6, 4, 3, 3)), **PADS, auto_pad="no"), ValueError, "auto_pad"),
        (lambda: convt.openvino.GroupConvolutionBackpropData(rand((6, 4, 3)), **PADS), ValueError, "filter: got rank 3"),
    ]:
        with pytest.raises(error, match=match):
            call()
