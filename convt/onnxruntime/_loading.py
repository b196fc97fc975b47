"""Prepares what ONNX Runtime is given in place of a model: the model with convt's nodes, and options of its own."""

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

_CPU = ("CPUExecutionProvider", "AzureExecutionProvider")  # the second one has nothing but operators of its own
_DOMAINS = {  # ONNX Runtime itself has operators of these
    "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc",
    "com.microsoft.experimental", "com.ms.internal.nhwc", "org.pytorch.aten",
}  # fmt: skip
_FOLDER = "session.model_external_initializers_file_folder_path"
_FORMAT = "session.load_model_format"
_SMALL = 1 << 24  # bytes: models with larger tensors go by a file, as ONNX Runtime keeps three copies of what comes as bytes


class Left(Exception):
    """Why a model is left to ONNX Runtime, and its ConvTranspose nodes, each with a reason."""

    def __init__(self, reason, names=(), kept=None):
        super().__init__(reason)
        self.kept = dict.fromkeys(names, reason) if kept is None else kept


class Prepared(NamedTuple):
    """A model with convt's nodes."""

    model: onnx.ModelProto
    source: _file.Source
    options: onnxruntime.SessionOptions
    fused: dict[str, tuple[str, ...]]  # convt's nodes, in the order of their numbers -> operators behind them
    kept: dict[str, str]  # the others, and why

    @contextlib.contextmanager
    def given(self):
        """The model as a path or bytes, which exist inside the block: ``(path, bytes)``, one of which is None."""
        size, pieces = _file.left(self.model), self.source.pieces(self.model)
        with contextlib.ExitStack() as stack:
            try:
                if size <= _SMALL or self.source.external or not os.path.isdir("/dev/fd"):
                    given = None, b"".join(pieces)
                else:
                    file = stack.enter_context(tempfile.TemporaryFile())  # it has no name that could be left behind
                    file.writelines(pieces)
                    file.flush()
                    given = f"/dev/fd/{file.fileno()}", None
            except (OSError, ValueError) as error:
                raise Left(f"its copy for ONNX Runtime can't be made: {error}", self.fused) from None
            yield given


def prepared(path, data, options, providers, key, precision, tune=False):
    """The `Prepared` model of a path or bytes, whose nodes report to the session ``key``; `Left` where convt does nothing."""
    path = None if path is None else os.fsdecode(path)
    source = _read(path, data, options)
    names = _rewrite.names(source.model)
    if not names:
        raise Left("the model has none")
    if others := other_providers(providers, options):
        raise Left(f"the session has {others[0]}", names)
    if domains := _other_domains(source.model):
        raise Left(f"the model has operators of {domains[0]!r}, whose library can't be told from its session options", names)
    copy = _options.copied(options)
    if path is not None and source.external and _config(copy, _FOLDER) is None:
        try:
            copy.add_session_config_entry(_FOLDER, _file.folder(source.model, path))
        except ValueError as error:
            raise Left(str(error), names) from None
    copy.register_custom_ops_library(library.__file__)
    copy.optimized_model_filepath = ""
    model, fused, kept = _rewrite.rewrite(_inferred(source.model), key, copy.intra_op_num_threads, precision, tune)
    if not fused:
        raise Left("ONNX Runtime computes all of them", kept=kept)
    return Prepared(_cleared(model, source.model), source, copy, fused, kept)


def other_providers(providers, options=None):
    """The providers of a session that are not the CPU's."""
    if providers is not None and not isinstance(providers, Sequence):
        return [repr(providers)]  # ONNX Runtime says what is wrong
    wanted = providers or onnxruntime.get_available_providers()
    names = [each[0] if isinstance(each, tuple) and each else each for each in wanted]
    if not providers and _options.has_providers(options):
        names.append("providers in its options")
    return [name for name in names if name not in _CPU]


def _read(path, data, options):
    """The model, as a `_file.Source`."""
    told = _config(options, _FORMAT)
    looks_so = path.endswith(".ort") if path is not None else data[4:8] == b"ORTM"
    if told == "ORT" or (not told and looks_so):
        raise Left("the model is in ONNX Runtime's own format")
    try:
        return _file.Source(path, data)
    except (OSError, DecodeError, ValueError) as error:
        raise Left(f"it can't be read: {error}") from None


def _other_domains(model):
    """Domains of operators that neither ONNX Runtime has nor the model's functions."""
    own = {function.domain for function in model.functions}
    others = {each.domain for part in (model, *model.functions) for each in part.opset_import} - own - _DOMAINS
    used = {node.domain for graph in (model.graph, *model.functions) for node in _scopes.all_nodes(graph)} if others else ()
    return sorted(others.intersection(used))


def _config(options, key):
    """An entry of options; None where there is none."""
    try:
        return None if options is None else options.get_session_config_entry(key)
    except Exception:  # ONNX Runtime's own, for a key that has no entry
        return None


def _inferred(model):
    """A copy of the model with the shapes that can be known."""
    try:
        return onnx.shape_inference.infer_shapes(model)
    except Exception:  # mistakes in the model, of which ONNX Runtime speaks
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy


def _cleared(model, given):
    """Leave out of a model what was inferred, but the shapes behind convt's nodes, which ONNX Runtime can't infer."""
    graph, known = model.graph, {size.dim_param for size in _sizes(given.graph)}
    kept = {each.name for each in given.graph.value_info}
    kept.update(name for node in graph.node if node.domain == "convt" for name in node.output)
    infos = [each for each in graph.value_info if each.name in kept]
    del graph.value_info[:]
    graph.value_info.extend(infos)
    for size in _sizes(graph):
        if size.dim_param not in known:  # a name that the inference made up
            size.ClearField("dim_param")
    return model


def _sizes(graph):
    for each in (*graph.input, *graph.output, *graph.value_info):
        yield from each.type.tensor_type.shape.dim
