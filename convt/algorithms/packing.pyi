from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import PackedFilter

def tap_bytes(taps: NDArray[np.int64], shape: Sequence[int], strides: NDArray[np.int64]) -> NDArray[np.int64]: ...

class PackRecipe:
    @property
    def weight_bytes(self) -> int: ...
    @property
    def bias_bytes(self) -> int: ...
    @property
    def out_channel_stride(self) -> int: ...
    def pack(
        self, filter: NDArray[Any], bias: NDArray[Any] | None, threads: int, persistent: bool = True, on_the_fly: bool = False
    ) -> PackedFilter: ...

class PanelRecipe(PackRecipe):
    def __init__(
        self,
        dtype: str,
        filter: NDArray[Any],
        bias: NDArray[Any] | None,
        classes: Sequence[NDArray[np.int64]],
        unit: str = "vectors",
    ) -> None: ...
