"""Translation of ONNX ConvTranspose to convt's operator: attributes are renamed, nothing is computed here."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, overload

import ml_dtypes

from .._base import check as _check
from .._base import padding
from .._plan import keep
from . import api
from . import operator as _operator

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from .._base.typing import Array, DType, OnnxKeywords
else:
    from .operator import DType

# Argument names of `convt.conv_transpose` -> names in error messages of this module.
_NAMES = {"data": "X", "filter": "W", "bias": "B", "groups": "group"}


@overload
def conv_transpose(X: NDArray[DType], W: Array, B: Array | None = None, **keywords: Unpack[OnnxKeywords]) -> NDArray[DType]: ...


@overload
def conv_transpose(X: Array, W: Array, B: Array | None = None, **keywords: Unpack[OnnxKeywords]) -> NDArray[Any]: ...


def conv_transpose(
    X, W, B=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None,
    output_shape=None, pads=None, strides=None, opset=22, precision=None,
):  # fmt: skip
    """Compute the transposed convolution of ``X`` with ``W``: ONNX's ConvTranspose-1, -11 or -22.

    Parameters
    ----------
    X : array (N, C, *spatial), rank 3 or more
        float32, float64 or float16; from opset 22 on also bfloat16 (ml_dtypes).
    W : array (C, M / group, *kernel) of the same dtype
    B : array (M,) of the same dtype, optional
    auto_pad : "NOTSET", "SAME_UPPER", "SAME_LOWER" or "VALID"
        SAME gives an output size of ``in * stride`` on every axis; output_padding then changes the alignment, not the size. An
        odd pixel is cut off at the end for SAME_UPPER, and at the beginning for SAME_LOWER. Values other than "NOTSET" exclude
        non-zero pads.
    strides, dilations, output_padding : int or one int per spatial axis, optional
        In output pixels; the defaults are 1, 1 and 0. output_padding must be less than ``max(stride, dilation)`` of its axis.
    pads : int or two ints per spatial axis, optional
        In output pixels: first the beginnings of all axes, then their ends. The default is 0. Output size of an axis:
        ``stride * (in - 1) + output_padding + (k - 1) * dilation + 1 - pads[begin] - pads[end]``.
    output_shape : one int per spatial axis, optional
        The output size, from which the pads are computed; ``pads`` is then ignored. An odd pixel is cut off at the end for
        SAME_UPPER, else at the beginning. The size may exceed the full size by less than the stride; the excess is zero plus
        bias.
    kernel_shape : one int per spatial axis, optional
        Must equal the kernel sizes of W.
    group : int
        Number of blocks of channels. C is a multiple of it.
    opset : int
        Selects the definition: 1 for opsets 1 to 10, 11 for opsets 11 to 21, and 22 for later opsets. They differ in dtypes.
        The text of opset 1 also cuts off the odd pixel of output_shape on the other side, which contradicts its own auto_pad.
        convt follows the later texts at every opset, as ONNX Runtime does.
    precision : None, "highest", "high" or "medium"
        The lowest precision that convt may use for float32: see `convt.conv_transpose`.

    Returns
    -------
    NumPy array (N, M, *output) of X's dtype

    Raises
    ------
    ValueError, TypeError
        An argument is invalid. The message names the argument, its value and the accepted values.
    MemoryError
        The output does not fit into the machine's memory.

    Examples
    --------
    >>> import numpy as np, convt.onnx
    >>> X = np.array([[[1, 2, 3]]], np.float32)
    >>> W = np.array([[[1, 10, 100]]], np.float32)
    >>> convt.onnx.conv_transpose(X, W, output_shape=[4]).tolist()
    [[[12.0, 123.0, 230.0, 300.0]]]
    """
    W = _check.floating("W", W)
    given = attributes(
        W, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, output_padding=output_padding,
        output_shape=output_shape, pads=pads, strides=strides, opset=opset, precision=precision,
    )  # fmt: skip
    return compute(X, W, B, given)


def attributes(
    W, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None, output_shape=None, pads=None,
    strides=None, opset=22, precision=None,
):  # fmt: skip
    """Validate the attributes of a node for a filter of W's shape and dtype, and return them as `api.Keywords`."""
    opset = _check.integer("opset", opset, 1)
    if opset < 22 and W.dtype == ml_dtypes.bfloat16:
        raise TypeError(f"W: got dtype bfloat16 at opset {opset}, wanted float32, float64 or float16 below opset 22")
    rank = W.ndim - 2
    if rank < 1:
        raise ValueError(f"W: got rank {W.ndim} (shape {W.shape}), wanted at least 3, (C, M / group, *kernel)")
    if kernel_shape is not None and _check.integers("kernel_shape", kernel_shape, rank, 0) != W.shape[2:]:
        raise ValueError(f"kernel_shape: got {kernel_shape}, wanted {W.shape[2:]}, the kernel of W")
    pads = _check.integers("pads", _or(pads, 0), 2 * rank, 0, each="two per spatial axis")
    return api.Keywords(
        strides=_or(strides, 1), dilations=_or(dilations, 1), pads_begin=pads[:rank], pads_end=pads[rank:], auto_pad=auto_pad,
        output_padding=_or(output_padding, 0), output_shape=output_shape, groups=group, data_format="NCX", filter_format="IOX",
        precision=precision,
    )  # fmt: skip


def compute(X, W, B, given, out=None, add=None):
    """Compute the output of a node, plus ``add``. ``given`` is the result of `attributes`."""
    with _check.renamed(_NAMES):
        return api.one_shot(padding.ONNX, X, W, B, given, out, add)


def check(W, B, given):
    """Raise the exception that `operator` would raise. Only the shapes and dtypes of W and B are read."""
    with _check.renamed(_NAMES):
        api.parse(W, B, given, padding.ONNX)


def operator(W, B, given, copied=False):
    """Return a `convt.ConvTranspose` with ONNX's padding rules, which reads W and B in the caller's memory.

    If W was ``copied`` for the operator, its bytes count as packed weights.
    """
    with _check.renamed(_NAMES):
        weights = keep.PackedWeights(W.nbytes, W.nbytes if copied else 0)
        return _operator.ConvTranspose._borrowing(W, B, padding.ONNX, weights, **given._asdict())


class ConvTransposeOperator(_operator.ConvTranspose[DType]):
    """ONNX's ConvTranspose with fixed weights, which are packed once, for X of any batch and spatial size.

    Pads follow from auto_pad and output_shape at each call, by ONNX's rules. Filter and bias are copied. An operator is
    thread-safe and can be pickled; ``update(W, B)`` replaces the weights. `output_shape`, `plan` and `update` are those of
    `convt.ConvTranspose`.

    Parameters
    ----------
    W : array (C, M / group, *kernel)
        Filter of `conv_transpose`.
    B : array (M,) of the same dtype, optional
        Bias of `conv_transpose`.
    **keywords
        All keywords of `conv_transpose`, with the same meanings, defaults and errors.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As in `conv_transpose`.

    Examples
    --------
    >>> import numpy as np, convt.onnx
    >>> op = convt.onnx.ConvTransposeOperator(np.ones((3, 8, 3, 3), np.float32), strides=[2, 2], auto_pad="SAME_UPPER")
    >>> op(np.ones((1, 3, 5, 7), np.float32)).shape
    (1, 8, 10, 14)
    """

    _ARGUMENTS = MappingProxyType(_NAMES)

    @overload
    def __init__(self, W: NDArray[DType], B: Array | None = None, **keywords: Unpack[OnnxKeywords]) -> None: ...

    @overload
    def __init__(self, W: Array, B: Array | None = None, **keywords: Unpack[OnnxKeywords]) -> None: ...

    def __init__(
        self, W, B=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None,
        output_shape=None, pads=None, strides=None, opset=22, precision=None,
    ):  # fmt: skip
        W = _check.floating("W", W)
        given = attributes(
            W, auto_pad=auto_pad, dilations=dilations, group=group, kernel_shape=kernel_shape, output_padding=output_padding,
            output_shape=output_shape, pads=pads, strides=strides, opset=opset, precision=precision,
        )  # fmt: skip
        with _check.renamed(_NAMES):
            self._copy(W, B, given, padding.ONNX)


def _or(value, default):
    return default if value is None else value
