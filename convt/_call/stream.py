"""`Stream`: the transposed convolution of data that arrives in chunks along one axis.

Output ``o`` of the streamed axis is final as soon as no later input reaches it. A stream keeps the last inputs that outputs still
to come read, and computes the outputs that a chunk makes final from these inputs and the chunk. Such a step is a problem of its
own: its window begins and ends with these outputs. It differs from that of the whole in sizes and window only, so all steps share
the packed weights. The algorithm "invariant" sums each output in the same order in every step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base import check, words
from .._base.problem import NUMPY_DTYPE
from .._plan import plans as _plans
from .._plan import repeat
from .._run import config
from . import api

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .._base.problem import Problem
    from .._base.typing import Array
    from .operator import ConvTranspose

INVARIANT = "invariant"
_LONG = 1 << 30  # a number of inputs with which the window of any stream is larger than its pads
_STEPS = 256  # number of steps that an operator keeps


class Timeline(NamedTuple):
    """The streamed axis: which outputs are known after n inputs, and which inputs later outputs read."""

    stride: int
    reach: int  # extent of the dilated kernel
    begin: int  # positions of the full scatter before the first output
    more: int  # an axis of n inputs has stride * n + more outputs

    @property
    def delay(self):
        """Outputs that wait: of stride * n outputs, those that a later input may change or cut off."""
        return max(self.begin, -self.more)

    @property
    def kept(self):
        """The most inputs that later outputs read."""
        return (self.reach - 1 + self.delay - self.begin) // self.stride

    def final(self, n):
        """Return the number of outputs that are final after n inputs."""
        return max(0, self.stride * n - self.delay)

    def total(self, n):
        """Return the number of outputs of n inputs in all."""
        return max(0, self.stride * n + self.more)

    def first(self, n):
        """Return the first of n inputs that an output reads that is not final yet."""
        return min(n, max(0, -((self.reach - 1 - self.begin - self.final(n)) // self.stride)))

    def settled(self, n):
        """Check whether all steps of one length are alike from n inputs on: each makes as many outputs of as many inputs."""
        return self.stride * n - self.delay >= max(0, self.reach - 1 - self.begin)

    def piece(self, n, end, out):
        """Return (inputs, begin, outputs) of a step along the axis: outputs up to ``out``, of the inputs up to ``end``.

        Outputs that are final after ``n`` inputs are left out, and inputs that only they read.
        """
        first, done = self.first(n), self.final(n)
        return end - first, done + self.begin - first * self.stride, out - done


class Shared:
    """What the streams of one operator share along an axis: the plans of steps, and packed weights."""

    def __init__(self, source, derived, axis, trim):
        """``source`` are the `plans.Plans` of the operator, ``derived`` those for the algorithm "invariant"."""
        self.source, self.plans, self.axis = source, derived, axis
        attributes = self.attributes = derived.attributes
        self.place = axis + (1 if attributes.data_format == "NXC" else 2)  # the streamed axis in the user's layout
        self.dtype = NUMPY_DTYPE[attributes.dtype]
        channels = attributes.groups * attributes.ci
        ones = (_LONG,) * attributes.rank
        self.shape = attributes.user_shape((1, *ones, channels))  # of data; the streamed and other spatial sizes are free
        begin, _, out = attributes.windows(ones)
        stride, begin, more = attributes.strides[axis], begin[axis], out[axis] - attributes.strides[axis] * _LONG
        reach = (attributes.kernel[axis] - 1) * attributes.dilations[axis] + 1
        self.timeline = Timeline(stride, reach, begin, 0 if trim else more)
        kept = self.timeline.kept
        self.tail = (slice(None),) * self.place + (slice(-kept, None),) if kept else None  # what a stream keeps of a step
        self.steps = {}  # (shape of the inputs of a step, begin, outputs) -> Step

    def step(self, shape, begin, out):
        """Return the Step of inputs of a shape, in the user's layout, whose window has ``out`` outputs from ``begin`` on."""
        key = shape, begin, out
        found = self.steps.get(key)
        if found is None:
            if len(self.steps) >= _STEPS:
                self.steps.clear()
            found = self.steps[key] = Step(self, self._problem(shape, begin, out))
        return found

    def _problem(self, shape, begin, out):
        place, axis = self.place, self.axis
        long = self.attributes.unchecked_problem((*shape[:place], _LONG, *shape[place + 1 :]))
        with_axis = lambda sizes, size: (*sizes[:axis], size, *sizes[axis + 1 :])  # noqa: E731
        problem = long._replace(
            in_sizes=with_axis(long.in_sizes, shape[place]), begin=with_axis(long.begin, begin),
            out_sizes=with_axis(long.out_sizes, out),
        )  # fmt: skip
        config.check_size(problem)
        return problem


class Step:
    """The problem of a step, and the `repeat.Bound` objects of calls that were like it."""

    def __init__(self, shared, problem: Problem):
        self.shared, self.problem, self.bounds = shared, problem, {}

    def __call__(self, data):
        """Compute the outputs of a step from its inputs."""
        found = repeat.repeat(self.bounds, data, None, config.get_num_threads())
        if type(found) is np.ndarray:
            return found
        shared = self.shared
        result, bound = api.execute(shared.attributes, shared.plans, data, (), None, self.problem)
        if bound is not None:
            self.bounds[found] = bound
        return result


def shared(op, axis, trim):
    """Return the `Shared` of an operator, an axis and a trim, for the operator's present weights."""
    own, kept = op._plans, op._streamed
    if not kept or next(iter(kept.values())).source is not own:
        kept = op._streamed = {}
    found = kept.get((axis, trim))
    if found is None:
        derived = next((each.plans for each in kept.values()), None) or _invariant_plans(own)
        found = kept.setdefault((axis, trim), Shared(own, derived, axis, trim))
    return found


def _invariant_plans(own):
    """Return the `plans.Plans` of the algorithm "invariant" for the weights of others."""
    attributes = own.attributes
    if attributes.algorithm == INVARIANT and attributes.backend in ("auto", "native"):
        return own
    return _plans.Plans(attributes._replace(algorithm=INVARIANT, backend="native"), own.filter, own.bias, own.weights)


class Stream:
    """A transposed convolution of data that arrives in chunks along one spatial axis: see `ConvTranspose.stream`.

    Call a stream with a chunk to get the outputs that no later input can change, and `finish` to get the rest. One thread at a
    time may use a stream. Streams of one operator may run at the same time. A stream can be pickled.
    """

    def __init__(self, op: ConvTranspose, batch: Any = 1, axis: Any = -1, trim: str | None = None) -> None:
        attributes = op._attributes
        self._op, self.batch = op, check.integer("batch", batch, 0)
        rank = attributes.rank
        number = check.integer("axis", axis, -rank)
        if number >= rank:
            raise ValueError(f"axis: got {number}, wanted -{rank} to {rank - 1}, one of {words.count(rank, 'spatial axis', 'spatial axes')}")
        if trim is not None:
            check.word("trim", trim, ("right",))
        if attributes.output_shape is not None:
            raise ValueError(
                f"stream: got an operator with output_shape={attributes.output_shape}, wanted one without, because the length "
                "of a stream is unknown"
            )
        self.axis, self.trim = number % rank, trim
        self._shared = shared(op, self.axis, trim)
        self.reset()

    def reset(self) -> None:
        """Forget all inputs: the next chunk begins a new signal, whose sizes on other axes may differ."""
        self._seen, self._finished = 0, False
        self._kept: NDArray[Any] | None = None  # the last inputs, never changed in place; None: no chunk has come
        self._alike: dict[tuple[int, ...], Step] = {}  # shape of a chunk -> its Step, once all of one shape are alike

    @property
    def delay(self) -> int:
        """The number of outputs that wait for later inputs: after n inputs there were ``max(0, stride * n - delay)``."""
        return self._shared.timeline.delay

    def __call__(self, chunk: Array) -> NDArray[Any]:
        """Return the outputs that ``chunk`` makes final.

        Parameters
        ----------
        chunk : array of the filter's dtype
            The next inputs, in the layout of the operator's data. It may have any length on the streamed axis, also 0.

        Returns
        -------
        array
            New C-contiguous outputs in the layout of the data: ``stride`` times as many as inputs, fewer while the first
            outputs wait.

        Raises
        ------
        ValueError, TypeError
            The chunk does not fit the filter, the batch or the earlier chunks, or `finish` was called. The stream is as before.
        MemoryError
            The output does not fit into memory. The stream is as before.
        """
        own, kept = self._shared, self._kept
        if type(chunk) is np.ndarray and own.source is self._op._plans and chunk.dtype is own.dtype:
            step = self._alike.get(chunk.shape)
            if step is not None:  # a chunk like an earlier one
                if own.tail is None:
                    result = step(chunk)
                else:
                    whole = np.concatenate((kept, chunk), own.place)
                    result, self._kept = step(whole), whole[own.tail].copy()
                self._seen += chunk.shape[own.place]
                return result
        own = self._current()
        data = self._checked(chunk)
        step, whole, n = self._next(own, data)
        result = self._empty(own, data.shape) if step is None else step(whole)
        if step is not None and own.timeline.settled(self._seen):
            if len(self._alike) >= _STEPS:
                self._alike.clear()
            self._alike[data.shape] = step
        self._advance(own, whole, n)
        return result

    def with_tail(self, chunk: Array) -> NDArray[Any]:
        """Return the outputs of a call, and after them those that `finish` would return now. The stream goes on.

        It is the part of the output of all inputs so far, as if they were all, that earlier calls did not return.
        """
        own = self._current()
        data = self._checked(chunk)
        t, n = own.timeline, self._seen + data.shape[own.place]
        _, whole, _ = self._next(own, data)
        _, begin, out = t.piece(self._seen, n, t.total(n))
        result = own.step(whole.shape, begin, out)(whole) if out else self._empty(own, data.shape)
        self._advance(own, whole, n)
        return result

    def _current(self):
        """Return the `Shared` for the present weights."""
        own = self._shared
        if own.source is not self._op._plans:
            own = self._shared = shared(self._op, self.axis, self.trim)
            self._alike = {}
        return own

    def _checked(self, chunk, name="chunk"):
        """Return a chunk as an array that fits this stream."""
        data, own, kept = chunk if type(chunk) is np.ndarray else check.array(name, chunk), self._shared, self._kept
        if self._finished:
            raise ValueError(f"{name}: got a call after finish(), wanted reset() before the next chunk")
        if data.dtype is not own.dtype:
            with check.renamed({"data": name}):
                data = api.check_data(own.attributes, data)
        place, shape = own.place, data.shape
        if kept is None:
            with check.renamed({"data": name}):
                batch = own.attributes.shape_of(shape)[0]
            if batch != self.batch:
                raise ValueError(f"{name}: got batch {batch} (shape {shape}), wanted {self.batch}, the stream's")
            wanted = (*shape[:place], 0, *shape[place + 1 :])
            self._problem_of(own, wanted)
            return data
        wanted = kept.shape
        if len(shape) != len(wanted) or shape[:place] != wanted[:place] or shape[place + 1 :] != wanted[place + 1 :]:
            like = ", ".join("any" if ax == place else str(size) for ax, size in enumerate(wanted))
            raise ValueError(f"{name}: got shape {shape}, wanted ({like}), as the earlier chunks")
        return data

    def _problem_of(self, own, shape):
        """Check the sizes of the other axes, whose outputs may be negative."""
        with check.renamed({"data": "chunk"}):
            own.attributes.unchecked_problem((*shape[: own.place], _LONG, *shape[own.place + 1 :]))

    def _next(self, own, data):
        """Return ``(the next Step, or None without outputs; its inputs; number of inputs after it)``."""
        t, place, seen, kept = own.timeline, own.place, self._seen, self._kept
        n = seen + data.shape[place]
        whole = data if kept is None or not kept.shape[place] else np.concatenate((kept, data), place)
        inputs, begin, out = t.piece(seen, n, t.final(n))
        return own.step(whole.shape, begin, out) if out else None, whole, n

    def _advance(self, own, whole, n):
        """Keep the last of the inputs of a step, after which the stream has seen ``n``."""
        place, size = own.place, whole.shape[own.place]
        first = size - (n - own.timeline.first(n))
        self._kept = whole[(slice(None),) * place + (slice(first, None),)].copy()
        self._seen = n

    def _empty(self, own, shape):
        """Return an output of length 0 for data of a shape."""
        problem = own.attributes.unchecked_problem((*shape[: own.place], _LONG, *shape[own.place + 1 :]))
        sizes = list(own.attributes.user_shape(problem.out_shape))
        sizes[own.place] = 0
        return np.empty(sizes, own.dtype)

    def finish(self) -> NDArray[Any]:
        """Return the outputs that remain when no more input comes, and end the stream: call `reset` to begin another.

        Returns
        -------
        array
            The last outputs. With those of all chunks before them, they are the output of the whole.

        Raises
        ------
        ValueError
            `finish` was called before, or no chunk has come and the operator has several spatial axes, whose sizes are unknown.
        """
        own = self._current()
        kept, t, place = self._kept, own.timeline, own.place
        if self._finished:
            raise ValueError("stream: got a second call of finish(), wanted reset() and a chunk before it")
        if kept is None:
            if own.attributes.rank > 1:
                raise ValueError("stream: got finish() before any chunk, wanted a chunk, which tells the sizes of the other axes")
            kept = np.empty((self.batch, *own.shape[1:place], 0, *own.shape[place + 1 :]), own.dtype)
        _, begin, out = t.piece(self._seen, self._seen, t.total(self._seen))
        result = own.step(kept.shape, begin, out)(kept) if out else self._empty(own, kept.shape)
        self._kept, self._finished = kept[(slice(None),) * place + (slice(0, 0),)], True
        self._alike = {}
        return result

    def copy(self) -> Stream:
        """Return a stream that continues from here by itself. It shares packed weights and plans with this one."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__, _alike=self._alike.copy())
        return other

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """The state as arrays, which another stream of an equal operator can take.

        "inputs" are the inputs that outputs to come read, in the layout of the data, at most ``ceil((reach - 1) / stride)``
        where pads_end is below the reach ``(kernel - 1) * dilation + 1``. "position" is the number of inputs so far, and 1
        after `finish`, else 0. Before the first chunk, "inputs" is empty and has one axis.
        """
        inputs = np.empty(0, self._shared.dtype) if self._kept is None else self._kept.copy()
        return {"inputs": inputs, "position": np.array([self._seen, self._finished], np.int64)}

    @state.setter
    def state(self, state: dict[str, Array]) -> None:
        if not isinstance(state, dict) or state.keys() != {"inputs", "position"}:
            got = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ValueError(f"state: got {got}, wanted a dict with 'inputs' and 'position'")
        seen, finished = check.integers("state['position']", state["position"], 2, 0, scalar=False)
        own, inputs = self._current(), check.array("state['inputs']", state["inputs"])
        if inputs.dtype != own.dtype:
            raise TypeError(f"state['inputs']: got dtype {inputs.dtype}, wanted {own.dtype}, the operator's")
        if inputs.shape == (0,) and not seen:
            kept = None
        else:
            with check.renamed({"data": "state['inputs']"}):
                batch, sizes, _ = own.attributes.shape_of(inputs.shape)
            wanted = 0 if finished else seen - own.timeline.first(seen)
            if batch != self.batch or sizes[self.axis] != wanted:
                raise ValueError(
                    f"state['inputs']: got batch {batch} and {sizes[self.axis]} inputs after {seen}, wanted batch {self.batch} "
                    f"and {wanted} inputs"
                )
            kept = inputs.copy()
        self._kept, self._seen, self._finished, self._alike = kept, seen, bool(finished), {}

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
    """Step several streams with a chunk each, as one batch where their steps are alike.

    Parameters
    ----------
    streams : sequence of Stream
        Streams of one operator or of several, each at most once.
    chunks : sequence of arrays
        The next chunk of each stream. Streams of one operator whose chunks have one length are computed together, once they are
        past their first inputs or if they are at the same position.

    Returns
    -------
    list of array
        The outputs of each stream: the bits of ``[stream(chunk) for stream, chunk in zip(streams, chunks)]``. Outputs that were
        computed together are views of one array.

    Raises
    ------
    ValueError, TypeError
        An argument is wrong; the message names the number of the chunk. All streams are as before.

    Examples
    --------
    >>> import numpy as np, convt
    >>> op = convt.ConvTranspose(np.ones((4, 1, 1), np.float32), strides=2)
    >>> streams = [op.stream() for _ in range(3)]
    >>> [y.ravel().tolist() for y in convt.stream_many(streams, [np.full((1, 1, 1), n, np.float32) for n in range(3)])]
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
    groups: dict[Any, list[Any]] = {}
    for n, (stream, chunk) in enumerate(zip(streams, chunks, strict=True)):
        own = stream._current()
        data = stream._checked(chunk, f"chunks[{n}]")
        t, seen, kept = own.timeline, stream._seen, stream._kept
        after = seen + data.shape[own.place]
        held = 0 if kept is None else kept.shape[own.place]
        key = id(own), held, data.shape[1:], t.piece(seen, after, t.final(after)), after - t.first(after)
        groups.setdefault(key, []).append((n, stream, data))
    results: list[Any] = [None] * len(streams)
    for members in groups.values():
        _step_together(members, results)
    return results


def _step_together(members, results):
    """Step streams whose steps are alike, and set their ``results``. ``members`` are (number, stream, chunk)."""
    if len(members) == 1:
        (n, stream, data), = members
        results[n] = stream(data)
        return
    own = members[0][1]._shared
    data = np.concatenate([data for _, _, data in members])
    kept = [stream._kept for _, stream, _ in members]
    whole = data if kept[0] is None or not kept[0].shape[own.place] else np.concatenate((np.concatenate(kept), data), own.place)
    t, seen = own.timeline, members[0][1]._seen
    after = seen + data.shape[own.place]
    _, begin, out = t.piece(seen, after, t.final(after))
    result = own.step(whole.shape, begin, out)(whole) if out else members[0][1]._empty(own, whole.shape)
    at = 0
    for n, stream, chunk in members:
        end = at + chunk.shape[0]
        results[n] = result[at:end]
        stream._advance(own, whole[at:end], stream._seen + chunk.shape[own.place])
        at = end
