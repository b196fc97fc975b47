"""The choice of backend and algorithm for a problem, and the operator that keeps plans per shape.

The algorithms make the plans (tables for their loops) and run them: see convt.algorithms.
"""

import functools
import math
import os
import threading
import warnings
from dataclasses import dataclass, field

import numpy as np

from .. import tuning
from .._base import activation
from .._base.errors import BackendUnavailableError
from .._base.problem import ITEMSIZE, NUMPY_DTYPE, Problem
from .._model import machine
from .._run import config
from .._run.addition import Addition
from ..algorithms import ALGORITHMS, BACKENDS, candidates, clear_schedules, fastest, on_unit, onednn, reference
from ..algorithms.reorder import ReorderRecipe, empty_reordered, memory_order, pays
from . import keep, measure, repeat

_MAKERS = {**ALGORITHMS, **BACKENDS}

NEAR = 4 / 3  # "tune" measures algorithms up to this multiple of the lowest expected cost
_FORMS = 64  # number of an operator's forms above which forms without packed weights are dropped


@dataclass(frozen=True)
class Plan:
    """The plan of a data shape: algorithm, instruction set, threads and memory, as `ConvTranspose.plan` returns them."""

    backend: str  # "native", "onednn" or "reference"
    algorithm: str
    isa: str
    tile: str  # rows x columns of the register tile; empty for other backends than "native"
    threads: int
    tasks: int
    workspace_bytes: int  # bytes of all threads together, in addition to data and output
    packed_bytes: int  # bytes of the weights packed for this plan
    packed_limit: float  # maximum bytes of the operator's packed weights in all forms; a single form may exceed it
    note: str = ""  # result of "tune", or the reason for another algorithm than the chosen one
    problem: Problem | None = field(default=None, repr=False, compare=False)  # canonical form of the problem

    @property
    def unit(self) -> str:
        """The hardware that multiplies: "vectors", "matrix" (AMX tiles), "dots" (AVX512_BF16), or "" for other backends.

        "matrix_high" and "matrix_medium" are AMX tiles with a float32 as two bfloat16 values and as one.
        """
        return on_unit(self.algorithm)[1] if self.backend == "native" else ""

    @property
    def cycles(self) -> dict[str, float]:
        """Expected cycles of each kind of work, summed over all threads, the largest first.

        The keys are names "part.kind"; `convt._model.costs` explains the kinds. The dict is empty for other backends
        than "native".
        """
        if self.backend != "native":
            return {}
        values = machine.current().profile.values
        with machine.pretend(profile=machine.current().profile.traced):
            counts = getattr(ALGORITHMS[self.algorithm].cost(self.problem), "counts", {})
        cycles = {f"{part}.{name}": count * values[name] for (part, name), count in counts.items()}
        return dict(sorted(((name, n) for name, n in cycles.items() if n), key=lambda item: -item[1]))

    def explain(self) -> str:
        """Return a text of several lines that explains the plan.

        It has the algorithm and the reason for it, tasks and threads, the largest parts of the expected cycles, and the
        expected cycles of the other algorithms.

        Returns
        -------
        str
            Lines separated by newlines.

        Examples
        --------
        >>> import numpy as np, convt
        >>> op = convt.ConvTranspose(np.ones((2, 2, 64, 32), np.float32), strides=2, backend="native", algorithm="direct")
        >>> print(op.plan((1, 8, 8, 64)).explain().splitlines()[0])
        direct: one GEMM per phase (on vectors)
        """
        from . import explain as _explain  # imported here, because few processes need it

        return _explain.explain(self)


def clear():
    """Remove all plans and cached choices of algorithms. Packed weights stay."""
    keep.clear()
    clear_schedules()


class _TunedAlgorithm(repeat.Kept):
    """A result of "tune" for a problem: the name of an algorithm, and a note with the times or the reason."""

    def __init__(self, name, note):
        super().__init__(256 + len(note))
        self.name, self.note = name, note


class Operator:
    """Packed weights and plans of one set of attributes and weights, for any data shape."""

    def __init__(self, attributes, filter, bias, persistent=True, weights=None, counts_packing=True):
        """Create an operator.

        ``filter`` is a view (groups, ci, co, *kernel), ``bias`` has shape (groups * co,) or is None. ``persistent`` is False
        for a one-shot call, whose weights are used once. ``weights`` is a `keep.PackedWeights` that several operators of one
        filter share, or None. The choice of an algorithm for a one-shot call counts the time to pack weights; without
        ``counts_packing`` it is the choice of a persistent operator, which gives the same bits.
        """
        if attributes.backend == "onednn":
            onednn.library.opened()  # raises BackendUnavailableError if oneDNN is missing
        self._attributes = attributes
        self._persistent = persistent
        self._filter_order = None if persistent else memory_order(filter)  # memory order of a one-shot call's filter
        self._counts_packing = counts_packing and not persistent
        self.filter = filter
        self.bias = bias
        self._forms = {}  # (key, machine) -> Form
        self.weights = weights or keep.PackedWeights(filter.nbytes)
        self.plans = keep.Recent(keep.OPERATOR_PLANS)  # values are `repeat.Bound` objects
        self._tuned = keep.Recent(keep.TUNED_RESULTS, plans=False)  # (problem, machine, threads) -> _TunedAlgorithm

    def with_weights(self, filter, bias, weights=None):
        """Return an operator with other weights of the same shapes and strides, with the plans and packing recipes of this one.

        The new weights are packed in all forms that this operator keeps packed; other forms are packed when they are needed.
        """
        new = Operator(self._attributes, filter, bias, weights=weights)
        new._tuned = self._tuned
        forms, bounds = {}, {}  # this operator's -> the new one's
        for place, old in self._forms.copy().items():
            if old.key[0] in ALGORITHMS:  # the recipes of oneDNN hold weights
                form = forms[old] = new._forms[place] = repeat.Form(old.key, old.recipe)
                if old.weights() is not None:
                    new.packed(form)
        entries = self.plans.entries.copy()
        for key, old in entries.items():
            form = forms.get(old.form)
            if isinstance(key, tuple) and form and (form.finite is not False or old.supports_nonfinite):
                bounds[old] = old.with_form(form, new._fill_function(key[0]) if old.plan.has_holes else None)
        for key, old in entries.items():
            # `repeat.repeat` does not check a plan, so its keys are kept only for weights that are known to be finite or not.
            if old in bounds and (isinstance(key, tuple) or bounds[old].form.finite is not None):
                new.plans.keep(key, bounds[old])
        return new

    def form(self, key):
        """Return the `repeat.Form` of a key: the name of the algorithm, its own parameters, and the problem's strides."""
        place = key, machine.current()
        found = self._forms.get(place)
        if found is None:
            attributes = self._attributes._replace(strides=key[-1])
            packs = key[0] in ALGORITHMS and not ALGORITHMS[key[0]].unpacked
            ordered = self._filter_order and packs and pays(self.filter)
            filter = empty_reordered(self.filter) if ordered else self.filter
            recipe = _MAKERS[key[0]].recipe(attributes, filter, self.bias, key[:-1])
            if ordered:
                recipe = ReorderRecipe(recipe, attributes.dtype, self.filter)
            if len(self._forms) >= _FORMS:
                self._forms = {at: form for at, form in self._forms.copy().items() if form.weights() is not None}
            found = self._forms.setdefault(place, repeat.Form(key, recipe))
        return found

    def packed(self, form):
        """Return the packed weights of a form; pack them if they are not kept."""
        return self.weights.get_or_pack(form, lambda: form.recipe.pack(self.filter, self.bias, config.get_num_threads()))

    def plan_for(self, problem, in_strides, out_strides, algorithm=None, data=None):
        """Return the `repeat.Bound` of a problem: a plan for the current number of threads, and the form of its weights.

        Strides are in bytes, in NXC order. ``algorithm`` names the algorithm; None means the choice of the operator's backend
        and algorithm. "tune" measures with ``data``, or with zeros if it is None.
        """
        item, data_format = ITEMSIZE[problem.dtype], self._attributes.data_format
        in_strides = _normalised_strides(in_strides, problem.in_shape, item, data_format)
        out_strides = _normalised_strides(out_strides, problem.out_shape, item, data_format)
        place = problem, in_strides, out_strides, algorithm, machine.current(), config.get_num_threads()
        found = self.plans.get(place)
        if found is not None and found.form.finite is None:  # a plan of earlier weights
            self.packed(found.form)
        while found is None or not found.suits():
            found = self._bind(problem, in_strides, out_strides, algorithm or self.choose_algorithm(problem, data)[0])
            self.plans.keep(place, found)
            self.packed(found.form)  # packing may find weights that are not finite, which need another plan
        return found

    def _bind(self, problem, in_strides, out_strides, name):
        """Make the `repeat.Bound` of a problem for the algorithm ``name``."""
        full = lambda key: (*key, problem.strides)  # noqa: E731
        recipe = lambda key: _packing_recipe(self.form(full(key)).recipe)  # noqa: E731
        finite = lambda key: self.form(full(key)).finite is not False  # noqa: E731
        plan, key = _MAKERS[name].make(problem, recipe, finite, in_strides, out_strides, config.get_num_threads())
        shape, dtype = self._attributes.user_shape(problem.out_shape), NUMPY_DTYPE[problem.dtype]
        fill = self._fill_function(problem) if plan.has_holes else None
        strides = contiguous_strides(shape, dtype.itemsize)
        return repeat.Bound(plan, self.form(full(key)), dtype, shape, strides, fill, key[0] == name)

    def _fill_function(self, problem):
        """Return a function of the bias: the values of outputs without products, shaped to broadcast in the user's layout."""
        ones = () if self._attributes.data_format == "NXC" else (1,) * problem.rank
        values = lambda bias: _fill_values(problem, bias).reshape(-1, *ones)  # noqa: E731
        if not self._persistent:
            return values
        own = values(self.bias)
        return lambda bias: own

    def choose_algorithm(self, problem, data=None):
        """Return ``(name, note)`` of the algorithm that the operator's backend and algorithm select; it may be "onednn".

        A measured result of `tuning` has priority over the cost model, except for calls that count packing, because the
        measured times do not include it.
        """
        a = self._attributes
        if a.backend == "onednn":
            return "onednn", ""
        if a.backend == "tune":
            return self._tuned_algorithm(problem, data)
        found = None if self._counts_packing else self._saved_algorithm(problem)
        return found or (self._cheapest_algorithm(problem), "")

    def _cheapest_algorithm(self, problem):
        """Return the name of the algorithm with the lowest expected cost, or "onednn" where it is known to be faster."""
        a = self._attributes
        if self._counts_packing:
            return _native(problem, a.algorithm, self._filter_order)
        name = _native(problem, a.algorithm)
        return "onednn" if a.backend != "native" and onednn.preferred(problem, a, name) else name

    def _tuned_algorithm(self, problem, data):
        """Return ``(name, note)`` of the fastest algorithm for a problem, from `tuning` or measured now.

        One thread measures at a time. If the measurement does not decide, the result is the choice of "auto".
        """
        make = lambda: _TunedAlgorithm(*(self._saved_algorithm(problem) or self._measure(problem, data)))  # noqa: E731
        place = problem, machine.current(), config.get_num_threads()
        found = self._tuned.get_or_make(place, make, _measuring)
        return found.name, found.note

    def _saved_algorithm(self, problem):
        """Return ``(name, note)`` of the fastest algorithm in `tuning`, or None without an entry or if it is not available."""
        a = self._attributes
        times = tuning.find(problem, a.algorithm, config.get_num_threads())
        if not times:
            return None
        possible = set(_candidates(problem, a.algorithm))
        if a.backend == "tune" or (a.backend == "auto" and onednn.library.available()):
            possible.add("onednn")
        # A file may name algorithms that do not support the problem.
        times = {name: time for name, time in times.items() if name in possible}
        if not times:
            return None
        best = min(times, key=times.get)
        if best == "onednn" and not onednn.library.available():
            config.note("tune", f"{problem.descriptor()},oneDNN was the fastest but is not available")
            return None
        return best, "measured earlier: " + ", ".join(f"{name} {time:.3f} ms" for name, time in times.items())

    def _measure(self, problem, data):
        """Measure the candidates on ``data``, or on zeros, and return ``(name, note)`` of the fastest."""
        a, threads = self._attributes, config.get_num_threads()
        source = _empty_in_layout((problem.batch, *problem.in_sizes, problem.groups * problem.ci), problem.dtype, a.data_format)
        source[...] = 0 if data is None else data
        out = _empty_in_layout(problem.out_shape, problem.dtype, a.data_format)
        # The packed weights of all candidates are kept during the trial and released after it.
        every = keep.PackedWeights(self.filter.nbytes, limited=False)
        trial = Operator(a._replace(backend="native"), self.filter, self.bias, weights=every)
        runs = {}
        for name in (*_candidates(problem, a.algorithm, NEAR), "onednn"):
            try:
                found = trial.plan_for(problem, source.strides, out.strides, name)
            except BackendUnavailableError:
                continue
            runs[name] = functools.partial(trial.run, problem, found, source, out)
        name = self._cheapest_algorithm(problem)
        try:
            best = measure.measure(runs)
        except measure.Undecided as undecided:
            note = f"could not decide what is the fastest, because {undecided}; using {name} as 'auto' does; no result is kept"
            config.note("tune", f"{problem.descriptor()},{note}")
            warnings.warn(f"convt: {problem.descriptor()}: {note}", RuntimeWarning, stacklevel=2)
            return name, note
        if math.isinf(min(best.values())):
            return name, "nothing was measured, because no candidate supports the values of the data"
        tuning.keep(problem, a.algorithm, threads, best)
        times = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in best.items())
        config.note("tune", f"{problem.descriptor()},{times}")
        return min(best, key=best.get), f"measured: {times}"

    def run(self, problem, bound, data, out):
        """Compute with a Bound. Return False, without a valid output, if its plan does not support the values of the data."""
        extra = (_fill_values(problem, self.bias),) if bound.plan.has_holes else ()
        return bound.plan.run(data, out, self.packed(bound.form), config.get_num_threads(), *extra)

    def compute(self, problem, data, out, add=None):
        """Compute on views in NXC order and return ``(plan, Bound)``.

        ``add`` has the strides of ``out``, and both have no gaps. The Bound is None if similar calls must not reuse it.
        """
        if add is not None:
            return self._compute_and_add(problem, data, out, add)
        if self._attributes.backend == "reference":
            reference.run(problem, data, self.filter, self.bias, out)
            return _REFERENCE, None
        bound = self.plan_for(problem, data.strides, out.strides, data=data)
        if self.run(problem, bound, data, out) is not False:
            return bound.plan, bound
        if self._attributes.backend == "onednn":
            raise BackendUnavailableError(
                "data: got NaN or infinity in data, filter or bias, which oneDNN's kernel for this problem "
                "spreads to other outputs; wanted finite values, or the backend 'auto' or 'native'"
            )
        bound = self.plan_for(problem, data.strides, out.strides, "direct")  # direct supports all values of data
        self.run(problem, bound, data, out)
        return bound.plan, None

    def _compute_and_add(self, problem, data, out, add):
        """Do what `compute` does, then add ``add`` to the output and apply the activation."""
        plan, bound = self.compute(problem._replace(activation=("none", 0.0, 0.0)), data, out)
        if self._attributes.backend == "reference":
            sums = out.astype(np.float64) + add
            out[...] = activation.reference(*problem.activation, sums).astype(out.dtype)
            return plan, None
        addition = Addition(problem.dtype, problem.activation)
        addition.run(out, add, config.get_num_threads())
        return plan, bound and bound.with_addition(addition)

    def contiguous(self, problem):
        """Return `plan_for` with the strides of contiguous data and output."""
        item, data_format = ITEMSIZE[problem.dtype], self._attributes.data_format
        shapes = problem.in_shape, problem.out_shape
        in_strides, out_strides = (_contiguous_nxc_strides(shape, item, data_format) for shape in shapes)
        return self.plan_for(problem, in_strides, out_strides)

    def plan(self, problem):
        """Return the `Plan` for contiguous data."""
        if self._attributes.backend == "reference":
            return _REFERENCE
        bound = self.contiguous(problem)
        plan, name, packed = bound.plan, bound.form.key[0], self.packed(bound.form)
        threads = plan.threads(config.get_num_threads())
        native = plan.backend == "native"
        chosen, note = self.choose_algorithm(problem)
        if not packed.finite and name != "depthwise":  # depthwise does not treat borders separately
            note = "NaN or Inf in the filter: borders are computed separately"
        elif name != chosen:
            note = f"{chosen} does not support some values of the filter"
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


def _packing_recipe(recipe):
    """Return the packing recipe without the reordering of the filter around it."""
    return recipe.inner if isinstance(recipe, ReorderRecipe) else recipe


def _native(problem, algorithm, filter_order=None):
    """Return ``algorithm``, or for "auto" the one with the lowest expected cost. Raise ValueError if it is unavailable."""
    if algorithm == "auto":
        return fastest(problem, machine.current(), filter_order)
    if math.isinf(ALGORITHMS[algorithm].cost(problem)):
        raise ValueError(
            f"algorithm: got {algorithm!r}, which is unavailable (needs {ALGORITHMS[algorithm].limit}); "
            f"wanted 'auto' or 'direct'"
        )
    return algorithm


def _candidates(problem, algorithm, within=math.inf):
    """Return ``{name: expected cycles}`` of the candidates.

    For "auto" these are the algorithms that it permits with at most ``within`` times the lowest cost, otherwise ``algorithm``
    alone.
    """
    if algorithm == "auto":
        return candidates(problem, within)
    return {algorithm: ALGORITHMS[_native(problem, algorithm)].cost(problem)}


_REFERENCE = Plan("reference", "scatter", "numpy", "", 1, 1, 0, 0, 0)


_measuring = threading.Lock()  # one measurement at a time in the process, because two would disturb each other


def _unlock():
    """Replace the lock in a forked child, because a lock held by another thread at the fork is never released."""
    global _measuring
    _measuring = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


def contiguous_strides(shape, item):
    """Return the byte strides of a C-contiguous array; ``item`` is the item size in bytes."""
    strides, step = [0] * len(shape), item
    for ax in reversed(range(len(shape))):
        strides[ax] = step
        step *= max(shape[ax], 1)
    return tuple(strides)


def _normalised_strides(strides, shape, item, data_format):
    """Normalise byte strides in NXC order, so that equal layouts have equal strides.

    An axis of at most one element may have any stride; it gets the stride of a contiguous array.
    """
    if min(shape, default=2) > 1:
        return strides
    axes = zip(strides, _contiguous_nxc_strides(shape, item, data_format), shape, strict=True)
    return tuple(own if n > 1 else contiguous for own, contiguous, n in axes)


def _empty_in_layout(shape, dtype, data_format):
    """Return an uninitialised array for a shape in NXC order, contiguous in ``data_format``, as a view in NXC order."""
    if data_format == "NXC":
        return np.empty(shape, NUMPY_DTYPE[dtype])
    return np.moveaxis(np.empty((shape[0], shape[-1], *shape[1:-1]), NUMPY_DTYPE[dtype]), 1, -1)


def _contiguous_nxc_strides(shape, item, data_format):
    """Return the byte strides, in NXC order, of an array that is contiguous in ``data_format``. ``shape`` is in NXC order."""
    if data_format == "NXC":
        return contiguous_strides(shape, item)
    batch, channels, *spatial = contiguous_strides((shape[0], shape[-1], *shape[1:-1]), item)
    return (batch, *spatial, channels)


def _fill_values(problem, bias):
    """Return the value of outputs without products: one per channel, or a single one without bias, which is faster to write."""
    values = np.zeros(1) if bias is None else bias.astype(np.float64)
    with np.errstate(over="ignore"):  # overflow to infinity, as in other outputs
        return activation.reference(*problem.activation, values).astype(NUMPY_DTYPE[problem.dtype])
