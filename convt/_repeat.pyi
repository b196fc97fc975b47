from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

def layout(data: NDArray[Any], threads: int) -> bytes: ...
def signature(
    dialect: str,
    data: NDArray[Any] | None,
    filter: NDArray[Any],
    bias: NDArray[Any] | None,
    attributes: tuple[object, ...],
    threads: int,
) -> bytes | None: ...
def repeat(bounds: dict[bytes, tuple[Bound, Any]], data: NDArray[Any], out: object, threads: int) -> NDArray[Any] | None: ...
def repeat_shot(
    shots: dict[bytes, Shot],
    dialect: str,
    data: NDArray[Any],
    filter: NDArray[Any],
    bias: NDArray[Any] | None,
    attributes: tuple[object, ...],
    out: object,
    threads: int,
) -> NDArray[Any] | None: ...

class Bound:
    def __init__(
        self,
        plan: Any,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        fill: Callable[[NDArray[Any] | None], NDArray[Any]] | None,
    ) -> None: ...

class Shot:
    def __init__(self, bound: Bound, recipe: Any) -> None: ...
