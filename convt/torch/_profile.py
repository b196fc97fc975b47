"""What convt changes in a whole model: `profile` measures it."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from .._base import check, terminal
from .._call import operator as _operator
from .._call import worth
from .._call.worth import Worth
from . import _accelerate, _compute, _forward, _functional, _fuse, _mode, _modules
from ._arrays import array, is_channels_last

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RUNS, _ROUNDS = 5, 4  # recorded runs with the host and with convt each; rounds of turns of whole runs
_REFUSED = "convt refuses the call (CONVT_VERBOSE=1 prints the reason)"
_UNREACHED = "a forward calls the function; accelerate(model, functional=True) lets convt compute it"


class _Call(NamedTuple):
    """A transposed convolution in a run."""

    signature: tuple[Any, ...]  # shapes of input and weight, attributes
    seconds: float
    name: str = ""  # of the module that calls it
    by_module: bool = True  # whether the forward of a torch module calls it
    served: tuple[Any, ...] | None = None  # (weight, bias, channels last, precision) if convt computes it
    output: tuple[int, ...] = ()


def _signature(input, weight, bias, *attributes):
    """Return what identifies a call in another run: everything except the values of tensors."""
    rank = weight.dim() - 2
    shape = tuple(input.shape) if input.dim() == rank + 2 else (1, *input.shape)
    return shape, tuple(weight.shape), *(_functional.per_axis(each, rank) for each in attributes)


class _Host(TorchFunctionMode):
    """A mode in which torch computes all transposed convolutions, and which records them and what convt would fuse with them.

    ``names`` maps the id of a module to its name, ``behind`` the id of a module that convt fuses to that of its transposed
    convolution. ``fused`` has the seconds of these modules by the name of the transposed convolution.
    """

    def __init__(self, names, behind):
        super().__init__()
        self.calls, self.names, self.behind, self.fused = [], names, behind, {}

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        keywords, is_ours = keywords or {}, function in _functional.RANKS_OF
        if not (is_ours or self.behind) or torch.compiler.is_compiling():
            return function(*arguments, **keywords)
        start = time.perf_counter()
        result = function(*arguments, **keywords)
        seconds, module = time.perf_counter() - start, _forward.calling_module()
        if is_ours:
            bound = _functional.bind(*arguments, **keywords)
            name = self.names.get(id(module)) or (function.__name__ if module is None else type(module).__name__)
            by_module = _modules.calls_only_function(module)
            self.calls.append(_Call(_signature(*bound), seconds, name, by_module, None, tuple(result.shape)))
        elif (conv := self.behind.get(id(module))) is not None:
            self.fused[conv] = self.fused.get(conv, 0.0) + seconds
        return result


class _Recorder:
    """Records what convt computes in this thread, as `_functional.recorder`."""

    def __init__(self):
        self.calls, self.thread, self.last = [], threading.get_ident(), None

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
        tensors, before = tuple(map(id, arguments[:3])), self.last
        self.last = tensors if result is None else None
        if result is None and before == tensors:  # a module and then the function that it calls refuse one call
            return
        try:
            signature = _signature(*arguments[:8])
        except (AttributeError, RuntimeError, TypeError):  # arguments that torch refuses
            return
        served = None
        if result is not None:
            input, weight, bias, *attributes = arguments[:8]
            batched = input if input.dim() == rank + 2 else input.unsqueeze(0)
            axes = [_functional.per_axis(each, rank) for each in attributes]
            last = is_channels_last(batched, weight, axes[0], axes[1], axes[2], attributes[3], axes[4])
            served = weight, bias, last, arguments[8]
        self.calls.append(_Call(signature, seconds, served=served))


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
    """A model that runs with convt and without it, in turns."""

    def __init__(self, model, run):
        self.model, self.run, self.modules = model, run, []
        if isinstance(model, torch.nn.Module):
            self.modules = list(model.modules())
        self.names = {id(module): name or type(module).__name__ for name, module in reversed(_named(model))}
        self.forwards = self.found()
        self.is_accelerated = bool(self.forwards) or any(_modules.is_convts(each) for each in self.modules)
        self.report, self.serving, self.always = None, None, False
        self.rest, self.replaced, self.functional = _Rest(), [], False

    def found(self):
        """Return the modules with a forward of convt, and this forward."""
        return [(vars(each), vars(each)["forward"]) for each in self.modules if _forward.installed(each)]

    def accelerate(self, functional):
        """Let convt compute the model. ``functional`` is whether it calls functions of torch.nn.functional."""
        if self.modules and not self.is_accelerated:
            self.report = _accelerate.accelerate(self.model, functional=functional)[1]
            self.forwards = self.found()
        self.serving, self.functional = None if self.modules else _functional.Serving(), functional
        self.install()
        with _recording() as calls:
            self.run()
        self.always = any(call.served for call in calls)  # modules of convt's classes, or accelerated ones in a function

    def finish(self):
        """Leave the model as it was."""
        self.install(self.forwards)
        if self.report is not None:
            _accelerate.restore(self.model)

    def install(self, forwards=()):
        """Give modules these forwards, which are those of convt or `replaced`, or else those of their classes."""
        for attributes, _ in (*self.forwards, *self.replaced):
            attributes.pop("forward", None)
        for attributes, forward in forwards:
            attributes["forward"] = forward

    def replace(self, behind):
        """Make forwards that take no time, for transposed convolutions, and for modules to fuse, whose ids are ``behind``."""
        for module in self.modules:
            if id(module) in behind:
                self.replaced.append((vars(module), lambda input: input))
            elif not self.functional and _modules.calls_only_function(module):
                self.replaced.append((vars(module), self.rest.of(module)))

    def run_without_layers(self):
        with self.rest if self.functional else contextlib.nullcontext():
            self.run()

    def run_without(self):
        with _Host({}, {}) if self.always else contextlib.nullcontext():
            self.run()

    def run_with_convt(self):
        with self.serving or contextlib.nullcontext():
            self.run()

    def fused(self):
        """Return {name of a transposed convolution: modules that convt fuses with it now}, while convt computes the model."""
        found = {}
        for module in [each for each in self.modules if _forward.installed(each, _fuse.SequentialForward)]:
            _, leaves = _fuse.leaves(module)
            for conv, behind in _fuse.fused_modules(leaves):
                name = self.names.get(id(conv))
                found[name] = max(behind, found.get(name, []), key=len)
        return found


def _named(model):
    return list(model.named_modules()) if isinstance(model, torch.nn.Module) else []


def profile(
    model: Callable[..., Any], *inputs: Any, keywords: Mapping[str, Any] | None = None, budget: float = 2.0
) -> Worth:
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
    words = dict(keywords or {})
    subject = _Subject(model, lambda: model(*inputs, **words))
    steps = 2 * _RUNS + 3 * _ROUNDS
    with torch.no_grad(), _unchanged(model), terminal.progress(steps) as begin:
        return _measured(subject, budget, lambda: begin("timing the model"))


def _measured(subject, budget, step):
    """Measure a `_Subject` and return the `Worth`. ``step`` is called before each of 2 * _RUNS + 3 * _ROUNDS steps."""
    with _Host(subject.names, {}) as first:
        subject.run()
    looked_for = f"{_mode.FUNCTIONS} and the modules that call them"
    if not first.calls:
        start = time.perf_counter()
        subject.run()
        seconds = time.perf_counter() - start
        return Worth("PyTorch", (), seconds, seconds, looked_for)
    functional = not all(call.by_module for call in first.calls)
    try:
        subject.accelerate(functional)
        subject.install(subject.forwards)
        subject.run_with_convt(), subject.run_with_convt()  # weights are packed at the second call
        fused, host, ours = subject.fused(), [], []
        behind = {id(module): name for name, modules in fused.items() for module in modules}
        for _ in range(_RUNS):
            step()
            subject.install()
            with _Host(subject.names, behind) as recorded:
                subject.run()
            host.append(recorded)
            step()
            subject.install(subject.forwards)
            with _recording() as calls:
                subject.run_with_convt()
            ours.append(calls)
        subject.replace(behind)
        calls = [subject.run_without, subject.run_with_convt, subject.run_without_layers]
        before = [functools.partial(subject.install, each) for each in ((), subject.forwards, subject.replaced)]
        *seconds, rest = worth.in_turns(calls, budget, _ROUNDS, step=step, before=before)
    finally:
        subject.finish()
    reasons = subject.report.kept if subject.report is not None else {}
    layers = tuple(_layers(host, ours, fused, reasons))
    return Worth("PyTorch", layers, *seconds, looked_for, _advice(subject, functional), rest)


def _advice(subject, functional):
    """Return how to let convt compute a subject, or "" if it does."""
    if subject.is_accelerated:
        return ""
    if not subject.modules:
        return "Use it with convt.torch.functional()."
    return f"Use convt.torch.accelerate(model{', functional=True' * functional})."


def _matched(host, ours):
    """Return the `_Call` of convt for each of the host's calls in one run, or None where convt did not get the call."""
    found, at = [], 0
    for call in host:
        ahead = next((n for n in range(at, len(ours)) if ours[n].signature == call.signature), None)
        found.append(None if ahead is None else ours[ahead])
        at = at if ahead is None else ahead + 1
    return found


def _layers(host, ours, fused, reasons):
    """Yield the `worth.LayerTime` of all layers. ``host`` and ``ours`` have the records of each run."""
    limit, groups = worth.machine_limit(torch.get_num_threads()), {}
    for run, (theirs, calls) in enumerate(zip(host, ours, strict=True)):
        for call, match in zip(theirs.calls, _matched(theirs.calls, calls), strict=True):
            group = groups.setdefault((call.name, call.signature), ([[] for _ in host], [[] for _ in host], [], []))
            group[0][run].append(call.seconds)
            group[1][run].append(match.seconds if match else math.nan)
            group[2].append(call)
            group[3].append(match)
    count = {name: sum(key[0] == name for key in groups) for name, _ in groups}
    for (name, signature), (theirs, times, calls, matches) in groups.items():
        seconds = min(map(sum, theirs))  # the least, because other programs disturb whole runs less often than some layers
        if name in fused:  # their time is known by name only
            seconds += min(each.fused.get(name, 0.0) for each in host) / count[name]
        convt, algorithm, of_limit = math.nan, reasons.get(name, _REFUSED if all(matches) else _UNREACHED), math.nan
        if all(match and match.served for match in matches):
            convt, (algorithm, least) = min(map(sum, times)), _planned(signature, matches[0].served, limit)
            of_limit = least * len(times[0]) / convt
        classes = tuple(type(each).__name__ for each in fused.get(name, ()))
        yield worth.LayerTime(
            name, signature[0], calls[0].output, seconds, convt, algorithm, of_limit, classes, max(map(len, theirs))
        )


def _planned(signature, served, limit):
    """Return ``(algorithm, seconds of the hardware limit)`` of a call."""
    (data, _, stride, padding, output_padding, groups, dilation), (weight, bias, channels_last, precision) = signature, served
    attributes = stride, padding, output_padding, groups[0], dilation, _compute.precision_of(precision), None, "auto"
    keywords = _compute.keywords(attributes, channels_last, False)
    operator = _operator.ConvTranspose._borrowing(array(weight), None if bias is None else array(bias), **keywords)
    return worth.planned(operator, (data[0], *data[2:], data[1]) if channels_last else data, limit)
