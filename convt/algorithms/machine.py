"""The machine that plans are made for: instruction set, cache sizes, limits. Tests and calibration may pretend another one."""

import contextlib
import functools
import os
from dataclasses import dataclass, replace

from .. import _core
from . import costs
from .unit import unit_of


@dataclass(frozen=True, eq=False)
class Machine:
    """What plans depend on beside the problem. There is one object of each: caches of plans compare machines by identity."""

    isa: str
    l1: int  # bytes of a core's first-level data cache
    l2: int  # bytes of a core's second-level cache
    l3: int  # bytes of the last-level cache
    limits: costs.Limits
    profile: costs.Profile  # what its work costs
    isa_in_use: str  # the one whose kernels run; `isa` differs from it only where another CPU's plans are looked at

    @property
    def last_bytes(self):
        """Bytes of the last-level cache that one process may count on: other processes share it."""
        return min(32 << 20, self.l3)

    def info(self, dtype, unit="vectors"):
        """The `Unit` of a name for a dtype; None where the instruction set or the dtype has none."""
        return _unit(self.isa, dtype, unit)


@functools.cache
def _unit(isa, dtype, name):
    return unit_of(name, _core.kernel_info(dtype, name, isa))


@functools.cache
def _machine(isa, caches):
    info = _core.kernel_info("float32", isa=isa)
    profile = _PROFILE or costs.built_in(8 * info["vl"] * info["t_size"], caches[0])
    return Machine(isa, *caches, costs.limits(*caches), profile, isa)


_pretended = None  # a function of the machine there is


def current():
    """The machine in use; or the one that is pretended."""
    here = _machine(_core.isa(), _CACHES)
    return here if _pretended is None else _pretended(here)


_CACHES = _core.cache_bytes()
_PROFILE = costs.load(path, "CONVT_COSTS") if (path := os.environ.get("CONVT_COSTS")) else None


@contextlib.contextmanager
def pretend(isa=None, l1=None, l2=None, l3=None, profile=None, **limits):
    """Plans made inside are those of a machine with these caches, costs and limits, in the whole process. With the ``isa`` of
    another CPU they can be looked at, but not run."""
    global _pretended

    @functools.cache
    def changed(here):
        there = (here.l1, here.l2, here.l3)
        caches = tuple(old if new is None else new for new, old in zip((l1, l2, l3), there, strict=True))
        pretended = _machine(isa or here.isa, caches)
        now = pretended.limits._replace(**limits)
        return replace(pretended, limits=now, profile=profile or pretended.profile, isa_in_use=here.isa)

    before, _pretended = _pretended, changed
    try:
        yield
    finally:
        _pretended = before
