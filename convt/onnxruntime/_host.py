"""Exceptions in a node: ONNX Runtime computes calls that convt refuses; exceptions of signal handlers reach the caller."""

import re
import sys
import threading

import onnx
import onnxruntime

# Thread identifier -> an exception from outside convt and ONNX Runtime that was raised in the thread's last node. The session
# raises it unchanged.
foreign_exceptions = {}

# An exception whose traceback has a frame of any other top-level module comes from a signal handler.
_LIBRARIES = {"convt", "numpy", "ml_dtypes", "onnx", "onnxruntime", "google", *sys.stdlib_module_names}
_FAIL = 1  # ONNX Runtime's code for unspecific errors
_MESSAGE = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (?:Non-zero status code .*? Status Message: )?(.*)", re.DOTALL)
_INPUTS = ("X", "W", "B", "scale", "shift", "mean", "variance", "added")
_ACTIVATIONS = {
    "relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "gelu": "Gelu", "leaky_relu": "LeakyRelu", "elu": "Elu",
    "hard_swish": "HardSwish",
}  # fmt: skip


class Host:
    """The base class of a node. For calls that convt refuses, it runs ONNX Runtime's operators instead.

    ``refused`` is None or ``(shapes, reason)``: the shapes of X and W that convt refused last; ``shapes`` is None if convt
    refuses all shapes. ``fallback`` is ONNX Runtime's session for such calls, or None before the first one. A subclass sets
    ``attributes``, ``activation``, ``slope_values``, ``epsilon``, ``element_type`` and ``threads``.
    """

    refused = fallback = None

    def refuse(self, error, shapes, given):
        """Record that convt refuses inputs of these shapes with ``error``, and create the ONNX Runtime session for them.

        ``shapes`` is None if convt refuses all shapes; ``given`` tells for each input whether the node has it. Raise ``error``
        if it comes from a signal handler, or if ONNX Runtime refuses such a node too.
        """
        if is_foreign(error):
            raise error
        if self.fallback is None:
            try:
                self.fallback = self._new_fallback(given)
            except Exception as theirs:  # ONNX Runtime has no operator for such a node
                raise (theirs if is_foreign(theirs) else error) from None
        if self.refused is None or self.refused[0] is not None:
            self.refused = shapes, f"{type(error).__name__}: {error}"

    def compute_with_onnxruntime(self, error, inputs):
        """Compute the output with ONNX Runtime for input arrays that convt refused with ``error``."""
        self.refuse(error, tuple(each.shape for each in inputs[:2]), [each is not None for each in inputs])
        feed = {name: value for name, value in zip(_INPUTS, inputs, strict=False) if value is not None}
        if "B" in feed:
            feed["B"] = feed["B"].reshape(-1)
        return self.fallback.run(None, feed)[0]

    def _new_fallback(self, given):
        """Return an ONNX Runtime session of this node and of the nodes that are fused with it."""
        names = [name if there else "" for name, there in zip(_INPUTS, given, strict=False)]
        attributes = {name: value for name, value in self.attributes.items() if name not in ("opset", "precision")}
        nodes = [onnx.helper.make_node("ConvTranspose", names[:3], ["Y"], **attributes)]
        if self.epsilon is not None:
            nodes += self._norm_nodes(*(*names, "", "", "")[3:7])
        if names[7:]:
            nodes.append(onnx.helper.make_node("Add", [nodes[-1].output[0], names[7]], ["S"]))
        if self.activation is not None:
            name, *alpha = self.activation if isinstance(self.activation, list) else [self.activation]
            words = {"alpha": alpha[0]} if alpha else {}
            nodes.append(onnx.helper.make_node(_ACTIVATIONS[name], [nodes[-1].output[0]], ["A"], **words))
        if self.slope_values is not None:
            shape = len(self.slope_values), *[1] * len(self.attributes["kernel_shape"])
            slopes = onnx.helper.make_tensor("slopes", onnx.TensorProto.FLOAT, shape, self.slope_values)
            nodes.append(onnx.helper.make_node("Constant", [], ["P"], value=slopes))
            nodes.append(onnx.helper.make_node("PRelu", [nodes[-2].output[0], "P"], ["L"]))
        info = lambda name: onnx.helper.make_tensor_value_info(name, self.element_type, None)  # noqa: E731
        graph = onnx.helper.make_graph(nodes, "node", [info(name) for name in names if name], [info(nodes[-1].output[0])])
        opset = onnx.helper.make_opsetid("", self.attributes["opset"])
        model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[opset])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = self.threads, 4  # the outer session logs errors
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would take the outer session's cores
        return onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])

    def _norm_nodes(self, scale, shift, mean, variance):
        """Return the nodes that a batch norm or a scale and shift of "Y" was before it was fused."""
        make = onnx.helper.make_node
        if mean:
            return [make("BatchNormalization", ["Y", scale, shift, mean, variance], ["N"], epsilon=self.epsilon)]
        return [make("Mul", ["Y", scale], ["M"]), *([make("Add", ["M", shift], ["N"])] if shift else [])]


def is_foreign(error):
    """Check whether an exception comes from a signal handler or asks Python to stop, instead of from convt or ONNX Runtime."""
    if not isinstance(error, Exception):
        return True
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            return True
        trace = trace.tb_next
    return False


def status(error):
    """Return ONNX Runtime's status code and message for an exception in a node.

    An error that ONNX Runtime raised keeps its code and message. An exception for which `is_foreign` is true is stored in
    `foreign_exceptions`.
    """
    if is_foreign(error):
        foreign_exceptions[threading.get_ident()] = error
        return _FAIL, type(error).__name__.encode()
    match = _MESSAGE.match(str(error))
    code, text = match.groups() if match else (_FAIL, f"{type(error).__name__}: {error}")
    return int(code), text.encode(errors="replace")


def take_foreign_exception():
    """Remove and return the exception in `foreign_exceptions` of this thread, or None."""
    return foreign_exceptions.pop(threading.get_ident(), None)
