"""Fusion of a ConvTranspose node with the bias, batch norm or scale, sum and activation that follow it."""

import math

import numpy as np
import onnx

from .._base.activation import ACTIVATIONS
from . import _inputs, _scopes

_FOLDED = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)  # dtypes of weights exact enough to absorb a batch norm
_FIRST_OPSET = 7  # ONNX Runtime has no kernels for older versions of the followers; an Add then has other attributes
_NORM = {"epsilon", "momentum", "spatial", "training_mode"}  # attributes of a batch norm since opset 7
_EPSILON = float(np.float32(1e-5))  # the default; attributes are float32 in every model
_ACTIVATIONS = {each.onnx[0]: (name, dict(each.onnx[1:])) for name, each in ACTIVATIONS.items() if each.onnx}


def fuse(scope, position, arguments):
    """Fuse a node of a scope with the nodes that follow it.

    Return ``(node, positions, operators)``: the fused node, the positions of the nodes that it replaces, and the types of the
    fused operators. The fused node belongs at the last of the positions, where all its inputs are defined.

    A following node is fused if it is the only reader of the value before it. Identity nodes between fused nodes are dropped.
    ``arguments``, the arguments of the fused node, gets "epsilon" and "activation" as needed, and "biased": the name of the
    value after the ConvTranspose and its bias. Of constants, only shapes and dtypes are read: a session may replace values.
    """
    fusion = _Fusion(scope, scope.nodes[position], arguments)
    node, places, fused_types = fusion.node, [position], []
    joins = fusion.bias, fusion.norm, fusion.scale, fusion.shift, fusion.sum, fusion.activation
    for join in joins if arguments["attributes"]["opset"] >= _FIRST_OPSET else ():
        path = scope.following(node.output[0])
        if not path:
            continue
        follower = scope.nodes[path[-1]]
        source = node.output[0] if len(path) == 1 else scope.nodes[path[-2]].output[0]
        is_only_output = len([name for name in follower.output if name]) == 1 and follower.output[0] not in scope.redefined
        if is_only_output and join(follower, source):
            node.output[0] = follower.output[0]
            places += path
            fused_types.append(follower.op_type)
    return node, places, tuple(fused_types)


class _Fusion:
    """A copy of a node, with which its followers are fused.

    Each method fuses a follower of its kind, which reads the value ``source``, and returns whether it did.
    """

    def __init__(self, scope, original, arguments):
        self.scope, self.arguments, self.node = scope, arguments, onnx.NodeProto()
        self.node.CopyFrom(original)
        self.weights = scope.value(original.input[1])
        arguments["biased"] = original.output[0]

    def bias(self, add, source):
        """Fuse an Add of a constant per channel as the bias of a node without one."""
        if any(self.node.input[2:]) or not self._reads_constant(add, "Add", source, _inputs.B):
            return False
        self.arguments["biased"] = add.output[0]
        return True

    def norm(self, norm, source):
        """Fuse an inference-mode batch norm whose tensors are in the model, in the weights' dtype."""
        attributes = _scopes.attributes(norm)
        if not _scopes.is_standard(norm, "BatchNormalization") or not attributes.keys() <= _NORM or norm.input[0] != source:
            return False
        if attributes.get("training_mode", 0) or not attributes.get("spatial", 1) or self.weights.kind not in _FOLDED:
            return False
        tensors = [self.scope.value(name) for name in norm.input[1:]]
        if len(tensors) != 4 or tensors[0].dims is None or not all(each.in_model for each in tensors):
            return False
        channels = tensors[0].dims if self.weights.dims is None else (self._channels(),)
        if any((each.dims, each.kind) != (channels, self.weights.kind) for each in tensors):
            return False
        self.arguments["epsilon"] = attributes.get("epsilon", _EPSILON)
        for n, name in enumerate(norm.input[1:], _inputs.SCALE):
            _inputs.place(self.node, n, name)
        return True

    def scale(self, mul, source):
        """Fuse a Mul by a constant per channel with a node without a norm."""
        if "epsilon" in self.arguments or self.weights.kind not in _FOLDED:
            return False
        if not self._reads_constant(mul, "Mul", source, _inputs.SCALE):
            return False
        self.arguments["epsilon"] = 0.0
        return True

    def shift(self, add, source):
        """Fuse an Add of a constant per channel after a scale, but not after a norm."""
        return len(self.node.input) == _inputs.SHIFT and self._reads_constant(add, "Add", source, _inputs.SHIFT)

    def sum(self, add, source):
        """Fuse an Add of another value that the model computes. Each run checks that it broadcasts to the output's shape."""
        if not _scopes.is_standard(add, "Add") or add.attribute or len(add.input) != 2:
            return False
        name = next((name for name in add.input if name != source), "")
        if not name or name in self.scope.redefined or self.scope.value(name).in_model:
            return False
        _inputs.place(self.node, _inputs.ADDED, name)
        return True

    def activation(self, follower, source):
        """Fuse an activation that convt supports, or a PRelu of float32 whose slopes are in the model."""
        attributes = _scopes.attributes(follower)
        if _scopes.is_standard(follower, "PRelu"):
            slopes = self.scope.value(follower.input[1])
            is_fused = not attributes and follower.input[0] == source and self._are_slopes(slopes)
            if is_fused:
                _inputs.place(self.node, _inputs.SLOPES, follower.input[1])
            return is_fused
        if not _scopes.is_standard(follower, *_ACTIVATIONS):
            return False
        name, defaults = _ACTIVATIONS[follower.op_type]
        if (name == "gelu" and attributes.pop("approximate", "none") != "none") or not attributes.keys() <= defaults.keys():
            return False  # ONNX Runtime reports an unknown attribute
        numbers = [float(np.float32(value)) for value in (defaults | attributes).values()]
        if not all(map(math.isfinite, numbers)):
            return False
        self.arguments["activation"] = [name, *numbers]
        return True

    def _reads_constant(self, follower, operator, source, n):
        """Check whether a follower is this operator and its other input a constant per channel: then the node's input ``n``."""
        if not _scopes.is_standard(follower, operator) or follower.attribute:
            return False
        name = next((name for name in follower.input if name != source), "")
        constant = self.scope.value(name)
        if not constant.in_model or constant.kind != self.weights.kind or not self._is_per_channel(constant.dims):
            return False
        _inputs.place(self.node, n, name)
        return True

    def _are_slopes(self, slopes):
        """Check whether a value is in the model and is one slope of a PRelu or one for each channel, in float32."""
        if not slopes.in_model or slopes.dims is None or not slopes.kind == self.weights.kind == onnx.TensorProto.FLOAT:
            return False
        if self.weights.dims is None or len(slopes.dims) > len(self.weights.dims):
            return False
        return math.prod(slopes.dims) == 1 or self._is_per_channel(slopes.dims)

    def _is_per_channel(self, dims):
        """Check whether this is a shape of one element for each output channel."""
        if self.weights.dims is None:
            return False
        wanted = (self._channels(), *[1] * (len(self.weights.dims) - 2))
        return dims in (wanted, (1, *wanted))

    def _channels(self):
        """Return the number of output channels of the weights (C, M / group, ...)."""
        return self.weights.dims[1] * self.arguments["attributes"].get("group", 1)
