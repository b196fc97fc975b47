"""A ConvTranspose node of a session: its weights packed once where they are constant, its output computed in place."""

import json

import numpy as np

from .. import _config, _onnx

SHAPES = 64  # of inputs, whose output shapes a node keeps

sessions = {}  # key of a session -> what its nodes tell it: {number of the node: Node}


class Node:
    """What one node of a session computes. ``text`` is JSON: ``session`` and ``node``, who it is, ``threads``, 0 for convt's own
    number, and ``attributes`` of ONNX's ConvTranspose; ``constants`` are W and B, or None where a run brings them."""

    def __init__(self, text, element_type, constants):
        given = json.loads(text)
        self.element_type, self.threads, self.attributes = element_type, given["threads"], given["attributes"]
        weights, bias = (*constants, None)[:2]
        self.has_bias = len(constants) > 1
        self.operator, self.shapes, self.met = None, {}, None
        if weights is not None and (bias is not None or not self.has_bias):
            self.operator = _onnx.operator(weights, bias, _onnx.attributes(weights, **self.attributes))
        if given["session"] in sessions:
            sessions[given["session"]][given["node"]] = self

    def output_shape(self, inputs):
        """The shape of the output for the arrays of a run: X, W and B if there is one."""
        self.met = key = inputs[0].shape, inputs[1].shape
        shape = self.shapes.get(key)
        if shape is None:
            if len(self.shapes) == SHAPES:
                self.shapes.clear()
            operator = self.operator
            if operator is None:
                operator = _onnx.operator(inputs[1], None, _onnx.attributes(inputs[1], **self.attributes))
            shape = self.shapes[key] = operator.output_shape(inputs[0].shape)
        return shape

    def compute(self, inputs, out):
        """Write the output of a run's arrays to ``out``."""
        if self.threads and self.threads != _config.get_num_threads():
            with _config.num_threads(self.threads):
                self._compute(inputs, out)
        else:
            self._compute(inputs, out)

    def _compute(self, inputs, out):
        if self.operator is not None:
            self.operator(inputs[0], out)
            return
        X, W, B = (*inputs, None)[:3]
        _onnx.compute(X, W, B, _onnx.attributes(W, **self.attributes), out)
