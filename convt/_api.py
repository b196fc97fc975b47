"""The public API: it validates arguments, resolves windows, allocates outputs, and executes calls.

Layouts and filter formats become strides here. All modules below this one work on views of data and output in NXC axis order
(batch, *spatial, channels) and on a filter view (groups, ci, co, *kernel).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from . import _activation, _check, _config, _keep, _memory, _padding, _plan, _repeat, _words
from ._problem import PRECISIONS, Problem
from .algorithms import ALGORITHMS, BASIC

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import SupportsIndex

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._typing import Array, AutoPad, CallKeywords, DType, Integers, OperatorKeywords, Out
else:
    DType = TypeVar("DType")

BACKENDS = ("auto", "native", "onednn", "reference", "tune")
# Name of a data layout -> the layout, and the number of spatial axes that the name implies (None: any)
DATA_FORMATS = {
    "NXC": ("NXC", None), "channels_last": ("NXC", None), "NWC": ("NXC", 1), "NHWC": ("NXC", 2), "NDHWC": ("NXC", 3),
    "NCX": ("NCX", None), "channels_first": ("NCX", None), "NCW": ("NCX", 1), "NCHW": ("NCX", 2), "NCDHW": ("NCX", 3),
}  # fmt: skip
# Orders of the filter's axes: X spatial, I in channels, O out channels, G groups. `filter_view` interprets them.
FILTER_FORMATS = ("XIO", "OIX", "IOX", "XOI", "GIOX")


class Attributes(NamedTuple):
    """The validated attributes of an operator that do not depend on the data's shape."""

    dialect: str
    kernel: tuple
    strides: tuple
    dilations: tuple
    pads_begin: tuple
    pads_end: tuple
    auto_pad: str | None
    output_padding: tuple
    output_shape: tuple | None
    groups: int
    ci: int
    co: int
    dtype: str
    data_format: str
    activation: tuple
    backend: str
    algorithm: str
    precision: str

    @property
    def rank(self):
        """Number of spatial axes."""
        return len(self.kernel)

    def windows(self, in_sizes):
        """Return ``(pads_begin, pads_end, output_sizes)`` for spatial input sizes, as `_padding.windows` does."""
        return _padding.windows(
            self.dialect, in_sizes, self.kernel, self.strides, self.dilations, self.pads_begin, self.pads_end,
            self.auto_pad, self.output_padding, self.output_shape,
        )  # fmt: skip

    def shape_of(self, shape):
        """Return ``(batch, in_sizes, channels)`` of a data shape. Raise ValueError if it does not match the filter."""
        if len(shape) != self.rank + 2:
            raise ValueError(
                f"data: got rank {len(shape)} (shape {tuple(shape)}), wanted rank {self.rank + 2} "
                f"because the filter has {_words.count(self.rank, 'spatial axis', 'spatial axes')}"
            )
        channels = shape[-1] if self.data_format == "NXC" else shape[1]
        if channels != self.groups * self.ci:
            other = "NCX" if self.data_format == "NXC" else "NXC"
            fits = (shape[1] if other == "NCX" else shape[-1]) == self.groups * self.ci
            raise ValueError(
                f"data: got {_words.count(channels, 'channel')} (shape {tuple(shape)}, {self.data_format}), "
                f"wanted {self.groups * self.ci}, the filter's" + (f"; the shape fits data_format={other!r}" if fits else "")
            )
        return shape[0], tuple(shape[1:-1] if self.data_format == "NXC" else shape[2:]), channels

    def problem(self, shape):
        """Return the `Problem` of a data shape. Raise MemoryError if its output exceeds the machine's memory."""
        problem = self.of_any_size(shape)
        _config.check_size(problem)
        return problem

    def of_any_size(self, shape):
        """Return the `Problem` of a data shape without checking its size against the machine's memory."""
        batch, in_sizes, _ = self.shape_of(shape)
        begin, _, out_sizes = self.windows(in_sizes)
        axes = zip(in_sizes, self.kernel, self.strides, self.dilations, strict=True)
        # The stride of an axis with one input has no effect. A stride of at least the kernel gives each tap its own phase.
        strides = tuple(max(s, k) if n == d == 1 else s for n, k, s, d in axes)
        return Problem(
            self.dtype, batch, self.groups, self.ci, self.co, in_sizes, self.kernel, strides, self.dilations,
            begin, out_sizes, self.activation, self.data_format != "NXC" and self.groups * max(self.ci, self.co) > 1,
            self.precision,
        )  # fmt: skip

    def user_shape(self, nxc_shape):
        """Reorder a shape from NXC order to the user's data_format."""
        if self.data_format == "NXC":
            return tuple(nxc_shape)
        return (nxc_shape[0], nxc_shape[-1], *nxc_shape[1:-1])

    def nxc(self, array):
        """Return a view of the user's array with its axes in NXC order."""
        if self.data_format == "NXC":
            return array
        return array.transpose(0, *range(2, array.ndim), 1)


def filter_view(filter, filter_format, groups):
    """Return a view of the filter as (groups, ci, co, *kernel). Raise ValueError if rank or ``groups`` do not fit."""
    f = filter
    if f.ndim < (4 if filter_format == "GIOX" else 3):
        raise ValueError(
            f"filter: got rank {f.ndim} (shape {f.shape}), wanted at least one spatial axis beside the channels "
            f"of format {filter_format}"
        )
    if filter_format == "GIOX":
        if groups not in (1, f.shape[0]):  # 1 is the default of the keyword; the filter's shape has the number of groups
            raise ValueError(f"groups: got {groups}, wanted {f.shape[0]}, the first size of a GIOX filter")
        return f
    if filter_format == "XIO":
        f = f.transpose(f.ndim - 2, f.ndim - 1, *range(f.ndim - 2))
    elif filter_format == "XOI":
        f = f.transpose(f.ndim - 1, f.ndim - 2, *range(f.ndim - 2))
    elif filter_format == "OIX":
        f = f.swapaxes(0, 1)
    if f.shape[0] % groups:
        raise ValueError(f"groups: got {groups}, wanted a divisor of the filter's {_words.count(f.shape[0], 'in-channel')}")
    try:
        return f.reshape(groups, f.shape[0] // groups, *f.shape[1:])  # splitting one axis is always a view
    except ValueError:  # a filter without in channels accepts any number of groups, also one too large for a shape
        raise ValueError(f"groups: got {groups}, wanted a number for which {groups} x {f.shape[1:]} is a valid shape") from None


def parse(
    filter, bias, dialect=_padding.CORE, *, strides=1, pads_begin=0, pads_end=0, dilations=1, auto_pad=None,
    output_padding=0, output_shape=None, groups=1, data_format="NXC", filter_format="XIO", activation=None,
    backend="auto", algorithm="auto", precision=None,
):  # fmt: skip
    """Validate all arguments except the data.

    Return ``(Attributes, filter view (groups, ci, co, *kernel), bias or None)``.
    """
    _check.word("data_format", data_format, DATA_FORMATS)
    _check.word("filter_format", filter_format, FILTER_FORMATS)
    _check.word("backend", backend, BACKENDS)
    _check.word("algorithm", algorithm, ("auto", *ALGORITHMS), ("auto", *BASIC))
    precision = _config.default_precision() if precision is None else _check.word("precision", precision, PRECISIONS)
    groups = _check.integer("groups", groups, 1)
    filter = _check.floating("filter", filter)
    view = filter_view(filter, filter_format, groups)
    groups, ci, co, *kernel = view.shape
    rank = len(kernel)
    data_format, named_rank = DATA_FORMATS[data_format]
    if named_rank not in (None, rank):
        named = next(name for name, value in DATA_FORMATS.items() if value == (data_format, named_rank))
        axes = _words.count(rank, "spatial axis", "spatial axes")
        raise ValueError(f"data_format: got {named!r} with a filter of {axes}, wanted {data_format!r} or a name for this rank")
    if groups < 1:
        raise ValueError(f"filter: got {groups} groups (shape {filter.shape}), wanted at least 1")
    _config.check_memory("filter", filter.shape, filter.itemsize)
    if 0 in kernel:
        raise ValueError(f"filter: got an empty kernel axis (spatial shape {tuple(kernel)}), wanted sizes >= 1")
    if output_shape is not None:
        output_shape = _check.integers("output_shape", output_shape, rank, 0, scalar=rank == 1)
    attributes = Attributes(
        dialect=dialect,
        kernel=tuple(kernel),
        strides=_check.integers("strides", strides, rank, 1),
        dilations=_check.integers("dilations", dilations, rank, 1),
        pads_begin=_check.integers("pads_begin", pads_begin, rank, 0),
        pads_end=_check.integers("pads_end", pads_end, rank, 0),
        auto_pad=_padding.parse_auto_pad(auto_pad, dialect),
        output_padding=_check.integers("output_padding", output_padding, rank, 0),
        output_shape=output_shape,
        groups=groups,
        ci=ci,
        co=co,
        dtype=_check.DTYPES[filter.dtype],
        data_format=data_format,
        activation=_activation.parse(activation),
        backend=_config.default_backend() if backend == "auto" else backend,
        algorithm=algorithm,
        precision=precision if filter.dtype == np.float32 else PRECISIONS[0],  # only float32 has a choice
    )
    if bias is not None:
        bias = _check.floating("bias", bias)
        if bias.dtype != filter.dtype:
            raise TypeError(f"bias: got dtype {bias.dtype}, wanted {filter.dtype}, the filter's")
        if bias.shape != (groups * co,):
            raise ValueError(f"bias: got shape {bias.shape}, wanted ({groups * co},), one value per out channel")
    return attributes, view, bias


def _check_data(attributes, data):
    data = _check.floating("data", data)
    if _check.DTYPES[data.dtype] != attributes.dtype:
        raise TypeError(f"data: got dtype {data.dtype}, wanted {attributes.dtype}, the filter's")
    return data


def _check_out(out, shape, dtype, inputs):
    """Return a NumPy view of the caller's ``out``. Raise if shape or dtype differ or if it overlaps an array of ``inputs``."""
    if not isinstance(out, np.ndarray) and not hasattr(out, "__dlpack__"):
        raise TypeError(f"out: got {type(out).__name__}, wanted an array to write to (NumPy, or with __dlpack__)")
    view = _check.array("out", out)
    if view.dtype != dtype:
        raise TypeError(f"out: got dtype {view.dtype}, wanted {dtype}")
    if view.shape != shape:
        raise ValueError(f"out: got shape {view.shape}, wanted {shape}")
    if not view.flags.writeable:
        raise ValueError("out: got a read-only array, wanted a writeable one")
    if not _apart(view):
        raise ValueError("out: got an array whose elements share memory, wanted separate memory for each element")
    for name, other in inputs:
        if other is not None and _overlap(view, other):
            raise ValueError(f"out: got an array that overlaps {name} in memory, wanted one that does not")
    return view


def _apart(view):
    """Check that no two elements of a view share memory.

    The check is sufficient, not necessary: each stride must exceed the extent that all smaller strides span.
    """
    reach = view.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(view.strides, view.shape, strict=True) if n > 1):
        if stride < reach and view.size:
            return False
        reach += stride * (n - 1)
    return True


def _overlap(a, b):
    """Check whether two arrays share memory. Return True if NumPy cannot decide within the work limit."""
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)
    except np.exceptions.TooHardError:
        return True


def _addressable(view):
    """Check whether the kernels can read the view: aligned elements, and strides that are multiples of the item size."""
    return view.flags.aligned and all(s % view.itemsize == 0 for s in view.strides)


def _readable_view(view):
    """Return the view if the kernels can read it, else a copy with the same order of axes in memory; None for None.

    The order is kept because plans depend on it.
    """
    return view if view is None or _addressable(view) else view.copy("K")


def _execute(attributes, operator, data, inputs, out, problem=None):
    """Execute a validated call and return ``(output, Bound)``.

    ``data`` and ``out`` are in the user's layout. ``inputs`` lists (name, array) pairs that ``out`` must not overlap. The
    `_repeat.Bound` serves repeated calls on arrays like ``data`` with contiguous outputs; it is None if such calls need all
    checks again.
    """
    problem = problem or attributes.problem(data.shape)
    shape = attributes.user_shape(problem.out_shape)
    result = _memory.empty(shape, data.dtype) if out is None else _check_out(out, shape, data.dtype, inputs)
    if not result.size:
        return (result if out is None else out), None
    view, target = attributes.nxc(data), attributes.nxc(result)
    source, scratch = _readable_view(view), target if _addressable(target) else np.empty(target.shape, target.dtype)
    start = time.perf_counter() if _config.verbose() else 0.0
    plan, bound = operator.compute(problem, source, scratch)
    if start:
        _config.report(problem, plan, time.perf_counter() - start)
    if scratch is not target:
        target[...] = scratch
    alike = source is view and scratch is target and data.size and result.flags.c_contiguous
    if start or not alike or (plan.backend != "native" and not data.flags.c_contiguous):  # oneDNN may need a copy in NXC order
        bound = None
    return (result if out is None else out), bound


@overload
def conv_transpose(
    data: Array, filter: Array, bias: Array | None = None, *, out: Out, **keywords: Unpack[CallKeywords]
) -> Out: ...


@overload
def conv_transpose(
    data: NDArray[DType], filter: Array, bias: Array | None = None, *, out: None = None, **keywords: Unpack[CallKeywords]
) -> NDArray[DType]: ...


@overload
def conv_transpose(
    data: Array, filter: Array, bias: Array | None = None, *, out: None = None, **keywords: Unpack[CallKeywords]
) -> NDArray[Any]: ...


def conv_transpose(
    data, filter, bias=None, *, strides=1, pads_begin=0, pads_end=0, dilations=1, auto_pad=None, output_padding=0,
    output_shape=None, groups=1, data_format="NXC", filter_format="XIO", activation=None, out=None, backend="auto",
    algorithm="auto", precision=None,
):  # fmt: skip
    """Compute the transposed convolution of ``data`` with ``filter``.

    Implements oneDNN Graph's ConvTranspose-1. N is the batch, C the number of in channels, M the number of out channels, and
    G is ``groups``. All arguments are validated before computation starts.

    Parameters
    ----------
    data : array, rank 3 or more
        Shape (N, *spatial, C) for data_format "NXC", or (N, C, *spatial) for "NCX". The dtype is float32, float64, float16 or
        bfloat16 (ml_dtypes). float16 and bfloat16 products are summed in float32. A NumPy array, or an object with
        ``__dlpack__`` or ``__array__`` in CPU memory, with any strides.
    filter : array of the dtype of ``data``
        The shape depends on filter_format; ``kernel`` stands for the spatial sizes.
    bias : array of the dtype of ``data``, shape (M,), optional
        Added to the output before the activation.
    strides, dilations : int or one int per spatial axis, default 1
        Distance in output pixels between the products of neighbouring inputs, and of neighbouring taps; at least 1.
    pads_begin, pads_end : int or one int per spatial axis, default 0
        Output pixels cut off at the beginning and at the end of an axis; at least 0.
    output_padding : int or one int per spatial axis, default 0
        Output pixels added at the end of an axis; at least 0. Outputs that no product reaches are zero plus bias. The output
        size of an axis is
        ``stride * (in - 1) + output_padding + (k - 1) * dilation + 1 - pads_begin - pads_end``.
    auto_pad : None, "none", "notset", "same_upper", "same_lower" or "valid", upper or lower case
        A value other than None, "none" and "notset" replaces pads_begin and pads_end. With "same_upper" and "same_lower", the
        output size is ``stride * in + output_padding`` if ``(k - 1) * dilation + 1`` is at least the stride; otherwise there
        are no pads. "valid" means no pads.
    output_shape : one int per spatial axis, optional
        Spatial output size. It replaces pads_begin and pads_end by computed pads; if their total is odd, the extra pixel is cut
        off at the beginning. With auto_pad, it must equal the size that auto_pad gives. Outputs past the full scatter are zero
        plus bias.
    groups : int, default 1
        Number of contiguous blocks of in channels. Each block has its own block of out channels.
    data_format : str, default "NXC"
        "NXC" or "channels_last", and by the number of spatial axes "NWC", "NHWC" or "NDHWC"; "NCX" or "channels_first", and
        by the number of spatial axes "NCW", "NCHW" or "NCDHW".
    filter_format : "XIO", "OIX", "IOX", "XOI" or "GIOX", default "XIO"
        Shape of the filter: "XIO" is (*kernel, C, M / G), "OIX" is (M / G, C, *kernel), "IOX" is (C, M / G, *kernel), "XOI" is
        (*kernel, M / G, C), and "GIOX" is (G, C / G, M / G, *kernel).
    activation : None, "relu", ("leaky_relu", slope), ("clip", low, high), "tanh", "sigmoid", "gelu" (erf) or "swish"
        Applied after the bias as outputs are stored.
    out : array, optional
        Array for the result: it is written in place and returned. It must have the shape and dtype of the result, be
        writeable, and overlap no input.
    backend : "auto", "native", "onednn", "reference" or, in `ConvTranspose` only, "tune"
        "auto" uses the native backend. If oneDNN is installed, `ConvTranspose` uses oneDNN for layers on which it is known to
        be faster. "onednn" needs ``pip install "convt[onednn]"``, or CONVT_ONEDNN_LIB with the path of libdnnl.so.3; if
        CONVT_ONEDNN_LIB is set, no other place is searched. "reference" is a slow implementation in NumPy. "tune" measures
        oneDNN and every native algorithm that "auto" permits and whose expected cost is at most a third above the lowest. It
        measures at the first call of a shape, with the data and threads of that call, for about half a second, and uses the
        fastest from then on. The ``note`` of the plan lists the times. If other programs disturb the measurement too much,
        there is a RuntimeWarning, and the algorithm is the one of "auto".
    algorithm : str, default "auto"
        Algorithm of the native backend. "auto" uses the algorithm with the lowest expected cost among those that are as
        accurate as ``precision`` requires. Every other name requires that algorithm, and raises ValueError if it does not
        support the problem:

        * "direct": one implicit GEMM for each phase of the output; supports every problem.
        * "winograd": fewer multiplications if the kernel is longer than the stride; errors are up to about twice those of
          "direct".
        * "winograd6": even fewer multiplications; errors are 5 to 30 times those of "direct", and some hundreds of times with
          three spatial axes.
        * "scatter": for few out channels.
        * "depthwise": for many small groups, or few out channels.
        * "rows": for NCX with few channels or small groups.
        * "turned": for NCX; "direct" with pixels as GEMM columns.
        * "unpacked": for few pixels and weights passed with each call; multiplies a filter in IOX order without packing it.
        * "matrix", "matrix_winograd", "matrix_scatter", "matrix_turned": the algorithms above on AMX tiles. A float32 is
          multiplied as three bfloat16 parts, which is no less accurate.
        * "matrix_high", "matrix_high_winograd", "matrix_high_scatter", "matrix_high_turned": on AMX tiles, with a float32 as
          two bfloat16 parts.
        * "matrix_medium", "matrix_medium_scatter", "matrix_medium_turned": on AMX tiles, with a float32 as one bfloat16.
        * "dots", "dots_scatter": "direct" and "scatter" with the dot products of AVX512_BF16, for bfloat16, or for float32
          rounded to bfloat16.
    precision : None, "highest", "high" or "medium"
        Lowest accuracy of float32 that algorithm "auto" may use where it is faster. Other dtypes are computed as accurately as
        they can represent. "highest" is as accurate as sums of float32 products. "high" is as accurate as products of
        TensorFloat-32 (10 mantissa bits) or better. "medium" is as accurate as products of bfloat16 (7 mantissa bits) summed in
        float32. None means CONVT_PRECISION, or "highest". `ConvTranspose.plan` returns the algorithm in use.

    Returns
    -------
    array
        ``out`` if it is given, else a new C-contiguous NumPy array with the dtype and layout of ``data``.

    Raises
    ------
    ValueError, TypeError
        An argument is wrong. The message names the argument, its value, and the values that are allowed. ``out`` is unchanged.
    BackendUnavailableError
        The requested backend is not installed or does not support the problem.
    MemoryError
        The output exceeds the machine's memory.

    Examples
    --------
    >>> import numpy as np, convt
    >>> x = np.array([1, 2, 3], np.float32).reshape(1, 3, 1)
    >>> w = np.array([1, 10, 100], np.float32).reshape(3, 1, 1)
    >>> convt.conv_transpose(x, w, strides=2).ravel().tolist()
    [1.0, 10.0, 102.0, 20.0, 203.0, 30.0, 300.0]
    """
    values = (
        strides, pads_begin, pads_end, dilations, auto_pad, output_padding, output_shape, groups, data_format, filter_format,
        activation, backend, algorithm, precision,
    )  # fmt: skip
    return one_shot(_padding.CORE, data, filter, bias, _NAMES, values, out)


_NAMES = (
    "strides", "pads_begin", "pads_end", "dilations", "auto_pad", "output_padding", "output_shape", "groups", "data_format",
    "filter_format", "activation", "backend", "algorithm", "precision",
)  # fmt: skip
_SHOTS = _keep.Recent(_keep.ONE_SHOT_PLANS)  # signature of a one-shot call -> `_repeat.Shot`


def one_shot(dialect, data, filter, bias, names, values, out=None):
    """Compute `conv_transpose` in any dialect.

    ``names`` and ``values`` are tuples with the keyword arguments of `parse`. Their order must be the same at every call,
    because the values are part of the signature that identifies repeated calls.
    """
    if not type(data) is type(filter) is np.ndarray or type(bias) not in (np.ndarray, type(None)):
        data, filter = _check.array("data", data), _check.array("filter", filter)
        bias = None if bias is None else _check.array("bias", bias)
    threads = _config.get_num_threads()
    found = _repeat.repeat_shot(_SHOTS.entries, dialect, data, filter, bias, values, out, threads)
    if type(found) is np.ndarray:  # otherwise the signature, or None
        return found
    parsed, view, own_bias = parse(filter, bias, dialect, **dict(zip(names, values, strict=True)))
    data = _check_data(parsed, data)
    if parsed.backend == "tune":
        raise ValueError("backend: got 'tune' for a single call, wanted it in ConvTranspose, which measures once per shape")
    # Plans are kept only for arrays without repeated elements, because strides of 0 do not define the order of axes in which
    # 16-bit types are widened. A filter with repeated elements, such as a result of ``expand``, is copied, which costs less
    # than a new plan.
    repeats = _addressable(filter) and _apart(filter)
    if not repeats and out is None:
        return one_shot(dialect, data, filter.copy(), bias, names, values)
    operator = _plan.Operator(parsed, _readable_view(view), _readable_view(own_bias), lasting=False)
    result, bound = _execute(parsed, operator, data, (("data", data), ("filter", view), ("bias", own_bias)), out)
    # A call that fell back to another algorithm because of its weights is not kept: the next weights may not need the fallback.
    rule = bound is not None and bound.as_chosen and bound.form.finite
    if rule and found is not None and repeats and (bias is None or _addressable(bias)):
        _SHOTS.keep(found, _repeat.Shot(bound))
    return result


def clear_caches() -> None:
    """Release the memory that convt keeps for later calls.

    This removes plans, records of one-shot calls, unused workspaces, and the memory of dropped outputs. The packed weights of
    operators stay. The next calls take longer; their results do not change.

    convt keeps at most:

    * plans: 16 MiB per operator, 16 MiB for one-shot calls, and 64 MiB in total;
    * workspaces of 8 calls;
    * packed weights of one-shot calls: 64 MiB;
    * dropped outputs of 256 KiB or more: 8 outputs, and 1 GiB in total.

    `set_packed_weights_limit` limits the packed weights of operators.

    Examples
    --------
    >>> import convt
    >>> convt.clear_caches()
    """
    _plan.clear()
    _memory.clear()


class ConvTranspose(Generic[DType]):
    """A transposed convolution with fixed weights, which are packed once, for data of any batch and spatial size.

    Implements oneDNN Graph's ConvTranspose-1. Filter and bias are copied, so later changes of the caller's arrays have no
    effect. The first call with a data shape and a number of threads makes a plan. The operator keeps up to 16 MiB of plans and
    drops the least recently used ones first. `set_packed_weights_limit` limits the memory of packed weights. An operator is
    thread-safe and can be pickled.

    Parameters
    ----------
    filter : array
        Filter of `conv_transpose`: float32, float64, float16 or bfloat16.
    bias : array of the filter's dtype, shape (out_channels,), optional
        Bias of `conv_transpose`.
    **keywords
        All other keywords of `conv_transpose` except ``out``, with the same meanings and errors. ``backend`` may also be
        "tune".

    Raises
    ------
    ValueError, TypeError, BackendUnavailableError, MemoryError
        As in `conv_transpose`.

    Examples
    --------
    >>> import numpy as np, convt
    >>> op = convt.ConvTranspose(np.ones((4, 4, 8, 16), np.float32), strides=2, pads_begin=1, pads_end=1)
    >>> op(np.ones((1, 5, 5, 8), np.float32)).shape
    (1, 10, 10, 16)
    >>> op.output_shape((2, 32, 24, 8))
    (2, 64, 48, 16)
    """

    @overload
    def __init__(self, filter: NDArray[DType], bias: Array | None = None, **keywords: Unpack[OperatorKeywords]) -> None: ...

    @overload
    def __init__(self, filter: Array, bias: Array | None = None, **keywords: Unpack[OperatorKeywords]) -> None: ...

    def __init__(
        self, filter, bias=None, *, strides=1, pads_begin=0, pads_end=0, dilations=1, auto_pad=None, output_padding=0,
        output_shape=None, groups=1, data_format="NXC", filter_format="XIO", activation=None, backend="auto",
        algorithm="auto", precision=None,
    ):  # fmt: skip
        attributes, view, bias = parse(
            filter, bias, _padding.CORE, strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations,
            auto_pad=auto_pad, output_padding=output_padding, output_shape=output_shape, groups=groups,
            data_format=data_format, filter_format=filter_format, activation=activation, backend=backend,
            algorithm=algorithm, precision=precision,
        )  # fmt: skip
        self._set(attributes, view.copy(order="K"), None if bias is None else bias.copy())

    @classmethod
    def _borrowing(
        cls, filter: NDArray[DType], bias: NDArray[Any] | None, dialect: str = _padding.CORE,
        weights: _keep.PackedWeights | None = None, **attributes: Any,
    ) -> ConvTranspose[DType]:  # fmt: skip
        """Create an operator that reads filter and bias in the caller's memory, which the caller must not change.

        ``dialect`` selects the padding rules, ``attributes`` are keyword arguments of `parse`. ``weights`` limits the packed
        weights of several operators of one filter together. Arrays that the kernels cannot read are copied.
        """
        op = cls.__new__(cls)
        parsed, view, bias = parse(filter, bias, dialect, **attributes)
        op._set(parsed, _readable_view(view), _readable_view(bias), weights)
        return op

    def _set(self, attributes, filter, bias, weights=None):
        self._attributes = attributes
        self._filter = filter
        self._bias = bias
        self._operator = _plan.Operator(attributes, filter, bias, weights=weights)
        self._kept = self._operator.plans.entries  # the layout of data and threads is a second key of a Bound

    @overload
    def __call__(self, data: Array, out: None = None) -> NDArray[DType]: ...

    @overload
    def __call__(self, data: Array, out: Out) -> Out: ...

    def __call__(self, data, out=None):
        """Compute the transposed convolution of ``data``.

        Parameters
        ----------
        data : array of the filter's dtype
            Data of `conv_transpose`.
        out : array, optional
            Array for the result, as in `conv_transpose`.

        Returns
        -------
        array
            ``out`` if it is given, else a new C-contiguous NumPy array.

        Raises
        ------
        ValueError, TypeError, BackendUnavailableError, MemoryError
            As in `conv_transpose`.
        """
        if type(data) is not np.ndarray:
            data = _check.array("data", data)
        threads = _config.get_num_threads()
        found = _repeat.repeat(self._kept, data, out, threads)
        if type(found) is np.ndarray:  # otherwise the layout of data and threads
            return found
        data = _check_data(self._attributes, data)
        result, bound = _execute(self._attributes, self._operator, data, (("data", data),), out)
        if bound is not None:
            self._operator.plans.keep(found, bound)
        return result

    def _part(self, data: NDArray[DType], problem: Problem) -> NDArray[DType]:
        """Compute the output of ``problem``, a part of a larger problem, from the part's ``data``."""
        _config.check_size(problem)
        return _execute(self._attributes, self._operator, data, (), None, problem)[0]

    def output_shape(self, shape: Iterable[SupportsIndex]) -> tuple[int, ...]:
        """Return the output shape for a data shape.

        Parameters
        ----------
        shape : ints
            Shape of the data, with batch and channels in the order of data_format.

        Returns
        -------
        tuple of int
            Shape of the output, with batch and channels in the order of data_format.

        Raises
        ------
        ValueError, TypeError, MemoryError
            The shape does not fit the filter, is not a sequence of integers, or its output exceeds the machine's memory.
        """
        return self._attributes.user_shape(self._attributes.problem(_shape(shape)).out_shape)

    def plan(self, shape: Iterable[SupportsIndex]) -> _plan.Plan:
        """Return the plan for C-contiguous data of a shape. Weights are packed if the plan needs it.

        Parameters
        ----------
        shape : ints
            Shape of the data, with batch and channels in the order of data_format.

        Returns
        -------
        Plan
            Backend, algorithm, instruction set, register tile, threads, tasks, and bytes of memory.

        Raises
        ------
        ValueError, TypeError, BackendUnavailableError, MemoryError
            As in `conv_transpose`.

        Examples
        --------
        >>> import numpy as np, convt
        >>> op = convt.ConvTranspose(np.ones((2, 2, 64, 32), np.float32), strides=2, backend="native", algorithm="direct")
        >>> op.plan((1, 8, 8, 64)).algorithm
        'direct'
        """
        return self._operator.plan(self._attributes.problem(_shape(shape)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._attributes._asdict(), self._filter, self._bias)

    def __repr__(self) -> str:
        a = self._attributes
        return (
            f"ConvTranspose({a.groups * a.ci} -> {a.groups * a.co}, kernel={a.kernel}, strides={a.strides}, "
            f"groups={a.groups}, dtype={a.dtype}, data_format={a.data_format!r})"
        )


def _rebuild(attributes, filter, bias):
    op = ConvTranspose.__new__(ConvTranspose)
    op._set(Attributes(**attributes), filter, bias)
    return op


def _shape(shape):
    try:
        items = tuple(shape)
    except TypeError:
        raise TypeError(f"shape: got {type(shape).__name__}, wanted a sequence of integers") from None
    return tuple(_check.integer("shape", item, 0) for item in items)


def resolve(
    in_sizes: Sequence[SupportsIndex] | NDArray[np.integer[Any]], kernel: Sequence[SupportsIndex] | NDArray[np.integer[Any]], *,
    strides: Integers = 1, pads_begin: Integers = 0, pads_end: Integers = 0, dilations: Integers = 1, auto_pad: AutoPad = None,
    output_padding: Integers = 0, output_shape: Integers | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """Convert auto_pad and output_shape into explicit pads, by the rules of oneDNN Graph's ConvTranspose-1.

    Parameters
    ----------
    in_sizes : one int per spatial axis
        Spatial sizes of the data, at least 0.
    kernel : one int per spatial axis
        Spatial sizes of the filter, at least 1.
    strides, pads_begin, pads_end, dilations, auto_pad, output_padding, output_shape
        As in `conv_transpose`.

    Returns
    -------
    pads_begin, pads_end, output_shape : tuples of int
        One int per spatial axis. Together with output_padding they satisfy the size formula of `conv_transpose`. A negative
        pads_end means that the output extends past the full scatter.

    Raises
    ------
    ValueError, TypeError
        An argument is wrong. The message names the argument, its value, and the values that are allowed.

    Examples
    --------
    >>> import convt
    >>> convt.resolve((32, 32), (3, 3), strides=2, auto_pad="same_upper")
    ((0, 0), (1, 1), (64, 64))
    """
    if not hasattr(kernel, "__len__") or isinstance(kernel, str):
        raise TypeError(f"kernel: got {type(kernel).__name__}, wanted one integer per spatial axis")
    rank = len(kernel)
    if rank < 1:
        raise ValueError("kernel: got no sizes, wanted one integer per spatial axis")
    kernel = _check.integers("kernel", kernel, rank, 1, scalar=False)
    if output_shape is not None:
        output_shape = _check.integers("output_shape", output_shape, rank, 0, scalar=rank == 1)
    return _padding.windows(
        _padding.CORE,
        _check.integers("in_sizes", in_sizes, rank, 0, scalar=False),
        kernel,
        _check.integers("strides", strides, rank, 1),
        _check.integers("dilations", dilations, rank, 1),
        _check.integers("pads_begin", pads_begin, rank, 0),
        _check.integers("pads_end", pads_end, rank, 0),
        _padding.parse_auto_pad(auto_pad),
        _check.integers("output_padding", output_padding, rank, 0),
        output_shape,
    )
