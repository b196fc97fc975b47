"""ONNX Runtime's session with convt in it."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnxruntime
from google.protobuf.message import DecodeError

from .. import _check
from .._problem import PRECISIONS
from . import _node, _rewrite, library

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._typing import Precision

_CPU = "CPUExecutionProvider"
_FOLDER = "session.model_external_initializers_file_folder_path"
_registered = weakref.WeakSet()  # session options that have the library: ONNX Runtime refuses it twice


class Report(NamedTuple):
    """What computes the ConvTranspose nodes of a session, by their names, or their outputs' where they have none."""

    packed: tuple[str, ...]  # by convt, with weights packed once
    unpacked: tuple[str, ...]  # by convt, with weights that a run brings
    fused: dict[str, tuple[str, ...]]  # name -> what convt computes with it: operators behind it
    kept: dict[str, str]  # by ONNX Runtime, and why

    def __str__(self) -> str:
        names = self.packed + self.unpacked
        lines = [f"convt computes {len(names)} ConvTranspose nodes: {', '.join(names) or 'none'}"]
        lines += [f"{name}: with the {' and the '.join(behind)} behind it" for name, behind in self.fused.items()]
        lines += [f"{name}: its weights are not constant, and packed in the runs that bring new ones" for name in self.unpacked]
        return "\n".join(lines + [f"{name}: left to ONNX Runtime, as {why}" for name, why in self.kept.items()])


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """ONNX Runtime's session, whose ConvTranspose nodes are computed by convt.

    The model is rewritten in memory: these nodes become convt's operator, also in subgraphs and functions, and do what an Add
    of a bias, a BatchNormalization and an activation (Relu, LeakyRelu, Tanh, Sigmoid, Gelu) behind them do. Everything else,
    optimisation and memory included, is ONNX Runtime's. Weights that are constants of the optimised model are packed once.
    Tasks run on the session's threads: ``sess_options.intra_op_num_threads`` of them, or convt's own number
    (`convt.set_num_threads`) where that is 0.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model, at opsets 1 to 22 or later; external data is found beside a path.
    sess_options : onnxruntime.SessionOptions, optional
        convt's library of operators is registered in them.
    providers, provider_options, **kwargs
        As ``onnxruntime.InferenceSession`` has them. With another provider than the CPU's nothing is rewritten.
    precision : None, "highest", "high" or "medium"
        What convt may take for the nodes in float32: see `convt.conv_transpose`. ONNX Runtime's own operators don't know of it.

    Attributes
    ----------
    report : Report
        Which nodes convt computes, and which not and why.

    Raises
    ------
    What ``onnxruntime.InferenceSession`` raises, and ValueError for a ``precision`` that is none of these. In a run, what convt
    refuses is ONNX Runtime's ``Fail``, with convt's message.

    Examples
    --------
    >>> import numpy as np, onnx, convt.onnxruntime
    >>> node = onnx.helper.make_node("ConvTranspose", ["X", "W"], ["Y"], strides=[2])
    >>> W = onnx.numpy_helper.from_array(np.array([[[1, 10, 100]]], np.float32), "W")
    >>> X, Y = (onnx.helper.make_tensor_value_info(name, 1, (1, 1, None)) for name in "XY")
    >>> model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [X], [Y], [W]), ir_version=10,
    ...                                opset_imports=[onnx.helper.make_opsetid("", 22)])
    >>> session = convt.onnxruntime.InferenceSession(model)
    >>> session.run(None, {"X": np.array([[[1, 2, 3]]], np.float32)})[0].tolist()
    [[[1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]]]
    >>> print(session.report)
    convt computes 1 ConvTranspose nodes: Y
    """

    report: Report
    nodes: dict[str, _node.Node]

    def __init__(
        self, path_or_bytes: str | bytes | os.PathLike[str] | onnx.ModelProto,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None, *, precision: Precision = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        if precision is not None:
            _check.word("precision", precision, PRECISIONS)
        model, folder = _read(path_or_bytes)
        if isinstance(path_or_bytes, onnx.ModelProto):
            path_or_bytes = model.SerializeToString()
        self.nodes = {}  # name -> _node.Node
        plain = lambda: super(InferenceSession, self).__init__(  # noqa: E731
            path_or_bytes, sess_options, providers, provider_options, **kwargs
        )
        names = [each if isinstance(each, str) else each[0] for each in providers or ()]
        others = [name for name in names if name != _CPU]
        if model is None or others:
            plain()
            why = f"the session has {others[0]}" if others else ""
            self.report = Report((), (), {}, dict.fromkeys(_names(model), why))
            return
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        key = f"{id(self):x}"
        rewritten = _rewrite.rewrite(_inferred(model), key, options.intra_op_num_threads, precision)
        if not rewritten.fused:
            plain()
            self.report = Report((), (), {}, rewritten.kept)
            return
        if options not in _registered:
            options.register_custom_ops_library(library.__file__)
            _registered.add(options)
        if folder is not None and not _has(options, _FOLDER):
            options.add_session_config_entry(_FOLDER, folder)
        made = _node.sessions[key] = {}
        try:
            super().__init__(rewritten.model.SerializeToString(), options, providers, provider_options, **kwargs)
        except Exception as error:
            plain()  # which raises where ONNX Runtime has no use for the model either
            refused = dict.fromkeys(rewritten.fused, f"convt refuses the model: {error}")
            self.report = Report((), (), {}, rewritten.kept | refused)
            return
        finally:
            del _node.sessions[key]
        self.nodes = {name: made[number] for number, name in enumerate(rewritten.fused) if number in made}
        self.report = _reported(rewritten, made)


def _reported(rewritten, made):
    packed, unpacked, kept = [], [], dict(rewritten.kept)
    for number, name in enumerate(rewritten.fused):
        if number not in made:
            kept[name] = "it has no use for it: its output is constant, or not wanted"
        else:
            (unpacked if made[number].operator is None else packed).append(name)
    fused = {name: behind for name, behind in rewritten.fused.items() if behind and name not in kept}
    return Report(tuple(packed), tuple(unpacked), fused, kept)


def _read(given):
    """``(ModelProto, folder of its external data)``; None for a model that is not ONNX's own (ONNX Runtime's format)."""
    if isinstance(given, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(given)
        return copy, None
    try:
        if isinstance(given, (str, os.PathLike)):
            return onnx.load(os.fspath(given), load_external_data=False), os.path.dirname(os.path.abspath(os.fspath(given)))
        return onnx.load_from_string(bytes(given)), None
    except (OSError, DecodeError, TypeError, ValueError):
        return None, None  # ONNX Runtime says what is wrong


def _inferred(model):
    """The model with the shapes that can be known, which are lost behind an operator that is not ONNX's own."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # a model over 2 GiB, or mistakes, of which ONNX Runtime speaks
        return model
    known = {size.dim_param for size in _sizes(model.graph)}
    for size in _sizes(inferred.graph):
        if size.dim_param not in known:  # a name that the inference made up
            size.ClearField("dim_param")
    return inferred


def _sizes(graph):
    for each in (*graph.input, *graph.output, *graph.value_info):
        yield from each.type.tensor_type.shape.dim


def _names(model):
    return [] if model is None else _rewrite.names(model)


def _has(options, key):
    try:
        return bool(options.get_session_config_entry(key))
    except Exception:
        return False
