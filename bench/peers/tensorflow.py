"""TensorFlow's transposed convolutions, always in NXC, because its CPU kernels have no other layout.

In mode prepacked, the filter is a constant of the traced function. In mode one-shot, it is an argument. A 1-D problem runs as a
2-D problem of height 1, as TensorFlow's own 1-D function does. TensorFlow supports no pads in 3-D, so the window is cut out of
the full result.
"""

from __future__ import annotations

import os

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from ..problem import Problem, in_layout
from . import Ready, Unsupported

DTYPES = ("f32", "f16", "bf16", "f64")


def version() -> str:
    return tf.__version__


def prepare(problem: Problem, threads: int) -> Ready:
    """Prepare a problem. TensorFlow fixes the number of threads at its first operation, so it cannot change in a process."""
    layer = problem.layer
    if layer.groups > 1 or max(layer.dilations) > 1:
        raise Unsupported("no groups or dilation")
    if threads != tf.config.threading.get_intra_op_parallelism_threads():
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    flat = len(layer.size) == 1

    def lifted(array, axis):
        return np.expand_dims(array, axis) if flat else array

    data = tf.constant(lifted(in_layout(problem.data(), "NXC"), 1))
    filter = tf.constant(lifted(np.ascontiguousarray(np.swapaxes(problem.filter(), -1, -2)), 0))
    bias = problem.bias()
    strides = [1, *[1] * flat, *layer.strides, 1]
    ends = np.subtract(layer.pads_end, layer.output_padding)
    if len(layer.size) == 3:
        if max(layer.output_padding):
            raise Unsupported("no output_padding with three axes")
        size, padding, call = layer.natural, "VALID", tf.nn.conv3d_transpose
        window = tuple(slice(begin, begin + size) for begin, size in zip(layer.pads_begin, layer.output, strict=True))
    elif ends.min() < 0:
        raise Unsupported("no output_padding beyond the pads")
    else:
        size, call, window = layer.output, tf.nn.conv2d_transpose, ()
        padding = [[0, 0], *[[0, 0]] * flat, *np.stack([layer.pads_begin, ends], 1).tolist(), [0, 0]]
    shape = [layer.batch, *[1] * flat, *size, layer.cout]

    def layer_of(data, filter):
        result = call(data, filter, shape, strides, padding)
        result = result[(slice(None), *window)] if window else result
        return result if bias is None else result + bias

    traced = tf.function((lambda data: layer_of(data, filter)) if problem.prepacked else layer_of)
    arguments = [data] if problem.prepacked else [data, filter]

    def nxc(result):
        return result.numpy()[:, 0] if flat else result.numpy()

    how = ["as 2-D"] * flat + ["in NXC"] * (problem.layout != "NXC")
    return Ready(lambda: traced(*arguments), nxc, ", ".join(how))
