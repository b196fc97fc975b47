from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from ..._core import Plan
from ..._problem import Problem
from ..packing import PackRecipe

def empty_wide(array: NDArray[Any] | None) -> NDArray[Any] | None: ...

class WideRecipe(PackRecipe):
    @property
    def inner(self) -> PackRecipe: ...
    def __init__(self, inner: PackRecipe, dtype: str) -> None: ...

class PlanesPlan(Plan):
    def __init__(
        self,
        problem: Problem,
        inner: Plan,
        cut: Any,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        apart: bool,
        stream: bool,
    ) -> None: ...
    def set_side(self, inward: bool, axes: Any, shape: Any, strides: Any) -> None: ...
    def bytes_of(self, shape: Any) -> int: ...
