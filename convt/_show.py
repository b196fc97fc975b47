"""`show_config`: what a process has and is set to."""

from __future__ import annotations

import os
import sys
from typing import Any, Literal, overload

import numpy as np

from . import _check, _config, _core, _keep, tuning
from ._problem import ITEMSIZE
from ._version import __version__
from .algorithms.onednn import library as onednn


@overload
def show_config(mode: Literal["print"] = "print") -> None: ...


@overload
def show_config(mode: Literal["dicts"]) -> dict[str, Any]: ...


def show_config(mode="print"):
    """Print version, instruction sets, caches, backends, OpenMP runtime and threads; ``mode="dicts"`` returns them instead.

    Caches are in bytes: the data caches of a core and the last level, as blocks are cut for them. So are the bounds of what is
    kept; the bound of packed weights is a number times the bytes of their filter, or one for filters over 1 MiB and one for
    smaller ones (`set_packed_weights_limit`).

    Examples
    --------
    >>> import convt
    >>> sorted(convt.show_config(mode="dicts"))
    ['backends', 'caches', 'dtypes', 'isa', 'kept', 'openmp', 'threads', 'threads set by', 'version', 'versions']
    """
    config = {
        "version": __version__,
        "isa": {
            "in use": _core.isa(),
            "found": [row["name"] for row in _core.isa_rows() if row["available"]],
            "built": [row["name"] for row in _core.isa_rows()],
            "CONVT_ISA": os.environ.get("CONVT_ISA") or None,
        },
        "caches": dict(zip(("L1", "L2", "L3"), _core.cache_bytes(), strict=True)),
        "backends": {
            "native": f"convt {__version__}",
            "onednn": onednn.describe(),
            "reference": f"NumPy {np.__version__}",
        },
        "dtypes": list(ITEMSIZE),
        "openmp": _core.openmp() or None,
        "threads": _config.get_num_threads(),
        "threads set by": _config.threads_reason(),
        "kept": {
            "packed weights, times the filter": _keep.most_times(),
            "plans of an operator": _keep.OPERATOR_PLANS,
            "plans of one-shot calls": _keep.ONE_SHOT_PLANS,
            "plans in all": _keep.ALL_PLANS,
        },
        "versions": {
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "compiler": _core.compiler(),
            "kernels": tuning.kernels(),
        },
    }
    if _check.word("mode", mode, ("print", "dicts")) == "dicts":
        return config
    for key, value in config.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, item in value.items():
                print(f"  {name}: {_text(item)}")
        else:
            print(f"{key}: {_text(value)}")
    return None


def _text(value):
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else value
