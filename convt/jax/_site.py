"""The computers of a program's calls: weights that are packed once, and weights that come with each call."""

import hashlib
import json
import threading
import weakref

import numpy as np

from .. import _core
from .._base import padding
from .._call import api
from .._call.operator import ConvTranspose
from .._run import config
from .._version import __version__

_KEPT = 4  # weights of a call that are kept packed

# Name of an operator in programs -> the operators of this name, the newest last. Equal operators have equal names in all
# processes, so that a program is found in JAX's compilation cache on disk.
_operators: dict[str, list[weakref.ref[ConvTranspose]]] = {}
_lock = threading.Lock()


def text_for_operator(operator):
    """Return the text of calls of an operator. It is valid as long as the operator is alive."""
    attributes, filter, bias = operator._attributes, operator._plans.filter, operator._plans.bias
    found = hashlib.sha256(repr((__version__, attributes, bias is None)).encode())
    for each in (filter,) if bias is None else (filter, bias):
        found.update(np.ascontiguousarray(each).reshape(-1).view(np.uint8))
    name = found.hexdigest()
    with _lock:
        for stale in [key for key, operators in _operators.items() if not any(each() for each in operators)]:
            del _operators[stale]
        others = [each for each in _operators.get(name, ()) if each() not in (None, operator)]
        _operators[name] = [*others, weakref.ref(operator)]
    return json.dumps({"operator": name})


def _operator_of(name):
    """Return the newest living operator of a name, or None."""
    with _lock:
        return next((operator for each in reversed(_operators.get(name, ())) if (operator := each()) is not None), None)


def text_for_weights(keywords, filter_axes, groups, is_constant):
    """Return the text of calls that bring their weights.

    ``keywords`` are those of `convt.conv_transpose`, except filter_format. ``filter_axes`` are the places of out
    channels, in channels and spatial axes in the filter, whose spatial axes are reversed. ``is_constant`` says whether the
    weights are a constant of the program.
    """
    found = {"keywords": keywords, "axes": filter_axes, "groups": groups, "is_constant": is_constant}
    return json.dumps(found, sort_keys=True)


def computer(text):
    """Return the computer for the text of a call."""
    arguments = json.loads(text)
    if "operator" not in arguments:
        return WithGivenWeights(**arguments)
    operator = _operator_of(arguments["operator"])
    if operator is None:
        raise ValueError("convt.jax.call: got a program whose operator is gone, wanted one compiled in this process")
    return _WithOperator(operator)


class _WithOperator:
    """The computer of calls of one operator."""

    brings_weights = is_constant = False

    def __init__(self, operator):
        self.operator = operator

    def compute(self, data, filter, weights, out, threads):
        """Compute into ``out``, and return the operator that did."""
        with config.num_threads(threads):
            self.operator(data, out)
        return self.operator


class WithGivenWeights:
    """The computer of calls that bring their weights.

    Weights that come for the second time are copied and packed, because packing would not pay for weights that change at each
    call. Later calls with equal weights, by their checksum, use the packed ones. Constants are packed by the first call.
    """

    brings_weights = True

    def __init__(self, keywords, axes, groups, is_constant=False):
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in keywords.items()}
        self.keywords = api.Keywords(**values, filter_format="GIOX")
        self.axes, self.groups, self.is_constant = axes, groups, is_constant
        self.operators = {}  # checksum -> operator
        self.lock = threading.Lock()

    def compute(self, data, filter, weights, out, threads):
        """Compute into ``out``, and return the operator with packed weights that did, or None.

        ``weights`` is the checksum of a filter that came before, 1 for a constant, and 0 for a new filter.
        """
        with config.num_threads(threads):
            with self.lock:
                operator = self._operator(filter, weights) if weights else None
            if operator is None:
                # Without counts_packing, so that this call and later calls with packed weights give the same bits.
                api.one_shot(padding.CORE, data, self._view(filter), None, self.keywords, out=out, counts_packing=False)
            else:
                operator(data, out)
        return operator

    def _operator(self, filter, weights):
        """Return the operator for a checksum of a filter."""
        found = self.operators.get(weights)
        if found is None:
            if len(self.operators) == _KEPT:
                del self.operators[next(iter(self.operators))]
                _core.invalidate_known_calls()  # which hold the packed weights
            found = self.operators[weights] = self.operator_of(filter)
        return found

    def operator_of(self, filter):
        """Return a new operator. It reads a copy of the filter, because XLA reuses the memory after a call."""
        return ConvTranspose._borrowing(self._view(filter.copy()), None, **self.keywords._asdict())

    def _view(self, filter):
        """Return a view of a filter of XLA's convolution as (groups, in channels, out channels, *kernel)."""
        out, into, *spatial = self.axes
        view = np.flip(filter.transpose(into, out, *spatial), range(2, filter.ndim))
        view = view.reshape(view.shape[0], self.groups, -1, *view.shape[2:])
        return view.swapaxes(0, 1)
