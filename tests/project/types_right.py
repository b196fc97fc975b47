"""Correct uses of everything public: mypy and pyright must accept this file, and it runs (test_types.py)."""

import os
import tempfile
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import dask.array as da
import ml_dtypes
import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator
from typing_extensions import assert_type

import convt
import convt.dask
import convt.onnx
import convt.onnxruntime
import convt.openvino
import convt.torch
import convt.tuning

f16: NDArray[np.float16] = np.ones((1, 5, 5, 4), np.float16)
f32: NDArray[np.float32] = np.ones((1, 5, 5, 4), np.float32)
f64: NDArray[np.float64] = np.ones((1, 5, 5, 4), np.float64)
w16: NDArray[np.float16] = np.ones((2, 2, 4, 3), np.float16)
w32: NDArray[np.float32] = np.ones((2, 2, 4, 3), np.float32)
w64: NDArray[np.float64] = np.ones((2, 2, 4, 3), np.float64)
tensor = torch.ones(1, 5, 5, 4)

# The dtype of the data is the dtype of the result, and `out` is returned. The dtype of arrays other than NumPy's is unknown.
assert_type(convt.conv_transpose(f16, w16), NDArray[np.float16])
assert_type(convt.conv_transpose(f32, w32), NDArray[np.float32])
assert_type(convt.conv_transpose(f64, w64, np.ones(3)), NDArray[np.float64])
assert_type(convt.conv_transpose(tensor, w32), NDArray[Any])
bf16: NDArray[Any] = f32.astype(ml_dtypes.bfloat16)
assert_type(convt.conv_transpose(bf16, w32.astype(bf16.dtype)), NDArray[Any])
out = convt.conv_transpose(f32, w32)
assert_type(convt.conv_transpose(f32, w32, out=out), NDArray[np.float32])
assert_type(convt.conv_transpose(tensor, torch.ones(2, 2, 4, 3), out=torch.empty(1, 6, 6, 3)), torch.Tensor)

# Every keyword, with every type of value.
twos: Sequence[int] = [2, 2]
for strides in (2, (2, 2), twos, np.int64(2), np.array([2, 2]), range(2, 4), torch.Size((2, 2))):
    convt.conv_transpose(f32, w32, strides=strides)
convt.conv_transpose(
    f32, w32, None, strides=2, pads_begin=(0, 1), pads_end=np.array([1, 0]), dilations=[1, 1], auto_pad=None, output_padding=1,
    output_shape=None, groups=1, data_format="NXC", filter_format="XIO", activation=None, out=None, backend="native",
    algorithm="direct", precision=None,
)  # fmt: skip
convt.conv_transpose(f32, w32, precision="medium")
convt.conv_transpose(f32, w32, auto_pad="same_upper", output_shape=(5, 5), data_format="channels_last")
convt.conv_transpose(f32, w32, auto_pad="VALID", data_format="NHWC", backend="reference")
convt.conv_transpose(f32, w32, precision="high")
convt.conv_transpose(f32, w32, precision=None)
convt.conv_transpose(f32, w32, activation="relu")
convt.conv_transpose(f32, w32, activation=("relu",))
convt.conv_transpose(f32, w32, activation=("leaky_relu", 0.1))
convt.conv_transpose(f32, w32, activation=("leaky_relu", Fraction(1, 8)))
convt.conv_transpose(f32, w32, activation=("clip", 0, np.float32(6)))
convt.conv_transpose(f32, w32, activation=["clip", 0, 6])

# Operators have the dtype of their filter, whatever the data is.
op = convt.ConvTranspose(w32, np.zeros(3, np.float32), strides=2, backend="tune", algorithm="auto", precision="medium")
assert_type(op, convt.ConvTranspose[np.float32])
assert_type(op(f32), NDArray[np.float32])
assert_type(op(tensor), NDArray[np.float32])
assert_type(op(f32, op(f32)), NDArray[np.float32])
assert_type(op(f32, out=torch.empty(1, 10, 10, 3)), torch.Tensor)
assert_type(convt.ConvTranspose(torch.ones(2, 2, 4, 3)), convt.ConvTranspose[Any])
assert_type(op.output_shape(f32.shape), tuple[int, ...])
plan = op.plan((1, np.int64(5), 5, 4))
assert_type(plan.algorithm, str)
assert_type(plan.threads, int)
assert_type(plan.packed_bytes, int)
assert_type(plan.cycles, dict[str, float])
assert_type(plan.explain(), str)


def halves(operator: convt.ConvTranspose[np.float16]) -> NDArray[np.float16]:
    return operator(f16)


def anything(operator: convt.ConvTranspose, data: NDArray[Any]) -> NDArray[Any]:
    return operator(data)


halves(convt.ConvTranspose(w16))
anything(op, f32)

# Settings of the process.
assert_type(
    convt.resolve((4, 4), (3, 3), strides=2, auto_pad="same_lower"), tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
)
assert_type(convt.resolve(np.array([4]), [3], output_shape=8)[2], tuple[int, ...])
assert_type(convt.show_config(mode="dicts"), dict[str, Any])
assert_type(convt.get_num_threads(), int)
convt.set_num_threads(convt.get_num_threads())
convt.set_num_threads(None)
with convt.num_threads(np.int32(1)):
    assert_type(convt.__version__, str)
convt.clear_caches()
error: type[RuntimeError] = convt.BackendUnavailableError

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "tuning.json")
    assert_type(convt.tuning.save(path), int)
    assert_type(convt.tuning.load(path), convt.tuning.Loaded)
    assert_type(convt.tuning.load(path).taken, int)
    convt.tuning.clear()

# ONNX.
X: NDArray[np.float32] = np.ones((1, 1, 3), np.float32)
W: NDArray[np.float32] = np.ones((1, 1, 3), np.float32)
assert_type(convt.onnx.conv_transpose(X, W, strides=[2], pads=(0, 1), opset=11), NDArray[np.float32])
assert_type(
    convt.onnx.conv_transpose(X, W, auto_pad="SAME_LOWER", strides=[2], group=1, kernel_shape=(3,)), NDArray[np.float32]
)
assert_type(convt.onnx.conv_transpose(torch.ones(1, 1, 3), W, None, dilations=None, output_shape=None), NDArray[Any])
convt.onnx.conv_transpose(X, W, precision="highest")
node = onnx.helper.make_node("ConvTranspose", ["X", "W"], ["Y"], strides=[2])
convt.onnx.Backend.run_node(node, [X, W])
assert_type(convt.onnx.Backend.supports_device("CPU"), bool)
ReferenceEvaluator(node, new_ops=[convt.onnx.ConvTranspose])

# OpenVINO.
assert_type(
    convt.openvino.convolution_backprop_data(X, W, strides=2, pads_begin=[0], pads_end=0, dilations=1, auto_pad="explicit"),
    NDArray[np.float32],
)
assert_type(
    convt.openvino.group_convolution_backprop_data(
        torch.ones(1, 1, 3),
        W[None],
        np.array([7]),
        strides=2,
        pads_begin=0,
        pads_end=0,
        dilations=1,
        output_padding=None,
        precision="high",
    ),
    NDArray[Any],
)

# dask.
# dask has no type annotations for these.
chunked: da.Array = da.from_array(f32)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
lazy = convt.dask.conv_transpose(chunked, w32, strides=2, threads=1, precision="high")  # pyright: ignore[reportUnknownArgumentType]
assert_type(lazy, da.Array)

# PyTorch.
image = torch.ones(1, 4, 5, 5)
assert_type(convt.torch.conv_transpose1d(torch.ones(1, 4, 5), torch.ones(4, 2, 3), stride=2), torch.Tensor)
assert_type(convt.torch.conv_transpose2d(image, torch.ones(4, 2, 3, 3), None, (2, 2), 1, [1, 1], 1, 1), torch.Tensor)
assert_type(convt.torch.conv_transpose3d(image[None], torch.ones(4, 2, 1, 1, 1).transpose(0, 1)[:1]), torch.Tensor)
module: torch.nn.ConvTranspose2d = convt.torch.ConvTranspose2d(4, 2, 3, stride=2)
audio: torch.nn.ConvTranspose1d = convt.torch.ConvTranspose1d(1, 1, 1)
volume: torch.nn.ConvTranspose3d = convt.torch.ConvTranspose3d(1, 1, 1)
exact: torch.nn.ConvTranspose2d = convt.torch.ConvTranspose2d(4, 2, 3, precision="torch")
assert_type(convt.torch.conv_transpose1d(torch.ones(1, 4, 5), torch.ones(4, 2, 3), precision="torch"), torch.Tensor)
model, report = convt.torch.accelerate(torch.nn.Sequential(torch.nn.ConvTranspose2d(4, 2, 3)), precision="torch")
assert_type(convt.torch.streaming(audio, None, stateful=torch.nn.Conv1d, framewise=[torch.nn.Linear]), convt.torch.streaming)
assert_type(model, torch.nn.Sequential)
assert_type(report, convt.torch.Report)
assert_type(report.swapped, tuple[str, ...])
assert_type(report.kept, dict[str, str])
assert_type(convt.torch.restore(model), torch.nn.Sequential)
assert_type(convt.torch.refresh(model), torch.nn.Sequential)
assert_type(convt.torch.refresh(image), torch.Tensor)
frozen: torch.nn.ConvTranspose2d = convt.torch.ConvTranspose2d(4, 2, 3, freeze=True)
assert_type(convt.torch.conv_transpose1d(torch.ones(1, 4, 5), torch.ones(4, 2, 3), freeze=True), torch.Tensor)

# ONNX Runtime.
values = [onnx.helper.make_tensor_value_info(name, 1, (1, 1, None)) for name in "XY"]
graph = onnx.helper.make_graph([node], "g", values[:1], values[1:], [onnx.numpy_helper.from_array(W, "W")])
onnx_model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 22)])
session = convt.onnxruntime.InferenceSession(onnx_model, None, ["CPUExecutionProvider"], precision="medium")
assert_type(session.report, convt.onnxruntime.Report)
assert_type(session.report.packed, tuple[str, ...])
assert_type(session.report.fused, dict[str, tuple[str, ...]])
