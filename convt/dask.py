"""Transposed convolution of dask arrays: chunk by chunk, for data that outgrow a machine's memory, or for many machines.

Chunks may cut the batch and every spatial axis. A chunk of outputs needs the inputs that lie in the same place, and the
``floor((kernel - 1) * dilation / stride)`` ones before them: a halo on one side, of dask's own overlap machinery. Every output
is computed once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _api, _check, _config, _padding

try:
    import dask.array as da
    from dask.array import overlap
except ImportError as error:
    raise ImportError('convt.dask needs dask: pip install "convt[dask]"') from error

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from numpy.typing import NDArray
    from typing_extensions import Unpack

    from ._typing import Array, ChunkKeywords, DataFormat

__all__ = ["conv_transpose"]


def conv_transpose(
    data: da.Array, filter: Array, bias: Array | None = None, *, threads: SupportsIndex = 1, data_format: DataFormat = "NXC",
    **keywords: Unpack[ChunkKeywords],
) -> da.Array:  # fmt: skip
    """`convt.conv_transpose` of a dask array, lazily.

    Parameters
    ----------
    data : dask array (N, *spatial, C), or (N, C, *spatial) for data_format "NCX"
        Of known sizes. Chunks of the channels are merged, and chunks of a spatial axis that are smaller than its halo are made
        larger, by dask.
    filter, bias : as `convt.conv_transpose` has them
        They go to every worker.
    threads : int
        Threads of convt in each task. dask runs a task on each of its own threads: more than 1 pays where these are fewer than
        cores.
    data_format, **keywords
        As `convt.conv_transpose` has them, but ``out`` and ``backend="tune"``. Results are as exact as those of a single call,
        whose last bits can be others: a plan for a chunk may sum in another order.

    Returns
    -------
    dask array of data's dtype and layout, whose chunks are data's, each in the place of its inputs.

    Raises
    ------
    ValueError, TypeError
        Naming the argument, what it got and what was wanted; before anything is computed.

    Examples
    --------
    >>> import numpy as np, dask.array as da, convt.dask
    >>> volume = da.ones((1, 64, 64, 64, 2), chunks=(1, 32, 32, 64, 2), dtype=np.float32)
    >>> y = convt.dask.conv_transpose(volume, np.ones((4, 4, 4, 2, 1), np.float32), strides=2, pads_begin=1, pads_end=1)
    >>> y.shape, y.chunks[1]
    ((1, 128, 128, 128, 1), (63, 65))
    >>> float(y[0, 64, 64, 64, 0].compute())
    16.0
    """
    if not isinstance(data, da.Array):
        raise TypeError(f"data: got {type(data).__name__}, wanted a dask array")
    given: dict[str, Any] = dict(keywords)
    if "out" in given or given.get("backend") == "tune":
        raise ValueError("out, backend: wanted neither an out nor 'tune' for a dask array, whose tasks may run anywhere")
    if any(math.isnan(size) for size in data.shape):
        raise ValueError(f"data: got a shape that dask does not know, {data.shape}, wanted known sizes")
    count = _check.integer("threads", threads, 1)
    weights = _check.floating("filter", filter)
    values = None if bias is None else _check.array("bias", bias)
    attributes, _, _ = _api.parse(weights, values, _padding.CORE, data_format=data_format, **given)
    if _check.DTYPES.get(data.dtype) != attributes.dtype:
        raise TypeError(f"data: got dtype {data.dtype}, wanted {attributes.dtype}, the filter's")
    _, in_sizes, _ = attributes.shape_of(data.shape)
    begins, _, outs = attributes.windows(in_sizes)
    first = 1 if attributes.data_format == "NXC" else 2  # the first spatial axis
    channels = data.ndim - 1 if attributes.data_format == "NXC" else 1
    halos = [(k - 1) * d // s for k, d, s in zip(attributes.kernel, attributes.dilations, attributes.strides, strict=True)]
    wanted = {channels: -1}
    for ax, (halo, size) in enumerate(zip(halos, in_sizes, strict=True), first):
        whole = size == 0 or min(data.chunks[ax]) == 0  # an axis with empty chunks is not worth cutting
        wanted[ax] = -1 if whole else overlap.ensure_minimum_chunksize(max(1, min(halo, size)), data.chunks[ax])
    data = data.rechunk(wanted)
    cuts = [
        _cuts(chunks, halo, s, begin, out)
        for chunks, halo, s, begin, out in zip(data.chunks[first:], halos, attributes.strides, begins, outs, strict=False)
    ]
    depth = {ax: (halo if len(data.chunks[ax]) > 1 else 0, 0) for ax, halo in enumerate(halos, first)}
    laid = overlap.overlap(data, depth={ax: depth.get(ax, (0, 0)) for ax in range(data.ndim)}, boundary="none")
    chunks = list(data.chunks)
    chunks[channels] = (attributes.groups * attributes.co,)
    chunks[first : first + attributes.rank] = [tuple(stop - start for _, start, stop in each) for each in cuts]
    for name in ("auto_pad", "output_shape", "output_padding", "pads_begin", "pads_end"):
        given.pop(name, None)
    given["data_format"] = attributes.data_format
    block = _Block(weights, values, count, first, cuts, begins, attributes, given)
    return laid.map_blocks(block, dtype=data.dtype, chunks=tuple(chunks), meta=np.empty((0,) * data.ndim, data.dtype))


def _cuts(chunks: Sequence[int], halo: int, stride: int, begin: int, out: int) -> list[tuple[int, int, int]]:
    """Of each chunk of an axis: ``(first input, first output, end of the outputs)``."""
    found, start, previous = [], 0, 0
    for n, size in enumerate(chunks):
        stop = out if n == len(chunks) - 1 else min(max((start + size) * stride - begin, previous), out)
        found.append((start - halo if n else start, previous, stop))
        start, previous = start + size, stop
    return found


class _Block:
    """Computes a chunk; what a task carries to a worker."""

    def __init__(
        self, filter: NDArray[Any], bias: NDArray[Any] | None, threads: int, first: int, cuts: list[list[tuple[int, int, int]]],
        begins: tuple[int, ...], attributes: _api.Attributes, keywords: dict[str, Any],
    ) -> None:  # fmt: skip
        self.filter, self.bias, self.threads, self.first, self.cuts = filter, bias, threads, first, cuts
        self.begins, self.attributes, self.keywords = begins, attributes, keywords
        self.operators: dict[
            tuple[tuple[int, ...], ...], _api.ConvTranspose
        ] = {}  # pads -> ConvTranspose: one for the chunks inside, others for those at the ends

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "operators": {}}

    def __call__(self, data: NDArray[Any], block_id: tuple[int, ...]) -> NDArray[Any]:
        a, begin, end, beyond, shape = self.attributes, [], [], [], list(data.shape)
        for n, (cuts, s) in enumerate(zip(self.cuts, a.strides, strict=True)):
            start, first, stop = cuts[block_id[self.first + n]]
            at = first + self.begins[n] - start * s  # of the full scatter of these inputs
            full = (data.shape[self.first + n] - 1) * s + (a.kernel[n] - 1) * a.dilations[n] + 1
            begin.append(at)
            end.append(max(full - at - (stop - first), 0))
            beyond.append(max(at + stop - first - full, 0))
            shape[self.first + n] = stop - first
        shape[-1 if self.first == 1 else 1] = a.groups * a.co
        if 0 in shape:
            return np.empty(shape, data.dtype)
        with _config.num_threads(self.threads):
            return self.operator(tuple(begin), tuple(end), tuple(beyond))(data)

    def operator(self, begin: tuple[int, ...], end: tuple[int, ...], beyond: tuple[int, ...]) -> _api.ConvTranspose:
        found = self.operators.get((begin, end, beyond))
        if found is None:
            pads: dict[str, Any] = dict(pads_begin=begin, pads_end=end, output_padding=beyond)
            found = _api.ConvTranspose.borrowing(self.filter, self.bias, **pads, **self.keywords)
            self.operators[begin, end, beyond] = found
        return found
