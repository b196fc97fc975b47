"""Wrong calls, one a line: type checkers must report each line marked ``wrong`` and no other (test_types.py)."""

import numpy as np
from numpy.typing import NDArray

import convt
import convt.dask
import convt.onnx
import convt.openvino
import convt.torch
import convt.tuning

x: NDArray[np.float32] = np.ones((1, 5, 5, 4), np.float32)
w: NDArray[np.float32] = np.ones((2, 2, 4, 3), np.float32)
op = convt.ConvTranspose(w)


def calls() -> None:
    convt.conv_transpose([[[1.0]]], w)  # wrong: a list is no array
    convt.conv_transpose(x)  # wrong: no filter
    convt.conv_transpose(x, w, None, 2)  # wrong: keywords only
    convt.conv_transpose(x, w, stride=2)  # wrong: the name is strides
    convt.conv_transpose(x, w, strides=2.0)  # wrong
    convt.conv_transpose(x, w, strides="2")  # wrong
    convt.conv_transpose(x, w, pads_begin=(0.5, 0))  # wrong
    convt.conv_transpose(x, w, dilations={"h": 1})  # wrong
    convt.conv_transpose(x, w, auto_pad="same")  # wrong
    convt.conv_transpose(x, w, auto_pad="explicit")  # wrong: a word of OpenVINO only
    convt.conv_transpose(x, w, groups=None)  # wrong
    convt.conv_transpose(x, w, data_format="NHCW")  # wrong
    convt.conv_transpose(x, w, filter_format="HWIO")  # wrong
    convt.conv_transpose(x, w, activation="relu6")  # wrong
    convt.conv_transpose(x, w, activation="leaky_relu")  # wrong: no slope
    convt.conv_transpose(x, w, activation=("clip", 0.0))  # wrong: only one bound
    convt.conv_transpose(x, w, out=[0.0])  # wrong
    convt.conv_transpose(x, w, backend="tune")  # wrong: for operators only
    convt.conv_transpose(x, w, algorithm="winograd4")  # wrong
    convt.conv_transpose(x, w, precision="low")  # wrong
    convt.conv_transpose(x, w, precision="torch")  # wrong: for convt.torch only
    convt.ConvTranspose(w, precision="tf32")  # wrong
    convt.ConvTranspose(w, out=x)  # wrong: an argument of a call
    convt.ConvTranspose(w, backend="tuned")  # wrong
    op()  # wrong
    op(x, out=None, strides=2)  # wrong
    op.plan(4)  # wrong: must be a shape
    op.output_shape(("a",))  # wrong
    convt.resolve(4, (3, 3))  # wrong: must be sizes
    convt.resolve((4, 4), (3, 3), auto_pad="full")  # wrong
    convt.set_num_threads(1.5)  # wrong
    convt.show_config(mode="json")  # wrong
    convt.tuning.save()  # wrong
    convt.onnx.conv_transpose(x, w, strides=2, groups=2)  # wrong: the name is group
    convt.onnx.conv_transpose(x, w, opset="22")  # wrong
    convt.openvino.convolution_backprop_data(x, w, strides=2, pads_begin=0, pads_end=0)  # wrong: no dilations
    convt.openvino.group_convolution_backprop_data(x, w, strides=2, pads_begin=0, pads_end=0, dilations=1, groups=2)  # wrong
    convt.dask.conv_transpose(x, w)  # wrong: not a dask array
    convt.torch.conv_transpose2d(x, w)  # wrong: not tensors
    convt.torch.accelerate("model")  # wrong
    convt.torch.ConvTranspose2d(1, 1, 1, precision="fast")  # wrong
    convt.transpose(x, w)  # wrong


def results() -> None:
    result = convt.conv_transpose(x, w)
    half: NDArray[np.float16] = result  # wrong: the dtype is float32
    double: NDArray[np.float64] = op(x)  # wrong: the dtype is float32
    other: convt.ConvTranspose[np.float64] = op  # wrong: the dtype is float32
    pads: tuple[int, int] = convt.resolve((4, 4), (3, 3))  # wrong: a tuple of three
    text: str = convt.show_config()  # wrong: returns None
    print(half, double, other, pads, text)
