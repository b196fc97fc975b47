"""Exceptions in a node: of convt, of ONNX Runtime, and of signal handlers."""

import re
import sys
import threading

# Thread identifier -> an exception from outside convt and ONNX Runtime that was raised in the thread's last node. The session
# raises it unchanged.
foreign_exceptions = {}

# An exception whose traceback has a frame of any other top-level module comes from a signal handler.
_LIBRARIES = {"convt", "numpy", "ml_dtypes", "onnx", "onnxruntime", "google", *sys.stdlib_module_names}
_FAIL = 1  # ONNX Runtime's code for unspecific errors
_MESSAGE = re.compile(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (?:Non-zero status code .*? Status Message: )?(.*)", re.DOTALL)


class StatusError(RuntimeError):
    """A status of ONNX Runtime that is an error; ``args`` are its code and message."""


def is_foreign(error):
    """Check whether an exception comes from a signal handler or asks Python to stop, instead of from convt or ONNX Runtime."""
    if not isinstance(error, Exception):
        return True
    trace = error.__traceback__
    while trace is not None:
        # The frame of a compiled function may lack its module.
        if trace.tb_frame.f_globals.get("__name__", "convt").partition(".")[0] not in _LIBRARIES:
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


def take_foreign_exception():
    """Remove and return the exception in `foreign_exceptions` of this thread, or None."""
    return foreign_exceptions.pop(threading.get_ident(), None) if foreign_exceptions else None
