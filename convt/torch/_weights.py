"""Packed weights, reused while the values of their filter are unchanged.

A tensor's version counter in PyTorch misses some changes: those through ``.data`` or NumPy, or by an optimizer with
``fused=True``. So each call compares a checksum of all values of the filter with the checksum of the packed values. Calls with
``freeze`` skip the comparison, because the user promises not to change the weights (see `refresh`). Packed weights belong to a
tensor or, if each call brings a new tensor, to its values.
"""

import operator as operator_module
import weakref

import torch

from .._call import operator as _operator
from .._plan import keep
from .._run.checksum import checksum, samples
from ._arrays import array, place

_OPERATORS = 8  # maximum number of operators of a filter; their packed weights share one memory bound
_SEEN = 64  # number of filters whose samples are remembered
_COPIED_BYTES = 32 << 20  # maximum bytes of the copies in `_copies`, without their packed weights


def _checksum(array):
    """Return the checksum of an array, computed on torch's number of threads."""
    return checksum(array, torch.get_num_threads())


class _Values:
    """The values of a filter at a call, and the operators created from them.

    The checksum ``sum`` is never changed once it is set. New values get a new object, so no thread combines the checksum of one
    set of values with the operators of another.
    """

    def __init__(self, at, array, copied_bytes, sum=None, earlier=None):
        self.place, self.array, self.copied_bytes, self.sum = at, array, copied_bytes, sum
        self.operators = {}  # (attributes, bytes of the bias) -> ConvTranspose
        self.weights = keep.PackedWeights(array.nbytes, copied_bytes)
        self.earlier = {}  # attributes -> ConvTranspose of earlier values in the same memory, whose plans are reused
        if earlier is not None:
            self.earlier = {key[0]: operator for key, operator in earlier.operators.copy().items()} or earlier.earlier
            earlier.weights.clear()


class _Filter:
    """A filter seen before, and its last values. ``copied_bytes`` is its size in bytes if convt made it as a copy, else 0."""

    def __init__(self, weight, copied_bytes=0):
        key = id(weight)
        self.weight = weakref.ref(weight, lambda _: _filters.pop(key, None))
        self.values = _Values(place(weight), array(weight), copied_bytes)
        self.last_bias = None, None  # (place of the last bias, its array)

    def reusable_values(self, weight, freeze):
        """Return the filter's present values if an earlier call had the same values, or ``freeze`` is True; else None."""
        values = self.values
        if (at := place(weight)) != values.place:
            if weight.is_neg():
                return None
            values = self.values = _Values(at, array(weight), values.copied_bytes)  # the next call computes their checksum
            return values if freeze else None
        if freeze:
            return values
        # The checksum is computed before packing, so the next call detects a change in between.
        sum = _checksum(values.array)
        if sum == values.sum:
            return values
        self.values = now = _Values(at, values.array, values.copied_bytes, sum, values)
        return now if values.sum is None else None

    def bias(self, bias):
        """Return the array of a bias. It is the array of the previous call if the memory is the same."""
        at, known = place(bias), self.last_bias
        if at != known[0]:
            if bias.is_neg():
                return array(bias)
            known = self.last_bias = at, array(bias)
        return known[1]

    def operator(self, values, bias, key, keywords):
        """Return the operator of the filter's values and a bias. All elements of a bias, which is small, are in the key."""
        elements = None if bias is None else self.bias(bias)
        key = key, None if elements is None else elements.tobytes()
        found = values.operators.get(key)
        if found is None:
            if len(values.operators) == _OPERATORS:
                values.operators.clear()
                values.weights.clear()
            # The bias is copied, because the operator also serves later calls whose bias is another tensor with equal elements.
            own = None if elements is None else elements.copy()
            earlier = values.earlier.pop(key[0], None)
            if earlier is not None and (earlier._plans.bias is None) == (own is None):
                found = earlier._with_arrays(values.array, own, values.weights)
            if found is None:
                found = _operator.ConvTranspose._borrowing(
                    values.array, own, weights=values.weights, **keywords(*key[0])._asdict()
                )
            values.operators[key] = found
        return found


_filters = {}  # id of a filter -> its _Filter
_seen = {}  # (layout of a filter, its samples) -> None, the latest last
_copies = {}  # (layout of a filter, its checksum) -> (convt's copy, its _Filter), the latest used last


def _filter_of_values(weight):
    """Return the `_Filter` of convt's copy of a new tensor's values, if they came before in another tensor; else None.

    Weight norms, parametrizations and `torch.Tensor.expand` make a new tensor at each call.
    """
    if weight.nbytes > _COPIED_BYTES:
        return None
    elements, layout = array(weight), (weight.dtype, weight.shape, weight.stride())
    key = layout, samples(elements)
    is_new = key not in _seen
    _seen.pop(key, None)
    _seen[key] = None
    if is_new:
        for oldest in list(_seen)[:-_SEEN]:
            _seen.pop(oldest, None)
        return None
    key = layout, _checksum(elements)
    found = _copies.pop(key, None)
    if found is None:
        copy = weight.detach().clone()
        found = copy, _Filter(copy, copy.nbytes)
    _copies[key] = found
    excess = sum(copy.nbytes for copy, _ in list(_copies.values())) - _COPIED_BYTES
    for oldest in list(_copies)[:-1]:
        if excess > 0 and (dropped := _copies.pop(oldest, None)) is not None:  # None: another thread dropped it
            excess -= dropped[0].nbytes
    return found[1]


def operator(weight, bias, key, keywords, freeze, at_once=False):
    """Return a `convt.ConvTranspose` with packed weights for a filter seen before with the same values, or frozen; else None.

    Packing would not pay for a filter that is used once or that changes. A filter with the values of an earlier one, in another
    tensor, gets the operator of convt's copy of these values. ``key`` identifies an operator of the filter, and
    ``keywords(*key)`` returns the keywords to create it. ``at_once`` is whether a filter gets an operator at its first call.
    """
    known = _filters.get(id(weight))
    if known is None or known.weight() is not weight:
        if weight.is_neg():
            return None  # the array of a negative view is a copy, so later changes would be missed
        if torch.__future__.get_swap_module_params_on_conversion():
            return None  # torch cannot swap a tensor that has weak references
        known = _filters[id(weight)] = _Filter(weight)
        # With ``at_once``, the operator of equal values may have taken other measurements.
        copy = None if at_once else _filter_of_values(weight)
        if copy is not None:
            return copy.operator(copy.values, bias, key, keywords)
        if not (freeze or at_once):
            return None
    values = known.reusable_values(weight, freeze)
    return None if values is None else known.operator(values, bias, key, keywords)


_computed = weakref.WeakKeyDictionary()  # module -> (state, source tensors, weight and bias computed from these)


def computed(module, state, sources, make):
    """Return the weight and bias of ``make()``, which computes them for a module from ``sources``, tensors or None.

    It is called again when ``state`` differs or a source is another object. The sources are kept, so that no new tensor gets
    the identity of an old one.
    """
    known = _computed.get(module)
    same = known is not None and known[0] == state and len(known[1]) == len(sources)
    if not same or not all(map(operator_module.is_, known[1], sources)):
        known = _computed[module] = state, sources, *make()
    return known[2:]


def forget_module(module):
    """Drop the packed weights of a module, and those computed for it."""
    for weight in (module._parameters.get("weight"), *_computed.pop(module, ())[2:3]):
        if weight is not None:
            forget(weight)


def register_copy(weight):
    """Register a filter that convt made as a copy: its bytes count as packed weights."""
    _filters[id(weight)] = _Filter(weight, weight.nbytes)


def fingerprint(tensor, freeze):
    """Return a value that changes when the tensor's `place` or, unless ``freeze``, its elements change."""
    if tensor is None:
        return None
    return id(tensor), place(tensor), None if freeze else _checksum(array(tensor))


def forget(*tensors):
    """Drop the packed weights of these filters, or of all filters if none are given."""
    if not tensors:
        for each in (_filters, _seen, _copies):
            each.clear()
    for tensor in tensors:
        _filters.pop(id(tensor), None)
