"""The machine that plans are made for: instruction set, cache sizes, limits. Tests and calibration may pretend another one."""

import contextlib
import functools
import itertools
import os
from dataclasses import dataclass, replace

from .. import _config, _core
from . import constants, costs
from .unit import unit_of


@dataclass(frozen=True, eq=False)
class Machine:
    """What plans depend on beside the problem. There is one object of each: caches of plans compare machines by identity."""

    name: str  # of the machine file that the constants are from
    isa: str
    constants: constants.Constants  # what it can do
    l1: int  # bytes of a core's first-level data cache
    l2: int  # bytes of a core's second-level cache
    l3: int  # bytes of the last-level cache
    limits: costs.Limits
    profile: costs.Profile  # what its work costs
    packed_limit: float  # times a filter's bytes, that users permit packed weights to have; 0 if they set none
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
def _machine(isa, caches, packed_limit, family=None):
    """The Machine of an instruction set and cache sizes: as the machine file of a name describes it, or that of this CPU."""
    info = _core.kernel_info("float32", isa=isa)
    bits, amx = 8 * info["vl"] * info["t_size"], _core.kernel_info("float32", "amx", isa) is not None
    found = constants.known()[family] if family is not None else _DESCRIPTION or constants.of_cpu(cpu(), bits, amx)
    profile = costs.profile_of(found.name, found.constants, bits)
    return Machine(found.name, isa, found.constants, *caches, costs.limits(*caches), profile, packed_limit, isa)


def cpu():
    """(vendor, family, model) of this CPU, as CPUID gives them; ("", 0, 0) where the system does not say."""
    fields = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in itertools.takewhile(str.strip, file):
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    family, model = (fields.get(name, "") for name in ("cpu family", "model"))
    return fields.get("vendor_id", ""), *(int(text) if text.isdecimal() else 0 for text in (family, model))


_pretended = None  # a function of the machine there is


def current():
    """The machine in use; or the one that is pretended."""
    here = _machine(_core.isa(), _CACHES, _config.get_packed_weights_limit() or 0)
    return here if _pretended is None else _pretended(here)


_CACHES = _core.cache_bytes()
_DESCRIPTION = constants.read(path, "CONVT_COSTS") if (path := os.environ.get("CONVT_COSTS")) else None


@contextlib.contextmanager
def pretend(isa=None, l1=None, l2=None, l3=None, profile=None, family=None, **limits):
    """Plans made inside are those of a machine with these caches, costs and limits, in the whole process; ``family`` names a
    file of ``machines/`` for its constants. With the ``isa`` of another CPU they can be looked at, but not run."""
    global _pretended

    @functools.cache
    def changed(here):
        there = (here.l1, here.l2, here.l3)
        caches = tuple(old if new is None else new for new, old in zip((l1, l2, l3), there, strict=True))
        pretended = _machine(isa or here.isa, caches, here.packed_limit, family)
        now = pretended.limits._replace(**limits)
        return replace(pretended, limits=now, profile=profile or pretended.profile, isa_in_use=here.isa)

    before, _pretended = _pretended, changed
    try:
        yield
    finally:
        _pretended = before
