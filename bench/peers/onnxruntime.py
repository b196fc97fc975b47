"""ONNX Runtime's CPU provider: a model of one ConvTranspose whose input and output are bound once.

In mode prepacked, the weights are constants of the model. In mode one-shot, they are an input. The layout is always NCX; `how`
names it if the problem has another one.
"""

from __future__ import annotations

import numpy as np
import onnxruntime

from ..problem import Problem, as_nxc, empty, in_layout
from . import Ready, onnx_model

DTYPES = ("f32",)


def version() -> str:
    return onnxruntime.__version__


def prepare(problem: Problem, threads: int) -> Ready:
    layer = problem.layer
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    weights = onnx_model.weights(problem)
    model = onnx_model.model(problem, weights)
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
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
