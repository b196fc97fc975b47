"""The nodes of a graph that convt computes as one: a ConvTranspose node, what dequantizes its weights, and what follows it.

Nodes and values are those of `library.pyx`. Of constants, only shapes and dtypes are read: a session may replace values.
"""

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .._base import dtypes
from .._base.activation import ACTIVATIONS
from .._call import onnx_rules
from . import _differences

VERSIONS = (1, 10), (11, 21), (22, 22)  # the first and last opset with each definition of ConvTranspose
_DTYPES = {each.onnx: each.dtype for each in dtypes.COMPUTED}
_NUMBERS = {each.dtype.name: each.onnx for each in dtypes.ALL}
_FOLDED = (_NUMBERS["float32"], _NUMBERS["float64"])  # dtypes of weights exact enough to absorb a batch norm
_FIRST_OPSET = 7  # ONNX Runtime has no kernels for older versions of the followers; an Add then has other attributes
_NORM = {"epsilon", "momentum", "spatial", "training_mode"}  # attributes of a batch norm since opset 7
_EPSILON = float(np.float32(1e-5))  # the default; attributes are float32 in every model
_ACTIVATIONS = {each.onnx[0]: (name, dict(each.onnx[1:])) for name, each in ACTIVATIONS.items() if each.onnx}
# Element type of quantized parameters -> the first opset with it
_QUANTIZED = {_NUMBERS[name]: opset for name, opset in
              (("int8", 10), ("uint8", 10), ("int32", 10), ("int16", 21), ("uint16", 21))}  # fmt: skip
_AXIS = 13  # the first opset in which DequantizeLinear may have an axis


class Left(Exception):
    """The reason to leave a node to ONNX Runtime."""


class Original(NamedTuple):
    """A node that convt computes: what a model of ONNX says about it, and its name in ONNX Runtime's profile."""

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]
    name: str


@dataclass
class Group:
    """What convt computes as one node: a ConvTranspose node and the nodes fused with it. Inputs are known by their names."""

    name: str  # name of the ConvTranspose node; if it has none, the name of its output
    attributes: dict[str, Any]  # of the ConvTranspose node, by ONNX's names
    opset: int  # the version of ONNX's operators
    data: str
    weights: str
    bias: str  # "" if the node has none
    adds_bias: bool = False  # whether the bias is that of an Add, which may have axes of size 1 around its channels
    norm: tuple[str, ...] = ()  # scale, shift, mean and variance of a batch norm; or a scale, and possibly a shift, alone
    epsilon: float | None = None  # of the batch norm, 0 for a scale alone, None for neither
    added: str = ""  # the array that is added to the output
    slopes: str = ""  # of a PRelu
    activation: list[Any] | None = None  # name and numbers
    quantized: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # parameter -> (inputs, axis) of its DequantizeLinear
    constants: set[str] = field(default_factory=set)  # parameters that no run can change
    in_model: bool = False  # whether the model contains all parameters, so that runs rarely bring others
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # those for which parameters are fused: a run may differ
    fused: tuple[str, ...] = ()  # types of the operators fused with the node
    originals: list[Original] = field(default_factory=list)  # the nodes in an order in which they can be computed

    @property
    def parameters(self):
        """The names of all inputs that have weights, biases and the like, before dequantization."""
        names = self.weights, self.bias, *self.norm, self.slopes
        return [each for name in names for each in self.quantized.get(name, ([name],))[0] if each]

    @property
    def output(self):
        return self.originals[-1].outputs[0]


def fused(node, opset, taken=frozenset()):
    """Return ``(group, nodes)``: the `Group` of a ConvTranspose node and of the nodes fused with it, and these nodes.

    Raise `Left` if convt does not compute the node as ONNX Runtime does. A following node is fused if it is the only reader of
    the value before it, and its ``id`` is not in ``taken``. If this is None, nothing is fused.
    """
    _check(node)
    fusion, value = _Fusion(node, opset), node.outputs[0]
    joins = fusion.bias, fusion.norm, fusion.scale, fusion.shift, fusion.sum, fusion.activation
    for join in joins if taken is not None and opset >= _FIRST_OPSET else ():
        follower = None if value.is_output else value.reader
        if follower is None or follower.id in taken or follower.domain or follower.provider:
            continue
        if len(follower.outputs) == 1 and follower.outputs[0].is_read and join(follower, value.name):
            fusion.nodes.append(follower)
            value = follower.outputs[0]
    if taken is not None:
        fusion.read_quantized()
    return fusion.finished(), fusion.nodes


def _check(node):
    """Raise `Left` if ONNX Runtime may compute a node differently from the specification, or convt refuses it."""
    attributes, inputs = node.attributes, node.inputs
    if node.provider:
        raise Left(f"{node.provider} computes it")
    if node.domain or node.version not in [first for first, _ in VERSIONS]:
        raise Left(f"convt does not know version {node.version} of its operator")
    if not 2 <= len(inputs) <= 3 or None in inputs[:2] or len(node.outputs) != 1:
        raise Left("it does not have the inputs and the output of a ConvTranspose")
    if not node.outputs[0].is_read:
        raise Left("nothing reads its output")
    if None in attributes.values():
        raise Left("one of its attributes has the wrong type")
    source = inputs[0].producer
    if source is not None and _is_standard(source, "DequantizeLinear"):
        raise Left("ONNX Runtime may quantize a node whose data comes from DequantizeLinear")
    kind, shape = inputs[1].type
    known = _is_in_model(inputs[1]) and len(shape) > 2
    why = _differences.difference(attributes, None, list(shape[2:]) if known else None)
    if why is not None:
        raise Left(why)
    if kind not in _DTYPES:
        raise Left(f"convt does not compute elements of ONNX's type {kind}")
    if known:
        try:
            weights = np.broadcast_to(np.zeros((), _DTYPES[kind]), shape)  # without memory for its elements
            onnx_rules.check(weights, None, onnx_rules.attributes(weights, **attributes, opset=node.version))
        except (ValueError, TypeError, MemoryError) as error:
            raise Left(f"convt refuses it: {error}") from None


def _is_standard(node, *operators):
    return node.op_type in operators and not node.domain


def _is_in_model(value):
    return value.is_constant or value.is_optional


class _Fusion:
    """A group that grows. Each method fuses a follower of its kind, which reads the value ``source``, if it can."""

    def __init__(self, node, opset):
        self.nodes, self.values = [node], {value.name: value for value in node.inputs if value is not None}
        data, weights, bias = [*map(_name, node.inputs), ""][:3]
        self.group = Group(node.name or node.outputs[0].name, node.attributes, opset, data, weights, bias)
        self.kind, dims = node.inputs[1].type
        self.dims = dims if len(dims) > 2 and min(dims) > 0 else None  # of computed weights, each run checks them

    def bias(self, add, source):
        """Fuse an Add of a constant per channel as the bias of a node without one."""
        constant = None if self.group.bias else self._constant(add, "Add", source)
        if constant is not None:
            self.group.bias, self.group.adds_bias = constant, True
        return constant is not None

    def norm(self, norm, source):
        """Fuse an inference-mode batch norm whose tensors are in the model, in the weights' dtype."""
        if not _is_standard(norm, "BatchNormalization") or self.kind not in _FOLDED:
            return False
        attributes, inputs = norm.attributes, norm.inputs
        if not attributes.keys() <= _NORM or len(inputs) != 5 or inputs[0].name != source or self.dims is None:
            return False
        if attributes.get("training_mode", 0) or not attributes.get("spatial", 1):
            return False
        if not all(_is_in_model(each) and each.type == (self.kind, (self._channels(),)) for each in inputs[1:]):
            return False
        self.group.epsilon, self.group.norm = attributes.get("epsilon", _EPSILON), self._read(*inputs[1:])
        return True

    def scale(self, mul, source):
        """Fuse a Mul by a constant per channel with a node without a norm."""
        constant = None if self.group.norm or self.kind not in _FOLDED else self._constant(mul, "Mul", source)
        if constant is not None:
            self.group.epsilon, self.group.norm = 0.0, (constant,)
        return constant is not None

    def shift(self, add, source):
        """Fuse an Add of a constant per channel after a scale, but not after a norm."""
        constant = self._constant(add, "Add", source) if len(self.group.norm) == 1 else None
        if constant is not None:
            self.group.norm += (constant,)
        return constant is not None

    def sum(self, add, source):
        """Fuse an Add of another value that the model computes. Each run checks that it broadcasts to the output's shape."""
        other = _other(add, "Add", source)
        if other is None or _is_in_model(other):
            return False
        self.group.added = other.name
        return True

    def activation(self, follower, source):
        """Fuse an activation that convt supports, or a PRelu of float32 whose slopes are in the model."""
        if _is_standard(follower, "PRelu"):
            data, slopes = follower.inputs
            is_fused = data.name == source and self._are_slopes(slopes)
            if is_fused:
                (self.group.slopes,) = self._read(slopes)
            return is_fused
        if not _is_standard(follower, *_ACTIVATIONS):
            return False
        attributes = dict(follower.attributes)
        name, defaults = _ACTIVATIONS[follower.op_type]
        if (name == "gelu" and attributes.pop("approximate", "none") != "none") or not attributes.keys() <= defaults.keys():
            return False
        numbers = [float(np.float32(value)) for value in (defaults | attributes).values()]
        if not all(map(math.isfinite, numbers)):
            return False
        self.group.activation = [name, *numbers]
        return True

    def read_quantized(self):
        """Let the node read quantized parameters, instead of what DequantizeLinear nodes make of them.

        If another node reads what a DequantizeLinear makes, it stays with ONNX Runtime.
        """
        for value in [self.values[name] for name in self.group.parameters]:
            node = None if value.is_output or value.reader is None else _dequantizing(value)
            if node is None or node.provider or not _is_known(node, self.group.opset):
                continue
            self.group.quantized[value.name] = self._read(*node.inputs), node.attributes.get("axis", 1)
            self.nodes.insert(0, node)

    def finished(self):
        """Return the group with what it says of all inputs and nodes."""
        group, at = self.group, [node.op_type for node in self.nodes].index("ConvTranspose")
        group.fused = tuple(node.op_type for node in self.nodes[at + 1 :])
        group.originals = [
            Original(each.op_type, tuple(map(_name, each.inputs)), tuple(map(_name, each.outputs)), each.attributes,
                     each.name or f"{each.op_type}_{each.id}")
            for each in self.nodes
        ]  # fmt: skip
        parameters = [self.values[name] for name in group.parameters]
        group.constants = {each.name for each in parameters if each.is_constant}
        group.in_model = all(_is_in_model(each) or _dequantizing(each) for each in parameters)
        free = {"" if self.dims else group.weights, "" if group.adds_bias else group.bias}
        group.shapes = {each.name: each.type[1] for each in parameters if each.name not in free}
        return group

    def _read(self, *values):
        """Return the names of values that the group reads."""
        self.values |= {value.name: value for value in values if value is not None}
        return tuple(map(_name, values))

    def _constant(self, follower, operator, source):
        """Return the name of the constant per channel that a follower of this operator reads beside ``source``, or None."""
        value = _other(follower, operator, source)
        if value is None or not _is_in_model(value) or value.type[0] != self.kind or not self._is_per_channel(value.type[1]):
            return None
        return self._read(value)[0]

    def _are_slopes(self, slopes):
        """Check whether a value is in the model and is one slope of a PRelu or one for each channel, in float32."""
        kind, dims = slopes.type
        if not _is_in_model(slopes) or not kind == self.kind == _NUMBERS["float32"]:
            return False
        if self.dims is None or len(dims) > len(self.dims):
            return False
        return math.prod(dims) == 1 or self._is_per_channel(dims)

    def _is_per_channel(self, dims):
        """Check whether this is a shape of one element for each output channel."""
        if self.dims is None:
            return False
        wanted = (self._channels(), *[1] * (len(self.dims) - 2))
        return dims in (wanted, (1, *wanted))

    def _channels(self):
        """Return the number of output channels of the weights (C, M / group, ...)."""
        return self.dims[1] * self.group.attributes.get("group", 1)


def _name(value):
    return "" if value is None else value.name


def _other(node, operator, source):
    """Return the value that a node reads beside ``source`` if it is this operator, else None."""
    others = [value for value in node.inputs if value.name != source] if _is_standard(node, operator) else []
    return others[0] if others else None


def _dequantizing(value):
    """Return the DequantizeLinear node that makes a value of constants, or None."""
    node = value.producer
    is_found = node is not None and _is_standard(node, "DequantizeLinear")
    return node if is_found and all(each is None or each.is_constant for each in node.inputs) else None


def _is_known(node, opset):
    """Check whether convt computes a DequantizeLinear node of constants: its types and attributes are known.

    Nodes that the specification does not permit are not known, so that the user gets ONNX Runtime's error or result.
    """
    kinds, attributes = [each.type[0] for each in node.inputs if each is not None], node.attributes
    single = _NUMBERS["float32"]
    others = attributes.get("block_size") or attributes.get("output_dtype", 0) not in (0, single)
    if len(kinds) < 2 or others or (attributes.get("axis", 1) != 1 and opset < _AXIS):
        return False
    return opset >= _QUANTIZED.get(kinds[0], opset + 1) and kinds[1] == single and kinds[2:] in ([], kinds[:1])
