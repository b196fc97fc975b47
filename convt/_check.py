"""Checks of what users pass: integers, sequences of them, words, arrays. Every message says argument, got, wanted."""

import contextlib
import numbers
import operator
from collections.abc import Mapping, Set

import ml_dtypes
import numpy as np

from . import _dlpack, _words

INT64_MAX = 2**63 - 1

DTYPES = {
    np.dtype(np.float32): "float32",
    np.dtype(np.float64): "float64",
    np.dtype(np.float16): "float16",
    np.dtype(ml_dtypes.bfloat16): "bfloat16",
}


def integer(name, value, minimum):
    """A Python int from an int or NumPy integer; bools, floats and strings are refused."""
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
    """A Python float from a number; bools and strings are refused."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.floating, np.integer)):
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted a number")
    if not value >= minimum:
        raise ValueError(f"{name}: got {value}, wanted a number >= {minimum}")
    return float(value)


def integers(name, value, length, minimum, scalar=True, each="one per spatial axis"):
    """A tuple of ``length`` Python ints; one integer stands for all of them where ``scalar`` allows it.

    ``each`` says in the message of a wrong length where the length comes from.
    """
    if isinstance(value, (str, bytes, bytearray, Mapping, Set)):
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted {_words.count(length, 'integer')}")
    if hasattr(value, "__array__") or hasattr(value, "__dlpack__"):
        value = array(name, value)
        if value.dtype.kind not in "iu":
            raise TypeError(f"{name}: got dtype {value.dtype}, wanted {_words.count(length, 'integer')}")
        if value.ndim > 1:
            raise ValueError(f"{name}: got shape {value.shape}, wanted {_words.count(length, 'integer')}, {each}")
        value = value if value.ndim else value.item()
    if scalar and not hasattr(value, "__len__"):
        return (integer(name, value, minimum),) * length
    if not hasattr(value, "__len__"):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted {_words.count(length, 'integer')}")
    if len(value) != length:
        raise ValueError(f"{name}: got {_words.count(len(value), 'value')}, wanted {length}, {each}")
    return tuple(integer(name, item, minimum) for item in value)


def word(name, value, allowed):
    """One of the allowed strings, as given."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted a string, one of {', '.join(allowed)}")
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(allowed)}")
    return value


def array(name, value):
    """A NumPy view of anything with ``__dlpack__`` or ``__array__`` in CPU memory; never a copy of an array."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(name, value)
    if hasattr(value, "__array__"):
        try:
            return np.asarray(value)
        except (RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name}: got {type(value).__name__}, which gives no array: {error}") from error
    raise TypeError(f"{name}: got {type(value).__name__}, wanted an array (NumPy, or with __dlpack__ or __array__)")


def _from_dlpack(name, value):
    try:
        device = value.__dlpack_device__()[0] if hasattr(value, "__dlpack_device__") else _dlpack.CPU
        if device == _dlpack.CPU:
            if callable(getattr(value, "is_neg", None)) and value.is_neg():
                raise BufferError("its negative bit is set, use tensor.resolve_neg()")  # torch itself forgets to check
            return _dlpack.from_capsule(value.__dlpack__())
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        # torch refuses tensors that require grad this way; its own words are the best hint.
        raise TypeError(f"{name}: got {type(value).__name__}, which can't be shared: {error}") from error
    raise TypeError(f"{name}: got an array on device type {int(device)}, wanted one in CPU memory")


def floating(name, value):
    """A NumPy view as ``array`` gives, of one of the four dtypes."""
    result = array(name, value)
    if result.dtype not in DTYPES:
        raise TypeError(
            f"{name}: got dtype {result.dtype}{'' if result.dtype.isnative else ' of foreign byte order'}, "
            f"wanted one of {', '.join(DTYPES.values())}"
        )
    return result


@contextlib.contextmanager
def renamed(names):
    """Let the errors raised inside call arguments what the user typed: ``names`` maps the names used here to those."""
    try:
        yield
    except (TypeError, ValueError) as error:
        name, colon, rest = str(error).partition(":")
        if name in names:
            error.args = (names[name] + colon + rest,)
        raise
