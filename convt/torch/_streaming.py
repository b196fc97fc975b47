"""Streaming: the ConvTranspose1d modules of a model keep their state from one chunk of a signal to the next."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.utils import _single
from torch.nn.utils.parametrize import ParametrizationList

from .._base import check, words
from .._call.operator import ConvTranspose
from .._run import config
from . import _forward, _frames, _weights
from ._accelerate import _above, _places
from ._arrays import DTYPES, array, is_plain, tensor_of
from ._compute import keywords, on_torchs_threads
from ._functional import aside
from ._mode import has_own_forward
from ._modules import base_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from typing_extensions import Self

    from .._call.stream import Stream

    _Classes: TypeAlias = type[torch.nn.Module] | Sequence[type[torch.nn.Module]]

_TRIMS = "model", "right"


class streaming:
    """A context in which the ConvTranspose1d modules of a model compute a signal chunk by chunk.

    Inside the ``with`` block, each call of the model gets the next chunk. Each ConvTranspose1d adds what earlier chunks
    contribute to the outputs of the chunk. The other modules are unchanged, so they must act on each frame alone
    (activations, convolutions of kernel 1) or keep a state of their own: a call of the model raises an error that names those
    which may read other frames. The model may be accelerated or not. After the block it is as before.

    A subclass of ConvTranspose1d that cuts the result of torch's forward, as causal decoders do, is served too. Weights are
    those of the first call in the block. A model has one session at a time. `state` moves a signal out of it and back, so that
    one model serves many signals in turn.

    Parameters
    ----------
    model : torch.nn.Module
        A ConvTranspose1d, or a module that contains some. Called in inference, without gradients, on CPU tensors of float32,
        float64, float16 or bfloat16.
    trim : "model", "right" or None, default "model"
        What a module returns for a chunk of ``n`` frames:

        * "model": as many outputs as torch's module; the last ``(kernel - 1) * dilation + 1 - stride + output_padding`` of them
          may still change. For models that cut these off, as causal decoders do (Encodec, VoxCPM). Needs padding 0 and a
          kernel of at least the stride.
        * "right": the first ``n * stride`` of these, which are final. For models that do not cut anything off.
        * None: all outputs that are final, as `convt.ConvTranspose.stream`. With padding, the first chunks give fewer. The last
          chunk, in `finish`, gives the rest, so that all together are the outputs of the whole signal.
    stateful : class or tuple of classes of modules, optional
        You promise that modules of these classes keep a state of their own from chunk to chunk. They are left alone, with all
        that they contain.
    framewise : class or tuple of classes of modules, optional
        You promise that the forward of these classes acts on each frame alone. The modules that they contain are still checked.

    Attributes
    ----------
    streamed : tuple of str
        Names of the modules that stream.
    kept : dict of str to str
        Transposed convolution in a stateful module, which is left alone -> reason.

    Raises
    ------
    TypeError
        ``model`` is not a torch.nn.Module, or ``stateful`` or ``framewise`` not classes.
    ValueError
        The model has no ConvTranspose1d, or a compiled module, or it is in a session, or ``trim`` is another word. A call that
        cannot be streamed raises ValueError, too: it names the modules that may read other frames than their own.

    Examples
    --------
    >>> import torch, convt.torch
    >>> model = torch.nn.ConvTranspose1d(1, 1, 4, stride=2, bias=False)
    >>> with torch.no_grad(), convt.torch.streaming(model, trim="right"):
    ...     chunks = [model(chunk) for chunk in torch.ones(1, 1, 6).split(2, 2)]
    >>> [tuple(chunk.shape) for chunk in chunks]
    [(1, 1, 4), (1, 1, 4), (1, 1, 4)]
    >>> torch.allclose(torch.cat(chunks, 2), model(torch.ones(1, 1, 6))[..., :12], atol=1e-6)
    True
    """

    def __init__(
        self, model: torch.nn.Module, trim: str | None = "model", *, stateful: _Classes = (), framewise: _Classes = ()
    ) -> None:
        if trim is not None:
            check.word("trim", trim, _TRIMS)
        trusted, closed = _classes("framewise", framewise), (*_classes("stateful", stateful), ParametrizationList)
        watch, shut = _frames.Watch(), set()
        self.kept: dict[str, str] = {}
        self._layers: dict[str, StreamingForward] = {}
        self._forwards: dict[torch.nn.Module, _frames.SessionForward] = {}
        for name, module in _places(model):
            if isinstance(module, closed):
                shut.add(name)
            inside = not shut.isdisjoint((*_above(name), name))
            if inside and base_of(type(module)):
                self.kept[name] = f"{type(module).__name__} is stateful"
            settings = watch, name, inside or isinstance(module, trusted)
            if module in self._forwards or (inside and name not in shut):
                continue
            if isinstance(module, torch.jit.ScriptModule) or module._compiled_call_impl is not None:
                if not settings[2]:
                    raise ValueError(f"{name or 'model'}: got a compiled module, wanted one whose functions can be checked")
            elif not inside and isinstance(module, torch.nn.ConvTranspose1d) and not isinstance(module, LazyModuleMixin):
                self._forwards[module] = self._layers[name] = StreamingForward(module, *settings, self, trim)
            elif type(module).forward is not torch.nn.Module.forward:
                self._forwards[module] = _frames.SessionForward(module, *settings)
        if not self._layers:
            raise ValueError("model: got no ConvTranspose1d to stream, wanted at least one")
        self._undo: contextlib.ExitStack | None = None
        self._finishing = False  # inside `finish`
        self._streams: dict[str, Stream] = {}
        self._waiting: dict[str, dict[str, Any]] = {}  # states with which streams begin at the next chunk
        self.streamed = tuple(self._layers)

    def __enter__(self) -> Self:
        for name, layer in self._layers.items():
            if _forward.installed(layer._module(), StreamingForward):
                raise ValueError(f"model: got {name or 'a module'} in another session, wanted one session at a time")
        with contextlib.ExitStack() as undo:
            for module, forward in self._forwards.items():
                _forward.set_attribute(undo, module, "forward", forward)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()

    def reset(self) -> None:
        """Forget the signal: the next chunk begins another, which may have another batch."""
        self._streams, self._waiting = {}, {}

    @contextlib.contextmanager
    def finish(self) -> Iterator[None]:
        """Give the last chunk, in a ``with`` block: calls of the model in it return the rest too. Then the signal is forgotten.

        It matters with ``trim=None`` alone. The last chunk may be empty if the other modules take empty tensors.
        """
        self._finishing = True
        try:
            yield
        finally:
            self._finishing = False
            self.reset()

    @property
    def state(self) -> dict[str, dict[str, np.ndarray]]:
        """The state of the signal: `convt.Stream.state` of each module that was called. Setting it continues that signal."""
        return self._waiting | {name: stream.state for name, stream in self._streams.items()}

    @state.setter
    def state(self, state: dict[str, dict[str, np.ndarray]]) -> None:
        if not isinstance(state, dict) or not state.keys() <= self._layers.keys():
            raise ValueError(f"state: got {type(state).__name__}, wanted a dict with names among {', '.join(self._layers)}")
        self._streams, self._waiting = {}, {name: each for name, each in state.items() if each}

    def _compute(self, name: str, op: ConvTranspose, trim: str | None, data: np.ndarray) -> np.ndarray:
        """Return the outputs of a layer for its chunk."""
        stream = self._streams.get(name)
        if stream is None:
            stream = op.stream(len(data), trim="right" if trim == "right" else None)
            if name in self._waiting:
                stream.state = self._waiting[name]
            self._streams[name] = stream
            self._waiting.pop(name, None)
        if trim == "model":
            return stream.with_tail(data)
        result = stream(data)
        return np.concatenate((result, stream.finish()), 2) if self._finishing else result


def _classes(name, value):
    """Return the classes that the caller gave as one class or as several."""
    classes = (value,) if isinstance(value, type) else value
    if not isinstance(classes, (tuple, list)) or not all(isinstance(each, type) for each in classes):
        raise TypeError(f"{name}: got {value!r}, wanted a class of modules, or a tuple of classes")
    return tuple(classes)


class StreamingForward(_frames.SessionForward):
    """The forward of a ConvTranspose1d in a session, with the stream of the module."""

    def __init__(self, module, watch, name, trusted, session, trim):
        super().__init__(module, watch, name or "the module", trusted)
        self.compute, self.trim, self.op = functools.partial(session._compute, name), trim, None
        self.plain = not (self.own or has_own_forward(module))

    def __call__(self, *arguments, **keywords):
        module, self.taken = self.module(), 0
        if self.plain:  # without torch's forward, because the mode would take microseconds
            with aside():
                return self._plain(module, *arguments, **keywords)
        result = self.checked(module, arguments, keywords)
        if self.taken != 1:
            got = f"{words.count(self.taken, 'call')} of conv_transpose1d in the forward of {type(module).__name__}"
            raise ValueError(f"{self.name}: got {got}, wanted one, or the class as stateful")
        return result

    def _plain(self, module, input, output_size=None):
        """Compute torch's forward."""
        if output_size is not None:
            raise ValueError(f"output_size: got {output_size} for {self.name}, wanted None, because a stream has no total size")
        sizes = module.stride, module.padding, module.output_padding, module.groups, module.dilation
        return self.step(input, module.weight, module.bias, *sizes)

    def step(self, input, weight, bias, stride, padding, output_padding, groups, dilation):
        """Return the outputs of a chunk: compute a call of torch's conv_transpose1d in the forward of the module."""
        self.taken, watch = self.taken + 1, self.watch
        checked = watch.places and not watch.places[-1].trusted
        if checked:
            watch.expect_cut()
            if self in watch.called:
                raise ValueError(f"{self.name}: got a second call in one call of the model, wanted one, as each is a chunk")
            watch.called.add(self)
        self._check(input, weight, bias)
        if self.op is None:
            axes = [tuple(_single(values)) for values in (stride, padding, output_padding, dilation)]
            self.op = self._operator(weight, bias, (*axes[:3], groups, axes[3], None, None, config.default_backend()))
        data = array(input if input.dim() == 3 else input.unsqueeze(0))
        with check.renamed(dict.fromkeys(("chunk", "data"), f"input of {self.name}")):
            result = tensor_of(on_torchs_threads(self.compute, self.op, self.trim, data))
        result, final = result if input.dim() == 3 else result.squeeze(0), input.shape[-1] * _single(stride)[0]
        if checked and self.trim == "model" and result.shape[-1] > final:
            watch.uncut = self.name, result, final
        return result

    def _check(self, input, weight, bias):
        """Raise ValueError for a call that cannot be streamed."""
        tensors = [each for each in (input, weight, bias) if each is not None]
        if input.dtype not in DTYPES or not all(is_plain(each, input.dtype) for each in tensors) or input.dim() not in (2, 3):
            got = ", ".join(f"{type(each).__name__} of {each.dtype} on {each.device}" for each in tensors)
            raise ValueError(f"{self.name}: got {got}, wanted (N, C, L) or (C, L) CPU tensors of one dtype of {DTYPES}")
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            raise ValueError(f"{self.name}: got a call that records gradients, wanted torch.no_grad(): a stream has none")

    def _operator(self, weight, bias, attributes):
        """Return the operator for a weight, which calls outside of the session and other sessions share."""
        key, (padding,) = (attributes, False, False), attributes[1]
        op = _weights.operator(weight, bias, key, keywords, False, at_once=True)
        if op is None:
            op = ConvTranspose(array(weight), None if bias is None else array(bias), **keywords(*key))
        if self.trim == "model" and (padding or op.stream().delay):
            got = f"padding {padding}" if padding else "a kernel shorter than the stride"
            raise ValueError(
                f"{self.name}: got {got}, wanted padding 0 and a kernel of at least the stride for trim='model'; "
                "trim=None serves every module"
            )
        return op
