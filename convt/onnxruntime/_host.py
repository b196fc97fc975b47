"""Exceptions in a node: ONNX Runtime computes what convt refuses, and what a signal's handler raises goes to the caller."""

import re
import sys
import threading

import onnx
import onnxruntime

# A thread's number -> what came up in its last node and is no error of convt or ONNX Runtime: the session raises it as it is.
raised = {}

# Errors that pass through the code of others than these come from elsewhere: from a signal's handler.
_LIBRARIES = {"convt", "numpy", "ml_dtypes", "onnx", "onnxruntime", "google", *sys.stdlib_module_names}
_FAIL = 1  # ONNX Runtime's code for errors that are not of another kind
_SAID = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (?:Non-zero status code .*? Status Message: )?(.*)", re.DOTALL)
_INPUTS = ("X", "W", "B", "scale", "shift", "mean", "variance")
_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "Gelu", "leaky_relu": "LeakyRelu"}


class Host:
    """The part of a node that has ONNX Runtime's operators compute what convt refuses.

    `refused` has the shapes of data and weights that were refused last, and why; None for the shapes where all are. A node has
    ``attributes``, ``activation``, ``epsilon``, ``element_type`` and ``threads``.
    """

    refused = host = None

    def refuse(self, error, shapes, given):
        """Note that convt refuses inputs of these shapes, and have ONNX Runtime's operators ready; raise what it can't help."""
        if comes_between(error):
            raise error
        if self.host is None:
            try:
                self.host = self._host(given)
            except Exception as theirs:  # ONNX Runtime has no operator for such a node either
                raise (theirs if comes_between(theirs) else error) from None
        if self.refused is None or self.refused[0] is not None:
            self.refused = shapes, f"{type(error).__name__}: {error}"

    def left(self, error, inputs):
        """The output of a run's arrays, by ONNX Runtime, for the error by which convt refuses them."""
        self.refuse(error, tuple(each.shape for each in inputs[:2]), [each is not None for each in inputs])
        feed = {name: value for name, value in zip(_INPUTS, inputs, strict=False) if value is not None}
        if "B" in feed:
            feed["B"] = feed["B"].reshape(-1)
        return self.host.run(None, feed)[0]

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


def status(error):
    """The code and the text of an error of a node, for ONNX Runtime: its own ones where it raised the error."""
    if comes_between(error):
        raised[threading.get_ident()] = error
        return _FAIL, type(error).__name__.encode()
    said = _SAID.match(str(error))
    code, text = said.groups() if said else (_FAIL, f"{type(error).__name__}: {error}")
    return int(code), text.encode(errors="replace")


def take_raised():
    """Takes the exception of this thread's last node that is to be raised as it is; None if there is none."""
    return raised.pop(threading.get_ident(), None)
