"""Helpers of the tests of convt.onnxruntime: small ONNX models, and the comparison with ONNX Runtime's own session."""

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import convt.onnxruntime

OPSET = 17
RNG = np.random.default_rng(0)


def info(name, dtype=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes, inputs, outputs=("Y",), constants=(), opset=OPSET, dtype=TensorProto.FLOAT, functions=(), imports=()):
    """Make a model of nodes. ``inputs`` is {name: shape}, ``constants`` is {name: array}."""
    graph = helper.make_graph(
        nodes, "test", [info(name, dtype, shape) for name, shape in inputs.items()], [info(name, dtype) for name in outputs],
        tensors(constants),
    )  # fmt: skip
    imports = [helper.make_opsetid("", opset), *imports]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, functions=functions)


def tensors(constants):
    return [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]


def conv(inputs=("X", "W"), output="Y", **attributes):
    return helper.make_node("ConvTranspose", inputs, [output], **attributes)


def norm(source, output, channels, **attributes):
    """Make a batch norm and its tensors by name."""
    names = [f"{output}_{part}" for part in ("scale", "shift", "mean", "var")]
    arrays = [*(weights(channels) for _ in range(3)), RNG.uniform(0.5, 2, channels).astype(np.float32)]
    node = helper.make_node("BatchNormalization", [source, *names], [output], **attributes)
    return node, dict(zip(names, arrays, strict=True))


def weights(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def plain(model):
    options = onnxruntime.SessionOptions()
    return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def same(model, feed, served=1, tolerance=1e-5):
    """Run a model, check that the outputs equal ONNX Runtime's own, and return the session."""
    session = convt.onnxruntime.InferenceSession(model)
    assert len(session.report.packed) + len(session.report.unpacked) == served, session.report
    theirs = plain(model)
    for got, want in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
        assert got.dtype == want.dtype and got.shape == want.shape
        assert abs(got - want).max() <= tolerance * max(1e-6, abs(want).max())
    assert [each.shape for each in session.get_outputs()] == [each.shape for each in theirs.get_outputs()]
    return session
