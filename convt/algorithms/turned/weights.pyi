from typing import Any

from numpy.typing import NDArray

from ..packing import PackRecipe

class TurnedRecipe(PackRecipe):
    def __init__(
        self, dtype: str, filter: NDArray[Any], bias: NDArray[Any] | None, tables: Any, unit: str = "vectors"
    ) -> None: ...
