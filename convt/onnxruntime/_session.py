"""The ONNX Runtime session that runs ConvTranspose nodes with convt, and its report."""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime
from onnxruntime.capi.onnxruntime_inference_collection import check_and_normalize_provider_args

from .._base import check, terminal
from .._base.problem import PRECISIONS
from . import _host, _provider
from ._registration import get_ep_name, register

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import onnx

    from .._base.typing import Precision
    from ._node import Node


class Report(NamedTuple):
    """The ConvTranspose nodes that convt computes in a session, and those left to ONNX Runtime.

    Nodes are identified by name, or by the name of their output if they have none. ``print(report)`` shows a summary.

    Attributes
    ----------
    packed : tuple of str
        Nodes that convt computes with weights packed once.
    unpacked : tuple of str
        Nodes that convt computes with weights that are not constant.
    fused : dict of str to tuple of str
        Node -> types of the operators that convt computes together with the node, such as ``("Add", "Relu")``.
    kept : dict of str to str
        Node left to ONNX Runtime -> reason. A node that convt computes is here if convt refused inputs of a run.
    reason : str
        The reason why convt computes no node of the model, or "".

    Examples
    --------
    >>> import convt.onnxruntime
    >>> report = convt.onnxruntime.Report(("up",), (), {"up": ("Relu",)}, {"other": "it has a negative pad"})
    >>> print(report)
    convt computes 1 ConvTranspose node: up
    up: fused with Relu
    other: left to ONNX Runtime because it has a negative pad
    """

    packed: tuple[str, ...]
    unpacked: tuple[str, ...]
    fused: dict[str, tuple[str, ...]]
    kept: dict[str, str]
    reason: str = ""

    def __str__(self) -> str:
        names = self.packed + self.unpacked
        what = ", ".join(names) or ("none, because " + self.reason if self.reason else "none")
        lines = [f"convt computes {len(names)} ConvTranspose node{'s' * (len(names) != 1)}: {what}"]
        lines += [f"{name}: fused with {' and '.join(behind)}" for name, behind in self.fused.items()]
        lines += [f"{name}: weights are not constant; each run that brings new ones packs them" for name in self.unpacked]
        for name, why in self.kept.items():
            lines.append(f"{name}: {'some runs are ' if name in names else ''}left to ONNX Runtime because {why}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        counts = {"packed": self.packed, "unpacked": self.unpacked, "fused": self.fused, "kept": self.kept}
        return f"<Report of convt.onnxruntime: {', '.join(f'{len(names)} {what}' for what, names in counts.items())}>"

    def _repr_html_(self) -> str:
        fused = {name: f"fused with {' and '.join(behind)}" for name, behind in self.fused.items()}
        rows = [(name, "convt", fused.get(name, "")) for name in self.packed]
        rows += [(name, "convt", f"weights are not constant {fused.get(name, '')}") for name in self.unpacked]
        rows += [(name, "ONNX Runtime", why) for name, why in self.kept.items()]
        return terminal.in_html(("node", "computed by", "note"), rows or [("", "", str(self))])


def _with_ours(providers, provider_options, given):
    """Return a session's providers and their options with convt's, whose options ``given`` are defaults for the user's.

    Values that ONNX Runtime refuses stay as they are.
    """
    own, cpu = get_ep_name(), "CPUExecutionProvider"
    try:
        named = [each[0] if isinstance(each, tuple) else each for each in providers or ()]
        # All names count as available here, because ONNX Runtime warns of the others when it creates the session.
        names, options = check_and_normalize_provider_args(providers, provider_options, named)
    except Exception:
        return providers, provider_options
    named = dict(zip(names, options, strict=True))
    # ONNX Runtime warns of nodes that the CPU's provider computes beside others, unless it is named.
    if not named.keys() & {*onnxruntime.get_available_providers()} - {own}:
        named.setdefault(cpu, {})
    names = list(named)
    if own not in named:
        names.insert(names.index(cpu) if cpu in named else len(names), own)
    named[own] = given | named.get(own, {})
    return names, [named[name] for name in names]


def _raising(method):
    """Return a method of a session that raises the exception of a signal handler in a node, instead of ONNX Runtime's."""

    @functools.wraps(method)
    def call(*arguments, **keywords):
        _host.take_foreign_exception()  # of an earlier run
        try:
            result = method(*arguments, **keywords)
        except Exception:
            other = _host.take_foreign_exception()
            if other is None:
                raise
        else:
            other = _host.take_foreign_exception()
            if other is None:
                return result
        raise other

    return call


class InferenceSession(onnxruntime.InferenceSession):
    """An ``onnxruntime.InferenceSession`` with convt's execution provider, and a report of what it computes.

    The provider computes ConvTranspose nodes on CPUs, including those in subgraphs and functions. An Add of a constant bias, a
    BatchNormalization, an Add of another value, and an activation that follow a node are fused with it: a PRelu, or one of the
    table "Activations" of the API reference. ONNX Runtime does everything else, and computes the nodes for which its results
    differ from the ONNX specification. Weights that are constants are packed once, in the first run.

    convt runs on the session's threads, ``sess_options.intra_op_num_threads`` of them. If that is 0, convt uses its own number
    (`convt.set_num_threads`).

    Parameters
    ----------
    path_or_bytes, sess_options, providers, provider_options, **kwargs
        The same as for ``onnxruntime.InferenceSession``; the model may also be an ``onnx.ModelProto``. ``providers`` gets
        convt's provider before the CPU's, unless it names it; providers before it have priority.
    precision : None, "highest", "high" or "medium"
        The lowest precision that convt may use for float32 nodes: see `convt.conv_transpose`. It does not affect ONNX Runtime's
        own operators. None means CONVT_PRECISION, or "highest".
    tune : bool
        If True, the first run of each shape measures which algorithm is the fastest. That run takes about a second per node.
        Later sessions reuse the result, and `convt.tuning.save` stores it for other processes.

    Attributes
    ----------
    report : Report
        The nodes that convt computes, and the reasons for leaving others to ONNX Runtime.
    nodes : dict
        The nodes that convt computes, by name.

    Raises
    ------
    ValueError
        ``precision`` is not one of the values above.
    Exception
        Everything that ``onnxruntime.InferenceSession`` raises. An exception of a signal handler leaves a run unchanged.

    Examples
    --------
    >>> import numpy as np, onnx, convt.onnxruntime
    >>> node = onnx.helper.make_node("ConvTranspose", ["X", "W"], ["Y"], strides=[2])
    >>> W = onnx.numpy_helper.from_array(np.array([[[1, 10, 100]]], np.float32), "W")
    >>> X, Y = (onnx.helper.make_tensor_value_info(name, 1, (1, 1, None)) for name in "XY")
    >>> model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [X], [Y], [W]), ir_version=10,
    ...                                opset_imports=[onnx.helper.make_opsetid("", 22)])
    >>> session = convt.onnxruntime.InferenceSession(model.SerializeToString())
    >>> session.run(None, {"X": np.array([[[1, 2, 3]]], np.float32)})[0].tolist()
    [[[1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]]]
    >>> print(session.report)
    convt computes 1 ConvTranspose node: Y
    """

    _provider: _provider.Provider | None = None
    _precision: Precision = None
    _tune = False

    def __init__(
        self, path_or_bytes: str | bytes | os.PathLike[str] | onnx.ModelProto,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
        provider_options: Sequence[dict[Any, Any]] | None = None, *, precision: Precision = None, tune: bool = False,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        if precision is not None:
            check.word("precision", precision, PRECISIONS)
        self._precision, self._tune = precision, tune
        if hasattr(path_or_bytes, "SerializeToString"):
            path_or_bytes = path_or_bytes.SerializeToString()
        super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)

    @property
    def nodes(self) -> Mapping[str, Node]:
        return MappingProxyType(self._provider.in_order() if self._provider else {})

    @property
    def report(self) -> Report:
        """Return a `Report` of the nodes that convt computes and of those left to ONNX Runtime."""
        if not self._provider:
            return Report((), (), {}, {}, "the session options have providers, without convt's")
        nodes, kept = self.nodes, self._provider.kept
        packed = tuple(name for name, node in nodes.items() if node.group.in_model)
        fused = {name: node.group.fused for name, node in nodes.items() if node.group.fused and node.is_fused()}
        kept |= {name: f"convt refuses inputs of shapes {node.refused}" for name, node in nodes.items() if node.refused}
        reason = "all of them are left to ONNX Runtime" if kept else "the model has no ConvTranspose nodes"
        return Report(packed, tuple(name for name in nodes if name not in packed), fused, kept, "" if nodes else reason)

    def _create_inference_session(self, providers, provider_options, disabled_optimizers=None):
        """Create the session. ONNX Runtime calls this method, and calls it again when providers change."""
        register()
        options = self._sess_options or onnxruntime.SessionOptions()
        if options.has_providers() and not providers:
            super()._create_inference_session(providers, provider_options, disabled_optimizers)
            return
        given = {"threads": options.intra_op_num_threads, "precision": self._precision or "", "tune": int(self._tune)}
        if options.optimized_model_filepath:
            given["fuse"] = 0  # ONNX Runtime cannot save nodes that were fused
        try:
            self._create_with(given, providers, provider_options, disabled_optimizers)
        except Exception as error:
            # ONNX Runtime infers shapes again after it fused nodes. It may then refuse a model that declares wrong ones.
            if _host.is_foreign(error) or "ShapeInferenceError" not in str(error) or "fuse" in given:
                raise
            self._create_with(given | {"fuse": 0}, providers, provider_options, disabled_optimizers)

    @_raising
    def _create_with(self, given, providers, provider_options, disabled_optimizers):
        """Create the session with these options of convt's provider."""
        key = f"{id(self):x}"
        arguments = _with_ours(providers, provider_options, given | {"session": key})
        try:
            super()._create_inference_session(*arguments, disabled_optimizers)
        finally:
            self._provider = _provider.sessions.pop(key, None)


for _name in ("run", "run_with_ort_values", "run_with_iobinding", "run_with_ortvaluevector"):
    setattr(InferenceSession, _name, _raising(getattr(onnxruntime.InferenceSession, _name)))
