from collections.abc import Sequence
from typing import Any

from ..._core import Plan
from ..._problem import Problem
from .weights import ScatterRecipe

class ScatterPlan(Plan):
    def __init__(
        self,
        name: str,
        problem: Problem,
        recipe: ScatterRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Any,
        spec: Any,
    ) -> None: ...
