"""PyTorch: its functional transposed convolution, on channels-last (NXC) or contiguous (NCX) tensors; or what a frozen
graph of torch.compile calls, whose weights were reordered once.

Eager mode has no place to keep prepared weights: what it does with them at every call is part of its time in either
mode. Channels-last tensors exist from two spatial axes on, so there a 1-D problem runs as a 2-D one of height 1; operators
that take reordered weights exist from two axes on in either layout.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ..problem import DTYPES as NUMPY_DTYPES
from ..problem import Problem, in_layout
from . import Ready, Unsupported

DTYPES = ("f32", "f16", "bf16", "f64")
PRECISIONS = {"highest": "ieee", "high": "tf32", "medium": "bf16"}  # what its convolutions, by oneDNN, call them
CALLS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def version() -> str:
    return torch.__version__


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    """A tensor on the array's memory; NumPy's bfloat16 passes as int16."""
    if array is not None and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return None if array is None else torch.from_numpy(array)


def _array(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(dtype) if dtype.name == "bfloat16" else tensor.numpy()


def setup(problem: Problem, threads: int) -> None:
    """Tell PyTorch about threads, gradients and precision."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision(problem.precision)
    torch.backends.mkldnn.conv.fp32_precision = PRECISIONS[problem.precision]


def prepare(problem: Problem, threads: int, layout: str = "", reordered: bool = False) -> Ready:
    """``layout``: that of the tensors, the problem's if it is empty. ``reordered``: weights are reordered once."""
    setup(problem, threads)
    layout = layout or problem.layout
    if reordered and (not problem.prepacked or problem.dtype == "f64"):
        raise Unsupported("weights are reordered once, which one-shot calls can't, and not of float64")
    layer, dtype = problem.layer, NUMPY_DTYPES[problem.dtype]
    data = _tensor(in_layout(problem.data(), layout))
    weight, bias = _tensor(problem.filter_iox()), _tensor(problem.bias())
    # PyTorch pads both ends alike: what the end keeps beyond that is output_padding, what it loses is sliced off.
    extra = np.subtract(layer.pads_begin, layer.pads_end) + layer.output_padding
    attributes = {
        "stride": layer.strides,
        "padding": layer.pads_begin,
        "output_padding": tuple(np.maximum(extra, 0).tolist()),
        "dilation": layer.dilations,
    }
    flat = (layout == "NXC" or reordered) and len(layer.size) == 1
    if flat:
        data, weight = data.unsqueeze(1 if layout == "NXC" else 2), weight.unsqueeze(2)
        neutral = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}
        attributes = {name: (neutral[name], *value) for name, value in attributes.items()}
    rank = weight.ndim - 2
    if layout == "NXC":
        data = data.movedim(-1, 1)
        weight = weight.contiguous(memory_format=CHANNELS_LAST[rank])
    call = CALLS[rank]
    window = (..., *(slice(size) for size in layer.output))

    def run():
        return call(data, weight, bias, groups=layer.groups, **attributes)[window]

    if reordered:
        settings = *(list(attributes[name]) for name in ("padding", "output_padding", "stride", "dilation")), layer.groups
        ops = torch.ops.mkldnn
        weight = ops._reorder_convolution_transpose_weight(weight, *settings, list(data.shape))

        def run():
            return ops._convolution_transpose_pointwise(data, weight, bias, *settings, "none", [], "")[window]

    def nxc(result):
        return _array((result.squeeze(2) if flat else result).movedim(1, -1), dtype)

    how = ["as 2-D"] * flat + [f"in {layout}"] * (layout != problem.layout)
    return Ready(run, nxc, ", ".join(how))
