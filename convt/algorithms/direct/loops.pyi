from collections.abc import Sequence
from typing import Any

from ..._core import Plan
from ..._problem import Problem
from ..packing import PanelRecipe

TILE_ROWS: int

class DirectPlan(Plan):
    def __init__(
        self,
        name: str,
        problem: Problem,
        recipe: PanelRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Any,
        classes: Any,
        tiles: Any,
    ) -> None: ...
