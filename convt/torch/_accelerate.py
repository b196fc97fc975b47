"""Whole models: convt computes their transposed convolutions, and gives them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from .. import _words
from . import _forward, _fuse, _weights
from ._compute import precision_of
from ._modules import TORCHS, Settings, TransposedForward, base_of

if TYPE_CHECKING:
    from .._typing import TorchPrecision

Model = TypeVar("Model", bound=torch.nn.Module)
ModelOrTensor = TypeVar("ModelOrTensor", bound=torch.nn.Module | torch.Tensor)


class Report(NamedTuple):
    """What `accelerate` did, by the modules' names in the model."""

    swapped: tuple[str, ...]  # names of the modules that convt computes
    kept: dict[str, str]  # name -> why torch still computes it
    fused: dict[str, tuple[str, ...]]  # name -> classes of the modules behind it that are computed with it in inference
    frozen: tuple[str, ...] = ()  # names of the modules whose weights are not compared with those that were packed

    def __str__(self) -> str:
        names = ", ".join(self.swapped) or "none"
        lines = [f"convt computes {_words.count(len(self.swapped), 'transposed convolution')}: {names}"]
        lines += [f"{name}: in inference with the {' and the '.join(behind)} behind it" for name, behind in self.fused.items()]
        if self.frozen:
            lines.append(f"weights taken as constant until convt.torch.refresh(model): {', '.join(self.frozen)}")
        return "\n".join(lines + [f"{name}: left to torch, because {why}" for name, why in self.kept.items()])


def _why_not(module):
    """Why convt does not compute a transposed convolution; None if it does."""
    cls, base = type(module), base_of(type(module))
    if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
        return "its sizes are not known before its first call: accelerate the model after it"
    if cls.forward is not base.forward:
        return f"{cls.__name__} has a forward of its own"
    if cls._output_padding is not base._output_padding:
        return f"{cls.__name__} has an _output_padding of its own"
    if "forward" in vars(module) and _forward.installed(module, TransposedForward) is None:
        return "its forward was replaced"
    return None


def accelerate(
    model: Model, *, precision: TorchPrecision = None, freeze: bool = False, tune: bool = False
) -> tuple[Model, Report]:
    """Let convt compute every transposed convolution of a model.

    Modules stay the objects that they are, of their class: parameters, names in ``state_dict``, hooks, parametrizations, weight
    norm, sharing, training and device are as before; only their ``forward`` is convt's. Those of a class with a forward of its
    own stay torch's. In inference (``no_grad``, norms in ``eval``) those in a `torch.nn.Sequential` also do the work of a batch
    norm and an activation (ReLU, ReLU6, LeakyReLU, Tanh, Sigmoid, GELU, SiLU) behind them. While torch exports, traces or
    quantizes a model, the modules are torch's own. Calling it again is harmless.

    Parameters
    ----------
    model : torch.nn.Module
        A transposed convolution itself, or anything that has some.
    precision : None, "highest", "high", "medium" or "torch"
        What convt may take for float32: see `convt.conv_transpose`. "torch": what ``torch.get_float32_matmul_precision()`` says
        now. None leaves modules that have one with it; the others follow CONVT_PRECISION, or "highest". Gradients are computed
        by torch, which has settings of its own.
    freeze : bool
        True promises that the weights do not change: packed weights are used without a look at the filters, and weights that a
        parametrization or weight norm computes in ``eval`` are computed once. After a change, of the model's dtype too, call
        `refresh`. Compiled graphs compare all the same.
        False: each call compares a checksum of all weights with that of the packed ones.
    tune : bool
        True measures which algorithm is the fastest for each shape, at its second call in inference, which then takes about a
        second. All later calls use what was measured, in other models too; `convt.tuning.save` keeps it for other processes.

    Returns
    -------
    (model, Report)
        The same model; what convt computes, what not and why, what is computed together, what is frozen.

    Raises
    ------
    TypeError
        ``model`` is no torch.nn.Module.
    ValueError
        ``precision`` is none of these.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model = torch.nn.Sequential(torch.nn.ConvTranspose2d(8, 4, 4, 2, 1), torch.nn.ReLU())
    >>> model, report = convt.torch.accelerate(model)
    >>> print(report)
    convt computes 1 transposed convolution: 0
    0: in inference with the ReLU behind it
    """
    swapped, kept, precision = [], {}, precision_of(precision)
    for name, module in _transposed(model):
        ours = type(module) in TORCHS
        if not ours and (why := _why_not(module)):
            kept[name] = why
            continue
        swapped.append(name)
        own = _forward.installed(module, TransposedForward)
        before = module._convt_settings if ours else own.settings[0] if own else Settings()
        settings = Settings(before.precision if precision is None else precision, freeze, tune)
        if ours:
            module._convt_settings = settings
        elif own is None or settings != before:
            _forward.install(module, TransposedForward(module, settings))
    return model, Report(tuple(swapped), kept, _join(model), tuple(swapped) if freeze else ())


def _join(model):
    """Gives a forward of convt's to the Sequentials in which something is computed together: {name of the transposed
    convolution: classes of the modules behind it}."""
    found = {}
    for name, module in model.named_modules():
        joined = _fuse.joined(module) if _fuse.is_sequential(module) else {}
        for child, behind in joined.items():
            place = f"{name}.{child}" if name else child
            found[place] = max(behind, found.get(place, ()), key=len)  # a Sequential around this one may know more
        if joined and _forward.installed(module) is None:
            _forward.install(module, _fuse.SequentialForward(module))
    return found


def refresh(model: ModelOrTensor) -> ModelOrTensor:
    """Take the weights of a model as they are now, after ``accelerate(model, freeze=True)`` and a change of weights.

    Parameters
    ----------
    model : torch.nn.Module or torch.Tensor
        A tensor is the ``weight`` of functions that were called with ``freeze=True``.

    Returns
    -------
    The same model or tensor.

    Raises
    ------
    TypeError
        ``model`` is neither.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model, _ = convt.torch.accelerate(torch.nn.ConvTranspose1d(1, 1, 1, bias=False), freeze=True)
    >>> with torch.no_grad():
    ...     before = model(torch.ones(1, 1, 1))
    ...     model.weight.fill_(2)
    ...     convt.torch.refresh(model)(torch.ones(1, 1, 1)).item()
    Parameter containing:
    tensor([[[2.]]], requires_grad=True)
    2.0
    """
    if isinstance(model, torch.Tensor):
        _weights.forget(model)
        return model
    for _, module in _transposed(model):
        _forget(module)
    return model


def _forget(module):
    """Drop what was packed and folded of a transposed convolution's weights."""
    own = _forward.installed(module, TransposedForward)
    weight = module._parameters.get("weight")
    weights = [weight] if weight is not None else []
    if own is not None and own.frozen is not None:
        weights.append(own.frozen[0])
        own.frozen = None
    if weights:
        _weights.forget(*weights)
    _fuse.forget(module)


def restore(model: Model) -> Model:
    """Give a model's transposed convolutions back to torch: undoes `accelerate`, and leaves nothing of convt's in the model.

    Modules of convt's own classes become those of torch's. Returns the model.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model, _ = convt.torch.accelerate(torch.nn.ConvTranspose1d(1, 1, 2))
    >>> vars(convt.torch.restore(model)).keys() == vars(torch.nn.ConvTranspose1d(1, 1, 2)).keys()
    True
    """
    for _, module in _transposed(model):
        _forget(module)
        if type(module) in TORCHS:
            module.__class__ = TORCHS[type(module)]
            vars(module).pop("_convt_settings", None)
    for module in model.modules():
        _forward.remove(module)
    return model


def _check(model):
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, wanted a torch.nn.Module")


def _transposed(model):
    _check(model)
    return [(name, module) for name, module in model.named_modules() if base_of(type(module))]
