"""Exceptions in a node: ONNX Runtime computes calls that convt refuses; exceptions of signal handlers reach the caller."""

import re
import sys
import threading

from . import _replaced

# Thread identifier -> an exception from outside convt and ONNX Runtime that was raised in the thread's last node. The session
# raises it unchanged.
foreign_exceptions = {}

# Key of a session that is being created -> {number of a node: the exception that was raised when its shape was inferred}.
shape_errors = {}

# An exception whose traceback has a frame of any other top-level module comes from a signal handler.
_LIBRARIES = {"convt", "numpy", "ml_dtypes", "onnx", "onnxruntime", "google", *sys.stdlib_module_names}
_FAIL = 1  # ONNX Runtime's code for unspecific errors
_MESSAGE = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (?:Non-zero status code .*? Status Message: )?(.*)", re.DOTALL)


class StatusError(RuntimeError):
    """A status of ONNX Runtime that is an error; ``args`` are its code and message."""


class Host:
    """The base class of a node. For calls that convt refuses, it runs ONNX Runtime's operators instead.

    ``refused`` is None or ``(shapes, reason)``: the shapes of X and W that convt refused last; ``shapes`` is None if convt
    refuses all shapes. ``fallback`` is ONNX Runtime's session for such calls, and ``rest`` that for the operators that are not
    fused; both are None before they are needed. A subclass sets ``arguments``, ``element_type`` and ``threads``.
    """

    refused = fallback = rest = None

    def refuse(self, error, shapes):
        """Record that convt refuses inputs of these shapes with ``error``, and create the ONNX Runtime session for them.

        ``shapes`` is None if convt refuses all shapes. Raise ``error`` if it comes from a signal handler, or if ONNX Runtime
        refuses such a node too.
        """
        if is_foreign(error):
            raise error
        if self.fallback is None:
            try:
                self.fallback = _replaced.session(self.arguments, self.element_type, self.threads)
            except Exception as theirs:  # ONNX Runtime has no operator for such a node
                raise (theirs if is_foreign(theirs) else error) from None
        if self.refused is None or self.refused[0] is not None:
            self.refused = shapes, f"{type(error).__name__}: {error}"

    def compute_with_onnxruntime(self, error, inputs):
        """Compute the output with ONNX Runtime for input arrays that convt refused with ``error``."""
        self.refuse(error, tuple(each.shape for each in inputs[:2]))
        return self._run(self.fallback, inputs)

    def begin_rest(self):
        """Create ONNX Runtime's session of the operators behind the ConvTranspose and its bias."""
        if self.rest is None:
            self.rest = _replaced.session(self.arguments, self.element_type, self.threads, self.arguments["biased"])

    def computed_rest(self, convolved, inputs):
        """Compute a run's output from that of the ConvTranspose and its bias with ONNX Runtime."""
        self.begin_rest()
        return self._run(self.rest, inputs, {self.arguments["biased"]: convolved})

    def _run(self, session, inputs, more=()):
        """Return the output of one of the sessions for a run's inputs."""
        feed = {name: value for name, value in zip(self.arguments["inputs"], inputs, strict=False) if name} | dict(more)
        return session.run(None, {each.name: feed[each.name] for each in session.get_inputs()})[0]


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

    An error of ONNX Runtime keeps its code and message. An exception for which `is_foreign` is true is stored in
    `foreign_exceptions`.
    """
    if is_foreign(error):
        foreign_exceptions[threading.get_ident()] = error
        return _FAIL, type(error).__name__.encode()
    if isinstance(error, StatusError):
        return error.args[0], error.args[1].encode(errors="replace")
    match = _MESSAGE.match(str(error))
    code, text = match.groups() if match else (_FAIL, f"{type(error).__name__}: {error}")
    return int(code), text.encode(errors="replace")


def store_shape_error(error, arguments):
    """Store an exception that was raised while ONNX Runtime asked for the shape of a node with these arguments."""
    if is_foreign(error):
        foreign_exceptions[threading.get_ident()] = error
    elif arguments is not None and arguments["session"] in _replaced.found:
        shape_errors.setdefault(arguments["session"], {})[arguments["node"]] = error


def take_foreign_exception():
    """Remove and return the exception in `foreign_exceptions` of this thread, or None."""
    return foreign_exceptions.pop(threading.get_ident(), None)
