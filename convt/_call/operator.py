"""`ConvTranspose`: the operator that packs its weights once, and keeps plans."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from .. import _core
from .._base import activation as _activation
from .._base import check, padding, terminal, views
from .._plan import keep, plan, plans, repeat
from .._run import config
from . import api
from .stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import SupportsIndex

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from .._base.problem import Problem
    from .._base.typing import Array, DType, OperatorKeywords, Out
else:
    DType = TypeVar("DType")


class ConvTranspose(Generic[DType]):
    """A transposed convolution with fixed weights, which are packed once, for data of any batch and spatial size.

    Implements oneDNN Graph's ConvTranspose-1. Filter and bias are copied, so later changes of the caller's arrays have no
    effect. The first call with a data shape and a number of threads makes a plan. The operator keeps up to 16 MiB of plans and
    drops the least recently used ones first. `set_packed_weights_limit` limits the memory of packed weights. An operator is
    thread-safe and can be pickled. `update` replaces the weights.

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

    _ARGUMENTS: Mapping[str, str] = MappingProxyType({})  # names of arguments in errors, where they differ
    _steps: Mapping[Any, Any] = MappingProxyType({})  # the steps of streams: see steps.py

    @overload
    def __init__(self, filter: NDArray[DType], bias: Array | None = None, **keywords: Unpack[OperatorKeywords]) -> None: ...

    @overload
    def __init__(self, filter: Array, bias: Array | None = None, **keywords: Unpack[OperatorKeywords]) -> None: ...

    def __init__(
        self, filter, bias=None, *, strides=1, pads_begin=0, pads_end=0, dilations=1, auto_pad=None, output_padding=0,
        output_shape=None, groups=1, data_format="NXC", filter_format="XIO", activation=None, backend="auto",
        algorithm="auto", precision=None, **unknown,
    ):  # fmt: skip
        check.keywords(unknown, api.Keywords._fields)
        self._copy(filter, bias, api.Keywords(
            strides, pads_begin, pads_end, dilations, auto_pad, output_padding, output_shape, groups, data_format,
            filter_format, activation, backend, algorithm, precision,
        ))  # fmt: skip

    @classmethod
    def _borrowing(
        cls, filter: NDArray[DType], bias: NDArray[Any] | None, dialect: str = padding.CORE,
        weights: keep.PackedWeights | None = None, **keywords: Any,
    ) -> ConvTranspose[DType]:  # fmt: skip
        """Create an operator that reads filter and bias in the caller's memory, which the caller must not change.

        ``dialect`` selects the padding rules, ``keywords`` are `api.Keywords`. ``weights`` limits the packed weights of several
        operators of one filter together. Arrays that the kernels cannot read are copied.
        """
        op = cls.__new__(cls)
        parsed, view, bias = api.parse(filter, bias, api.Keywords(**keywords), dialect)
        op._set(parsed, views.readable_view(view), views.readable_view(bias), weights)
        return op

    def _with_arrays(self, filter, bias, weights):
        """Return an operator like this one that reads other arrays in the caller's memory, as `_borrowing`, with its plans.

        Return None if the filter has other strides, because plans depend on them.
        """
        view = views.readable_view(api.filter_view(filter, self._attributes.filter_format, self._attributes.groups))
        if view.strides != self._plans.filter.strides:
            return None
        op = type(self).__new__(type(self))
        op._attributes, op._plans = self._attributes, self._plans.with_weights(view, views.readable_view(bias), weights)
        return op

    def _copy(self, filter, bias, given, dialect=padding.CORE):
        """Initialise the operator from copies of filter and bias; ``given`` are `api.Keywords`."""
        attributes, view, bias = api.parse(filter, bias, given, dialect)
        self._set(attributes, view.copy(order="K"), None if bias is None else bias.copy())

    def _set(self, attributes, filter, bias, weights=None):
        self._attributes, self._plans = attributes, plans.Plans(attributes, filter, bias, weights)

    @overload
    def __call__(self, data: Array, out: None = None, *, add: Array | None = None) -> NDArray[DType]: ...

    @overload
    def __call__(self, data: Array, out: Out, *, add: Array | None = None) -> Out: ...

    def __call__(self, data, out=None, *, add=None):
        """Compute the transposed convolution of ``data``.

        Parameters
        ----------
        data : array of the filter's dtype
            Data of `conv_transpose`.
        out : array, optional
            Array for the result, as in `conv_transpose`.
        add : array of the filter's dtype and the shape of the result, optional
            Added to the output before the activation.

        Returns
        -------
        array
            ``out`` if it is given, else a new C-contiguous NumPy array.

        Raises
        ------
        ValueError, TypeError, BackendUnavailableError, MemoryError
            As in `conv_transpose`.
        """
        own = self._plans  # `update` replaces it
        found = repeat.repeat({} if config.verbose_scopes else own.calls.entries, data, out, config.get_num_threads(), add)
        if type(found) is np.ndarray:  # otherwise the signature of the call, or None
            return found
        if found is None:
            with check.renamed(self._ARGUMENTS):
                data = check.array("data", data)
            return self(data, out, add=add)
        result, call = self._compute(own, self._attributes, data, out, add)
        if call is not None:
            own.calls.keep(found, call)
        return result

    def _compute(self, plans, attributes, data, out, add=None):
        """Compute a call with all checks and return ``(output, PreparedCall)``, as `api.execute` does."""
        with check.renamed(self._ARGUMENTS):
            data = api.check_data(attributes, data)
            return api.execute(attributes, plans, data, (("data", data),), out, add=add)

    def update(self, filter: Array, bias: Array | None = None) -> None:
        """Replace the weights.

        Filter and bias are copied. Plans are kept, and the weights are packed again for all plans whose packed weights the
        operator keeps, which is also the time that it takes. Old and new packed weights exist together until it returns. Calls
        that other threads make at the same time use either the old weights or the new ones.

        Parameters
        ----------
        filter : array
            Filter of the same shape, dtype and order of axes as before.
        bias : array of the filter's dtype, shape (out_channels,), optional
            Bias; required if the operator has one, else not allowed.

        Raises
        ------
        ValueError, TypeError
            The shape or dtype differs from before, or the bias is missing or unexpected. The weights are unchanged.
        MemoryError
            The weights do not fit into memory. The old ones stay in use.

        Examples
        --------
        >>> import numpy as np, convt
        >>> op = convt.ConvTranspose(np.ones((2, 1, 1), np.float32), strides=2)
        >>> op.update(np.full((2, 1, 1), 3, np.float32))
        >>> op(np.ones((1, 2, 1), np.float32)).ravel().tolist()
        [3.0, 3.0, 3.0, 3.0]
        """
        with check.renamed(self._ARGUMENTS):
            self._plans = self._plans.with_weights(*self._checked_weights(filter, bias))
        _core.invalidate_known_calls()

    def _checked_weights(self, filter, bias):
        """Return copies of new weights: the filter as a view (groups, ci, co, *kernel), and the bias."""
        attributes, old = self._attributes, self._plans
        filter = check.floating("filter", filter)
        if check.DTYPES[filter.dtype] != attributes.dtype:
            raise TypeError(f"filter: got dtype {filter.dtype}, wanted {attributes.dtype}, the operator's")
        if filter.shape != attributes.filter_shape:
            raise ValueError(f"filter: got shape {filter.shape}, wanted {attributes.filter_shape}, the operator's")
        bias = api.check_bias(attributes, bias)
        if (bias is None) != (old.bias is None):
            got, wanted, has = ("an array", "None", "no") if old.bias is None else ("None", "an array", "a")
            raise ValueError(f"bias: got {got}, wanted {wanted}, because the operator has {has} bias")
        view = np.empty_like(old.filter)  # the memory order of the old filter, which plans may depend on
        view[...] = api.filter_view(filter, attributes.filter_format, attributes.groups)
        return view, None if bias is None else bias.copy()

    def _part(self, data: NDArray[DType], problem: Problem) -> NDArray[DType]:
        """Compute the output of ``problem``, a part of a larger problem, from the part's ``data``."""
        config.check_size(problem)
        return api.execute(self._attributes, self._plans, data, (), None, problem)[0]

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

    def plan(self, shape: Iterable[SupportsIndex]) -> plan.Plan:
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
        return plan.describe(self._plans, self._attributes.problem(_shape(shape)))

    def stream(self, batch: SupportsIndex = 1, axis: SupportsIndex = -1, trim: str | None = None) -> Stream:
        """Return a stream, which computes data that arrives in chunks along one spatial axis.

        The outputs of all chunks and of `Stream.finish`, one after the other, are the output of the whole. Their bits do not
        depend on the division into chunks. With ``algorithm="invariant"`` they are also the bits of ``op(whole)``. Any other
        operator computes ``op(whole)`` with an algorithm that depends on the length, so that last bits may differ. Streams use
        the native backend. After `update`, the next chunk is computed with the new weights.

        Parameters
        ----------
        batch : int, default 1
            Batch of each chunk.
        axis : int, default -1
            The streamed axis: 0 is the first spatial axis, -1 the last.
        trim : None or "right"
            With "right", the output has ``stride`` times the length of the input, the convention of causal decoders (Encodec,
            Mimi, SoundStream): pads_end and output_padding of the axis have no effect, and the tail is never shown.

        Returns
        -------
        Stream
            A stream before its first chunk.

        Raises
        ------
        ValueError, TypeError
            An argument is wrong, or the operator has an output_shape.

        Examples
        --------
        >>> import numpy as np, convt
        >>> op = convt.ConvTranspose(np.ones((4, 1, 1), np.float32), strides=2, pads_begin=1, pads_end=1)
        >>> stream = op.stream()
        >>> [stream(np.full((1, n, 1), n, np.float32)).ravel().tolist() for n in (1, 2)]
        [[1.0], [3.0, 3.0, 4.0, 4.0]]
        >>> stream.finish().ravel().tolist()
        [2.0]
        """
        return Stream(self, batch, axis, trim)

    def __reduce__(self) -> tuple[Any, ...]:
        plans = self._plans
        return _rebuild, (type(self), self._attributes._asdict(), plans.filter, plans.bias)

    def __repr__(self) -> str:
        a = self._attributes
        activation = "" if a.activation[0] == "none" else f", activation={_activation.shown(a.activation)!r}"
        return (
            f"{type(self).__name__}({a.groups * a.ci} -> {a.groups * a.co}, kernel={a.kernel}, strides={a.strides}, "
            f"groups={a.groups}, dtype={a.dtype}, data_format={a.data_format!r}{activation})"
        )

    def _repr_html_(self) -> str:
        """Return a table of the attributes for notebooks."""
        a, shown = self._attributes, {}
        channels = f"{a.groups * a.ci} -> {a.groups * a.co}"
        named = a._asdict() | {"activation": _activation.shown(a.activation), "channels": channels}
        for name in _SHOWN:
            if named[name] is not None:
                shown[name] = named[name]
        return terminal.in_html((), shown.items(), type(self).__name__)


_SHOWN = (
    "channels", "kernel", "strides", "dilations", "pads_begin", "pads_end", "auto_pad", "output_padding", "output_shape",
    "groups", "dtype", "data_format", "filter_format", "activation", "backend", "algorithm", "precision",
)  # fmt: skip


def _rebuild(cls, attributes, filter, bias):
    op = cls.__new__(cls)
    op._set(api.Attributes(**attributes), filter, bias)
    return op


def _shape(shape):
    try:
        items = tuple(shape)
    except TypeError:
        raise TypeError(f"shape: got {type(shape).__name__}, wanted a sequence of integers") from None
    return tuple(check.integer("shape", item, 0) for item in items)
