from collections.abc import Sequence
from typing import Any

from ..direct.loops import DirectPlan
from ..execution import Execution
from .schedule import Schedule
from .weights import WinogradRecipe

BRIDGE: int
CHAIN: int
PLACE: int
REGIONS: tuple[str, ...]

class WinogradPlan(DirectPlan):
    def __init__(
        self,
        schedule: Schedule,
        recipe: WinogradRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        execution: Execution,
        direct: Any,
        classes: Any,
        tiles: Any,
    ) -> None: ...
