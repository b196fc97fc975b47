"""An ONNX model of one ConvTranspose, for the libraries that read ONNX."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from ..problem import Problem


def weights(problem: Problem) -> dict[str, np.ndarray]:
    """Return the weights by input name: W, and B if there is a bias."""
    return {"W": problem.filter_iox()} | ({"B": problem.bias()} if problem.with_bias else {})


def model(problem: Problem, weights: dict[str, np.ndarray]) -> bytes:
    """Return a model that computes Y from X. The weights are constants in mode prepacked, and inputs after X in one-shot."""
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
    # The oldest opset with this version of the operator, so that all releases of a runtime can read the model.
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=7).SerializeToString()
