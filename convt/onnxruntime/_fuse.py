"""Fuses a ConvTranspose node with the bias, the batch norm and the activation behind it."""

import math

import onnx

from . import _scopes

_FOLDED = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)  # dtypes in which weights take a batch norm without a loss
_NORM = {"epsilon", "momentum", "spatial", "training_mode"}  # attributes of a batch norm, at the opsets of an inference
_ACTIVATIONS = {
    "Relu": lambda: "relu",
    "Tanh": lambda: "tanh",
    "Sigmoid": lambda: "sigmoid",
    "LeakyRelu": lambda alpha=0.01: ["leaky_relu", alpha] if math.isfinite(alpha) else None,
    "Gelu": lambda approximate="none": "gelu" if approximate == "none" else None,
}


def fuse(scope, position, told):
    """Join a node of a scope with what is behind it: ``(node, positions of the nodes it stands for, their operators)``.

    Nodes are joined if nothing else reads what lies between; Identity nodes between them are left out. The joined node belongs
    in the last of the positions, where all that it reads is known. ``told``, its arguments, get what it must know.
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
    """Take over an Add of one number to each channel, if the node has no bias."""
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
    """Take over a batch norm of an inference whose tensors the model holds, in the dtype of the weights."""
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
    """Take over an activation that convt has."""
    attributes = _scopes.attributes(behind)
    if not _scopes.is_standard(behind, *_ACTIVATIONS):
        return False
    try:
        told["activation"] = _ACTIVATIONS[behind.op_type](**attributes)
    except TypeError:  # an attribute that the operator does not have, of which ONNX Runtime speaks
        return False
    return told["activation"] is not None


def _channels(weights, told):
    return weights.dims[1] * told["attributes"].get("group", 1)
