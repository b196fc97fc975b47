"""What is kept for later calls: plans and one-shot calls, the packed weights of operators. Each has a bound in bytes, and what
was not used for longest goes first."""

import contextlib
import math
import os
import threading
import weakref

from . import _config, _core
from .algorithms import stages
from .algorithms.onednn.weights import Filter

OPERATOR_PLANS = 16 << 20  # the most bytes of the plans of an operator,
ONE_SHOT_PLANS = 16 << 20  # of those of one-shot calls,
ALL_PLANS = 64 << 20  # and of all plans of the process
WINNERS = 1 << 20  # of what "tune" found for an operator

# Bytes of packed weights that an operator may keep however small its filter is, unless a limit was set: few shapes may want
# many times the bytes of such a filter.
LEAST_PACKED = 1 << 16

_KEY = 1 << 10  # bytes of a key by which something is found, about
_CHECKS = 8  # all plans are counted whenever this share of their bound has come

_changing = threading.Lock()  # what is kept is changed by one thread at a time
_packing = threading.Lock()  # and packed by one, as packing twice would cost the others more
_caches: weakref.WeakSet["Recent"] = weakref.WeakSet()  # those that `clear` empties
_unchecked = 0  # bytes of plans that came since all were counted


class Recent:
    """What was kept, by its keys. Everything is a `_repeat.Kept`, which may have several keys.

    ``entries`` is for looking things up: it stays the same dict. ``plans`` says whether plans are kept, which `clear` forgets,
    and which count for the bound of all plans.
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
        """What is kept under a key, or None."""
        found = self.entries.get(key)
        if found is not None:
            found.touch()
        return found

    def get_or_make(self, key, make, alone=contextlib.nullcontext()):  # noqa: B008
        """What is kept under a key, made if there is nothing. Threads may make it twice, unless ``alone`` is a lock."""
        found = self.get(key)
        if found is None:
            with alone:
                found = self.get(key) or make()
                self.keep(key, found)
        return found

    def keep(self, key, kept):
        """Keep something under a key, or under one more key."""
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
                _let_go([self], self.bytes - self.limit * 3 // 4, kept)
            _unchecked += more if self.plans else 0
            if _unchecked > ALL_PLANS // _CHECKS:
                _unchecked = 0
                excess = sum(each.bytes for each in _caches) - ALL_PLANS + ALL_PLANS // _CHECKS
                if excess > 0:
                    _let_go(list(_caches), excess, kept)

    def clear(self):
        """Forget everything."""
        with _changing:
            self._clear()

    def _clear(self):
        _core.forget_known()
        for each in self.entries.values():
            each.keys.clear()
        self.entries.clear()
        self.bytes = 0

    def _forget_key(self, key, kept):
        del self.entries[key]
        kept.keys.remove(key)
        self.bytes -= _KEY + (0 if kept.keys else kept.bytes)

    def drop(self, kept):
        """Forget one thing, by all of its keys."""
        _core.forget_known()
        for key in kept.keys.copy():
            self._forget_key(key, kept)


def _let_go(caches, bytes, newest):
    """Drop what was not used for longest, until so many bytes are free or but the newest is left."""
    found = {id(kept): (kept, cache) for cache in caches for kept in cache.entries.values() if kept is not newest}
    for kept, cache in sorted(found.values(), key=lambda pair: pair[0].used):
        if bytes <= 0:
            return
        before = cache.bytes
        cache.drop(kept)
        bytes -= before - cache.bytes


def clear():
    """Forget all plans and one-shot calls. Weights stay packed."""
    with _changing:
        for cache in _caches:
            cache._clear()


def most_times():
    """How many times the bytes of a filter its packed weights have at most: a list of one number, or of two, for filters of
    more than `stages.LARGE_FILTER` bytes and for smaller ones."""
    times = _config.get_packed_weights_limit()
    return [stages.MOST_FORM, stages.MOST_SMALL_FORM] if times is None else [times]


class PackedWeights:
    """The packed weights of one filter, in all forms together within a bound (`_config.set_packed_weights_limit`).

    When a form is packed, those that were not used for longest are dropped until it fits; a form that is too large for the
    bound is kept alone. Calls that run on a form keep it alive until they are over.
    """

    def __init__(self, filter_bytes, copied=0, limited=True):
        """``copied`` bytes of copies of the filter count as packed ones."""
        self._filter_bytes, self._copied, self._limited = filter_bytes, copied, limited
        self._forms = []  # those whose packed weights are kept

    @property
    def limit(self):
        """The most bytes of packed weights, unless one form alone has more."""
        times = math.inf
        if self._limited:
            times = most_times()[0 if self._filter_bytes > stages.LARGE_FILTER else -1]
        least = LEAST_PACKED if _config.get_packed_weights_limit() is None else 0
        return math.inf if math.isinf(times) else max(least, int(times * self._filter_bytes) - self._copied)

    @property
    def bytes(self):
        """Bytes of all packed weights that are kept."""
        return sum(form.nbytes for form in self._forms)

    def of(self, form, pack):
        """The packed weights of a `_repeat.Form`, packed by ``pack()`` where they are not kept."""
        packed = form.take()
        if packed is None:
            with _packing:
                packed = form.take()
                if packed is None:
                    self._let_go(getattr(form.recipe, "weight_bytes", 0))  # before: both need not be there at once
                    packed = pack()
                    self._forms.append(form)
                    form.keep(packed)
                    self._let_go(0, form)
                    if isinstance(packed, Filter):  # which grows with layouts that primitives want
                        packed.bound_to(self.limit)
        return packed

    def clear(self):
        """Drop all."""
        with _packing:
            self._let_go(math.inf)

    def _let_go(self, more, newest=None):
        """Drop forms until there is room for ``more`` bytes."""
        limit = self.limit
        for form in sorted(self._forms, key=lambda form: form.used):
            if self.bytes + more <= limit:
                return
            if form is not newest:
                form.keep(None)
                self._forms.remove(form)


def _unlock():
    """A child forked while another thread held a lock would wait for it for ever."""
    global _changing, _packing
    _changing, _packing = threading.Lock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
