"""MNN's CPU backend: an ONNX model of one ConvTranspose, converted by MNN's converter.

In mode prepacked, the weights are constants of the model. In mode one-shot, they are inputs, which MNN packs at each call. A
call of the module computes immediately, even if its input has not changed, and its result can be read without a copy.

The layout is always NCX; `how` names it if the problem has another one. A 1-D problem runs as a 2-D problem of height 1, which
is faster than width 1.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..layers import Layer
from ..problem import Problem, in_layout
from . import Ready, Unsupported, onnx_model

DTYPES = ("f32",)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Suppress what C++ code prints about the CPU and the conversion."""
    kept = {number: os.dup(number) for number in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in kept:
        os.dup2(nowhere, number)
    try:
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


# The converter is in `_tools`. Its wrapper `MNN.tools` is not imported, because that installs a package that sends statistics.
with _silent():
    import _tools
    import MNN


def version() -> str:
    return MNN.version()


def _as_2d(layer: Layer) -> Layer:
    per_axis = {name: 1 for name in ("size", "kernel", "strides", "dilations")}
    per_axis |= {name: 0 for name in ("pads_begin", "pads_end", "output_padding")}
    return replace(layer, **{name: (value, *getattr(layer, name)) for name, value in per_axis.items()})


def _refuse(problem: Problem) -> None:
    """Raise Unsupported for problems on which release 3.6.1 is wrong or crashes."""
    layer = problem.layer
    if not problem.prepacked and 1 < layer.groups != max(layer.cin, layer.cout):
        raise Unsupported("no groups with one-shot weights, unless depthwise")
    if len(layer.size) == 3:
        if not problem.prepacked:
            raise Unsupported("no 3-D with one-shot weights")
        if layer.groups > 1 or layer.dilations[0] > 1 or problem.with_bias:
            raise Unsupported("wrong results in 3-D with groups, bias or a dilated first axis")


def _module(problem: Problem, weights: dict[str, np.ndarray], threads: int):
    expr = MNN.expr
    with _silent(), tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "layer.onnx"), Path(folder, "layer.mnn")
        source.write_bytes(onnx_model.model(problem, weights))
        words = ["--framework", "ONNX", "--modelFile", str(source), "--MNNModel", str(target), "--bizCode", "MNN"]
        _tools.mnnconvert(["mnnconvert", *words])
        return MNN.nn.load_module_from_file(
            str(target),
            ["X"] if problem.prepacked else ["X", *weights],
            ["Y"],
            backend=expr.Backend.CPU,
            precision_mode=expr.PrecisionMode.High,
            memory_mode=expr.MemoryMode.High,  # lower modes use at most four threads
            shape_mutable=False,
            thread_num=threads,
        )


def prepare(problem: Problem, threads: int) -> Ready:
    _refuse(problem)
    shape, flat = problem.layer.result_shape, len(problem.layer.size) == 1
    if flat:
        problem = replace(problem, layer=_as_2d(problem.layer))
    weights = onnx_model.weights(problem)
    module = _module(problem, weights, threads)
    arrays = [in_layout(problem.data(), "NCX"), *(() if problem.prepacked else weights.values())]
    inputs = [MNN.expr.placeholder(list(array.shape), MNN.expr.NCHW) for array in arrays]
    for variable, array in zip(inputs, arrays, strict=True):
        variable.write(array)

    def run():
        (result,) = module.forward(inputs)
        return result

    def nxc(result):
        return np.moveaxis(result.read(), 1, -1).reshape(shape)

    return Ready(run, nxc, ", ".join(["in NCX"] * (problem.layout != "NCX") + ["as 2-D"] * flat))
