from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..._problem import Problem
from ..unit import Unit

_T: TypeAlias = NDArray[np.int64]

def taps(axes: Sequence[Sequence[int]]) -> _T: ...
def depth_chunks(ranges: Sequence[tuple[int, int]], totals: Sequence[int], filled: int, step: int, slab: int) -> _T: ...
def columns(problem: Problem, runs: Sequence[Any], out_elements: Sequence[int], unit: Unit) -> tuple[_T, _T, _T]: ...
