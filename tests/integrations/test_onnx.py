"""Tests of convt.onnx: ONNX's own test cases through each interface, opsets, and errors.

The padding rules are tested in test_padding.py, and on random nodes in test_onnxruntime_differences.py. Tests that need onnx
are skipped if it is not installed.
"""

import warnings

import ml_dtypes
import numpy as np
import pytest
from cases import child

import convt.onnx

try:
    import onnx
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator
except ImportError:
    onnx = None

needs_onnx = pytest.mark.skipif(onnx is None, reason="onnx is not installed")

X = np.array([[[1, 2, 3]]], np.float32)
W = np.array([[[1, 10, 100]]], np.float32)
FULL = [[[1, 12, 123, 230, 300]]]
FULL2 = [[[1, 10, 102, 20, 203, 30, 300]]]  # stride 2


# ------------------------------------------------------------------------------------------------ ONNX's own test cases


def _collect():
    if onnx is None:
        return []
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # collecting imports the cases of every operator, some of which overflow on purpose
        cases = node.collect_testcases("ConvTranspose")
    return [case for case in cases if case.model.graph.node[0].op_type == "ConvTranspose"]


CASES = _collect()
every_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


def _function(case, inputs):
    node = case.model.graph.node[0]
    attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    attributes = {name: v.decode() if isinstance(v, bytes) else v for name, v in attributes.items()}
    return convt.onnx.conv_transpose(*inputs, opset=case.model.opset_import[0].version, **attributes)


def _evaluator(case, inputs):
    evaluator = ReferenceEvaluator(case.model, new_ops=[convt.onnx.ConvTranspose])
    return evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))[0]


def _run_node(case, inputs):
    version = case.model.opset_import[0].version
    return convt.onnx.Backend.run_node(case.model.graph.node[0], inputs, opset_version=version)[0]


ROADS = {
    "function": _function,
    "evaluator": _evaluator,
    "run_model": lambda case, inputs: convt.onnx.Backend.run_model(case.model, inputs)[0],
    "prepare": lambda case, inputs: convt.onnx.Backend.prepare(case.model, "CPU").run(inputs)[0],
    "run_node": _run_node,
}


@needs_onnx
def test_all_cases_are_found():
    assert len(CASES) >= 11
    assert len({case.name for case in CASES}) == len(CASES)


@every_case
@pytest.mark.parametrize("road", ROADS)
def test_case(case, road, calls):
    assert case.data_sets
    for inputs, outputs in case.data_sets:
        y = ROADS[road](case, inputs)
        assert y.dtype == outputs[0].dtype
        assert np.array_equal(y, outputs[0])  # small integers: exact
    assert len(calls) == len(case.data_sets)  # convt computed it, not onnx's reference


@pytest.fixture
def calls(monkeypatch):
    """Record the keywords of every call of convt.onnx.conv_transpose."""
    seen, original = [], convt.onnx.conv_transpose

    def spy(*inputs, **attributes):
        seen.append(attributes)
        return original(*inputs, **attributes)

    for module in (convt.onnx, convt._call.onnx_rules):  # the function of users and the one of the backend
        monkeypatch.setattr(module, "conv_transpose", spy)
    return seen


# ----------------------------------------------------------------------------------------------- attributes and opsets


def test_defaults():
    assert convt.onnx.conv_transpose(X, W).tolist() == FULL
    nothing = dict.fromkeys(("dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides"))
    assert convt.onnx.conv_transpose(X, W, None, auto_pad="NOTSET", group=1, **nothing).tolist() == FULL
    assert convt.onnx.conv_transpose(X, W, np.array([5], np.float32)).tolist() == [[[6, 17, 128, 235, 305]]]


def test_pads_are_all_beginnings_then_all_ends():
    x = np.arange(1, 10, dtype=np.float32).reshape(1, 1, 3, 3)
    y = convt.onnx.conv_transpose(x, np.ones((1, 1, 1, 1), np.float32), pads=[0, 1, 2, 0])
    assert y.tolist() == [[[[2, 3]]]]


def test_an_int_stands_for_all():
    x, w = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 3, 3), np.float32)
    y = convt.onnx.conv_transpose(x, w, strides=2, pads=1, dilations=2, output_padding=1, kernel_shape=3)
    lists = dict(strides=[2, 2], pads=[1] * 4, dilations=[2, 2], output_padding=[1, 1], kernel_shape=(3, 3))
    assert np.array_equal(y, convt.onnx.conv_transpose(x, w, **lists))
    assert y.shape == (1, 1, 10, 10)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("opset", [1, 11, 13, 22, 99])
def test_opsets(opset, dtype):
    y = convt.onnx.conv_transpose(X.astype(dtype), W.astype(dtype), strides=[2], opset=opset)
    assert y.dtype == dtype
    assert y.tolist() == FULL2


def test_bfloat16_comes_with_opset_22():
    x, w = X.astype(ml_dtypes.bfloat16), W.astype(ml_dtypes.bfloat16)
    for opset in (22, 23, np.int64(25)):
        y = convt.onnx.conv_transpose(x, w, pads=[0, 2], opset=opset)
        assert y.dtype == ml_dtypes.bfloat16
        assert y.astype(np.float32).tolist() == [[[1, 12, 123]]]
    for opset in (1, 11, 21):
        with pytest.raises(TypeError, match=rf"^W: got dtype bfloat16 at opset {opset}, wanted .* below opset 22"):
            convt.onnx.conv_transpose(x, w, opset=opset)


@pytest.mark.parametrize("attributes, error, match", [
    ({"opset": 0}, ValueError, "opset: got 0, wanted an integer >= 1"), ({"opset": -1}, ValueError, "opset: got -1"),
    ({"opset": 11.0}, TypeError, r"opset: got 11\.0"), ({"opset": None}, TypeError, "opset: got NoneType"),
    ({"kernel_shape": [2]}, ValueError, r"kernel_shape: got \[2\], wanted \(3,\), the kernel of W"),
    ({"kernel_shape": [3, 3]}, ValueError, "kernel_shape: got 2 values, wanted 1"),
    ({"kernel_shape": [3.0]}, TypeError, r"kernel_shape: got 3\.0"),
    ({"pads": [1]}, ValueError, "pads: got 1 value, wanted 2, two per spatial axis"),
    ({"pads": [0, -1]}, ValueError, "pads: got -1, wanted an integer >= 0"), ({"pads": [0, True]}, TypeError, "pads: got True"),
    ({"pads": [1, 2], "auto_pad": "SAME_UPPER"}, ValueError, r"pads: got \(1, 2\) together with auto_pad"),
    ({"pads": [3, 3]}, ValueError, "output size: got -1 on axis 0"), ({"strides": [0]}, ValueError, "strides: got 0"),
    ({"strides": [1, 1]}, ValueError, "strides: got 2 values, wanted 1, one per spatial axis"),
    ({"dilations": "1"}, TypeError, "dilations: got '1'"),
    ({"output_padding": [1]}, ValueError, "output_padding: got 1 on axis 0"),
    ({"output_shape": [1, 1, 5]}, ValueError, "output_shape: got 3 values, wanted 1"),
    ({"output_shape": [6]}, ValueError, "output_shape: got 6 on axis 0"),
    ({"group": 2}, ValueError, "group: got 2, wanted a divisor"), ({"group": 0}, ValueError, "group: got 0"),
    ({"auto_pad": "SAME"}, ValueError, "auto_pad: got 'SAME'"),
    ({"X": X[0]}, ValueError, r"X: got rank 2 \(shape \(1, 3\)\), wanted rank 3"),
    ({"X": np.repeat(X, 2, 1)}, ValueError, "X: got 2 channels"),
    ({"X": X.astype(np.float16)}, TypeError, "X: got dtype float16, wanted float32"),
    ({"X": X.tolist()}, TypeError, "X: got list"), ({"W": W[0]}, ValueError, r"W: got rank 2 \(shape \(1, 3\)\)"),
    ({"W": W[0], "pads": [1, 1]}, ValueError, "W: got rank 2"), ({"W": W[..., :0]}, ValueError, "W: got an empty kernel axis"),
    ({"W": W.astype(">f4")}, TypeError, "W: got dtype .*foreign byte order"),
    ({"W": W.astype(np.int8)}, TypeError, "W: got dtype int8"),
    ({"B": np.ones(2, np.float32)}, ValueError, r"B: got shape \(2,\), wanted \(1,\)"),
    ({"B": np.ones(1)}, TypeError, "B: got dtype float64, wanted float32"), ({"B": 1.0}, TypeError, "B: got float"),
])  # fmt: skip
def test_errors_name_onnx_arguments(attributes, error, match):
    with pytest.raises(error, match=rf"^{match}") as caught:
        convt.onnx.conv_transpose(**{"X": X, "W": W, **attributes})
    assert type(caught.value) is error


# ----------------------------------------------------------------------------------------------- evaluator and backend


def _model(nodes, inputs, *, shape=(None,) * 3, opset=13, dtype=None, initializers=(), functions=(), imports=()):
    dtype = TensorProto.FLOAT if dtype is None else dtype
    value = lambda name: helper.make_tensor_value_info(name, dtype, shape)  # noqa: E731
    graph = helper.make_graph(nodes, "graph", [value(n) for n in inputs], [value("Y")], initializer=initializers)
    opsets = [helper.make_opsetid("", opset), *imports]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=9)


def _conv(**attributes):
    return helper.make_node("ConvTranspose", ["X", "W"], ["Y"], **attributes)


@needs_onnx
def test_the_models_opset_counts(calls):
    bfloat16 = dict.fromkeys("XW", X.astype(ml_dtypes.bfloat16))
    new = _model([_conv(strides=[2])], "XW", opset=22, dtype=TensorProto.BFLOAT16)
    evaluator = ReferenceEvaluator(new, new_ops=[convt.onnx.ConvTranspose])
    y = evaluator.run(None, bfloat16)[0]
    assert y.dtype == ml_dtypes.bfloat16
    assert y.astype(np.float32).tolist() == [[[1, 2, 5, 4, 9, 6, 9]]]
    # Not validated, as in the evaluator: opset 13 does not allow this model.
    old = ReferenceEvaluator(_model([_conv()], "XW", opset=13), new_ops=[convt.onnx.ConvTranspose])
    with pytest.raises(TypeError) as caught:
        old.run(None, bfloat16)
    assert "W: got dtype bfloat16 at opset 13" in str(caught.value.__cause__)
    assert [attributes["opset"] for attributes in calls] == [22, 13]


@needs_onnx
def test_evaluator_passes_errors_and_a_left_out_bias():
    node = helper.make_node("ConvTranspose", ["X", "W", ""], ["Y"], strides=[2])
    evaluator = ReferenceEvaluator(_model([node], "XW"), new_ops=[convt.onnx.ConvTranspose])
    assert evaluator.run(None, {"X": X, "W": W})[0].tolist() == FULL2
    bad = ReferenceEvaluator(_model([_conv(pads=[1])], "XW"), new_ops=[convt.onnx.ConvTranspose])
    with pytest.raises(ValueError, match=r"^pads: got 1 value,"):
        bad.run(None, {"X": X, "W": W})


@needs_onnx
def test_op_evaluates_alone():
    y = convt.onnx.ConvTranspose.eval(X, W, n_outputs=1, strides=[2])
    assert y.tolist() == FULL2


@needs_onnx
def test_backend_takes_inputs_in_every_way():
    prepared = convt.onnx.Backend.prepare(_model([_conv(strides=[2])], "XW"))
    for inputs in ([X, W], (X, W), {"X": X, "W": W}):
        outputs = prepared.run(inputs)
        assert isinstance(outputs, tuple)
        assert len(outputs) == 1
        assert outputs[0].tolist() == outputs["Y"].tolist() == outputs.Y.tolist() == FULL2
    for inputs in ([X], X, [X, W, X], {"X": X}):
        with pytest.raises(ValueError, match=r"^inputs: got"):
            prepared.run(inputs)


@needs_onnx
def test_backend_knows_initializers():
    # W is also listed as an input, as IR versions before 4 required.
    weights = onnx.numpy_helper.from_array(W, "W")
    model = _model([_conv(strides=[2])], "XW", initializers=[weights])
    prepared = convt.onnx.Backend.prepare(model)
    assert prepared.run(X)[0].tolist() == prepared.run([X])[0].tolist() == FULL2
    assert prepared.run({"X": X, "W": 2 * W})[0].tolist() == (2 * np.array(FULL2)).tolist()


@needs_onnx
def test_backend_runs_whole_models(calls):
    # A local function with its own attribute, an operator that convt lacks, and a branch.
    upscale = helper.make_function("local", "Upscale", ["X", "W"], ["Y"], [_conv()], [helper.make_opsetid("", 13)], ["step"])
    reference = onnx.AttributeProto(name="strides", type=onnx.AttributeProto.INTS, ref_attr_name="step")
    upscale.node[0].attribute.append(reference)
    branch = [
        helper.make_graph(
            [helper.make_node("ConvTranspose", ["P", "W"], [name], pads=pads)],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 3)],
        )
        for name, pads in (("T", [1, 1]), ("E", [0, 0]))
    ]
    nodes = [
        helper.make_node("Upscale", ["X", "W"], ["U"], domain="local", step=[2]),
        helper.make_node("Relu", ["U"], ["P"]),
        helper.make_node("If", ["C"], ["Y"], then_branch=branch[0], else_branch=branch[1]),
    ]
    yes = onnx.numpy_helper.from_array(np.array(True), "C")
    imports = [helper.make_opsetid("local", 1)]
    model = _model(nodes, "XW", initializers=[yes], functions=[upscale], imports=imports)
    x = np.array([[[1, -2, 3]]], np.float32)
    y = convt.onnx.Backend.run_model(model, [x, W])[0]
    middle = np.maximum([1, 10, 98, -20, -197, 30, 300], 0)
    assert y[0, 0].tolist() == np.convolve(middle, [1, 10, 100])[1:-1].tolist()
    assert [attributes["opset"] for attributes in calls] == [13, 13]
    assert [attributes["strides"] for attributes in calls] == [[2], None]


@needs_onnx
def test_backend_checks_models_and_nodes():
    with pytest.raises(onnx.checker.ValidationError):
        convt.onnx.Backend.prepare(_model([_conv(nonsense=1)], "XW"))
    with pytest.raises(onnx.checker.ValidationError):
        convt.onnx.Backend.run_node(_conv(nonsense=1), [X, W])
    with pytest.raises(TypeError) as caught:
        bfloat16 = X.astype(ml_dtypes.bfloat16)
        convt.onnx.Backend.run_node(_conv(), [bfloat16, bfloat16], opset_version=11)
    assert "W: got dtype bfloat16 at opset 11" in str(caught.value.__cause__)
    assert convt.onnx.Backend.run_node(_conv(), [X, W])["Y"].tolist() == FULL


@needs_onnx
def test_backend_has_one_device():
    backend = convt.onnx.Backend
    assert issubclass(backend, onnx.backend.base.Backend)
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    assert not backend.supports_device("CPU:1")
    for call in (lambda: backend.prepare(_model([_conv()], "XW"), "CUDA"), lambda: backend.run_node(_conv(), [X, W], "TPU")):
        with pytest.raises(ValueError, match=r"^device: got '(CUDA|TPU)', wanted 'CPU'"):
            call()


# ---------------------------------------------------------------------------------------------- import of onnx on demand


def test_onnx_is_imported_only_for_the_operator_and_the_backend():
    code = """if True:
        import sys, numpy as np, convt, convt.onnx, convt.openvino
        from convt.onnx import conv_transpose
        conv_transpose(np.ones((1, 1, 3), np.float32), np.ones((1, 1, 3), np.float32))
        assert {"Backend", "ConvTranspose", "conv_transpose"} <= set(dir(convt.onnx))
        assert "onnx" not in sys.modules and "openvino" not in sys.modules
    """
    code, _, errors = child(code)
    assert code == 0, errors


def test_every_public_name_is_in_all():
    names = ["Backend", "ConvTranspose", "ConvTransposeOperator", "conv_transpose"]
    assert convt.onnx.__all__ == names == dir(convt.onnx)
    pytest.importorskip("onnx", reason="two of the names derive from onnx's classes")
    names = {}
    exec("from convt.onnx import *", names)
    assert set(convt.onnx.__all__) <= names.keys()


def test_unknown_name():
    with pytest.raises(AttributeError, match=r"^module 'convt\.onnx' has no attribute 'nonsense'"):
        convt.onnx.nonsense  # noqa: B018
