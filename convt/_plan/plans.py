"""`Plans`: what is kept for one set of attributes and weights: packed weights, and plans of data shapes."""

import functools

import numpy as np

from .._base import activation
from .._base.problem import ITEMSIZE, NUMPY_DTYPE
from .._model import machine
from .._run import config
from ..algorithms import ALGORITHMS, MAKERS, caches, onednn
from ..algorithms.reorder import ReorderRecipe, empty_reordered, memory_order, pays
from . import keep, strides
from .repeat import Form, PreparedCall

_FORMS = 64  # number of forms above which those without packed weights are dropped


def clear():
    """Remove all plans and cached choices of algorithms. Packed weights stay."""
    keep.clear()
    caches.clear()


class Plans:
    """The packed weights and the plans of one set of attributes and weights, for any data shape."""

    def __init__(self, attributes, filter, bias, weights=None, one_shot=False, counts_packing=True):
        """Create the plans of a filter, a view (groups, ci, co, *kernel), and a bias of shape (groups * co,) or None.

        ``weights`` is a `keep.PackedWeights` that several operators of one filter share, or None. ``one_shot`` says that the
        weights are used once. Then "auto" counts the time to pack them; without ``counts_packing``, and for a named algorithm,
        the choice is that for packed weights, which gives the same bits.
        """
        if attributes.backend == "onednn":
            onednn.library.opened()  # raises BackendUnavailableError if oneDNN is missing
        self.attributes, self.filter, self.bias, self._one_shot = attributes, filter, bias, one_shot
        self._filter_order = memory_order(filter) if one_shot else None
        counts = counts_packing and attributes.algorithm == "auto"
        self.packing_order = self._filter_order if counts else None  # memory order of a filter whose packing counts
        self._forms = {}  # (key, strides, machine) -> Form
        self.weights = weights or keep.PackedWeights(filter.nbytes)
        self.calls = keep.Recent(keep.OPERATOR_PLANS)  # keys of `prepared`, and signatures of calls -> PreparedCall
        self.tuned = keep.Recent(keep.TUNED_RESULTS, plans=False)  # results of "tune"

    def with_weights(self, filter, bias, weights=None):
        """Return plans for other weights of the same shapes and strides, with the calls and packing recipes of these.

        The new weights are packed in all forms that are kept packed now; other forms are packed when they are needed.
        """
        new = Plans(self.attributes, filter, bias, weights)
        new.tuned = self.tuned
        forms, calls = {}, {}  # old -> new
        for place, old in self._forms.copy().items():
            if old.key[0] in ALGORITHMS:  # the recipes of backends hold weights
                form = forms[old] = new._forms[place] = Form(old.key, old.recipe)
                if old.weights() is not None:
                    new.packed(form)
        entries = self.calls.entries.copy()
        for key, old in entries.items():
            form = forms.get(old.form)
            if isinstance(key, tuple) and form and (form.finite is not False or old.supports_nonfinite):
                calls[old] = old.changed(form, new._fill_function(key[0]) if old.plan.has_empty_phases else None, old.addition)
        for key, old in entries.items():
            # `repeat.repeat` does not check a plan, so its keys are kept only for weights that are known to be finite or not.
            if old in calls and (isinstance(key, tuple) or calls[old].form.finite is not None):
                new.calls.keep(key, calls[old])
        return new

    def trial(self):
        """Return plans that are thrown away after a measurement. They keep the packed weights of all algorithms."""
        every = keep.PackedWeights(self.filter.nbytes, limited=False)
        return Plans(self.attributes._replace(backend="native"), self.filter, self.bias, every)

    def prepared(self, problem, in_strides, out_strides, name, choose=None):
        """Return the `PreparedCall` of a problem for the current machine and number of threads.

        Strides are in bytes, in NXC order. ``name`` is a key of `MAKERS`; if it is None, ``choose()`` returns the key.
        """
        item, data_format = ITEMSIZE[problem.dtype], self.attributes.data_format
        ins = strides.normalised(in_strides, problem.in_shape, item, data_format)
        outs = strides.normalised(out_strides, problem.out_shape, item, data_format)
        key = problem, ins, outs, name, machine.current(), config.get_num_threads()
        found = self.calls.get(key)
        if found is not None and found.form.finite is None:  # a plan of earlier weights
            self.packed(found.form)
        while found is None or not found.suits():
            name = name or choose()
            found = self._bind(problem, ins, outs, name)
            if not self._one_shot:
                self.calls.keep(key, found)
            self.packed(found.form)  # packing may find weights that are not finite, which need another plan
        return found

    def _bind(self, problem, in_strides, out_strides, name):
        """Return a new `PreparedCall`: a plan, and the form of its weights."""
        form_of = functools.partial(self._form, problem)
        plan, key = MAKERS[name].make(
            problem, lambda key: _packing_recipe(form_of(key).recipe), lambda key: form_of(key).finite is not False,
            in_strides, out_strides, config.get_num_threads(),
        )  # fmt: skip
        shape, dtype = self.attributes.user_shape(problem.out_shape), NUMPY_DTYPE[problem.dtype]
        fill = self._fill_function(problem) if plan.has_empty_phases else None
        return PreparedCall(plan, form_of(key), dtype, shape, strides.contiguous(shape, dtype.itemsize), fill, key[0] == name)

    def _form(self, problem, key):
        """Return the `Form` of a key, the key of an algorithm and its own parameters, for the strides of a problem."""
        place = key, problem.strides, machine.current()
        found = self._forms.get(place)
        if found is None:
            packs = key[0] in ALGORITHMS and not ALGORITHMS[key[0]].stages.unpacked
            ordered = self._filter_order and packs and pays(self.filter)
            filter = empty_reordered(self.filter) if ordered else self.filter
            recipe = MAKERS[key[0]].recipe(problem, filter, self.bias, key)
            if ordered:
                recipe = ReorderRecipe(recipe, problem.dtype, self.filter)
            if len(self._forms) >= _FORMS:
                self._forms = {at: form for at, form in self._forms.copy().items() if form.weights() is not None}
            found = self._forms.setdefault(place, Form(key, recipe))
        return found

    def packed(self, form):
        """Return the packed weights of a form; pack them if they are not kept."""
        return self.weights.get_or_pack(form, lambda: form.recipe.pack(self.filter, self.bias, config.get_num_threads()))

    def run(self, call, data, out):
        """Compute on NXC views. Return False, without a valid output, if the plan does not support the values of the data."""
        extra = (call.fill(self.bias).ravel(),) if call.fill else ()
        return call.plan.run(data, out, self.packed(call.form), config.get_num_threads(), *extra)

    def _fill_function(self, problem):
        """Return a function of the bias: the values of outputs without products, shaped to broadcast in the user's layout."""
        ones = () if self.attributes.data_format == "NXC" else (1,) * problem.rank
        values = lambda bias: _fill_values(problem, bias).reshape(-1, *ones)  # noqa: E731
        if self._one_shot:
            return values
        own = values(self.bias)
        return lambda bias: own


def _packing_recipe(recipe):
    """Return the packing recipe without the reordering of the filter around it."""
    return recipe.inner if isinstance(recipe, ReorderRecipe) else recipe


def _fill_values(problem, bias):
    """Return the value of outputs without products: one per channel, or a single one without bias, which is faster to write."""
    values = np.zeros(1) if bias is None else bias.astype(np.float64)
    with np.errstate(over="ignore"):  # overflow to infinity, as in other outputs
        return activation.reference(*problem.activation, values).astype(NUMPY_DTYPE[problem.dtype])
