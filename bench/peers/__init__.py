"""The libraries measured, one file each.

A peer's module has `DTYPES` (the words it takes), `version()`, and `prepare(problem, threads)`, which does everything
that needs doing once and returns a `Ready`. Importing the module imports the library, so only its own process does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

# What to install for each peer, the one under test first.
PACKAGES = {
    "convt": "convt",
    "onednn": "onednn-cpu-gomp",
    "torch": "torch",
    "onnxruntime": "onnxruntime onnx",
    "openvino": "openvino",
}


class Ready(NamedTuple):
    """A problem set up in a library: `nxc(run())` is the result, channels last; only `run` is timed."""

    run: Callable[[], Any]
    nxc: Callable[[Any], np.ndarray]
    how: str  # the algorithm or implementation that runs, and the layout where it is not the one asked for
    keep: Any = None  # what the library reads or writes by address, and so does not keep alive itself


class Unsupported(Exception):
    """The library does not take this problem."""


class Failed(Exception):
    """The library raised something of its own."""


class Absent(Exception):
    """The library is not installed."""


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"bench.peers.{name}")
    except (ImportError, OSError) as exc:
        raise Absent(f"{exc}; to have it: pip install {PACKAGES[name]}") from exc
