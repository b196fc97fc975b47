"""Weights that a DequantizeLinear node makes from constants: dequantized once, while the model is prepared."""

import numpy as np
from onnx import TensorProto, numpy_helper

from . import _scopes

# Quantized type -> the first opset with it
_QUANTIZED = {
    TensorProto.INT8: 10, TensorProto.UINT8: 10, TensorProto.INT32: 10, TensorProto.INT16: 21, TensorProto.UINT16: 21,
}  # fmt: skip
_AXIS = 13  # the first opset in which the node may have an axis


def is_dequantized(scope, name):
    """Check whether a DequantizeLinear node produces a value."""
    node = scope.producer(name)
    return node is not None and _scopes.is_standard(node, "DequantizeLinear")


def dequantize(scope, node, load, opset):
    """Replace inputs of a node that are dequantized constants by float32 initializers.

    ``node`` is a node of the scope, ``load(tensor)`` returns an initializer with its data. Return the outputs of the
    DequantizeLinear nodes that it no longer reads.
    """
    replaced = []
    for n, name in enumerate(node.input[1:], 1):
        values = _values(scope, scope.producer(name), load, opset) if is_dequantized(scope, name) else None
        if values is not None:
            node.input[n] = scope.add_constant(name, numpy_helper.from_array(values))
            replaced.append(name)
    return replaced


def _values(scope, node, load, opset):
    """Return the output of a DequantizeLinear node as a float32 array, None unless its inputs are constants of known types.

    The result is also None for a node that the specification does not permit, so that the user gets ONNX Runtime's error or
    result.
    """
    tensors = [scope.constant(name) for name in node.input if name]
    attributes = _scopes.attributes(node)
    others = attributes.get("block_size") or attributes.get("output_dtype", TensorProto.FLOAT) != TensorProto.FLOAT
    if None in tensors or len(tensors) < 2 or others or ("axis" in attributes and opset < _AXIS):
        return None
    kinds = [each.data_type for each in tensors]
    if opset < _QUANTIZED.get(kinds[0], opset + 1) or kinds[1] != TensorProto.FLOAT or kinds[2:] not in ([], kinds[:1]):
        return None
    quantized, scale, *zero = [numpy_helper.to_array(load(each)) for each in tensors]
    zero = zero[0] if zero else np.zeros_like(scale, quantized.dtype)
    axis = attributes.get("axis", 1)
    if kinds[0] == TensorProto.INT32 and zero.any():
        return None
    if scale.shape != zero.shape or (scale.size != 1 and not -quantized.ndim <= axis < quantized.ndim):
        return None
    shape = [1] * quantized.ndim
    if scale.size != 1:
        shape[axis] = quantized.shape[axis]
        if scale.shape != (shape[axis],):
            return None
    with np.errstate(all="ignore"):  # as in ONNX Runtime
        difference = quantized.astype(np.int32) - zero.astype(np.int32).reshape(shape)
        return difference.astype(np.float32) * scale.reshape(shape)


def remove_unread(scope, replaced):
    """Return the positions of the DequantizeLinear nodes of a scope that nothing reads any more, and remove their constants.

    ``replaced`` maps the output of such a node to the positions of the nodes that no longer read it. Unread initializers are
    removed because ONNX Runtime warns of them.
    """
    positions = set()
    for position, node in enumerate(scope.nodes):
        readers = scope.readers.get(node.output[0]) if node.output else None
        if node.output and node.output[0] in replaced and set(readers) <= replaced[node.output[0]]:
            positions.add(position)
    names = {name for position in positions for name in scope.nodes[position].input}
    for n in reversed(range(len(scope.graph.initializer))):
        name = scope.graph.initializer[n].name
        if name in names and set(scope.readers[name]) <= positions:
            del scope.graph.initializer[n]
    return positions
