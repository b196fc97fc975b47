"""The ONNX Runtime session that runs ConvTranspose nodes with convt, and its report."""

from __future__ import annotations

import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnxruntime

from .._base import check, terminal
from .._base.problem import PRECISIONS
from . import _host, _loading, _options, _replaced

_PATIENCE = 10.0  # seconds to look for the nodes because of which ONNX Runtime refuses a model

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

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


class InferenceSession(onnxruntime.InferenceSession):
    """A drop-in ``onnxruntime.InferenceSession`` that runs ConvTranspose nodes with convt on CPUs.

    convt's operator replaces ConvTranspose nodes, including those in subgraphs and functions. An Add of a constant bias, a
    BatchNormalization, and an activation (Relu, LeakyRelu, PRelu, Elu, Tanh, Sigmoid, Gelu, HardSwish) that follow a node are
    fused with it. ONNX Runtime does everything else, including graph optimisation and memory management. It also keeps the
    nodes for which its results differ from the ONNX specification. Weights that are constants in the optimised model are packed
    once.

    convt runs on the session's threads, ``sess_options.intra_op_num_threads`` of them. If that is 0, convt uses its own number
    (`convt.set_num_threads`).

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model, at any opset from 1 that ONNX Runtime accepts. Nodes may be float32, float64, float16 or bfloat16. External
        data is searched next to the path.
    sess_options : onnxruntime.SessionOptions, optional
        The session uses a copy, so these options do not change.
    providers, provider_options, **kwargs
        The same as for ``onnxruntime.InferenceSession``. If the session uses a provider other than the CPU's,
        the model stays unchanged.
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
        Everything that ``onnxruntime.InferenceSession`` raises. If convt refuses the inputs of a run, ONNX Runtime computes the
        node. If ONNX Runtime has no operator for the node, it raises ``Fail`` with convt's message.

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
    convt computes 1 ConvTranspose node: Y
    """

    nodes: Mapping[str, Node] = MappingProxyType({})
    _fused: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    _kept: Mapping[str, str] = MappingProxyType({})
    _reason = "ONNX Runtime created the session in a way that convt does not support"
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
        if isinstance(path_or_bytes, onnx.ModelProto):
            path_or_bytes = path_or_bytes.SerializeToString()
        super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)

    @property
    def report(self) -> Report:
        """Return a `Report` of the nodes that convt computes and of those left to ONNX Runtime."""
        packed, unpacked, kept = [], [], dict(self._kept)
        for name in self._fused:
            node = self.nodes.get(name)
            if node is None:
                kept[name] = "ONNX Runtime removed it: its output is constant or unused, or its branch is never taken"
                continue
            shapes, why = node.refused or ((), "")
            if shapes is not None:
                (unpacked if node.packed is None else packed).append(name)
            if why:
                kept[name] = f"convt refuses {'it' if shapes is None else f'inputs of shapes {shapes}'}: {why}"
        fused = {
            name: behind for name, behind in self._fused.items()
            if behind and name in packed + unpacked and self.nodes[name].is_fused()
        }  # fmt: skip
        return Report(tuple(packed), tuple(unpacked), fused, kept, self._reason)

    def run(self, *arguments: Any, **keywords: Any) -> Any:
        return _raising(super().run, arguments, keywords)

    def run_with_ort_values(self, *arguments: Any, **keywords: Any) -> Any:
        return _raising(super().run_with_ort_values, arguments, keywords)

    def run_with_iobinding(self, *arguments: Any, **keywords: Any) -> Any:
        return _raising(super().run_with_iobinding, arguments, keywords)

    def run_with_ortvaluevector(self, *arguments: Any, **keywords: Any) -> Any:
        return _raising(super().run_with_ortvaluevector, arguments, keywords)

    def _create_inference_session(self, providers, provider_options, disabled_optimizers=None):
        """Create the session. ONNX Runtime calls this method, and calls it again when providers change."""
        arguments = providers, provider_options, disabled_optimizers
        options = self._sess_options
        try:
            self._create_with_nodes(options, arguments)
        except _loading.NotConverted as left:
            self.nodes, self._fused, self._kept, self._reason = {}, {}, left.kept, str(left)
            self._sess, self._sess_options = None, options
            super()._create_inference_session(*arguments)
            fell_back = isinstance(left, _loading.OtherProviders) and not _loading.other_providers(self.get_providers())
            if fell_back and not _options.has_providers(options):
                arguments = self.get_providers(), [*self.get_provider_options().values()], disabled_optimizers
                left = self._try_with_nodes(options, arguments)
            if isinstance(left, _loading.Refused):
                self._create_with_most_nodes(left, options, arguments)

    def _create_with_most_nodes(self, refused, options, arguments):
        """Create the session again with as many of convt's nodes as ONNX Runtime accepts, after it refused them all together.

        Groups of nodes are tried, and refused groups halved, for `_PATIENCE` seconds. The last accepted session stays.
        """
        why, served, end = dict(refused.kept), [], time.monotonic() + _PATIENCE
        groups = _smaller_groups(list(why), refused)
        while groups and time.monotonic() < end:
            group = groups.pop()
            refused = self._try_with_nodes(options, arguments, {name: why[name] for name in why if name not in served + group})
            if refused is None:
                served += group
            elif isinstance(refused, _loading.Refused):
                why.update({name: refused.kept[name] for name in group if name in refused.kept})
                groups += _smaller_groups(group, refused)
        self._kept = {**self._kept, **{name: reason for name, reason in why.items() if name not in served}}

    def _try_with_nodes(self, options, arguments, left_out=None):
        """Create the session again with convt's nodes, except those in ``left_out``, which maps names to reasons.

        Return None, or a `_loading.NotConverted`. Then the session stays, and a report without nodes gets the new reasons.
        """
        state = vars(self).copy()
        try:
            self._create_with_nodes(options, arguments, left_out)
        except _loading.NotConverted as left:
            vars(self).update(state)
            if not self.nodes:
                self._kept, self._reason = left.kept, str(left)
            return left
        return None

    def _create_with_nodes(self, options, arguments, left_out=None):
        """Create the session with convt's nodes, except those in ``left_out``, or raise `_loading.NotConverted`."""
        key, names, path, data = f"{id(self):x}", [], self._model_path, self._model_bytes
        creation = _host.sessions[key] = _host.Creation()
        try:
            model = _loading.prepared(path, data, options, arguments[0], key, self._precision, self._tune, left_out)
            names = list(model.fused)
            if options is not None and options.optimized_model_filepath:
                _options.saved(options, data if path is None else path, *arguments)
            with model.serialized() as (self._model_path, self._model_bytes):
                self._sess_options = model.options
                super()._create_inference_session(*arguments)
            if other := _host.take_foreign_exception():
                raise other
            if creation.shape_errors:
                raise _loading.Refused("a shape cannot be inferred", names, _culprits(names, creation.shape_errors))
            if others := _loading.other_providers(self.get_providers()):
                raise _loading.OtherProviders(f"the session uses {others[0]}", names)
        except _loading.NotConverted:
            raise
        except Exception as error:
            raise _cause(error, names, creation.nodes) from None
        finally:
            del _host.sessions[key]
            self._model_path, self._model_bytes = path, data
        self._sess_options.enable_mem_reuse = options is None or options.enable_mem_reuse
        if options is not None:
            self._sess_options.optimized_model_filepath = options.optimized_model_filepath
        self._outputs_meta = _replaced.without_names(self._outputs_meta)
        self.nodes = {name: creation.nodes[n] for n, name in enumerate(names) if n in creation.nodes}
        self._fused, self._kept, self._reason = model.fused, model.kept, ""


def _smaller_groups(names, refused):
    """Return the groups of names to try after these were refused together: all but known culprits, or the halves."""
    if refused.culprits:
        groups = [[name for name in names if name not in refused.culprits]]
    else:
        groups = [names[len(names) // 2 :], names[: len(names) // 2]] if len(names) > 1 else []
    return [group for group in groups if group]


def _cause(error, names, made):
    """Return the exception to raise for an error while the session with convt's nodes was created.

    It is the exception of a signal handler if there is one, else a `_loading.NotConverted` with the reason. ``names`` are
    the names of convt's nodes, and ``made`` the nodes of the `_host.Creation`.
    """
    other = _host.take_foreign_exception() or error
    if _host.is_foreign(other):
        return other
    if not names:
        return _loading.NotConverted(f"convt cannot rewrite the model: {error}")
    culprits = _culprits(names, made)
    reason = f"ONNX Runtime refuses the model with convt's nodes: {error}"
    for name, text in culprits.items():
        reason = f"convt refuses {name}: {text}"
    return _loading.Refused(reason, names, culprits)


def _culprits(names, made):
    """Return {name: reason} of the nodes for which a dict of node numbers has an exception."""
    return {names[n]: f"{type(each).__name__}: {each}" for n, each in made.items() if isinstance(each, Exception)}


def _raising(run, arguments, keywords):
    """Call a session's ``run``. If a signal handler raised in a node, raise that exception instead of ONNX Runtime's."""
    if _host.foreign_exceptions:
        _host.take_foreign_exception()  # drop an exception of an earlier run
    try:
        return run(*arguments, **keywords)
    except Exception:
        other = _host.take_foreign_exception()
        if other is None:
            raise
    raise other
