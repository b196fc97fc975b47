"""ONNX Runtime's CPU provider: a model of one ConvTranspose, its input and output bound once.

Prepacked, the weights are constants of the model; one-shot, they are an input.

Its layout is always NCX, which `how` says where the problem's is not.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from ..problem import Problem, as_nxc, empty, in_layout
from . import Ready

DTYPES = ("f32",)


def version() -> str:
    return onnxruntime.__version__


def _model(problem: Problem, weights: dict[str, np.ndarray]) -> bytes:
    layer = problem.layer
    shapes = {"X": (layer.batch, layer.cin, *layer.size), "Y": (layer.batch, layer.cout, *layer.output)}
    shapes |= {name: array.shape for name, array in weights.items()}
    info = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    node = helper.make_node(
        "ConvTranspose",
        ["X", *weights],
        ["Y"],
        strides=layer.strides,
        pads=[*layer.pads_begin, *layer.pads_end],
        dilations=layer.dilations,
        output_padding=layer.output_padding,
        group=layer.groups,
    )
    inputs = ["X"] if problem.prepacked else ["X", *weights]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items() if name not in inputs]
    graph = helper.make_graph([node], "layer", [info[name] for name in inputs], [info["Y"]], constants)
    # The oldest version that has this operator keeps the model readable for every release of the runtime.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7).SerializeToString()


def prepare(problem: Problem, threads: int) -> Ready:
    layer = problem.layer
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    weights = {"W": problem.filter_iox()} | ({"B": problem.bias()} if problem.with_bias else {})
    session = onnxruntime.InferenceSession(_model(problem, weights), options, providers=["CPUExecutionProvider"])
    arrays = {"X": in_layout(problem.data(), "NCX")} | ({} if problem.prepacked else weights)
    result = empty((layer.batch, layer.cout, *layer.output), arrays["X"].dtype)
    binding = session.io_binding()
    for name, array in arrays.items():
        binding.bind_input(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
    binding.bind_output("Y", "cpu", 0, np.float32, result.shape, result.ctypes.data)

    def run():
        session.run_with_iobinding(binding)
        return result

    return Ready(run, lambda y: as_nxc(y, "NCX"), "" if problem.layout == "NCX" else "in NCX", keep=arrays)
