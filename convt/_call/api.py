"""The public functions: validation of arguments, windows, allocation of outputs, and execution of calls.

Layouts and filter formats become strides here. All modules below this one work on views of data and output in NXC axis order
(batch, *spatial, channels) and on a filter view (groups, ci, co, *kernel).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np

from .. import tuning
from .._base import activation as _activation
from .._base import check, padding, views, words
from .._base.problem import PRECISIONS, Problem
from .._plan import keep, plans, repeat, run
from .._run import config, log, memory
from ..algorithms import ALGORITHMS, NAMES, name_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from numpy.typing import NDArray
    from typing_extensions import Never, Unpack

    from .._base.typing import Array, AutoPad, CallKeywords, DType, Integers, Out

BACKENDS = ("auto", "native", "onednn", "reference", "tune")
# Orders of the filter's axes: X spatial, I in channels, O out channels, G groups. `filter_view` interprets them.
FILTER_FORMATS = ("XIO", "OIX", "IOX", "XOI", "GIOX")


class Keywords(NamedTuple):
    """The keywords of `conv_transpose` that an operator has too, as they were given. `parse` checks them."""

    strides: Any = 1
    pads_begin: Any = 0
    pads_end: Any = 0
    dilations: Any = 1
    auto_pad: Any = None
    output_padding: Any = 0
    output_shape: Any = None
    groups: Any = 1
    data_format: Any = "NXC"
    filter_format: Any = "XIO"
    activation: Any = None
    backend: Any = "auto"
    algorithm: Any = "auto"
    precision: Any = None


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
    filter_format: str = "XIO"  # order of axes of the caller's filter; `parse` returns a view in another order

    @property
    def rank(self):
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def filter_shape(self):
        """Shape of the caller's filter."""
        if self.filter_format == "GIOX":
            return (self.groups, self.ci, self.co, *self.kernel)
        sizes = {"X": self.kernel, "I": (self.groups * self.ci,), "O": (self.co,)}
        return sum((sizes[axis] for axis in self.filter_format), ())

    def windows(self, in_sizes):
        """Return ``(pads_begin, pads_end, output_sizes)`` for spatial input sizes, as `padding.windows` does."""
        return padding.windows(
            self.dialect, in_sizes, self.kernel, self.strides, self.dilations, self.pads_begin, self.pads_end,
            self.auto_pad, self.output_padding, self.output_shape,
        )  # fmt: skip

    def shape_of(self, shape):
        """Return ``(batch, in_sizes, channels)`` of a data shape. Raise ValueError if it does not match the filter."""
        if len(shape) != self.rank + 2:
            raise ValueError(
                f"data: got rank {len(shape)} (shape {tuple(shape)}), wanted rank {self.rank + 2} "
                f"because the filter has {words.count(self.rank, 'spatial axis', 'spatial axes')}"
            )
        channels = shape[-1] if self.data_format == "NXC" else shape[1]
        if channels != self.groups * self.ci:
            other = "NCX" if self.data_format == "NXC" else "NXC"
            fits = (shape[1] if other == "NCX" else shape[-1]) == self.groups * self.ci
            raise ValueError(
                f"data: got {words.count(channels, 'channel')} (shape {tuple(shape)}, {self.data_format}), "
                f"wanted {self.groups * self.ci}, the filter's" + (f"; the shape fits data_format={other!r}" if fits else "")
            )
        return shape[0], tuple(shape[1:-1] if self.data_format == "NXC" else shape[2:]), channels

    def problem(self, shape):
        """Return the `Problem` of a data shape. Raise MemoryError if its output exceeds the machine's memory."""
        problem = self.unchecked_problem(shape)
        config.check_size(problem)
        return problem

    def unchecked_problem(self, shape):
        """Return the `Problem` of a data shape without checking its size against the machine's memory."""
        batch, in_sizes, _ = self.shape_of(shape)
        begin, _, out_sizes = self.windows(in_sizes)
        axes = zip(in_sizes, self.kernel, self.strides, self.dilations, strict=True)
        # The stride of an axis with one input has no effect. A stride of at least the kernel gives each tap its own phase.
        # "invariant" sums in an order that depends on the strides.
        strides = tuple(max(s, k) if n == d == 1 and name_of(self.algorithm) != "invariant" else s for n, k, s, d in axes)
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
        raise ValueError(f"groups: got {groups}, wanted a divisor of the filter's {words.count(f.shape[0], 'in-channel')}")
    try:
        return f.reshape(groups, f.shape[0] // groups, *f.shape[1:])  # splitting one axis is always a view
    except ValueError:  # a filter without in channels accepts any number of groups, also one too large for a shape
        raise ValueError(f"groups: got {groups}, wanted a number for which {groups} x {f.shape[1:]} is a valid shape") from None


def parse(filter, bias, given, dialect=padding.CORE):
    """Validate all arguments except the data; ``given`` are `Keywords`.

    Return ``(Attributes, filter view (groups, ci, co, *kernel), bias or None)``.
    """
    check.word("data_format", given.data_format, words.DATA_FORMATS)
    check.word("filter_format", given.filter_format, FILTER_FORMATS)
    check.word("backend", given.backend, BACKENDS)
    check.word("algorithm", given.algorithm, ("auto", *NAMES, *ALGORITHMS), ("auto", *NAMES))
    precision = config.default_precision()
    if given.precision is not None:
        precision = check.word("precision", given.precision, PRECISIONS)
    groups = check.integer("groups", given.groups, 1)
    filter = check.floating("filter", filter)
    view = filter_view(filter, given.filter_format, groups)
    groups, ci, co, *kernel = view.shape
    rank = len(kernel)
    data_format, named_rank = words.DATA_FORMATS[given.data_format]
    if named_rank not in (None, rank):
        got = f"{given.data_format!r} with a filter of {words.count(rank, 'spatial axis', 'spatial axes')}"
        raise ValueError(f"data_format: got {got}, wanted {data_format!r} or a name for this rank")
    if groups < 1:
        raise ValueError(f"filter: got {groups} groups (shape {filter.shape}), wanted at least 1")
    config.check_memory("filter", filter.shape, filter.itemsize)
    if 0 in kernel:
        raise ValueError(f"filter: got an empty kernel axis (spatial shape {tuple(kernel)}), wanted sizes >= 1")
    attributes = Attributes(
        dialect=dialect,
        kernel=tuple(kernel),
        **_per_axis(given, rank, dialect),
        groups=groups,
        ci=ci,
        co=co,
        dtype=check.DTYPES[filter.dtype],
        data_format=data_format,
        activation=_activation.parse(given.activation),
        backend=config.default_backend() if given.backend == "auto" else given.backend,
        algorithm=given.algorithm,
        precision=precision if filter.dtype == np.float32 else PRECISIONS[0],  # only float32 has a choice
        filter_format=given.filter_format,
    )
    return attributes, view, check_bias(attributes, bias)


def _per_axis(given, rank, dialect):
    """Validate the keywords that have one value per spatial axis, and auto_pad. Return them by their names."""
    shape = given.output_shape
    return dict(
        output_shape=None if shape is None else check.integers("output_shape", shape, rank, 0, scalar=rank == 1),
        strides=check.integers("strides", given.strides, rank, 1),
        dilations=check.integers("dilations", given.dilations, rank, 1),
        pads_begin=check.integers("pads_begin", given.pads_begin, rank, 0),
        pads_end=check.integers("pads_end", given.pads_end, rank, 0),
        auto_pad=padding.parse_auto_pad(given.auto_pad, dialect),
        output_padding=check.integers("output_padding", given.output_padding, rank, 0),
    )


def check_bias(attributes, bias):
    """Return a NumPy view of the bias, or None. Raise if dtype or shape do not fit the filter."""
    if bias is None:
        return None
    bias = check.floating("bias", bias)
    if check.DTYPES[bias.dtype] != attributes.dtype:
        raise TypeError(f"bias: got dtype {bias.dtype}, wanted {attributes.dtype}, the filter's")
    wanted = attributes.groups * attributes.co
    if bias.shape != (wanted,):
        raise ValueError(f"bias: got shape {bias.shape}, wanted ({wanted},), one value per out channel")
    return bias


def check_data(attributes, data):
    data = check.floating("data", data)
    if check.DTYPES[data.dtype] != attributes.dtype:
        raise TypeError(f"data: got dtype {data.dtype}, wanted {attributes.dtype}, the filter's")
    return data


def _check_add(attributes, add, shape):
    """Return a NumPy view of the array to add. Raise if dtype or shape differ from those of the output."""
    add = check.floating("add", add)
    if check.DTYPES[add.dtype] != attributes.dtype:
        raise TypeError(f"add: got dtype {add.dtype}, wanted {attributes.dtype}, the filter's")
    if add.shape != shape:
        raise ValueError(f"add: got shape {add.shape}, wanted {shape}, the output's")
    return add


def execute(attributes, plans, data, inputs, out, problem=None, add=None):
    """Execute a validated call and return ``(output, PreparedCall)``.

    ``data``, ``out`` and ``add`` are in the user's layout. ``inputs`` lists (name, array) pairs that ``out`` must not overlap.
    The `PreparedCall` computes calls on arrays like ``data`` with contiguous outputs; it is None if they need all checks again.
    """
    problem = problem or attributes.problem(data.shape)
    shape = attributes.user_shape(problem.out_shape)
    if add is not None:
        add = _check_add(attributes, add, shape)
        inputs = (*inputs, ("add", add))
    result = memory.empty(shape, data.dtype) if out is None else views.check_out(out, shape, data.dtype, inputs)
    if not result.size:
        return (result if out is None else out), None
    view, target = attributes.nxc(data), attributes.nxc(result)
    source, scratch = views.readable_view(view), target if views.addressable(target) else np.empty(target.shape, target.dtype)
    addends = None
    if add is not None:
        scratch, addends = views.in_the_same_order(scratch, attributes.nxc(add))
    start = time.perf_counter() if config.verbose() else 0.0
    plan, call = run.compute(plans, problem, source, scratch, addends)
    if start:
        log.report(problem, plan, time.perf_counter() - start)
    if scratch is not target:
        target[...] = scratch
    repeatable = source is view and scratch is target and data.size and result.flags.c_contiguous
    # oneDNN may need a copy in NXC order.
    if start or not repeatable or (plan.backend != "native" and not data.flags.c_contiguous):
        call = None
    return (result if out is None else out), call


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
    algorithm="auto", precision=None, add=None, **unknown,
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
        "NXC" or "channels_last", and by the number of spatial axes "NWC" or "NLC", "NHWC" or "NDHWC"; "NCX" or
        "channels_first", and by the number of spatial axes "NCW" or "NCL", "NCHW" or "NCDHW".
    filter_format : "XIO", "OIX", "IOX", "XOI" or "GIOX", default "XIO"
        Shape of the filter: "XIO" is (*kernel, C, M / G), "OIX" is (M / G, C, *kernel), "IOX" is (C, M / G, *kernel), "XOI" is
        (*kernel, M / G, C), and "GIOX" is (G, C / G, M / G, *kernel).
    activation : str or tuple, optional
        A name of the table "Activations" of the API reference, such as "relu", or a tuple of a name and its parameters, such
        as ("leaky_relu", 0.2). Applied after ``bias`` and ``add`` as outputs are stored.
    out : array, optional
        Array for the result: it is written in place and returned. It must have the shape and dtype of the result, overlap no
        input, and be known to be writeable: a NumPy array, or an object whose DLPack capsule says so. Arrays of JAX and
        TensorFlow do not.
    add : array of the dtype of ``data`` and the shape of the result, optional
        Added to the output before the activation, as a decoder adds the features of an encoder. float16 and bfloat16 are
        rounded before the addition and after it.
    backend : "auto", "native", "onednn", "reference" or, in `ConvTranspose` only, "tune"
        "auto" uses the native backend. If oneDNN is installed, `ConvTranspose` uses oneDNN for layers on which it is known to
        be faster. "onednn" needs ``pip install onednn-cpu-gomp``, or CONVT_ONEDNN_LIB with the path of libdnnl.so.3; if
        CONVT_ONEDNN_LIB is set, no other place is searched. "reference" is a slow implementation in NumPy. "tune" measures
        oneDNN and every native algorithm that "auto" permits and whose expected cost is at most a third above the lowest. It
        measures at the first call of a shape, with the data and threads of that call, for about a second, and uses the fastest
        from then on. The ``note`` of the plan lists the times. If other programs disturb the measurement too much,
        there is a RuntimeWarning, and the algorithm is the one of "auto".
    algorithm : str, default "auto"
        Algorithm of the native backend. "auto" uses the algorithm with the lowest expected cost among those that are as
        accurate as ``precision`` requires. Every other name requires that algorithm, and raises ValueError if it does not
        support the problem. The CPU and ``precision`` determine on which units an algorithm may multiply (vectors, AMX tiles,
        dot products); the one with the lowest expected cost is used (`ConvTranspose.plan` returns it):

        * "direct": one implicit GEMM for each phase of the output; supports every problem.
        * "winograd": fewer multiplications if the kernel is longer than the stride; errors are up to about twice those of
          "direct", where ``precision`` permits it up to 30 times, and up to 200 times with three spatial axes.
        * "scatter": for few out channels.
        * "depthwise": for many small groups, or few out channels.
        * "rows": for NCX with few channels or small groups.
        * "turned": for NCX; "direct" with pixels as GEMM columns.
        * "unpacked": for few pixels and weights passed with each call; multiplies a filter in IOX order without packing it.
        * "invariant": "direct" or "depthwise", in an order of sums that depends on the operator alone. The bits of an output
          do not change with the size of the data, the batch, or the position, so that a stream (`ConvTranspose.stream`) has
          the bits of a call on the whole. "auto" never takes it.
    precision : None, "highest", "high" or "medium"
        Lowest accuracy of float32 that convt may use where it is faster. Other dtypes are computed as accurately as
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
    if unknown:
        check.keywords(unknown, (*Keywords._fields, "out", "add"))
    given = (
        strides, pads_begin, pads_end, dilations, auto_pad, output_padding, output_shape, groups, data_format, filter_format,
        activation, backend, algorithm, precision,
    )  # fmt: skip
    return one_shot(padding.CORE, data, filter, bias, given, out, add)


_FEW_BYTES = 1 << 20  # a filter with repeated elements of at most these bytes is copied before it is checked
_ONE_SHOT_CALLS = keep.Recent(keep.ONE_SHOT_PLANS)  # signature of a one-shot call -> PreparedCall


def one_shot(dialect, data, filter, bias, given, out=None, add=None, counts_packing=True):
    """Compute `conv_transpose` in any dialect.

    ``given`` are `Keywords`, or a tuple of their values, which is made faster. Without ``counts_packing``, the algorithm is the
    one that an operator with packed weights takes, so that the bits of the result are those of the operator.
    """
    threads = config.get_num_threads()
    kind = dialect if counts_packing else f"{dialect}, as packed, {tuning.version}"
    if (settings := config.scoped.get())[1] or settings[2]:
        kind = f"{kind}, {settings[1]}, {settings[2]}"  # the backend and precision that "auto" and None stand for
    calls = {} if config.verbose_scopes else _ONE_SHOT_CALLS.entries
    found = repeat.repeat(calls, data, out, threads, add, filter, bias, kind, given)
    if type(found) is np.ndarray:  # otherwise the signature, or None
        return found
    if not type(data) is type(filter) is np.ndarray or type(bias) not in (np.ndarray, type(None)):
        data, filter = check.array("data", data), check.array("filter", filter)
        bias = None if bias is None else check.array("bias", bias)
        return one_shot(dialect, data, filter, bias, given, out, add, counts_packing)
    if out is None and 0 < filter.nbytes <= _FEW_BYTES and 0 in filter.strides:  # here, because the copy may need no checks
        return one_shot(dialect, data, filter.copy(), bias, given, None, add, counts_packing)
    parsed, view, own_bias = parse(filter, bias, Keywords(*given), dialect)
    data = check_data(parsed, data)
    if parsed.backend == "tune":
        raise ValueError("backend: got 'tune' for a single call, wanted it in ConvTranspose, which measures once per shape")
    # Plans are kept only for arrays without repeated elements, because strides of 0 do not define the order of axes in which
    # 16-bit types are widened. A filter with repeated elements, such as a result of ``expand``, is copied, which costs less
    # than a new plan.
    can_repeat, own = views.addressable(filter) and views.elements_disjoint(filter), view
    if not can_repeat:
        copy = filter.copy()
        if out is None:
            return one_shot(dialect, data, copy, bias, given, None, add, counts_packing)
        own = filter_view(copy, parsed.filter_format, parsed.groups)  # `out` must not overlap the caller's filter
    once = plans.Plans(parsed, own, views.readable_view(own_bias), one_shot=True, counts_packing=counts_packing)
    inputs = ("data", data), ("filter", view), ("bias", own_bias)
    result, call = execute(parsed, once, data, inputs, out, add=add)
    # A call that fell back to another algorithm because of its weights is not kept: the next weights may not need the fallback.
    may_keep = call is not None and call.as_chosen and call.form.finite
    if may_keep and found is not None and can_repeat and (bias is None or views.addressable(bias)):
        call.form.keep(None)  # each call packs its own weights
        _ONE_SHOT_CALLS.keep(found, call)
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
    plans.clear()
    memory.clear()


def resolve(
    in_sizes: Sequence[SupportsIndex] | NDArray[np.integer[Any]], kernel: Sequence[SupportsIndex] | NDArray[np.integer[Any]], *,
    strides: Integers = 1, pads_begin: Integers = 0, pads_end: Integers = 0, dilations: Integers = 1, auto_pad: AutoPad = None,
    output_padding: Integers = 0, output_shape: Integers | None = None, **unknown: Never,
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
    check.keywords(unknown, Keywords._fields[:7])
    if not hasattr(kernel, "__len__") or isinstance(kernel, str):
        raise TypeError(f"kernel: got {type(kernel).__name__}, wanted one integer per spatial axis")
    rank = len(kernel)
    if rank < 1:
        raise ValueError("kernel: got no sizes, wanted one integer per spatial axis")
    kernel = check.integers("kernel", kernel, rank, 1, scalar=False)
    in_sizes = check.integers("in_sizes", in_sizes, rank, 0, scalar=False)
    given = Keywords(strides, pads_begin, pads_end, dilations, auto_pad, output_padding, output_shape)
    return padding.windows(padding.CORE, in_sizes, kernel, **_per_axis(given, rank, padding.CORE))
