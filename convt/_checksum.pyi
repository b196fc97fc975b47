from typing import Any

from numpy.typing import NDArray

def checksum(array: NDArray[Any], threads: int) -> int: ...
