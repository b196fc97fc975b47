"""Tests of random ConvTranspose nodes in both sessions: convt's session must have the shapes, numbers and errors of ONNX
Runtime, whichever of them computes a node."""

import math
import re

import numpy as np
import pytest
from onnx_models import FUSED_ACTIVATIONS, VERSION, TensorProto, conv, helper, info, model_of, onnx, onnxruntime, plain

import convt.onnx
import convt.onnxruntime


def _node(rng):
    """Return a node's attributes and the shapes of X, W and B. Many are invalid, or mean something else in ONNX's text."""

    def some(share, low, high, count=None):
        return [int(n) for n in rng.integers(low, high, count or rank)] if rng.random() < share else None

    rank, groups = int(rng.choice([1, 1, 2, 3])), int(rng.choice([1, 1, 2]))
    pixels, kernel = some(1, 1, 6), some(1, 1, 5)
    found = {
        "strides": some(0.8, 1, 5), "dilations": some(0.4, 1, 4), "output_padding": some(0.4, 0, 4),
        "pads": some(0.4, rng.choice([-1, 0, 0, 0]), 3, 2 * rank), "group": groups if groups > 1 else None,
        "kernel_shape": list(kernel) if rng.random() < 0.3 else None,
    }  # fmt: skip
    if rng.random() < 0.5:
        found["auto_pad"] = str(rng.choice(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "", "same_upper"]))
    if rng.random() < 0.3:
        strides, dilations, paddings = (found[name] or [n] * rank for name, n in
                                        (("strides", 1), ("dilations", 1), ("output_padding", 0)))  # fmt: skip
        axes = zip(strides, pixels, kernel, dilations, paddings, strict=True)
        full = [s * (n - 1) + (k - 1) * d + 1 + p for s, n, k, d, p in axes]
        found["output_shape"] = [max(int(size + rng.integers(-3, 4)), int(rng.integers(-1, 2))) for size in full]
    x, w = [2, 2 * groups, *pixels], [2 * groups, int(rng.integers(1, 3)), *kernel]
    b = [w[1] * groups] if rng.random() < 0.5 else None
    lists = [name for name, value in found.items() if isinstance(value, list)]
    mistake = rng.choice(["none"] * 6 + ["length", "empty", "output", "kernel", "channels", "bias", "batch"])
    if mistake == "length" and lists:
        found[rng.choice(lists)].append(1)
    elif mistake == "empty" and lists:
        found[rng.choice(lists)] = []
    elif mistake == "output":
        found["output_shape"] = [1, w[1] * groups, *(found.get("output_shape") or pixels)]
    elif mistake == "kernel":
        found["kernel_shape"] = [k + 1 for k in kernel]
    elif mistake == "channels":
        w[0] += 1
    elif mistake == "bias" and b:
        b[0] += 1
    elif mistake == "batch":
        x[0] = 0
    return {name: value for name, value in found.items() if value is not None}, x, w, b


def _model(rng):
    """Return a model of a random node followed by a Relu. Weights are constants, or inputs with or without known sizes."""
    attributes, *shapes = _node(rng)
    named = zip("XWB", shapes, strict=True)
    arrays = {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in named if shape}
    node = conv([*arrays], "Z")
    for name, value in attributes.items():
        kind = onnx.AttributeProto.INTS if value == [] else None
        node.attribute.append(helper.make_attribute(name, value, attr_type=kind))
    constants = {name: arrays[name] for name in arrays if name != "X"} if rng.random() < 0.6 else {}
    known = rng.random() < 0.5
    inputs = {name: value.shape if known else None for name, value in arrays.items() if name not in constants}
    nodes = [node, helper.make_node("Relu", ["Z"], ["Y"])]
    model = model_of(nodes, inputs, constants=constants, opset=int(rng.choice([7, 11, 17])))
    return model, {name: arrays[name] for name in inputs}, attributes


def _outcome(cls, model, feed):
    """Return (output, error, session) of a model in a session of the class."""
    options, session = onnxruntime.SessionOptions(), None
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        session = cls(model.SerializeToString(), options, ["CPUExecutionProvider"])
        return session.run(None, feed)[0], None, session
    except Exception as error:
        return None, error, session


@pytest.mark.skipif(VERSION < (1, 28), reason="older versions read beyond the input of some nodes")
@pytest.mark.parametrize("seed", range(8))
def test_random_nodes(seed):
    rng, served, kept = np.random.default_rng(seed), 0, set()
    for _ in range(60):
        model, feed, attributes = _model(rng)
        want, refusal, _ = _outcome(onnxruntime.InferenceSession, model, feed)
        got, error, session = _outcome(convt.onnxruntime.InferenceSession, model, feed)
        about = f"{attributes}, {[(name, value.shape) for name, value in feed.items()]}: {refusal!r}, convt {error!r}"
        assert (error is None) == (refusal is None), about
        if want is not None:
            assert got.shape == want.shape and np.array_equal(got, want), about
        if session is not None:
            assert session.nodes or session.report.kept, about  # each node that is not served has a reason
            served += len(session.nodes)
            kept.update(session.report.kept.values())
    assert served > 10 and len(kept) > 4


@pytest.mark.parametrize(("attributes", "why"), [
    ({"strides": [4], "auto_pad": "SAME_UPPER"}, "its kernel is smaller than its stride, where .*'s SAME_UPPER differs"),
    ({"strides": [4], "auto_pad": "SAME_LOWER"}, "its kernel is smaller than its stride, where .*'s SAME_LOWER differs"),
    ({"pads": [-1, 1]}, "it has a negative pad"),
    ({"strides": [2], "output_shape": [-1]}, r"its output_shape is \[-1\], which the ONNX specification does not define"),
    ({"output_shape": [1, 4, 7]}, r"its output_shape is \[1, 4, 7\]"),
])  # fmt: skip
@pytest.mark.parametrize("constant", [True, False])
def test_what_onnx_runtime_reads_otherwise_is_left_to_it(attributes, why, constant):
    """Check that nodes that ONNX Runtime reads in another way are left to it, and that other nodes of the model are served."""
    w = np.ones((4, 4, 3), np.float32)
    nodes = [conv(("X", "W"), "Z", name="first", **attributes), conv(("Z", "V"), name="second", strides=[2])]
    inputs = {"X": None} | ({} if constant else {"W": w.shape})  # ONNX Runtime refuses some when it loads them with this shape
    model = model_of(nodes, inputs, constants={"V": w} | ({"W": w} if constant else {}))
    feed = {"X": np.ones((1, 4, 5), np.float32)} | ({} if constant else {"W": w})
    session = convt.onnxruntime.InferenceSession(model)
    got, want = (each.run(None, feed)[0] for each in (session, plain(model)))
    assert "second" in session.nodes and list(session.report.kept) == ["first"]  # before the run, if the attributes decide
    assert re.search(why, session.report.kept["first"])
    assert got.shape == want.shape and np.allclose(got, want, rtol=1e-5)


def test_a_size_that_the_model_declares():
    """Check 5 pixels, kernel 3 and stride 4: for SAME, ONNX's text gives 20, ONNX Runtime and shape inference give 19."""
    w = np.ones((2, 2, 3), np.float32)
    model = model_of([conv(strides=[4], auto_pad="SAME_UPPER")], {"X": (1, 2, 5)}, constants={"W": w})
    declared = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape.dim[2].dim_value
    x = np.ones((1, 2, 5), np.float32)
    assert convt.onnxruntime.InferenceSession(model).run(None, {"X": x})[0].shape == (1, 2, declared) == (1, 2, 19)
    assert convt.onnx.conv_transpose(x, w, strides=4, auto_pad="SAME_UPPER").shape == (1, 2, 20)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("pixels", "pads"), [(0, 0), (1, 1), (1, 2), (3, 2)])
def test_few_pixels(pixels, pads, bias):
    if not pixels and VERSION < (1, 31):
        pytest.skip("older versions crash")
    constants = {"W": np.ones((2, 2, 4), np.float32)} | ({"B": np.array([1, 2], np.float32)} if bias else {})
    model = model_of([conv(("X", *constants), strides=[2], pads=[pads, pads])], {"X": (1, 2, "L")}, constants=constants)
    feed = {"X": np.ones((1, 2, pixels), np.float32)}
    want, refusal, _ = _outcome(onnxruntime.InferenceSession, model, feed)
    got, error, session = _outcome(convt.onnxruntime.InferenceSession, model, feed)
    assert (error is None) == (refusal is None) == ((pixels, pads) != (1, 2)) and session.nodes
    if want is not None:
        np.testing.assert_array_equal(got, want)


SPECIAL = [
    0.0, -0.0, 1.0, -1.0, 1e-40, -1e-40, 6e-8, -6e-8, 3e38, -3e38, 6e4, -6e4, 20.0, -20.0, 100.0, -100.0,
    math.inf, -math.inf, math.nan,
]  # fmt: skip
KINDS = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.float16: TensorProto.FLOAT16}


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("activation", FUSED_ACTIVATIONS)
def test_special_numbers(activation, dtype):
    """Check that activations of NaN, infinity and numbers near the ends of the range are ONNX Runtime's, fused or not."""
    with np.errstate(over="ignore"):
        x = np.array(SPECIAL * 3, dtype).reshape(1, 1, -1)  # some in whole vectors, the rest behind them
    nodes = [conv(output="Z"), helper.make_node(activation, ["Z"], ["Y"], **FUSED_ACTIVATIONS[activation])]
    model = model_of(nodes, {}, constants={"W": np.ones((1, 1, 1), dtype)}, opset=20, dtype=KINDS[dtype])
    model.graph.input.append(info("X", KINDS[dtype], x.shape))
    try:
        want = plain(model).run(None, {"X": x})[0]
    except Exception as error:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} has no {activation} of {dtype.__name__}: {error}")
    session = convt.onnxruntime.InferenceSession(model)
    assert session.report.fused == {"Z": (activation,)}
    got = session.run(None, {"X": x})[0]
    np.testing.assert_allclose(got, want, rtol=2 * np.finfo(dtype).eps, atol=3e-7 if dtype != np.float16 else 1e-3)
