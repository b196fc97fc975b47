"""Caches of what algorithms decide, which `convt.clear_caches` empties together."""

import functools

_CACHES = []


def remembered(size):
    """Decorate a function of hashable arguments: its last ``size`` results are kept until `clear`."""

    def decorate(function):
        cached = functools.lru_cache(maxsize=size)(function)
        _CACHES.append(cached)
        return cached

    return decorate


def clear():
    """Empty all caches."""
    for each in _CACHES:
        each.cache_clear()
