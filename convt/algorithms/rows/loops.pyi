from collections.abc import Sequence
from typing import Any

from ..._problem import Problem
from ..row_plan import RowPlan
from .weights import RowsRecipe

MOST_PHASES: int

class RowsPlan(RowPlan):
    def __init__(
        self,
        problem: Problem,
        recipe: RowsRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Any,
        spec: Any,
    ) -> None: ...
