"""Whole models: accelerate, refresh and restore."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import torch

from .._base import terminal, words
from . import _forward, _fuse, _mode, _weights
from ._compute import precision_of
from ._modules import RANKS, Settings, TransposedForward, as_torchs, base_of, calls_only_function, is_convts

if TYPE_CHECKING:
    from .._base.typing import TorchPrecision

Model = TypeVar("Model", bound=torch.nn.Module)
ModelOrTensor = TypeVar("ModelOrTensor", bound="torch.nn.Module | torch.Tensor")


class Report(NamedTuple):
    """The result of `accelerate`. ``print(report)`` shows a summary.

    Modules are identified by their names in the model, a shared module by each of its names. The name of the model itself is
    "".

    Attributes
    ----------
    swapped : tuple of str
        Modules that convt computes.
    kept : dict of str to str
        Module left to torch -> reason.
    fused : dict of str to tuple of str
        Module -> classes of the modules after it that convt computes together with it in inference.
    frozen : tuple of str
        Modules whose weights are not checked for changes.
    functional : tuple of str
        Modules in whose forward convt computes calls of ``torch.nn.functional.conv_transpose1d``, ``2d`` and ``3d``: the
        outermost ones, and transposed convolutions that define their own forward.
    own : tuple of str
        Those of ``functional`` that are transposed convolutions.

    Examples
    --------
    >>> import convt.torch
    >>> print(convt.torch.Report(("up",), {"last": "its forward was replaced"}, {"up": ("BatchNorm2d", "ReLU")}, ("up",)))
    convt computes 1 transposed convolution: up
    up: fused with BatchNorm2d and ReLU in inference
    weights frozen until convt.torch.refresh(model): up
    last: left to torch because its forward was replaced
    """

    swapped: tuple[str, ...]
    kept: dict[str, str]
    fused: dict[str, tuple[str, ...]]
    frozen: tuple[str, ...] = ()
    functional: tuple[str, ...] = ()
    own: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = lambda names: ", ".join(name or "the model itself" for name in names) or "none"  # noqa: E731
        lines, count = [], lambda names: words.count(len(names), "transposed convolution")
        if self.swapped or not self.functional:
            lines = [f"convt computes {count(self.swapped)}: {named(self.swapped)}"]
        if not (self.swapped or self.kept or self.functional):
            lines.append(f"the model has no module ConvTranspose1d, 2d or 3d; functional=True also serves {_mode.FUNCTIONS}")
        if self.own:
            lines.append(f"convt computes the function calls of {count(self.own)} with an own forward: {named(self.own)}")
        if others := [name for name in self.functional if name not in self.own]:
            lines.append(f"convt computes calls of {_mode.FUNCTIONS}, if there are any, inside: {named(others)}")
        lines += [f"{name}: fused with {' and '.join(behind)} in inference" for name, behind in self.fused.items()]
        if self.frozen:
            lines.append(f"weights frozen until convt.torch.refresh(model): {named(self.frozen)}")
        return "\n".join(lines + [f"{named([name])}: left to torch because {why}" for name, why in self.kept.items()])

    def __repr__(self) -> str:
        counts = {"swapped": self.swapped, "fused": self.fused, "functional": self.functional, "kept": self.kept}
        return f"<Report of convt.torch: {', '.join(f'{len(names)} {what}' for what, names in counts.items())}>"

    def _repr_html_(self) -> str:
        fused = {name: f"fused with {' and '.join(behind)} in inference" for name, behind in self.fused.items()}
        rows = [(name, "convt", fused.get(name, "")) for name in self.swapped]
        rows += [(name, "convt", f"calls of {_mode.FUNCTIONS}") for name in self.functional]
        rows += [(name, "torch", why) for name, why in self.kept.items()]
        return terminal.in_html(("module", "computed by", "note"), rows or [("", "", str(self))])


def _why_not(module):
    """Return the reason to leave a transposed convolution to torch, or None if convt computes it."""
    cls, base = type(module), base_of(type(module))
    if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
        return "its sizes are unknown before its first call; call accelerate again after that"
    if not calls_only_function(module):
        return f"{cls.__name__} defines its own forward; with functional=True, convt computes the calls inside"
    if cls._output_padding is not base._output_padding:
        return f"{cls.__name__} defines its own _output_padding"
    if "forward" in vars(module) and _forward.installed(module, TransposedForward) is None:
        return "its forward was replaced"
    return None


def accelerate(
    model: Model, *, precision: TorchPrecision = None, freeze: bool = False, tune: bool = False, functional: bool = False
) -> tuple[Model, Report]:
    """Let convt compute every ``ConvTranspose1d``, ``2d`` and ``3d`` module of a model, in place.

    Modules remain the same objects, of the same class. Parameters, names in ``state_dict``, hooks, parametrizations, weight
    norm, sharing, training mode and device do not change: only ``forward`` is replaced. Modules whose class defines its own
    ``forward`` are left to torch, except with ``functional=True``.

    In inference (``no_grad``, norms in ``eval`` mode), a batch norm and an activation that follow a transposed convolution in a
    `torch.nn.Sequential` are fused with it: a PReLU of one slope, or one of the table "Activations" of the API
    reference. When torch exports, traces or quantizes a model, it sees its own modules. Repeated calls are safe. If a call
    raises an exception, the model is as before.

    Parameters
    ----------
    model : torch.nn.Module
        A transposed convolution, or a module that contains some.
    precision : None, "highest", "high", "medium" or "torch"
        The lowest precision that convt may use for float32: see `convt.conv_transpose`. "torch" means the present value of
        ``torch.get_float32_matmul_precision()``. None keeps the precision of modules that have one; the others use
        CONVT_PRECISION, or "highest". torch computes gradients at its own precision.
    freeze : bool
        If False, each call compares a checksum of all weights with the checksum of the packed weights. If True, you promise
        that the weights do not change: calls use packed weights without a check, and weights that a parametrization or weight
        norm computes in ``eval`` mode are computed once. Call `refresh` after a change of weights or of the model's dtype.
        Graphs of ``torch.compile`` always compare.
    tune : bool
        If True, the first call of each shape in inference measures which algorithm is the fastest. That call takes about a
        second. Later calls reuse the result, also in other models, and `convt.tuning.save` stores it for other processes.
    functional : bool
        If True, convt also computes the calls of ``torch.nn.functional.conv_transpose1d``, ``2d`` and ``3d`` in each
        ``forward`` that is not torch's own, with the settings above: see `functional`, which does this for a block. This also
        serves a transposed convolution whose own ``forward`` calls that of its base class. Modules keep it until `restore`.

    Returns
    -------
    (model, Report)
        The same model, and a report of the modules that convt computes, fuses, freezes, or leaves to torch.

    Raises
    ------
    TypeError
        ``model`` is not a torch.nn.Module.
    ValueError
        ``precision`` is not one of the values above.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model = torch.nn.Sequential(torch.nn.ConvTranspose2d(8, 4, 4, 2, 1), torch.nn.ReLU())
    >>> model, report = convt.torch.accelerate(model)
    >>> print(report)
    convt computes 1 transposed convolution: 0
    0: fused with ReLU in inference
    """
    compiled, precision = _compiled(model), precision_of(precision)
    swapped, kept = [], dict(compiled)
    with contextlib.ExitStack() as undo:
        for name, module in _transposed(model):
            if why := _why_not(module):
                kept[name] = why
                continue
            swapped.append(name)
            forward = _forward.installed(module, TransposedForward)
            present = module._convt_settings if is_convts(module) else forward.settings[0] if forward else Settings()
            settings = Settings(present.precision if precision is None else precision, freeze, tune)
            if is_convts(module):
                _forward.set_attribute(undo, module, "_convt_settings", settings)
            else:
                _forward.install(undo, module, TransposedForward, settings, RANKS[base_of(type(module))])
        fused = _install_fusion(model, undo)
        serving = _install_functional(model, undo, Settings(precision, freeze, tune), functional)
        undo.pop_all()
    inside = [name for name in kept if name not in compiled and any(each in serving for each in (*_above(name), name))]
    outermost = [name for name in serving if not any(each in serving for each in _above(name))]
    kept = {name: why for name, why in kept.items() if name not in inside}
    named = tuple(dict.fromkeys([*outermost, *inside]))
    return model, Report(tuple(swapped), kept, fused, tuple(swapped) if freeze else (), named, tuple(inside))


def _install_functional(model, undo, settings, wanted):
    """Replace the forward of each module with a forward of its own if this is ``wanted``, and give present replacements these
    settings. ``undo`` is that of `_forward.set_attribute`. Return the names of the modules.
    """
    names = []
    for name, module in _places(model):
        present = _forward.installed(module, _mode.FunctionalForward)
        if present is None and not (wanted and "forward" not in vars(module) and _mode.has_own_forward(module)):
            continue
        names.append(name)
        precision = present.settings[0].precision if present and settings.precision is None else settings.precision
        _forward.install(undo, module, _mode.FunctionalForward, settings._replace(precision=precision), type(module))
    return names


def _install_fusion(model, undo):
    """Replace the forward of each Sequential in which modules are fused. ``undo`` is that of `_forward.set_attribute`.

    Return ``{name of a transposed convolution: classes of the modules fused with it}``.
    """
    found = {}
    for name, module in _places(model):
        fused = _fuse.fused_classes(module) if _fuse.is_sequential(module) else {}
        for child, behind in fused.items():
            place = _join(name, child)
            found[place] = max(behind, found.get(place, ()), key=len)  # an outer Sequential may fuse more modules
        if fused:
            _forward.install(undo, module, _fuse.SequentialForward)
    return found


def refresh(model: ModelOrTensor) -> ModelOrTensor:
    """Make convt use the present weights of a model. Call this after you change weights that are frozen.

    Parameters
    ----------
    model : torch.nn.Module or torch.Tensor
        A model that was accelerated with ``freeze=True``, or the ``weight`` of functions that were called with ``freeze=True``.

    Returns
    -------
    torch.nn.Module or torch.Tensor
        The same object.

    Raises
    ------
    TypeError
        ``model`` is neither a module nor a tensor.

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
        _weights.forget_module(module)
    if any(_forward.installed(module, _mode.FunctionalForward) for module in model.modules()):
        for tensor in (*model.parameters(), *model.buffers()):  # which functions in its forwards may be called with
            _weights.forget(tensor)
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`: let torch compute the transposed convolutions of a model again.

    Nothing of convt remains in the model. Modules of the classes of `convt.torch` become modules of torch.nn's classes, except
    those of classes that you derived.

    Parameters
    ----------
    model : torch.nn.Module
        Any model, accelerated or not.

    Returns
    -------
    torch.nn.Module
        The same model.

    Raises
    ------
    TypeError
        ``model`` is not a torch.nn.Module.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model, _ = convt.torch.accelerate(torch.nn.ConvTranspose1d(1, 1, 2))
    >>> vars(convt.torch.restore(model)).keys() == vars(torch.nn.ConvTranspose1d(1, 1, 2)).keys()
    True
    """
    for _, module in _transposed(refresh(model)):
        as_torchs(module)
    for module in model.modules():
        _forward.remove(module)
    return model


def _transposed(model):
    """Return ``[(name, module)]`` of the transposed convolutions of a model."""
    return [(name, module) for name, module in _places(model) if base_of(type(module))]


def _compiled(model):
    """Return ``{name: reason to leave it to torch}`` of the transposed convolutions that torch.jit compiled."""
    names = {base.__name__ for base in RANKS}
    return {
        name: "torch.jit compiled it"
        for name, module in _places(model)
        if isinstance(module, torch.jit.ScriptModule) and module.original_name in names
    }


def _places(module, name="", above=()):
    """Yield (name, module) for every place of a model. ``named_modules`` names only the first place of a shared module."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"model: got {type(module).__name__}, wanted a torch.nn.Module")
    yield name, module
    above = (*above, module)
    for key, child in module._modules.items():
        if child is not None and not any(child is each for each in above):
            yield from _places(child, _join(name, key), above)


def _above(name):
    """Return the names of the modules around a module, from the outermost, whose name is ""."""
    parts = name.split(".") if name else []
    return [".".join(parts[:n]) for n in range(len(parts))]


def _join(name, child):
    return f"{name}.{child}" if name else child
