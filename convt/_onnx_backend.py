"""What convt.onnx offers to the onnx package itself: an operator for its reference evaluator, and a backend of both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import defs, helper
from onnx.backend import base
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from . import _onnx as dialect
from . import _words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from onnx import ModelProto, NodeProto


class ConvTranspose(OpRun):
    """ONNX's ConvTranspose by convt: ``onnx.reference.ReferenceEvaluator(model, new_ops=[convt.onnx.ConvTranspose])``.

    Computes what `convt.onnx.conv_transpose` does, at the opset the model imports. Errors are that function's too; the
    evaluator wraps a TypeError in one of its own.

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
    """The reference evaluator with convt's operator, also inside functions, to which new_ops are not handed down."""

    def __init__(self, *args, new_ops=None, **kwargs):
        super().__init__(*args, new_ops=[ConvTranspose, *(new_ops or ())], **kwargs)


class Backend(base.Backend):
    """An ONNX backend on CPUs: ConvTranspose by convt, every other operator by onnx.reference.

    ``prepare(model)`` checks a ModelProto and returns an object whose ``run(inputs)`` computes it; ``run_model`` does
    both at once, and ``run_node`` computes a single NodeProto, at ``opset_version=`` if given. Inputs are an array, a
    sequence in the graph's order, or a dict by name; the result is a tuple that can also be asked by output name. The
    only device is "CPU": ValueError for others, and for too few or too many inputs. See onnx.backend.base.Backend.

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
        # As the evaluator does for a bare node, which can't be told its opset: other domains are at version 1.
        return _Prepared(_Evaluator(graph, opsets={node.domain: 1, "": opset})).run(inputs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether ``device`` names the CPU: "CPU" or "CPU:0"."""
        return device in ("CPU", "CPU:0")


class _Prepared(base.BackendRep):
    def __init__(self, evaluator):
        self._evaluator = evaluator
        # Before IR version 4, initializers are listed among the inputs too; a dict may still replace them.
        self._inputs = [name for name in evaluator.input_names if name not in evaluator.rt_inits_]
        self._output = base.namedtupledict("Outputs", evaluator.output_names)

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """Compute the model: an array, a sequence or a dict of inputs in, a tuple of outputs back."""
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, dict):
            if len(inputs) != len(self._inputs):
                got = _words.count(len(inputs), "value")
                raise ValueError(f"inputs: got {got}, wanted {len(self._inputs)}: {self._inputs}")
            inputs = dict(zip(self._inputs, inputs, strict=True))
        elif not set(self._inputs) <= set(inputs):
            raise ValueError(f"inputs: got {sorted(inputs)}, wanted {self._inputs}")
        return self._output(*self._evaluator.run(None, inputs))


def _named(names):
    return [helper.make_empty_tensor_value_info(name) for name in names if name]  # "" is an optional one left out


def _check_device(device):
    if not Backend.supports_device(device):
        raise ValueError(f"device: got {device!r}, wanted 'CPU'")
