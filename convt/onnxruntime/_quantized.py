"""Weights that a DequantizeLinear node makes from values in the model: convt's node reads these values and dequantizes them.

ONNX Runtime gives the values to the node, wherever they come from: the model, a file beside it, or the session's options.
"""

from onnx import TensorProto

from . import _inputs, _scopes

# Quantized type -> the first opset with it
_QUANTIZED = {
    TensorProto.INT8: 10, TensorProto.UINT8: 10, TensorProto.INT32: 10, TensorProto.INT16: 21, TensorProto.UINT16: 21,
}  # fmt: skip
_AXIS = 13  # the first opset in which the node may have an axis


def source(scope, name):
    """Return the DequantizeLinear node that produces a value, or None."""
    node = scope.producer(name)
    return node if node is not None and _scopes.is_standard(node, "DequantizeLinear") else None


def read_quantized(scope, node, arguments):
    """Let convt's node read quantized parameters instead of what DequantizeLinear nodes make of them. Return these nodes.

    ``arguments``, those of convt's node, gets "axes", [place of a parameter, axis of its scales], and "kinds", {name of an
    input: its element type}.
    """
    found, arguments["axes"], arguments["kinds"] = {}, [], {}
    for n in _inputs.PARAMETERS[: len(node.input) - 1]:
        name = node.input[n]
        dequantizing = source(scope, name)
        if dequantizing is None or not _is_known(scope, dequantizing, arguments["attributes"]["opset"]):
            continue
        found[name] = dequantizing
        for place, each in zip((n, *_inputs.of_dequantization(n)), dequantizing.input, strict=False):
            _inputs.place(node, place, each)
            arguments["kinds"][each] = scope.value(each).kind
        arguments["axes"].append((n, _scopes.attributes(dequantizing).get("axis", 1)))
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
