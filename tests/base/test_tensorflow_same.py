"""Tests of what the pages say about TensorFlow's "SAME": when it equals "same_upper", and the arguments to use when it does
not.

TensorFlow defines its transposed convolution as the gradient of its convolution. Here the convolution is a matrix, made from
the convolutions of unit vectors, and its gradient is the transposed matrix. This shares no code with convt and does not need
TensorFlow.
"""

import itertools

import numpy as np
import pytest

import convt
import convt.onnx

STRIDES, KERNELS, SIZES = (1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6, 7)
ALL = list(itertools.product(STRIDES, KERNELS, SIZES))


def convolution(x, w, stride, dilation):
    """Compute TensorFlow's tf.nn.convolution with padding="SAME" in one dimension."""
    size, reach = len(x), (len(w) - 1) * dilation + 1
    outputs = -(-size // stride)
    pads = max((outputs - 1) * stride + reach - size, 0)
    padded = np.concatenate([np.zeros(pads // 2), x, np.zeros(reach)])  # more zeros at the end than are read
    return np.array([sum(w[t] * padded[o * stride + t * dilation] for t in range(len(w))) for o in range(outputs)])


def gradient(y, w, stride, dilation, size):
    """Compute tf.nn.conv_transpose with padding="SAME" and an output of ``size`` in one dimension."""
    matrix = np.array([convolution(unit, w, stride, dilation) for unit in np.eye(size)])
    assert matrix.shape[1] == len(y), "TensorFlow refuses such a size"
    return matrix @ y


def numbers(size, kernel):
    return np.arange(1.0, size + 1), 10.0 ** np.arange(kernel)


def ours(y, w, **attributes):
    return convt.conv_transpose(y.reshape(1, -1, 1), w.reshape(-1, 1, 1), **attributes).ravel()


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("stride", "kernel", "size"), ALL)
def test_it_is_same_upper_where_the_kernel_reaches_as_far_as_the_stride(stride, kernel, size, dilation):
    y, w = numbers(size, kernel)
    want = gradient(y, w, stride, dilation, size * stride)  # the size of Keras for padding="same"
    got = ours(y, w, strides=stride, dilations=dilation, auto_pad="same_upper")
    reach = (kernel - 1) * dilation + 1
    assert (got.shape == want.shape and (got == want).all()) == (reach >= stride)
    added = ours(y, w, strides=stride, dilations=dilation, auto_pad="same_upper", output_padding=max(stride - reach, 0))
    np.testing.assert_array_equal(added, want)


def test_as_many_differ_as_the_page_says():
    differ = []
    for stride, kernel, size in ALL:
        y, w = numbers(size, kernel)
        got, want = ours(y, w, strides=stride, auto_pad="same_upper"), gradient(y, w, stride, 1, size * stride)
        if got.shape != want.shape or (got != want).any():
            differ.append((stride, kernel, size))
    assert len(ALL) == 105 and len(differ) == 21
    y, w = numbers(6, 1)
    assert (2, 1, 6) in differ and ours(y, w, strides=2, auto_pad="same_upper").size == 11
    assert gradient(y, w, 2, 1, 12).size == 12


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("stride", "kernel", "size"), ALL)
def test_it_is_the_same_upper_of_onnx_everywhere(stride, kernel, size, dilation):
    y, w = numbers(size, kernel)
    got = convt.onnx.conv_transpose(
        y.reshape(1, 1, -1), w.reshape(1, 1, -1), strides=[stride], dilations=[dilation], auto_pad="SAME_UPPER"
    )
    np.testing.assert_array_equal(got.ravel(), gradient(y, w, stride, dilation, size * stride))


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("stride", "kernel", "size"), ALL)
def test_every_size_that_tensorflow_allows_has_these_pads(stride, kernel, size, dilation):
    y, w = numbers(size, kernel)
    for output in range(stride * (size - 1) + 1, stride * size + 1):
        total = stride * (size - 1) + (kernel - 1) * dilation + 1 - output
        pads = dict(pads_begin=max(total, 0) // 2, pads_end=max(total, 0) - max(total, 0) // 2, output_padding=max(-total, 0))
        got = ours(y, w, strides=stride, dilations=dilation, **pads)
        np.testing.assert_array_equal(got, gradient(y, w, stride, dilation, output))
