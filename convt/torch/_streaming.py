"""Streaming: the ConvTranspose1d modules of a model keep their state from one chunk of a signal to the next."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.modules.utils import _single

from .._base import check
from .._call.operator import ConvTranspose
from .._run import config
from . import _forward, _weights
from ._accelerate import _compiled, _transposed
from ._arrays import DTYPES, array, is_plain, tensor_of
from ._compute import keywords
from ._modules import is_convts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Self

_FORWARD = torch.nn.ConvTranspose1d.forward
_FUNCTION = torch.nn.functional.conv_transpose1d
_NAMES = "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"  # torch's arguments
_TRIMS = "model", "right"


class streaming:
    """A context in which the ConvTranspose1d modules of a model compute a signal chunk by chunk.

    Inside the ``with`` block, each call of the model gets the next chunk. Each ConvTranspose1d adds what earlier chunks
    contribute to the outputs of the chunk. The other modules are unchanged, so they must act on each frame alone
    (activations, convolutions of kernel 1) or keep a state of their own. The model may be accelerated or not. After the block
    it is as before.

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

    Attributes
    ----------
    streamed : tuple of str
        Names of the modules that stream.
    kept : dict of str to str
        Transposed convolution that torch computes as before -> reason.

    Raises
    ------
    TypeError
        ``model`` is not a torch.nn.Module.
    ValueError
        The model has no ConvTranspose1d, or it is in a session, or ``trim`` is another word. A call that a module cannot
        stream raises ValueError too.

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

    def __init__(self, model: torch.nn.Module, trim: str | None = "model") -> None:
        if trim is not None:
            check.word("trim", trim, _TRIMS)
        self.kept: dict[str, str] = _compiled(model)
        self._layers: dict[str, StreamingForward] = {}
        modules = {}
        for name, module in _transposed(model):
            if why := _why_not(module):
                self.kept[name] = why
            elif module not in modules:
                modules[module] = self._layers[name] = StreamingForward(module, self, name, trim)
        if not self._layers:
            why = "; ".join(f"{name or 'the model itself'}: {why}" for name, why in self.kept.items())
            raise ValueError(f"model: got no ConvTranspose1d to stream, wanted at least one{why and ' (' + why + ')'}")
        self._undo: contextlib.ExitStack | None = None
        self.finishing = False  # inside `finish`
        self.streamed = tuple(self._layers)

    def __enter__(self) -> Self:
        for name, layer in self._layers.items():
            if _forward.installed(layer._module(), StreamingForward):
                raise ValueError(f"model: got {name or 'a module'} in another session, wanted one session at a time")
        with contextlib.ExitStack() as undo:
            for layer in self._layers.values():
                _forward.set_attribute(undo, layer._module(), "forward", layer)
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo.close()

    def reset(self) -> None:
        """Forget the signal: the next chunk begins another, which may have another batch."""
        for layer in self._layers.values():
            layer.reset()

    @contextlib.contextmanager
    def finish(self) -> Iterator[None]:
        """Give the last chunk, in a ``with`` block: calls of the model in it return the rest too. Then the signal is forgotten.

        It matters with ``trim=None`` alone. The last chunk may be empty if the other modules take empty tensors.
        """
        self.finishing = True
        try:
            yield
        finally:
            self.finishing = False
            self.reset()

    @property
    def state(self) -> dict[str, dict[str, np.ndarray]]:
        """The state of the signal: `convt.Stream.state` of each module that was called. Setting it continues that signal."""
        return {name: layer.state for name, layer in self._layers.items() if layer.state}

    @state.setter
    def state(self, state: dict[str, dict[str, np.ndarray]]) -> None:
        if not isinstance(state, dict) or not state.keys() <= self._layers.keys():
            raise ValueError(f"state: got {type(state).__name__}, wanted a dict with names among {', '.join(self._layers)}")
        for name, layer in self._layers.items():
            layer.reset(state.get(name))


def _why_not(module):
    """Return the reason why a transposed convolution does not stream, or None."""
    if not isinstance(module, torch.nn.ConvTranspose1d):
        return f"{type(module).__name__} has several spatial axes"
    if isinstance(module, torch.nn.modules.lazy.LazyModuleMixin):
        return "its sizes are unknown before its first call"
    return None


class StreamingForward(_forward.Forward):
    """The forward of a ConvTranspose1d in a session, with the stream of the module."""

    torch_forward = _FORWARD

    def __init__(self, module, session, name, trim):
        super().__init__(module, session, name, trim)
        self.session, self.name, self.trim, self.op = session, name or "the module", trim, None
        self.reset()

    def __deepcopy__(self, memo):
        raise TypeError("model: got a copy of a model in a session of convt.torch.streaming, wanted it after the session")

    def __reduce__(self):
        raise TypeError("model: got a pickle of a model in a session of convt.torch.streaming, wanted it after the session")

    def reset(self, waiting=None):
        """Forget the signal, or continue one from the state of a stream."""
        self.stream, self.waiting = None, waiting

    @property
    def state(self):
        """The state of the stream, or an empty dict before the first chunk."""
        return self.stream.state if self.stream is not None else self.waiting or {}

    def __call__(self, input, output_size=None):
        module = self.module()
        if type(module).forward is not _FORWARD and not is_convts(module):  # it calls torch's forward and changes the result
            with _Intercepting(self):
                return type(module).forward(module, input, *(() if output_size is None else (output_size,)))
        if output_size is not None:
            raise ValueError(f"output_size: got {output_size} for {self.name}, wanted None, because a stream has no total size")
        padding = _single(module.padding), _single(module.output_padding)
        return self.step(input, module.weight, module.bias, module.stride, *padding, module.groups, module.dilation)

    def step(self, input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        """Return the outputs of a chunk; the arguments are those of torch's conv_transpose1d."""
        self._check(input, weight, bias)
        if self.op is None:
            axes = (tuple(_single(values)) for values in (stride, padding, output_padding))
            attributes = (*axes, groups, tuple(_single(dilation)), None, None, config.default_backend())
            self.op = self._operator(weight, bias, attributes)
        batched = input if input.dim() == 3 else input.unsqueeze(0)
        data, threads = array(batched), torch.get_num_threads()
        with contextlib.nullcontext() if threads == config.get_num_threads() else config.num_threads(threads):
            result = self._compute(data)
        result = tensor_of(result)
        return result if batched is input else result.squeeze(0)

    def _compute(self, data):
        stream = self.stream
        with check.renamed(dict.fromkeys(("chunk", "data"), f"input of {self.name}")):
            if stream is None:
                stream = self.op.stream(len(data), trim="right" if self.trim == "right" else None)
                if self.waiting:
                    stream.state = self.waiting
                self.stream, self.waiting = stream, None
            if self.trim == "model":
                return stream.with_tail(data)
            result = stream(data)
            if self.session.finishing:
                result = np.concatenate((result, stream.finish()), 2)
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
        key = attributes, False, False
        op = _weights.operator(weight, bias, key, keywords, False, at_once=True)
        if op is None:
            op = ConvTranspose(array(weight), None if bias is None else array(bias), **keywords(*key))
        if self.trim == "model":
            stream = op.stream()
            short = stream.delay > 0 and not any(attributes[1])
            if stream.delay or any(attributes[1]):
                got = "a kernel shorter than the stride" if short else f"padding {attributes[1][0]}"
                raise ValueError(
                    f"{self.name}: got {got}, wanted padding 0 and a kernel of at least the stride for trim='model'; "
                    "trim=None serves every module"
                )
        return op


class _Intercepting(torch.overrides.TorchFunctionMode):
    """A mode in which torch's conv_transpose1d is a step of a stream."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is _FUNCTION:
            return self.layer.step(**dict(zip(_NAMES, args, strict=False)), **(kwargs or {}))
        return func(*args, **(kwargs or {}))
