from typing import Any

from numpy.typing import NDArray

from .packing import PackRecipe

IN_ROWS: str
NOT_IN_ROWS: str

def memory_order(filter: NDArray[Any]) -> str: ...
def pays(filter: NDArray[Any]) -> bool: ...
def empty_reordered(filter: NDArray[Any]) -> NDArray[Any]: ...

class ReorderRecipe(PackRecipe):
    @property
    def inner(self) -> PackRecipe: ...
    def __init__(self, inner: PackRecipe, dtype: str, filter: NDArray[Any]) -> None: ...
