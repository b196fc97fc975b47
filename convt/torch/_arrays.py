"""Conversion between tensors and NumPy arrays that share memory."""

import ml_dtypes
import numpy as np
import torch

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def memory_format(input, weight):
    """Return the memory format of the output: channels last if the input or the weight is channels last and not contiguous."""
    for tensor in (input, weight):
        if not tensor.is_contiguous():
            channels_last = _MEMORY_FORMATS.get(tensor.dim())
            if channels_last is not None and tensor.is_contiguous(memory_format=channels_last):
                return channels_last
    return torch.contiguous_format


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
    """Return the address, shape, strides and dtype of a tensor."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
