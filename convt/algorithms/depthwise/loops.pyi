from collections.abc import Sequence
from typing import Any

from ..._problem import Problem
from ..row_plan import RowPlan
from .weights import LaneRecipe

class DepthwisePlan(RowPlan):
    def __init__(
        self,
        problem: Problem,
        recipe: LaneRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Any,
        spec: Any,
    ) -> None: ...
