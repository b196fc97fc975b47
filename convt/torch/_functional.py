"""The transposed convolutions of `torch.nn.functional`, computed by convt or left to torch: `serve` is the one way to convt's
call, from functions, modules, a mode and fused modules."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from .._plan.repeat import are_axes
from .._run import log
from ._arrays import DTYPES, PLAIN
from ._compute import COMPARED, REFUSED, TRUSTED, check_precision, compute
from ._operator import conv_transpose, is_transformed, output_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from .._base.typing import TorchPrecision

    _Axes: TypeAlias = int | torch.SymInt | Sequence[int | torch.SymInt]  # one value for all spatial axes, or one per axis

_P = ParamSpec("_P")
_T = TypeVar("_T")
_SUPPORTED_TYPES = (*PLAIN, FakeTensor)  # compilers pass FakeTensors instead of plain tensors
_INTEGERS = (int, np.integer, torch.SymInt)
# torch's functions at the time convt was imported. Profilers replace the functions of torch.nn.functional that modules call.
TORCH_FUNCTIONS = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
NAMES = {rank: f"conv_transpose{rank}d" for rank in TORCH_FUNCTIONS}
RANKS_OF = {function: rank for rank, function in TORCH_FUNCTIONS.items()}


def _is_integer(value):
    """Check whether a value is an integer, but no tensor, whose value may change."""
    return isinstance(value, _INTEGERS) and not isinstance(value, bool)


def per_axis(value, rank):
    """Return a tuple of one integer per spatial axis, from one integer or one per axis; None for anything else."""
    if type(value) is tuple and len(value) == rank:
        return value
    if _is_integer(value):
        return (value,) * rank
    if isinstance(value, (tuple, list, torch.Size)) and len(value) in (1, rank):
        return tuple(value) * (rank // len(value))
    return None


def _is_supported(rank, input, weight, bias, attributes, groups, plain):
    """Check whether convt computes a call: CPU tensors of supported dtypes and matching shapes, with valid attributes.

    ``plain`` is the result of `is_plain_call`; if True, all sizes are plain integers. Raise ValueError for attributes that are
    not integers.
    """
    for tensor in (input, weight) if bias is None else (input, weight, bias):
        if type(tensor) not in _SUPPORTED_TYPES:
            return False
        if not tensor.is_cpu or tensor.layout is not torch.strided or tensor.dtype not in DTYPES:
            return False
        cast = not plain and torch.is_autocast_enabled("cpu") and torch.float64 not in (tensor.dtype, input.dtype)
        if tensor.dtype is not input.dtype and not cast:
            return False
    if None in attributes or not _is_integer(groups):
        return False
    # This check is not part of `_is_valid`, because 1.0 and True equal 1 and would find its result for 1.
    if not (plain and are_axes(attributes, rank)) and not all(_is_integer(each) for values in attributes for each in values):
        raise ValueError(f"attributes: got {attributes}, wanted integers")
    is_valid = _is_valid_cached if plain else _is_valid
    return is_valid(rank, input.shape, weight.shape, None if bias is None else bias.shape, attributes, groups)


def _is_valid(rank, data, filter, bias, attributes, groups):
    """Check whether shapes and attributes are valid together and the output is not empty."""
    if len(filter) != rank + 2 or len(data) != rank + 2:
        return False
    stride, padding, output_padding, dilation = attributes
    if any(type(each) is int and each >= 2**31 for each in (groups, *stride, *padding, *output_padding, *dilation)):
        return False  # torch's kernels take the lowest 32 bits
    if type(data[0]) is int and data[0] == 0:
        return False  # torch refuses some empty batches, and computes nothing for the others
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


_is_valid_cached = functools.lru_cache(256)(_is_valid)  # a model repeats its shapes at each call


def is_plain_call(input, weight, bias):
    """Check whether nothing intercepts operators: no compiler, tracer, profiler, mode except `Serving`, forward-mode
    differentiation, vmap or autocast."""
    c = torch._C
    return not (
        FakeTensor in (type(input), type(weight), type(bias))
        or torch.compiler.is_compiling()
        or c._len_torch_dispatch_stack()
        or c._are_functorch_transforms_active()
        or (c._len_torch_function_stack() and _other_modes())
        or c._get_tracing_state()
        or forward_ad._current_level >= 0
        or c._autograd._profiler_enabled()
        or torch.is_autocast_enabled("cpu")
    )


def _other_modes(*transparent):
    """Check for torch function modes other than `Serving` and those of the classes ``transparent``."""
    modes = torch.overrides._get_current_function_mode_stack()
    return not all(isinstance(mode, (Serving, *transparent)) for mode in modes)


_NOTHING = contextlib.nullcontext()


def aside():
    """Return a context without torch function modes, which are also called for each attribute of a tensor.

    Only a plain call may use it, because no mode but `Serving` misses the operators inside.
    """
    return torch._C.DisableTorchFunction() if torch._C._len_torch_function_stack() else _NOTHING


def _is_vmap_under_autocast():
    """Check whether a call is inside vmap and autocast: there, torch's transposed convolutions keep their dtype."""
    return torch.is_autocast_enabled("cpu") and torch._C._are_functorch_transforms_active()


def _needs_torch_operator():
    """Check whether the call must use torch's own operator.

    Exported and traced models must load without convt, torch.func transforms only torch's operators, and a mode may look for
    torch's functions and operators by name.
    """
    if torch.compiler.is_exporting():
        return True
    if torch.compiler.is_compiling():
        return _is_vmap_under_autocast()
    return (
        torch._C._get_tracing_state() is not None
        or is_transformed()
        or _is_vmap_under_autocast()
        or torch._C._len_torch_dispatch_stack() > 0
        or _other_modes(DeviceContext)  # a default device affects only new tensors
    )


def _have_escaped(*tensors):
    """Check for tensors of a torch.func transform that has ended, which only torch's own operators take or refuse."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return any(torch._C._functorch.is_functorch_wrapped_tensor(tensor) for tensor in tensors if tensor is not None)


recorder = None  # while `profile` measures: called with a function that computes a call, and with its arguments


def serve(*arguments):
    """Compute a transposed convolution with convt, or return None for calls that torch computes or refuses.

    The arguments are those of `_serve`.
    """
    return _serve(*arguments) if recorder is None else recorder(_serve, *arguments)


def _serve(
    rank, input, weight, bias, stride, padding, output_padding, groups, dilation, precision=None, freeze=False, tune=False,
    activation=None, fused=(),
):  # fmt: skip
    """Compute what `serve` computes. ``fused`` are the modules of a Sequential that a plain call computes together."""
    plain = bool(fused) or is_plain_call(input, weight, bias)
    if not plain and _needs_torch_operator():
        return None
    attributes = stride, padding, output_padding, dilation
    if not (plain and are_axes(attributes, rank)):  # Dynamo cannot trace compiled functions
        attributes = tuple([per_axis(value, rank) for value in attributes])
    arguments = rank, input, weight, bias, attributes, groups, precision, freeze, tune, activation, plain
    if plain and torch._C._len_torch_function_stack():
        with aside():
            return _computed(*arguments)
    return _computed(*arguments)


def _computed(rank, input, weight, bias, attributes, groups, precision, freeze, tune, activation, plain):
    """Compute what `serve` computes. ``attributes`` are results of `per_axis`, ``plain`` that of `is_plain_call`."""
    batched = input
    if type(input) in _SUPPORTED_TYPES and input.dim() == rank + 1:
        batched = input.unsqueeze(0)
    try:
        if not _is_supported(rank, batched, weight, bias, attributes, groups, plain):
            return None
        # A compiled graph may compute the weight into a tensor and memory that held another weight before.
        reuse = TRUSTED if freeze and (plain or not torch.compiler.is_compiling()) else COMPARED
        arguments = batched, weight, bias, *attributes[:3], groups, attributes[3], precision, reuse
        gradients = torch.is_grad_enabled() and (
            input.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
        )
        # A call through torch's dispatcher takes ten microseconds more.
        if plain and not gradients:
            result = compute(*arguments, activation, tune)
        elif _have_escaped(input, weight, bias):
            raise ValueError("tensors of a transform of torch.func that has ended")
        else:
            result = conv_transpose(*arguments)
        return result if batched is input else result.squeeze(0)
    except REFUSED as error:
        log.note("torch", f"left to torch: {error}")
    except RuntimeError:
        if not (input.is_nested or weight.is_nested):  # nested tensors have no shape
            raise
    return None


def bind(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Return the arguments of a function of torch.nn.functional in order."""
    return input, weight, bias, stride, padding, output_padding, groups, dilation


def call(function, arguments, keywords, settings):
    """Compute a call of one of torch's functions with convt, or with this function, which raises its own errors.

    ``settings`` are precision, freeze and tune.
    """
    try:
        bound = bind(*arguments, **keywords)
    except TypeError:
        bound = None
    result = None if bound is None else serve(RANKS_OF[function], *bound, *settings)
    return function(*arguments, **keywords) if result is None else result


class Serving(TorchFunctionMode):
    """A mode in which convt computes the transposed convolutions of torch.nn.functional, with these settings.

    torch calls a mode on all of its functions in the thread that entered it, and without the mode inside.
    """

    def __init__(self, precision=None, freeze=False, tune=False):
        super().__init__()
        self.settings = precision, freeze, tune

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if function in RANKS_OF and not torch.compiler.is_compiling():
            return call(function, arguments, keywords or {}, self.settings)
        return function(*arguments, **(keywords or {}))


def _computes(torch_function: Callable[..., Any]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Decorate a declaration of convt's function in place of one of torch's, and compute its calls.

    Errors are those of torch's function, which say how the caller gave an argument.
    """

    def decorate(declaration: Callable[_P, _T]) -> Callable[_P, _T]:
        @functools.wraps(declaration)
        def function(*arguments: _P.args, **keywords: _P.kwargs) -> _T:
            settings = keywords.pop("precision", None), keywords.pop("freeze", False), False
            check_precision(settings[0])
            return call(torch_function, arguments, keywords, settings)

        return function

    return decorate


@_computes(functional.conv_transpose1d)
def conv_transpose1d(  # type: ignore[empty-body]
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: _Axes = 1,
    padding: _Axes = 0, output_padding: _Axes = 0, groups: int | torch.SymInt = 1, dilation: _Axes = 1,
    *, precision: TorchPrecision = None, freeze: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute `torch.nn.functional.conv_transpose1d` with convt.

    torch computes what convt does not support: other devices, dtypes and layouts, and subclasses of tensors. Gradients are
    torch's own.

    Parameters
    ----------
    input : tensor (N, C, L) or (C, L)
        float32, float64, float16 or bfloat16. Any strides.
    weight : tensor (C, out_channels / groups, kernel) of the same dtype
        The second call with the same tensor packs the weights. Later calls reuse them while a checksum of all values is
        unchanged. A call that records gradients does not reuse packed weights.
    bias : tensor (out_channels,), optional
        The same dtype.
    stride, padding, output_padding, dilation : int or tuple
        In output elements; one value, or one per spatial axis. ``padding`` is removed from both ends of the output, and
        ``output_padding`` is added at its end. ``output_padding`` must be less than ``max(stride, dilation)``.
    groups : int
        Number of blocks of channels. C and out_channels are multiples of it.
    precision : None, "highest", "high", "medium" or "torch"
        The lowest precision that convt may use for float32: see `convt.conv_transpose`. "torch" means the value of
        ``torch.get_float32_matmul_precision()`` at the call. None means CONVT_PRECISION, or "highest". torch computes gradients
        at its own precision.
    freeze : bool
        If True, you promise that the values of ``weight`` do not change: the first call packs them, and later calls do not
        check them. Call ``convt.torch.refresh(weight)`` after a change.

    Returns
    -------
    tensor (N, out_channels, L_out) or (out_channels, L_out)
        ``L_out = (L - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1``.

    Raises
    ------
    RuntimeError, TypeError
        Raised by torch for invalid arguments.
    ValueError
        ``precision`` is not one of the values above.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.conv_transpose1d(torch.ones(1, 2, 3), torch.ones(2, 1, 2), stride=2).tolist()
    [[[2.0, 2.0, 2.0, 2.0, 2.0, 2.0]]]
    """


@_computes(functional.conv_transpose2d)
def conv_transpose2d(  # type: ignore[empty-body]
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: _Axes = 1,
    padding: _Axes = 0, output_padding: _Axes = 0, groups: int | torch.SymInt = 1, dilation: _Axes = 1,
    *, precision: TorchPrecision = None, freeze: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute `torch.nn.functional.conv_transpose2d` with convt.

    Parameters, errors and output sizes are those of `conv_transpose1d`, with two spatial axes. The output is in
    ``torch.channels_last`` if the input or the weight is.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.conv_transpose2d(torch.ones(1, 8, 5, 5), torch.ones(8, 4, 2, 2), stride=2).shape
    torch.Size([1, 4, 10, 10])
    """


@_computes(functional.conv_transpose3d)
def conv_transpose3d(  # type: ignore[empty-body]
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: _Axes = 1,
    padding: _Axes = 0, output_padding: _Axes = 0, groups: int | torch.SymInt = 1, dilation: _Axes = 1,
    *, precision: TorchPrecision = None, freeze: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Compute `torch.nn.functional.conv_transpose3d` with convt.

    Parameters, errors and output sizes are those of `conv_transpose1d`, with three spatial axes. The output is in
    ``torch.channels_last_3d`` where torch's is.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.conv_transpose3d(torch.ones(8, 3, 3, 3), torch.ones(8, 4, 2, 2, 2), stride=2).shape
    torch.Size([4, 6, 6, 6])
    """
