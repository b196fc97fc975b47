"""Integrations with the onnx package: an operator for its reference evaluator, and a backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import defs, helper
from onnx.backend import base
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .._base import words
from .._call import onnx_rules as dialect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto


class ConvTranspose(OpRun):
    """ONNX's ConvTranspose for the reference evaluator, computed by convt.

    Pass it to ``onnx.reference.ReferenceEvaluator(model, new_ops=[convt.onnx.ConvTranspose])``. It computes
    `convt.onnx.conv_transpose` at the opset that the model imports, and raises the errors of that function. The evaluator wraps
    a TypeError in another TypeError.

    Examples
    --------
    >>> import numpy as np, convt.onnx
    >>> X = np.array([[[1, 2, 3]]], np.float32)
    >>> W = np.array([[[1, 10, 100]]], np.float32)
    >>> convt.onnx.ConvTranspose.eval(X, W, strides=[2]).tolist()
    [[[1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]]]
    """

    op_domain = ""

    def _run(self, X: NDArray[Any], W: NDArray[Any], B: NDArray[Any] | None = None, **attributes: Any) -> tuple[NDArray[Any]]:
        opset = self.run_params["opsets"][self.onnx_node.domain]
        return (dialect.conv_transpose(X, W, B, opset=opset, **attributes),)


class _Evaluator(ReferenceEvaluator):
    """The reference evaluator with convt's operator, also inside functions, to which onnx does not pass ``new_ops``."""

    def __init__(self, *args, new_ops=None, **kwargs):
        super().__init__(*args, new_ops=[ConvTranspose, *(new_ops or ())], **kwargs)


class Backend(base.Backend):
    """An ONNX backend (onnx.backend.base.Backend) on CPUs. convt computes ConvTranspose, and onnx.reference everything else.

    ``prepare(model)`` checks a ModelProto and returns an object whose ``run(inputs)`` computes it. ``run_model(model, inputs)``
    does both. ``run_node(node, inputs)`` computes a single NodeProto, at ``opset_version=`` if given, else at the latest opset
    of the onnx package.

    Inputs are one array, a sequence in the order of the graph's inputs, or a dict by name. The result is a named tuple that
    also accepts output names as keys. The only device is "CPU". Another device, missing inputs, or a sequence of too many
    inputs raise ValueError.

    Examples
    --------
    >>> import numpy as np, onnx, convt.onnx
    >>> node = onnx.helper.make_node("ConvTranspose", ["X", "W"], ["Y"], strides=[2])
    >>> X = np.array([[[1, 2, 3]]], np.float32)
    >>> W = np.array([[[1, 10, 100]]], np.float32)
    >>> convt.onnx.Backend.run_node(node, [X, W])["Y"].tolist()
    [[[1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]]]
    """

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> base.BackendRep:
        _check_device(device)
        super().prepare(model, device, **kwargs)  # checks the model
        return _Prepared(_Evaluator(model))

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        _check_device(device)
        super().run_node(node, inputs, device, outputs_info, **kwargs)  # checks the node
        opset = kwargs.get("opset_version", defs.onnx_opset_version())
        graph = helper.make_graph([node], "run_node", _named(node.input), _named(node.output))
        # Other domains are at version 1, as in an evaluator of a bare node, which does not accept an opset.
        return _Prepared(_Evaluator(graph, opsets={node.domain: 1, "": opset})).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Check whether ``device`` names the CPU: "CPU" or "CPU:0"."""
        return device in ("CPU", "CPU:0")


class _Prepared(base.BackendRep):
    """A model that is ready to run: the result of `Backend.prepare`."""

    def __init__(self, evaluator):
        self._evaluator = evaluator
        # Before IR version 4, the inputs of a graph include its initializers. A dict of inputs may override these.
        self._inputs = [name for name in evaluator.input_names if name not in evaluator.rt_inits_]
        self._output = base.namedtupledict("Outputs", evaluator.output_names)

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Compute the model for an array, a sequence or a dict of inputs, and return a named tuple of outputs."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, dict):
            if len(inputs) != len(self._inputs):
                got = words.count(len(inputs), "value")
                raise ValueError(f"inputs: got {got}, wanted {len(self._inputs)}: {self._inputs}")
            inputs = dict(zip(self._inputs, inputs, strict=True))
        elif not set(self._inputs) <= set(inputs):
            raise ValueError(f"inputs: got {sorted(inputs)}, wanted {self._inputs}")
        return self._output(*self._evaluator.run(None, inputs))


def _named(names):
    return [helper.make_empty_tensor_value_info(name) for name in names if name]  # "" stands for an omitted optional input


def _check_device(device):
    if not Backend.supports_device(device):
        raise ValueError(f"device: got {device!r}, wanted 'CPU'")
