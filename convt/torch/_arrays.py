"""Tensors as NumPy arrays that share their memory, and back."""

import ml_dtypes
import numpy as np
import torch

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_MEMORY_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def memory_format(input, weight):
    """The memory format of the output: channels last if the input or the weight has it and is not contiguous as well."""
    for tensor in (input, weight):
        if not tensor.is_contiguous():
            channels_last = _MEMORY_FORMATS.get(tensor.dim())
            if channels_last is not None and tensor.is_contiguous(memory_format=channels_last):
                return channels_last
    return torch.contiguous_format


def array(tensor):
    """A NumPy array of a tensor's memory; of a copy, where the tensor stands for the negative of its memory. Raises ValueError
    for a tensor that has no memory."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor.dtype == torch.bfloat16:
        return array(tensor.view(torch.int16)).view(_BFLOAT16)
    try:
        return tensor.numpy()
    except RuntimeError as error:  # as for the zeros that derivatives are made of
        raise ValueError(str(error)) from error


def tensor_of(array):
    """A tensor of an array's memory."""
    if array.dtype == _BFLOAT16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def place(tensor):
    """The address and layout of a tensor: they change with its memory, its shape and its dtype."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
