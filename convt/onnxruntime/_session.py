"""ONNX Runtime's session with convt in it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import onnx
import onnxruntime

from .. import _check
from .._problem import PRECISIONS
from . import _host, _loading, _node, _options

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from .._typing import Precision


class Report(NamedTuple):
    """What computes the ConvTranspose nodes of a session, by their names, or their outputs' where they have none."""

    packed: tuple[str, ...]  # by convt, with weights packed once
    unpacked: tuple[str, ...]  # by convt, with weights that a run brings
    fused: dict[str, tuple[str, ...]]  # name -> what convt computes with it: operators behind it
    kept: dict[str, str]  # by ONNX Runtime, and why
    reason: str = ""  # why the whole model is ONNX Runtime's, or has nothing for convt

    def __str__(self) -> str:
        names = self.packed + self.unpacked
        what = ", ".join(names) or ("none, as " + self.reason if self.reason else "none")
        lines = [f"convt computes {len(names)} ConvTranspose node{'s' * (len(names) != 1)}: {what}"]
        lines += [f"{name}: with the {' and the '.join(behind)} behind it" for name, behind in self.fused.items()]
        lines += [f"{name}: its weights are not constant, and packed in the runs that bring new ones" for name in self.unpacked]
        return "\n".join(lines + [f"{name}: left to ONNX Runtime, as {why}" for name, why in self.kept.items()])


class InferenceSession(onnxruntime.InferenceSession):  # type: ignore[misc]
    """ONNX Runtime's session, whose ConvTranspose nodes are computed by convt.

    The model is rewritten: these nodes become convt's operator, also in subgraphs and functions, and do what an Add
    of a bias, a BatchNormalization and an activation (Relu, LeakyRelu, Tanh, Sigmoid, Gelu) behind them do. Everything else,
    optimisation and memory included, is ONNX Runtime's. Weights that are constants of the optimised model are packed once.
    Tasks run on the session's threads: ``sess_options.intra_op_num_threads`` of them, or convt's own number
    (`convt.set_num_threads`) where that is 0.

    Parameters
    ----------
    path_or_bytes : str, path, bytes or onnx.ModelProto
        The model, at opsets 1 to 22 or later; external data is found beside a path.
    sess_options : onnxruntime.SessionOptions, optional
        They stay as they are: the session has a copy.
    providers, provider_options, **kwargs
        As ``onnxruntime.InferenceSession`` has them. With another provider than the CPU's nothing is rewritten.
    precision : None, "highest", "high" or "medium"
        What convt may take for the nodes in float32: see `convt.conv_transpose`. ONNX Runtime's own operators don't know of it.
    tune : bool
        True measures which algorithm is the fastest for each shape, in the run that has it first, which then takes about a
        second a node. All later sessions use what was measured; `convt.tuning.save` keeps it for other processes.

    Attributes
    ----------
    report : Report
        Which nodes convt computes, and which not and why.
    nodes : dict
        The nodes that convt computes, by name.

    Raises
    ------
    What ``onnxruntime.InferenceSession`` raises, and ValueError for a ``precision`` that is none of these. What convt refuses
    in a run, ONNX Runtime computes; where that has no operator for it, its ``Fail`` has convt's message.

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

    nodes: Mapping[str, _node.Node] = MappingProxyType({})
    _fused: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    _kept: Mapping[str, str] = MappingProxyType({})
    _reason = "ONNX Runtime made the session in a way that convt does not know"
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
            _check.word("precision", precision, PRECISIONS)
        self._precision, self._tune = precision, tune
        if isinstance(path_or_bytes, onnx.ModelProto):
            path_or_bytes = path_or_bytes.SerializeToString()
        super().__init__(path_or_bytes, sess_options, providers, provider_options, **kwargs)

    @property
    def report(self) -> Report:
        """A `Report`: the nodes that convt computes, and the others with the reason."""
        packed, unpacked, kept = [], [], dict(self._kept)
        for name in self._fused:
            node = self.nodes.get(name)
            if node is None:
                kept[name] = "it has no use for it: its output is constant, or not wanted"
                continue
            shapes, why = node.refused or ((), "")
            if shapes is not None:
                (unpacked if node.operator is None else packed).append(name)
            if why:
                kept[name] = f"convt refuses {'it' if shapes is None else f'inputs of shapes {shapes}'}: {why}"
        fused = {name: behind for name, behind in self._fused.items() if behind and name in packed + unpacked}
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
        """Make the session; ONNX Runtime calls this again for other providers."""
        arguments = providers, provider_options, disabled_optimizers
        options = self._sess_options
        try:
            self._create_with_nodes(self._model_path, self._model_bytes, options, arguments)
        except _loading.Left as left:
            self.nodes, self._fused, self._kept, self._reason = {}, {}, left.kept, str(left)
            self._sess, self._sess_options = None, options
            super()._create_inference_session(*arguments)

    def _create_with_nodes(self, path, data, options, arguments):
        """Make the session of the model with convt's nodes; `_loading.Left` where ONNX Runtime gets the model as it is."""
        key, names = f"{id(self):x}", []
        made = _node.sessions[key] = {}
        try:
            model = _loading.prepared(path, data, options, arguments[0], key, self._precision, self._tune)
            names = list(model.fused)
            if options is not None and options.optimized_model_filepath:
                _options.saved(options, data if path is None else path, *arguments)
            with model.given() as (self._model_path, self._model_bytes):
                self._sess_options = model.options
                super()._create_inference_session(*arguments)
            if others := _loading.other_providers(self.get_providers()):
                raise _loading.Left(f"the session has {others[0]}", names)
        except _loading.Left:
            raise
        except Exception as error:
            raise _whose(error, names, made) from None
        finally:
            del _node.sessions[key]
            self._model_path, self._model_bytes = path, data
        if options is not None:
            self._sess_options.optimized_model_filepath = options.optimized_model_filepath
        self.nodes = {name: made[number] for number, name in enumerate(names) if number in made}
        self._fused, self._kept, self._reason = model.fused, model.kept, ""


def _whose(error, names, made):
    """The exception to raise for an error on the way to a session with convt's nodes; `_loading.Left` says who refused."""
    other = _host.take_raised() or error
    if _host.comes_between(other):
        return other
    what = "ONNX Runtime refuses the model with convt's nodes in it" if names else "convt can't make nodes of it"
    reason = f"{what}: {error}"
    for number, node in made.items():
        if isinstance(node, Exception):
            reason = f"convt refuses {names[number]}: {type(node).__name__}: {node}"
    return _loading.Left(reason, names)


def _raising(run, arguments, keywords):
    """Call a session's ``run``, and raise what came up in a node of this thread as it is."""
    if _host.raised:
        _host.take_raised()  # an earlier run left it
    try:
        return run(*arguments, **keywords)
    except Exception:
        other = _host.take_raised()
        if other is None:
            raise
    raise other
