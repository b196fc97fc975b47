from typing import Any

from numpy.typing import NDArray

class Addition:
    def __init__(self, dtype: str, activation: tuple[str, float, float]) -> None: ...
    def run(self, out: NDArray[Any], add: NDArray[Any], threads: int) -> None: ...
