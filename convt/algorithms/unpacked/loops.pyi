from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._core import Plan
from .weights import UnpackedRecipe

FEW_PIXELS: int

class UnpackedPlan(Plan):
    def __init__(
        self,
        name: str,
        schedule: Any,
        recipe: UnpackedRecipe,
        in_strides: Sequence[int],
        out_strides: Sequence[int],
        places: NDArray[np.int64],
        runs: Sequence[Sequence[int]],
        out_rows: Sequence[int],
        dense: bool,
    ) -> None: ...
