"""Which backend and algorithm a problem gets, in what blocks; plans are kept per shape.

The plans themselves (tables for the loops) are made by the algorithm and run by its loops: see convt.algorithms.
"""

import functools
import math
import os
import threading
import warnings
from dataclasses import dataclass, field

import numpy as np

from . import _activation, _config, _keep, _measure, _reference, _repeat, tuning
from ._errors import BackendUnavailableError
from ._problem import ITEMSIZE, NUMPY_DTYPE, Problem
from .algorithms import ALGORITHMS, BACKENDS, candidates, fastest, forget, machine, onednn, reorder

_MAKERS = {**ALGORITHMS, **BACKENDS}

NEAR = 4 / 3  # "tune" measures algorithms of at most so many times the least expected cost
_FORMS = 64  # so many forms of weights are known at least; those whose packed weights are kept always


@dataclass(frozen=True)
class Plan:
    """What will run for a data shape."""

    backend: str  # "native", "onednn" or "reference"
    algorithm: str
    isa: str
    tile: str  # rows x columns of the register tile
    threads: int
    tasks: int
    workspace_bytes: int  # of all threads together, beyond input and output
    packed_bytes: int  # weights as packed for this plan
    packed_limit: float  # the most bytes of the operator's packed weights in all forms together, unless one alone has more
    note: str = ""
    problem: Problem | None = field(default=None, repr=False, compare=False)  # what is computed, in canonical form

    @property
    def cycles(self) -> dict[str, float]:
        """Where the cycles go that the cost model expects of a native algorithm: a dict, name -> cycles of all threads
        together, the largest first. `convt.algorithms.costs` says what the names mean. Empty for other backends."""
        if self.backend != "native":
            return {}
        values = machine.current().profile.values
        with machine.pretend(profile=machine.current().profile.traced):
            counts = getattr(ALGORITHMS[self.algorithm].cost(self.problem), "counts", {})
        cycles = {f"{part}.{name}": count * values[name] for (part, name), count in counts.items()}
        return dict(sorted(((name, n) for name, n in cycles.items() if n), key=lambda item: -item[1]))

    def explain(self) -> str:
        """Why this algorithm, what the others would cost, and what limits it: several lines of text.

        Examples
        --------
        >>> import numpy as np, convt
        >>> op = convt.ConvTranspose(np.ones((2, 2, 64, 32), np.float32), strides=2, backend="native", algorithm="direct")
        >>> print(op.plan((1, 8, 8, 64)).explain().splitlines()[0])
        direct: a GEMM a phase, on register tiles
        """
        from . import _explain  # only who asks needs it

        return _explain.explain(self)


def clear():
    """Forget all plans, and how they were found. Weights stay packed."""
    _keep.clear()
    forget()


class _Winner(_repeat.Kept):
    """What "tune" found for a problem: an algorithm, and a note that says how."""

    def __init__(self, name, note):
        super().__init__(256 + len(note))
        self.name, self.note = name, note


class Operator:
    """Packed weights and plans of one ConvTranspose: attributes fixed, any data shape."""

    def __init__(self, attributes, filter, bias, lasting=True, weights=None):
        """``lasting``: weights will be used again, so that preparing them can pay. ``weights`` is a `_keep.PackedWeights` where
        several operators of one filter share the bound of what they pack."""
        if attributes.backend == "onednn":
            onednn.library.opened()  # its own error says what is missing
        self._attributes = attributes
        self._lasting = lasting
        self._brought = None if lasting else reorder.lies(filter)  # order of the filter that each call brings
        self._filter = filter
        self._bias = bias
        self._forms = {}  # (key, machine) -> Form
        self.weights = weights or _keep.PackedWeights(filter.nbytes)
        self.plans = _keep.Recent(_keep.OPERATOR_PLANS)  # of Bounds
        self._winners = _keep.Recent(_keep.WINNERS, plans=False)  # by problem, machine and threads

    def form(self, key):
        """The form of the weights for ``key``: the name of its algorithm first, the problem's strides last."""
        place = key, machine.current()
        found = self._forms.get(place)
        if found is None:
            attributes = self._attributes._replace(strides=key[-1])
            ordered = self._brought and key[0] in ALGORITHMS and not ALGORITHMS[key[0]].unpacked and reorder.pays(self._filter)
            filter = reorder.empty_reordered(self._filter) if ordered else self._filter
            recipe = _MAKERS[key[0]].recipe(attributes, filter, self._bias, key[:-1])
            if ordered:
                recipe = reorder.ReorderRecipe(recipe, attributes.dtype, self._filter)
            if len(self._forms) >= _FORMS:
                self._forms = {at: form for at, form in self._forms.copy().items() if form.weights() is not None}
            found = self._forms.setdefault(place, _repeat.Form(key, recipe))
        return found

    def packed(self, form):
        """The packed weights of a form."""
        return self.weights.of(form, lambda: form.recipe.pack(self._filter, self._bias, _config.get_num_threads()))

    def plan_for(self, problem, in_strides, out_strides, algorithm=None, data=None):
        """The `_repeat.Bound` of a problem: a plan, with tasks for as many threads as a call may use now, and the form of the
        weights that it reads. ``algorithm`` names one, else backend and algorithm of the operator choose it; "tune" measures on
        ``data``, or on zeros.
        """
        item, data_format = ITEMSIZE[problem.dtype], self._attributes.data_format
        in_strides = _usual(in_strides, problem.in_shape, item, data_format)
        out_strides = _usual(out_strides, problem.out_shape, item, data_format)
        place = problem, in_strides, out_strides, algorithm, machine.current(), _config.get_num_threads()
        found = self.plans.get(place)
        while found is None or not found.suits():
            found = self._bind(problem, in_strides, out_strides, algorithm or self.choose_algorithm(problem, data)[0])
            self.plans.keep(place, found)
            self.packed(found.form)  # packing may find that weights are not finite, which need another plan
        return found

    def _bind(self, problem, in_strides, out_strides, name):
        """The Bound of an algorithm."""
        full = lambda key: (*key, problem.strides)  # noqa: E731
        recipe, finite = lambda key: _plain(self.form(full(key)).recipe), lambda key: self.form(full(key)).finite is not False
        plan, key = _MAKERS[name].make(problem, recipe, finite, in_strides, out_strides, _config.get_num_threads())
        shape, dtype = self._attributes.user_shape(problem.out_shape), NUMPY_DTYPE[problem.dtype]
        fill = self._filler(problem) if plan.hole else None
        strides = contiguous_strides(shape, dtype.itemsize)
        return _repeat.Bound(plan, self.form(full(key)), dtype, shape, strides, fill, key[0] == name)

    def _filler(self, problem):
        """A function of a call's bias: what its output holds that no product reaches, as the user's layout has it."""
        ones = () if self._attributes.data_format == "NXC" else (1,) * problem.rank
        values = lambda bias: _fill(problem, bias).reshape(-1, *ones)  # noqa: E731
        if not self._lasting:
            return values
        own = values(self._bias)
        return lambda bias: own

    def choose_algorithm(self, problem, data=None):
        """``(name, note)`` of the algorithm, oneDNN among them, that backend and algorithm of the operator ask for. What was
        measured comes before what is expected, but for weights that come with a call: only packed ones were measured."""
        a = self._attributes
        if a.backend == "onednn":
            return "onednn", ""
        if a.backend == "tune":
            return self._winner(problem, data)
        return (self._lasting and self._known(problem)) or (self._expected(problem), "")

    def _expected(self, problem):
        """The name of the algorithm that the cost model expects to be the fastest."""
        a = self._attributes
        name = _native(problem, a.algorithm, self._brought)
        return "onednn" if a.backend != "native" and self._lasting and onednn.preferred(problem, a, name) else name

    def _winner(self, problem, data):
        """``(algorithm, note)``: the fastest of all for a problem, known from before (`tuning`) or measured at its first call,
        by one thread at a time; what "auto" takes where measuring could not decide."""
        make = lambda: _Winner(*(self._known(problem) or self._measure(problem, data)))  # noqa: E731
        place = problem, machine.current(), _config.get_num_threads()
        found = self._winners.get_or_make(place, make, _measuring)
        return found.name, found.note

    def _known(self, problem):
        """What `tuning` knows, or None where nothing is known or the fastest can't be had here."""
        a = self._attributes
        times = tuning.find(problem, a.algorithm, _config.get_num_threads())
        if not times:
            return None
        possible = set(_candidates(problem, a.algorithm))
        if a.backend == "tune" or (a.backend == "auto" and onednn.library.available()):
            possible.add("onednn")
        times = {name: time for name, time in times.items() if name in possible}  # a file may say anything
        if not times:
            return None
        best = min(times, key=times.get)
        if best == "onednn" and not onednn.library.available():
            _config.note("tune", f"{problem.descriptor()},oneDNN was the fastest and is not there")
            return None
        return best, "measured earlier: " + ", ".join(f"{name} {time:.3f} ms" for name, time in times.items())

    def _measure(self, problem, data):
        a, threads = self._attributes, _config.get_num_threads()
        source = _laid_out((problem.batch, *problem.in_sizes, problem.groups * problem.ci), problem.dtype, a.data_format)
        source[...] = 0 if data is None else data
        out = _laid_out(problem.out_shape, problem.dtype, a.data_format)
        every = _keep.PackedWeights(self._filter.nbytes, limited=False)  # what the losers pack goes with the trial
        trial = Operator(a._replace(backend="native"), self._filter, self._bias, weights=every)
        runs = {}
        for name in (*_candidates(problem, a.algorithm, NEAR), "onednn"):
            try:
                found = trial.plan_for(problem, source.strides, out.strides, name)
            except BackendUnavailableError:
                continue
            runs[name] = functools.partial(trial.run, problem, found, source, out)
        name = self._expected(problem)
        try:
            best = _measure.measure(runs)
        except _measure.Undecided as undecided:
            note = f"could not decide what is the fastest, because {undecided}; {name}, as 'auto' takes it, and nothing is kept"
            _config.note("tune", f"{problem.descriptor()},{note}")
            warnings.warn(f"convt: {problem.descriptor()}: {note}", RuntimeWarning, stacklevel=2)
            return name, note
        if math.isinf(min(best.values())):
            return name, "nothing was measured, because none of what is expected to be fast takes the values of the data"
        tuning.keep(problem, a.algorithm, threads, best)
        times = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in best.items())
        _config.note("tune", f"{problem.descriptor()},{times}")
        return min(best, key=best.get), f"measured: {times}"

    def run(self, problem, bound, data, out):
        """Compute by a Bound; False, and nothing done, where its plan can't take what data holds."""
        extra = (_fill(problem, self._bias),) if bound.plan.hole else ()
        return bound.plan.run(data, out, self.packed(bound.form), _config.get_num_threads(), *extra)

    def compute(self, problem, data, out):
        """Compute on views in NXC order: ``(plan, Bound)``. The Bound is None where it is no rule for calls that are alike."""
        if self._attributes.backend == "reference":
            _reference.run(problem, data, self._filter, self._bias, out)
            return _REFERENCE, None
        bound = self.plan_for(problem, data.strides, out.strides, data=data)
        if self.run(problem, bound, data, out) is not False:
            return bound.plan, bound
        if self._attributes.backend == "onednn":
            raise BackendUnavailableError(
                "data: got NaN or infinity, in data, filter or bias, which oneDNN's kernel for this problem "
                "does not keep in place; wanted finite values, or the backend 'auto' or 'native'"
            )
        bound = self.plan_for(problem, data.strides, out.strides, "direct")  # which takes whatever data holds
        self.run(problem, bound, data, out)
        return bound.plan, None

    def contiguous(self, problem):
        """`plan_for` contiguous data and output."""
        item, data_format = ITEMSIZE[problem.dtype], self._attributes.data_format
        in_strides, out_strides = (_contiguous(shape, item, data_format) for shape in (problem.in_shape, problem.out_shape))
        return self.plan_for(problem, in_strides, out_strides)

    def plan(self, problem):
        """The `Plan` for contiguous data."""
        if self._attributes.backend == "reference":
            return _REFERENCE
        bound = self.contiguous(problem)
        plan, name, packed = bound.plan, bound.form.key[0], self.packed(bound.form)
        threads = plan.threads(_config.get_num_threads())
        native = plan.backend == "native"
        chosen, note = self.choose_algorithm(problem)
        if not packed.finite and name != "depthwise":  # which has no borders
            note = "NaN or Inf in the filter: borders computed apart"
        elif name != chosen:
            note = f"{chosen} can't take some values of the filter"
        return Plan(
            backend=plan.backend,
            algorithm=plan.algorithm,
            isa=plan.isa,
            tile=plan.tile if native else "",
            threads=threads,
            tasks=plan.tasks,
            workspace_bytes=threads * plan.workspace,
            packed_bytes=packed.nbytes if native else plan.packed_bytes,
            packed_limit=self.weights.limit,
            note=note,
            problem=problem,
        )


def _plain(recipe):
    """The recipe that a plan knows: of a filter that is in order."""
    return recipe.inner if isinstance(recipe, reorder.ReorderRecipe) else recipe


def _native(problem, algorithm, brought=None):
    """The algorithm asked for, or for "auto" the one that is expected to be the fastest."""
    if algorithm == "auto":
        return fastest(problem, machine.current(), brought)
    if math.isinf(ALGORITHMS[algorithm].cost(problem)):
        raise ValueError(
            f"algorithm: got {algorithm!r}, which does not do this problem ({ALGORITHMS[algorithm].limit}); "
            f"wanted 'auto' or 'direct'"
        )
    return algorithm


def _candidates(problem, algorithm, within=math.inf):
    """``{name: expected cycles}`` of the algorithms that are possible: for "auto" those that it may take and that take at most
    ``within`` times the least; else the one asked for."""
    if algorithm == "auto":
        return candidates(problem, within)
    return {algorithm: ALGORITHMS[_native(problem, algorithm)].cost(problem)}


_REFERENCE = Plan("reference", "scatter", "numpy", "", 1, 1, 0, 0, 0)


_measuring = threading.Lock()  # of the process: measurements at once would disturb each other


def _unlock():
    """A child forked while another thread held a lock would wait for it for ever."""
    global _measuring
    _measuring = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def contiguous_strides(shape, item):
    """Byte strides of a contiguous array."""
    strides, step = [0] * len(shape), item
    for ax in reversed(range(len(shape))):
        strides[ax] = step
        step *= max(shape[ax], 1)
    return tuple(strides)


def _usual(strides, shape, item, data_format):
    """Byte strides in NXC order where an axis of one element, which may have any, has a contiguous array's."""
    if min(shape, default=2) > 1:
        return strides
    return tuple(
        own if n > 1 else usual for own, usual, n in zip(strides, _contiguous(shape, item, data_format), shape, strict=True)
    )


def _laid_out(shape, dtype, data_format):
    """An empty contiguous array, for a shape and seen in an order of NXC."""
    if data_format == "NXC":
        return np.empty(shape, NUMPY_DTYPE[dtype])
    return np.moveaxis(np.empty((shape[0], shape[-1], *shape[1:-1]), NUMPY_DTYPE[dtype]), 1, -1)


def _contiguous(shape, item, data_format):
    """Strides of a contiguous user array, for a shape and in an order of NXC."""
    if data_format == "NXC":
        return contiguous_strides(shape, item)
    batch, channels, *spatial = contiguous_strides((shape[0], shape[-1], *shape[1:-1]), item)
    return (batch, *spatial, channels)


def _fill(problem, bias):
    """What an output holds that no product reaches: a value for each channel, or one for all, which takes less to write."""
    values = np.zeros(1) if bias is None else bias.astype(np.float64)
    with np.errstate(over="ignore"):  # infinity, as of outputs that products reach
        return _activation.reference(*problem.activation, values).astype(NUMPY_DTYPE[problem.dtype])
