"""convt: the prepacked operator, or the one-shot function. Both write into an array that is allocated once.

The filter order depends on the data layout: XIO with NXC data, as in oneDNN Graph, and IOX with NCX data, as in ONNX, OpenVINO
and PyTorch.
"""

from __future__ import annotations

import numpy as np

import convt

from ..problem import DTYPES as NUMPY_DTYPES
from ..problem import PRECISIONS as PRECISIONS  # convt offers all precisions
from ..problem import Problem, as_nxc, empty, in_layout
from . import Ready, Unsupported

DTYPES = ("f32", "f16", "bf16", "f64")


def version() -> str:
    return convt.__version__


def keywords(problem: Problem) -> dict:
    """Return the keyword arguments of `convt.ConvTranspose` for a problem."""
    layer = problem.layer
    return {
        "strides": layer.strides,
        "pads_begin": layer.pads_begin,
        "pads_end": layer.pads_end,
        "dilations": layer.dilations,
        "output_padding": layer.output_padding,
        "groups": layer.groups,
        "data_format": problem.layout,
        "precision": problem.precision,
    }


def canonical(problem: Problem):
    """Return the problem that convt's planner gets. No weights are made."""
    layer = problem.layer
    filter = np.broadcast_to(np.zeros((), NUMPY_DTYPES[problem.dtype]), layer.filter_shape)
    attributes = convt.ConvTranspose._borrowing(filter, None, **keywords(problem), backend="native")._attributes
    return attributes.problem(attributes.user_shape(layer.data_shape))


def prepare(problem: Problem, threads: int) -> Ready:
    convt.set_num_threads(threads)
    data, filter, bias = in_layout(problem.data(), problem.layout), problem.filter(), problem.bias()
    attributes = keywords(problem)
    if problem.layout == "NCX":
        filter, attributes["filter_format"] = np.ascontiguousarray(np.moveaxis(filter, (-2, -1), (0, 1))), "IOX"
    try:
        operator = convt.ConvTranspose(filter, bias, **attributes)
        plan = operator.plan(data.shape)
    except convt.BackendUnavailableError as exc:
        raise Unsupported(str(exc)) from exc
    result = empty(operator.output_shape(data.shape), data.dtype)

    def prepacked():
        return operator(data, out=result)

    def one_shot():
        return convt.conv_transpose(data, filter, bias, out=result, **attributes)

    how = " ".join(str(word) for word in (plan.backend, plan.algorithm, plan.unit, plan.isa) if word)
    return Ready(prepacked if problem.prepacked else one_shot, lambda y: as_nxc(y, problem.layout), how)
