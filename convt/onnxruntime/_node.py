"""A ConvTranspose node of a session. Constant weights are packed once; outputs are written in place."""

import contextvars
import json

import numpy as np

from .. import _activation, _config, _norm, _onnx
from .._addition import Addition, Slopes
from . import _host

_ADDED = 7  # index of the input that is added to the output
SHAPES = 64  # input shapes for which a node keeps the output shape
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}  # bytes of an element -> unsigned type of the same size

# Key of a session that is being created -> {number of a node: Node, or the exception with which convt refused it}.
sessions = {}


class Node(_host.Host):
    """A ConvTranspose node of a session, together with the bias, norm or scale, sum and activation fused with it.

    Parameters
    ----------
    text : str
        JSON object with these entries. ``session`` and ``node``: key of the session and number of the node. ``threads``: 0 for
        convt's own number. ``attributes``: those of ONNX's ConvTranspose, plus ``opset`` and convt's ``precision``.
        ``activation``, ``slopes`` (of a PRelu, one for each channel), and ``epsilon`` (of the batch norm, 0 for a scale alone),
        all optional. ``tune``: whether to measure algorithms. ``constants_in_model``: whether the model contains W, B and the
        norm's inputs, so that runs rarely bring others. ``inputs``: names of X, W, B, the batch norm's scale, shift, mean and
        variance, and of an array that is added to the output, with "" for those that the node lacks. ``replaced``: the ONNX
        nodes that this node replaces.
    element_type : int
        The element type of all inputs, from onnx.TensorProto.
    constants : list
        The inputs that the node has; None for those that are not constant.
    """

    def __init__(self, text, element_type, constants):
        self.arguments = arguments = json.loads(text)
        self.element_type, self.threads, self.attributes = element_type, arguments["threads"], arguments["attributes"]
        self.epsilon, self.activation = arguments.get("epsilon"), arguments.get("activation")
        self.slopes = Slopes("float32", arguments["slopes"]) if "slopes" in arguments else None
        given = [bool(name) for name in arguments["inputs"]]
        self.added = sum(given) - 1 if len(given) > _ADDED else 0  # its index among the inputs that the node has
        self.backend = {"backend": "tune"} if arguments.get("tune") else {}
        self.operator, self.shapes = None, {}
        self.constants_in_model = arguments["constants_in_model"]
        self.last_weights = None, None  # (copies of a run's arrays after X, their operator)
        constants = self.placed(constants)[1:_ADDED]
        # Indices after X.
        self.runtime_inputs = [n for n, value in enumerate(constants) if given[n + 1] and value is None]
        nodes = sessions.get(arguments["session"], {})
        if not self.runtime_inputs:
            try:
                self.operator = self.operator_of(constants)
            except Exception as error:
                nodes[arguments["node"]] = error
                self.refuse(error, None)
        nodes[arguments["node"]] = self

    def placed(self, values):
        """Return a list of all inputs, with None for those that the node lacks, from a list of those that it has."""
        values = iter(values)
        return [next(values) if name else None for name in self.arguments["inputs"]]

    def weights(self, inputs):
        """Return W and B, with the batch norm or scale folded in, for the inputs after X."""
        weights, bias = (*inputs, None)[:2]
        bias = None if bias is None else bias.reshape(-1)  # the bias of an Add has shape (M, 1, ...) or (1, M, 1, ...)
        if self.epsilon is None:
            return weights, bias
        norm = [None if each is None else each.reshape(-1) for each in (*inputs[2:], None, None, None)[:4]]
        weights, bias = _norm.fold(weights, bias, *norm, self.epsilon, self.attributes.get("group", 1))
        if weights is None:
            raise ValueError("W: got values that leave the normal range if they are multiplied by those of the norm or scale")
        return weights, bias

    def values(self, weights):
        """Return the keywords of the node's operator for weights of this shape and dtype."""
        return {**_onnx.attributes(weights, **self.attributes), "activation": self.activation}

    def operator_of(self, inputs, copied=False):
        """Return an operator with packed weights for the inputs after X. ``copied`` is whether convt copied W for it."""
        weights, bias = self.weights(inputs)
        copied = copied or self.epsilon is not None
        return _onnx.operator(weights, bias, self.values(weights) | self.backend, copied)

    def current_operator(self, inputs):
        """Return the operator for a run's arrays after X. It is new if their elements changed since the previous run.

        Every element is compared, because ONNX Runtime does not tell whether memory has changed. Several threads may run this
        at once, so the copies and their operator are stored in one assignment.
        """
        copies, operator = self.last_weights
        if operator is None or not all(_same_bits(copies[n], inputs[n]) for n in self.runtime_inputs):
            copies = [inputs[n].copy() if n in self.runtime_inputs else inputs[n] for n in range(len(inputs))]
            operator = self.operator_of(copies, 0 in self.runtime_inputs)
            self.last_weights = copies, operator
        return operator

    def output_shape(self, inputs):
        """Return the shape of the output for the input arrays of a run."""
        shape = self.shape_before_sum(inputs)
        if not self.added:
            return shape
        try:
            return np.broadcast_shapes(shape, inputs[_ADDED].shape)
        except ValueError:
            raise ValueError(f"an added array: got shape {inputs[_ADDED].shape}, wanted one that fits {shape}") from None

    def shape_before_sum(self, inputs):
        """Return the shape of the ConvTranspose's own output for the input arrays of a run."""
        key = inputs[0].shape, inputs[1].shape
        shape = self.shapes.get(key)
        if shape is None:
            if len(self.shapes) == SHAPES:
                self.shapes.clear()
            operator = self.operator or _onnx.operator(inputs[1], None, self.values(inputs[1]))
            shape = operator.output_shape(inputs[0].shape)
            if 0 in shape[2:]:  # ONNX Runtime refuses empty outputs
                raise ValueError(f"X: got shape {key[0]}, wanted a larger one: the output {shape} has no elements")
            self.shapes[key] = shape
        return shape

    def description(self):
        """Return the input and output shapes that the node computed last for the first time, and the algorithm for them."""
        if not self.shapes:
            return {"in": None, "out": None, "algorithm": None}
        (data, _), out = list(self.shapes.items())[-1]
        operator = self.operator or self.last_weights[1]
        algorithm = "one-shot calls" if operator is None else operator.plan(data).algorithm
        return {"in": data, "out": out, "algorithm": algorithm}

    def compute(self, inputs, out):
        """Compute the output of a run's input arrays into ``out``."""
        if self.threads and self.threads != _config.get_num_threads():
            # In a context of its own, because a signal handler may raise before the number of threads is restored.
            contextvars.copy_context().run(self._compute_on_threads, inputs, out)
        else:
            self._compute(inputs, out)

    def _compute_on_threads(self, inputs, out):
        with _config.num_threads(self.threads):
            self._compute(inputs, out)

    def _compute(self, inputs, out):
        added, constants, shape = None, inputs[1:_ADDED], self.shape_before_sum(inputs)
        if self.added:
            added = inputs[_ADDED] if inputs[_ADDED].shape == out.shape else np.broadcast_to(inputs[_ADDED], out.shape)
        if out.shape != shape:  # the sum broadcasts the output of the ConvTranspose, which is rare
            self._compute_larger_sum(inputs[0], constants, added, out, shape)
        elif self.operator is not None:
            self.operator(inputs[0], out, add=added)
        elif self.constants_in_model:
            self.current_operator(constants)(inputs[0], out, add=added)
        else:
            weights, bias = self.weights(constants)
            _onnx.compute(inputs[0], weights, bias, self.values(weights), out, added)
        if self.slopes is not None:
            self.slopes.run(out.reshape(-1, *out.shape[1 - len(shape):]), _config.get_num_threads())

    def _compute_larger_sum(self, data, constants, added, out, shape):
        """Compute a sum whose shape is larger than that of the ConvTranspose's output, ``shape``."""
        before = np.empty(shape, out.dtype)
        weights, bias = self.weights(constants)
        _onnx.compute(data, weights, bias, self.values(weights) | {"activation": None}, before)
        out[...] = before
        activation = _activation.parse(self.activation)
        Addition(out.dtype.name, activation).run(out, np.ascontiguousarray(added), _config.get_num_threads())


def _same_bits(a, b):
    """Check whether two arrays have the same shape and bits, so that NaN equals itself and 0.0 differs from -0.0."""
    bits = _BITS[a.itemsize]
    return a.shape == b.shape and np.array_equal(a.reshape(-1).view(bits), b.reshape(-1).view(bits))
