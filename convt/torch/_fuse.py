"""A transposed convolution of a Sequential, computed together with the batch norm and the activation behind it."""

import weakref

import torch
from torch.nn.modules import module as _module

from .. import _norm
from ._compute import array, sampled, tensor_of
from ._functional import fused
from ._modules import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d

RANKS = {ConvTranspose1d: 1, ConvTranspose2d: 2, ConvTranspose3d: 3}
_NORMS = {1: torch.nn.BatchNorm1d, 2: torch.nn.BatchNorm2d, 3: torch.nn.BatchNorm3d}
_ACTIVATIONS = {
    torch.nn.ReLU: lambda m: "relu",
    torch.nn.ReLU6: lambda m: ("clip", 0.0, 6.0),
    torch.nn.LeakyReLU: lambda m: ("leaky_relu", float(m.negative_slope)),
    torch.nn.Tanh: lambda m: "tanh",
    torch.nn.Sigmoid: lambda m: "sigmoid",
    torch.nn.GELU: lambda m: "gelu" if m.approximate == "none" else None,
    torch.nn.SiLU: lambda m: "swish",
}


def unhooked(module):
    """Whether calling a module is calling its class's forward, and nothing else."""
    hooks = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    return not any(hooks) and "forward" not in vars(module)


def normalizes(module, rank):
    """Whether a module is a batch norm that in inference is a factor and a term for each channel."""
    return type(module) is _NORMS[rank] and module.running_mean is not None and unhooked(module)


def activation_of(module):
    """What convt calls the activation that a module is; None for others."""
    return _ACTIVATIONS[type(module)](module) if type(module) in _ACTIVATIONS and unhooked(module) else None


def follows(modules, n):
    """``(norm or None, activation or None, how many)`` of the modules behind transposed convolution ``n`` that it can do in
    inference."""
    norm = activation = None
    at = n + 1
    if at < len(modules) and normalizes(modules[at], RANKS[type(modules[n])]):
        norm, at = modules[at], at + 1
    if at < len(modules):
        activation = activation_of(modules[at])
        at += activation is not None
    return norm, activation, at - n - 1


def _state(tensor):
    """What changes with a tensor: torch counts changes, and a sample shows those by way of ``.data`` or NumPy."""
    if tensor is None:
        return None
    return id(tensor), tensor._version, tensor.data_ptr(), sampled(array(tensor)).tobytes()


_folded = weakref.WeakKeyDictionary()  # convolution -> (state of what was folded, weight, bias)


def fold(conv, norm):
    """The weight and bias of a convolution with a batch norm behind it: computed anew when one of their tensors has changed."""
    tensors = conv.weight, conv.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var
    state = (norm.eps, *map(_state, tensors))
    known = _folded.get(conv)
    if known is None or known[0] != state:
        arrays = [None if t is None else array(t) for t in tensors]
        known = _folded[conv] = state, *map(tensor_of, _norm.fold(*arrays, norm.eps, conv.groups))
    return known[1:]


class Sequential(torch.nn.Sequential):
    """`torch.nn.Sequential`; in inference its transposed convolutions do what a batch norm and an activation behind them do.

    What its modules are is looked at in each call. Modules with hooks, in training, or while gradients are recorded, are called
    one after the other, as torch does.
    """

    def forward(self, input):
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or _module._has_any_global_hook():
            return super().forward(input)
        modules, n = list(self), 0
        while n < len(modules):
            module = modules[n]
            if type(module) in RANKS and not module.training and module.padding_mode == "zeros" and unhooked(module):
                norm, activation, count = follows(modules, n)
                training = norm is not None and norm.training
                result = together(module, norm, activation, input) if count and not training else None
                if result is not None:
                    input, n = result, n + 1 + count
                    continue
            input, n = module(input), n + 1
        return input


def together(conv, norm, activation, input):
    """The result of all three; None where convt does not do that."""
    rank = RANKS[type(conv)]
    if not isinstance(input, torch.Tensor) or input.dim() != rank + 2:
        return None
    weight, bias = conv.weight, conv.bias
    if norm is not None:
        tensors = [t for t in (weight, bias, norm.weight, norm.bias, norm.running_mean, norm.running_var) if t is not None]
        if weight.dtype not in (torch.float32, torch.float64) or any(
            not t.is_cpu or t.dtype != weight.dtype or t.is_inference() for t in tensors
        ):
            return None
        weight, bias = fold(conv, norm)
    return fused(
        rank, input, weight, bias, conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation,
        conv._convt_precision, activation,
    )  # fmt: skip
