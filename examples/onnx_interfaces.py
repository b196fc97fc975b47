"""An ONNX model run through each ONNX integration of convt: ``python examples/onnx_interfaces.py [FOLDER]``.

The model has two nodes: a ConvTranspose that enlarges an elevation map by a factor of 4 on each side by bilinear interpolation,
and a Clip. The map is from matplotlib's sample data. The program computes the model in four ways: with
`convt.onnx.conv_transpose` and NumPy's clip, with the backend `convt.onnx.Backend`, with the reference evaluator of the onnx
package and `convt.onnx.ConvTranspose`, and with `convt.onnxruntime.InferenceSession`. It compares each result with that of ONNX
Runtime alone and writes a shaded relief of part of the enlarged map to FOLDER/onnx_interfaces.png. It needs
``pip install -e ".[onnxruntime,bench]"``.
"""

import sys
from pathlib import Path

import matplotlib.cbook
import matplotlib.colors
import matplotlib.image
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import convt.onnx
import convt.onnxruntime

FACTOR = 4


def heights():
    """Return the elevation map in metres, (1, 1, height, width)."""
    with matplotlib.cbook.get_sample_data("jacksboro_fault_dem.npz") as file:
        return file["elevation"].astype(np.float32)[None, None]


def tents():
    """Return the tent filter of bilinear interpolation in ONNX's order, (1, 1, kernel, kernel)."""
    tent = 1 - abs((np.arange(2 * FACTOR) - FACTOR + 0.5) / FACTOR)
    return np.outer(tent, tent).astype(np.float32)[None, None]


def model(filter, most):
    """Return the ModelProto: ConvTranspose with ``filter``, then Clip between 0 and ``most``."""
    nodes = [
        helper.make_node("ConvTranspose", ["heights", "filter"], ["large"], strides=[FACTOR] * 2, auto_pad="SAME_UPPER"),
        helper.make_node("Clip", ["large", "least", "most"], ["enlarged"]),
    ]
    values = {"filter": filter, "least": np.float32(0), "most": np.float32(most)}
    tensor = lambda name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1, None, None])  # noqa: E731
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "enlarge", [tensor("heights")], [tensor("enlarged")], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def results(filter, data):
    """Return the result of each integration, and of ONNX Runtime alone, by name."""
    made, most = model(filter, data.max()), data.max()
    one_node = convt.onnx.conv_transpose(data, filter, strides=[FACTOR] * 2, auto_pad="SAME_UPPER", opset=22)
    session = convt.onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    alone = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return {
        "convt.onnx.conv_transpose": np.clip(one_node, 0, most),
        "convt.onnx.Backend": convt.onnx.Backend.run_model(made, [data])["enlarged"],
        "ReferenceEvaluator with convt.onnx.ConvTranspose": ReferenceEvaluator(made, new_ops=[convt.onnx.ConvTranspose]).run(
            None, {"heights": data}
        )[0],
        "convt.onnxruntime.InferenceSession": session.run(None, {"heights": data})[0],
        "onnxruntime.InferenceSession": alone.run(None, {"heights": data})[0],
    }


def main(folder="."):
    data = heights()
    found = results(tents(), data)
    want = found["onnxruntime.InferenceSession"]
    errors = {name: float(abs(result - want).max() / want.max()) for name, result in found.items()}
    for name, error in errors.items():
        print(f"{name}: {found[name].shape}, {error:.1e} of the highest point from ONNX Runtime")
    path = Path(folder) / "onnx_interfaces.png"
    lit = matplotlib.colors.LightSource(azdeg=315, altdeg=45).hillshade(want[0, 0], vert_exag=0.2)
    matplotlib.image.imsave(path, lit[: FACTOR * 200, : FACTOR * 300], cmap="gray")
    return max(errors.values())


if __name__ == "__main__":
    main(*sys.argv[1:])
