from typing import Any

from numpy.typing import NDArray

from ..packing import PanelRecipe

class WinogradRecipe(PanelRecipe):
    def __init__(
        self, dtype: str, filter: NDArray[Any], bias: NDArray[Any] | None, classes: Any, transforms: Any, unit: str = "vectors"
    ) -> None: ...
