"""Weights that a DequantizeLinear node makes from values in the model: convt's node reads these values and dequantizes them.

ONNX Runtime gives the values to the node, wherever they come from: the model, a file beside it, or the session's options.
"""

import math

import numpy as np
from onnx import TensorProto

from . import _inputs, _scopes

# Quantized type -> the first opset with it
_QUANTIZED = {
    TensorProto.INT8: 10, TensorProto.UINT8: 10, TensorProto.INT32: 10, TensorProto.INT16: 21, TensorProto.UINT16: 21,
}  # fmt: skip
_AXIS = 13  # the first opset in which the node may have an axis


def is_dequantized(scope, name):
    """Check whether a DequantizeLinear node produces a value."""
    node = scope.producer(name)
    return node is not None and _scopes.is_standard(node, "DequantizeLinear")


def is_unread(scope, node):
    """Check whether a node of a scope is a DequantizeLinear of which convt's nodes have read the output, and nothing else."""
    return _scopes.is_standard(node, "DequantizeLinear") and len(node.output) == 1 and scope.readers.get(node.output[0]) == []


def read_quantized(scope, node, arguments):
    """Let convt's node read quantized parameters instead of what DequantizeLinear nodes make of them. Return these nodes.

    ``arguments``, those of convt's node, gets "axes", {place of a parameter: axis of its scales}, and "kinds", {name of an
    input: its element type}.
    """
    found, axes, kinds = {}, {}, {}
    for n in _inputs.PARAMETERS[: len(node.input) - 1]:
        name = node.input[n]
        source = scope.producer(name) if name and is_dequantized(scope, name) else None
        if source is None or not _is_known(scope, source, arguments["attributes"]["opset"]):
            continue
        found[name] = source
        for place, each in zip((n, *_inputs.of_dequantization(n)), source.input, strict=False):
            _inputs.place(node, place, each)
            kinds[each] = scope.value(each).kind
        axes[n] = _scopes.attributes(source).get("axis", 1)
    arguments["axes"], arguments["kinds"] = axes, kinds
    return list(found.values())


def _is_known(scope, node, opset):
    """Check whether convt computes a DequantizeLinear node: its inputs are in the model, and its types are known.

    Nodes that the specification does not permit are not known, so that the user gets ONNX Runtime's error or result.
    """
    values, attributes = [scope.value(name) for name in node.input if name], _scopes.attributes(node)
    others = attributes.get("block_size") or attributes.get("output_dtype", TensorProto.FLOAT) != TensorProto.FLOAT
    if not all(each.in_model for each in values) or len(values) < 2 or others or ("axis" in attributes and opset < _AXIS):
        return False
    kinds = [each.kind for each in values]
    return opset >= _QUANTIZED.get(kinds[0], opset + 1) and kinds[1] == TensorProto.FLOAT and kinds[2:] in ([], kinds[:1])


def dequantized(quantized, scale, zero, axis):
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
