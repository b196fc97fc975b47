from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ..._core import Plan
from ..packing import PackRecipe

def empty_wide(array: NDArray[Any] | None) -> NDArray[Any] | None: ...

class WideRecipe(PackRecipe):
    @property
    def inner(self) -> PackRecipe: ...
    def __init__(self, inner: PackRecipe, dtype: str) -> None: ...

class PlanesPlan(Plan):
    def __init__(
        self,
        schedule: Any,
        inner: Plan,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
    ) -> None: ...
    def set_side(self, inward: bool, axes: Any, shape: Any, strides: Any) -> None: ...
