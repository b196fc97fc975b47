"""PyTorch by the subpixel method: one forward convolution computes all phases as channels, and one copy per phase writes its
outputs to their positions.

Position ``o + p`` of the full scatter, with ``o = s * j + r``, receives tap t of input ``j + (r + p - t) / s``. Phase r is
therefore a forward convolution of stride 1, with the taps t for which this index is an integer. Phases with fewer taps are
filled with zeros. Weights are rearranged and reordered once, so mode one-shot is not supported.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from ..problem import DTYPES as NUMPY_DTYPES
from ..problem import Problem, in_layout
from . import Ready, Unsupported
from .torch import CHANNELS_LAST, _array, _tensor, setup, version  # noqa: F401

DTYPES = ("f32", "f16", "bf16")
PRECISIONS = {"highest": "ieee", "high": "tf32", "medium": "bf16"}
REORDER = {2: torch._C._nn.mkldnn_reorder_conv2d_weight, 3: torch._C._nn.mkldnn_reorder_conv3d_weight}


def _axis(k: int, s: int, p: int, size: int, out: int) -> tuple[list[list[tuple[int, int]]], int, int, int]:
    """Return ``([(tap, position in the forward kernel)] of each phase, kernel length, pad before, pad after)`` of an axis."""
    taps = [[(t, (r + p - t) // s) for t in range(k) if (r + p - t) % s == 0] for r in range(s)]
    steps = [step for phase in taps for _, step in phase]
    first, last = min(steps), max(steps)
    places = [[(t, step - first) for t, step in phase] for phase in taps]
    return places, last - first + 1, -first, -(-out // s) - 1 + last - (size - 1)


def prepare(problem: Problem, threads: int) -> Ready:
    setup(problem, threads)
    layer, layout, dtype = problem.layer, problem.layout, NUMPY_DTYPES[problem.dtype]
    if layer.groups > 1 or max(layer.dilations) > 1:
        raise Unsupported("no groups or dilation")
    if not problem.prepacked:
        raise Unsupported("needs mode prepacked")
    data, filter, bias = _tensor(in_layout(problem.data(), layout)), _tensor(problem.filter()), _tensor(problem.bias())
    data = data.movedim(-1, 1) if layout == "NXC" else data
    flat = len(layer.size) == 1
    if flat:
        data, filter = data.unsqueeze(2), filter.unsqueeze(0)
    one = (1,) * flat
    strides, kernel, output = one + layer.strides, one + layer.kernel, one + layer.output
    pads = (0,) * flat + layer.pads_begin
    axes = [_axis(*axis) for axis in zip(kernel, strides, pads, one + layer.size, output, strict=True)]
    rank, lengths = len(axes), [length for _, length, _, _ in axes]
    phases = list(itertools.product(*(range(s) for s in strides)))
    weight = torch.zeros((len(phases), layer.cout, layer.cin, *lengths), dtype=filter.dtype)
    for n, phase in enumerate(phases):
        for choice in itertools.product(*(axes[ax][0][r] for ax, r in enumerate(phase))):
            taps, places = zip(*choice, strict=True)
            weight[(n, slice(None), slice(None), *places)] = filter[taps].T
    weight = weight.flatten(0, 1)
    before, after = [axis[2] for axis in axes], [axis[3] for axis in axes]
    alike = before == after and min(before) >= 0  # otherwise the input is padded or cropped first
    margins = [margin for pair in zip(reversed(before), reversed(after), strict=True) for margin in pair]
    padding, ones = before if alike else [0] * rank, [1] * rank
    if layout == "NXC":
        data = data.contiguous(memory_format=CHANNELS_LAST[rank])
        weight = weight.contiguous(memory_format=CHANNELS_LAST[rank])
    shape = list((data if alike else F.pad(data, margins)).shape)
    packed = REORDER[rank](weight.to_mkldnn(), padding, ones, ones, 1, shape)
    bias = None if bias is None else bias.repeat(len(phases))
    form = CHANNELS_LAST[rank] if layout == "NXC" else torch.contiguous_format
    result = torch.empty((layer.batch, layer.cout, *output), dtype=data.dtype).contiguous(memory_format=form)
    places = [(..., *(slice(r, None, s) for r, s in zip(phase, strides, strict=True))) for phase in phases]
    sizes = [result[place].shape[2:] for place in places]

    def run():
        source = data if alike else F.pad(data, margins)
        made = torch.ops.mkldnn._convolution_pointwise(source, packed, bias, padding, ones, ones, 1, "none", [], "")
        out = torch.empty_like(result)
        for n, (place, size) in enumerate(zip(places, sizes, strict=True)):
            out[place] = made[:, n * layer.cout : (n + 1) * layer.cout][(..., *map(slice, size))]
        return out

    def nxc(out):
        return _array((out.squeeze(2) if flat else out).movedim(1, -1).contiguous(), dtype)

    return Ready(run, nxc, "as 2-D" if flat else "")
