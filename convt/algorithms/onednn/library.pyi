from typing import TypedDict

INSTALL: str

class Opened(TypedDict):
    version: str
    path: str
    threading: str
    isa: str

def opened() -> Opened: ...
def available() -> bool: ...
def describe() -> str: ...
