"""Transposed convolution modules computed by convt: subclasses of torch's modules, and a forward for existing modules."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from . import _forward
from ._compute import precision_of
from ._functional import NAMES, TORCH_FUNCTIONS, conv_transpose_nd

if TYPE_CHECKING:
    from .._typing import TorchPrecision


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


def _compute_forward(module, rank, input, output_size, settings, tensors=None):
    """Compute the result of torch's forward with convt.

    ``output_size`` is that of torch's forward. ``tensors``, if given, is (weight, bias) to use instead of the module's.
    """
    parameters = module._parameters
    if tensors is not None:
        weight, bias = tensors
    elif "weight" in parameters and "bias" in parameters:
        weight, bias = parameters["weight"], parameters["bias"]  # twice as fast as attribute access
    else:
        weight, bias = module.weight, module.bias
    if module.padding_mode != "zeros":
        raise ValueError(f"Only `zeros` padding mode is supported for ConvTranspose{rank}d")
    output_padding = module.output_padding
    if output_size is not None:
        sizes = module.stride, module.padding, module.kernel_size
        output_padding = module._output_padding(input, output_size, *sizes, rank, module.dilation)
    return conv_transpose_nd(
        rank, input, weight, bias, module.stride, module.padding, output_padding, module.groups, module.dilation, *settings
    )


class TransposedForward(_forward.Forward):
    """The forward of a module of torch's classes, or of a subclass with torch's forward, with its `Settings`."""

    def __init__(self, module, settings):
        super().__init__(module, settings)
        self.module_settings = settings
        self.rank = rank = RANKS[base_of(type(module))]
        self.torch_forward, self.name, self.function = _FORWARDS[rank], NAMES[rank], TORCH_FUNCTIONS[rank]
        self.frozen = None  # (weight, bias, their source tensors) if the weights are computed and frozen

    def __call__(self, input, output_size=None):
        module, settings = self.module(), self.module_settings
        if (  # the checks of `has_torchs_forward`, inlined for speed
            type(module).forward is not self.torch_forward
            or _FUNCTIONAL[self.name] is not self.function
            or type(module.padding) is not tuple
        ):
            return type(module).forward(module, input, *(() if output_size is None else (output_size,)))
        tensors = None
        if settings.freeze and "weight" not in module._parameters and not module.training and not torch.is_grad_enabled():
            tensors = self._frozen_weights(module, input)
        return _compute_forward(module, self.rank, input, output_size, settings, tensors)

    def _frozen_weights(self, module, input):
        """Return (weight, bias) of a module that computes its weights, again only if a source tensor was replaced."""
        sources, frozen = _source_tensors(module), self.frozen
        if frozen is not None:
            weight, bias, known = frozen
            same = len(known) == len(sources) and all(map(operator.is_, known, sources))
            if same and weight.dtype is input.dtype and weight.device == input.device:
                return weight, bias
        self.frozen = weight, bias, _ = module.weight, module.bias, sources
        return weight, bias


def settings_of(module):
    """Return the Settings of a module that convt computes and that is exactly of torch's or convt's classes, else None."""
    own = _forward.installed(module, TransposedForward)
    if own is not None:
        return own.settings[0] if type(module) in RANKS else None
    return module._convt_settings if type(module) in TORCH_CLASSES else None


def _forward_of(rank: int) -> Any:
    """Return the forward method of `_WithSettings` for ``rank`` spatial axes."""

    def forward(self: Any, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """Compute the transposed convolution of ``input``, with the spatial sizes ``output_size`` if given."""
        return _compute_forward(self, rank, input, output_size, self._convt_settings)

    return forward


class _WithSettings:
    """A module with convt's settings, which are not part of its ``state_dict``."""

    _convt_settings = Settings()

    def __init__(self, *args: Any, precision: TorchPrecision = None, freeze: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._convt_settings = Settings(precision_of(precision), freeze)


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

    forward = _forward_of(1)


class ConvTranspose2d(_WithSettings, torch.nn.ConvTranspose2d):
    """A drop-in `torch.nn.ConvTranspose2d` that convt computes.

    Arguments, shapes, parameters, ``state_dict``, results and errors are those of torch's class. The keywords ``precision``
    and ``freeze`` are those of `convt.torch.conv_transpose2d`, but ``precision="torch"`` reads torch's setting when the
    module is created.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose2d(8, 4, 3, stride=2, padding=1)(torch.zeros(1, 8, 5, 5), output_size=(10, 10)).shape
    torch.Size([1, 4, 10, 10])
    """

    forward = _forward_of(2)


class ConvTranspose3d(_WithSettings, torch.nn.ConvTranspose3d):
    """A drop-in `torch.nn.ConvTranspose3d` that convt computes.

    Arguments, shapes, parameters, ``state_dict``, results and errors are those of torch's class. The keywords ``precision``
    and ``freeze`` are those of `convt.torch.conv_transpose3d`, but ``precision="torch"`` reads torch's setting when the
    module is created.

    Examples
    --------
    >>> import torch, convt.torch
    >>> convt.torch.ConvTranspose3d(8, 4, 2, stride=2)(torch.zeros(1, 8, 3, 3, 3)).shape
    torch.Size([1, 4, 6, 6, 6])
    """

    forward = _forward_of(3)


TORCH_CLASSES = {
    ConvTranspose1d: torch.nn.ConvTranspose1d, ConvTranspose2d: torch.nn.ConvTranspose2d,
    ConvTranspose3d: torch.nn.ConvTranspose3d,
}  # fmt: skip
