"""Tests of convt.onnxruntime: the session that runs ConvTranspose nodes with convt, compared with ONNX Runtime's own session
and convt.onnx. Nodes of random attributes are in test_onnxruntime_differences.py."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from onnx_models import choice, close, conv, info, joined, model_of, norm, onnx, onnxruntime, op, plain, same, sessions, weights

import convt
import convt.onnx
import convt.onnxruntime
from convt.onnxruntime import _node, _provider

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper
X2 = weights(2, 6, 5, 7)


# ------------------------------------------------------------------------------------------------ the operator


@pytest.mark.parametrize("opset", [1, 7, 10, 11, 15, 21, 22])
def test_opsets(opset):
    model = model_of([conv(strides=[2, 2])], {"X": X2.shape}, constants={"W": weights(6, 4, 3, 3)}, opset=opset)
    try:
        plain(model)
    except Exception as error:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} refuses opset {opset}: {error}")
    same(model, {"X": X2})


@pytest.mark.parametrize(
    "dtype, kind",
    [(np.float64, TensorProto.DOUBLE), (np.float16, TensorProto.FLOAT16), (ml_dtypes.bfloat16, TensorProto.BFLOAT16)],
    ids=["float64", "float16", "bfloat16"],
)
def test_dtypes(dtype, kind):
    """Check dtypes that ONNX Runtime does not compute on CPUs. Some versions compute the first two."""
    x, w = X2.astype(dtype), weights(6, 4, 3, 3).astype(dtype)
    cast = [op("Cast", ["X32"], "X", to=kind), conv(output="Z", strides=[2, 2]),
            op("Cast", ["Z"], "Y", to=TensorProto.DOUBLE)]  # fmt: skip
    model = model_of(cast, {}, opset=22)
    model.graph.initializer.append(helper.make_tensor("W", kind, w.shape, w.tobytes(), raw=True))
    model.graph.input.append(info("X32", TensorProto.FLOAT, x.shape))
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    try:
        session = convt.onnxruntime.InferenceSession(model)
    except Exception as error:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} refuses opset 22: {error}")
    assert session.report.packed
    want = convt.onnx.conv_transpose(x, w, strides=[2, 2]).astype(np.float64)
    got = session.run(None, {"X32": x.astype(np.float32)})[0]
    assert abs(got - want).max() <= float(ml_dtypes.finfo(dtype).eps) * 2 * abs(want).max()


# ------------------------------------------------------------------------------------------------ models


def test_weights_behind_constant_and_identity_nodes_are_packed():
    nodes = [
        op("Constant", [], "W0", value=numpy_helper.from_array(weights(6, 4, 3, 3))),
        op("Identity", ["W0"], "W"), conv(output="Z"),
        op("Identity", ["B0"], "B"), conv(("Z", "V", "B")),
    ]  # fmt: skip
    model = model_of(nodes, {"X": X2.shape}, constants={"B0": weights(5), "V": weights(4, 5, 2, 2)})
    assert same(model, {"X": X2}, served=2).report.packed == ("Z", "Y")


# ------------------------------------------------------------------------------------------------ fused nodes


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", ["", "B", "Add", "Add, other way round"])
def test_norm_bias_and_activation_are_computed_together(bias, groups):
    constants = {"W": weights(6, 4 // groups, 3, 3), "B": weights(4), "A": weights(1, 4, 1, 1)}
    nodes, at = [conv(("X", "W", "B") if bias == "B" else ("X", "W"), "c", strides=[2, 2], group=groups)], "c"
    if "Add" in bias:
        nodes.append(op("Add", [at, "A"] if bias == "Add" else ["A", at], "a"))
        at = "a"
    batch_norm, more = norm(at, "n", 4, epsilon=1e-3)
    nodes += [batch_norm, op("Relu", ["n"], "Y")]
    session = same(model_of(nodes, {"X": X2.shape}, constants=constants | more), {"X": X2}, tolerance=3e-5)
    assert joined(session) == (*(["Add"] if "Add" in bias else []), "Relu")
    ((name, operators),) = session.report.fused.items()
    assert f"{name}: fused with {' and '.join(operators)}" in str(session.report)


@pytest.mark.parametrize("follower", ["BatchNormalization", "Add"])
def test_what_is_fused_with_weights_that_a_run_brings(follower):
    node, constants = norm("c", "Y", 4)
    shapes = {"X": X2.shape, "W": (6, 4, 3, 3)}
    if follower == "Add":
        node, constants, shapes["S"] = op("Add", ["c", "S"]), {}, (2, 4, 7, 9)
    session, theirs = sessions(model_of([conv(output="c"), node], shapes, constants=constants))
    assert session.report.unpacked == ("c",) and session.report.fused == {"c": (follower,)}
    for _ in range(3):
        close(session, theirs, {name: weights(*shape) for name, shape in shapes.items()})


def test_statistics_that_come_later_than_the_convolution():
    """Check a batch norm whose statistics are computed after the convolution: the fused node moves behind them."""
    batch_norm, constants = norm("c", "Y", 4)
    batch_norm.input[3] = "late"
    nodes = [conv(output="c"), op("Identity", ["Y_mean"], "late"), batch_norm]
    constants["W"] = weights(6, 4, 3, 3)
    same(model_of(nodes, {"X": X2.shape}, constants=constants), {"X": X2}, tolerance=3e-5)


def _unjoined():
    w, relu, add = {"W": weights(6, 4, 3, 3)}, op("Relu", ["c"]), op("Add", ["c", "A"])
    yield "read twice", [relu, op("Neg", ["c"], "Z")], w, ("Y", "Z")
    yield "an output", [relu], w, ("c", "Y")
    yield "tanh's gelu", [op("Gelu", ["c"], approximate="tanh")], w, ("Y",)
    yield "another activation", [op("Softplus", ["c"])], w, ("Y",)
    yield "no bias, by shape", [add], w | {"A": weights(1, 1, 7, 1)}, ("Y",)
    yield "a second bias", [add], w | {"B": weights(4), "A": weights(4, 1, 1)}, ("Y",)
    yield "a sum with itself", [op("Add", ["c", "c"])], w, ("Y",)
    for dims in ((9,), (1, 1, 7, 9), (2, 4, 1, 1)):
        yield f"no scale, by shape {dims}", [op("Mul", ["c", "A"])], w | {"A": weights(*dims)}, ("Y",)
    batch_norm, constants = norm("c", "Y", 4)
    computed = [op("ReduceMax", ["X"], "x", keepdims=0), *(op("Add", [name, "x"], f"{name}2") for name in constants)]
    batch_norm.input[1:] = [f"{name}2" for name in constants]
    yield "statistics of a run", [*computed, batch_norm], w | constants, ("Y",)
    yield "slopes of a run", [op("ReduceMax", ["X"], "P"), op("PRelu", ["c", "P"])], w, ("Y",)


@pytest.mark.parametrize("case", list(_unjoined()), ids=lambda case: case[0])
def test_what_is_not_computed_together(case):
    _, followers, constants, outputs = case
    nodes = [conv(("X", "W", "B") if "B" in constants else ("X", "W"), "c"), *followers]
    model = model_of(nodes, {"X": X2.shape}, outputs, constants, opset=20)
    assert same(model, {"X": X2}, tolerance=3e-5).report.fused == {}


def test_a_norm_before_a_node_is_not_computed_with_it():
    batch_norm, constants = norm("X", "n", 6)
    model = model_of([batch_norm, conv(("n", "W"))], {"X": X2.shape}, constants=constants | {"W": weights(6, 4, 3, 3)})
    assert same(model, {"X": X2}).report.fused == {}


# ------------------------------------------------------------------------------------------------ sessions


def _simple(size=6):
    return model_of([conv(strides=[2, 2])], {"X": ("N", 6, "H", "V")}, constants={"W": weights(6, size, 3, 3)})


def test_nothing_is_copied(monkeypatch):
    seen = []
    compute = _node.Node.compute
    monkeypatch.setattr(_node.Node, "compute", lambda self, inputs, out: (
        seen.append((inputs["X"].ctypes.data, out.ctypes.data)), compute(self, inputs, out)))  # fmt: skip
    session = convt.onnxruntime.InferenceSession(_simple())
    x = onnxruntime.OrtValue.ortvalue_from_numpy(X2)
    y = onnxruntime.OrtValue.ortvalue_from_shape_and_type((2, 6, 11, 15), np.float32)
    binding = session.io_binding()
    binding.bind_ortvalue_input("X", x)
    binding.bind_ortvalue_output("Y", y)
    session.run_with_iobinding(binding)
    assert seen == [(x.data_ptr(), y.data_ptr())]
    np.testing.assert_array_equal(y.numpy(), session.run(None, {"X": X2})[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("data, filter, attributes, slopes", [
    ((1, 96, 24, 24), (96, 64, 4, 4), {"pads": [1, 1, 1, 1]}, 0), ((4, 512, 4, 4), (512, 96, 4, 4), {"pads": [1, 1, 1, 1]}, 0),
    (X2.shape, (6, 1, 3, 3), {"group": 6, "output_padding": [1, 1]}, 0), ((3, 4, 40, 41), (4, 37, 3, 3), {}, 37),
])  # fmt: skip
def test_threads(data, filter, attributes, slopes, threads):
    """Check that threads share nodes, and the planes of a PRelu with a slope for each channel."""
    x, constants = weights(*data), {"W": weights(*filter)} | ({"P": weights(slopes, 1, 1)} if slopes else {})
    nodes = [conv(output="Z", strides=[2, 2], **attributes), op("PRelu", ["Z", "P"]) if slopes else op("Relu", ["Z"])]
    session, theirs = sessions(model_of(nodes, {"X": x.shape}, constants=constants), intra_op_num_threads=threads)
    assert session.nodes["Z"].threads == threads
    want = theirs.run(None, {"X": x})[0]
    for _ in range(3):
        assert abs(session.run(None, {"X": x})[0] - want).max() <= 2e-5 * abs(want).max()


def test_nodes_side_by_side():
    nodes = [conv(("X", f"W{n}"), f"c{n}", strides=[2, 2]) for n in range(4)] + [op("Sum", [f"c{n}" for n in range(4)], "Y")]
    model = model_of(nodes, {"X": X2.shape}, constants={f"W{n}": weights(6, 4, 3, 3) for n in range(4)})
    session, theirs = sessions(model, execution_mode=onnxruntime.ExecutionMode.ORT_PARALLEL, inter_op_num_threads=4)
    assert len(session.report.packed) == 4
    for _ in range(20):
        close(session, theirs, {"X": X2})
    binding = session.io_binding()
    binding.bind_cpu_input("X", X2)
    binding.bind_output("Y")
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], theirs.run(None, {"X": X2})[0], rtol=1e-4, atol=1e-5)


def test_a_session_gives_back_its_nodes():
    session = convt.onnxruntime.InferenceSession(_simple())
    session.run(None, {"X": X2})
    node = weakref.ref(session.nodes["Y"])
    del session
    gc.collect()
    assert node() is None and not _provider.sessions


# ------------------------------------------------------------------------------------------------ refused arguments


@pytest.mark.parametrize("constant", [True, False], ids=["packed", "weights of the run"])
@pytest.mark.parametrize("precision", [None, "highest", "high", "medium"])
def test_precision_reaches_the_nodes(precision, constant):
    """Check that the precision reaches all nodes, those of subgraphs and those with a fused activation included: results have
    the bits of convt at this precision."""
    x, filter = weights(1, 64, 9, 9), weights(64, 32, 4, 4)
    want = np.maximum(convt.onnx.conv_transpose(x, filter, strides=[2, 2], precision=precision), 0)
    nodes = [conv(output="Z", strides=[2, 2]), op("Relu", ["Z"], "Y")]
    inputs = {"X": x.shape} | ({} if constant else {"W": filter.shape})
    model = model_of(nodes, inputs, constants={"W": filter} if constant else ())
    session = convt.onnxruntime.InferenceSession(model, precision=precision)
    (node,) = session.nodes.values()
    assert node.attributes["precision"] == precision
    got = session.run(None, {"X": x} | ({} if constant else {"W": filter}))[0]
    if constant:
        words = {"data_format": "NCX", "filter_format": "IOX", "activation": "relu", "precision": precision}
        operator = convt.ConvTranspose(filter, strides=2, **words)
        assert node.operator.plan(x.shape).algorithm == operator.plan(x.shape).algorithm
        want = operator(x)
    assert got.tobytes() == want.tobytes()
    branch = [conv(output="Z", strides=[2, 2])]
    model = model_of([choice(branch, branch)], {"X": x.shape}, constants={"W": filter})
    session = convt.onnxruntime.InferenceSession(model, precision=precision)
    assert [each.attributes["precision"] for each in session.nodes.values()] == [precision] * 2


def test_what_is_no_precision():
    with pytest.raises(ValueError, match="precision: got 'tf32', wanted one of highest, high, medium"):
        convt.onnxruntime.InferenceSession(_simple(), precision="tf32")
