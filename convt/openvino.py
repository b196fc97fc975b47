"""The OpenVINO dialect: ConvolutionBackpropData-1 and GroupConvolutionBackpropData-1, NCX data, nothing computed here.

Needs NumPy only; the openvino package is not imported.
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
    """Transposed convolution of ``data`` with ``filter``: OpenVINO's ConvolutionBackpropData-1.

    Parameters
    ----------
    data : array (N, C_in, *spatial), rank 3 or more
        float32, float64, float16 or bfloat16 (ml_dtypes).
    filter : array (C_in, C_out, *kernel) of the same dtype
    output_shape : 1-D integer array or list, optional
        Spatial sizes only. The padding is then computed, whatever pads_begin and pads_end say, with ``total // 2`` at
        the beginning and the odd pixel lost at the end; under "same_upper" at the beginning. What lies past the full
        scatter is zero.
    strides, dilations, pads_begin, pads_end : int or one int per spatial axis
        Output size of an axis without output_shape:
        ``stride * (in - 1) + (k - 1) * dilation + 1 - pads_begin - pads_end + output_padding``.
    auto_pad : None, "none", "explicit", "same_upper", "same_lower" or "valid", any case
        When set, pads_begin and pads_end are ignored; without output_shape all three mean pads of 0.
    output_padding : int or one int per spatial axis, optional
    precision : None, "highest", "high" or "medium"
        How exact float32 has to be: see `convt.conv_transpose`.

    Returns
    -------
    NumPy array (N, C_out, *output) of data's dtype.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what it got and what was wanted.
    MemoryError
        The output cannot exist in this machine's memory.

    Notes
    -----
    This is the specification. OpenVINO's own runtime differs where output_shape is set and auto_pad is none or "valid":
    it starts at pads_begin as given, or at 0, instead of at ``total // 2``.

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
    """Grouped transposed convolution: OpenVINO's GroupConvolutionBackpropData-1.

    As `convolution_backprop_data`, but for the filter (groups, C_in / groups, C_out / groups, *kernel), whose first
    size says how many groups the channels of ``data`` (N, C_in, *spatial) are divided into. The result is
    (N, C_out, *output).

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
    attributes = dict(
        strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations, auto_pad=auto_pad,
        output_padding=0 if output_padding is None else output_padding, output_shape=output_shape, data_format="NCX",
        filter_format=filter_format, precision=precision,
    )  # fmt: skip
    return _api.one_shot(_padding.OPENVINO, data, filter, None, attributes, tuple(attributes.values()))
