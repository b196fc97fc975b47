"""A copy of session options, for a session that needs others than its caller gave."""

import os

import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _host

_GRAPH = onnx.helper.make_graph([], "empty", [], [])
_EMPTY = onnx.helper.make_model(_GRAPH, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()


def copied(options):
    """A copy of session options, or of ONNX Runtime's default ones for None.

    It has everything but the libraries of operators and the providers that were added to them. ONNX Runtime copies the options
    of each session, and shows that copy; so a session is made here, of a model without nodes, and never made ready.
    """
    session = _host.InferenceSession(options or _host.get_default_session_options(), _EMPTY, False, False)
    if options and options.enable_profiling:
        os.remove(session.end_profiling())  # the file was begun with the session
    return session.session_options


def has_providers(options):
    """Whether providers were added to options: older versions of ONNX Runtime add none."""
    return options is not None and hasattr(options, "has_providers") and options.has_providers()


def saved(options, model, providers, provider_options, disabled_optimizers):
    """Let ONNX Runtime save its optimised model where ``options`` say, by a session of its own."""
    options = copied(options)
    options.enable_profiling = False
    words = {"enable_fallback": 0, "disabled_optimizers": disabled_optimizers}
    onnxruntime.InferenceSession(model, options, providers, provider_options, **words)
