"""The parameters of a node in a run: dequantized, and with the batch norm or scale folded in."""

import math
from typing import Any, NamedTuple

import numpy as np

from .._base import norm as _norm
from .._run.addition import Slopes
from . import _inputs


class Parameters(NamedTuple):
    """The parameters of a node in a run.

    If ``is_fused`` is False, they are those of the ConvTranspose alone, because fusion could change results.
    """

    weights: Any
    bias: Any
    activation: Any = None
    slopes: Slopes | None = None  # the slopes of a PRelu, one for each channel
    is_fused: bool = True


def read(group, inputs):
    """Return the `Parameters` of a run's inputs for a `_fuse.Group`."""
    inputs = list(inputs)
    for n, wanted in group.shapes.items():
        if inputs[n].shape != wanted:
            raise ValueError(f"{group.inputs[n]}: got shape {inputs[n].shape}, wanted {wanted}, that in the model")
    for n, axis in group.axes:
        inputs[n] = _dequantized(inputs[n], *[inputs[each] for each in _inputs.of_dequantization(n)], axis)
    weights, groups = inputs[_inputs.W], group.attributes.get("group", 1)
    bias, *norm, slopes = [None if inputs[n] is None else inputs[n].reshape(-1)
                           for n in (*_inputs.PARAMETERS[1:], _inputs.SLOPES)]  # fmt: skip
    if not group.adds_bias:
        bias = inputs[_inputs.B]
    unfused = Parameters(weights, None if group.adds_bias else bias, is_fused=False)
    if slopes is not None and not np.isfinite(slopes).all():
        return unfused
    if group.epsilon is not None:
        channels = groups * weights.shape[1]
        if any(each is not None and each.shape != (channels,) for each in (bias, *norm)):
            raise ValueError(f"batch norm: got other sizes than the {channels} channels")
        folded = _norm.fold(weights, bias, *norm, group.epsilon, groups)
        if folded[0] is None:
            return unfused
        weights, bias = folded
    if slopes is None:
        return Parameters(weights, bias, group.activation)
    if len(slopes) == 1:
        return Parameters(weights, bias, ["leaky_relu", float(slopes[0])])
    return Parameters(weights, bias, None, Slopes("float32", slopes))


def _dequantized(quantized, scale, zero, axis):
    """Return the output of a DequantizeLinear node as a float32 array; ``zero`` may be None. Raise ValueError for shapes or
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
