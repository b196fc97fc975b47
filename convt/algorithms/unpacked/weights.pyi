from typing import Any

from numpy.typing import NDArray

from ..packing import PackRecipe

class UnpackedRecipe(PackRecipe):
    @property
    def in_place(self) -> bool: ...
    def __init__(self, dtype: str, filter: NDArray[Any], bias: NDArray[Any] | None) -> None: ...
