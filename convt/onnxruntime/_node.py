"""A ConvTranspose node of a session. Constant weights are packed once; outputs are written in place."""

import contextvars
import json
from typing import Any, NamedTuple

import numpy as np

from .._base import activation as _activation
from .._call import onnx_rules
from .._run import config
from .._run.addition import Addition, Slopes
from .._run.checksum import checksum
from . import _host, _inputs, _parameters, _replaced

SHAPES = 64  # input shapes for which a node keeps the output shape


class Packed(NamedTuple):
    """An operator with packed weights; the other fields are those of `_parameters.Parameters`."""

    operator: Any
    slopes: Slopes | None
    is_fused: bool


class Node(_replaced.Fallback):
    """A ConvTranspose node of a session, together with the bias, norm or scale, sum and activation fused with it.

    Parameters
    ----------
    text : str
        JSON object with these entries. ``session`` and ``node``: key of the session and number of the node. ``threads``: 0 for
        convt's own number. ``attributes``: those of ONNX's ConvTranspose, plus ``opset`` and convt's ``precision``.
        ``activation`` and ``epsilon`` (of the batch norm, 0 for a scale alone), both optional. ``tune``: whether to measure
        algorithms. ``inputs``: names of the inputs (see `_inputs`). ``axes``: [place of a quantized parameter, axis of its
        scales]. ``kinds``: element types by name of the inputs that differ from X. ``shapes``: [place of a parameter, shape in
        the model]. ``constants_in_model``: whether the model contains all parameters, so that runs rarely bring others.
        ``replaced`` and ``biased``: the ONNX nodes that this node replaces, and the value after the ConvTranspose and its bias.
    element_type : int
        The element type of X, from onnx.TensorProto.
    constants : list
        The inputs that the node has; None for those that are not constant.
    """

    def __init__(self, text, element_type, constants):
        super().__init__()
        self.arguments = arguments = json.loads(text)
        self.element_type, self.threads, self.attributes = element_type, arguments["threads"], arguments["attributes"]
        self.names = arguments["inputs"]
        has_sum = len(self.names) > _inputs.ADDED and self.names[_inputs.ADDED]
        self.added = len(_inputs.given(self.names[: _inputs.ADDED])) if has_sum else 0  # its index among the given inputs
        self.packed, self.shapes = None, {}
        self.last_packed = None, None  # (shapes and checksums of a run's parameters, their `Packed`)
        constants = _inputs.placed(self.names, constants)
        self.runtime_parameters = [
            n for n, name in enumerate(self.names) if name and n not in (_inputs.X, _inputs.ADDED) and constants[n] is None
        ]
        nodes = _host.creation(arguments["session"]).nodes
        if not self.runtime_parameters:
            try:
                packed = self.packed_of(constants)
                if not packed.is_fused:
                    self.begin(arguments["biased"])
                self.packed = packed
            except Exception as error:
                nodes[arguments["node"]] = error
                self.refuse(error, None)
        nodes[arguments["node"]] = self

    @property
    def operator(self):
        """The operator that computes all runs of the node, or None."""
        return self.packed.operator if self.packed is not None and self.packed.is_fused else None

    def is_fused(self):
        """Return whether the operators behind the ConvTranspose and its bias are computed with it in the last known run."""
        packed = self.packed or self.last_packed[1]
        return packed is None or packed.is_fused

    def values(self, weights, activation=None):
        """Return the keywords of the node's operator for weights of this shape and dtype."""
        return {**onnx_rules.attributes(weights, **self.attributes), "activation": activation}

    def packed_of(self, inputs, copied=False):
        """Return the `Packed` weights of inputs. ``copied`` is whether convt copied W for them."""
        weights, bias, activation, slopes, is_fused = _parameters.read(self.arguments, inputs)
        values = self.values(weights, activation) | ({"backend": "tune"} if self.arguments["tune"] else {})
        operator = onnx_rules.operator(weights, bias, values, copied or weights is not inputs[_inputs.W])
        return Packed(operator, slopes, is_fused)

    def current_packed(self, inputs):
        """Return the `Packed` weights of a run's inputs. They are new if the parameters changed since the previous run.

        Checksums of all elements are compared, because ONNX Runtime does not tell whether memory has changed. Several threads
        may run this at once, so checksums and what is made of their parameters are stored in one assignment.
        """
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
        if not self.added:
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
            weights = np.broadcast_to(np.zeros((), inputs[0].dtype), inputs[1].shape)  # W may be quantized
            operator = self.packed.operator if self.packed else onnx_rules.operator(weights, None, self.values(weights))
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
        shape, added = self.shape_before_sum(inputs), inputs[_inputs.ADDED]
        packed = self.packed or (self.current_packed(inputs) if self.arguments["constants_in_model"] else None)
        parameters = _parameters.read(self.arguments, inputs) if packed is None or out.shape != shape else None
        if added is not None and added.shape != out.shape:
            added = np.broadcast_to(added, out.shape)
        is_fused, slopes = (packed or parameters).is_fused, (packed or parameters).slopes
        if not is_fused:
            convolved = np.empty(shape, out.dtype)
            self._convolve(inputs[0], packed, parameters, convolved)
            out[...] = self.computed_rest(convolved, inputs)
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
