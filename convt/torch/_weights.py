"""Packed weights, which are used only while the filter that they were packed from is the same.

PyTorch does not tell every change of a tensor: one by ``.data`` or NumPy, or by an optimizer with ``fused=True``, leaves its
version counter as it was. So each call compares a checksum of all values of the filter with the one of the values that were
packed. Calls with ``freeze`` leave that out, because the user promised not to change the weights (see `refresh`).
"""

import weakref

from .. import _api, _config
from .._checksum import checksum
from ._arrays import array, place

_OPERATORS = 8  # the most operators kept of one filter; each has packed weights of its own


class _Filter:
    """The operators made of one filter, and the checksum of the values that they have packed."""

    def __init__(self, weight):
        key = id(weight)
        self.weight = weakref.ref(weight, lambda _: _known.pop(key, None))
        self.operators = {}  # (attributes, bytes of the bias) -> ConvTranspose
        self.look_at(weight)
        self.bias_place, self.bias_values = None, None

    def look_at(self, weight):
        """Take a filter for one that was never met. Its sum is taken when it is met again."""
        self.operators.clear()
        self.place, self.values, self.sum = place(weight), array(weight), None

    def unchanged(self, weight, freeze):
        """Whether the filter was met before with the values that it has now; if not, its operators are dropped."""
        if place(weight) != self.place:
            self.look_at(weight)
            return freeze
        if freeze:
            return True
        # The sum is taken before anything is packed: a change in between is then found by the next call.
        found, before = checksum(self.values, _config.get_num_threads()), self.sum
        if found == before:
            return True
        self.operators.clear()
        self.sum = found
        return before is None

    def bias(self, bias):
        """The array of a bias: the one of the call before, if its memory is the same."""
        at = place(bias)
        if at != self.bias_place:
            self.bias_place, self.bias_values = at, array(bias)
        return self.bias_values

    def operator(self, bias, key, keywords):
        """The operator of the filter with a bias. A bias is small: all of its values are part of the key."""
        values = None if bias is None else self.bias(bias)
        key = key, None if values is None else values.tobytes()
        found = self.operators.get(key)
        if found is None:
            if len(self.operators) == _OPERATORS:
                self.operators.clear()
            # The bias is copied, because another tensor with the same values may come with a later call.
            own = None if values is None else values.copy()
            found = self.operators[key] = _api.ConvTranspose.borrowing(self.values, own, **keywords(*key[0]))
        return found


_known = {}  # id of a filter -> its _Filter


def operator(weight, bias, key, keywords, freeze):
    """The `convt.ConvTranspose` of a filter that was met before with the same values, or that is frozen; else None, because a
    filter that is met once or that changes is packed for nothing.

    ``key`` is what tells the operators of one filter apart; ``keywords(*key)`` gives the keywords to make one.
    """
    known = _known.get(id(weight))
    if known is None or known.weight() is not weight:
        known = _known[id(weight)] = _Filter(weight)
        if not freeze:
            return None
    return known.operator(bias, key, keywords) if known.unchanged(weight, freeze) else None


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
