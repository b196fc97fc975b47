"""The parameters of a node in a run: dequantized, and with the batch norm or scale folded in."""

import math
from typing import Any, NamedTuple

import numpy as np

from .._base import norm as _norm
from .._run.addition import Slopes


class Parameters(NamedTuple):
    """The parameters of a node in a run, or the operator that has packed them.

    If ``is_fused`` is False, they are those of the ConvTranspose alone, because fusion could change results.
    """

    weights: Any
    bias: Any
    activation: Any = None
    slopes: Slopes | None = None  # the slopes of a PRelu, one for each channel
    is_fused: bool = True
    operator: Any = None


def read(group, inputs):
    """Return the `Parameters` of a run's inputs, {name: array}, for a `_fuse.Group`."""
    for name, wanted in group.shapes.items():
        if inputs[name].shape != wanted:
            raise ValueError(f"{name}: got shape {inputs[name].shape}, wanted {wanted}, that in the model")

    def value(name):
        names, axis = group.quantized.get(name, ((), 1))
        return _dequantized(axis, *[inputs.get(each) for each in names]) if names else inputs.get(name)

    weights, bias, groups = value(group.weights), value(group.bias), group.attributes.get("group", 1)
    slopes, norm = value(group.slopes), [value(name).reshape(-1) for name in group.norm]
    unfused = Parameters(weights, None if group.adds_bias else bias, is_fused=False)
    if slopes is not None and not np.isfinite(slopes).all():
        return unfused
    if group.adds_bias:
        bias = bias.reshape(-1)
    if norm:
        channels = groups * weights.shape[1]
        if any(each is not None and each.shape != (channels,) for each in (bias, *norm)):
            raise ValueError(f"batch norm: got other sizes than the {channels} channels")
        weights, bias = _norm.fold(weights, bias, *(*norm, None, None, None)[:4], group.epsilon, groups)
        if weights is None:
            return unfused
    if slopes is None:
        return Parameters(weights, bias, group.activation)
    if slopes.size == 1:
        return Parameters(weights, bias, ["leaky_relu", float(slopes.item())])
    return Parameters(weights, bias, None, Slopes("float32", slopes.reshape(-1)))


def _dequantized(axis, quantized, scale, zero=None):
    """Return the output of a DequantizeLinear node as a float32 array. Raise ValueError for shapes or
    zero points that the specification does not permit."""
    zero = np.zeros(scale.shape, quantized.dtype) if zero is None else zero
    shape, is_per_axis = [1] * quantized.ndim, scale.size != 1 and -quantized.ndim <= axis < quantized.ndim
    if is_per_axis:
        shape[axis] = quantized.shape[axis]
    if scale.ndim > 1 or scale.shape != zero.shape or scale.size != math.prod(shape):
        raise ValueError(f"scale: got shape {scale.shape}, wanted one for each channel, and the zero point's {zero.shape}")
    if quantized.dtype == np.int32 and zero.any():
        raise ValueError("zero point: got one of int32 that is not 0")
    with np.errstate(all="ignore"):  # as in ONNX Runtime
        difference = quantized.astype(np.int32) - zero.astype(np.int32).reshape(shape)
        return difference.astype(np.float32) * scale.reshape(shape)
