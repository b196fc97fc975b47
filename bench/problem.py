"""A problem: one layer with a dtype, a layout and numbers, the same numbers in every process that asks."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from math import prod

import ml_dtypes
import numpy as np

from .layers import Layer

DTYPES = {
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f64": np.dtype(np.float64),
}
LAYOUTS = ("NXC", "NCX")
# How exact f32 has to be: as f32's own products, as TensorFloat-32's, as bfloat16's. Other dtypes know the first alone.
PRECISIONS = ("highest", "high", "medium")
# What is known before the clock starts: the weights, which a library may then arrange once, or nothing but their shape.
MODES = ("prepacked", "one-shot")


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that starts on a cache line, which is the best case for every library and the same for all."""
    size = prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def in_layout(array: np.ndarray, layout: str) -> np.ndarray:
    """A contiguous copy of an NXC array in the layout named."""
    array = np.moveaxis(array, -1, 1) if layout == "NCX" else array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def as_nxc(array: np.ndarray, layout: str) -> np.ndarray:
    """A view of an array of the layout named, channels last."""
    return np.moveaxis(array, 1, -1) if layout == "NCX" else array


@dataclass(frozen=True)
class Problem:
    """Its arrays are made anew at each call: a problem itself is small, to be sent and kept."""

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
        """Read or written at least: data, filter and result once each."""
        return self.layer.elements * DTYPES[self.dtype].itemsize

    def _numbers(self, what: str, shape: tuple[int, ...]) -> np.ndarray:
        seed = zlib.crc32(f"{self.layer.name} {what}".encode())
        numbers = np.random.default_rng(seed).random(shape, np.float32)
        numbers *= 2
        numbers -= 1
        return numbers.astype(DTYPES[self.dtype], copy=False)

    def data(self) -> np.ndarray:
        """NXC whatever the layout: peers call in_layout with the one they take."""
        return self._numbers("data", self.layer.data_shape)

    def filter(self) -> np.ndarray:
        """XIO."""
        return self._numbers("filter", self.layer.filter_shape)

    def bias(self) -> np.ndarray | None:
        return self._numbers("bias", (self.layer.cout,)) if self.with_bias else None

    def filter_iox(self) -> np.ndarray:
        """The filter as ONNX and PyTorch have it."""
        return np.ascontiguousarray(np.moveaxis(self.filter(), (-2, -1), (0, 1)))
