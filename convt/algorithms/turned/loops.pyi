from collections.abc import Sequence
from typing import Any

from ..._core import Plan
from ..._problem import Problem
from .weights import TurnedRecipe

MOST_PHASES: int
PACKED_LINES: int

class TurnedPlan(Plan):
    def __init__(
        self,
        name: str,
        problem: Problem,
        recipe: TurnedRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        classes: Any,
        schedule: Any,
    ) -> None: ...
