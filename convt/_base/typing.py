"""Types of arguments and results, for type checkers only: this module is never imported at run time.

A TypedDict lists the keywords of each function with overloads; tests/project/test_types.py compares it with the function.
"""

from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, Protocol, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Required, TypedDict, TypeVar

from .activation import Plain

# The dtype of an array or operator. bfloat16 is Any, because ml_dtypes has no type annotations.
DType = TypeVar("DType", bound=np.generic, default=Any)


class SupportsArray(Protocol):
    """An object with ``__array__``."""

    def __array__(self) -> NDArray[Any]: ...


class SupportsDLPack(Protocol):
    """An object with ``__dlpack__``."""

    def __dlpack__(self) -> object: ...


Array: TypeAlias = SupportsArray | SupportsDLPack
Out = TypeVar("Out", bound=NDArray[Any] | SupportsDLPack)
Integers: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | NDArray[np.integer[Any]]  # one for all axes, or one per axis
Number: TypeAlias = float | Real | np.floating[Any] | np.integer[Any]

# Values in mixed case are also accepted at run time.
_AutoPad: TypeAlias = Literal[
    "none", "notset", "same_upper", "same_lower", "valid", "NONE", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"
]
AutoPad: TypeAlias = _AutoPad | None
OpenvinoAutoPad: TypeAlias = _AutoPad | Literal["explicit", "EXPLICIT"] | None
DataFormat: TypeAlias = Literal[
    "NXC", "channels_last", "NWC", "NLC", "NHWC", "NDHWC", "NCX", "channels_first", "NCW", "NCL", "NCHW", "NCDHW"
]  # fmt: skip
FilterFormat: TypeAlias = Literal["XIO", "OIX", "IOX", "XOI", "GIOX"]
Activation: TypeAlias = (
    Plain
    | tuple[Plain]
    | tuple[Literal["leaky_relu", "elu"], Number]
    | tuple[Literal["clip"], Number, Number]
    | list[Any]  # a list with the same elements, which a type cannot express
    | None
)
Backend: TypeAlias = Literal["auto", "native", "onednn", "reference"]
Algorithm: TypeAlias = Literal[
    "auto", "direct", "winograd", "scatter", "depthwise", "rows", "turned", "unpacked", "invariant"
]  # fmt: skip
Precision: TypeAlias = Literal["highest", "high", "medium"] | None
TorchPrecision: TypeAlias = Precision | Literal["torch"]


class _Keywords(TypedDict, total=False):
    """Keywords that several functions share."""

    strides: Integers
    pads_begin: Integers
    pads_end: Integers
    dilations: Integers
    auto_pad: AutoPad
    output_padding: Integers
    output_shape: Integers | None
    groups: SupportsIndex
    filter_format: FilterFormat
    activation: Activation
    algorithm: Algorithm
    precision: Precision


class ChunkKeywords(_Keywords, total=False):
    """Keywords of `convt.dask.conv_transpose`."""

    backend: Backend


class CallKeywords(ChunkKeywords, total=False):
    """Keywords of `convt.conv_transpose` except ``out``."""

    data_format: DataFormat
    add: Array | None


class OperatorKeywords(_Keywords, total=False):
    """Keywords of `convt.ConvTranspose`."""

    data_format: DataFormat
    backend: Backend | Literal["tune"]


class OnnxKeywords(TypedDict, total=False):
    """Keywords of `convt.onnx.conv_transpose`."""

    auto_pad: AutoPad
    dilations: Integers | None
    group: SupportsIndex
    kernel_shape: Integers | None
    output_padding: Integers | None
    output_shape: Integers | None
    pads: Integers | None
    strides: Integers | None
    opset: SupportsIndex
    precision: Precision


class OpenvinoKeywords(TypedDict, total=False):
    """Keywords of `convt.openvino.convolution_backprop_data` and `convt.openvino.group_convolution_backprop_data`."""

    strides: Required[Integers]
    pads_begin: Required[Integers]
    pads_end: Required[Integers]
    dilations: Required[Integers]
    auto_pad: OpenvinoAutoPad
    output_padding: Integers | None
    precision: Precision
