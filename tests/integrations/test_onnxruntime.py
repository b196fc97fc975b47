"""Tests of convt.onnxruntime: the session that runs ConvTranspose nodes with convt, compared with ONNX Runtime's own session,
ONNX's test cases and convt.onnx."""

import doctest
import gc
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest
from cases import child
from onnx_models import choice, conv, info, joined, model_of, norm, onnx, onnxruntime, op, plain, same, weights

import convt
import convt.onnx
import convt.onnxruntime
from convt.onnxruntime import _node, _provider

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper
X2 = weights(2, 6, 5, 7)


# ------------------------------------------------------------------------------------------------ the operator

PROBLEMS = {
    "plain": (X2, (6, 4, 3, 3), {}),
    "1-D": (weights(2, 6, 9), (6, 4, 4), {"strides": [2], "pads": [1, 0]}),
    "3-D": (weights(1, 3, 4, 5, 3), (3, 5, 2, 3, 4), {"strides": [2, 1, 2], "pads": [0, 1, 1, 1, 0, 1]}),
    "groups": (X2, (6, 2, 4, 4), {"strides": [2, 2], "group": 3}),
    "depthwise": (X2, (6, 1, 3, 3), {"strides": [2, 2], "group": 6, "output_padding": [1, 1]}),
    "dilations": (X2, (6, 4, 3, 2), {"dilations": [2, 3]}),
    "same_upper": (X2, (6, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "same_lower": (X2, (6, 4, 4, 3), {"strides": [3, 2], "auto_pad": "SAME_LOWER"}),
    "valid": (X2, (6, 4, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}),
    "output_shape": (X2, (6, 4, 3, 3), {"strides": [2, 2], "output_shape": [10, 14]}),
    "kernel_shape": (X2, (6, 4, 3, 3), {"kernel_shape": [3, 3]}),
    "large": (weights(1, 96, 24, 24), (96, 64, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "shallow": (weights(4, 512, 4, 4), (512, 96, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
}


@pytest.mark.parametrize("constant", [True, False], ids=["packed", "weights of the run"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name, bias, constant):
    x, shape, attributes = PROBLEMS[name]
    arrays = {"W": weights(*shape)}
    if bias:
        arrays["B"] = weights(shape[1] * attributes.get("group", 1))
    inputs = {"X": x.shape} | ({} if constant else {name: array.shape for name, array in arrays.items()})
    model = model_of([conv(("X", *arrays), **attributes)], inputs, constants=arrays if constant else ())
    session = same(model, {"X": x} | ({} if constant else arrays), tolerance=2e-5)
    assert bool(session.report.packed) == constant


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
    assert abs(got - want).max() <= np.finfo(dtype).eps * 2 * abs(want).max() if dtype != ml_dtypes.bfloat16 else 1e-2


def _cases():
    from onnx.backend.test.case import node

    return [case for case in node.collect_testcases("ConvTranspose") if case.model.graph.node[0].op_type == "ConvTranspose"]


@pytest.mark.filterwarnings("ignore")
def test_onnx_cases():
    tried = 0
    for case in _cases():
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        try:
            plain(model)
        except Exception:  # an opset that is too new for this ONNX Runtime
            continue
        session = convt.onnxruntime.InferenceSession(model)
        assert session.report.unpacked, (case.name, session.report)
        for inputs, outputs in case.data_sets:
            names = [each.name for each in model.graph.input]
            got = session.run(None, dict(zip(names, inputs, strict=True)))
            np.testing.assert_allclose(got[0], outputs[0], rtol=1e-5, atol=1e-6, err_msg=case.name)
            tried += 1
    if not tried:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} is too old for these cases")


def test_batch_and_size_may_change():
    model = model_of([conv(strides=[2, 2])], {"X": ("N", 6, "H", "W_")}, constants={"W": weights(6, 4, 3, 3)})
    session, theirs = convt.onnxruntime.InferenceSession(model), plain(model)
    for shape in [(1, 6, 4, 4), (3, 6, 9, 2), (1, 6, 4, 4), *((1, 6, n, 3) for n in range(1, _node.SHAPES + 4))]:
        x = weights(*shape)
        np.testing.assert_allclose(session.run(None, {"X": x})[0], theirs.run(None, {"X": x})[0], rtol=1e-4, atol=1e-5)
    assert len(session.nodes["Y"].shapes) <= _node.SHAPES
    assert session.run(None, {"X": weights(0, 6, 4, 3)})[0].shape == (0, 4, 9, 7)


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


ACTIVATIONS = {
    "Relu": {}, "LeakyRelu": {"alpha": 0.2}, "Tanh": {}, "Sigmoid": {}, "Gelu": {}, "Elu": {"alpha": 0.5}, "HardSwish": {},
}  # fmt: skip


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


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name):
    nodes = [conv(output="c"), op(name, ["c"], "Y", **ACTIVATIONS[name])]
    model = model_of(nodes, {"X": X2.shape}, constants={"W": weights(6, 4, 3, 3)}, opset=20)
    assert same(model, {"X": X2}).report.fused == {"c": (name,)}


def test_norms_of_weights_that_a_run_brings():
    batch_norm, constants = norm("c", "Y", 4)
    w = weights(6, 4, 3, 3)
    model = model_of([conv(output="c"), batch_norm], {"X": X2.shape, "W": w.shape}, constants=constants)
    session = same(model, {"X": X2, "W": w}, tolerance=3e-5)
    assert session.report.unpacked == ("c",) and session.report.fused == {"c": ("BatchNormalization",)}
    other = weights(6, 4, 3, 3)
    np.testing.assert_allclose(
        session.run(None, {"X": X2, "W": other})[0], plain(model).run(None, {"X": X2, "W": other})[0], rtol=1e-3, atol=1e-4
    )


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
@pytest.mark.parametrize("name", ["large", "shallow", "depthwise"])
def test_threads(name, threads):
    x, shape, attributes = PROBLEMS[name]
    model = model_of([conv(**attributes)], {"X": x.shape}, constants={"W": weights(*shape)})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = convt.onnxruntime.InferenceSession(model, options)
    want = plain(model).run(None, {"X": x})[0]
    assert session.nodes["Y"].threads == threads
    for _ in range(3):
        assert abs(session.run(None, {"X": x})[0] - want).max() <= 2e-5 * abs(want).max()


def test_nodes_side_by_side():
    nodes = [conv(("X", f"W{n}"), f"c{n}", strides=[2, 2]) for n in range(4)] + [op("Sum", [f"c{n}" for n in range(4)], "Y")]
    model = model_of(nodes, {"X": X2.shape}, constants={f"W{n}": weights(6, 4, 3, 3) for n in range(4)})
    options = onnxruntime.SessionOptions()
    options.execution_mode, options.inter_op_num_threads = onnxruntime.ExecutionMode.ORT_PARALLEL, 4
    session = convt.onnxruntime.InferenceSession(model, options)
    assert len(session.report.packed) == 4
    want = plain(model).run(None, {"X": X2})[0]
    for _ in range(20):
        np.testing.assert_allclose(session.run(None, {"X": X2})[0], want, rtol=1e-4, atol=1e-5)
    binding = session.io_binding()
    binding.bind_cpu_input("X", X2)
    binding.bind_output("Y")
    session.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], want, rtol=1e-4, atol=1e-5)


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


# ------------------------------------------------------------------------------------------------ the command


def test_the_class_example_runs():
    failed, tried = doctest.testmod(sys.modules[convt.onnxruntime.InferenceSession.__module__])
    assert tried and not failed


def test_without_onnx_runtime_the_error_says_how_to_install_it():
    errors = child("import sys; sys.modules['onnxruntime'] = None\nimport convt.onnxruntime")[2]
    assert "pip install onnxruntime" in errors
