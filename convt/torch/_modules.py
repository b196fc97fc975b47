"""Transposed convolution modules computed by convt: subclasses of torch's modules, and a forward for existing modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.modules.utils import _single

from . import _forward
from ._compute import precision_of
from ._functional import NAMES, TORCH_FUNCTIONS, call
from ._weights import computed

if TYPE_CHECKING:
    from .._base.typing import TorchPrecision


class Settings(NamedTuple):
    """The settings of a module: see `accelerate`."""

    precision: str | None = None
    freeze: bool = False
    tune: bool = False


RANKS = {torch.nn.ConvTranspose1d: 1, torch.nn.ConvTranspose2d: 2, torch.nn.ConvTranspose3d: 3}
_FORWARDS = {rank: cls.forward for cls, rank in RANKS.items()}
_FUNCTIONAL = vars(torch.nn.functional)


def base_of(cls):
    """Return which of torch.nn.ConvTranspose1d, 2d and 3d a class is or extends; None for other classes."""
    return next((base for base in RANKS if issubclass(cls, base)), None)


def has_torchs_forward(module, rank):
    """Check whether a module still has torch's forward, as it was when convt was imported.

    A program may change the module's class, the forward of the class, or the function that torch's forward calls.
    """
    return type(module).forward is _FORWARDS[rank] and _FUNCTIONAL[NAMES[rank]] is TORCH_FUNCTIONS[rank]


def _source_tensors(module):
    """Return the tensors from which a module computes its weights."""
    parametrized = module._modules.get("parametrizations")
    places = [module, *(parametrized._modules.values() if parametrized is not None else ())]
    return [tensor for place in places for tensor in place._parameters.values()]


def _weights(module, input, freeze):
    """Return the weight and bias of a module. With ``freeze``, computed ones are those of an earlier call in inference."""
    parameters = module._parameters
    if "weight" in parameters and "bias" in parameters:
        return parameters["weight"], parameters["bias"]  # twice as fast as attribute access
    trusted = freeze and not module.training and not torch.compiler.is_compiling() and not torch.is_grad_enabled()
    if not trusted or "weight" in parameters:
        return module.weight, module.bias
    return computed(module, (input.dtype, input.device), _source_tensors(module), lambda: (module.weight, module.bias))


def _compute_forward(module, rank, input, output_size, settings):
    """Compute the result of torch's forward with convt. ``output_size`` is that of torch's forward."""
    if module.padding_mode != "zeros" or type(module.padding) is not tuple:
        return _FORWARDS[rank](module, input, output_size)
    output_padding = module.output_padding
    if type(output_padding) is not tuple:
        output_padding = _single(output_padding)  # as torch's _output_padding does
    if output_size is not None:
        sizes = module.stride, module.padding, module.kernel_size
        output_padding = module._output_padding(input, output_size, *sizes, rank, module.dilation)
    # After the check of output_size, as in torch, because reading a weight may change the state of a parametrization.
    weight, bias = _weights(module, input, settings.freeze)
    arguments = input, weight, bias, module.stride, module.padding, output_padding, module.groups, module.dilation
    return call(TORCH_FUNCTIONS[rank], arguments, {}, settings)


class TransposedForward(_forward.Forward):
    """The forward of a module of torch's classes, or of a subclass with torch's forward, with its `Settings`."""

    def __init__(self, module, settings, rank):
        super().__init__(module, settings, rank)
        self.rank, self.torch_forward = rank, _FORWARDS[rank]

    def __call__(self, input, output_size=None):
        module = self.module()
        if not has_torchs_forward(module, self.rank):
            return type(module).forward(module, input, *(() if output_size is None else (output_size,)))
        return _compute_forward(module, self.rank, input, output_size, self.settings[0])


def settings_of(module):
    """Return the Settings of a module that convt computes and that is exactly of torch's or convt's classes, else None."""
    own = _forward.installed(module, TransposedForward)
    if own is not None:
        return own.settings[0] if type(module) in RANKS and has_torchs_forward(module, own.rank) else None
    return module._convt_settings if type(module) in TORCH_CLASSES else None


class _WithSettings:
    """A module with convt's settings, which are not part of its ``state_dict``."""

    _convt_settings = Settings()
    _convt_rank: int

    def __init__(self, *args: Any, precision: TorchPrecision = None, freeze: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._convt_settings = Settings(precision_of(precision), freeze)
        if type(self) in TORCH_CLASSES:
            # torch.fx does not enter modules of torch.nn, whose hooks it may be unable to trace.
            self.__module__ = torch.nn.ConvTranspose2d.__module__

    def forward(self: Any, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """Compute the transposed convolution of ``input``, with the spatial sizes ``output_size`` if given."""
        return _compute_forward(self, self._convt_rank, input, output_size, self._convt_settings)


class ConvTranspose1d(_WithSettings, torch.nn.ConvTranspose1d):
    """A drop-in `torch.nn.ConvTranspose1d` that convt computes.

    Arguments, shapes, parameters, ``state_dict``, results and errors are those of torch's class. The keywords ``precision``
    and ``freeze`` are those of `convt.torch.conv_transpose1d`, but ``precision="torch"`` reads torch's setting when the
    module is created.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose1d(8, 4, 16, stride=8, padding=4)(torch.zeros(1, 8, 10)).shape
    torch.Size([1, 4, 80])
    """

    _convt_rank = 1


class ConvTranspose2d(_WithSettings, torch.nn.ConvTranspose2d):
    """A drop-in `torch.nn.ConvTranspose2d` that convt computes, with the additional keywords of `ConvTranspose1d`.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose2d(8, 4, 3, stride=2, padding=1)(torch.zeros(1, 8, 5, 5), output_size=(10, 10)).shape
    torch.Size([1, 4, 10, 10])
    """

    _convt_rank = 2


class ConvTranspose3d(_WithSettings, torch.nn.ConvTranspose3d):
    """A drop-in `torch.nn.ConvTranspose3d` that convt computes, with the additional keywords of `ConvTranspose1d`.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose3d(8, 4, 2, stride=2)(torch.zeros(1, 8, 3, 3, 3)).shape
    torch.Size([1, 4, 6, 6, 6])
    """

    _convt_rank = 3


TORCH_CLASSES = {cls: cls.__bases__[1] for cls in (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)}


def is_convts(module):
    """Check whether a module is of convt's classes, or of a class that extends one and inherits its forward."""
    return isinstance(module, _WithSettings) and type(module).forward is _WithSettings.forward


def calls_only_function(module):
    """Check whether a module is a transposed convolution whose forward is torch's or convt's."""
    base = None if module is None else base_of(type(module))
    return base is not None and (type(module).forward is base.forward or is_convts(module))


def as_torchs(module):
    """Make a module of convt's classes one of torch's. A class that a program derived from convt's stays.

    torch gives a parametrized module a class of its own, derived from the module's class; it is made anew.
    """
    cls = type(module)
    if cls in TORCH_CLASSES:
        module.__class__ = TORCH_CLASSES[cls]
    elif cls.__bases__[0] in TORCH_CLASSES and torch.nn.utils.parametrize.is_parametrized(module):
        module.__class__ = type(cls.__name__, (TORCH_CLASSES[cls.__bases__[0]],), {})
        for name, value in vars(cls).items():
            if name not in ("__dict__", "__weakref__"):
                setattr(module.__class__, name, value)  # here, as torch does, because errors would name properties otherwise
    if not is_convts(module):
        vars(module).pop("_convt_settings", None)
        vars(module).pop("__module__", None)
