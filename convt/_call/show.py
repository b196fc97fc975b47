"""`show_config`: the build, the machine, and the settings of the process."""

from __future__ import annotations

import sys
from typing import Any, Literal, overload

import numpy as np

from .. import _core, tuning
from .._base import check, terminal
from .._base.problem import ITEMSIZE
from .._plan import keep
from .._run import config as _config
from .._version import __version__
from ..algorithms.onednn import library as onednn


@overload
def show_config(mode: Literal["print"] = "print") -> None: ...


@overload
def show_config(mode: Literal["dicts"]) -> dict[str, Any]: ...


def show_config(mode="print"):
    """Print or return versions, instruction sets, caches, backends, OpenMP, threads, and the limits of convt's caches.

    CPU caches are in bytes: L1 and L2 of a core, and the last level. They determine the sizes of blocks. The limits of plans
    are in bytes. The limit of packed weights is in multiples of the filter's bytes; it is one number if a limit was set, and
    otherwise two, for filters over 1 MiB and for smaller ones (`set_packed_weights_limit`).

    Parameters
    ----------
    mode : "print" or "dicts", default "print"
        "print" prints text on standard output, "dicts" returns a dict.

    Returns
    -------
    dict or None
        A dict of strings, numbers, lists and dicts if ``mode`` is "dicts", else None.

    Raises
    ------
    ValueError, TypeError
        ``mode`` is another value.

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
            "CONVT_ISA": _config.ISA_VARIABLE,
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
            "packed weights of an operator, times its filter": keep.packed_limits(),
            "plans of an operator, bytes": keep.OPERATOR_PLANS,
            "plans of one-shot calls, bytes": keep.ONE_SHOT_PLANS,
            "plans in total, bytes": keep.ALL_PLANS,
        },
        "versions": {
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "compiler": _core.compiler(),
            "kernels": tuning.kernels(),
        },
    }
    if check.word("mode", mode, ("print", "dicts")) == "dicts":
        return config
    for key, value in config.items():
        if isinstance(value, dict):
            print(f"{key}:")
            for name, item in value.items():
                terminal.say(f"  {name}: {_text(item)}", indent="    ")
        else:
            terminal.say(f"{key}: {_text(value)}", indent="  ")
    return None


def _text(value):
    if value is None:
        return "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else value
