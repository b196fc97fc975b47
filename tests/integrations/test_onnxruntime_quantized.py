"""Tests of quantized weights in ONNX Runtime's session: weights that DequantizeLinear makes are dequantized once."""

import numpy as np
import pytest
from onnx_models import TensorProto, conv, helper, model_of, norm, onnxruntime, op, outcome, plain, same, weights

from convt.onnxruntime import InferenceSession

X = weights(1, 6, 5, 4)
RNG = np.random.default_rng(1)


def quantized(dtype, shape):
    limits = np.iinfo(dtype)
    most = min(limits.max, 1 << 20)
    return RNG.integers(max(limits.min, -most), most, shape, dtype, endpoint=True)


def dequantize(source, output, scale="S", zero=None, **attributes):
    return op("DequantizeLinear", [source, scale, *([zero] if zero else [])], output, **attributes)


def constants(dtype=np.int8, channels=None, zero=True, shape=(6, 8, 3, 3)):
    size = () if channels is None else (channels,)
    found = {"Q": quantized(dtype, shape), "S": RNG.uniform(0.5, 2, size).astype(np.float32) / np.iinfo(dtype).max}
    if zero:
        found["Z"] = np.zeros(size, dtype) if dtype == np.int32 else quantized(dtype, size)
    return {name: np.asarray(value) for name, value in found.items()}


def served(model, feed=None):
    """Check a model against ONNX Runtime, and return the types of the nodes that convt computes as one, with packed weights."""
    session = same(model, feed or {"X": X})
    assert len(session.report.packed) == 1, session.report
    (node,) = session.nodes.values()
    return [each.op_type for each in node.group.originals]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32])
@pytest.mark.parametrize("axis", [None, 0, 1, -3, 2])
def test_dequantized_weights_are_packed_once(dtype, axis):
    shape = (6, 8, 3, 3)
    given = constants(dtype, None if axis is None else shape[axis], shape=shape)
    nodes = [dequantize("Q", "W", zero="Z", **({} if axis is None else {"axis": axis})), conv(strides=[2, 2])]
    assert served(model_of(nodes, {"X": X.shape}, constants=given, opset=21)) == ["DequantizeLinear", "ConvTranspose"]


def test_bias_batch_norm_and_activation_are_fused():
    given = constants(channels=8) | {"QB": quantized(np.int32, 8), "SB": np.float32(1e-6)}
    node, tensors = norm("c", "n", 8)
    nodes = [dequantize("QB", "B", "SB"), dequantize("Q", "W", zero="Z"), conv(("X", "W", "B"), "c"), node]
    nodes.append(op("Relu", ["n"], "Y"))
    assert served(model_of(nodes, {"X": X.shape}, constants=given | tensors))[-1] == "Relu"


def test_two_nodes_of_one_quantized_filter():
    nodes = [dequantize("Q", "W", zero="Z"), conv(output="a"), conv(output="b", strides=[2, 2])]
    nodes.append(op("Concat", ["W", "W"], "Y", axis=0))
    model = model_of(nodes, {"X": X.shape}, ("a", "b", "Y"), constants())
    session = same(model, {"X": X}, 2)
    assert len(session.report.packed) == 2


@pytest.mark.parametrize("quantized_weights", [False, True])
def test_nodes_with_quantized_data_are_left_to_onnx_runtime(quantized_weights):
    """Check a node between DequantizeLinear and QuantizeLinear, of which ONNX Runtime quantizes the weights, and another."""
    given = constants(zero=False) | {"QX": np.uint8(3), "SX": np.float32(0.1), "V": weights(8, 8, 2, 2)}
    if not quantized_weights:
        given["W"] = given["Q"] * given["S"]
    nodes = [
        op("QuantizeLinear", ["X", "SX", "QX"], "x8"), dequantize("x8", "x", "SX", "QX"),
        *([dequantize("Q", "W")] if quantized_weights else []), conv(("x", "W"), "y"),
        op("QuantizeLinear", ["y", "SX", "QX"], "y8"), dequantize("y8", "z", "SX", "QX"),
        op("Relu", ["z"], "r"), conv(("r", "V"), "Y"),
    ]  # fmt: skip
    session = same(model_of(nodes, {"X": X.shape}, constants=given), {"X": X})
    assert session.report.kept == {"y": "ONNX Runtime may quantize a node whose data comes from DequantizeLinear"}


@pytest.mark.parametrize("why", ["overridable", "computed scale", "float16"])
def test_other_quantized_weights_are_dequantized_by_onnx_runtime(why):
    given, inputs, nodes = constants(), {"X": X.shape}, []
    dtype = TensorProto.FLOAT
    if why == "computed scale":
        given["S0"] = given.pop("S")
        nodes = [op("Abs", ["S0"], "S")]
    if why == "float16":
        dtype, given["S"] = TensorProto.FLOAT16, given["S"].astype(np.float16)
    nodes += [dequantize("Q", "W", zero="Z"), conv()]
    replaceable = "S" if why == "overridable" else ""
    model = model_of(nodes, inputs, constants=given, opset=19, dtype=dtype, replaceable=replaceable)
    x = X.astype(helper.tensor_dtype_to_np_dtype(dtype))
    session = InferenceSession(model)
    (got,), (want,) = session.run(None, {"X": x}), plain(model).run(None, {"X": x})
    np.testing.assert_allclose(got, want, rtol=1e-2 if why == "float16" else 1e-4, atol=1e-2 if why == "float16" else 1e-4)
    if why == "overridable":
        assert not session.report.packed
        (got,) = session.run(None, {"X": x, "S": np.asarray(2 * given["S"])})
        np.testing.assert_allclose(got, 2 * want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("why", ["int16 before opset 21", "axis before opset 13", "zero point of int32"])
def test_nodes_outside_the_specification_are_left_to_onnx_runtime(why):
    given, attributes, opset = constants(), {}, 19
    if why == "int16 before opset 21":
        given = constants(np.int16)
    elif why == "axis before opset 13":
        attributes, opset = {"axis": 1}, 12
    else:
        given = constants(np.int32) | {"Z": np.int32(3)}
    model = model_of([dequantize("Q", "W", zero="Z", **attributes), conv()], {"X": X.shape}, constants=given, opset=opset)
    kinds = onnxruntime.InferenceSession, InferenceSession
    outcomes = [outcome(lambda kind: kind(model.SerializeToString()).run(None, {"X": X})[0], kind) for kind in kinds]
    if isinstance(outcomes[0], tuple):
        assert outcomes[0][0] is outcomes[1][0], outcomes
    else:  # some versions of ONNX Runtime accept a zero point of int32
        assert why == "zero point of int32"
        np.testing.assert_allclose(outcomes[1], outcomes[0], rtol=1e-4, atol=1e-5)
