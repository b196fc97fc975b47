"""What convt changes in a whole model: `profile` measures it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from .._base import check, terminal
from .._call import operator as _operator
from .._call import worth
from .._call.worth import Worth
from .._model.limits import MachineLimits
from . import _accelerate, _compute, _forward, _functional, _fuse, _mode, _modules
from ._arrays import array, is_channels_last

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RUNS = 5  # recorded runs with the host and with convt each
_REFUSED = "convt refuses the call (CONVT_VERBOSE=1 prints the reason)"
_UNREACHED = "a forward calls the function; accelerate(model, functional=True) lets convt compute it"


@dataclasses.dataclass
class _Call:
    """A transposed convolution in a run. ``name`` is that of the module that calls it."""

    signature: tuple[Any, ...]  # shapes of input and weight, attributes
    seconds: float
    name: str = ""
    by_module: bool = True  # whether the forward of a torch module calls it
    output: tuple[int, ...] = ()
    served: tuple[Any, ...] | None = None  # (weight, bias, channels last, precision) if convt computes it


def _signature(input, weight, bias, *attributes):
    """Return what identifies a call in another run: everything except the values of tensors."""
    rank = weight.dim() - 2
    shape = tuple(input.shape) if input.dim() == rank + 2 else (1, *input.shape)
    return shape, tuple(weight.shape), *(_functional.per_axis(each, rank) for each in attributes)


class _Host(TorchFunctionMode):
    """A mode in which torch computes all transposed convolutions, and which records them.

    ``names`` maps the id of a module to its name. ``fused`` maps the name of a transposed convolution to the modules that convt
    fuses with it, whose seconds count in its own.
    """

    def __init__(self, names, fused):
        super().__init__()
        self.calls, self.names, self.fused = [], names, fused

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords, is_ours = keywords or {}, function in _functional.RANKS_OF
        if not (is_ours or self.fused) or torch.compiler.is_compiling():
            return function(*arguments, **keywords)
        start = time.perf_counter()
        result = function(*arguments, **keywords)
        seconds, module = time.perf_counter() - start, _forward.calling_module()
        if is_ours:
            name = self.names.get(id(module)) or (function.__name__ if module is None else type(module).__name__)
            signature, by_module = _signature(*_functional.bind(*arguments, **keywords)), _modules.calls_only_function(module)
            self.calls.append(_Call(signature, seconds, name, by_module, tuple(result.shape)))
        elif self.calls and module in self.fused.get(self.calls[-1].name, ()):
            self.calls[-1].seconds += seconds
        return result


class _Recorder:
    """Records the calls that convt gets in this thread, as `_functional.recorder`."""

    def __init__(self):
        self.calls, self.thread, self.refused = [], threading.get_ident(), None

    def __call__(self, compute, rank, *arguments):
        if threading.get_ident() != self.thread:
            return compute(rank, *arguments)
        start = time.perf_counter()
        result = compute(rank, *arguments)
        seconds = time.perf_counter() - start
        with torch._C.DisableTorchFunction():
            self._add(rank, arguments, result, seconds)
        return result

    def _add(self, rank, arguments, result, seconds):
        tensors, before = tuple(map(id, arguments[:3])), self.refused
        self.refused = tensors if result is None else None
        if result is None and before == tensors:  # a module and then the function that it calls refuse one call
            return
        with contextlib.suppress(AttributeError, RuntimeError, TypeError):  # arguments that torch refuses
            (input, weight, bias), call = arguments[:3], _Call(_signature(*arguments[:8]), seconds)
            if result is not None:
                batched = input if input.dim() == rank + 2 else input.unsqueeze(0)
                stride, padding, output_padding, groups, dilation = call.signature[2:]
                last = is_channels_last(batched, weight, stride, padding, output_padding, groups[0], dilation)
                call.served = weight, bias, last, arguments[8]
            self.calls.append(call)


@contextlib.contextmanager
def _recording():
    """Record what convt computes inside the block, and yield the list of calls."""
    before, recorder = _functional.recorder, _Recorder()
    _functional.recorder = recorder
    try:
        yield recorder.calls
    finally:
        _functional.recorder = before


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


class _Rest(TorchFunctionMode):
    """A mode in which transposed convolutions take no time: a call returns the result of an earlier one with equal shapes."""

    def __init__(self):
        super().__init__()
        self.results = {}

    def of(self, module):
        """Return a forward for a module that does the same without the mode."""
        forward = type(module).forward.__get__(module)
        return lambda input, *others: self._known((id(module), input.shape, str(others)), forward, input, *others)

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        if function not in _functional.RANKS_OF:
            return function(*arguments, **(keywords or {}))
        bound = _functional.bind(*arguments, **(keywords or {}))
        return self._known(_signature(*bound), function, *bound)

    def _known(self, key, compute, *arguments):
        if key not in self.results:
            self.results[key] = compute(*arguments)
        return self.results[key]


class _Subject:
    """A model that runs with convt, without it, and with transposed convolutions that take no time, in turns."""

    def __init__(self, model, run):
        named = list(model.named_modules()) if isinstance(model, torch.nn.Module) else []
        self.model, self.run, self.modules = model, run, [module for _, module in named]
        self.names = {id(module): name or type(module).__name__ for name, module in named}
        self.forwards = self._installed()
        self.is_accelerated = bool(self.forwards) or any(_modules.is_convts(each) for each in self.modules)
        self.kept, self.serving, self.always, self.functional = None, None, False, False
        self.rest, self.replaced = _Rest(), []

    def _installed(self):
        """Return ``(attributes of a module, forward of convt)`` of the modules that have one."""
        return [(vars(each), vars(each)["forward"]) for each in self.modules if _forward.installed(each)]

    def accelerate(self, functional):
        """Let convt compute the model. ``functional`` is whether it calls functions of torch.nn.functional."""
        if self.modules and not self.is_accelerated:
            self.kept = _accelerate.accelerate(self.model, functional=functional)[1].kept
            self.forwards = self._installed()
        self.serving, self.functional = None if self.modules else _functional.Serving(), functional
        self.install()
        with _recording() as calls:
            self.run()
        self.always = any(call.served for call in calls)  # modules of convt's classes, or accelerated ones in a function
        self.install(self.forwards)

    def finish(self):
        """Leave the model as it was."""
        self.install(self.forwards)
        if self.kept is not None:
            _accelerate.restore(self.model)

    def install(self, forwards=()):
        """Give modules these forwards, which are those of convt or `replaced`, or else those of their classes."""
        for attributes, _ in (*self.forwards, *self.replaced):
            attributes.pop("forward", None)
        for attributes, forward in forwards:
            attributes["forward"] = forward

    def replace(self, behind):
        """Make forwards that take no time, for transposed convolutions, and for the modules ``behind`` that convt fuses."""
        for module in self.modules:
            if module in behind:
                self.replaced.append((vars(module), lambda input: input))
            elif not self.functional and _modules.calls_only_function(module):
                self.replaced.append((vars(module), self.rest.of(module)))

    def run_in(self, mode):
        """Run in a mode of torch, or in none."""
        with mode or contextlib.nullcontext():
            self.run()

    def fused(self):
        """Return {name of a transposed convolution: modules that convt fuses with it now}, while convt computes the model."""
        found = {}
        for module in [each for each in self.modules if _forward.installed(each, _fuse.SequentialForward)]:
            for conv, behind in _fuse.fused_modules(_fuse.leaves(module)[1]):
                name = self.names.get(id(conv))
                found[name] = max(behind, found.get(name, []), key=len)
        return found

    def advice(self):
        """Return how to let convt compute the model, or "" if it does."""
        if self.is_accelerated:
            return ""
        if not self.modules:
            return "Use it with convt.torch.functional()."
        return f"Use convt.torch.accelerate(model{', functional=True' * self.functional})."


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
    with _Host(subject.names, {}) as first:
        subject.run()
    looked_for = f"{_mode.FUNCTIONS} and the modules that call them"
    if not first.calls:
        start = time.perf_counter()
        subject.run()
        seconds = time.perf_counter() - start
        return Worth("PyTorch", (), seconds, seconds, looked_for)
    try:
        subject.accelerate(functional=not all(call.by_module for call in first.calls))
        subject.run_in(subject.serving), subject.run_in(subject.serving)  # weights are packed at the second call
        fused, runs = subject.fused(), []
        for _ in range(_RUNS):
            step()
            subject.install()
            with _Host(subject.names, fused) as host:
                subject.run()
            step()
            subject.install(subject.forwards)
            with _recording() as ours:
                subject.run_in(subject.serving)
            runs.append((host.calls, ours))
        subject.replace([module for behind in fused.values() for module in behind])
        ways = [  # forwards of modules, and a mode: without convt, with it, without the time of transposed convolutions
            ((), _Host({}, {}) if subject.always else None), (subject.forwards, subject.serving),
            (subject.replaced, subject.rest if subject.functional else None),
        ]  # fmt: skip
        before = [functools.partial(subject.install, forwards) for forwards, _ in ways]
        calls = [functools.partial(subject.run_in, mode) for _, mode in ways]
        *seconds, rest = worth.in_turns(calls, budget, step, before=before)
    finally:
        subject.finish()
    layers = tuple(_layers(runs, fused, subject.kept or {}))
    return Worth("PyTorch", layers, *seconds, looked_for, subject.advice(), rest)


def _matched(host, ours):
    """Yield each of the host's calls in a run, with convt's `_Call`, or None where convt did not get the call."""
    for call in host:
        ahead = next((n for n, other in enumerate(ours) if other.signature == call.signature), None)
        yield call, None if ahead is None else ours[ahead]
        ours = ours if ahead is None else ours[ahead + 1 :]


def _layers(runs, fused, reasons):
    """Yield the `worth.LayerTime` of all layers. ``runs`` has the host's and convt's calls of each run."""
    limits, groups = MachineLimits(torch.get_num_threads()), {}
    for run, calls in enumerate(runs):
        for call, match in _matched(*calls):
            groups.setdefault((call.name, call.signature), [[] for _ in runs])[run].append((call, match))
    for (name, signature), pairs in groups.items():
        pairs = list(filter(None, pairs))  # of the runs that have the call
        # The least sum of a run, because other programs disturb whole runs less often than some layers.
        host, calls = min(sum(call.seconds for call, _ in each) for each in pairs), max(map(len, pairs))
        matches, behind = [match for each in pairs for _, match in each], fused.get(name, ())
        found = {"algorithm": reasons.get(name, _REFUSED if all(matches) else _UNREACHED)}
        if all(match and match.served for match in matches):
            seconds = min(sum(match.seconds for _, match in each) for each in pairs)
            found = {"convt_seconds": seconds} | _planned(signature, matches[0].served, seconds / calls, limits)
        found |= {"fused": tuple(type(each).__name__ for each in behind), "calls": calls}
        yield worth.LayerTime(name, signature[0], pairs[0][0][0].output, host, **found)


def _planned(signature, served, seconds, limits):
    """Return `worth.planned` of a call that takes ``seconds``."""
    (data, _, stride, padding, output_padding, groups, dilation), (weight, bias, channels_last, precision) = signature, served
    attributes = stride, padding, output_padding, groups[0], dilation, _compute.precision_of(precision), None, "auto"
    keywords = _compute.keywords(attributes, channels_last)._asdict()
    operator = _operator.ConvTranspose._borrowing(array(weight), None if bias is None else array(bias), **keywords)
    return worth.planned(operator, (data[0], *data[2:], data[1]) if channels_last else data, seconds, limits)
