"""Fusion of a ConvTranspose node with the bias, batch norm and activation that follow it."""

import math

import onnx

from . import _scopes

_FOLDED = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)  # dtypes of weights exact enough to absorb a batch norm
_NORM = {"epsilon", "momentum", "spatial", "training_mode"}  # attributes of a batch norm since opset 7
_ACTIVATIONS = {
    "Relu": lambda: "relu",
    "Tanh": lambda: "tanh",
    "Sigmoid": lambda: "sigmoid",
    "LeakyRelu": lambda alpha=0.01: ["leaky_relu", alpha] if math.isfinite(alpha) else None,
    "Elu": lambda alpha=1.0: ["elu", alpha] if math.isfinite(alpha) else None,
    "HardSwish": lambda: "hard_swish",
    "Gelu": lambda approximate="none": "gelu" if approximate == "none" else None,
}


def fuse(scope, position, arguments):
    """Fuse a node of a scope with the nodes that follow it.

    A following node is fused if it is the only reader of the value before it. Identity nodes between fused nodes are dropped.
    ``arguments``, the arguments of the fused node, gets "epsilon" and "activation" as needed.

    Returns
    -------
    (node, positions, operators)
        The fused node, the positions of the nodes that it replaces, and the types of the fused operators. The fused node
        belongs at the last of the positions, where all its inputs are defined.
    """
    node, places, fused_types = onnx.NodeProto(), [position], []
    node.CopyFrom(scope.nodes[position])
    for join in (_bias, _norm, _activation):
        path = scope.following(node.output[0])
        if path:
            follower = scope.nodes[path[-1]]
            source = node.output[0] if len(path) == 1 else scope.nodes[path[-2]].output[0]
            is_only_output = len([name for name in follower.output if name]) == 1 and follower.output[0] not in scope.redefined
            if is_only_output and join(scope, node, follower, source, arguments):
                node.output[0] = follower.output[0]
                places += path
                fused_types.append(follower.op_type)
    return node, places, tuple(fused_types)


def _bias(scope, node, add, source, arguments):
    """Fuse an Add of a constant per channel as the bias of a node without one. Return whether it was fused."""
    weights = scope.value(node.input[1])
    if not _scopes.is_standard(add, "Add") or add.attribute or any(node.input[2:]) or weights.dims is None:
        return False
    name = next((name for name in add.input if name != source), "")
    bias = scope.value(name)
    if not bias.in_model or bias.dims is None or bias.kind != weights.kind:
        return False
    wanted = (_channels(weights, arguments), *[1] * (len(weights.dims) - 2))
    if bias.dims not in (wanted, (1, *wanted)):
        return False
    del node.input[2:]
    node.input.append(name)
    return True


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
    arguments["epsilon"] = attributes.get("epsilon", 1e-5)
    node.input.extend([""] * (3 - len(node.input)))
    node.input.extend(norm.input[1:])
    return True


def _activation(scope, node, follower, source, arguments):
    """Fuse an activation that convt supports. Return whether it was fused."""
    attributes = _scopes.attributes(follower)
    if not _scopes.is_standard(follower, *_ACTIVATIONS):
        return False
    try:
        arguments["activation"] = _ACTIVATIONS[follower.op_type](**attributes)
    except TypeError:  # an unknown attribute, which ONNX Runtime reports
        return False
    return arguments["activation"] is not None


def _channels(weights, arguments):
    """Return the number of output channels of weights (C, M / group, ...)."""
    return weights.dims[1] * arguments["attributes"].get("group", 1)
