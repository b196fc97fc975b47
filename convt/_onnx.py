"""The ONNX dialect: attributes renamed and nothing computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import ml_dtypes

from . import _api, _check, _keep, _padding

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._typing import Array, DType, OnnxKeywords

# What errors call the facade's arguments here.
_NAMES = {"data": "X", "filter": "W", "bias": "B", "groups": "group"}


@overload
def conv_transpose(X: NDArray[DType], W: Array, B: Array | None = None, **keywords: Unpack[OnnxKeywords]) -> NDArray[DType]: ...


@overload
def conv_transpose(X: Array, W: Array, B: Array | None = None, **keywords: Unpack[OnnxKeywords]) -> NDArray[Any]: ...


def conv_transpose(
    X, W, B=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None,
    output_shape=None, pads=None, strides=None, opset=22, precision=None,
):  # fmt: skip
    """Transposed convolution of ``X`` with ``W``: ONNX's ConvTranspose.

    Parameters
    ----------
    X : array (N, C, *spatial), rank 3 or more
        float32, float64 or float16, and bfloat16 (ml_dtypes) from opset 22 on.
    W : array (C, M / group, *kernel) of the same dtype
    B : array (M,) of the same dtype, optional
    auto_pad : "NOTSET", "SAME_UPPER", "SAME_LOWER" or "VALID"
        SAME gives ``in * stride`` on every axis; output_padding then moves the alignment and not the size. An odd pixel
        is lost at the end for SAME_UPPER, at the beginning for SAME_LOWER. Excludes non-zero pads.
    strides, dilations, output_padding : one int per spatial axis (or one for all), optional
        output_padding must be less than max(stride, dilation) of its axis.
    pads : all the beginnings, then all the ends (or one int for all), optional
        Output size of an axis:
        ``stride * (in - 1) + output_padding + (k - 1) * dilation + 1 - pads[begin] - pads[end]``.
    output_shape : spatial sizes only, one per axis, optional
        The pads are then computed, whatever ``pads`` says. An odd pixel is lost at the end for SAME_UPPER, else at the
        beginning. May exceed the full size by less than the stride: zero plus bias there.
    kernel_shape : the kernel's sizes, optional; must be W's
    group : int
    opset : int
        The definition in force: 1 for opsets 1 to 10, 11 for 11 to 21, 22 from there on. They differ in dtypes. The
        text of 1 also has the odd pixel of output_shape the other way round, against its own auto_pad; convt follows
        the later texts at every opset, as ONNX Runtime does.
    precision : None, "highest", "high" or "medium"
        How exact float32 has to be: see `convt.conv_transpose`.

    Returns
    -------
    NumPy array (N, M, *output) of X's dtype.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what it got and what was wanted.
    MemoryError
        The output cannot exist in this machine's memory.

    Examples
    --------
    >>> import numpy as np, convt.onnx
    >>> X = np.array([[[1, 2, 3]]], np.float32)
    >>> W = np.array([[[1, 10, 100]]], np.float32)
    >>> convt.onnx.conv_transpose(X, W, output_shape=[4]).tolist()
    [[[12.0, 123.0, 230.0, 300.0]]]
    """
    W = _check.floating("W", W)
    values = attributes(
        W, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, output_padding=output_padding,
        output_shape=output_shape, pads=pads, strides=strides, opset=opset, precision=precision,
    )  # fmt: skip
    return compute(X, W, B, values)


def attributes(
    W, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None, output_shape=None, pads=None,
    strides=None, opset=22, precision=None,
):  # fmt: skip
    """The node's attributes, for a filter of W's shape and dtype, as the facade has them."""
    opset = _check.integer("opset", opset, 1)
    if opset < 22 and W.dtype == ml_dtypes.bfloat16:
        raise TypeError(f"W: got dtype bfloat16 at opset {opset}, wanted float32, float64 or float16 below opset 22")
    rank = W.ndim - 2
    if rank < 1:
        raise ValueError(f"W: got rank {W.ndim} (shape {W.shape}), wanted at least 3, (C, M / group, *kernel)")
    if kernel_shape is not None and _check.integers("kernel_shape", kernel_shape, rank, 0) != W.shape[2:]:
        raise ValueError(f"kernel_shape: got {kernel_shape}, wanted {W.shape[2:]}, the kernel of W")
    pads = _check.integers("pads", _or(pads, 0), 2 * rank, 0, each="two per spatial axis")
    return dict(
        strides=_or(strides, 1), dilations=_or(dilations, 1), pads_begin=pads[:rank], pads_end=pads[rank:], auto_pad=auto_pad,
        output_padding=_or(output_padding, 0), output_shape=output_shape, groups=group, data_format="NCX", filter_format="IOX",
        precision=precision,
    )  # fmt: skip


def compute(X, W, B, values, out=None):
    """The node's output, for `attributes`."""
    with _check.renamed(_NAMES):
        return _api.one_shot(_padding.ONNX, X, W, B, values, tuple(values.values()), out)


def check(W, B, values):
    """Raise what making the node's operator would raise: of W and B only shapes and dtypes are looked at."""
    with _check.renamed(_NAMES):
        _api.parse(W, B, _padding.ONNX, **values)


def operator(W, B, values, copied=False):
    """The node with its weights packed, which it reads in the caller's memory: `convt.ConvTranspose` by ONNX's rules. If W was
    ``copied`` for it, its bytes count as those of packed weights."""
    with _check.renamed(_NAMES):
        weights = _keep.PackedWeights(W.nbytes, W.nbytes if copied else 0)
        return _api.ConvTranspose.borrowing(W, B, _padding.ONNX, weights, **values)


def _or(value, default):
    return default if value is None else value
