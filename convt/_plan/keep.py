"""Caches of plans, one-shot calls, and operators' packed weights.

Each cache has a limit in bytes and drops the least recently used entries first.
"""

import contextlib
import math
import os
import threading
import weakref

from .. import _core
from .._run import config
from ..algorithms import stages
from ..algorithms.onednn.weights import Filter

# Limits in bytes.
OPERATOR_PLANS = 16 << 20  # plans of one operator
ONE_SHOT_PLANS = 16 << 20  # plans of one-shot calls
ALL_PLANS = 64 << 20  # all plans of the process
TUNED_RESULTS = 1 << 20  # results of "tune" for one operator

# Bytes of packed weights that every operator may keep if no limit was set, because the forms that a few shapes need can be
# many times larger than a small filter.
LEAST_PACKED = 1 << 18

_KEY = 1 << 10  # approximate bytes of a cache key
_CHECKS = 8  # the total of all plans is computed after every ALL_PLANS // _CHECKS bytes of new plans

_changing = threading.Lock()  # held while a cache of plans changes
_packing = threading.Lock()  # held while weights are packed, because packing twice takes longer than waiting
_caches: weakref.WeakSet["Recent"] = weakref.WeakSet()  # caches that `clear` empties
_unchecked = 0  # bytes of plans added since the total of all plans was computed


class Recent:
    """A cache with a limit in bytes, which maps keys to `_repeat.Kept` objects. An object may have several keys.

    ``entries`` is the dict of the cache. It may be held for lookups, because it is never replaced. ``plans`` marks a cache of
    plans: `clear` empties it, and it counts towards ALL_PLANS.
    """

    def __init__(self, limit, plans=True):
        self.limit, self.bytes, self.entries = limit, 0, {}
        if plans:
            with _changing:
                _caches.add(self)
        self.plans = plans

    def __len__(self):
        return len(self.entries)

    def get(self, key):
        """Return the object of a key and note its use, or return None."""
        found = self.entries.get(key)
        if found is not None:
            found.touch()
        return found

    def get_or_make(self, key, make, lock=contextlib.nullcontext()):  # noqa: B008
        """Return the object of a key; call ``make()`` if there is none.

        ``lock`` is held while the object is made. Without a lock, two threads may both make it.
        """
        found = self.get(key)
        if found is None:
            with lock:
                found = self.get(key) or make()
                self.keep(key, found)
        return found

    def keep(self, key, kept):
        """Add an object, or another key of an object. Drop older objects to stay within the limits."""
        global _unchecked
        with _changing:
            old = self.entries.get(key)
            if old is kept:
                return
            if old is not None:
                self._forget_key(key, old)
            more = _KEY + (0 if kept.keys else kept.bytes)
            kept.keys.append(key)
            self.entries[key] = kept
            self.bytes += more
            if self.bytes > self.limit:
                _evict([self], self.bytes - self.limit * 3 // 4, kept)
            _unchecked += more if self.plans else 0
            if _unchecked > ALL_PLANS // _CHECKS:
                _unchecked = 0
                excess = sum(each.bytes for each in _caches) - ALL_PLANS + ALL_PLANS // _CHECKS
                if excess > 0:
                    _evict(list(_caches), excess, kept)

    def clear(self):
        """Remove all entries."""
        with _changing:
            self._clear()

    def _clear(self):
        _core.invalidate_known_calls()
        for each in self.entries.values():
            each.keys.clear()
        self.entries.clear()
        self.bytes = 0

    def _forget_key(self, key, kept):
        del self.entries[key]
        kept.keys.remove(key)
        self.bytes -= _KEY + (0 if kept.keys else kept.bytes)

    def drop(self, kept):
        """Remove an object with all its keys."""
        _core.invalidate_known_calls()
        for key in kept.keys.copy():
            self._forget_key(key, kept)


def _evict(caches, bytes, newest):
    """Drop the least recently used objects, except ``newest``, until ``bytes`` bytes are free."""
    found = {id(kept): (kept, cache) for cache in caches for kept in cache.entries.values() if kept is not newest}
    for kept, cache in sorted(found.values(), key=lambda pair: pair[0].used):
        if bytes <= 0:
            return
        before = cache.bytes
        cache.drop(kept)
        bytes -= before - cache.bytes


def clear():
    """Empty all caches of plans and one-shot calls. Packed weights stay."""
    with _changing:
        for cache in _caches:
            cache._clear()


def packed_limits():
    """Return the limit of packed weights in multiples of the filter's bytes.

    The result is a list of one number if a limit was set. Otherwise it has two, for filters of more than
    `stages.LARGE_FILTER` bytes and for smaller ones.
    """
    times = config.get_packed_weights_limit()
    # Two large forms of a small filter are kept. Otherwise calls of two shapes in turn might pack weights at each call.
    return [stages.MOST_FORM, 2 * stages.MOST_SMALL_FORM] if times is None else [times]


class PackedWeights:
    """The packed weights of one filter in all forms, limited in total by `config.set_packed_weights_limit`.

    Before a form is packed, the least recently used forms are dropped until the new one fits. A form larger than the limit is
    kept alone. A running call holds a reference to its packed weights.
    """

    def __init__(self, filter_bytes, copied=0, limited=True):
        """``copied`` is the number of bytes of copies of the filter, which count as packed weights."""
        self._filter_bytes, self._copied, self._limited = filter_bytes, copied, limited
        self._forms = []  # forms whose packed weights are kept

    @property
    def limit(self):
        """Maximum bytes of packed weights; a single form may exceed it."""
        times = math.inf
        if self._limited:
            times = packed_limits()[0 if self._filter_bytes > stages.LARGE_FILTER else -1]
        least = LEAST_PACKED if config.get_packed_weights_limit() is None else 0
        return math.inf if math.isinf(times) else max(least, int(times * self._filter_bytes) - self._copied)

    @property
    def bytes(self):
        """Bytes of the packed weights of all kept forms."""
        return sum(form.nbytes for form in self._forms)

    def get_or_pack(self, form, pack):
        """Return the packed weights of a `_repeat.Form`. Call ``pack()`` if they are not kept."""
        packed = form.take()
        if packed is None:
            with _packing:
                packed = form.take()
                if packed is None:
                    self._evict(getattr(form.recipe, "weight_bytes", 0))  # before packing, to limit the peak of memory
                    packed = pack()
                    self._forms.append(form)
                    form.keep(packed)
                    self._evict(0, form)
                    if isinstance(packed, Filter):  # its size grows with each layout that a oneDNN primitive needs
                        packed.bound_to(self.limit)
        return packed

    def clear(self):
        """Drop all packed weights."""
        with _packing:
            self._evict(math.inf)

    def _evict(self, more, newest=None):
        """Drop the least recently used forms, except ``newest``, until ``more`` bytes fit."""
        limit = self.limit
        for form in sorted(self._forms, key=lambda form: form.used):
            if self.bytes + more <= limit:
                return
            if form is not newest:
                form.keep(None)
                self._forms.remove(form)


def _unlock():
    """Replace the locks in a forked child, because a lock held by another thread at the fork is never released."""
    global _changing, _packing
    _changing, _packing = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
