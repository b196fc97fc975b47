"""Checks of arguments. Every error message has the form "argument: got X, wanted Y"."""

import contextlib
import difflib
import numbers
import operator
import sys
from collections.abc import Mapping, Set

import numpy as np

from . import dlpack, dtypes, words

INT64_MAX = 2**63 - 1

DTYPES = {each.dtype: each.dtype.name for each in dtypes.COMPUTED}


def integer(name, value, minimum):
    """Return an integer argument as a Python int.

    Raise TypeError for bools, floats, strings and other values without ``__index__``, and ValueError for integers outside
    ``minimum`` to 2**63 - 1.
    """
    if isinstance(value, (bool, np.bool_, float, str)):
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted an integer")
    try:
        result = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: got {type(value).__name__}, wanted an integer") from None
    if not minimum <= result <= INT64_MAX:
        wanted = f"an integer >= {minimum}" if result < minimum else "an integer below 2**63"
        raise ValueError(f"{name}: got {result}, wanted {wanted}")
    return result


def number(name, value, minimum):
    """Return a number as a Python float. Raise TypeError for bools and non-numbers, ValueError for NaN or below ``minimum``."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted a number")
    if not value >= minimum:
        raise ValueError(f"{name}: got {value}, wanted a number >= {minimum}")
    return float(value)


def integers(name, value, length, minimum, scalar=True, each="one per spatial axis"):
    """Return ``length`` integers as a tuple of Python ints. If ``scalar``, one integer is repeated ``length`` times.

    ``each`` explains the length in the error message for a wrong one. Raise TypeError and ValueError as `integer` does, and
    for sequences of a wrong type or length.
    """
    if isinstance(value, (str, bytes, bytearray, Mapping, Set)):
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted {words.count(length, 'integer')}")
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        value = array(name, value)
        if value.dtype.kind not in "iu":
            raise TypeError(f"{name}: got dtype {value.dtype}, wanted {words.count(length, 'integer')}")
        if value.ndim > 1:
            raise ValueError(f"{name}: got shape {value.shape}, wanted {words.count(length, 'integer')}, {each}")
        value = value if value.ndim else value.item()
    if scalar and not hasattr(value, "__len__"):
        return (integer(name, value, minimum),) * length
    if not hasattr(value, "__len__"):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted {words.count(length, 'integer')}")
    if len(value) != length:
        raise ValueError(f"{name}: got {words.count(len(value), 'value')}, wanted {length}, {each}")
    return tuple(integer(name, item, minimum) for item in value)


def word(name, value, allowed, shown=None):
    """Return ``value`` if it is one of the strings ``allowed``. Raise TypeError or ValueError otherwise.

    The error lists ``shown``, by default all that are allowed.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted a string, one of {', '.join(shown or allowed)}")
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(shown or allowed)}")
    return value


_SYNONYMS = {"pads": "pads_begin and pads_end", "padding": "pads_begin and pads_end, or auto_pad"}  # of other libraries


def keywords(given, known):
    """Raise TypeError if a caller gave keywords that a function does not have."""
    for name in [name for name in given if name not in known]:
        near = difflib.get_close_matches(name.lower(), (*known, *_SYNONYMS), 1, 0.7)
        hint = f", which probably means {_SYNONYMS.get(near[0], near[0])}" if near else ""
        raise TypeError(f"got the unknown argument {name}{hint}; wanted only {', '.join(known)}")


def array(name, value):
    """Return a NumPy view of a NumPy array, or of an object with ``__dlpack__`` or ``__array__``, in CPU memory.

    convt makes no copy; an object's ``__array__`` may. The view is read-only if the object is not known to be writeable. Raise
    TypeError if there is no such view.
    """
    if isinstance(value, np.ndarray):
        if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name}: got a masked array, wanted an array without a mask, which .filled() returns")
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(name, value)
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name}: got {type(value).__name__}, which can't be converted to an array: {error}") from error
    raise TypeError(f"{name}: got {type(value).__name__}, wanted an array (NumPy, or with __dlpack__ or __array__)")


def _from_dlpack(name, value):
    try:
        device = value.__dlpack_device__()[0] if hasattr(value, "__dlpack_device__") else dlpack.CPU
        if device == dlpack.CPU:
            if callable(getattr(value, "is_neg", None)) and value.is_neg():
                raise BufferError("its negative bit is set, use tensor.resolve_neg()")  # torch exports such tensors unchecked
            return dlpack.from_capsule(_capsule(value), _is_torch_tensor(value))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        # For example, torch refuses tensors that require gradients. Its message says how to export them.
        raise TypeError(f"{name}: got {type(value).__name__}, which can't be shared: {error}") from error
    raise TypeError(f"{name}: got an array on device type {int(device)}, wanted one in CPU memory")


def _capsule(value):
    """Return a DLPack capsule, with a version if the producer knows versions."""
    try:
        return value.__dlpack__(max_version=dlpack.MAX_VERSION)
    except TypeError:
        return value.__dlpack__()


def _is_torch_tensor(value):
    """Check for a tensor of PyTorch, which is always writeable, but whose DLPack capsules have no version in old releases."""
    torch = sys.modules.get("torch")
    return isinstance(value, getattr(torch, "Tensor", ()))


def floating(name, value):
    """Return a NumPy view as `array` does. Raise TypeError if its dtype is not one of DTYPES in native byte order."""
    result = array(name, value)
    if result.dtype not in DTYPES:
        raise TypeError(
            f"{name}: got dtype {result.dtype}{'' if result.dtype.isnative else ' of foreign byte order'}, "
            f"wanted one of {', '.join(DTYPES.values())}"
        )
    return result


@contextlib.contextmanager
def renamed(names):
    """Rename arguments in the messages of errors raised inside the block; ``names`` maps convt's names to the user's."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, colon, rest = str(error).partition(":")
        if name in names:
            error.args = (names[name] + colon + rest,)
        raise
