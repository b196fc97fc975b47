"""What convt changes in a whole model: `profile` measures it."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from typing import TYPE_CHECKING, Any

import torch

from .._base import check, terminal
from .._call import operator as _operator
from .._call import worth
from .._call.worth import Worth
from .._model.limits import MachineLimits
from . import _accelerate, _compute, _forward, _functional, _fuse, _mode, _modules
from ._arrays import array, is_channels_last

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RUNS = 6  # recorded runs of torch and of convt each; convt's first two pack weights
_REFUSED = "convt refuses the call (CONVT_VERBOSE=1 prints the reason)"
_UNREACHED = "a forward calls the function; accelerate(model, functional=True) lets convt compute it"


def _signature(input, weight, bias, *attributes):
    """Return what identifies a call in another run: everything except the values of tensors."""
    rank = weight.dim() - 2
    shape = tuple(input.shape) if input.dim() == rank + 2 else (1, *input.shape)
    return shape, tuple(weight.shape), *(_functional.per_axis(each, rank) for each in attributes)


class _Recorder:
    """Records the calls of `_functional.serve` in this thread, as `_functional.recorder`.

    ``names`` maps the id of a module to its name. ``host`` is whether torch computes the calls, or convt. A layer is the name
    of the module that makes the call, and the call's `_signature`.

    Attributes
    ----------
    runs : list
        The (layer, seconds) of each call in each run, without those that convt refuses.
    refused : set
        The layers of these.
    known : dict
        Layer -> (shape of the output, modules that convt fuses with it) if torch computes it, else convt's (weight, bias,
        channels last, precision).
    functional : bool
        Whether other forwards than those of torch's transposed convolutions make calls.
    """

    def __init__(self, names, host):
        self.names, self.host, self.thread = names, host, threading.get_ident()
        self.runs, self.refused, self.known, self.functional, self._inside = [], set(), {}, False, False

    def __call__(self, compute, rank, *arguments):
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread:
            return compute(rank, *arguments)
        if self._inside:
            return None
        modules = arguments[12] if len(arguments) > 12 else ()  # that convt computes together
        self._inside, start = self.host, time.perf_counter()
        try:
            result = self._with_torch(rank, arguments, modules) if self.host else compute(rank, *arguments)
        finally:
            self._inside = False
        seconds = time.perf_counter() - start
        with torch._C.DisableTorchFunction(), contextlib.suppress(AttributeError, RuntimeError, TypeError):
            self._add(rank, arguments, modules, result, seconds)  # raises these for arguments that torch refuses
        return result

    @staticmethod
    def _with_torch(rank, arguments, modules):
        if not modules:
            return _functional.TORCH_FUNCTIONS[rank](*arguments[:8])
        return functools.reduce(lambda result, module: module(result), modules, arguments[0])

    def _add(self, rank, arguments, modules, result, seconds):
        module, signature = modules[0] if modules else _forward.calling_module(), _signature(*arguments[:8])
        layer = self.names.get(id(module)) or (_functional.NAMES[rank] if module is None else type(module).__name__), signature
        if result is None:
            self.refused.add(layer)
            return
        self.runs[-1].append((layer, seconds))
        self.functional |= not _modules.calls_only_function(module)
        if self.host:
            self.known[layer] = tuple(result.shape), [each for each in modules[1:] if not _fuse.is_identity(each)]
        else:
            (input, weight, bias), (stride, padding, output_padding, groups, dilation) = arguments[:3], signature[2:]
            batched = input if input.dim() == rank + 2 else input.unsqueeze(0)
            last = is_channels_last(batched, weight, stride, padding, output_padding, groups[0], dilation)
            self.known[layer] = weight, bias, last, arguments[8]


@contextlib.contextmanager
def _unchanged(model):
    """Restore behind the block what runs in training mode change: buffers, such as statistics, and random numbers."""
    modules = model.modules() if isinstance(model, torch.nn.Module) else ()
    buffers = [each for module in modules if module.training for each in module._buffers.values() if each is not None]
    values = [each.clone() for each in buffers]
    with torch.random.fork_rng(devices=()):
        try:
            yield
        finally:
            for buffer, value in zip(buffers, values, strict=True):
                buffer.copy_(value)


class _Subject:
    """A model, and the ways to run it: forwards of its modules, a mode of torch, and a `_functional.recorder`."""

    def __init__(self, model, run):
        named = list(model.named_modules()) if isinstance(model, torch.nn.Module) else []
        self.model, self.run, self.modules = model, run, [module for _, module in named]
        self.names = {id(module): name or type(module).__name__ for name, module in named}
        self.forwards, self.replaced, self.kept = self._installed(), [], None
        self.is_accelerated = bool(self.forwards) or any(_modules.is_convts(each) for each in self.modules)
        self.serving = None if self.modules else _functional.Serving()

    def _installed(self):
        """Return ``(attributes of a module, forward of convt)`` of the modules that have one."""
        return [(vars(each), vars(each)["forward"]) for each in self.modules if _forward.installed(each)]

    def accelerate(self, functional):
        """Let convt compute the model. ``functional`` is whether it calls functions of torch.nn.functional."""
        if self.modules and not self.is_accelerated:
            self.kept = _accelerate.accelerate(self.model, functional=functional)[1].kept
            self.forwards = self._installed()

    def finish(self):
        """Leave the model as it was."""
        self.install(self.forwards)
        if self.kept is not None:
            _accelerate.restore(self.model)

    def install(self, forwards, recorder=None):
        """Give modules these forwards, which are those of convt or `replaced`, or else those of their classes."""
        _functional.recorder = recorder
        for attributes, _ in (*self.forwards, *self.replaced):
            attributes.pop("forward", None)
        for attributes, forward in forwards:
            attributes["forward"] = forward

    def run_in(self, mode):
        """Run in a mode of torch, or in none."""
        with mode or contextlib.nullcontext():
            self.run()

    def record(self, recorder):
        """Run as convt computes the model. If torch computes the calls, the mode finds those that do not reach convt, too."""
        recorder.runs.append([])
        self.install(self.forwards, recorder)
        self.run_in(_functional.Serving() if recorder.host else self.serving)

    def ways(self, fused, functional):
        """Return the ways without convt, with it, and with kept results of layers; ``fused`` are the modules behind layers."""
        known, functional = {}, functional or not self.modules

        def keep(key, compute, *arguments):
            if key not in known:
                known[key] = compute(*arguments)
            return known[key]

        def keeping(module, forward):
            return lambda input, *others: keep((id(module), input.shape, str(others)), forward, input, *others)

        def keeping_calls(_, rank, *arguments):
            return keep(_signature(*arguments[:8]), _functional.TORCH_FUNCTIONS[rank], *arguments[:8])

        for module in self.modules:
            if module in fused:
                self.replaced.append((vars(module), lambda input: input))
            elif not functional and _modules.calls_only_function(module):
                self.replaced.append((vars(module), keeping(module, type(module).forward.__get__(module))))
        rest = (keeping_calls, _functional.Serving()) if functional else (None, None)
        return ((), lambda *_: None, None), (self.forwards, None, self.serving), (self.replaced, *rest)

    def advice(self, functional):
        """Return how to let convt compute the model, or "" if it does. ``functional`` is that of `accelerate`."""
        if self.is_accelerated:
            return ""
        if not self.modules:
            return "Use it with convt.torch.functional()."
        return f"Use convt.torch.accelerate(model{', functional=True' * functional})."


def profile(model: Callable[..., Any], *inputs: Any, keywords: Mapping[str, Any] | None = None, budget: float = 2.0) -> Worth:
    """Measure what convt changes in a model: the share of transposed convolution, the bound that it sets, and what is reached.

    The model runs under ``torch.no_grad()``, in turns without convt, with it, and without computing transposed convolutions,
    which tells their share, for several seconds. Runs without computing them return kept results. Afterwards it is as before,
    also if it is in training mode. A model that is accelerated is measured as it is; another one as `accelerate` makes
    it, with ``functional=True`` if it calls functions of torch.nn.functional. Times and the share count what convt fuses with a
    transposed convolution. Graphs of ``torch.compile`` are not looked into: give the model itself.

    Parameters
    ----------
    model : torch.nn.Module or callable
        A model. In any other callable, convt computes the calls that it computes with `functional`.
    *inputs
        Arguments of the model.
    keywords : dict, optional
        Keyword arguments of the model.
    budget : float
        Seconds to time the whole in each of the three ways.

    Returns
    -------
    Worth
        Layers with their times, and the properties ``share``, ``bound`` and ``reached``. ``print`` shows a table; a notebook
        shows it, too.

    Raises
    ------
    TypeError, ValueError
        ``model`` is not callable, or ``budget`` is not a number of at least 0.
    Exception
        Whatever the model raises.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model = torch.nn.Sequential(torch.nn.ConvTranspose1d(8, 4, 4, 2), torch.nn.ReLU()).eval()
    >>> worth = convt.torch.profile(model, torch.zeros(1, 8, 100), budget=0.01)
    >>> worth.layers[0].name, worth.layers[0].output
    ('0', (1, 4, 202))
    >>> 0 < worth.share <= 1
    True
    """
    if not callable(model):
        raise TypeError(f"model: got {type(model).__name__}, wanted a torch.nn.Module or another callable")
    budget = check.number("budget", budget, 0)
    subject = _Subject(model, functools.partial(model, *inputs, **(keywords or {})))
    steps = 2 * _RUNS + 3 * worth.ROUNDS
    with torch.no_grad(), _unchanged(model), terminal.progress(steps) as begin:
        return _measured(subject, budget, lambda: begin("timing the model"))


def _measured(subject, budget, step):
    """Measure a `_Subject` and return the `Worth`. ``step`` is called before each of 2 * _RUNS + 3 * worth.ROUNDS steps."""
    looked_for = f"{_mode.FUNCTIONS} and the modules that call them"
    try:
        start = time.perf_counter()
        subject.record(first := _Recorder(subject.names, host=True))
        seconds = time.perf_counter() - start
        if not first.known:
            return Worth("PyTorch", (), seconds, seconds, looked_for)
        subject.accelerate(first.functional)
        host, ours = (_Recorder(subject.names, host=each) for each in (True, False))
        for _ in range(_RUNS):
            for recorder in (host, ours):
                step()
                subject.record(recorder)
        ways = subject.ways({module for _, fused in host.known.values() for module in fused}, first.functional)
        before = [functools.partial(subject.install, forwards, recorder) for forwards, recorder, _ in ways]
        calls = [functools.partial(subject.run_in, mode) for *_, mode in ways]
        *seconds, rest = worth.in_turns(calls, budget, step, before=before)
    finally:
        subject.finish()
    layers = tuple(_layers(host, ours, subject.kept or {}))
    return Worth("PyTorch", layers, *seconds, looked_for, subject.advice(first.functional), rest)


def _layers(host, ours, reasons):
    """Yield the `worth.LayerTime` of all layers that two `_Recorder` have recorded."""
    limits, times = MachineLimits(torch.get_num_threads()), worth.summed(ours.runs)
    for layer, (seconds, calls) in worth.summed(host.runs).items():
        (name, signature), (output, fused), (mine, count) = layer, host.known[layer], times.get(layer, (0, 0))
        found = {"algorithm": reasons.get(name, _REFUSED if layer in ours.refused else _UNREACHED)}
        if count == calls:
            found = {"convt_seconds": mine} | _planned(signature, ours.known[layer], mine / calls, limits)
        found |= {"fused": tuple(type(each).__name__ for each in fused), "calls": calls}
        yield worth.LayerTime(name, signature[0], output, seconds, **found)


def _planned(signature, served, seconds, limits):
    """Return `worth.planned` of a call that takes ``seconds``."""
    (data, _, stride, padding, output_padding, groups, dilation), (weight, bias, channels_last, precision) = signature, served
    attributes = stride, padding, output_padding, groups[0], dilation, _compute.precision_of(precision), None, "auto"
    keywords = _compute.keywords(attributes, channels_last)._asdict()
    operator = _operator.ConvTranspose._borrowing(array(weight), None if bias is None else array(bias), **keywords)
    return worth.planned(operator, (data[0], *data[2:], data[1]) if channels_last else data, seconds, limits)
