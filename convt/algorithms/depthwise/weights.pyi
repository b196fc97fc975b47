from typing import Any

from numpy.typing import NDArray

from ..packing import PackRecipe

class LaneRecipe(PackRecipe):
    def __init__(
        self,
        dtype: str,
        filter: NDArray[Any],
        bias: NDArray[Any] | None,
        cell: tuple[int, int] = (1, 1),
        each: int = 0,
        dots: bool = False,
    ) -> None: ...
