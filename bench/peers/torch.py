"""PyTorch's functional transposed convolution on channels-last (NXC) or contiguous (NCX) tensors, or, with ``reordered``, the
operator that a frozen graph of torch.compile calls, whose weights are reordered once.

Eager mode cannot keep prepared weights, so it reorders them at each call, and both modes include this time. Channels-last
tensors and operators with reordered weights need at least two spatial axes, so there a 1-D problem runs as a 2-D problem.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from ..problem import DTYPES as NUMPY_DTYPES
from ..problem import Problem, in_layout
from . import Ready, Unsupported

DTYPES = ("f32", "f16", "bf16", "f64")
PRECISIONS = {"highest": "ieee", "high": "tf32", "medium": "bf16"}  # the names in PyTorch's oneDNN settings
CALLS = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
CHANNELS_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def version() -> str:
    return torch.__version__


def _tensor(array: np.ndarray | None) -> torch.Tensor | None:
    """Return a tensor that shares the array's memory. NumPy's bfloat16 is passed as int16."""
    if array is not None and array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return None if array is None else torch.from_numpy(array)


def _array(tensor: torch.Tensor, dtype: np.dtype) -> np.ndarray:
    return tensor.view(torch.int16).numpy().view(dtype) if dtype.name == "bfloat16" else tensor.numpy()


def setup(problem: Problem, threads: int) -> None:
    """Set threads, gradients and precision of PyTorch."""
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision(problem.precision)
    torch.backends.mkldnn.conv.fp32_precision = PRECISIONS[problem.precision]


def prepare(problem: Problem, threads: int, layout: str = "", reordered: bool = False) -> Ready:
    """Prepare a problem with tensors in ``layout`` (default: the problem's). With ``reordered``, weights are reordered once."""
    setup(problem, threads)
    layout = layout or problem.layout
    if reordered and (not problem.prepacked or problem.dtype == "f64"):
        raise Unsupported("reordered weights need mode prepacked and a dtype other than float64")
    layer, dtype = problem.layer, NUMPY_DTYPES[problem.dtype]
    data = _tensor(in_layout(problem.data(), layout))
    weight, bias = _tensor(problem.filter_iox()), _tensor(problem.bias())
    # PyTorch pads both ends equally. A smaller end pad becomes output_padding; for a larger one, the result is sliced.
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
