"""Smaller cases than a failing one. Every key that `build.py` can do without is left out, every list loses elements."""

from ..shrinking import changed, steps

_KEPT = {"op", "nodes", "runs"}


def smaller(case):
    """Yield cases that are one step smaller, large steps first."""
    yield from _without_inner_graph(case, ("nodes",), case["nodes"])
    yield from steps(case, {}, {"*": 0}, _may_go)


def _may_go(name, holder):
    if isinstance(holder, list):
        return len(holder) > 1 or name.startswith("nodes")
    return name.rpartition(".")[2] not in _KEPT


def _without_inner_graph(case, path, nodes):
    """Yield the case with the nodes of a graph instead of the node that contains it."""
    for n, node in enumerate(nodes):
        for name in ("then", "else", "body"):
            if name in node:
                yield changed(case, (*path, n), node[name])
                yield from _without_inner_graph(case, (*path, n, name), node[name])
