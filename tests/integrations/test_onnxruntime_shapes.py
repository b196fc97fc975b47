"""Tests of the shapes that convt's session declares and believes."""

import numpy as np
import pytest
from onnx_models import (
    VERSION,
    TensorProto,
    alike,
    choice,
    conv,
    function_of,
    graph_of,
    helper,
    info,
    model_of,
    numpy_helper,
    onnxruntime,
    op,
    same,
    weights,
)

from convt.onnxruntime import InferenceSession

X, W = weights(1, 6, 5, 7), weights(6, 4, 3, 3)
FIXED, OPEN, UNKNOWN = X.shape, ("N", 6, "H", "V"), None
RIGHT, WRONG = (1, 4, 7, 9), (1, 4, 9, 9)


@pytest.mark.parametrize("declared", [UNKNOWN, RIGHT, WRONG, (1, 3, 7, 9), (1, 4, 7), ("N", 4, "P", "Q"), ("N", None, 3, None)])
@pytest.mark.parametrize("shape", [FIXED, OPEN, (None, 6, None, None), ("N", None, 5, 7), UNKNOWN])
def test_declared_outputs(shape, declared, capfd):
    model = model_of([conv()], {"X": shape}, [info("Y", shape=declared)], {"W": W})
    alike(model, [{"X": X}], capfd)


@pytest.mark.parametrize("attributes", [
    {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [2, 2], "output_padding": [1, 1]},
    {"output_shape": [8, 9], "strides": [2, 2]}, {"output_shape": [4, 4]}, {"auto_pad": "VALID"}, {"kernel_shape": [3, 3]},
    {"pads": [1, 0, 1, 2], "dilations": [2, 1], "strides": [3, 1]}, {"pads": [3, 3, 3, 3]},
    {"auto_pad": "SAME_UPPER", "strides": [4, 4]},  # a kernel smaller than the stride, which convt leaves to ONNX Runtime
])  # fmt: skip
@pytest.mark.parametrize("shape", [FIXED, OPEN, UNKNOWN])
def test_outputs_that_no_shape_is_declared_for(shape, attributes, capfd):
    model, is_served = model_of([conv(**attributes)], {"X": shape}, constants={"W": W}), attributes.get("strides") != [4, 4]
    alike(model, [{"X": X}], capfd, served=int(is_served))


@pytest.mark.parametrize("shape", [FIXED, OPEN, UNKNOWN])
@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_wrong_shapes_of_values_behind_a_node(name, shape, capfd):
    """Check values that a fused node replaces, its output, and a value behind it."""
    nodes = [conv(output="a"), op("Add", ["a", "S"], "b"), op("Relu", ["b"], "c")]
    nodes += [op("Softmax", ["c"], "d"), op("Neg", ["d"], "Y")]
    model = model_of(nodes, {"X": shape, "S": RIGHT}, constants={"W": W}, declared=[info(name, shape=WRONG)])
    if name == "d" and shape != UNKNOWN:  # ONNX Runtime infers shapes again after nodes were fused, and then knows more
        same(model, {"X": X, "S": weights(*RIGHT)}, outputs=False)
        return
    session = alike(model, [{"X": X, "S": weights(*RIGHT)}], capfd)
    assert session is None or session.report.fused == {"a": ("Add", "Relu")}  # both refuse shapes that do not fit the sum


@pytest.mark.parametrize("added", [(1, 1, 1, 1), (9,), (), (1, 4, 7, 9), (3, 4, 7, 9), (2, 1, 4, 1, 9)])
@pytest.mark.parametrize("shape", [FIXED, OPEN])
def test_shapes_of_sums(shape, added, capfd):
    nodes = [conv(output="a"), op("Add", ["a", "S"], "b"), op("Relu", ["b"], "Y")]
    model = model_of(nodes, {"X": shape, "S": added}, constants={"W": W})
    alike(model, [{"X": X, "S": weights(*added)}], capfd)


@pytest.mark.parametrize("way", ["from constants", "in each run"])
@pytest.mark.parametrize("wrong", [(6, 4, 2, 2), (6, 3, 3, 3), (6, 4, 3), (5, 4, 3, 3)])
def test_weights_of_a_wrong_declared_shape(wrong, way, capfd):
    nodes = [op("Mul", ["V", "factor"], "W"), conv(output="a"), op("Add", ["a", "B"], "Y")]
    inputs, constants, feed = {"X": OPEN}, {"V": W, "B": weights(1, 4, 1, 1)}, {"X": X}
    if way == "from constants":
        constants["factor"] = weights(1)
    else:
        inputs["factor"], feed["factor"] = [1], weights(1)
    model = model_of(nodes, inputs, constants=constants, declared=[info("W", shape=wrong)])
    alike(model, [feed, feed], capfd)


def test_weights_that_a_branch_declares_wrong(capfd):
    wrong = 6, 4, 2, 2
    branch = graph_of([op("Identity", ["V"], "v")], info("v", shape=wrong))
    model = model_of([choice(branch, branch, "W"), conv()], {"X": OPEN, "V": W.shape}, declared=[info("W", shape=wrong)])
    alike(model, [{"X": X, "V": W, "which": np.array(which)} for which in (True, False)], capfd)


def test_computed_weights_are_fused_with_a_bias(capfd):
    """Check that onnx infers the shape of weights that the model computes, as exporters of weight norm write them."""
    nodes = [op("Mul", ["V", "factor"], "W"), conv(output="a"), op("Add", ["a", "B"], "Y")]
    model = model_of(nodes, {"X": UNKNOWN}, constants={"V": W, "factor": weights(6, 1, 1, 1), "B": weights(4, 1, 1)})
    assert alike(model, [{"X": X}], capfd).report.fused == {"a": ("Add",)}


@pytest.mark.skipif(VERSION < (1, 28), reason="older versions raise another error for a buffer of a wrong size")
@pytest.mark.parametrize("declared", [UNKNOWN, RIGHT, WRONG, (1, 4, 7), ("N", 4, "P", "Q"), (1, 3, 7, 9)])
@pytest.mark.parametrize("shape", [FIXED, OPEN, UNKNOWN])
def test_outputs_that_a_branch_declares(shape, declared, capfd):
    """Check that a wrong shape gives ONNX Runtime's shapes, warnings and errors, InvalidArgument among them."""
    branches = [graph_of([conv(output=name)], info(name, shape=declared)) for name in ("z", "u")]
    model = model_of([choice(*branches)], {"X": shape}, constants={"W": W})
    alike(model, [{"X": X, "which": np.array(which)} for which in (True, False)], capfd, served=2)


@pytest.mark.parametrize("declared", [UNKNOWN, RIGHT, WRONG, (1, 4, 7)])
@pytest.mark.parametrize("shape", [FIXED, ("N", 6, 5, 7)])
def test_outputs_that_a_branch_of_a_function_declares(shape, declared, capfd):
    """Check that wrong shapes inside a function are errors, as in ONNX Runtime, although convt inlines the function."""
    branches = [graph_of([conv(("x", "w"), name)], info(name, shape=declared)) for name in ("z", "u")]
    function = function_of("Up", [choice(*branches, "y")], ("x", "w", "which"), "y")
    call = op("Up", ["X", "W", "which"], domain="mine")
    model = model_of([call], {"X": shape}, constants={"W": W}, functions=[function])
    session = alike(model, [{"X": X, "which": np.array(True)}], capfd, served=2)
    assert (session is None) == (declared in (WRONG, (1, 4, 7)))


@pytest.mark.skipif(VERSION < (1, 28), reason="older versions raise another error for a buffer of a wrong size")
@pytest.mark.parametrize("declared", [UNKNOWN, RIGHT, WRONG])
@pytest.mark.parametrize("sliced", [UNKNOWN, FIXED, (1, 6, 4, 4)])
@pytest.mark.parametrize("shape", [(3, *FIXED), (3, 1, 6, "H", "V"), ("S", *OPEN)])
def test_the_body_of_a_scan(shape, sliced, declared, capfd):
    body = graph_of([conv(("x", "W"), "y")], info("y", shape=declared), inputs=[info("x", shape=sliced)])
    scan = op("Scan", ["X"], "Y", body=body, num_scan_inputs=1)
    alike(model_of([scan], {"X": shape}, constants={"W": W}), [{"X": weights(3, *FIXED)}], capfd)


@pytest.mark.parametrize("declared", [UNKNOWN, FIXED, (1, 6, 9, 9), (1, 6, 5)])
def test_the_body_of_a_loop(declared, capfd):
    if declared == (1, 6, 5) and VERSION < (1, 31):
        pytest.skip("older versions crash")
    nodes = [op("Identity", ["going"], "goes"), conv(("v", "W"), "y", pads=[1, 1, 1, 1])]
    inputs = [info("n", TensorProto.INT64, []), info("going", TensorProto.BOOL, []), info("v", shape=declared)]
    body = graph_of(nodes, info("goes", TensorProto.BOOL, []), info("y", shape=declared), inputs=inputs)
    loop = op("Loop", ["count", "start", "X"], "Y", body=body)
    constants = {"W": weights(6, 6, 3, 3), "count": np.array(3), "start": np.array(True)}
    alike(model_of([loop], {"X": FIXED}, constants=constants), [{"X": X}], capfd)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
@pytest.mark.parametrize("other", [(2, 4, 7, 9), (3, 1, 4, 1, 9), (1, 4, 7, 9)])
@pytest.mark.parametrize("behind", ["Relu", "PRelu"])
def test_sums_that_are_larger_than_the_output_of_the_node(other, dtype, behind):
    """Check sums of which one operand is larger."""
    if behind == "PRelu" and dtype != np.float32:
        pytest.skip("convt fuses a PRelu only in float32")
    slopes = {"slopes": weights(4, 1, 1)} if behind == "PRelu" else {}
    nodes = [conv(output="a"), op("Add", ["a", "S"], "b"), op(behind, ["b", *slopes])]
    model = model_of(nodes, {"X": UNKNOWN, "S": UNKNOWN}, constants={"W": W, **slopes})
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = [{"X": X, "S": weights(*shape)} for shape in (other, RIGHT, other)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for each in (*model.graph.input, *model.graph.output):
        each.type.tensor_type.elem_type = kind
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(W.astype(dtype), "W"))
    ours = InferenceSession(model)
    for feed in feeds:
        (want,) = session.run(None, feed)
        (got,) = ours.run(None, {name: value.astype(dtype) for name, value in feed.items()})
        assert got.dtype == dtype
        np.testing.assert_allclose(got, want, rtol=1e-2 if dtype == np.float16 else 1e-4, atol=3e-2)
    assert ours.report.fused == {"a": ("Add", behind)} and not ours.report.kept


@pytest.mark.parametrize("shape", [(1, 6, 1, 1), (None, 6, 1, 1), ("N", 6, 1, "V")])
def test_negative_sizes(shape, capfd):
    """Check an output whose size would be negative, and another node of the model."""
    nodes = [conv(pads=[2, 1, 2, 1]), conv(output="Z")]
    session = alike(model_of(nodes, {"X": shape}, ("Y", "Z"), {"W": W}), [{"X": X[:, :, :1, :1]}], capfd, served=2)
    assert "wanted at least 0" in session.report.kept["Y"]


def test_a_branch_that_is_never_taken(capfd):
    branches = ([conv(output=name, name=name)] for name in ("then", "else"))
    model = model_of([choice(*branches)], {"X": FIXED}, constants={"W": W, "which": np.array(True)})
    session = alike(model, [{"X": X}], capfd)
    assert len(session.report.packed) == 1 and not session.report.kept


def test_the_report_tells_refused_runs_from_refused_nodes():
    session = InferenceSession(model_of([conv(output="Y", name="up")], {"X": UNKNOWN}, constants={"W": W}))
    with pytest.raises(Exception, match="6"):
        session.run(None, {"X": weights(1, 5, 4, 4)})
    assert "up: some runs are left to ONNX Runtime because convt refuses inputs of shapes ((1, 5, 4, 4)" in str(session.report)


@pytest.mark.parametrize("shape", [OPEN, ("N", 6, 5, None), UNKNOWN])
@pytest.mark.parametrize("slopes", [(9,), (2, 1, 1, 1), (2, 4, 1, 9), (4, 1, 1)])
@pytest.mark.parametrize("place", ["graph", "branch", "function"])
def test_a_prelu_that_enlarges_its_input(place, slopes, shape, capfd):
    """Check that ONNX Runtime does not write the output over the input, and that the session's options say nothing about it."""
    nodes, functions = [op("Abs", ["Z"], "E"), op("PRelu", ["E", "S"], "P"), op("Neg", ["P"])], ()
    feed = {"X": X[..., :1]} | ({"which": np.array(True)} if place == "branch" else {})
    if place == "branch":
        nodes = [choice(nodes, nodes)]
    elif place == "function":
        nodes, functions = [op("f", ["Z", "S"], domain="mine")], [function_of("f", nodes, ("Z", "S"), "Y")]
    constants = {"W": W[..., :1], "S": weights(*slopes)}
    model = model_of([conv(output="Z"), *nodes], {"X": shape}, constants=constants, functions=functions)
    session = alike(model, [feed], capfd)
    assert session.get_session_options().enable_mem_reuse
