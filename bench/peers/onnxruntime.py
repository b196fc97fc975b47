"""ONNX Runtime's CPU provider: a model of one ConvTranspose with constant weights, its input and output bound once.

Its layout is always NCX, which `how` says where the problem's is not.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from bench.peers import Ready
from bench.problem import Problem, as_nxc, empty, in_layout

DTYPES = ("f32",)


def version() -> str:
    return onnxruntime.__version__


def _model(problem: Problem) -> bytes:
    layer = problem.layer
    constants = {"W": problem.filter_iox()} | ({"B": problem.bias()} if problem.with_bias else {})
    node = helper.make_node(
        "ConvTranspose",
        ["X", *constants],
        ["Y"],
        strides=layer.strides,
        pads=[*layer.pads_begin, *layer.pads_end],
        dilations=layer.dilations,
        output_padding=layer.output_padding,
        group=layer.groups,
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, (layer.batch, layer.cin, *layer.size))],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, (layer.batch, layer.cout, *layer.output))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    # The oldest version that has this operator keeps the model readable for every release of the runtime.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7).SerializeToString()


def prepare(problem: Problem, threads: int) -> Ready:
    layer = problem.layer
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(_model(problem), options, providers=["CPUExecutionProvider"])
    data = in_layout(problem.data(), "NCX")
    result = empty((layer.batch, layer.cout, *layer.output), data.dtype)
    binding = session.io_binding()
    for bind, name, array in ((binding.bind_input, "X", data), (binding.bind_output, "Y", result)):
        bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def run():
        session.run_with_iobinding(binding)
        return result

    return Ready(run, lambda y: as_nxc(y, "NCX"), "" if problem.layout == "NCX" else "in NCX", keep=data)
