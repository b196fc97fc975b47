"""A ConvTranspose node of a session: its weights packed once where they are constant, its output computed in place."""

import contextvars
import json
import sys
import threading

import onnx
import onnxruntime

from .. import _config, _norm, _onnx

SHAPES = 64  # of inputs, whose output shapes a node keeps

# The key of a session that is being made -> {number of a node: Node, or the error by which convt refused it}.
sessions = {}
# A thread's number -> what came up in its last node and is not convt's error, for the session to raise as it is.
raised = {}

# Errors that pass through the code of others than these come from elsewhere: from a signal's handler.
_LIBRARIES = {"convt", "numpy", "ml_dtypes", "onnx", "onnxruntime", "google", *sys.stdlib_module_names}
_INPUTS = ("X", "W", "B", "scale", "shift", "mean", "variance")
_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "Gelu", "leaky_relu": "LeakyRelu"}


class Node:
    """What one node of a session computes, with the bias, the batch norm and the activation behind it.

    ``text`` is JSON: ``session`` and ``node``, who it is; ``threads``, 0 for convt's own number; ``attributes``, those of
    ONNX's ConvTranspose, its ``opset`` and convt's ``precision``; ``activation``; ``epsilon`` of a batch norm. ``constants``
    are the inputs behind X, which are W, B and the norm's scale, shift, mean and variance, or fewer: arrays, or None for what a
    run brings or what there is not. ``given`` tells which inputs there are.

    What convt refuses, ONNX Runtime computes, by its own operators: `refused` tells why, by the shapes of the inputs.
    """

    def __init__(self, text, element_type, constants, given):
        told = json.loads(text)
        self.element_type, self.threads, self.attributes = element_type, told["threads"], told["attributes"]
        self.epsilon, self.activation = told.get("epsilon"), told.get("activation")
        self.operator, self.shapes, self.refused, self.host = None, {}, {}, None
        made = sessions.get(told["session"], {})
        if all(value is not None for value, there in zip(constants, given, strict=True) if there):
            try:
                weights, bias = self.weights(constants)
                self.operator = _onnx.operator(weights, bias, self.values(weights))
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
        return _norm.fold(weights, bias, *inputs[2:], self.epsilon, self.attributes.get("group", 1))

    def values(self, weights):
        return {**_onnx.attributes(weights, **self.attributes), "activation": self.activation}

    def output_shape(self, inputs):
        """The shape of the output for the arrays of a run."""
        key = inputs[0].shape, inputs[1].shape
        shape = self.shapes.get(key)
        if shape is None:
            if len(self.shapes) == SHAPES:
                self.shapes.clear()
            operator = self.operator or _onnx.operator(inputs[1], None, self.values(inputs[1]))
            shape = self.shapes[key] = operator.output_shape(inputs[0].shape)
        return shape

    def described(self):
        """The shapes of the last run that had new ones, and the algorithm for them."""
        if not self.shapes:
            return {"in": None, "out": None, "algorithm": None}
        (data, _), out = list(self.shapes.items())[-1]
        algorithm = "weights packed at each run" if self.operator is None else self.operator.plan(data).algorithm
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
        else:
            weights, bias = self.weights(inputs[1:])
            _onnx.compute(inputs[0], weights, bias, self.values(weights), out)

    def refuse(self, error, shapes, given):
        """Note that convt refuses inputs of these shapes, and have ONNX Runtime's operators ready; raise what it can't help."""
        if comes_between(error):
            raise error
        if self.host is None:
            try:
                self.host = self._host(given)
            except Exception as theirs:  # ONNX Runtime has no operator for such a node either
                raise (theirs if comes_between(theirs) else error) from None
        self.refused.setdefault(shapes, f"{type(error).__name__}: {error}")

    def left(self, error, inputs):
        """The output of a run's arrays, by ONNX Runtime, for the error by which convt refuses them."""
        self.refuse(error, tuple(each.shape for each in inputs[:2]), [each is not None for each in inputs])
        feed = {name: value for name, value in zip(_INPUTS, inputs, strict=False) if value is not None}
        if "B" in feed:
            feed["B"] = feed["B"].reshape(-1)
        try:
            return self.host.run(None, feed)[0]
        except Exception as theirs:  # it is what ONNX Runtime says of this run
            raised[threading.get_ident()] = theirs
            raise

    def _host(self, given):
        """ONNX Runtime's session of this node and of those that it computes behind itself."""
        names = [name if there else "" for name, there in zip(_INPUTS, given, strict=False)]
        attributes = {name: value for name, value in self.attributes.items() if name not in ("opset", "precision")}
        nodes = [onnx.helper.make_node("ConvTranspose", names[:3], ["Y"], **attributes)]
        if self.epsilon is not None:
            nodes.append(onnx.helper.make_node("BatchNormalization", ["Y", *names[3:]], ["N"], epsilon=self.epsilon))
        if self.activation is not None:
            name, *alpha = self.activation if isinstance(self.activation, list) else [self.activation]
            words = {"alpha": alpha[0]} if alpha else {}
            nodes.append(onnx.helper.make_node(_ACTIVATIONS[name], [nodes[-1].output[0]], ["A"], **words))
        info = lambda name: onnx.helper.make_tensor_value_info(name, self.element_type, None)  # noqa: E731
        graph = onnx.helper.make_graph(nodes, "node", [info(name) for name in names if name], [info(nodes[-1].output[0])])
        opset = onnx.helper.make_opsetid("", self.attributes["opset"])
        model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[opset])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 4  # the outer session speaks of its errors
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would wait on the outer session's cores
        return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])


def comes_between(error):
    """Whether an exception is no error of convt or ONNX Runtime, but comes from a signal's handler or asks Python to stop."""
    if not isinstance(error, Exception):
        return True
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            return True
        trace = trace.tb_next
    return False


def message(error):
    """The text of an error of a node, for ONNX Runtime."""
    if comes_between(error):
        raised[threading.get_ident()] = error
        return type(error).__name__.encode()
    return f"{type(error).__name__}: {error}".encode(errors="replace")


def take_raised():
    """What came up in this thread's last node and is to be raised as it is; None where nothing did."""
    return raised.pop(threading.get_ident(), None)
