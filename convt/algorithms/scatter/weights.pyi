from typing import Any

from numpy.typing import NDArray

from ..packing import PanelRecipe

class ScatterRecipe(PanelRecipe):
    def __init__(
        self,
        dtype: str,
        filter: NDArray[Any],
        bias: NDArray[Any] | None,
        classes: Any,
        bias_phases: int,
        slab: int,
        unit: str = "vectors",
    ) -> None: ...
