"""Transposed convolution of dask arrays, chunk by chunk: for data larger than memory, and for several machines.

The batch and every spatial axis may be chunked. An output chunk is ``stride`` times as long as its input chunk. It also needs a
halo: some elements before and after that input chunk, which `dask.array.overlap` provides. Every output is computed once.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ._base import check
from ._call import api, operator
from ._run import config

try:
    import dask.array as da
    from dask.array import overlap
    from dask.delayed import delayed
except ImportError as error:
    raise ImportError('convt.dask needs dask: pip install "dask[array]"') from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._base.problem import Problem
    from ._base.typing import Array, ChunkKeywords, DataFormat

__all__ = ["conv_transpose"]


def conv_transpose(
    data: da.Array, filter: Array, bias: Array | None = None, *, threads: SupportsIndex = 1, data_format: DataFormat = "NXC",
    **keywords: Unpack[ChunkKeywords],
) -> da.Array:  # fmt: skip
    """Compute `convt.conv_transpose` of a dask array lazily.

    The operator is oneDNN Graph's ConvTranspose-1.

    Parameters
    ----------
    data : dask array (N, *spatial, C), or (N, C, *spatial) for data_format "NCX"
        float32, float64, float16 or bfloat16 (ml_dtypes), in NumPy chunks of known sizes. dask merges chunks of the channels,
        and enlarges chunks of a spatial axis that are smaller than the halo of that axis.
    filter : array of the same dtype
        As for `convt.conv_transpose`. Each worker receives the filter once and packs it once.
    bias : array (out_channels,) of the same dtype, optional
    threads : int
        Number of threads that convt uses in each task, at least 1. dask runs one task on each of its own threads, so more than
        1 pays only if dask has fewer threads than there are cores.
    data_format, **keywords
        As for `convt.conv_transpose`, without ``out`` and ``backend="tune"``. With ``algorithm="invariant"`` the result is
        bitwise equal to a single call on the whole contiguous array on a CPU with the same instruction set. With other
        algorithms the result is as exact, but its last bits may differ, because the plan for a chunk may sum in another order.

    Returns
    -------
    dask array (N, *output, out_channels), or (N, out_channels, *output) for "NCX"
        Of data's dtype. Each output chunk has the position of its input chunk.

    Raises
    ------
    ValueError, TypeError
        An argument is invalid. The message names the argument, its value and the accepted values. Raised before anything is
        computed.

    Examples
    --------
    >>> import numpy as np, dask.array as da, convt.dask
    >>> volume = da.ones((1, 64, 64, 64, 2), chunks=(1, 32, 32, 64, 2), dtype=np.float32)
    >>> y = convt.dask.conv_transpose(volume, np.ones((4, 4, 4, 2, 1), np.float32), strides=2, pads_begin=1, pads_end=1)
    >>> y.shape, y.chunks[1]
    ((1, 128, 128, 128, 1), (64, 64))
    >>> float(y[0, 64, 64, 64, 0].compute())
    16.0
    """
    if not isinstance(data, da.Array):
        raise TypeError(f"data: got {type(data).__name__}, wanted a dask array")
    if not isinstance(data._meta, np.ndarray):
        raise TypeError(f"data: got chunks of {type(data._meta).__name__}, wanted chunks that are NumPy arrays")
    if isinstance(data._meta, np.ma.MaskedArray):
        raise TypeError("data: got chunks that are masked, wanted chunks without a mask, which dask.array.ma.filled() returns")
    given: dict[str, Any] = dict(keywords)
    if "out" in given or given.get("backend") == "tune":
        raise ValueError("out, backend: got out or backend='tune', wanted neither, because dask tasks may run anywhere")
    if any(math.isnan(size) for size in data.shape):
        raise ValueError(f"data: got unknown sizes in shape {data.shape}, wanted known sizes")
    count = check.integer("threads", threads, 1)
    weights = check.floating("filter", filter)
    check.keywords(given, api.Keywords._fields)
    attributes, _, values = api.parse(weights, bias, api.Keywords(data_format=data_format, **given))
    if check.DTYPES.get(data.dtype) != attributes.dtype:
        raise TypeError(f"data: got dtype {data.dtype}, wanted {attributes.dtype}, the filter's")
    _, in_sizes, _ = attributes.shape_of(data.shape)
    begins, _, outs = attributes.windows(in_sizes)
    first = 1 if attributes.data_format == "NXC" else 2  # the first spatial axis
    channels = data.ndim - 1 if attributes.data_format == "NXC" else 1
    halos = [_halo(*axis) for axis in zip(attributes.kernel, attributes.strides, attributes.dilations, begins, strict=True)]
    new_chunks = {channels: -1}
    for ax, (halo, size) in enumerate(zip(halos, in_sizes, strict=True), first):
        merge = size == 0 or min(data.chunks[ax]) == 0  # an axis with empty chunks becomes one chunk
        new_chunks[ax] = -1 if merge else overlap.ensure_minimum_chunksize(max(1, min(max(halo), size)), data.chunks[ax])
    data = data.rechunk(new_chunks)
    cuts = [
        _cuts(chunks, before, s, out)
        for chunks, (before, _), s, out in zip(data.chunks[first:], halos, attributes.strides, outs, strict=False)
    ]
    depth = {ax: halo if len(data.chunks[ax]) > 1 else (0, 0) for ax, halo in enumerate(halos, first)}
    overlapped = overlap.overlap(data, depth={ax: depth.get(ax, (0, 0)) for ax in range(data.ndim)}, boundary="none")
    chunks = list(data.chunks)
    chunks[channels] = (attributes.groups * attributes.co,)
    chunks[first : first + attributes.rank] = [tuple(stop - start for _, start, stop in each) for each in cuts]
    op = operator.ConvTranspose._borrowing(weights, values, data_format=data_format, **given)
    whole = attributes.unchecked_problem(data.shape)
    block = delayed(_Block(op, count, first, cuts, whole), traverse=False)
    return overlapped.map_blocks(
        _chunk, block=block, dtype=data.dtype, chunks=tuple(chunks), meta=np.empty((0,) * data.ndim, data.dtype)
    )


def _halo(kernel: int, stride: int, dilation: int, begin: int) -> tuple[int, int]:
    """Return how many input elements before and after its input chunk an output chunk needs on an axis."""
    return max(0, (kernel - 1) * dilation - begin) // stride, -(-begin // stride)


def _cuts(chunks: Sequence[int], before: int, stride: int, out: int) -> list[tuple[int, int, int]]:
    """Return ``(first input, first output, end of outputs)`` for each chunk of an axis.

    ``before`` is the halo before a chunk, and ``out`` the output size of the axis.
    """
    ends = [min(end * stride, out) for end in itertools.accumulate(chunks)]
    ends[-1] = out
    starts = [0, *itertools.accumulate(chunks)]
    return [(max(0, start - before), first, end) for start, first, end in zip(starts, [0, *ends], ends, strict=False)]


@dataclasses.dataclass(eq=False)
class _Block:
    """The computation of a chunk. Each worker receives this object once."""

    op: operator.ConvTranspose
    threads: int
    first: int  # the first spatial axis
    cuts: list[list[tuple[int, int, int]]]  # `_cuts` of each spatial axis
    whole: Problem

    def part(self, data: NDArray[Any], block_id: tuple[int, ...]) -> Problem:
        """Return the problem of a chunk."""
        sizes = data.shape[self.first : self.first + self.whole.rank]
        starts, firsts, stops = zip(*(cuts[block_id[self.first + n]] for n, cuts in enumerate(self.cuts)), strict=True)
        axes = zip(firsts, self.whole.begin, starts, self.whole.strides, strict=True)
        begin = tuple(first + begin - start * s for first, begin, start, s in axes)
        outs = tuple(stop - first for first, stop in zip(firsts, stops, strict=True))
        return self.whole._replace(batch=data.shape[0], in_sizes=sizes, begin=begin, out_sizes=outs)

    def __call__(self, data: NDArray[Any], block_id: tuple[int, ...]) -> NDArray[Any]:
        data = check.array("data", data)
        with config.num_threads(self.threads):
            return self.op._part(data, self.part(data, block_id))


def _chunk(data: NDArray[Any], block: _Block, block_id: tuple[int, ...]) -> NDArray[Any]:
    return block(data, block_id)
