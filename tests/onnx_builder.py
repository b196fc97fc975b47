"""A builder of small ONNX models."""

import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper
OPSET = 17
MINE = helper.make_opsetid("mine", 1)  # the domain of functions


def info(name, dtype=TensorProto.FLOAT, shape=None):
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes, inputs, outputs=("Y",), constants=(), opset=OPSET, dtype=TensorProto.FLOAT, functions=(), imports=(), declared=(),
    replaceable=(), ir_version=8,
):  # fmt: skip
    """Make a model of nodes, with an input "which" if one of them reads it.

    ``inputs`` is {name: shape}, ``constants`` is {name: array}, and ``replaceable`` names those that are also inputs.
    Outputs are names or onnx.ValueInfoProto; so are ``declared``, the values whose shapes the model declares.
    """
    given, constants = [info(name, dtype, shape) for name, shape in inputs.items()], dict(constants)
    if any("which" in node.input for node in nodes) and "which" not in constants:
        given.append(info("which", TensorProto.BOOL, []))
    given += [info(name, helper.np_dtype_to_tensor_dtype(constants[name].dtype), constants[name].shape) for name in replaceable]
    results = [info(each, dtype) if isinstance(each, str) else each for each in outputs]
    graph = helper.make_graph(nodes, "test", given, results, tensors(constants), value_info=list(declared))
    imports = [helper.make_opsetid("", opset), *imports, *([MINE] if functions else [])]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version, functions=functions)


def tensors(constants):
    return [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]


def conv(inputs=("X", "W"), output="Y", **attributes):
    return helper.make_node("ConvTranspose", inputs, [output], **attributes)


def op(kind, inputs, output="Y", **attributes):
    return helper.make_node(kind, inputs, [output], **attributes)
