"""Copies of session options, because a session must not change the options of its caller."""

import os

import onnx
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as _host

_GRAPH = onnx.helper.make_graph([], "empty", [], [])
_EMPTY = onnx.helper.make_model(_GRAPH, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]).SerializeToString()

SILENT = 4  # severity of a logger that prints nothing


def copied(options):
    """Return a copy of session options, or of ONNX Runtime's defaults for None.

    The copy lacks the operator libraries and providers that were added to the options. ONNX Runtime has no function that copies
    options, but each session exposes its own copy. So this function creates a session of an empty model, but does not
    initialise it.
    """
    session = _host.InferenceSession(options or _host.get_default_session_options(), _EMPTY, False, False)
    if options and options.enable_profiling:
        os.remove(session.end_profiling())  # creating the session started the profile
    return session.session_options


def load(model, severity=SILENT):
    """Let ONNX Runtime load a model, which checks its nodes, without creating kernels. Raise its error for an invalid model.

    Data of initializers may be missing. Of functions, only the calls are checked. Return the model's outputs, with the shapes
    that ONNX Runtime infers.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = severity, 1
    return _host.InferenceSession(options, model.SerializeToString(), False, False).outputs_meta


def has_providers(options):
    """Check whether providers were added to session options. Older versions of ONNX Runtime cannot add any."""
    return options is not None and hasattr(options, "has_providers") and options.has_providers()


def saved(options, model, providers, provider_options, disabled_optimizers):
    """Save ONNX Runtime's optimised version of the original model to ``options.optimized_model_filepath``."""
    options = copied(options)
    options.enable_profiling = False
    words = {"enable_fallback": 0, "disabled_optimizers": disabled_optimizers}
    onnxruntime.InferenceSession(model, options, providers, provider_options, **words)
