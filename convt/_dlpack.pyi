from typing import Any

from numpy.typing import NDArray

CPU: int

def from_capsule(capsule: object) -> NDArray[Any]: ...
