from collections.abc import Sequence
from typing import Any

from ..row_plan import RowPlan
from .schedule import Schedule
from .weights import RowsRecipe

MOST_PHASES: int

class RowsPlan(RowPlan):
    def __init__(
        self,
        schedule: Schedule,
        recipe: RowsRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Any,
    ) -> None: ...
