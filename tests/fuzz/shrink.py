"""Smaller cases than a failing one."""

import copy
import re

from .shrinking import steps

_PER_AXIS = {"in_sizes": 1, "kernel": 1, "strides": 1, "dilations": 1, "pads_begin": 0, "pads_end": 0, "output_padding": 0,
             "output_shape": 0}  # fmt: skip
_LEAST = {f"problem.{name}": n for name, n in {"batch": 1, "groups": 1, "ci": 1, "co": 1, **_PER_AXIS}.items()}
_LEAST |= {"stream.axis": 0, "stream.chunks": 0}
PLAIN = {
    "precision": None, "values": "integers", "machine": {}, "algorithm": "auto", "backend": "native", "seed": 0,
    "problem.output_shape": None, "calls.threads": 1, "calls.out": None, "calls.as": "numpy", "calls.clear": False,
    "calls.values": 0,
}  # fmt: skip
PLAIN_CORE = {  # what the other dialects prescribe
    "form": "shot", "problem.activation": None, "problem.bias": False, "problem.add": False, "problem.data_format": "NXC",
    "problem.filter_format": "XIO", "problem.dtype": "float32", "problem.auto_pad": None,
}  # fmt: skip


def smaller(case):
    """Yield cases that are one step smaller, large steps first."""
    rank = len(case["problem"]["kernel"])
    yield from (_without_axis(case, axis) for axis in range(rank if rank > 1 else 0))
    yield from steps(case, PLAIN | (PLAIN_CORE if case["dialect"] == "core" else {}), _LEAST, _may_go)


def _may_go(name, holder):
    if isinstance(holder, list):
        return name == "stream.chunks" or (name == "calls" and len(holder) > 1)
    return bool(re.match(r"odd|machine\.|calls\.(data|filter|bias|add|out)\.", name))


def _without_axis(case, axis):
    case = copy.deepcopy(case)
    for name in _PER_AXIS:
        if case["problem"][name] is not None:
            del case["problem"][name][axis]
    if "chunks" in case:
        del case["chunks"][axis + 1]
    at = axis + (1 if case["problem"]["data_format"] == "NXC" else 2)
    for call in case["calls"]:
        for array in ("data", "filter", "add", "out"):
            layout = call[array] or {}
            if "order" in layout:
                del layout["order"]
            if "steps" in layout:
                del layout["steps"][min(at, len(layout["steps"]) - 1)]
    return case
