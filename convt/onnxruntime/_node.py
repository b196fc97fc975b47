"""A ConvTranspose node of a session: its weights packed once where they are constant, its output computed in place."""

import contextvars
import json

import numpy as np

from .. import _config, _norm, _onnx
from . import _host

SHAPES = 64  # of inputs, whose output shapes a node keeps
_BITS = {2: np.uint16, 4: np.uint32, 8: np.uint64}  # by the size of an element

# The key of a session that is being made -> {number of a node: Node, or the error by which convt refused it}.
sessions = {}


class Node(_host.Host):
    """What one node of a session computes, with the bias, the batch norm and the activation behind it.

    ``text`` is JSON: ``session`` and ``node``, who it is; ``threads``, 0 for convt's own number; ``attributes``, those of
    ONNX's ConvTranspose, its ``opset`` and convt's ``precision``; ``activation``; ``epsilon`` of a batch norm; ``tune``,
    whether to measure; ``settled``, whether the model holds all inputs behind X, so that a run seldom brings others.
    ``constants`` are the inputs behind X, W, B and the norm's scale, shift, mean and variance, or fewer: arrays, or None for
    what a run brings or what there is not. ``given`` tells which inputs there are.
    """

    def __init__(self, text, element_type, constants, given):
        told = json.loads(text)
        self.element_type, self.threads, self.attributes = element_type, told["threads"], told["attributes"]
        self.epsilon, self.activation = told.get("epsilon"), told.get("activation")
        self.backend = {"backend": "tune"} if told.get("tune") else {}
        self.operator, self.shapes = None, {}
        self.settled, self.kept = told["settled"], (None, None)  # (copies of the arrays behind X of a run, their operator)
        self.brought = [n for n, value in enumerate(constants) if given[n] and value is None]  # numbers behind X
        made = sessions.get(told["session"], {})
        if not self.brought:
            try:
                self.operator = self.operator_of(constants)
            except Exception as error:
                made[told["node"]] = error
                self.refuse(error, None, [True, *given])
        made[told["node"]] = self

    def weights(self, inputs):
        """W and B of the inputs behind X, with the norm in them."""
        weights, bias = (*inputs, None)[:2]
        bias = None if bias is None else bias.reshape(-1)  # of an Add, (M, 1, ...) or (1, M, 1, ...)
        if self.epsilon is None:
            return weights, bias
        with np.errstate(all="ignore"):  # a negative variance gives NaN without a word, as in ONNX Runtime
            return _norm.fold(weights, bias, *inputs[2:], self.epsilon, self.attributes.get("group", 1))

    def values(self, weights):
        return {**_onnx.attributes(weights, **self.attributes), "activation": self.activation}

    def operator_of(self, inputs, copied=False):
        """The operator with the weights of the inputs behind X packed, which may be ``copied`` for it."""
        weights, bias = self.weights(inputs)
        copied = copied or self.epsilon is not None
        return _onnx.operator(weights, bias, self.values(weights) | self.backend, copied)

    def current(self, inputs):
        """The operator of the arrays behind X that a run has, made anew if they are not those of the run before.

        Every element is compared, because ONNX Runtime does not say whether memory has changed. Runs of several threads may
        meet here; each leaves its copies and their operator in one piece.
        """
        copies, operator = self.kept
        if operator is None or not all(_same_bits(copies[n], inputs[n]) for n in self.brought):
            copies = [inputs[n].copy() if n in self.brought else inputs[n] for n in range(len(inputs))]
            operator = self.operator_of(copies, 0 in self.brought)
            self.kept = copies, operator
        return operator

    def output_shape(self, inputs):
        """The shape of the output for the arrays of a run."""
        key = inputs[0].shape, inputs[1].shape
        shape = self.shapes.get(key)
        if shape is None:
            if len(self.shapes) == SHAPES:
                self.shapes.clear()
            operator = self.operator or _onnx.operator(inputs[1], None, self.values(inputs[1]))
            shape = operator.output_shape(inputs[0].shape)
            if 0 in shape[2:]:  # ONNX Runtime refuses it
                raise ValueError(f"X: got shape {key[0]}, whose output {shape} has no pixels, wanted a larger one")
            self.shapes[key] = shape
        return shape

    def described(self):
        """The shapes of the last run that had new ones, and the algorithm for them."""
        if not self.shapes:
            return {"in": None, "out": None, "algorithm": None}
        (data, _), out = list(self.shapes.items())[-1]
        operator = self.operator or self.kept[1]
        algorithm = "weights packed at each run" if operator is None else operator.plan(data).algorithm
        return {"in": data, "out": out, "algorithm": algorithm}

    def compute(self, inputs, out):
        """Write the output of a run's arrays to ``out``."""
        if self.threads and self.threads != _config.get_num_threads():
            # In a context of its own, because a signal may come before the number is set back.
            contextvars.copy_context().run(self._compute_on_threads, inputs, out)
        else:
            self._compute(inputs, out)

    def _compute_on_threads(self, inputs, out):
        with _config.num_threads(self.threads):
            self._compute(inputs, out)

    def _compute(self, inputs, out):
        if self.operator is not None:
            self.operator(inputs[0], out)
        elif self.settled:
            self.current(inputs[1:])(inputs[0], out)
        else:
            weights, bias = self.weights(inputs[1:])
            _onnx.compute(inputs[0], weights, bias, self.values(weights), out)


def _same_bits(a, b):
    bits = _BITS[a.itemsize]
    return a.shape == b.shape and np.array_equal(a.reshape(-1).view(bits), b.reshape(-1).view(bits))
