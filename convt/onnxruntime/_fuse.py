"""The nodes of a graph that convt computes as one: a ConvTranspose node, what dequantizes its weights, and what follows it.

Nodes and values are those of `library.pyx`. Of constants, only shapes and dtypes are read: a session may replace values.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from .._base import dtypes
from .._base.activation import ACTIVATIONS
from .._call import onnx_rules
from . import _differences, _inputs

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


class Group:
    """What convt computes as one node: a ConvTranspose node and the nodes fused with it.

    Attributes
    ----------
    name : str
        Name of the ConvTranspose node, or of its output if it has none.
    attributes, opset
        Attributes of the node by ONNX's names, and the version of ONNX's operators.
    inputs : list of str
        Names of the inputs, by the places of `_inputs`; "" for those that the node lacks.
    constants : set of int
        Places of the inputs that no run can change.
    in_model : bool
        Whether the model contains all parameters, so that runs rarely bring others.
    shapes : dict of int to tuple
        Place of a parameter -> the shape for which it is fused. Options or a run may bring a value of another shape.
    axes : list
        ``(place of a quantized parameter, axis of its scales)``.
    epsilon : float or None
        Of the batch norm, 0 for a scale alone, None for neither.
    activation : list or None
        Name and numbers of the fused activation.
    adds_bias : bool
        Whether the bias is that of an Add, which may have axes of size 1 around its channels.
    fused : tuple of str
        Types of the operators fused with the node.
    originals : list of Original
        The nodes, in an order in which they can be computed. The output of the last is that of convt's node.
    """

    def __init__(self, name, attributes, opset, inputs, originals):
        self.name, self.attributes, self.opset = name, attributes, opset
        self.inputs, self.originals = inputs, originals
        self.constants, self.in_model, self.shapes, self.axes = set(), False, {}, []
        self.epsilon, self.activation, self.adds_bias, self.fused = None, None, False, ()

    @property
    def output(self):
        return self.originals[-1].outputs[0]


def fused(node, opset, taken=frozenset()):
    """Return ``(group, nodes)``: the `Group` of a ConvTranspose node and of the nodes fused with it, and these nodes.

    Raise `Left` if convt does not compute the node as ONNX Runtime does. A following node is fused if it is the only reader of
    the value before it, and not in ``taken``. If this is None, nothing is fused.
    """
    attributes, inputs, outputs = node.attributes, node.inputs, node.outputs
    _check(node, attributes, inputs, outputs)
    fusion = _Fusion(node, attributes, inputs, opset)
    joins = fusion.bias, fusion.norm, fusion.scale, fusion.shift, fusion.sum, fusion.activation
    value = outputs[0]
    for join in joins if taken is not None and opset >= _FIRST_OPSET else ():
        follower = None if value.is_output else value.reader
        if follower is None or follower in taken or follower.domain or follower.provider:
            continue
        if len(follower.outputs) == 1 and follower.outputs[0].is_read and join(follower, value.name):
            fusion.nodes.append(follower)
            fusion.group.fused += (follower.op_type,)
            value = follower.outputs[0]
    if taken is not None:
        fusion.read_quantized()
    fusion.finish()
    return fusion.group, fusion.nodes


def _check(node, attributes, inputs, outputs):
    """Raise `Left` if ONNX Runtime may compute a node differently from the specification, or convt refuses it."""
    if node.provider:
        raise Left(f"{node.provider} computes it")
    if node.domain or node.version not in [first for first, _ in VERSIONS]:
        raise Left(f"convt does not know version {node.version} of its operator")
    given = [each for each in inputs if each is not None]
    if not (2 <= len(given) == len(inputs) - inputs[2:].count(None) and len(outputs) == 1):
        raise Left("it does not have the inputs and the output of a ConvTranspose")
    if not outputs[0].is_read:
        raise Left("nothing reads its output")
    if None in attributes.values():
        raise Left("one of its attributes has the wrong type")
    source = inputs[_inputs.X].producer
    if source is not None and _is_standard(source, "DequantizeLinear"):
        raise Left("ONNX Runtime may quantize a node whose data comes from DequantizeLinear")
    kind, shape = inputs[_inputs.W].type
    known = _is_in_model(inputs[_inputs.W]) and len(shape) > 2
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

    def __init__(self, node, attributes, inputs, opset):
        self.nodes, self.values = [node], dict(enumerate(inputs))
        self.group = Group(node.name or node.outputs[0].name, attributes, opset, [], [])
        self.kind, dims = inputs[_inputs.W].type
        self.dims = dims if len(dims) > 2 and min(dims) > 0 else None  # of computed weights, each run checks them

    def bias(self, add, source):
        """Fuse an Add of a constant per channel as the bias of a node without one."""
        if self.values.get(_inputs.B) is not None or not self._reads_constant(add, "Add", source, _inputs.B):
            return False
        self.group.adds_bias = True
        return True

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
        self.group.epsilon = attributes.get("epsilon", _EPSILON)
        self.values |= zip(range(_inputs.SCALE, _inputs.ADDED), inputs[1:], strict=True)
        return True

    def scale(self, mul, source):
        """Fuse a Mul by a constant per channel with a node without a norm."""
        if self.group.epsilon is not None or self.kind not in _FOLDED:
            return False
        if not self._reads_constant(mul, "Mul", source, _inputs.SCALE):
            return False
        self.group.epsilon = 0.0
        return True

    def shift(self, add, source):
        """Fuse an Add of a constant per channel after a scale, but not after a norm."""
        is_scaled = _inputs.SCALE in self.values and _inputs.SHIFT not in self.values
        return is_scaled and self._reads_constant(add, "Add", source, _inputs.SHIFT)

    def sum(self, add, source):
        """Fuse an Add of another value that the model computes. Each run checks that it broadcasts to the output's shape."""
        other = self._other(add, "Add", source)
        if other is None or _is_in_model(other):
            return False
        self.values[_inputs.ADDED] = other
        return True

    def activation(self, follower, source):
        """Fuse an activation that convt supports, or a PRelu of float32 whose slopes are in the model."""
        if _is_standard(follower, "PRelu"):
            data, slopes = follower.inputs
            is_fused = data.name == source and self._are_slopes(slopes)
            if is_fused:
                self.values[_inputs.SLOPES] = slopes
            return is_fused
        if not _is_standard(follower, *_ACTIVATIONS):
            return False
        attributes = follower.attributes
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
        for n in _inputs.PARAMETERS:
            dequantizing = self.values.get(n) and _dequantizing(self.values[n])
            if not dequantizing or self.values[n].is_output or self.values[n].reader is None or dequantizing.provider:
                continue
            attributes = dequantizing.attributes
            if not _is_known(dequantizing, attributes, self.group.opset):
                continue
            self.values |= zip((n, *_inputs.of_dequantization(n)), dequantizing.inputs, strict=False)
            self.group.axes.append((n, attributes.get("axis", 1)))
            self.nodes.insert(0, dequantizing)

    def finish(self):
        """Fill in what the group says of all inputs and nodes."""
        group = self.group
        given = {n: value for n, value in sorted(self.values.items()) if value is not None}
        group.inputs = [given[n].name if n in given else "" for n in range(max(given) + 1)]
        group.originals = [
            Original(each.op_type, tuple("" if value is None else value.name for value in each.inputs),
                     tuple(value.name for value in each.outputs), each.attributes, each.name or f"{each.op_type}_{each.id}")
            for each in self.nodes
        ]  # fmt: skip
        parameters = {n: value for n, value in given.items() if n not in (_inputs.X, _inputs.ADDED)}
        group.constants = {n for n, value in parameters.items() if value.is_constant}
        group.in_model = all(_is_in_model(each) or _dequantizing(each) for each in parameters.values())
        free = {_inputs.W if self.dims is None else None, None if group.adds_bias else _inputs.B}
        group.shapes = {n: value.type[1] for n, value in parameters.items() if n not in free}

    def _other(self, follower, operator, source):
        """Return the value that a follower reads beside ``source`` if it is this operator, else None."""
        if not _is_standard(follower, operator):
            return None
        return next((value for value in follower.inputs if value.name != source), None)

    def _reads_constant(self, follower, operator, source, n):
        """Check whether a follower is this operator and its other input a constant per channel: then the node's input ``n``."""
        constant = self._other(follower, operator, source)
        if constant is None or not _is_in_model(constant) or constant.type[0] != self.kind:
            return False
        if not self._is_per_channel(constant.type[1]):
            return False
        self.values[n] = constant
        return True

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


def _dequantizing(value):
    """Return the DequantizeLinear node that makes a value of constants, or None."""
    node = value.producer
    is_found = node is not None and _is_standard(node, "DequantizeLinear")
    return node if is_found and all(each is None or each.is_constant for each in node.inputs) else None


def _is_known(node, attributes, opset):
    """Check whether convt computes a DequantizeLinear node of constants: its types and attributes are known.

    Nodes that the specification does not permit are not known, so that the user gets ONNX Runtime's error or result.
    """
    kinds = [each.type[0] for each in node.inputs if each is not None]
    single = _NUMBERS["float32"]
    others = attributes.get("block_size") or attributes.get("output_dtype", 0) not in (0, single)
    if len(kinds) < 2 or others or (attributes.get("axis", 1) != 1 and opset < _AXIS):
        return False
    return opset >= _QUANTIZED.get(kinds[0], opset + 1) and kinds[1] == single and kinds[2:] in ([], kinds[:1])
