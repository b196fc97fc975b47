"""Steps of streams: which outputs of the streamed axis are final after n inputs, and their computation.

An output of the streamed axis is final as soon as no later input reaches it. The outputs that a chunk makes final are computed
from the chunk and a few inputs before it. This is a problem of its own, whose window begins and ends with these outputs. It
differs from the problem of the whole in sizes and window only, so all steps share packed weights. The algorithm "invariant"
sums each output in the same order in every step.
"""

from typing import NamedTuple

import numpy as np

from .._base.problem import NUMPY_DTYPE
from .._plan import plans, repeat
from .._run import config
from . import api

INVARIANT = "invariant"
_LONG = 1 << 30  # a size of the streamed axis that exceeds all pads
_STEPS = 256  # number of steps that an operator keeps


class Timeline(NamedTuple):
    """The streamed axis: which outputs are final after n inputs, and which inputs the other outputs read."""

    stride: int
    reach: int  # extent of the dilated kernel
    begin: int  # positions of the full scatter before the first output
    more: int  # n inputs have stride * n + more outputs in all

    @property
    def delay(self):
        """The number of the stride * n outputs of n inputs that a later input may change or cut off."""
        return max(self.begin, -self.more)

    @property
    def kept(self):
        """The most inputs that outputs to come read."""
        return (self.reach - 1 + self.delay - self.begin) // self.stride

    def final(self, n):
        """Return the number of outputs that are final after n inputs."""
        return max(0, self.stride * n - self.delay)

    def total(self, n):
        """Return the number of outputs of n inputs in all."""
        return max(0, self.stride * n + self.more)

    def first(self, n):
        """Return the first of n inputs that an output reads that is not final after them."""
        return min(n, max(0, -((self.reach - 1 - self.begin - self.final(n)) // self.stride)))

    def begin_of(self, n):
        """Return the begin of the window of the step after n inputs, whose first input is ``first(n)``."""
        return self.final(n) + self.begin - self.first(n) * self.stride

    def settled(self, n):
        """Check whether all steps of one length are alike from n inputs on."""
        return self.stride * n - self.delay >= max(0, self.reach - 1 - self.begin)


class Step:
    """The problem of a step, and its prepared calls by their signatures."""

    def __init__(self, own, problem):
        self.own, self.problem, self.calls = own, problem, {}

    def __call__(self, data):
        """Compute the outputs of a step from its inputs."""
        found = repeat.repeat(self.calls, data, None, config.get_num_threads())
        if type(found) is np.ndarray:  # otherwise the signature of the call
            return found
        result, call = api.execute(self.own.attributes, self.own.plans, data, (), None, self.problem)
        if call is not None:
            self.calls[found] = call
        return result


class Steps:
    """The steps of all streams of an operator along an axis."""

    def __init__(self, source, derived, axis, trim):
        """``source`` are the `plans.Plans` of the operator, ``derived`` those for the algorithm "invariant"."""
        attributes = derived.attributes
        self.source, self.plans, self.attributes, self.axis = source, derived, attributes, axis
        self.place = axis + (1 if attributes.data_format == "NXC" else 2)  # the streamed axis in the user's layout
        self.dtype = NUMPY_DTYPE[attributes.dtype]
        begin, _, out = attributes.windows((_LONG,) * attributes.rank)
        stride, reach = attributes.strides[axis], (attributes.kernel[axis] - 1) * attributes.dilations[axis] + 1
        self.timeline = Timeline(stride, reach, begin[axis], 0 if trim else out[axis] - stride * _LONG)
        self.tail = self.last(self.timeline.kept)
        self._steps = {}  # (shape of the inputs, begin, outputs) -> Step

    def last(self, count):
        """Return the index of the last ``count`` inputs of an array, or None for no inputs."""
        return (slice(None),) * self.place + (slice(-count, None),) if count else None

    def with_length(self, shape, length):
        """Return a shape with another length of the streamed axis."""
        return (*shape[: self.place], length, *shape[self.place + 1 :])

    def compute(self, kept, chunk, seen, all=False):
        """Return ``(outputs, the inputs to keep, the Step)`` of a chunk after ``seen`` inputs, of which ``kept`` are kept.

        The outputs are those that the chunk makes final; with ``all``, also those that the end of the signal makes final.
        """
        t, place = self.timeline, self.place
        whole = np.concatenate((kept, chunk), place) if kept.shape[place] else chunk
        n = seen + chunk.shape[place]
        step = self._step(whole.shape, t.begin_of(seen), (t.total(n) if all else t.final(n)) - t.final(seen))
        result, tail = step(whole), self.last(n - t.first(n))
        return result, np.empty(self.with_length(whole.shape, 0), self.dtype) if tail is None else whole[tail].copy(), step

    def _step(self, shape, begin, out):
        """Return the Step of inputs of a shape, in the user's layout, whose window has ``out`` outputs from ``begin`` on."""
        key = shape, begin, out
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) >= _STEPS:
                self._steps.clear()
            problem, changed = self.attributes.unchecked_problem(self.with_length(shape, _LONG)), {}
            for name, value in ("in_sizes", shape[self.place]), ("begin", begin), ("out_sizes", out):
                sizes = getattr(problem, name)
                changed[name] = (*sizes[: self.axis], value, *sizes[self.axis + 1 :])
            problem = problem._replace(**changed)
            config.check_size(problem)
            found = self._steps[key] = Step(self, problem)
        return found


def steps_of(op, axis, trim):
    """Return the `Steps` of an operator, an axis and a trim, for the operator's present weights."""
    source, kept = op._plans, op._steps
    if not kept or next(iter(kept.values())).source is not source:
        kept = op._steps = {}
    if (axis, trim) not in kept:
        derived = next((each.plans for each in kept.values()), None) or _invariant(source)
        kept[axis, trim] = Steps(source, derived, axis, trim)
    return kept[axis, trim]


def _invariant(source):
    """Return the `plans.Plans` of the algorithm "invariant" for the weights of others."""
    attributes = source.attributes
    if attributes.algorithm == INVARIANT and attributes.backend in ("auto", "native"):
        return source
    attributes = attributes._replace(algorithm=INVARIANT, backend="native")
    return plans.Plans(attributes, source.filter, source.bias, source.weights)
