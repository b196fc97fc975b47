"""What acts on each frame of a signal alone, and so may be called chunk by chunk: modules, and functions in forwards."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils.parametrize import ParametrizationList

from .._base import words
from . import _forward
from ._accelerate import _join
from ._mode import has_own_forward
from ._modules import base_of

_CONVOLUTION = functional.conv_transpose1d
_nn = torch.nn
_ELEMENTWISE = (  # of torch.nn: modules that compute each element from itself, and from weights
    _nn.Identity, _nn.Dropout, _nn.Dropout1d, _nn.AlphaDropout, _nn.FeatureAlphaDropout, _nn.Embedding, _nn.ReLU, _nn.ReLU6,
    _nn.LeakyReLU, _nn.PReLU, _nn.RReLU, _nn.ELU, _nn.CELU, _nn.SELU, _nn.GELU, _nn.SiLU, _nn.Mish, _nn.Tanh, _nn.Sigmoid,
    _nn.LogSigmoid, _nn.Hardtanh, _nn.Hardsigmoid, _nn.Hardswish, _nn.Hardshrink, _nn.Softshrink, _nn.Tanhshrink, _nn.Softplus,
    _nn.Softsign, _nn.Threshold,
)  # fmt: skip
# Functions like these modules, what reads sizes, and what computes the weights of torch.nn.utils.weight_norm.
_NAMES = """
    abs add sub rsub subtract mul multiply div divide true_divide rdiv truediv rtruediv neg negative pow rpow exp exp2 expm1 log
    log1p sqrt rsqrt square reciprocal sign sin cos tan tanh atan sinh cosh sigmoid logit erf relu relu6 leaky_relu prelu rrelu
    elu celu selu gelu silu mish hardtanh hardsigmoid hardswish hardshrink softshrink tanhshrink softplus softsign logsigmoid
    threshold clamp clip minimum maximum where lerp addcmul addcdiv nan_to_num isnan isfinite eq ne lt le gt ge dropout
    dropout1d alpha_dropout feature_alpha_dropout embedding zeros_like ones_like clone detach contiguous to float double half
    bfloat16 type_as iadd isub imul itruediv ipow radd rmul size dim numel stride is_contiguous is_floating_point len
    _weight_norm norm_except_dim _set_grad_enabled
"""
_PLACES = torch, torch.Tensor, functional, torch._C, torch._C._nn, torch._C.TensorBase
_FUNCTIONS = frozenset(
    getattr(place, form)
    for place in _PLACES for name in _NAMES.split() for form in (name, f"{name}_", f"__{name}__") if hasattr(place, form)
)  # fmt: skip
_TURNED = {getattr(torch.Tensor, name) for name in ("T", "mT", "H", "mH")}  # attributes with the axes exchanged
_CHECKED = _nn.Sequential, _BatchNorm  # whose forwards call other modules, or a function that depends on the mode
_CUTS = {torch.Tensor.__getitem__, torch.Tensor.narrow, torch.narrow}
_SHOWN = 8  # number of modules that an error names


class Place(NamedTuple):
    """A forward that runs: the name of its module, whether its functions need no check, and its StreamingForward or None."""

    name: str
    trusted: bool
    layer: Any = None


def examine(model, stateful, framewise):
    """Return ``(layers, watched, others, left)``: what a session does with each module of a model.

    ``layers`` are the transposed convolutions as ``{name: module}``, ``watched`` the modules whose forward calls functions as
    ``[(Place, module)]``, ``others`` the modules that may read other frames than their own as ``{name: what they are}``, and
    ``left`` the outermost modules of the classes ``stateful`` as ``[(name, module)]``.
    """
    layers, watched, others, left = {}, [], {}, []

    def look(name, module, above):
        if isinstance(module, stateful):
            left.append((name, module))
            watched.append((Place(name, True), module))
            return
        if isinstance(module, ParametrizationList) or any(module is each for each in above):
            return
        if base_of(type(module)):
            layers[name] = module
        elif isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl is not None:
            others[name] = "compiled"
            return
        elif isinstance(module, framewise) or _is_pointwise_convolution(module):
            watched.append((Place(name, True), module))
        elif has_forward(module) or isinstance(module, _CHECKED):
            watched.append((Place(name, False), module))
        elif type(module).forward is not _nn.Module.forward and not isinstance(module, _ELEMENTWISE):
            kernel = getattr(module, "kernel_size", None)
            others[name] = type(module).__name__ + (f" with kernel {kernel}" if isinstance(kernel, tuple) else "")
        for key, child in module._modules.items():
            if child is not None:
                look(_join(name, key), child, (*above, module))

    look("", model, ())
    return layers, watched, others, left


def has_forward(module):
    """Check whether a module has a forward that neither torch nor convt wrote."""
    return has_own_forward(module) or own_forward(module) is not None


def own_forward(module):
    """Return the forward that a program set on a single module, or None."""
    forward = vars(module).get("forward")
    return None if isinstance(forward, _forward.Forward) else forward


def _is_pointwise_convolution(module):
    if has_forward(module) or not isinstance(module, _ConvNd):
        return False
    return {*module.kernel_size, *module.stride} == {1} and not any(module._reversed_padding_repeated_twice)


def list_of(others):
    """Return a text that names modules: ``{name: what it is}``."""
    named = [f"{name or 'the model itself'} ({what})" for name, what in list(others.items())[:_SHOWN]]
    more = len(others) - len(named)
    return ", ".join(named) + (f" and {words.count(more, 'other')}" if more else "")


class Watch(torch.overrides.TorchFunctionMode):
    """A mode that checks the functions in the forwards of a session, and gives transposed convolutions to their streams.

    The outermost forward enters it. `places` are the forwards that run. `called` are the layers that the outermost forward has
    called. `uncut` is the last result of a layer that has outputs that are not final, until the model cuts these off: (name of
    the layer, tensor, number of final outputs).
    """

    def __init__(self):
        super().__init__()
        self.places, self.called, self.uncut = [], set(), None

    def call(self, place, forward, arguments, keywords):
        """Call a forward, and check its functions."""
        self.places.append(place)
        try:
            if len(self.places) > 1:
                return forward(*arguments, **keywords)
            with self:
                result = forward(*arguments, **keywords)
            self.expect_cut()
            return result
        finally:
            self.places.pop()
            if not self.places:
                self.called, self.uncut = set(), None

    def expect_cut(self):
        """Raise ValueError if the model has not cut off the outputs that are not final."""
        if self.uncut is not None:
            name, tensor, final = self.uncut
            raise ValueError(
                f"{name}: got {tensor.shape[-1] - final} outputs that may still change and that the model does not cut off, "
                "wanted trim='right', which cuts them off, or trim=None"
            )

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, place = kwargs or {}, self.places[-1]
        if func is _CONVOLUTION and place.layer is not None:
            return place.layer.intercept(*args, **kwargs)
        if place.trusted or func in _FUNCTIONS or (func.__name__ == "__get__" and func.__self__ not in _TURNED):
            return func(*args, **kwargs)
        if func is functional.batch_norm and not (args[5] if len(args) > 5 else kwargs.get("training")):
            return func(*args, **kwargs)
        if func in _CUTS and self._cuts(args[0], result := func(*args, **kwargs)):
            return result
        called = torch.overrides.resolve_name(func) or func
        raise ValueError(
            f"{place.name or 'the model'}: got a call of {called}, wanted functions that act "
            "on each frame alone. If this call does, give the class of the module as framewise; if the module keeps a state of "
            "its own, as stateful"
        )

    def _cuts(self, tensor, part):
        """Check whether ``part`` is the whole tensor, or the final outputs of the last layer."""
        if not isinstance(part, torch.Tensor) or part.data_ptr() != tensor.data_ptr() or part.stride() != tensor.stride():
            return False
        if self.uncut is None or self.uncut[1] is not tensor:
            return part.shape == tensor.shape
        if part.shape != (*tensor.shape[:-1], self.uncut[2]):
            return False
        self.uncut = None
        return True


class SessionForward(_forward.Forward):
    """The forward of a module in a session, which has the forward of the module, and checks its functions."""

    def __init__(self, module, watch, place):
        super().__init__(module, watch, place)
        self.watch, self.place, self.own, self.torch_forward = watch, place, own_forward(module), type(module).forward

    def __deepcopy__(self, memo):
        raise TypeError("model: got a copy of a model in a session of convt.torch.streaming, wanted it after the session")

    def __reduce__(self):
        raise TypeError("model: got a pickle of a model in a session of convt.torch.streaming, wanted it after the session")

    def __call__(self, *arguments, **keywords):
        return self.checked(self.module(), arguments, keywords)

    def checked(self, module, arguments, keywords):
        """Call the forward that the module has outside of the session."""
        forward = self.own or type(module).forward.__get__(module)
        return self.watch.call(self.place, forward, arguments, keywords)
