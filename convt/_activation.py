"""Fused activations: names, parameters, and reference implementations in NumPy."""

import math
import numbers

import numpy as np

from . import _words

# Activation -> names of its parameters. kernels/convt_kernels.h defines the codes that the kernels use.
ACTIVATIONS = {
    "none": (),
    "relu": (),
    "leaky_relu": ("slope",),
    "clip": ("low", "high"),
    "tanh": (),
    "sigmoid": (),
    "gelu": (),
    "swish": (),
    "elu": ("alpha",),
    "hard_swish": (),
}


def parse(activation):
    """Parse an activation: None, a name, or ``(name, parameter...)``.

    Return ``(name, a, b)``; a and b are the parameters as floats, 0.0 where the activation has fewer. Raise TypeError or
    ValueError for an unknown name, a wrong number of parameters, or a parameter that is no number.
    """
    if activation is None:
        return ("none", 0.0, 0.0)
    name, params = activation, ()
    if isinstance(activation, (tuple, list)):
        if not activation:
            raise ValueError("activation: got an empty tuple, wanted a name and its parameters")
        name, params = activation[0], tuple(activation[1:])
    if not isinstance(name, str):
        raise TypeError(f"activation: got {type(name).__name__}, wanted a name, (name, parameter...) or None")
    if name not in ACTIVATIONS:
        raise ValueError(f"activation: got {name!r}, wanted one of {', '.join(ACTIVATIONS)}")
    wanted = ACTIVATIONS[name]
    if len(params) != len(wanted):
        raise ValueError(
            f"activation: got {_words.count(len(params), 'parameter')} for {name!r}, wanted {len(wanted)}"
            + (f" ({', '.join(wanted)})" if wanted else "")
        )
    for value in params:
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, (numbers.Real, np.floating)):
            raise TypeError(f"activation: got {value!r} as a parameter of {name!r}, wanted a number")
        if value != value:
            raise ValueError(f"activation: got nan as a parameter of {name!r}, wanted a number")
    if name == "clip" and params[0] > params[1]:
        raise ValueError(f"activation: got clip bounds {params[0]} > {params[1]}, wanted low <= high")
    try:
        a, b = (*map(float, params), 0.0, 0.0)[:2]
    except OverflowError:
        raise ValueError(f"activation: got {params} for {name!r}, wanted numbers that fit a float") from None
    return (name, a, b)


def reference(name, a, b, x):
    """Apply an activation to the float64 array ``x``. The fused kernels approximate this result. NaN stays NaN.

    GELU, swish and hard swish of -inf are NaN (-inf * 0), as in PyTorch, ONNX Runtime and oneDNN.
    """
    with np.errstate(all="ignore"):  # Inf and NaN are valid inputs and outputs
        return _FUNCTIONS[name](x, a, b)


_erf = np.vectorize(math.erf, otypes=[np.float64])
_FUNCTIONS = {
    "none": lambda x, a, b: x,
    "relu": lambda x, a, b: np.where(x < 0, 0.0, x),
    "leaky_relu": lambda x, a, b: np.where(x < 0, a * x, x),
    "clip": lambda x, a, b: np.where(x < a, a, np.where(x > b, b, x)),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: 1.0 / (1.0 + np.exp(-x)),
    "gelu": lambda x, a, b: 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5))),
    "swish": lambda x, a, b: x / (1.0 + np.exp(-x)),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "hard_swish": lambda x, a, b: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
}
