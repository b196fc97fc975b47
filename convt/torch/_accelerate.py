"""Whole models: their transposed convolutions swapped for convt's, in place, and back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from . import _fuse, _modules, _stand, _traced
from ._compute import precision_of

if TYPE_CHECKING:
    from .._typing import TorchPrecision

Model = TypeVar("Model", bound=torch.nn.Module)
_OURS = {
    torch.nn.ConvTranspose1d: _modules.ConvTranspose1d,
    torch.nn.ConvTranspose2d: _modules.ConvTranspose2d,
    torch.nn.ConvTranspose3d: _modules.ConvTranspose3d,
}


class Report(NamedTuple):
    """What `accelerate` did, by the modules' names in the model."""

    swapped: tuple[str, ...]  # names
    kept: dict[str, str]  # name -> why it is torch's still
    fused: dict[str, tuple[str, ...]]  # name -> what it does with it in inference: classes of the modules behind it

    def __str__(self) -> str:
        lines = [f"convt computes {len(self.swapped)} transposed convolutions: {', '.join(self.swapped) or 'none'}"]
        lines += [f"{name}: in inference with the {' and the '.join(behind)} behind it" for name, behind in self.fused.items()]
        return "\n".join(lines + [f"{name}: left to torch, as {why}" for name, why in self.kept.items()])


def _base(cls):
    """The class of torch.nn that a class of transposed convolutions is, or is made of; None for others."""
    return next((base for base in _OURS if issubclass(cls, base)), None)


def _is_ours(cls):
    return any(issubclass(cls, ours) for ours in _OURS.values()) or _stand.original(cls) is not cls


@functools.cache
def _swapped(cls):
    """The class that stands for one of transposed convolutions: the same with convt's forward."""
    base = _base(cls)
    if cls is base:
        return _OURS[base]
    # A class of the user's own, or one that torch made of a parametrized module.
    return _stand.standing_for(cls, _OURS[base].forward, _swapped, _convt_precision=None)


def _why_not(module):
    """Why a transposed convolution can't be swapped; None if it can."""
    cls, base = type(module), _base(type(module))
    if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
        return "its sizes are not known before its first call: accelerate the model after it"
    if cls.forward is not base.forward:
        return f"{cls.__name__} has a forward of its own"
    if "forward" in vars(module):
        return "its forward was replaced"
    return None


def accelerate(model: Model, *, precision: TorchPrecision = None) -> tuple[Model, Report]:
    """Let convt compute every transposed convolution of a model.

    Modules stay the objects that they are: parameters, names in ``state_dict``, hooks, parametrizations, weight norm, sharing,
    training and device are as before. Those of a class with a forward of its own stay torch's. In inference (``eval`` and
    ``no_grad``) those in a `torch.nn.Sequential`, or in a module whose forward torch.fx can trace, also do what a batch norm
    and an activation (ReLU, ReLU6, LeakyReLU, Tanh, Sigmoid, GELU, SiLU) behind them do. Calling it again is harmless.

    Parameters
    ----------
    model : torch.nn.Module
        A transposed convolution itself, or anything that has some.
    precision : None, "highest", "high", "medium" or "torch"
        What convt may take for float32: see `convt.conv_transpose`. "torch": what ``torch.get_float32_matmul_precision()`` says
        now. None leaves modules that have one with it; the others follow CONVT_PRECISION, or "highest". Gradients are computed
        by torch, which has settings of its own.

    Returns
    -------
    (model, Report)
        The same model, and what was swapped, what not and why, and what is computed together.

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
    convt computes 1 transposed convolutions: 0
    0: in inference with the ReLU behind it
    """
    swapped, kept, precision = [], {}, precision_of(precision)
    for name, module in _transposed(model):
        if not _is_ours(type(module)):
            if why := _why_not(module):
                kept[name] = why
                continue
            module.__class__ = _swapped(type(module))  # type: ignore[arg-type]
        swapped.append(name)
        if precision is not None:
            module._convt_precision = precision
    return model, Report(tuple(swapped), kept, _join(model))


def _join(model):
    """Swaps the Sequentials, and the modules that can be traced, in which something is computed together: {name of the
    convolution: what is behind it}."""
    joined = {}
    for name, module in model.named_modules():
        for child, behind in _traced.joined(module).items():
            joined[f"{name}.{child}" if name else child] = behind
            if _stand.original(type(module)) is type(module):
                module.__class__ = _traced.swapped(type(module))
        if type(module) not in (torch.nn.Sequential, _fuse.Sequential) or "forward" in vars(module):
            continue
        keys, modules = list(module._modules), list(module)
        for n, each in enumerate(modules):
            count = _fuse.follows(modules, n)[2] if type(each) in _OURS.values() else 0
            if count:
                place = f"{name}.{keys[n]}" if name else keys[n]
                joined[place] = tuple(type(behind).__name__ for behind in modules[n + 1 : n + 1 + count])
                module.__class__ = _fuse.Sequential
    return joined


def restore(model: Model) -> Model:
    """Give a model's transposed convolutions back to torch: undoes `accelerate`. Returns the model.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model, _ = convt.torch.accelerate(torch.nn.ConvTranspose1d(1, 1, 2))
    >>> type(convt.torch.restore(model)) is torch.nn.ConvTranspose1d
    True
    """
    _check(model)
    originals: dict[type, type] = {ours: torchs for torchs, ours in _OURS.items()} | {_fuse.Sequential: torch.nn.Sequential}
    for module in model.modules():
        cls = type(module)
        module.__class__ = originals.get(cls) or _stand.original(cls)
        vars(module).pop("_convt_precision", None)
    return model


def _check(model):
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model: got {type(model).__name__}, wanted a torch.nn.Module")


def _transposed(model):
    _check(model)
    return [(name, module) for name, module in model.named_modules() if _base(type(module))]
