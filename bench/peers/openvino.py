"""OpenVINO's CPU plugin: a model of one (Group)ConvolutionBackpropData with constant weights, its tensors set once.

Its layout is always NCX, which `how` says where the problem's is not.
"""

from __future__ import annotations

import numpy as np
import openvino
from openvino import opset13 as ops

from bench.peers import Ready
from bench.problem import Problem, as_nxc, empty, in_layout

DTYPES = ("f32",)


def version() -> str:
    return openvino.get_version().split("-")[0]


def _model(problem: Problem) -> openvino.Model:
    layer = problem.layer
    data = ops.parameter((layer.batch, layer.cin, *layer.size), np.float32)
    weight, call = problem.filter_iox(), ops.convolution_backprop_data
    if layer.groups > 1:
        call = ops.group_convolution_backprop_data
        weight = weight.reshape(layer.groups, -1, *weight.shape[1:])
    result = call(
        data,
        ops.constant(weight),
        strides=list(layer.strides),
        pads_begin=list(layer.pads_begin),
        pads_end=list(layer.pads_end),
        dilations=list(layer.dilations),
        output_padding=list(layer.output_padding),
    )
    if problem.with_bias:
        result = ops.add(result, ops.constant(problem.bias().reshape(-1, *(1 for _ in layer.size))))
    return openvino.Model([result], [data])


def prepare(problem: Problem, threads: int) -> Ready:
    layer = problem.layer
    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",  # else it computes in bfloat16 where the CPU can
    }
    request = openvino.Core().compile_model(_model(problem), "CPU", options).create_infer_request()
    data = in_layout(problem.data(), "NCX")
    result = empty((layer.batch, layer.cout, *layer.output), data.dtype)
    request.set_input_tensor(openvino.Tensor(data, shared_memory=True))
    request.set_output_tensor(openvino.Tensor(result, shared_memory=True))

    def run():
        request.infer()
        return result

    return Ready(run, lambda y: as_nxc(y, "NCX"), "" if problem.layout == "NCX" else "in NCX", keep=data)
