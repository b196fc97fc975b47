"""Tests of models whose initializers are inputs, too: all of those of IR version 3, and those of later versions that a run may
override. Both sessions must show the same inputs, outputs, messages and errors."""

import numpy as np
import pytest
from onnx_models import RNG, TensorProto, alike, conv, helper, info, norm, numpy_helper, tensors, weights

X, W = weights(1, 6, 5, 7), weights(6, 4, 3, 3)
QUANTIZED = {"Q": RNG.integers(-100, 100, W.shape).astype(np.int8), "s": np.array(0.01, np.float32), "z": np.array(3, np.int8)}
DEQUANTIZE = helper.make_node("DequantizeLinear", ["Q", "s", "z"], ["W"])
RUNS = [{"X": X, "which": np.array(which)} for which in (True, False)]


def model_of(nodes, ir_version, constants, listed=True, shape=X.shape):
    """Make a model. ``listed`` is whether its constants are inputs, too."""
    inputs = [info("X", shape=shape)]
    if any(node.op_type == "If" for node in nodes):
        inputs.append(info("which", TensorProto.BOOL, []))
    for name, value in constants.items() if listed else ():
        inputs.append(info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    graph = helper.make_graph(nodes, "test", inputs, [info("Y")], tensors(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=ir_version)


def choice(then_nodes, else_nodes):
    """Make an If whose branches have these nodes."""
    graphs = [helper.make_graph(nodes, "g", [], [info(nodes[-1].output[0])]) for nodes in (then_nodes, else_nodes)]
    return helper.make_node("If", ["which"], ["Y"], then_branch=graphs[0], else_branch=graphs[1])


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("ir_version", [3, 4, 8])
class TestVersions:
    def test_weights_and_what_is_fused(self, ir_version, listed, capfd):
        batch_norm, constants = norm("a", "n", 4)
        nodes = [conv(output="a"), batch_norm, helper.make_node("Relu", ["n"], ["Y"])]
        fed = {name: 2 * value for name, value in constants.items()}
        runs = [{"X": X}, {"X": X, "W": 2 * W}, {"X": X, "W": weights(6, 5, 3, 3)}, {"X": X} | fed]
        alike(model_of(nodes, ir_version, {"W": W} | constants, listed), runs, capfd)

    def test_quantized_weights(self, ir_version, listed, capfd):
        runs = [{"X": X}, {"X": X, "s": np.array(0.02, np.float32)}, {"X": X, "Q": QUANTIZED["z"] - QUANTIZED["Q"]}]
        alike(model_of([DEQUANTIZE, conv()], ir_version, QUANTIZED, listed), runs, capfd)

    def test_branches(self, ir_version, listed, capfd):
        node = choice([conv(output="o")], [conv(output="u")])
        if ir_version == 3 and not listed:
            assert alike(model_of([node], ir_version, {"W": W}, listed), RUNS, capfd) is None  # both sessions refuse it
            return
        alike(model_of([node], ir_version, {"W": W}, listed), [*RUNS, RUNS[0] | {"W": 2 * W}], capfd, served=2)

    def test_quantized_weights_of_branches(self, ir_version, listed, capfd):
        """Check weights that both branches and the outer graph dequantize, so that no initializer is left over."""
        nodes = [DEQUANTIZE, conv(output="t"), choice([conv(output="o")], [conv(output="u")])]
        nodes.append(helper.make_node("Add", ["Y", "t"], ["sum"]))
        nodes[-2].output[0], nodes[-1].input[0], nodes[-1].output[0] = "v", "v", "Y"
        runs = [*RUNS, RUNS[0] | {"s": np.array(0.02, np.float32)}]
        alike(model_of(nodes, ir_version, QUANTIZED, listed), runs, capfd, served=3)


@pytest.mark.parametrize("channels", [4, 40], ids=["small", "large"])
@pytest.mark.parametrize("where", ["branches", "outer graph", "both"])
@pytest.mark.parametrize("ir_version", [3, 8])
def test_constant_nodes(ir_version, where, channels, capfd):
    """Check Constant nodes, which become initializers if they are large, that branches or the outer graph read."""
    x, w = weights(1, channels, 5, 7), weights(channels, channels, 3, 3)
    nodes = [helper.make_node("Constant", [], ["W"], value=numpy_helper.from_array(w))]
    if where == "branches":
        nodes.append(choice([conv(output="o")], [conv(output="u")]))
    else:
        read = helper.make_node("Neg", ["W" if where == "both" else "t"], ["v"])
        nodes += [conv(output="t"), choice([read], [helper.make_node("Identity", ["t"], ["u"])])]
    runs = [{"X": x, "which": each["which"]} for each in RUNS]
    alike(model_of(nodes, ir_version, {}, shape=x.shape), runs, capfd, served=2 if where == "branches" else 1)
