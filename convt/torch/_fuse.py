"""Fusion of a transposed convolution in a Sequential with the batch norm and activation that follow it."""

import sys

import torch
from torch.nn.modules import module as _module

from .._base import norm as _norm
from .._base.activation import ACTIVATIONS
from ._arrays import array, is_plain, tensor_of
from ._forward import Forward, unhooked
from ._functional import aside, is_plain_call, serve
from ._modules import RANKS, TransposedForward, base_of, settings_of
from ._weights import computed, fingerprint, register_copy

_FOLDED = (torch.float32, torch.float64)  # dtypes of weights exact enough to absorb a batch norm
_NORMS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}
# Class -> (name of convt's activation, strides of the result, attributes of its parameters)
_ACTIVATIONS = {getattr(torch.nn, each.torch[0]): (name, *each.torch[1:]) for name, each in ACTIVATIONS.items() if each.torch}
_ACTIVATIONS[torch.nn.PReLU] = ("leaky_relu", "kept", "weight")
_IDENTITIES = (torch.nn.Identity, torch.nn.Dropout, torch.nn.Dropout1d, torch.nn.Dropout2d, torch.nn.Dropout3d)  # in inference

# torch's methods at the time convt was imported, because a program may replace them in the classes.
_FORWARDS = {cls: cls.forward for cls in (*_NORMS.values(), *_ACTIVATIONS, *_IDENTITIES)}
_FORWARD, _ITER, _CALL = torch.nn.Sequential.forward, torch.nn.Sequential.__iter__, torch.nn.Module.__call__


def _calls_in_order(cls):
    """Check whether modules of a class call their children in order, as `torch.nn.Sequential` does."""
    return getattr(cls, "forward", None) is _FORWARD and getattr(cls, "__iter__", None) is _ITER and cls.__call__ is _CALL


def is_sequential(module):
    """Check whether calling a module only calls its children in order, without hooks."""
    return isinstance(module, torch.nn.Module) and _calls_in_order(type(module)) and unhooked(module, SequentialForward)


def leaves(sequential):
    """Return ``(names, modules)`` that a Sequential calls in order. Nested Sequentials are flattened."""
    names, modules = [], []
    for name, module in sequential._modules.items():
        if is_sequential(module):
            inner, found = leaves(module)
            names += [f"{name}.{each}" for each in inner]
            modules += found
        else:
            names.append(name)
            modules.append(module)
    return names, modules


def _transposed(module):
    """Check whether a module is a transposed convolution that convt computes, with a weight and without hooks."""
    if module is None or settings_of(module) is None or not unhooked(module, TransposedForward):
        return False
    return module._parameters.get("weight") is not None


def _is_exactly(module, classes):
    """Check whether a module is exactly of one of these torch classes, with torch's forward and without hooks."""
    cls = type(module)
    return cls in classes and cls.forward is _FORWARDS[cls] and unhooked(module)


def _is_number(value):
    """Check whether a value is a finite number, but no tensor, whose value may change."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def _is_foldable_norm(module, rank):
    """Check whether a module is a batch norm with running statistics: in inference, a scale and shift per channel."""
    return (
        _is_exactly(module, (_NORMS[rank],))
        and module.running_mean is not None
        and module.running_var is not None
        and _is_number(module.eps)
    )


def _activation_of(module, dtype):
    """Return convt's activation for a module after a layer of this dtype, or None if the module is no supported activation."""
    if not _is_exactly(module, _ACTIVATIONS):
        return None
    name, _, *attributes = _ACTIVATIONS[type(module)]
    numbers = [getattr(module, each, None) for each in attributes]
    if isinstance(module, torch.nn.PReLU):
        (slope,) = numbers
        if not is_plain(slope, dtype) or slope.dim() > 1 or slope.numel() != 1:
            return None
        numbers = [slope.item()]  # read at each call
    elif name == "gelu" and module.approximate != "none":
        return None
    return (name, *map(float, numbers)) if all(map(_is_number, numbers)) and list(numbers) == sorted(numbers) else None


def fusible_modules(modules, n, inference=False):
    """Return ``(norm or None, activation or None, count)``: the modules after transposed convolution ``n`` to fuse with it.

    The fusion replaces the next ``count`` modules. If ``inference`` is True, modules in training mode are treated as if in
    ``eval`` mode.
    """
    rank, norm, end = RANKS[base_of(type(modules[n]))], None, n + 1
    for at in range(n + 1, len(modules)):
        module = modules[at]
        if module is None:
            break
        if (activation := _activation_of(module, modules[n].weight.dtype)) is not None:
            return norm, activation, at - n
        is_norm = norm is None and _is_foldable_norm(module, rank)
        if not (is_norm or _is_exactly(module, _IDENTITIES)) or (module.training and not inference):
            break
        if is_norm:
            norm, end = module, at + 1
    return norm, None, end - n - 1


def is_identity(module):
    """Check whether a module changes nothing in inference."""
    return isinstance(module, _IDENTITIES)


def fused_classes(sequential):
    """Return ``{name of a transposed convolution: classes of the modules fused with it in inference}`` of a Sequential."""
    names, modules = leaves(sequential)
    found = {}
    for n, module in enumerate(modules):
        count = fusible_modules(modules, n, inference=True)[2] if _transposed(module) else 0
        if count:
            behind = [type(each) for each in modules[n + 1 : n + 1 + count]]
            found[names[n]] = tuple(cls.__name__ for cls in behind if cls not in _IDENTITIES)
    return found


class SequentialForward(Forward):
    """The forward of a Sequential that fuses modules with the transposed convolutions before them in inference.

    Each call inspects the modules again, because they may have changed. While gradients are recorded, and for modules with
    hooks or in training mode, modules are called one by one, as in torch.
    """

    def __init__(self, module):
        super().__init__(module)
        self.torch_forward = _FORWARD

    def __call__(self, input):
        module = self.module()
        in_order = _calls_in_order(type(module)) and not _module._has_any_global_hook()
        if torch.is_grad_enabled() or not is_plain_call(input, None, None) or not in_order:
            return type(module).forward(module, input)
        (_, modules), n = leaves(module), 0
        while n < len(modules):
            each = modules[n]
            if _transposed(each):
                norm, activation, count = fusible_modules(modules, n)
                with aside():
                    result = _fold_and_compute(modules[n : n + 1 + count], norm, activation, input) if count else None
                if result is not None:
                    input, n = _with_strides(result, norm, modules[n + count]), n + 1 + count
                    continue
            input, n = each(input), n + 1
        return input


def _fold_and_compute(modules, norm, activation, input):
    """Compute a transposed convolution, norm and activation in one call, or return None if convt cannot fuse them."""
    conv = modules[0]
    rank, settings, weight, bias = RANKS[base_of(type(conv))], settings_of(conv), conv.weight, conv.bias
    if not isinstance(input, torch.Tensor) or input.dim() != rank + 2:
        return None
    if conv.padding_mode != "zeros" or type(conv.padding) is not tuple:
        return None
    if norm is not None:
        weight, bias = _folded(conv, norm, rank, settings.freeze)
        if weight is None:
            return None
    arguments = input, weight, bias, conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation
    freeze = settings.freeze or norm is not None  # only convt has references to folded weights
    return serve(rank, *arguments, settings.precision, freeze, settings.tune, activation, modules)


def _with_strides(result, norm, last):
    """Return a result with the strides that it has in torch, which differ if there is one channel or one pixel.

    ``last`` is the last of the modules that are fused. The result of a convolution may have strides of channels last. A module
    whose strides are "kept" returns those of its input. Norms and modules with "usual" strides return a contiguous input with
    the usual ones. The result of a module with "contiguous" strides is always contiguous.
    """
    strides = _ACTIVATIONS.get(type(last), ("", "usual"))[1]
    if (strides == "kept" or getattr(last, "inplace", False)) and norm is None:
        return result
    result = result.contiguous() if strides == "contiguous" else result
    if result.stride(1) == 1 and result.is_contiguous():
        return tensor_of(array(result).reshape(-1).reshape(result.shape))
    return result


def _folded(conv, norm, rank, freeze):
    """Return the weight and bias of a convolution with a batch norm folded in, or (None, None) if convt cannot fold it.

    They are computed again when a tensor changes.
    """
    tensors = conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var
    weight, *vectors = [tensor for tensor in tensors if tensor is not None]
    if weight.dtype not in _FOLDED or not all(is_plain(each, weight.dtype) for each in (weight, *vectors)):
        return None, None
    if weight.dim() != rank + 2 or weight.shape[1] * conv.groups != conv.out_channels:
        return None, None
    if any(each.shape != (conv.out_channels,) for each in vectors):
        return None, None
    try:
        state = norm.eps, *[fingerprint(tensor, freeze) for tensor in tensors]
    except ValueError:  # a tensor without memory
        return None, None
    return computed(conv, state, tensors, lambda: _fold(tensors, norm.eps, conv.groups))


def _fold(tensors, epsilon, groups):
    """Return the weight and bias of `_folded`, or (None, None) if they could change results."""
    weight, bias = _norm.fold(*[None if each is None else array(each) for each in tensors], epsilon, groups)
    if weight is None:
        return None, None
    folded = torch.empty_like(tensors[0], requires_grad=False)  # with its strides, which determine the output's
    array(folded)[...] = weight
    if not torch.__future__.get_swap_module_params_on_conversion():
        register_copy(folded)
    return folded, tensor_of(bias)
