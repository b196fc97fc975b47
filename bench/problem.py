"""Problems: a layer with dtype, layout, mode and input values, which are the same in every process."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

import numpy as np

from .layers import Layer
from .shared import dtypes

DTYPES = {each.synonyms[0]: each.dtype for each in dtypes.COMPUTED}
LAYOUTS = ("NXC", "NCX")
# Products of f32 are at least as exact as those of float32, TensorFloat-32 or bfloat16. Other dtypes only have "highest".
PRECISIONS = ("highest", "high", "medium")
# prepacked: libraries get the weights before timing and may pack them once. one-shot: they only get the shape of the weights.
MODES = ("prepacked", "one-shot")


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an array aligned to a cache line, which is the best case for every library."""
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def in_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """Return a contiguous copy of an NXC array in a layout."""
    array = np.moveaxis(array, -1, 1) if layout == "NCX" else array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def as_nxc(array: np.ndarray, layout: str) -> np.ndarray:
    """Return an NXC view of an array in a layout."""
    return np.moveaxis(array, 1, -1) if layout == "NCX" else array


@dataclass(frozen=True)
class Problem:
    """A layer and its settings. Arrays are generated at each call, so that a problem is small to send and to store."""

    layer: Layer
    dtype: str
    layout: str
    mode: str = "prepacked"
    with_bias: bool = False
    precision: str = "highest"

    @property
    def prepacked(self) -> bool:
        return self.mode == "prepacked"

    @property
    def bytes(self) -> int:
        """Return the bytes of data, filter and result, which are read or written at least once."""
        return self.layer.elements * DTYPES[self.dtype].itemsize

    def _numbers(self, what: str, shape: tuple[int, ...]) -> np.ndarray:
        seed = zlib.crc32(f"{self.layer.name} {what}".encode())
        numbers = np.random.default_rng(seed).random(shape, np.float32)
        numbers *= 2
        numbers -= 1
        return numbers.astype(DTYPES[self.dtype], copy=False)

    def data(self) -> np.ndarray:
        """Return the data in NXC, independent of the layout. Libraries convert it with `in_layout`."""
        return self._numbers("data", self.layer.data_shape)

    def filter(self) -> np.ndarray:
        """Return the filter in XIO."""
        return self._numbers("filter", self.layer.filter_shape)

    def bias(self) -> np.ndarray | None:
        return self._numbers("bias", (self.layer.cout,)) if self.with_bias else None

    def filter_iox(self) -> np.ndarray:
        """Return the filter in IOX, the order of ONNX and PyTorch."""
        return np.ascontiguousarray(np.moveaxis(self.filter(), (-2, -1), (0, 1)))
