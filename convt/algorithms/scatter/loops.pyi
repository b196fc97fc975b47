from collections.abc import Sequence
from typing import Any

from ..._core import Plan
from .schedule import Schedule
from .weights import ScatterRecipe

FEW_COLUMNS: int
PANELS: int

class ScatterPlan(Plan):
    def __init__(
        self,
        name: str,
        schedule: Schedule,
        axes: Sequence[Any],
        gathers: Any,
        recipe: ScatterRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        dense: bool,
    ) -> None: ...
    def taps_of_tasks(self) -> list[list[int]]: ...
