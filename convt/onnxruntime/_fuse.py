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
    "Gelu": lambda approximate="none": "gelu" if approximate == "none" else None,
}


def fuse(scope, position, told):
    """Fuse a node of a scope with the nodes that follow it.

    A following node is fused if it is the only reader of the value before it. Identity nodes between fused nodes are dropped.
    ``told``, the arguments of the fused node, gets "epsilon" and "activation" as needed.

    Returns
    -------
    (node, positions, operators)
        The fused node, the positions of the nodes that it replaces, and the types of the fused operators. The fused node
        belongs at the last of the positions, where all its inputs are defined.
    """
    node, places, joined = onnx.NodeProto(), [position], []
    node.CopyFrom(scope.nodes[position])
    for join in (_bias, _norm, _activation):
        path = scope.behind(node.output[0])
        if path:
            behind = scope.nodes[path[-1]]
            source = node.output[0] if len(path) == 1 else scope.nodes[path[-2]].output[0]
            alone = len([name for name in behind.output if name]) == 1 and behind.output[0] not in scope.hidden
            if alone and join(scope, node, behind, source, told):
                node.output[0] = behind.output[0]
                places += path
                joined.append(behind.op_type)
    return node, places, tuple(joined)


def _bias(scope, node, add, source, told):
    """Fuse an Add of a constant per channel as the bias of a node without one. Return whether it was fused."""
    weights = scope.value(node.input[1])
    if not _scopes.is_standard(add, "Add") or add.attribute or any(node.input[2:]) or weights.dims is None:
        return False
    name = next((name for name in add.input if name != source), "")
    bias = scope.value(name)
    if not bias.default or bias.dims is None or bias.kind != weights.kind:
        return False
    wanted = (_channels(weights, told), *[1] * (len(weights.dims) - 2))
    if bias.dims not in (wanted, (1, *wanted)):
        return False
    del node.input[2:]
    node.input.append(name)
    return True


def _norm(scope, node, norm, source, told):
    """Fuse an inference-mode batch norm whose tensors are in the model, in the weights' dtype. Return whether it was fused."""
    attributes = _scopes.attributes(norm)
    if not _scopes.is_standard(norm, "BatchNormalization") or not attributes.keys() <= _NORM or norm.input[0] != source:
        return False
    if attributes.get("training_mode", 0) or not attributes.get("spatial", 1):
        return False
    weights, tensors = scope.value(node.input[1]), [scope.value(name) for name in norm.input[1:]]
    if len(tensors) != 4 or not all(each.default and each.dims is not None and each.kind == weights.kind for each in tensors):
        return False
    channels = tensors[0].dims if weights.dims is None else (_channels(weights, told),)
    if weights.kind not in _FOLDED or any(each.dims != channels for each in tensors):
        return False
    told["epsilon"] = attributes.get("epsilon", 1e-5)
    node.input.extend([""] * (3 - len(node.input)))
    node.input.extend(norm.input[1:])
    return True


def _activation(scope, node, behind, source, told):
    """Fuse an activation that convt supports. Return whether it was fused."""
    attributes = _scopes.attributes(behind)
    if not _scopes.is_standard(behind, *_ACTIVATIONS):
        return False
    try:
        told["activation"] = _ACTIVATIONS[behind.op_type](**attributes)
    except TypeError:  # an unknown attribute, which ONNX Runtime reports
        return False
    return told["activation"] is not None


def _channels(weights, told):
    """Return the number of output channels of weights (C, M / group, ...)."""
    return weights.dims[1] * told["attributes"].get("group", 1)
