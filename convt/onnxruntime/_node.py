"""A ConvTranspose node of a session. Constant weights are packed once; outputs are written in place."""

import contextvars
import threading
from typing import Any, NamedTuple

import numpy as np

from .._base import activation as _activation
from .._call import onnx_rules
from .._run import config
from .._run.addition import Addition, Slopes
from .._run.checksum import checksum
from . import _differences, _host, _inputs, _model, _parameters

SHAPES = 64  # input shapes for which a node keeps the output shape


class Packed(NamedTuple):
    """An operator with packed weights, and the slopes of a PRelu behind it."""

    operator: Any
    slopes: Slopes | None
    is_fused: bool  # see `_parameters.Parameters`


class Node:
    """A ConvTranspose node of a session, together with the bias, norm or scale, sum and activation fused with it.

    Parameters
    ----------
    group : _fuse.Group
        What the node computes.
    settings : _provider.Options
        The options of the session's provider.
    order : sequence of str
        Names of the inputs in the order in which ONNX Runtime gives them.
    host_name : str
        Name of the node in ONNX Runtime's profile.
    """

    def __init__(self, group, settings, order, host_name):
        self.group, self.settings, self.host_name = group, settings, host_name
        self.threads, self.count = settings.threads, len(order)
        self.attributes = group.attributes | {"opset": group.opset, "precision": settings.precision}
        place = {name: n for n, name in enumerate(order)}
        self.places = [place.get(name) if name else None for name in group.inputs]
        self.places += [None] * (_inputs.COUNT - len(self.places))
        self.data_index = self.places[_inputs.X]
        added = self.places[_inputs.ADDED]
        self.added_index = 0 if added is None else added + 1  # 0: nothing is added
        self.packed, self.shapes, self.refused = None, {}, None
        self.last_packed = None, None  # (shapes and checksums of a run's parameters, their `Packed`)
        self.runtime_parameters = [
            n for n, at in enumerate(self.places)
            if at is not None and n not in (_inputs.X, _inputs.ADDED) and n not in group.constants
        ]  # fmt: skip
        self.lock, self._sessions = threading.Lock(), {}  # number of nodes before the first of a session -> the session

    def placed(self, given):
        """Return the inputs of a run by the places of `_inputs`, None for those that the node lacks."""
        return [None if at is None else given[at] for at in self.places]

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
        return {**onnx_rules.attributes(weights, **self.attributes), "activation": activation}

    def packed_of(self, inputs, copied=False):
        """Return the `Packed` weights of inputs. ``copied`` is whether convt copied W for them."""
        weights, bias, activation, slopes, is_fused = _parameters.read(self.group, inputs)
        values = self.values(weights, activation) | ({"backend": "tune"} if self.settings.tune else {})
        operator = onnx_rules.operator(weights, bias, values, copied or weights is not inputs[_inputs.W])
        return Packed(operator, slopes, is_fused)

    def current_packed(self, inputs):
        """Return the `Packed` weights of a run's inputs, or None if they are likely to change with every run.

        Constants are packed once. Other parameters in the model are packed again if they changed since the previous run:
        checksums of all elements are compared, because ONNX Runtime does not tell whether memory has changed. Several threads
        may run this at once, so checksums and what is made of their parameters are stored in one assignment.
        """
        if not self.runtime_parameters:
            with self.lock:
                if self.packed is None:
                    self.packed = self.packed_of(inputs)
            return self.packed
        if not self.group.in_model:
            return None
        sums = [(inputs[n].shape, checksum(inputs[n], config.get_num_threads())) for n in self.runtime_parameters]
        last, packed = self.last_packed
        if last != sums:
            copies = [each.copy() if n in self.runtime_parameters else each for n, each in enumerate(inputs)]
            packed = self.packed_of(copies, _inputs.W in self.runtime_parameters)
            self.last_packed = sums, packed
        return packed

    def output_shape(self, inputs):
        """Return the shape of the output for the input arrays of a run."""
        shape = self.shape_before_sum(inputs)
        if not self.added_index:
            return shape
        try:
            return np.broadcast_shapes(shape, inputs[_inputs.ADDED].shape)
        except ValueError:
            raise ValueError(f"an added array: got shape {inputs[_inputs.ADDED].shape}, wanted one that fits {shape}") from None

    def shape_before_sum(self, inputs):
        """Return the shape of the ConvTranspose's own output for the input arrays of a run."""
        key = inputs[0].shape, inputs[1].shape
        shape = self.shapes.get(key)
        if shape is None:
            if len(self.shapes) == SHAPES:
                self.shapes.clear()
            why = _differences.difference(self.group.attributes, key[0], list(key[1][2:]))
            if why is not None:
                raise ValueError(why)
            weights = np.broadcast_to(np.zeros((), inputs[0].dtype), inputs[1].shape)  # W may be quantized
            shape = onnx_rules.operator(weights, None, self.values(weights)).output_shape(inputs[0].shape)
            if 0 in shape[2:]:  # ONNX Runtime refuses empty outputs
                raise ValueError(f"X: got shape {key[0]}, wanted a larger one: the output {shape} has no elements")
            self.shapes[key] = shape
        return shape

    def description(self):
        """Return the input and output shapes that the node computed last for the first time, and the algorithm for them."""
        if not self.shapes:
            return {"in": None, "out": None, "algorithm": None}
        (data, _), out = list(self.shapes.items())[-1]
        packed = self.packed or self.last_packed[1]
        algorithm = "one-shot calls" if packed is None else packed.operator.plan(data).algorithm
        return {"in": data, "out": out, "algorithm": algorithm}

    def compute(self, inputs, out):
        """Compute the output of a run's input arrays into ``out``."""
        if self.threads and self.threads != config.get_num_threads():
            # In a context of its own, because a signal handler may raise before the number of threads is restored.
            contextvars.copy_context().run(self._compute_on_threads, inputs, out)
        else:
            self._compute(inputs, out)

    def _compute_on_threads(self, inputs, out):
        with config.num_threads(self.threads):
            self._compute(inputs, out)

    def _compute(self, inputs, out):
        shape, added, packed = self.shape_before_sum(inputs), inputs[_inputs.ADDED], self.current_packed(inputs)
        parameters = _parameters.read(self.group, inputs) if packed is None or out.shape != shape else None
        if added is not None and added.shape != out.shape:
            added = np.broadcast_to(added, out.shape)
        slopes = (packed or parameters).slopes
        if not (packed or parameters).is_fused:
            convolved = np.empty(shape, out.dtype)
            self._convolve(inputs[0], packed, parameters, convolved)
            out[...] = self._run_onnxruntime(inputs, convolved)
            return
        if out.shape == shape:
            self._convolve(inputs[0], packed, parameters, out, added)
        else:  # the sum broadcasts the output of the ConvTranspose, which is rare
            convolved = np.empty(shape, out.dtype)
            self._convolve(inputs[0], None, parameters._replace(activation=None), convolved)
            out[...] = convolved
            activation = _activation.parse(parameters.activation)
            Addition(out.dtype.name, activation).run(out, np.ascontiguousarray(added), config.get_num_threads())
        if slopes is not None:
            slopes.run(out.reshape(-1, *out.shape[1 - len(shape) :]), config.get_num_threads())

    def _convolve(self, data, packed, parameters, out, added=None):
        """Compute an output with packed weights or, if these are None, with `Parameters`."""
        if packed is not None:
            packed.operator(data, out, add=added)
        else:
            weights, bias, activation, _, _ = parameters
            onnx_rules.compute(data, weights, bias, self.values(weights, activation), out, added)

    def compute_with_onnxruntime(self, error, inputs):
        """Compute the output with ONNX Runtime for input arrays that convt refused with ``error``.

        Raise ``error`` if it comes from a signal handler, or if ONNX Runtime has no operator for such a node. Raise ONNX
        Runtime's error if it refuses the inputs, too.
        """
        if _host.is_foreign(error):
            raise error
        self.refused = tuple(each.shape for each in inputs[:2]), f"{type(error).__name__}: {error}"
        try:
            return self._run_onnxruntime(inputs)
        except _model.Unknown:
            raise error from None

    def _run_onnxruntime(self, inputs, convolved=None):
        """Compute the output with ONNX Runtime: of all nodes, or from the output of the ConvTranspose of those behind it."""
        feed = {name: value for name, value in zip(self.group.inputs, inputs, strict=False) if name}
        originals = self.group.originals
        if convolved is not None:
            at = next(n for n, each in enumerate(originals) if each.op_type == "ConvTranspose")
            feed[originals[at].outputs[0]], originals = convolved, originals[at + 1 :]
        key = len(originals)
        if key not in self._sessions:
            self._sessions[key] = _model.session(originals, self.group.opset, feed, self.threads)
        session = self._sessions[key]
        return session.run(None, {each.name: feed[each.name] for each in session.get_inputs()})[0]
