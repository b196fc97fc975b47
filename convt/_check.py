"""Checks of what users pass: integers, sequences of integers, words, arrays. Every message says argument, got, wanted."""

import operator

import ml_dtypes
import numpy as np

from . import _dlpack

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


def integers(name, value, length, minimum, scalar=True):
    """A tuple of ``length`` Python ints; one integer stands for every axis where ``scalar`` allows it."""
    if isinstance(value, (str, bytes, dict, set)):
        raise TypeError(f"{name}: got {value!r} ({type(value).__name__}), wanted {length} integers")
    if scalar and not hasattr(value, "__len__"):
        return (integer(name, value, minimum),) * length
    try:
        items = list(value)
    except TypeError:
        raise TypeError(f"{name}: got {type(value).__name__}, wanted {length} integers") from None
    if len(items) != length:
        raise ValueError(f"{name}: got {len(items)} values, wanted {length}, one per spatial axis")
    return tuple(integer(name, item, minimum) for item in items)


def word(name, value, allowed):
    """One of the allowed strings, as given."""
    if not isinstance(value, str):
        raise TypeError(f"{name}: got {type(value).__name__}, wanted a string, one of {', '.join(allowed)}")
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(allowed)}")
    return value


def array(name, value):
    """A NumPy view of anything with ``__dlpack__`` or ``__array__`` that lives in CPU memory; never a copy of an array."""
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(name, value)
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise TypeError(f"{name}: got {type(value).__name__}, wanted an array (NumPy, or with __dlpack__ or __array__)")


def _from_dlpack(name, value):
    device = value.__dlpack_device__()[0] if hasattr(value, "__dlpack_device__") else _dlpack.CPU
    if device != _dlpack.CPU:
        raise TypeError(f"{name}: got an array on device type {int(device)}, wanted one in CPU memory")
    try:
        return _dlpack.from_capsule(value.__dlpack__())
    except (BufferError, RuntimeError, TypeError) as error:
        # torch refuses tensors that require grad this way; its own words are the best hint.
        raise TypeError(f"{name}: got {type(value).__name__}, which can't be shared: {error}") from error


def floating(name, value):
    """A NumPy view as ``array`` gives, of one of the four dtypes."""
    result = array(name, value)
    if result.dtype not in DTYPES:
        raise TypeError(
            f"{name}: got dtype {result.dtype}{'' if result.dtype.isnative else ' of foreign byte order'}, "
            f"wanted one of {', '.join(DTYPES.values())}"
        )
    return result
