"""Smaller cases than a failing one. Every key that `build.py` can do without is left out, every list loses elements."""

import copy

_KEPT = {"op", "nodes", "runs"}


def smaller(case):
    """Yield cases that are one step smaller, large steps first."""
    for path in sorted(_paths(case), key=len):
        holder, key = _at(case, path[:-1]), path[-1]
        value = holder[key]
        if key not in _KEPT if isinstance(holder, dict) else len(holder) > 1 or path[0] == "nodes":
            yield _changed(case, path)
        if isinstance(value, dict) and "op" in value:
            for name in ("then", "else", "body"):  # a graph's nodes instead of the node that contains it
                if name in value and isinstance(holder, list):
                    yield _changed(case, path, value[name], splice=True)
        if isinstance(value, int) and not isinstance(value, bool):
            for n in sorted({0, 1, value // 2, value - 1}):
                if 0 <= n < value:
                    yield _changed(case, path, n)
        if key == "values" and value not in ("ones", "real"):
            yield _changed(case, path, "real")


def _paths(value, path=()):
    """Yield the paths of all values inside a tree."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _paths(value[key], (*path, key))


def _at(case, path):
    for key in path:
        case = case[key]
    return case


def _changed(case, path, new=None, splice=False):
    """Return a copy of a case with another value at a path, or without it."""
    case = copy.deepcopy(case)
    holder, key = _at(case, path[:-1]), path[-1]
    if splice:
        holder[key : key + 1] = new
    elif new is None:
        del holder[key]
    else:
        holder[key] = new
    return case
