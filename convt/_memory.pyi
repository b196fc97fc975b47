from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CACHED_WEIGHT_BYTES: int
CACHED_OUTPUT_BYTES: int

def kept_bytes() -> int: ...
def clear() -> None: ...
def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]: ...

class Buffer:
    @property
    def size(self) -> int: ...

class Table:
    def __new__(cls, values: ArrayLike) -> Table: ...
