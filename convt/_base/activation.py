"""The table of fused activations: names, parameters, reference implementations in NumPy, and names in ONNX, PyTorch and JAX."""

import math
import numbers
from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from . import words


class Activation(NamedTuple):
    """An activation: the function that kernels approximate, its numbers a and b, and its names elsewhere.

    A name is None where a library lacks the activation, or has it in a form that convt does not fuse.
    """

    function: Callable  # (x, a, b), with x a float64 array
    code: int  # in kernels/convt_kernels.h, or in kernels/activations.h
    onednn: str | None  # oneDNN's dnnl_eltwise_NAME, whose alpha and beta are a and b; "" for none
    onednn_kind: int  # its number, 0 for none
    onnx: tuple | None  # ONNX operator, and (attribute, default) for each parameter
    torch: tuple | None  # class in torch.nn; strides of its result, a word of torch/_fuse.py; the attribute of each parameter
    jax: str  # function in jax of an array and the parameters
    parameters: tuple = ()  # names of the numbers that the user gives
    constants: tuple = ()  # a and b of a function without parameters, for kernels and oneDNN
    jax_keywords: dict = {}


# What a caller may give for an activation without parameters. Type checkers do not read the table.
Plain: TypeAlias = Literal["none", "relu", "tanh", "sigmoid", "gelu", "swish", "hard_swish"]
_erf = np.vectorize(math.erf, otypes=[np.float64])
ACTIVATIONS = {
    "none": Activation(lambda x, a, b: x, 0, "", 0, onnx=None, torch=None, jax="numpy.asarray"),
    "relu": Activation(
        lambda x, a, b: np.where(x < 0, 0.0, x), 1, "relu", 0x20, constants=(0.0, math.inf),
        onnx=("Relu",), torch=("ReLU", "usual"), jax="nn.relu",
    ),
    "leaky_relu": Activation(
        lambda x, a, b: np.where(x < 0, a * x, x), 2, "relu", 0x20, parameters=("slope",),
        onnx=("LeakyRelu", ("alpha", 0.01)), torch=("LeakyReLU", "usual", "negative_slope"), jax="nn.leaky_relu",
    ),
    "clip": Activation(
        lambda x, a, b: np.where(x < a, a, np.where(x > b, b, x)), 1, "clip", 0x2E, parameters=("low", "high"),
        onnx=None, torch=("ReLU6", "kept", "min_val", "max_val"), jax="numpy.clip",
    ),
    "tanh": Activation(lambda x, a, b: np.tanh(x), 3, "tanh", 0x21, onnx=("Tanh",), torch=("Tanh", "usual"), jax="numpy.tanh"),
    "sigmoid": Activation(
        lambda x, a, b: 1.0 / (1.0 + np.exp(-x)), 4, "logistic", 0x29,
        onnx=("Sigmoid",), torch=("Sigmoid", "usual"), jax="nn.sigmoid",
    ),
    "gelu": Activation(
        lambda x, a, b: 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5))), 5, "gelu_erf", 0x31,
        onnx=("Gelu",), torch=("GELU", "usual"), jax="nn.gelu", jax_keywords={"approximate": False},
    ),
    "swish": Activation(
        lambda x, a, b: x / (1.0 + np.exp(-a * x)), 6, "swish", 0x2C, constants=(1.0, 0.0),
        onnx=None, torch=("SiLU", "usual"), jax="nn.silu",
    ),
    "elu": Activation(
        lambda x, a, b: np.where(x < 0, a * np.expm1(x), x), 7, "elu", 0x22, parameters=("alpha",),
        onnx=("Elu", ("alpha", 1.0)), torch=("ELU", "usual", "alpha"), jax="nn.elu",
    ),
    "hard_swish": Activation(
        lambda x, a, b: x * np.clip(a * x + b, 0.0, 1.0), 8, "hardswish", 0x34, constants=(1.0 / 6.0, 0.5),
        onnx=("HardSwish",), torch=("Hardswish", "usual"), jax="nn.hard_swish",
    ),
}  # fmt: skip


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
    wanted = ACTIVATIONS[name].parameters
    if len(params) != len(wanted):
        names = f" ({', '.join(wanted)})" if wanted else ""
        raise ValueError(f"activation: got {words.count(len(params), 'parameter')} for {name!r}, wanted {len(wanted)}{names}")
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


def numbers_of(name, a, b):
    """Return a and b of an activation's function: the user's parameters, or the constants of the activation."""
    return ACTIVATIONS[name].constants or (a, b)


def reference(name, a, b, x):
    """Apply an activation to the float64 array ``x``. The fused kernels approximate this result. NaN stays NaN.

    GELU, swish and hard swish of -inf are NaN (-inf * 0), as in PyTorch, ONNX Runtime and oneDNN.
    """
    with np.errstate(all="ignore"):  # Inf and NaN are valid inputs and outputs
        return ACTIVATIONS[name].function(x, *numbers_of(name, a, b))


def shown(parsed):
    """Return a result of `parse` as a caller gives it: a name, or a name with its parameters; None for none."""
    name, count = parsed[0], len(ACTIVATIONS[parsed[0]].parameters)
    return None if name == "none" else parsed[: 1 + count] if count else name
