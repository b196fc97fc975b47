from typing import Any

from numpy.typing import NDArray

from ..packing import PackRecipe

class RowsRecipe(PackRecipe):
    def __init__(
        self, dtype: str, filter: NDArray[Any], bias: NDArray[Any] | None, stride: int, phases: Any, channel_blocks: int
    ) -> None: ...
