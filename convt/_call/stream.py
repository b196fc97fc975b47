"""`Stream`: the transposed convolution of data that arrives in chunks along one axis. steps.py computes a chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._base import check, words
from . import api
from .steps import steps_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .._base.typing import Array
    from .steps import Step

_LENGTHS = 64  # number of shapes of chunks that a stream remembers


class Stream:
    """A transposed convolution of data that arrives in chunks along one spatial axis: see `ConvTranspose.stream`.

    Call a stream with a chunk to get the outputs that no later input can change, and `finish` to get the rest. One thread at a
    time may use a stream; streams of one operator may run at once. A stream can be pickled, with its operator.
    """

    def __init__(self, op: Any, batch: Any = 1, axis: Any = -1, trim: str | None = None) -> None:
        attributes = op._attributes
        rank = attributes.rank
        number = check.integer("axis", axis, -rank)
        if number >= rank:
            axes = words.count(rank, "spatial axis", "spatial axes")
            raise ValueError(f"axis: got {number}, wanted -{rank} to {rank - 1}, because the filter has {axes}")
        if trim is not None:
            check.word("trim", trim, ("right",))
        if attributes.output_shape is not None:
            raise ValueError(
                f"output_shape: got a stream of an operator with output_shape {attributes.output_shape}, wanted an operator "
                "without, because the length of a stream is unknown"
            )
        self._op, self.batch, self.axis, self.trim = op, check.integer("batch", batch, 0), number % rank, trim
        self._steps = steps_of(op, self.axis, trim)
        self.reset()

    def reset(self) -> None:
        """Forget all inputs: the next chunk begins another signal, whose sizes on the other axes may differ."""
        self._set(None, 0)

    def _set(self, kept: NDArray[Any] | None, seen: int, finished: bool = False) -> None:
        self._kept = kept  # the last inputs, never changed in place; None before the first chunk
        self._seen, self._finished = seen, finished
        self._alike: dict[tuple[int, ...], Step] = {}  # shape of a chunk -> its Step, once all steps of one shape are alike

    @property
    def delay(self) -> int:
        """The number of outputs that wait for later inputs: n inputs have given ``max(0, stride * n - delay)`` outputs."""
        return self._steps.timeline.delay

    def __call__(self, chunk: Array) -> NDArray[Any]:
        """Return the outputs that ``chunk`` makes final.

        Parameters
        ----------
        chunk : array of the filter's dtype
            The next inputs, in the layout of the operator's data, of any length on the streamed axis, also 0.

        Returns
        -------
        array
            New C-contiguous outputs in the layout of the data: ``stride`` times as many as inputs, fewer while the first
            `delay` outputs wait.

        Raises
        ------
        ValueError, TypeError
            The chunk does not fit the filter, the batch or the earlier chunks, or `finish` was called. The stream is as before.
        MemoryError
            The output does not fit into memory. The stream is as before.
        """
        steps, kept = self._steps, self._kept
        if kept is not None and type(chunk) is np.ndarray and chunk.dtype is steps.dtype and steps.source is self._op._plans:
            step = self._alike.get(chunk.shape)
            if step is not None:  # a chunk like an earlier one
                if steps.tail is None:
                    result = step(chunk)
                else:
                    whole = np.concatenate((kept, chunk), steps.place)
                    result, self._kept = step(whole), whole[steps.tail].copy()
                self._seen += chunk.shape[steps.place]
                return result
        return self._compute(chunk)

    def with_tail(self, chunk: Array) -> NDArray[Any]:
        """Return the outputs of a call, and after them those that `finish` would return now. The stream goes on.

        It is the output of all inputs so far, without the outputs that were final before. Arguments and errors are those of a
        call.
        """
        return self._compute(chunk, True)

    def _compute(self, chunk, all=False):
        """Return the outputs of a chunk with all checks; ``all`` is that of `Steps.compute`."""
        steps, data = self._current(), self._checked(chunk)
        result, kept, step = steps.compute(self._kept_before(data), data, self._seen, all)
        if steps.timeline.settled(self._seen) and not all and len(self._alike) < _LENGTHS:
            self._alike[data.shape] = step
        self._kept, self._seen = kept, self._seen + data.shape[steps.place]
        return result

    def _current(self):
        """Return the `Steps` for the present weights."""
        if self._steps.source is not self._op._plans:
            self._steps, self._alike = steps_of(self._op, self.axis, self.trim), {}
        return self._steps

    def _kept_before(self, data):
        """Return the inputs that are kept, none before the first chunk."""
        return data[(slice(None),) * self._steps.place + (slice(0, 0),)] if self._kept is None else self._kept

    def _checked(self, chunk, name="chunk"):
        """Return a chunk as an array that fits this stream. Errors call it ``name``."""
        if self._finished:
            raise ValueError(f"{name}: got a chunk after finish(), wanted reset() before it")
        steps = self._steps
        with check.renamed({"data": name}):
            data = api.check_data(steps.attributes, check.array("data", chunk))
            batch = steps.attributes.shape_of(data.shape)[0]
        if batch != self.batch:
            raise ValueError(f"{name}: got batch {batch} (shape {data.shape}), wanted {self.batch}, the stream's")
        wanted = data.shape if self._kept is None else steps.with_length(self._kept.shape, data.shape[steps.place])
        if data.shape != wanted:
            raise ValueError(f"{name}: got shape {data.shape}, wanted {wanted}, as in the earlier chunks")
        return data

    def finish(self) -> NDArray[Any]:
        """Return the outputs that remain when no more input comes, and end the signal: call `reset` to begin another.

        Returns
        -------
        array
            The last outputs. Those of all chunks and these, one after the other, are the output of the whole.

        Raises
        ------
        ValueError
            `finish` was called before, or no chunk has come and the operator has several spatial axes, whose sizes are unknown.
        """
        steps, kept = self._current(), self._kept
        if self._finished:
            raise ValueError("finish: got a second call, wanted reset() before it")
        attributes = steps.attributes
        if kept is None and attributes.rank > 1:
            raise ValueError("finish: got a call before any chunk, wanted a chunk, which tells the sizes of the other axes")
        if kept is None:
            kept = np.empty(attributes.user_shape((self.batch, 0, attributes.groups * attributes.ci)), steps.dtype)
        nothing = np.empty(steps.with_length(kept.shape, 0), steps.dtype)
        result = steps.compute(kept, nothing, self._seen, True)[0]
        self._set(nothing, self._seen, True)
        return result

    def copy(self) -> Stream:
        """Return a stream that continues from here on its own. It shares packed weights and plans with this one."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _alike=self._alike.copy())
        return other

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """The state as arrays, which a stream of an equal operator can take in another process.

        "inputs" are the inputs that outputs to come read, in the layout of the data. They are at most
        ``ceil((reach - 1) / stride)`` unless pads_end exceeds ``reach = (kernel - 1) * dilation + 1``. "position" is the number
        of inputs so far, and 1 after `finish`, else 0. Before the first chunk, "inputs" is empty and has one axis.
        """
        inputs = np.empty(0, self._steps.dtype) if self._kept is None else self._kept.copy()
        return {"inputs": inputs, "position": np.array([self._seen, self._finished], np.int64)}

    @state.setter
    def state(self, state: dict[str, Array]) -> None:
        if not isinstance(state, dict) or state.keys() != {"inputs", "position"}:
            got = f"the keys {sorted(map(str, state))}" if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"state: got {got}, wanted a dict with 'inputs' and 'position'")
        seen, finished = check.integers("state['position']", state["position"], 2, 0, scalar=False, each="as in `state`")
        steps, inputs = self._current(), check.array("state['inputs']", state["inputs"])
        if inputs.shape == (0,) and not seen and not finished:
            self.reset()
            return
        with check.renamed({"data": "state['inputs']"}):
            batch, sizes, _ = steps.attributes.shape_of(api.check_data(steps.attributes, inputs).shape)
        got, wanted = sizes[self.axis], 0 if finished else seen - steps.timeline.first(seen)
        if (batch, got) != (self.batch, wanted):
            said = f"got batch {batch} and length {got}, wanted batch {self.batch} and length {wanted}"
            raise ValueError(f"state['inputs']: {said}")
        self._set(inputs.copy(), seen, bool(finished))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._op, self.batch, self.axis, self.trim, self.state)

    def __repr__(self) -> str:
        trim = f", trim={self.trim!r}" if self.trim else ""
        return f"Stream({self._op!r}, batch={self.batch}, axis={self.axis}{trim}, after {words.count(self._seen, 'input')})"


def _rebuild(cls, op, batch, axis, trim, state):
    stream = cls(op, batch, axis, trim)
    stream.state = state
    return stream


def stream_many(streams: Sequence[Stream], chunks: Sequence[Array]) -> list[NDArray[Any]]:
    """Compute a chunk of each of several streams, as one batch where their steps are alike.

    Parameters
    ----------
    streams : sequence of Stream
        Streams of one operator or of several, each at most once.
    chunks : sequence of arrays
        The next chunk of each stream. Streams of one operator whose chunks have equal shapes, apart from the batch, are
        computed together if they are past their first inputs or at the same position.

    Returns
    -------
    list of array
        The outputs of each stream: the bits of ``[stream(chunk) for stream, chunk in zip(streams, chunks)]``. Outputs that were
        computed together are views of one array.

    Raises
    ------
    ValueError, TypeError
        An argument is wrong; the message names the number of the stream or chunk. All streams are as before.

    Examples
    --------
    >>> import numpy as np, convt
    >>> op = convt.ConvTranspose(np.ones((4, 1, 1), np.float32), strides=2)
    >>> streams = [op.stream() for _ in range(3)]
    >>> [y.ravel().tolist() for y in convt.stream_many(streams, list(np.arange(3, dtype=np.float32).reshape(3, 1, 1, 1)))]
    [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]
    """
    streams, chunks = list(streams), list(chunks)
    if len(streams) != len(chunks):
        raise ValueError(f"chunks: got {len(chunks)}, wanted {len(streams)}, one for each stream")
    for n, stream in enumerate(streams):
        if not isinstance(stream, Stream):
            raise TypeError(f"streams[{n}]: got {type(stream).__name__}, wanted a Stream")
    if len({id(stream) for stream in streams}) != len(streams):
        raise ValueError("streams: got a stream twice, wanted each at most once")
    alike: dict[Any, list[tuple[int, NDArray[Any], NDArray[Any]]]] = {}
    for n, stream in enumerate(streams):
        steps, data = stream._current(), stream._checked(chunks[n], f"chunks[{n}]")
        kept, seen = stream._kept_before(data), stream._seen
        key = steps, data.shape[1:], kept.shape[1:], None if steps.timeline.settled(seen) else seen
        alike.setdefault(key, []).append((n, kept, data))
    results: list[Any] = [None] * len(streams)
    for (steps, *_), members in alike.items():
        numbers, kept, data = zip(*members, strict=True)
        seen = streams[numbers[0]]._seen
        together, rest, _ = steps.compute(np.concatenate(kept), np.concatenate(data), seen)
        at = 0
        for n, chunk in zip(numbers, data, strict=True):
            end = at + len(chunk)
            results[n], streams[n]._kept = together[at:end], rest[at:end].copy()
            streams[n]._seen += chunk.shape[steps.place]
            at = end
    return results
