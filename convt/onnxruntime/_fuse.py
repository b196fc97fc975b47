"""Fusion of a ConvTranspose node with the bias, batch norm or scale, sum and activation that follow it."""

import math

import numpy as np
import onnx

from . import _inputs, _scopes

_FOLDED = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)  # dtypes of weights exact enough to absorb a batch norm
_FIRST_OPSET = 7  # ONNX Runtime has no kernels for older versions of the followers; an Add then has other attributes
_NORM = {"epsilon", "momentum", "spatial", "training_mode"}  # attributes of a batch norm since opset 7
_EPSILON, _ALPHA = (float(np.float32(value)) for value in (1e-5, 0.01))  # defaults; attributes are float32 in every model
_ACTIVATIONS = {
    "Relu": lambda: "relu",
    "Tanh": lambda: "tanh",
    "Sigmoid": lambda: "sigmoid",
    "LeakyRelu": lambda alpha=_ALPHA: ["leaky_relu", alpha] if math.isfinite(alpha) else None,
    "Elu": lambda alpha=1.0: ["elu", alpha] if math.isfinite(alpha) else None,
    "HardSwish": lambda: "hard_swish",
    "Gelu": lambda approximate="none": "gelu" if approximate == "none" else None,
}


def fuse(scope, position, arguments):
    """Fuse a node of a scope with the nodes that follow it.

    A following node is fused if it is the only reader of the value before it. Identity nodes between fused nodes are dropped.
    ``arguments``, the arguments of the fused node, gets "epsilon" and "activation" as needed, and "biased": the name of the
    value after the ConvTranspose and its bias. Of constants, only shapes and dtypes are read: a session may replace values.

    Returns
    -------
    (node, positions, operators)
        The fused node, the positions of the nodes that it replaces, and the types of the fused operators. The fused node
        belongs at the last of the positions, where all its inputs are defined.
    """
    node, places, fused_types = onnx.NodeProto(), [position], []
    node.CopyFrom(scope.nodes[position])
    joins = (_bias, _norm, _scale, _shift, _sum, _activation)
    for join in joins if arguments["attributes"]["opset"] >= _FIRST_OPSET else ():
        path = scope.following(node.output[0])
        if path:
            follower = scope.nodes[path[-1]]
            source = node.output[0] if len(path) == 1 else scope.nodes[path[-2]].output[0]
            is_only_output = len([name for name in follower.output if name]) == 1 and follower.output[0] not in scope.redefined
            if is_only_output and join(scope, node, follower, source, arguments):
                node.output[0] = follower.output[0]
                places += path
                fused_types.append(follower.op_type)
        if join is _bias:
            arguments["biased"] = node.output[0]
    return node, places, tuple(fused_types)


def _bias(scope, node, add, source, arguments):
    """Fuse an Add of a constant per channel as the bias of a node without one. Return whether it was fused."""
    name = "" if any(node.input[2:]) else _constant_per_channel(scope, node, add, "Add", source, arguments)
    if not name:
        return False
    _inputs.place(node, _inputs.B, name)
    return True


def _constant_per_channel(scope, node, follower, operator, source, arguments):
    """Return the name of a follower's other input if the follower is this operator and the input is a constant per channel.

    Otherwise return "".
    """
    weights = scope.value(node.input[1])
    if not _scopes.is_standard(follower, operator) or follower.attribute or weights.dims is None:
        return ""
    name = next((name for name in follower.input if name != source), "")
    constant = scope.value(name)
    if not constant.in_model or constant.kind != weights.kind:
        return ""
    wanted = (_channels(weights, arguments), *[1] * (len(weights.dims) - 2))
    return name if constant.dims in (wanted, (1, *wanted)) else ""


def _norm(scope, node, norm, source, arguments):
    """Fuse an inference-mode batch norm whose tensors are in the model, in the weights' dtype. Return whether it was fused."""
    attributes = _scopes.attributes(norm)
    if not _scopes.is_standard(norm, "BatchNormalization") or not attributes.keys() <= _NORM or norm.input[0] != source:
        return False
    if attributes.get("training_mode", 0) or not attributes.get("spatial", 1):
        return False
    weights, tensors = scope.value(node.input[1]), [scope.value(name) for name in norm.input[1:]]
    if len(tensors) != 4 or not all(each.in_model and each.dims is not None and each.kind == weights.kind for each in tensors):
        return False
    channels = tensors[0].dims if weights.dims is None else (_channels(weights, arguments),)
    if weights.kind not in _FOLDED or any(each.dims != channels for each in tensors):
        return False
    arguments["epsilon"] = attributes.get("epsilon", _EPSILON)
    for n, name in enumerate(norm.input[1:], _inputs.SCALE):
        _inputs.place(node, n, name)
    return True


def _scale(scope, node, mul, source, arguments):
    """Fuse a Mul by a constant per channel with a node without a norm. Return whether it was fused."""
    if "epsilon" in arguments or scope.value(node.input[1]).kind not in _FOLDED:
        return False
    name = _constant_per_channel(scope, node, mul, "Mul", source, arguments)
    if not name:
        return False
    arguments["epsilon"] = 0.0
    _inputs.place(node, _inputs.SCALE, name)
    return True


def _shift(scope, node, add, source, arguments):
    """Fuse an Add of a constant per channel after a scale. Return whether it was fused."""
    if len(node.input) != _inputs.SHIFT:  # without a scale, or with a norm
        return False
    name = _constant_per_channel(scope, node, add, "Add", source, arguments)
    if not name:
        return False
    _inputs.place(node, _inputs.SHIFT, name)
    return True


def _sum(scope, node, add, source, arguments):
    """Fuse an Add of another value that the model computes. Return whether it was fused.

    Each run checks that the value broadcasts to the shape of the output.
    """
    if not _scopes.is_standard(add, "Add") or add.attribute or len(add.input) != 2:
        return False
    name = next((name for name in add.input if name != source), "")
    if not name or name in scope.redefined or scope.value(name).in_model:
        return False
    _inputs.place(node, _inputs.ADDED, name)
    return True


def _activation(scope, node, follower, source, arguments):
    """Fuse an activation that convt supports. Return whether it was fused."""
    attributes = _scopes.attributes(follower)
    if _scopes.is_standard(follower, "PRelu") and not attributes and follower.input[0] == source:
        has_slopes = _are_slopes(scope, node, follower.input[1], arguments)
        if has_slopes:
            _inputs.place(node, _inputs.SLOPES, follower.input[1])
        return has_slopes
    if not _scopes.is_standard(follower, *_ACTIVATIONS):
        return False
    try:
        arguments["activation"] = _ACTIVATIONS[follower.op_type](**attributes)
    except TypeError:  # an unknown attribute, which ONNX Runtime reports
        return False
    return arguments["activation"] is not None


def _are_slopes(scope, node, name, arguments):
    """Check whether a value is in the model and is one slope of a PRelu or one for each channel, in float32."""
    slopes, weights = scope.value(name), scope.value(node.input[1])
    if not slopes.in_model or slopes.dims is None or not slopes.kind == weights.kind == onnx.TensorProto.FLOAT:
        return False
    if weights.dims is None or len(slopes.dims) > len(weights.dims):
        return False
    per_channel = (_channels(weights, arguments), *[1] * (len(weights.dims) - 2))
    return math.prod(slopes.dims) == 1 or slopes.dims in (per_channel, (1, *per_channel))


def _channels(weights, arguments):
    """Return the number of output channels of weights (C, M / group, ...)."""
    return weights.dims[1] * arguments["attributes"].get("group", 1)
