from typing import TypedDict

INSTALL: str

class _Opened(TypedDict):
    version: str
    path: str
    threading: str
    isa: str

def opened() -> _Opened: ...
def available() -> bool: ...
def describe() -> str: ...
