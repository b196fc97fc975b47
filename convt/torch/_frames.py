"""The check that the forwards of a session of `streaming` act on each frame of a signal alone."""

from __future__ import annotations

import torch
from torch.nn import functional

from . import _forward
from ._functional import bind

_CONVOLUTION, _POINTWISE = functional.conv_transpose1d, (torch.conv1d, torch.conv2d, torch.conv3d)
# Functions that compute each element from itself, that read sizes, and that compute weights of torch.nn.utils.weight_norm.
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
_CUTS = {torch.Tensor.__getitem__, torch.Tensor.narrow, torch.narrow}


def _is_frame_by_frame(func, arguments, keywords):
    """Check whether a call of a function computes each frame of its result from the same frame alone."""
    if func in _FUNCTIONS or (func.__name__ == "__get__" and func.__self__ not in _TURNED):
        return True
    if func is functional.batch_norm:
        return not (any(arguments[5:6]) or keywords.get("training"))
    if func not in _POINTWISE or keywords or len(arguments) < 5 or type(arguments[3]) is not tuple:
        return False  # torch.nn's modules pass these arguments, and tuples
    weight, _, stride, padding = arguments[1:5]
    return {*weight.shape[2:], *stride} == {1} and padding in ("same", "valid", (0,) * len(stride))


class Watch(torch.overrides.TorchFunctionMode):
    """A mode that checks the functions in the forwards of a session, and gives transposed convolutions to their streams.

    The outermost forward enters it. `places` are the forwards that run, `found` maps modules to functions that may read other
    frames, `called` are the layers that were called. `uncut` is a result with outputs that are not final, until the model cuts
    these off: (name of the layer, tensor, number of final outputs).
    """

    def __init__(self):
        super().__init__()
        self.places, self.found, self.called, self.uncut = [], {}, set(), None

    def call(self, place, forward, arguments, keywords):
        """Call a forward, and check its functions. Raise ValueError if some may read other frames."""
        self.places.append(place)
        try:
            if len(self.places) > 1:
                return forward(*arguments, **keywords)
            with self:
                result = forward(*arguments, **keywords)
            self._refuse(None)
            self.expect_cut()
            return result
        except Exception as error:
            self._refuse(error)  # a size may be wrong because of what is found
            raise
        finally:
            self.places.pop()
            if not self.places:
                self.found, self.called, self.uncut = {}, set(), None

    def _refuse(self, cause):
        """Raise ValueError for what is `found` in the outermost forward."""
        named = [f"{name} ({what})" for name, what in self.found.items()]
        if named and len(self.places) == 1:
            self.found, more = {}, f", and {len(named) - 8} more" * (len(named) > 8)
            raise ValueError(
                f"model: got modules that may read other frames, and keep no state: {', '.join(named[:8])}{more}; wanted "
                "modules that act on each frame alone, as chunks would differ from the whole at their borders. Name classes "
                "that keep a state of their own in stateful, those that act on each frame alone in framewise"
            ) from cause

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
        if func is _CONVOLUTION and hasattr(place, "step"):
            return place.step(*bind(*args, **kwargs))
        result = func(*args, **kwargs)
        if not (place.trusted or _is_frame_by_frame(func, args, kwargs) or (func in _CUTS and self._cuts(args[0], result))):
            called = torch.overrides.resolve_name(func) or func
            self.found.setdefault(place.name or "the model itself", f"{type(place._module()).__name__} calls {called}")
        return result

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
    """The forward of a module in a session: that of the module, with its functions checked unless they are ``trusted``."""

    def __init__(self, module, watch, name, trusted):
        super().__init__(module, watch, name, trusted)
        self.watch, self.name, self.trusted, self.torch_forward = watch, name, trusted, type(module).forward
        # The forward that a program set on this module alone.
        self.own = None if isinstance(own := vars(module).get("forward"), _forward.Forward) else own

    def __deepcopy__(self, memo):
        raise TypeError("model: got a copy of a model in a session of convt.torch.streaming, wanted it after the session")

    def __reduce__(self):
        raise TypeError("model: got a pickle of a model in a session of convt.torch.streaming, wanted it after the session")

    def __call__(self, *arguments, **keywords):
        return self.checked(self.module(), arguments, keywords)

    def checked(self, module, arguments, keywords):
        """Call the forward that the module has outside of the session."""
        forward = self.own or type(module).forward.__get__(module)
        return self.watch.call(self, forward, arguments, keywords)
