"""OpenVINO's ConvolutionBackpropData-1 and GroupConvolutionBackpropData-1 on NCX data.

This module translates their attributes to convt's. It does not need the openvino package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from . import _api, _padding

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._typing import Array, DType, Integers, OpenvinoAutoPad, OpenvinoKeywords, Precision

__all__ = ["convolution_backprop_data", "group_convolution_backprop_data"]


@overload
def convolution_backprop_data(
    data: NDArray[DType], filter: Array, output_shape: Integers | None = None, **keywords: Unpack[OpenvinoKeywords]
) -> NDArray[DType]: ...


@overload
def convolution_backprop_data(
    data: Array, filter: Array, output_shape: Integers | None = None, **keywords: Unpack[OpenvinoKeywords]
) -> NDArray[Any]: ...


def convolution_backprop_data(
    data: Array, filter: Array, output_shape: Integers | None = None, *, strides: Integers, pads_begin: Integers,
    pads_end: Integers, dilations: Integers, auto_pad: OpenvinoAutoPad = None, output_padding: Integers | None = None,
    precision: Precision = None,
) -> NDArray[Any]:  # fmt: skip
    """Compute the transposed convolution of ``data`` with ``filter``: OpenVINO's ConvolutionBackpropData-1.

    Parameters
    ----------
    data : array (N, C_in, *spatial), rank 3 or more
        float32, float64, float16 or bfloat16 (ml_dtypes).
    filter : array (C_in, C_out, *kernel) of the same dtype
    output_shape : 1-D integer array or list, one int per spatial axis, optional
        The spatial output sizes, from which the pads are computed; pads_begin and pads_end are then ignored. If ``total``
        pixels have to be cut off, the beginning loses ``total // 2``, so an odd pixel is cut off at the end. With "same_upper"
        it is cut off at the beginning. Outputs past the full scatter are zero.
    strides, dilations, pads_begin, pads_end : int or one int per spatial axis
        In output pixels. Output size of an axis without output_shape:
        ``stride * (in - 1) + (k - 1) * dilation + 1 - pads_begin - pads_end + output_padding``.
    auto_pad : None, "none", "explicit", "same_upper", "same_lower" or "valid", any case
        With "same_upper", "same_lower" or "valid", pads_begin and pads_end are ignored; without output_shape all pads are 0.
    output_padding : int or one int per spatial axis, optional
        In output pixels; the default is 0.
    precision : None, "highest", "high" or "medium"
        The lowest precision that convt may use for float32: see `convt.conv_transpose`.

    Returns
    -------
    NumPy array (N, C_out, *output) of data's dtype

    Raises
    ------
    ValueError, TypeError
        An argument is invalid. The message names the argument, its value and the accepted values.
    MemoryError
        The output does not fit into the machine's memory.

    Notes
    -----
    convt follows the specification. OpenVINO's own runtime differs from it if output_shape is set and auto_pad is none or
    "valid": the runtime starts its output at pads_begin (none) or at 0 ("valid"), instead of at ``total // 2``.

    Examples
    --------
    >>> import numpy as np, convt.openvino
    >>> x = np.array([[[1, 2, 3]]], np.float32)
    >>> w = np.array([[[1, 10, 100]]], np.float32)
    >>> attributes = dict(strides=[1], pads_begin=[0], pads_end=[0], dilations=[1])
    >>> convt.openvino.convolution_backprop_data(x, w, [4], **attributes).tolist()
    [[[1.0, 12.0, 123.0, 230.0]]]
    """
    return _call(
        "IOX", data, filter, output_shape, strides, pads_begin, pads_end, dilations, auto_pad, output_padding, precision
    )  # fmt: skip


@overload
def group_convolution_backprop_data(
    data: NDArray[DType], filter: Array, output_shape: Integers | None = None, **keywords: Unpack[OpenvinoKeywords]
) -> NDArray[DType]: ...


@overload
def group_convolution_backprop_data(
    data: Array, filter: Array, output_shape: Integers | None = None, **keywords: Unpack[OpenvinoKeywords]
) -> NDArray[Any]: ...


def group_convolution_backprop_data(
    data: Array, filter: Array, output_shape: Integers | None = None, *, strides: Integers, pads_begin: Integers,
    pads_end: Integers, dilations: Integers, auto_pad: OpenvinoAutoPad = None, output_padding: Integers | None = None,
    precision: Precision = None,
) -> NDArray[Any]:  # fmt: skip
    """Compute a grouped transposed convolution: OpenVINO's GroupConvolutionBackpropData-1.

    The filter has the shape (groups, C_in / groups, C_out / groups, *kernel); its first size is the number of groups. All other
    parameters, the errors and the result (N, C_out, *output) are those of `convolution_backprop_data`.

    Examples
    --------
    >>> import numpy as np, convt.openvino
    >>> x = np.ones((1, 20, 224, 224), np.float32)
    >>> w = np.ones((4, 5, 2, 3, 3), np.float32)
    >>> convt.openvino.group_convolution_backprop_data(
    ...     x, w, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1]
    ... ).shape
    (1, 8, 447, 447)
    """
    return _call(
        "GIOX", data, filter, output_shape, strides, pads_begin, pads_end, dilations, auto_pad, output_padding, precision
    )  # fmt: skip


def _call(
    filter_format: str, data: Array, filter: Array, output_shape: Integers | None, strides: Integers, pads_begin: Integers,
    pads_end: Integers, dilations: Integers, auto_pad: OpenvinoAutoPad, output_padding: Integers | None,
    precision: Precision,
) -> Any:  # fmt: skip
    """Compute either operator; their filter formats differ."""
    attributes = dict(
        strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations, auto_pad=auto_pad,
        output_padding=0 if output_padding is None else output_padding, output_shape=output_shape, data_format="NCX",
        filter_format=filter_format, precision=precision,
    )  # fmt: skip
    return _api.one_shot(_padding.OPENVINO, data, filter, None, attributes, tuple(attributes.values()))
