from collections.abc import Sequence
from typing import Any

from ..row_plan import RowPlan
from .schedule import Schedule
from .weights import LaneRecipe

class DepthwisePlan(RowPlan):
    def __init__(
        self,
        schedule: Schedule,
        recipe: LaneRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Any,
    ) -> None: ...
