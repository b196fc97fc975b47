"""A ConvTranspose node of a session. Constant weights are packed once; outputs are written in place."""

import contextvars
import threading

import numpy as np

from .._base import activation as _activation
from .._call import onnx_rules
from .._run import config
from .._run.addition import Addition
from .._run.checksum import checksum
from . import _differences, _host, _model, _parameters

SHAPES = 64  # input shapes for which a node keeps the output shape


class Node:
    """A ConvTranspose node of a session, together with the bias, norm or scale, sum and activation fused with it.

    Parameters
    ----------
    group : _fuse.Group
        What the node computes.
    settings : _provider.Options
        The options of the session's provider.
    order : sequence of str
        Names of the inputs in the order in which ONNX Runtime gives them, "" for those that the node lacks.
    host_name : str
        Name of the node in ONNX Runtime's profile.

    The inputs of a run are {name: array}.
    """

    def __init__(self, group, settings, order, host_name):
        self.group, self.settings, self.order, self.host_name = group, settings, order, host_name
        self.threads = settings.threads
        self.attributes = group.attributes | {"opset": group.opset, "precision": settings.precision}
        self.data_index = order.index(group.data)
        self.added_index = order.index(group.added) + 1 if group.added else 0  # 0: nothing is added
        self.filter = group.quantized.get(group.weights, ([group.weights],))[0][0]  # W, or what is dequantized to it
        self.varying = [name for name in group.parameters if name not in group.constants]
        self.packed, self.shapes, self.refused = None, {}, None
        self.last_packed = None, None  # (shapes and checksums of a run's parameters, the operator for them)
        self.lock, self._sessions = threading.Lock(), {}  # number of nodes before the first of a session -> the session

    @property
    def operator(self):
        """The operator that computes all runs of the node, or None."""
        return self.packed.operator if self.packed is not None and self.packed.is_fused else None

    def is_fused(self):
        """Return whether the operators behind the ConvTranspose are computed with it in the last known run."""
        packed = self.packed or self.last_packed[1]
        return packed is None or packed.is_fused

    def values(self, weights, activation=None):
        """Return the keywords of the node's operator for weights of this shape and dtype."""
        return onnx_rules.attributes(weights, **self.attributes)._replace(activation=activation)

    def packed_of(self, inputs):
        """Return the `_parameters.Parameters` of inputs with an operator. Those that a run may change are copied."""
        copies = {name: inputs[name].copy() for name in self.varying}
        found = _parameters.read(self.group, inputs | copies)
        values = self.values(found.weights, found.activation)._replace(backend="tune" if self.settings.tune else "auto")
        operator = onnx_rules.operator(found.weights, found.bias, values, found.weights is not inputs[self.filter])
        return found._replace(weights=None, bias=None, operator=operator)

    def parameters(self, inputs):
        """Return the `_parameters.Parameters` of a run's inputs, without an operator if they are likely to change each time.

        Constants are packed once. Other parameters in the model are packed again if they changed since the previous run:
        checksums of all elements are compared, because ONNX Runtime does not tell whether memory has changed. Several threads
        may run this at once, so checksums and what is made of their parameters are stored in one assignment.
        """
        if not self.varying:
            with self.lock:
                if self.packed is None:
                    self.packed = self.packed_of(inputs)
            return self.packed
        if not self.group.in_model:
            return _parameters.read(self.group, inputs)
        sums = [(inputs[name].shape, checksum(inputs[name], config.get_num_threads())) for name in self.varying]
        last, packed = self.last_packed
        if last != sums:
            packed = self.packed_of(inputs)
            self.last_packed = sums, packed
        return packed

    def output_shape(self, inputs):
        """Return the shape of the output for the inputs of a run."""
        shape = self.shape_before_sum(inputs)
        if not self.added_index:
            return shape
        added = inputs[self.group.added].shape
        try:
            return np.broadcast_shapes(shape, added)
        except ValueError:
            raise ValueError(f"an added array: got shape {added}, wanted one that fits {shape}") from None

    def shape_before_sum(self, inputs):
        """Return the shape of the ConvTranspose's own output for the inputs of a run."""
        data, filter = inputs[self.group.data], inputs[self.filter]
        key = data.shape, filter.shape
        shape = self.shapes.get(key)
        if shape is None:
            if len(self.shapes) == SHAPES:
                self.shapes.clear()
            why = _differences.difference(self.group.attributes, key[0], list(key[1][2:]))
            if why is not None:
                raise ValueError(why)
            weights = np.broadcast_to(np.zeros((), data.dtype), filter.shape)  # W may be quantized
            shape = onnx_rules.operator(weights, None, self.values(weights)).output_shape(data.shape)
            if 0 in shape[2:]:  # ONNX Runtime refuses empty outputs
                raise ValueError(f"X: got shape {key[0]}, wanted a larger one: the output {shape} has no elements")
            self.shapes[key] = shape
        return shape

    def is_known(self, inputs, out):
        """Check whether the operator alone computes further runs of these shapes."""
        is_added = self.added_index == 0 or inputs[self.group.added].shape == out.shape == self.shape_before_sum(inputs)
        return self.operator is not None and is_added

    def description(self):
        """Return the input and output shapes that the node computed last for the first time, and the algorithm for them."""
        if not self.shapes:
            return {"in": None, "out": None, "algorithm": None}
        (data, _), out = list(self.shapes.items())[-1]
        packed = self.packed or self.last_packed[1]
        algorithm = "one-shot calls" if packed is None else packed.operator.plan(data).algorithm
        return {"in": data, "out": out, "algorithm": algorithm}

    def compute(self, inputs, out):
        """Compute the output of a run's inputs into ``out``."""
        if self.threads and self.threads != config.get_num_threads():
            # In a context of its own, because a signal handler may raise before the number of threads is restored.
            contextvars.copy_context().run(self._compute_on_threads, inputs, out)
        else:
            self._compute(inputs, out)

    def _compute_on_threads(self, inputs, out):
        with config.num_threads(self.threads):
            self._compute(inputs, out)

    def _compute(self, inputs, out):
        shape, parameters = self.shape_before_sum(inputs), self.parameters(inputs)
        data, added, threads = inputs[self.group.data], inputs.get(self.group.added), config.get_num_threads()
        if added is not None and added.shape != out.shape:
            added = np.broadcast_to(added, out.shape)
        if not parameters.is_fused:
            convolved = np.empty(shape, out.dtype)
            self._convolve(data, parameters, convolved)
            out[...] = self._run_onnxruntime(inputs, convolved)
            return
        if out.shape == shape:
            self._convolve(data, parameters, out, added)
        else:  # the sum broadcasts the output of the ConvTranspose, which is rare
            parameters, convolved = _parameters.read(self.group, inputs), np.empty(shape, out.dtype)
            self._convolve(data, parameters._replace(activation=None), convolved)
            out[...] = convolved
            activation = _activation.parse(parameters.activation)
            Addition(out.dtype.name, activation).run(out, np.ascontiguousarray(added), threads)
        if parameters.slopes is not None:
            parameters.slopes.run(out.reshape(-1, *out.shape[1 - len(shape) :]), threads)

    def _convolve(self, data, parameters, out, added=None):
        weights, bias, activation, _, _, operator = parameters
        if operator is not None:
            operator(data, out, add=added)
        else:
            onnx_rules.compute(data, weights, bias, self.values(weights, activation), out, added)

    def compute_with_onnxruntime(self, error, inputs):
        """Compute the output with ONNX Runtime for inputs that convt refused with ``error``.

        Raise ``error`` if it comes from a signal handler, or if ONNX Runtime has no operator for such a node. Raise ONNX
        Runtime's error if it refuses the inputs, too.
        """
        if _host.is_foreign(error):
            raise error
        shapes = inputs[self.group.data].shape, inputs[self.filter].shape
        self.refused = f"{shapes}: {type(error).__name__}: {error}"
        try:
            return self._run_onnxruntime(inputs)
        except _model.Unknown:
            raise error from None

    def _run_onnxruntime(self, inputs, convolved=None):
        """Compute the output with ONNX Runtime: of all nodes, or from the output of the ConvTranspose of those behind it."""
        originals = self.group.originals
        if convolved is not None:
            at = next(n for n, each in enumerate(originals) if each.op_type == "ConvTranspose")
            inputs, originals = inputs | {originals[at].outputs[0]: convolved}, originals[at + 1 :]
        key = len(originals)
        if key not in self._sessions:
            self._sessions[key] = _model.session(originals, self.group.opset, inputs, self.threads)
        session = self._sessions[key]
        return session.run(None, {each.name: inputs[each.name] for each in session.get_inputs()})[0]
