"""`torch.nn.functional`'s transposed convolutions: what convt computes, and what is left to torch."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._device import DeviceContext

from .. import _config
from ._arrays import DTYPES
from ._compute import COMPARED, REFUSED, TRUSTED, check_precision, compute
from ._operator import conv_transpose, is_transformed, output_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from .._typing import TorchPrecision

    _Axes: TypeAlias = int | torch.SymInt | Sequence[int | torch.SymInt]  # one for every axis, or one for each

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SERVED = (*_PLAIN, FakeTensor)  # a compiler calls with FakeTensors in place of plain ones
_INTEGERS = (int, torch.SymInt)
# As they were when convt was imported: profilers put functions of theirs in the place of these, for modules to call.
TORCHS_FUNCTIONS = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
NAMES = {rank: f"conv_transpose{rank}d" for rank in TORCHS_FUNCTIONS}


def _each(value, rank):
    """One integer per axis, from an integer or one per axis; None for anything else."""
    if type(value) is tuple and len(value) == rank:
        return value
    if isinstance(value, _INTEGERS) and not isinstance(value, bool):
        return (value,) * rank
    if isinstance(value, (tuple, list, torch.Size)) and len(value) in (1, rank):
        return tuple(value) * (rank // len(value))
    return None


def _served(rank, input, weight, bias, attributes, groups, plain):
    """Whether convt computes this: tensors of the CPU that fit each other, and attributes that are right. ``plain``: nothing
    stands for a size but an integer."""
    for tensor in (input, weight) if bias is None else (input, weight, bias):
        if type(tensor) not in _SERVED:
            return False
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.dtype not in DTYPES:
            return False
        cast = not plain and torch.is_autocast_enabled("cpu") and torch.float64 not in (tensor.dtype, input.dtype)
        if tensor.dtype is not input.dtype and not cast:
            return False
    if None in attributes or not isinstance(groups, _INTEGERS) or isinstance(groups, bool):
        return False
    fits = _fits_again if plain else _fits
    return fits(rank, input.shape, weight.shape, None if bias is None else bias.shape, attributes, groups)


def _fits(rank, data, filter, bias, attributes, groups):
    """Whether shapes fit each other and the attributes, and leave an output. Raises ValueError for attributes that are no
    integers, because False would be remembered for the integers that they are equal to."""
    if any(type(each) in (bool, float) for values in attributes for each in values):
        raise ValueError(f"attributes: got {attributes}, wanted integers")
    if len(filter) != rank + 2 or len(data) != rank + 2:
        return False
    stride, padding, output_padding, dilation = attributes
    if any(type(each) is int and each >= 2**63 for each in (groups, *stride, *padding, *output_padding, *dilation)):
        return False  # no graph can hold it
    ci, co = filter[0], filter[1] * groups
    if groups < 1 or ci < 1 or co < 1 or ci % groups or data[1] != ci:
        return False
    if bias is not None and (len(bias) != 1 or bias[0] != co):
        return False
    for s, p, extra, d in zip(stride, padding, output_padding, dilation, strict=True):
        if s < 1 or d < 1 or p < 0 or extra < 0 or extra >= max(s, d):
            return False
    sizes = output_sizes(data[2:], filter[2:], stride, padding, output_padding, dilation)
    return all(size > 0 for size in (*data[2:], *filter[2:], *sizes))


_fits_again = functools.lru_cache(256)(_fits)  # the shapes of a model come again at each call


def untransformed(input, weight, bias):
    """Whether nothing looks at operators as they are called: no compiler, tracer, profiler, mode, derivative forward, vmap or
    autocast."""
    c = torch._C
    return not (
        FakeTensor in (type(input), type(weight), type(bias))
        or torch.compiler.is_compiling()
        or c._len_torch_dispatch_stack()
        or c._are_functorch_transforms_active()
        or c._len_torch_function_stack()
        or c._get_tracing_state()
        or forward_ad._current_level >= 0
        or c._autograd._profiler_enabled()
        or torch.is_autocast_enabled("cpu")
    )


def _wants_torchs_own():
    """Whether torch's own operator is wanted: an exported or traced model must load where there is no convt, torch.func can
    transform torch's operators, and a mode may ask for torch's functions and operators by name."""
    if torch.compiler.is_exporting():
        return True
    if torch.compiler.is_compiling():
        return False
    modes = torch.overrides._get_current_function_mode_stack()
    return (
        torch._C._get_tracing_state() is not None
        or is_transformed()
        or torch._C._len_torch_dispatch_stack() > 0
        or not all(isinstance(mode, DeviceContext) for mode in modes)  # a default device is for new tensors alone
    )


def call(rank, input, weight, bias, stride, padding, output_padding, groups, dilation, precision, freeze, tune=False):
    """A function of torch.nn.functional for ``rank`` spatial axes, computed by convt or by torch."""
    check_precision(precision)
    attributes = _each(stride, rank), _each(padding, rank), _each(output_padding, rank), _each(dilation, rank)
    plain = untransformed(input, weight, bias)
    if plain or not _wants_torchs_own():
        batched = input
        if type(input) in _SERVED and input.dim() == rank + 1:
            batched = input.unsqueeze(0)
        try:
            if _served(rank, batched, weight, bias, attributes, groups, plain):
                each_stride, each_padding, extra, each_dilation = attributes
                # A compiled graph may have computed the weight, in memory and a tensor that served for another one before.
                reuse = TRUSTED if freeze and (plain or not torch.compiler.is_compiling()) else COMPARED
                arguments = batched, weight, bias, each_stride, each_padding, extra, groups, each_dilation, precision, reuse
                gradients = torch.is_grad_enabled() and (
                    input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
                )
                # A call through torch's dispatcher takes ten microseconds more.
                result = conv_transpose(*arguments) if gradients or not plain else compute(*arguments, None, tune)
                return result if batched is input else result.squeeze(0)
        except REFUSED as error:
            _config.note("torch", f"left to torch: {error}")
        except RuntimeError:
            if not (input.is_nested or weight.is_nested):  # nested tensors have no shape
                raise
    return TORCHS_FUNCTIONS[rank](input, weight, bias, stride, padding, output_padding, groups, dilation)


def fused(rank, input, weight, bias, stride, padding, output_padding, groups, dilation, precision, reuse, activation, tune):
    """A transposed convolution and an activation in one, for inference alone and where nothing has to see each operator (see
    `untransformed`); None if convt does not serve the tensors."""
    attributes = stride, padding, output_padding, dilation
    try:
        if not _served(rank, input, weight, bias, attributes, groups, True):
            return None
        return compute(
            input, weight, bias, stride, padding, output_padding, groups, dilation, precision, reuse, activation, tune
        )
    except REFUSED as error:
        _config.note("torch", f"left to torch: {error}")
        return None


def conv_transpose1d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: _Axes = 1,
    padding: _Axes = 0, output_padding: _Axes = 0, groups: int | torch.SymInt = 1, dilation: _Axes = 1,
    *, precision: TorchPrecision = None, freeze: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose1d`, computed by convt.

    Parameters
    ----------
    input : tensor (N, C, L) or (C, L)
        float32, float64, float16 or bfloat16.
    weight : tensor (C, out_channels / groups, kernel) of the same dtype
        The second call with the same tensor packs it, and later calls use the packed weights while a checksum of all its values
        is the same. A call that records gradients uses no weights that were packed before.
    bias : tensor (out_channels,), optional
    stride, padding, output_padding, dilation : int or tuple
    groups : int
    precision : None, "highest", "high", "medium" or "torch"
        What convt may take for float32: see `convt.conv_transpose`. "torch": what ``torch.get_float32_matmul_precision()`` says
        at the call. Gradients are computed by torch, which has settings of its own.
    freeze : bool
        True promises that the values of ``weight`` do not change: the first call packs them, and later calls compare nothing.
        After a change call ``convt.torch.refresh(weight)``.

    Returns
    -------
    tensor (N, out_channels, L_out) or (out_channels, L_out), where
    ``L_out = (L - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1``.

    Raises
    ------
    RuntimeError, TypeError
        Torch's own.
    ValueError
        ``precision`` is none of these.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.conv_transpose1d(torch.ones(1, 2, 3), torch.ones(2, 1, 2), stride=2).tolist()
    [[[2.0, 2.0, 2.0, 2.0, 2.0, 2.0]]]
    """
    return call(1, input, weight, bias, stride, padding, output_padding, groups, dilation, precision, freeze)


def conv_transpose2d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: _Axes = 1,
    padding: _Axes = 0, output_padding: _Axes = 0, groups: int | torch.SymInt = 1, dilation: _Axes = 1,
    *, precision: TorchPrecision = None, freeze: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose2d`, computed by convt: see `conv_transpose1d`, with two spatial axes.

    An input or a weight in ``torch.channels_last`` gives an output in it.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.conv_transpose2d(torch.ones(1, 8, 5, 5), torch.ones(8, 4, 2, 2), stride=2).shape
    torch.Size([1, 4, 10, 10])
    """
    return call(2, input, weight, bias, stride, padding, output_padding, groups, dilation, precision, freeze)


def conv_transpose3d(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: _Axes = 1,
    padding: _Axes = 0, output_padding: _Axes = 0, groups: int | torch.SymInt = 1, dilation: _Axes = 1,
    *, precision: TorchPrecision = None, freeze: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.functional.conv_transpose3d`, computed by convt: see `conv_transpose1d`, with three spatial axes.

    An input or a weight in ``torch.channels_last_3d`` gives an output in it.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.conv_transpose3d(torch.ones(8, 3, 3, 3), torch.ones(8, 4, 2, 2, 2), stride=2).shape
    torch.Size([4, 6, 6, 6])
    """
    return call(3, input, weight, bias, stride, padding, output_padding, groups, dilation, precision, freeze)
