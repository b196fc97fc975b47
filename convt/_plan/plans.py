"""`Plans`: what is kept for one set of attributes and weights: packed weights, and plans of data shapes."""

import numpy as np

from .._base import activation
from .._base.problem import ITEMSIZE, NUMPY_DTYPE
from .._model import machine
from .._run import config
from ..algorithms import ALGORITHMS, MAKERS, caches, onednn
from ..algorithms.reorder import ReorderRecipe, empty_reordered, memory_order, pays
from . import keep, strides
from .repeat import Bound, Form

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
        self._forms = {}  # (key, machine) -> Form
        self.weights = weights or keep.PackedWeights(filter.nbytes)
        self.bounds = keep.Recent(keep.OPERATOR_PLANS)  # results of `key`, and layouts of calls -> Bound
        self.tuned = keep.Recent(keep.TUNED_RESULTS, plans=False)  # results of "tune"

    def with_weights(self, filter, bias, weights=None):
        """Return plans for other weights of the same shapes and strides, with the plans and packing recipes of these.

        The new weights are packed in all forms that are kept packed now; other forms are packed when they are needed.
        """
        new = Plans(self.attributes, filter, bias, weights)
        new.tuned = self.tuned
        forms, bounds = {}, {}  # old -> new
        for place, old in self._forms.copy().items():
            if old.key[0] in ALGORITHMS:  # the recipes of backends hold weights
                form = forms[old] = new._forms[place] = Form(old.key, old.recipe)
                if old.weights() is not None:
                    new.packed(form)
        entries = self.bounds.entries.copy()
        for key, old in entries.items():
            form = forms.get(old.form)
            if isinstance(key, tuple) and form and (form.finite is not False or old.supports_nonfinite):
                bounds[old] = old.with_form(form, new._fill_function(key[0]) if old.plan.has_holes else None)
        for key, old in entries.items():
            # `repeat.repeat` does not check a plan, so its keys are kept only for weights that are known to be finite or not.
            if old in bounds and (isinstance(key, tuple) or bounds[old].form.finite is not None):
                new.bounds.keep(key, bounds[old])
        return new

    def trial(self):
        """Return plans that are thrown away after a measurement. They keep the packed weights of all algorithms."""
        every = keep.PackedWeights(self.filter.nbytes, limited=False)
        return Plans(self.attributes._replace(backend="native"), self.filter, self.bias, every)

    def key(self, problem, in_strides, out_strides, name):
        """Return the key of a plan for the current machine and number of threads.

        ``name`` is a key of `MAKERS`, or None: chosen. Strides are in bytes, in NXC order.
        """
        item, data_format = ITEMSIZE[problem.dtype], self.attributes.data_format
        ins = strides.normalised(in_strides, problem.in_shape, item, data_format)
        outs = strides.normalised(out_strides, problem.out_shape, item, data_format)
        return problem, ins, outs, name, machine.current(), config.get_num_threads()

    def kept(self, key):
        """Return the `Bound` of a key that supports the present weights, or None."""
        found = self.bounds.get(key)
        if found is not None and found.form.finite is None:  # a plan of earlier weights
            self.packed(found.form)
        return found if found is not None and found.suits() else None

    def bound(self, key, name):
        """Return a new `Bound` of a key for the algorithm ``name``: a plan, and the form of its weights."""
        found = None
        while found is None or not found.suits():
            found = self._bind(*key[:3], name)
            self.bounds.keep(key, found)
            self.packed(found.form)  # packing may find weights that are not finite, which need another plan
        return found

    def _bind(self, problem, in_strides, out_strides, name):
        full = lambda key: (*key, problem.strides)  # noqa: E731
        recipe = lambda key: _packing_recipe(self._form(full(key)).recipe)  # noqa: E731
        finite = lambda key: self._form(full(key)).finite is not False  # noqa: E731
        plan, key = MAKERS[name].make(problem, recipe, finite, in_strides, out_strides, config.get_num_threads())
        shape, dtype = self.attributes.user_shape(problem.out_shape), NUMPY_DTYPE[problem.dtype]
        fill = self._fill_function(problem) if plan.has_holes else None
        return Bound(plan, self._form(full(key)), dtype, shape, strides.contiguous(shape, dtype.itemsize), fill, key[0] == name)

    def _form(self, key):
        """Return the `Form` of a key: the key of the algorithm, its own parameters, and the problem's strides."""
        place = key, machine.current()
        found = self._forms.get(place)
        if found is None:
            attributes = self.attributes._replace(strides=key[-1])
            packs = key[0] in ALGORITHMS and not ALGORITHMS[key[0]].stages.unpacked
            ordered = self._filter_order and packs and pays(self.filter)
            filter = empty_reordered(self.filter) if ordered else self.filter
            recipe = MAKERS[key[0]].recipe(attributes, filter, self.bias, key[:-1])
            if ordered:
                recipe = ReorderRecipe(recipe, attributes.dtype, self.filter)
            if len(self._forms) >= _FORMS:
                self._forms = {at: form for at, form in self._forms.copy().items() if form.weights() is not None}
            found = self._forms.setdefault(place, Form(key, recipe))
        return found

    def packed(self, form):
        """Return the packed weights of a form; pack them if they are not kept."""
        return self.weights.get_or_pack(form, lambda: form.recipe.pack(self.filter, self.bias, config.get_num_threads()))

    def run(self, problem, bound, data, out):
        """Compute with a Bound. Return False, without a valid output, if its plan does not support the values of the data."""
        extra = (_fill_values(problem, self.bias),) if bound.plan.has_holes else ()
        return bound.plan.run(data, out, self.packed(bound.form), config.get_num_threads(), *extra)

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
