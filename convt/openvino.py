"""OpenVINO's ConvolutionBackpropData-1 and GroupConvolutionBackpropData-1 on NCX data.

This module translates their attributes to convt's. It does not need the openvino package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from ._base import check, padding
from ._call import api, operator

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import SupportsIndex

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._base.typing import Array, DType, Integers, OpenvinoAutoPad, OpenvinoKeywords, Out, Precision
    from ._plan import plan
else:
    from ._call.operator import DType

__all__ = [
    "ConvolutionBackpropData",
    "GroupConvolutionBackpropData",
    "convolution_backprop_data",
    "group_convolution_backprop_data",
]


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
    given = strides, pads_begin, pads_end, dilations, auto_pad, output_padding, precision
    return _compute("IOX", data, filter, output_shape, given)


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
    given = strides, pads_begin, pads_end, dilations, auto_pad, output_padding, precision
    return _compute("GIOX", data, filter, output_shape, given)


_NAMES = ("strides", "pads_begin", "pads_end", "dilations", "auto_pad", "output_padding", "precision")


def _compute(filter_format: str, data: Array, filter: Array, output_shape: Integers | None, given: tuple[Any, ...]) -> Any:
    """Compute either operator; their filter formats differ. ``given`` are the values of _NAMES."""
    keywords = _keywords(filter_format, given)._replace(output_shape=output_shape)
    return api.one_shot(padding.OPENVINO, data, filter, None, keywords)


def _keywords(filter_format: str, given: tuple[Any, ...]) -> api.Keywords:
    """Return the keywords of convt for an operator's filter format and the values of _NAMES."""
    keywords = api.Keywords(**dict(zip(_NAMES, given, strict=True)), data_format="NCX", filter_format=filter_format)
    return keywords._replace(output_padding=0) if keywords.output_padding is None else keywords


class ConvolutionBackpropData(operator.ConvTranspose[DType]):
    """OpenVINO's ConvolutionBackpropData-1 with a fixed filter, which is packed once, for data of any batch and spatial size.

    Pads follow from auto_pad and output_shape at each call, by OpenVINO's rules. The filter is copied. An operator is
    thread-safe and can be pickled; ``update(filter)`` replaces the filter.

    Parameters
    ----------
    filter : array (C_in, C_out, *kernel)
        Filter of `convolution_backprop_data`: float32, float64, float16 or bfloat16.
    **keywords
        All keywords of `convolution_backprop_data` except output_shape, with the same meanings, defaults and errors.

    Raises
    ------
    ValueError, TypeError, MemoryError
        As in `convolution_backprop_data`.

    Examples
    --------
    >>> import numpy as np, convt.openvino
    >>> attributes = dict(strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1])
    >>> op = convt.openvino.ConvolutionBackpropData(np.ones((20, 10, 3, 3), np.float32), **attributes)
    >>> op(np.ones((1, 20, 224, 224), np.float32)).shape
    (1, 10, 447, 447)
    >>> op(np.ones((1, 20, 224, 224), np.float32), output_shape=[448, 448]).shape
    (1, 10, 448, 448)
    """

    _FILTER_FORMAT = "IOX"

    @overload
    def __init__(self, filter: NDArray[DType], **keywords: Unpack[OpenvinoKeywords]) -> None: ...

    @overload
    def __init__(self, filter: Array, **keywords: Unpack[OpenvinoKeywords]) -> None: ...

    def __init__(
        self, filter: Any, *, strides: Integers, pads_begin: Integers, pads_end: Integers, dilations: Integers,
        auto_pad: OpenvinoAutoPad = None, output_padding: Integers | None = None, precision: Precision = None,
    ) -> None:  # fmt: skip
        given = strides, pads_begin, pads_end, dilations, auto_pad, output_padding, precision
        self._copy(filter, None, _keywords(self._FILTER_FORMAT, given), padding.OPENVINO)

    @overload
    def __call__(
        self, data: Array, out: None = None, *, add: Array | None = None, output_shape: Integers | None = None
    ) -> NDArray[DType]: ...

    @overload
    def __call__(
        self, data: Array, out: Out, *, add: Array | None = None, output_shape: Integers | None = None
    ) -> Out: ...

    def __call__(self, data: Any, out: Any = None, *, add: Any = None, output_shape: Integers | None = None) -> Any:
        """Compute the transposed convolution of ``data``.

        Parameters
        ----------
        data : array (N, C_in, *spatial) of the filter's dtype
            Data of `convolution_backprop_data`.
        out : array, optional
            Array for the result: writeable, with the shape and dtype of the output, and separate from data.
        add : array of the filter's dtype and the shape of the output, optional
            Added to the output.
        output_shape : int or one int per spatial axis, optional
            The spatial output sizes of `convolution_backprop_data`, from which the pads are computed.

        Returns
        -------
        array (N, C_out, *output)
            ``out`` if it is given, else a new C-contiguous NumPy array.

        Raises
        ------
        ValueError, TypeError, MemoryError
            As in `convolution_backprop_data`.
        """
        if output_shape is None:
            return super().__call__(data, out, add=add)
        attributes = self._with_output_shape(output_shape)
        return self._compute(self._plans, attributes, check.array("data", data), out, add)[0]

    def output_shape(self, shape: Iterable[SupportsIndex], output_shape: Integers | None = None) -> tuple[int, ...]:
        """Return the output shape for a data shape, as `convt.ConvTranspose.output_shape`, and an optional output_shape."""
        return super().output_shape(shape) if output_shape is None else self._shaped(output_shape).output_shape(shape)

    def plan(self, shape: Iterable[SupportsIndex], output_shape: Integers | None = None) -> plan.Plan:
        """Return the plan for a data shape, as `convt.ConvTranspose.plan`, and an optional output_shape."""
        return super().plan(shape) if output_shape is None else self._shaped(output_shape).plan(shape)

    def _with_output_shape(self, output_shape: Any) -> Any:
        """Return the attributes with spatial output sizes."""
        rank = self._attributes.rank
        sizes = check.integers("output_shape", output_shape, rank, 0, scalar=rank == 1)
        return self._attributes._replace(output_shape=sizes)

    def _shaped(self, output_shape: Integers) -> ConvolutionBackpropData[DType]:
        """Return an operator with fixed output sizes, which shares the packed weights."""
        shaped = type(self).__new__(type(self))
        shaped._attributes, shaped._plans = self._with_output_shape(output_shape), self._plans
        return shaped


class GroupConvolutionBackpropData(ConvolutionBackpropData[DType]):
    """OpenVINO's GroupConvolutionBackpropData-1 with a fixed filter, which is packed once.

    The filter has the shape (groups, C_in / groups, C_out / groups, *kernel). Everything else is as in
    `ConvolutionBackpropData`.

    Examples
    --------
    >>> import numpy as np, convt.openvino
    >>> attributes = dict(strides=[2], pads_begin=[0], pads_end=[0], dilations=[1])
    >>> op = convt.openvino.GroupConvolutionBackpropData(np.ones((4, 5, 2, 2), np.float32), **attributes)
    >>> op(np.ones((1, 20, 8), np.float32)).shape
    (1, 8, 16)
    """

    _FILTER_FORMAT = "GIOX"
