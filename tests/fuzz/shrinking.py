"""Reduction of a failing case of any fuzzer: `shrink`, and the steps that make a case of dicts and lists smaller."""

import copy
import fnmatch


def shrink(case, smaller, fails, tries=400):
    """Return a smaller case that fails as ``case`` does, of which no step makes a smaller one, or the smallest found in
    ``tries``. ``smaller(case)`` yields cases that are one step smaller, large steps first."""
    found = True
    while found:
        found, first = False, 0
        while first is not None:
            candidates, begin, first = enumerate(smaller(case)), first, None
            for n, candidate in candidates:
                if n < begin:  # these failed to fail a moment ago
                    continue
                if tries <= 0:
                    return case
                tries -= 1
                if fails(candidate):
                    case, found, first = candidate, True, n
                    break
    return case


def steps(case, plain, least, may_go):
    """Yield cases that are one step smaller than a tree of dicts and lists, steps near its root first.

    Keys have names such as ``calls.data.steps``, which are also those of the entries of their lists. ``plain`` maps patterns of
    names to the plainest values, and ``least`` to the least integers. ``may_go(name, holder)`` checks whether the dict or list
    can do without the key or entry.
    """
    for path in sorted(_paths(case), key=len):
        holder, key = _at(case, path[:-1]), path[-1]
        name, value = ".".join(each for each in path if isinstance(each, str)), holder[key]
        if may_go(name, holder):
            yield changed(case, path, ())
        for new in _matching(plain, name) if isinstance(holder, dict) else ():
            if value != new:
                yield changed(case, path, [new])
        if type(value) is int:
            for n in _matching(least, name):
                yield from (changed(case, path, [new]) for new in numbers_below(value, n))


def numbers_below(n, least):
    return sorted({least, n // 2, n - 1} - {n}) if n > least else ()


def _matching(patterns, name):
    return [value for pattern, value in patterns.items() if fnmatch.fnmatchcase(name, pattern)]


def _paths(value, path=()):
    """Yield the paths of all values inside a tree."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*path, key)
        yield from _paths(value[key], (*path, key))


def _at(case, path):
    for key in path:
        case = case[key]
    return case


def changed(case, path, new):
    """Return a copy of a case with the values ``new`` in the place of the one at a path. A dict takes at most one."""
    case = copy.deepcopy(case)
    holder, key = _at(case, path[:-1]), path[-1]
    if isinstance(holder, list):
        holder[key : key + 1] = copy.deepcopy(new)
    elif new:
        holder[key] = copy.copy(new[0])
    else:
        del holder[key]
    return case
