"""A model of one ConvTranspose, for the peers that read ONNX."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ..problem import Problem


def weights(problem: Problem) -> dict[str, np.ndarray]:
    return {"W": problem.filter_iox()} | ({"B": problem.bias()} if problem.with_bias else {})


def model(problem: Problem, weights: dict[str, np.ndarray]) -> bytes:
    """A model that computes Y from X. Prepacked, the weights are constants; one-shot, they are inputs behind X."""
    layer = problem.layer
    shapes = {"X": (layer.batch, layer.cin, *layer.size), "Y": (layer.batch, layer.cout, *layer.output)}
    shapes |= {name: array.shape for name, array in weights.items()}
    info = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    node = helper.make_node(
        "ConvTranspose",
        ["X", *weights],
        ["Y"],
        kernel_shape=layer.kernel,
        strides=layer.strides,
        pads=[*layer.pads_begin, *layer.pads_end],
        dilations=layer.dilations,
        output_padding=layer.output_padding,
        group=layer.groups,
    )
    inputs = ["X"] if problem.prepacked else ["X", *weights]
    constants = [numpy_helper.from_array(array, name) for name, array in weights.items() if name not in inputs]
    graph = helper.make_graph([node], "layer", [info[name] for name in inputs], [info["Y"]], constants)
    # The oldest version that has this operator keeps the model readable for every release of a runtime.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7).SerializeToString()
