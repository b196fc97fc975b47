"""Texts that are smaller than a failing one: without a statement, a module or an argument, or with smaller numbers."""

import ast
import copy

from ..shrinking import numbers_below


def smaller(case):
    """Yield texts that are one step smaller, large steps first."""
    yield from map(ast.unparse, _smaller(ast.parse(case)))


def _smaller(tree):
    """Yield copies of a tree that are one step smaller, large steps first."""
    for n in reversed(range(len(tree.body))):
        yield _changed(tree, lambda new, n=n: new.body.pop(n))
    nodes = list(ast.walk(tree))
    for n, node in enumerate(nodes):
        if isinstance(node, ast.With):
            yield _changed(tree, lambda new, n=n: _replace(new, n, _at(new, n).body[0]))
    for n, node in enumerate(nodes):
        for name in ("args", "keywords", "elts", "items"):
            values = getattr(node, name, None)
            needed = isinstance(getattr(node, "ctx", None), ast.Store) or (name == "items" and len(values or ()) == 1)
            if isinstance(values, list) and not needed:
                for k in reversed(range(len(values))):
                    yield _changed(tree, lambda new, n=n, name=name, k=k: getattr(_at(new, n), name).pop(k))
    for n, node in enumerate(nodes):
        if isinstance(node, ast.Call):  # f(x) becomes x, and x.f() becomes x
            for k in range(len(node.args)):
                yield _changed(tree, lambda new, n=n, k=k: _replace(new, n, _at(new, n).args[k]))
            if isinstance(node.func, ast.Attribute):
                yield _changed(tree, lambda new, n=n: _replace(new, n, _at(new, n).func.value))
        if isinstance(node, (ast.List, ast.Tuple)) and node.elts and not isinstance(node.ctx, ast.Store):
            yield _changed(tree, lambda new, n=n: _replace(new, n, _at(new, n).elts[0]))
    numbers = sorted({node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is int})
    for value in reversed(numbers):
        for smaller in numbers_below(value, 1):
            same = lambda node, value=value: isinstance(node, ast.Constant) and type(node.value) is int and node.value == value  # noqa: E731
            found = [n for n, node in enumerate(nodes) if same(node)]
            for group in [found, *([n] for n in found if len(found) > 1)]:
                yield _changed(tree, lambda new, group=group, smaller=smaller: _set(new, group, smaller))


def _changed(tree, change):
    new = copy.deepcopy(tree)
    change(new)
    return new


def _at(tree, n):
    """Return the node of this number in the order of `ast.walk`."""
    return list(ast.walk(tree))[n]


def _set(tree, numbers, value):
    nodes = list(ast.walk(tree))
    for n in numbers:
        nodes[n].value = value


def _replace(tree, n, new):
    """Put another node in the place of the node of this number."""
    old = _at(tree, n)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list) and any(each is old for each in value):
                value[:] = [new if each is old else each for each in value]
