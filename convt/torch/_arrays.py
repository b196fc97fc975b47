"""Conversion between tensors and NumPy arrays that share memory."""

import numpy as np
import torch
from torch._prims_common import suggest_memory_format  # imports sympy at its first call, which takes 0.3 s and 35 MiB

from .._base.problem import NUMPY_DTYPE

DTYPES = tuple(getattr(torch, name) for name in NUMPY_DTYPE)
PLAIN = (torch.Tensor, torch.nn.Parameter)  # not their subclasses, which may compute something else
_BFLOAT16 = NUMPY_DTYPE["bfloat16"]


def is_plain(tensor, dtype):
    """Check whether an object is a plain tensor of a dtype in CPU memory."""
    return type(tensor) in PLAIN and tensor.is_cpu and tensor.dtype == dtype


def is_channels_last(input, weight, stride, padding, output_padding, groups, dilation):
    """Check whether torch's output is channels last: if torch suggests this format for the input or the weight.

    torch views one spatial axis as two, and makes the input contiguous before. Of its implementations for three spatial axes,
    not all compute channels last.
    """
    is_suggested = _suggests_channels_last(weight) or (
        (input.dim() > 3 or input.is_contiguous()) and _suggests_channels_last(input)
    )
    if not is_suggested or input.dim() < 5:
        return is_suggested
    c, plain = torch._C, lambda n: int(n) if isinstance(n, np.integer) else n  # torch's function refuses NumPy's integers
    stride, padding, output_padding, dilation = (list(map(plain, v)) for v in (stride, padding, output_padding, dilation))
    backend = c._select_conv_backend(input, weight, None, stride, padding, dilation, True, output_padding, plain(groups))
    return c._conv_determine_backend_memory_format(input, weight, backend) is not torch.contiguous_format


def _suggests_channels_last(tensor):
    """Check whether ``Tensor.suggest_memory_format()`` of C++ is channels last: strides grow from the channels to the batch."""
    strides = tensor.stride()
    if strides[1] > strides[-1]:  # the common case, decided at once
        return False
    sizes = tensor.shape
    if not all(type(each) is int for each in (*sizes, *strides)):  # while torch traces with open sizes
        return suggest_memory_format(tensor if tensor.dim() > 3 else tensor.unsqueeze(2)) is not torch.contiguous_format
    least = 1
    for ax in (1, *range(len(sizes) - 1, 1, -1)):
        if sizes[ax] == 0 or strides[ax] < least:
            return False
        least = strides[ax] * sizes[ax]
    # Equal strides of batch and channels, as of (N, 1, 1, 1), are the usual format.
    return sizes[0] > 0 and strides[0] >= least != strides[1]


def array(tensor):
    """Return a NumPy array that shares a tensor's memory, or a copy if the tensor is a negative view (``is_neg``).

    Raise ValueError for a tensor without memory.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return array(tensor.view(torch.int16)).view(_BFLOAT16)
    try:
        return tensor.numpy()
    except RuntimeError as error:  # such as torch's ZeroTensors in forward-mode differentiation
        raise ValueError(str(error)) from error


def tensor_of(array):
    """Return a tensor that shares the memory of an array."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def place(tensor):
    """Return what determines the elements of a real tensor besides its memory: address, shape, strides, dtype and sign.

    Raise ValueError for a tensor without memory.
    """
    try:
        address = tensor.data_ptr()
    except RuntimeError as error:  # such as tensors that an interrupted torch.func transform left in a module
        raise ValueError(str(error)) from error
    return address, tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg()
