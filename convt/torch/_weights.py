"""Packed weights, which are used only while the filter that they were packed from is the same.

PyTorch does not tell every change of a tensor: one by ``.data`` or NumPy, or by an optimizer with ``fused=True``, leaves its
version counter as it was. So each call compares a checksum of all values of the filter with the one of the values that were
packed. Calls with ``freeze`` leave that out, because the user promised not to change the weights (see `refresh`).
"""

import weakref

import torch

from .. import _api, _config, _keep
from .._checksum import checksum
from ._arrays import array, place

_OPERATORS = 8  # the most operators kept of one filter, whose packed weights have one bound together


class _Values:
    """The values that a filter had at a call, and the operators made of them. The sum, once taken, is not changed: other values
    get an object of their own, so that threads never see the sum of one and the operators of others."""

    def __init__(self, at, array, copied, sum=None):
        self.place, self.array, self.copied, self.sum = at, array, copied, sum
        self.operators = {}  # (attributes, bytes of the bias) -> ConvTranspose
        self.weights = _keep.PackedWeights(array.nbytes, copied)


class _Filter:
    """A filter that was met, and the values that it had last. ``copied`` is its bytes if it is a copy that convt has made."""

    def __init__(self, weight, copied=0):
        key = id(weight)
        self.weight = weakref.ref(weight, lambda _: _known.pop(key, None))
        self.values = _Values(place(weight), array(weight), copied)
        self.bias_known = None, None  # its place, and an array of it

    def met(self, weight, freeze):
        """The values that the filter has now, if it was met with them before; else None."""
        values = self.values
        if (at := place(weight)) != values.place:
            if weight.is_neg():
                return None
            values = self.values = _Values(at, array(weight), values.copied)  # their sum is taken when they are met again
            return values if freeze else None
        if freeze:
            return values
        # The sum is taken before anything is packed: a change in between is then found by the next call.
        sum = checksum(values.array, _config.get_num_threads())
        if sum == values.sum:
            return values
        self.values = now = _Values(at, values.array, values.copied, sum)
        return now if values.sum is None else None

    def bias(self, bias):
        """The array of a bias: the one of the call before, if its memory is the same."""
        at, known = place(bias), self.bias_known
        if at != known[0]:
            if bias.is_neg():
                return array(bias)
            known = self.bias_known = at, array(bias)
        return known[1]

    def operator(self, values, bias, key, keywords):
        """The operator of the filter's values with a bias. A bias is small: all of its elements are part of the key."""
        elements = None if bias is None else self.bias(bias)
        key = key, None if elements is None else elements.tobytes()
        found = values.operators.get(key)
        if found is None:
            if len(values.operators) == _OPERATORS:
                values.operators.clear()
                values.weights.clear()
            # The bias is copied, because another tensor with the same elements may come with a later call.
            own = None if elements is None else elements.copy()
            found = _api.ConvTranspose.borrowing(values.array, own, weights=values.weights, **keywords(*key[0]))
            values.operators[key] = found
        return found


_known = {}  # id of a filter -> its _Filter


def operator(weight, bias, key, keywords, freeze):
    """The `convt.ConvTranspose` of a filter that was met before with the same values, or that is frozen; else None, because a
    filter that is met once or that changes is packed for nothing.

    ``key`` is what tells the operators of one filter apart; ``keywords(*key)`` gives the keywords to make one.
    """
    known = _known.get(id(weight))
    if known is None or known.weight() is not weight:
        if weight.is_neg():
            return None  # its array is a copy, which says nothing of later changes; so it is for every negative view here
        if torch.__future__.get_swap_module_params_on_conversion():
            return None  # torch refuses to swap a tensor that somebody has a weak reference to
        known = _known[id(weight)] = _Filter(weight)
        if not freeze:
            return None
    values = known.met(weight, freeze)
    return None if values is None else known.operator(values, bias, key, keywords)


def own(weight):
    """Note that a filter is a copy that convt has made: its bytes count as those of packed weights."""
    _known[id(weight)] = _Filter(weight, weight.nbytes)


def state(tensor, freeze):
    """A value that changes whenever the elements of a tensor change: its place, and a checksum unless it is frozen."""
    if tensor is None:
        return None
    return id(tensor), place(tensor), None if freeze else checksum(array(tensor), _config.get_num_threads())


def forget(*tensors):
    """Drop the packed weights of these filters; without any, of all."""
    if not tensors:
        _known.clear()
    for tensor in tensors:
        _known.pop(id(tensor), None)
