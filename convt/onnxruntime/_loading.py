"""Preparation of a model for ONNX Runtime: the model with convt's nodes, and a copy of the session options."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from . import _file, _options, _rewrite, _scopes, library

_CPU = ("CPUExecutionProvider", "AzureExecutionProvider")  # the Azure provider runs only operators of its own domain
_DOMAINS = {  # operator domains built into ONNX Runtime
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc",
    "com.microsoft.experimental", "com.ms.internal.nhwc", "org.pytorch.aten",
}  # fmt: skip
_FOLDER = "session.model_external_initializers_file_folder_path"
_FORMAT = "session.load_model_format"
_SMALL = 1 << 24  # bytes; larger tensors go through a file, because ONNX Runtime keeps three copies of a model given as bytes


class NotConverted(Exception):
    """The reason why a model is left to ONNX Runtime unchanged; ``kept`` is {name of a ConvTranspose node: reason}."""

    def __init__(self, reason, names=(), kept=None):
        super().__init__(reason)
        self.kept = dict.fromkeys(names, reason) if kept is None else kept


class OtherProviders(NotConverted):
    """The reason that a session uses an execution provider that does not run on CPUs."""


class Refused(NotConverted):
    """The reason why ONNX Runtime refuses a model with convt's nodes.

    ``culprits`` maps names of nodes that are known to be refused to reasons.
    """

    def __init__(self, reason, names, culprits):
        super().__init__(reason, names)
        self.kept.update({name: f"convt refuses it: {why}" for name, why in culprits.items()})
        self.culprits = culprits


class Prepared(NamedTuple):
    """A model with convt's nodes, and the session options for it."""

    model: onnx.ModelProto
    source: _file.Source
    options: onnxruntime.SessionOptions
    fused: dict[str, tuple[str, ...]]  # convt's nodes, in the order of their numbers -> operators fused with them
    kept: dict[str, str]  # ConvTranspose nodes left to ONNX Runtime -> reason

    @contextlib.contextmanager
    def serialized(self):
        """Write the model, and yield ``(path, bytes)``, one of which is None. They are valid inside the ``with`` block."""
        size, pieces = _file.source_bytes(self.model), self.source.pieces(self.model)
        with contextlib.ExitStack() as stack:
            try:
                if size <= _SMALL or self.source.external or not os.path.isdir("/dev/fd"):
                    given = None, b"".join(pieces)
                else:
                    file = stack.enter_context(tempfile.TemporaryFile())  # a file without a name, so none can remain
                    file.writelines(pieces)
                    file.flush()
                    given = f"/dev/fd/{file.fileno()}", None
            except (OSError, ValueError) as error:
                raise NotConverted(f"the copy of the model for ONNX Runtime cannot be made: {error}", self.fused) from None
            yield given


def prepared(path, data, options, providers, key, precision, tune=False, left_out=None):
    """Return the `Prepared` model of a path or bytes; raise `NotConverted` if convt computes none of its nodes.

    Kernels created for the model register with `_node.sessions` under ``key``. ``left_out`` maps names of nodes to the reasons
    why convt does not compute them.
    """
    path = None if path is None else os.fsdecode(path)
    source = _read(path, data, options)
    names = _rewrite.names(source.model)
    if not names:
        raise NotConverted("the model has no ConvTranspose nodes")
    if others := other_providers(providers, options):
        raise OtherProviders(f"the session uses {others[0]}", names)
    if domains := _other_domains(source.model):
        reason = f"the model has operators of {min(domains)!r}, whose library cannot be read from session options"
        raise NotConverted(reason, names)
    copy = _options.copied(options)
    if path is not None and source.external and _config(copy, _FOLDER) is None:
        try:
            copy.add_session_config_entry(_FOLDER, _file.data_folder(source.model, path))
        except ValueError as error:
            raise NotConverted(str(error), names) from None
    copy.register_custom_ops_library(library.__file__)
    copy.optimized_model_filepath = ""
    threads, severity = copy.intra_op_num_threads, copy.log_severity_level
    model, fused, kept = _rewrite.rewrite(source.model, key, threads, precision, tune, left_out, severity)
    if not fused:
        raise NotConverted("all of them are left to ONNX Runtime", kept=kept)
    if _rewrite.may_enlarge(model):
        copy.enable_mem_reuse = False
    return Prepared(model, source, copy, fused, kept)


def other_providers(providers, options=None):
    """Return the execution providers of a session that do not run on CPUs, of those that ONNX Runtime was built with.

    ONNX Runtime warns of the others and does without them.
    """
    if providers is not None and not isinstance(providers, Sequence):
        return [repr(providers)]  # ONNX Runtime reports the error
    if not providers and _options.has_providers(options):
        return ["providers set in its options"]
    names = [each[0] if isinstance(each, tuple) and each else each for each in providers or ()]
    return [name for name in names if name in onnxruntime.get_available_providers() and name not in _CPU]


def _read(path, data, options):
    """Read the model as a `_file.Source`; raise `NotConverted` if it is in the ORT format or cannot be read."""
    declared = _config(options, _FORMAT)
    has_ort_format = path.endswith(".ort") if path is not None else data[4:8] == b"ORTM"
    if declared == "ORT" or (not declared and has_ort_format):
        raise NotConverted("the model is in ONNX Runtime's own format (ORT)")
    try:
        return _file.Source(path, data)
    except (OSError, DecodeError, ValueError) as error:
        raise NotConverted(f"the model cannot be read: {error}") from None


def _other_domains(model):
    """Return the domains of operators that are neither built into ONNX Runtime nor functions of the model."""
    own = {function.domain for function in model.functions}
    others = {each.domain for part in (model, *model.functions) for each in part.opset_import} - own - _DOMAINS
    used = {node.domain for graph in (model.graph, *model.functions) for node in _scopes.all_nodes(graph)} if others else ()
    return others.intersection(used)


def _config(options, key):
    """Return a configuration entry of session options, or None."""
    try:
        return None if options is None else options.get_session_config_entry(key)
    except Exception:  # ONNX Runtime raises for a key without an entry
        return None
