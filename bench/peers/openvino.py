"""OpenVINO's CPU plugin: a model of one (Group)ConvolutionBackpropData whose tensors are set once.

In mode prepacked, the weights are a constant of the model. In mode one-shot, they are an input. The layout is always NCX; `how`
names it if the problem has another one.
"""

from __future__ import annotations

import numpy as np
import openvino
from openvino import opset13 as ops

from ..problem import Problem, as_nxc, empty, in_layout
from . import Ready

DTYPES = ("f32",)
PRECISIONS = {"highest": "f32", "medium": "bf16"}


def version() -> str:
    return openvino.get_version().split("-")[0]


def _model(problem: Problem, weights: np.ndarray) -> openvino.Model:
    layer = problem.layer
    data = ops.parameter((layer.batch, layer.cin, *layer.size), np.float32)
    filter = ops.constant(weights) if problem.prepacked else ops.parameter(weights.shape, np.float32)
    call = ops.group_convolution_backprop_data if layer.groups > 1 else ops.convolution_backprop_data
    result = call(
        data,
        filter,
        strides=list(layer.strides),
        pads_begin=list(layer.pads_begin),
        pads_end=list(layer.pads_end),
        dilations=list(layer.dilations),
        output_padding=list(layer.output_padding),
    )
    if problem.with_bias:
        result = ops.add(result, ops.constant(problem.bias().reshape(-1, *(1 for _ in layer.size))))
    return openvino.Model([result], [data] if problem.prepacked else [data, filter])


def prepare(problem: Problem, threads: int) -> Ready:
    layer = problem.layer
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": PRECISIONS.get(
            problem.precision, "f32"
        ),  # OpenVINO's default is bfloat16 on CPUs that support it
    }
    weights = problem.filter_iox()
    if layer.groups > 1:
        weights = weights.reshape(layer.groups, -1, *weights.shape[1:])
    request = openvino.Core().compile_model(_model(problem, weights), "CPU", options).create_infer_request()
    data = in_layout(problem.data(), "NCX")
    result = empty((layer.batch, layer.cout, *layer.output), data.dtype)
    for index, array in enumerate([data] if problem.prepacked else [data, weights]):
        request.set_input_tensor(index, openvino.Tensor(array, shared_memory=True))
    request.set_output_tensor(openvino.Tensor(result, shared_memory=True))

    def run():
        request.infer()
        return result

    return Ready(run, lambda y: as_nxc(y, "NCX"), "" if problem.layout == "NCX" else "in NCX", keep=(data, weights))
