"""The facade: check, coerce, resolve the window, allocate, hand over. Whatever can be wrong is found here.

Everything below this module works on views in NXC axis order (batch, *spatial, channels) and a filter view
(groups, ci, co, *kernel); layouts and filter formats end here, as strides.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, overload

import numpy as np

from . import _activation, _check, _config, _keep, _memory, _padding, _plan, _repeat, _words
from ._problem import PRECISIONS, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import SupportsIndex

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._typing import Array, AutoPad, CallKeywords, DType, Integers, OperatorKeywords, Out
else:
    DType = TypeVar("DType")

BACKENDS = ("auto", "native", "onednn", "reference", "tune")
# What people call the two layouts of data -> the layout, and the spatial axes that the name has
DATA_FORMATS = {
    "NXC": ("NXC", None), "channels_last": ("NXC", None), "NWC": ("NXC", 1), "NHWC": ("NXC", 2), "NDHWC": ("NXC", 3),
    "NCX": ("NCX", None), "channels_first": ("NCX", None), "NCW": ("NCX", 1), "NCHW": ("NCX", 2), "NCDHW": ("NCX", 3),
}  # fmt: skip
# Filter format -> where the in-channel axis and the out-channel axis of one group stand; "g" leads in GIOX.
FILTER_FORMATS = ("XIO", "OIX", "IOX", "XOI", "GIOX")


class Attributes(NamedTuple):
    """The attributes of one operator, checked; what depends on the data's shape is not here."""

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
        return len(self.kernel)

    def windows(self, in_sizes):
        return _padding.windows(
            self.dialect, in_sizes, self.kernel, self.strides, self.dilations, self.pads_begin, self.pads_end,
            self.auto_pad, self.output_padding, self.output_shape,
        )  # fmt: skip

    def shape_of(self, shape):
        """``(batch, in_sizes, channels)`` of a data shape, whose rank and channels must fit the filter."""
        if len(shape) != self.rank + 2:
            raise ValueError(
                f"data: got rank {len(shape)} (shape {tuple(shape)}), wanted rank {self.rank + 2} "
                f"as the filter has {_words.count(self.rank, 'spatial axis', 'spatial axes')}"
            )
        channels = shape[-1] if self.data_format == "NXC" else shape[1]
        if channels != self.groups * self.ci:
            other = "NCX" if self.data_format == "NXC" else "NXC"
            fits = (shape[1] if other == "NCX" else shape[-1]) == self.groups * self.ci
            raise ValueError(
                f"data: got {_words.count(channels, 'channel')} (shape {tuple(shape)}, {self.data_format}), "
                f"wanted {self.groups * self.ci} as the filter says" + (f"; it would fit data_format={other!r}" if fits else "")
            )
        return shape[0], tuple(shape[1:-1] if self.data_format == "NXC" else shape[2:]), channels

    def problem(self, shape):
        problem = self.of_any_size(shape)
        _config.check_size(problem)
        return problem

    def of_any_size(self, shape):
        """The problem, though its output may be larger than memory."""
        batch, in_sizes, _ = self.shape_of(shape)
        begin, _, out_sizes = self.windows(in_sizes)
        axes = zip(in_sizes, self.kernel, self.strides, self.dilations, strict=True)
        # A single input takes no step: with a stride that keeps its taps apart each has a phase of its own.
        strides = tuple(max(s, k) if n == d == 1 else s for n, k, s, d in axes)
        return Problem(
            self.dtype, batch, self.groups, self.ci, self.co, in_sizes, self.kernel, strides, self.dilations,
            begin, out_sizes, self.activation, self.data_format != "NXC" and self.groups * max(self.ci, self.co) > 1,
            self.precision,
        )  # fmt: skip

    def user_shape(self, nxc_shape):
        """A shape in NXC order, as the user's data_format orders it."""
        if self.data_format == "NXC":
            return tuple(nxc_shape)
        return (nxc_shape[0], nxc_shape[-1], *nxc_shape[1:-1])

    def nxc(self, array):
        """A view of the user's array with the axes in NXC order."""
        if self.data_format == "NXC":
            return array
        return array.transpose(0, *range(2, array.ndim), 1)


def filter_view(filter, filter_format, groups):
    """View any filter format as (groups, ci, co, *kernel); never copies. Raises ValueError where groups don't fit."""
    f = filter
    if f.ndim < (4 if filter_format == "GIOX" else 3):
        raise ValueError(
            f"filter: got rank {f.ndim} (shape {f.shape}), wanted at least one spatial axis beside the channels "
            f"of format {filter_format}"
        )
    if filter_format == "GIOX":
        if groups not in (1, f.shape[0]):  # 1 is the keyword's default: the filter itself says how many
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
    except ValueError:  # of no in-channels any number of groups is a divisor
        raise ValueError(f"groups: got {groups}, wanted so few that {groups} x {f.shape[1:]} can be an array's shape") from None


def parse(
    filter, bias, dialect=_padding.CORE, *, strides=1, pads_begin=0, pads_end=0, dilations=1, auto_pad=None,
    output_padding=0, output_shape=None, groups=1, data_format="NXC", filter_format="XIO", activation=None,
    backend="auto", algorithm="auto", precision=None,
):  # fmt: skip
    """Check everything but the data: ``(attributes, filter view (groups, ci, co, *kernel), bias or None)``."""
    _check.word("data_format", data_format, DATA_FORMATS)
    _check.word("filter_format", filter_format, FILTER_FORMATS)
    _check.word("backend", backend, BACKENDS)
    _check.word("algorithm", algorithm, ("auto", *_plan.ALGORITHMS))
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
        raise ValueError(f"data_format: got {named!r} with a filter of {axes}, wanted {data_format!r} or its name")
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
        precision=precision if filter.dtype == np.float32 else PRECISIONS[0],  # it speaks of float32 alone
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
    """A NumPy view of the caller's ``out``, which must fit exactly and overlap no input."""
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
        raise ValueError("out: got an array whose elements share memory, wanted one element per place")
    for name, other in inputs:
        if other is not None and _overlap(view, other):
            raise ValueError(f"out: got an array that overlaps {name} in memory, wanted one that does not")
    return view


def _apart(view):
    """Whether every element has memory of its own: each stride steps over all that the smaller ones reach."""
    reach = view.itemsize
    for stride, n in sorted((abs(s), n) for s, n in zip(view.strides, view.shape, strict=True) if n > 1):
        if stride < reach and view.size:
            return False
        reach += stride * (n - 1)
    return True


def _overlap(a, b):
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)
    except np.exceptions.TooHardError:
        return True  # undecided within the work allowed; refusing is the safe answer


def _addressable(view):
    """Whether the kernels can walk the view: element-sized strides and aligned elements."""
    return view.flags.aligned and all(s % view.itemsize == 0 for s in view.strides)


def _walkable(view):
    """The view itself where the kernels can walk it, else a copy whose axes lie in memory as before: plans depend on that."""
    return view if view is None or _addressable(view) else view.copy("K")


def _execute(attributes, operator, data, inputs, out, problem=None):
    """Run a checked call on views in NXC order: ``(output, Bound)``. The `_repeat.Bound` does repeated calls on arrays like
    ``data``, whose output is contiguous; it is None where calls need every check."""
    problem = problem or attributes.problem(data.shape)
    shape = attributes.user_shape(problem.out_shape)
    result = _memory.empty(shape, data.dtype) if out is None else _check_out(out, shape, data.dtype, inputs)
    if not result.size:
        return (result if out is None else out), None
    view, target = attributes.nxc(data), attributes.nxc(result)
    source, scratch = _walkable(view), target if _addressable(target) else np.empty(target.shape, target.dtype)
    start = time.perf_counter() if _config.verbose() else 0.0
    plan, bound = operator.compute(problem, source, scratch)
    if start:
        _config.report(problem, plan, time.perf_counter() - start)
    if scratch is not target:
        target[...] = scratch
    alike = source is view and scratch is target and data.size and result.flags.c_contiguous
    if start or not alike or (plan.backend != "native" and not data.flags.c_contiguous):  # it may want a copy in NXC order
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
    """Transposed convolution of ``data`` with ``filter``: oneDNN Graph's ConvTranspose-1.

    Parameters
    ----------
    data : array, rank 3 or more
        (N, *spatial, C) for data_format "NXC" ("channels_last", or "NWC", "NHWC", "NDHWC" by the rank), (N, C, *spatial) for
        "NCX" ("channels_first", "NCW", "NCHW", "NCDHW"). float32, float64, float16 or bfloat16
        (ml_dtypes); float16 and bfloat16 accumulate in float32. Any strides; NumPy, or anything with ``__dlpack__`` or
        ``__array__`` in CPU memory.
    filter : array of the same dtype
        By filter_format: "XIO" (*kernel, C, out_channels / groups), "OIX" (out_channels / groups, C, *kernel),
        "IOX" (C, out_channels / groups, *kernel), "XOI" (*kernel, out_channels / groups, C),
        "GIOX" (groups, C / groups, out_channels / groups, *kernel).
    bias : array (out_channels,), optional
    strides, dilations, pads_begin, pads_end, output_padding : int or one int per spatial axis
        In output pixels. Output size of an axis:
        ``stride * (in - 1) + output_padding + (k - 1) * dilation + 1 - pads_begin - pads_end``.
        Where output_padding reaches past every product, the output is zero plus bias.
    auto_pad : None, "none", "notset", "same_upper", "same_lower" or "valid", any case
        When set, pads_begin and pads_end are ignored. SAME gives in * stride + output_padding if
        (k - 1) * dilation + 1 is at least the stride, else it has no pads. VALID has none.
    output_shape : ints, one per spatial axis, optional
        Explicit spatial size; the pads are then computed, the odd pixel lost at the beginning. With auto_pad it must equal
        what auto_pad gives. What lies past the full scatter is zero plus bias.
    groups : int
        Contiguous blocks of the in-channel axis, each with its own block of out channels.
    activation : None, "relu", ("leaky_relu", slope), ("clip", low, high), "tanh", "sigmoid", "gelu" (erf) or "swish"
        Fused with the bias into the store.
    out : array, optional
        Written in place and returned: exact shape and dtype, writeable, overlapping no input.
    backend : "auto", "native", "onednn", "reference" or, in `ConvTranspose` only, "tune"
        "onednn" needs ``pip install "convt[onednn]"`` (or CONVT_ONEDNN_LIB, the path of libdnnl.so.3, and then no other place
        is looked at). "auto" uses it, if there, for the layers packed once on which it is known to be faster. "tune"
        measures it and the native algorithms that "auto" may take and whose expected cost is within a third of the least, at
        the first call of a shape, on its data and threads (about half a second), and keeps to the fastest; the plan's ``note``
        has the times. Where other programs disturb too much to decide, there is a RuntimeWarning, and "auto" chooses.
    algorithm : str
        Of the native backend: "auto" takes the one of least expected cost, of those that are as exact as ``precision`` wants.
        "direct" does every problem. "winograd" multiplies less where the kernel is longer than the stride, with errors up to
        about twice those of "direct"; "winograd6" multiplies less again, with errors of 5 to 30 times, some hundreds on three
        axes. "scatter" is for few out channels, "depthwise" for many small groups, or few out channels. Of NCX alone: "rows" is
        for few channels or small groups, "turned" is "direct" with pixels as columns. "unpacked" multiplies a filter of IOX
        order where it lies, for weights that come with a call, and few pixels. "matrix", "matrix_winograd",
        "matrix_scatter" and "matrix_turned" are these on AMX tiles, which multiply a float32 as three bfloat16 parts, and no
        less exact; "matrix_high" (with "_winograd", "_scatter" and "_turned") as two, "matrix_medium" ("_scatter", "_turned")
        as one.
        "dots" and "dots_scatter" are "direct" and "scatter" by AVX512_BF16's dot products, of bfloat16 or of a float32 rounded
        to it. One that does not do the problem is a ValueError.
    precision : None, "highest", "high" or "medium"
        What "auto" may take for float32, if it is faster; other dtypes are computed as exactly as they can hold. "highest": as
        exact as sums of float32 products. "high": as products of TensorFloat-32, of 10 bits, or better. "medium": as products
        of bfloat16, of 7 bits, summed in float32. None: CONVT_PRECISION, or "highest". The plan says what was taken.

    Returns
    -------
    NumPy array of data's dtype and layout, or ``out``.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what it got and what was wanted. Nothing is written to ``out``.
    BackendUnavailableError
        The backend asked for by name is not there or can't do this problem.
    MemoryError
        The output cannot exist in this machine's memory.

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
_SHOTS = _keep.Recent(_keep.ONE_SHOT_PLANS)  # of Shots, by the signature of a one-shot call


def one_shot(dialect, data, filter, bias, names, values, out=None):
    """conv_transpose for any dialect; ``names`` and ``values``, a tuple, are those of attributes of `parse`, in the same order
    at every call."""
    if not type(data) is type(filter) is np.ndarray or type(bias) not in (np.ndarray, type(None)):
        data, filter = _check.array("data", data), _check.array("filter", filter)
        bias = None if bias is None else _check.array("bias", bias)
    threads = _config.get_num_threads()
    found = _repeat.repeat_shot(_SHOTS.entries, dialect, data, filter, bias, values, out, threads)
    if type(found) is np.ndarray:  # else it is the signature, or None
        return found
    parsed, view, own_bias = parse(filter, bias, dialect, **dict(zip(names, values, strict=True)))
    data = _check_data(parsed, data)
    if parsed.backend == "tune":
        raise ValueError("backend: got 'tune' for a single call, wanted it in ConvTranspose, which measures once per shape")
    # A plan is kept only for elements that have memory of their own: others leave the order of axes open, in which 16-bit types
    # are widened. So a filter that repeats its elements, as ``expand`` makes it, is copied, which costs less than a plan.
    repeats = _addressable(filter) and _apart(filter)
    if not repeats and out is None:
        return one_shot(dialect, data, filter.copy(), bias, names, values)
    operator = _plan.Operator(parsed, _walkable(view), _walkable(own_bias), lasting=False)
    result, bound = _execute(parsed, operator, data, (("data", data), ("filter", view), ("bias", own_bias)), out)
    # Other weights of the next call may be ones that the algorithm which was chosen can take.
    rule = bound is not None and bound.as_chosen and bound.form.finite
    if rule and found is not None and repeats and (bias is None or _addressable(bias)):
        _SHOTS.keep(found, _repeat.Shot(bound))
    return result


def clear_caches() -> None:
    """Give back what is kept for later calls: plans, spare workspaces, the memory of outputs that were dropped, and what is
    known of one-shot calls. Weights that operators have packed stay. The next calls take longer; results are the same.

    Memory is kept up to these bounds: 16 MiB of an operator's plans, as much of one-shot calls, and 64 MiB of all plans;
    workspaces of 8 calls; 64 MiB of one-shot calls' packed weights; 1 GiB of dropped outputs of 256 KiB and more, 8 at most.
    The packed weights of operators have a bound of their own: `set_packed_weights_limit`.

    Examples
    --------
    >>> import convt
    >>> convt.clear_caches()
    """
    _plan.clear()
    _memory.clear()


class ConvTranspose(Generic[DType]):
    """A transposed convolution with its weights packed once; call it on data of any batch and spatial size.

    Takes the keywords of `conv_transpose` but ``out``, with the same meanings and errors (oneDNN Graph ConvTranspose-1).
    Filter and bias are copied: changing the caller's arrays later has no effect. The plan for a data shape and a number of
    threads is made at their first call and kept, up to 16 MiB of plans, of which those go first that were not used for longest.
    Packed weights of all shapes together have a bound, too: `set_packed_weights_limit`. Safe to call from many threads, and
    picklable.

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
    def borrowing(
        cls, filter: NDArray[DType], bias: NDArray[Any] | None, dialect: str = _padding.CORE,
        weights: _keep.PackedWeights | None = None, **attributes: Any,
    ) -> ConvTranspose[DType]:  # fmt: skip
        """An operator that reads filter and bias in the caller's memory, without a copy: the caller must not change them.

        ``weights`` bounds its packed weights, together with those of other operators of the same filter.
        """
        op = cls.__new__(cls)
        parsed, view, bias = parse(filter, bias, dialect, **attributes)
        op._set(parsed, _walkable(view), _walkable(bias), weights)
        return op

    def _set(self, attributes, filter, bias, weights=None):
        self._attributes = attributes
        self._filter = filter
        self._bias = bias
        self._operator = _plan.Operator(attributes, filter, bias, weights=weights)
        self._kept = self._operator.plans.entries  # Bounds are found by the layout of data and threads as well

    @overload
    def __call__(self, data: Array, out: None = None) -> NDArray[DType]: ...

    @overload
    def __call__(self, data: Array, out: Out) -> Out: ...

    def __call__(self, data, out=None):
        """Apply to ``data``; see `conv_transpose` for shapes, dtypes, ``out`` and errors."""
        if type(data) is not np.ndarray:
            data = _check.array("data", data)
        threads = _config.get_num_threads()
        found = _repeat.repeat(self._kept, data, out, threads)
        if type(found) is np.ndarray:  # else it is the layout of data and threads
            return found
        data = _check_data(self._attributes, data)
        result, bound = _execute(self._attributes, self._operator, data, (("data", data),), out)
        if bound is not None:
            self._operator.plans.keep(found, bound)
        return result

    def part(self, data: NDArray[DType], problem: Problem) -> NDArray[DType]:
        """What ``problem``, a part of a larger one, has for output."""
        _config.check_size(problem)
        return _execute(self._attributes, self._operator, data, (), None, problem)[0]

    def output_shape(self, shape: Iterable[SupportsIndex]) -> tuple[int, ...]:
        """The full output shape, batch and channels included, for a data shape."""
        return self._attributes.user_shape(self._attributes.problem(_shape(shape)).out_shape)

    def plan(self, shape: Iterable[SupportsIndex]) -> _plan.Plan:
        """What will run for contiguous data of this shape: a `Plan` (backend, algorithm, ISA, tile, threads, bytes)."""
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
        raise TypeError(f"shape: got {type(shape).__name__}, wanted the sizes of the data") from None
    return tuple(_check.integer("shape", item, 0) for item in items)


def resolve(
    in_sizes: Sequence[SupportsIndex] | NDArray[np.integer[Any]], kernel: Sequence[SupportsIndex] | NDArray[np.integer[Any]], *,
    strides: Integers = 1, pads_begin: Integers = 0, pads_end: Integers = 0, dilations: Integers = 1, auto_pad: AutoPad = None,
    output_padding: Integers = 0, output_shape: Integers | None = None,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:  # fmt: skip
    """Turn auto_pad and output_shape into explicit pads, by oneDNN Graph's rules; no data needed.

    ``in_sizes`` and ``kernel`` are the spatial sizes of data and filter, the other arguments as in `conv_transpose`.
    Returns ``(pads_begin, pads_end, output_shape)``, three tuples of ints; a pads_end below 0 says that the output reaches
    past the full scatter. With the output_padding given they satisfy the size formula of `conv_transpose`.

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
