from collections.abc import Sequence
from typing import Any

from ..._problem import Problem
from ..direct.loops import DirectPlan
from .weights import WinogradRecipe

BRIDGE: int
CHAIN: int

class WinogradPlan(DirectPlan):
    def __init__(
        self,
        name: str,
        problem: Problem,
        recipe: WinogradRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Any,
        direct: Any,
        classes: Any,
        tiles: Any,
    ) -> None: ...
