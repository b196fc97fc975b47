"""The machine that schedules depend on: instruction set, cache sizes, costs, limits. Tests and calibration can replace it."""

import contextlib
import functools
import itertools
import os
import sys
from dataclasses import dataclass, replace

from .. import _core
from .._base import environment
from .._run import config
from . import constants, costs
from .unit import unit_of

LAST_BYTES = 32 << 20  # the most bytes of the last-level cache that one process can expect, because other processes share it


@dataclass(frozen=True, eq=False)
class Machine:
    """Everything that schedules depend on beside the problem. Caches compare machines by identity."""

    name: str  # name of the machine file with the constants
    isa: str
    constants: constants.Constants  # measured rates and latencies
    l1: int  # bytes of a core's first-level data cache
    l2: int  # bytes of a core's second-level cache
    l3: int  # bytes of the last-level cache
    limits: costs.Limits
    profile: costs.Profile  # the costs of all counts
    packed_limit: float  # the user's limit of packed weights, in multiples of the filter's bytes; 0 if none is set
    isa_in_use: str  # the instruction set whose kernels run; differs from `isa` only inside `pretend(isa=...)`

    @property
    def last_bytes(self):
        """Return the bytes of the last-level cache that one process can expect."""
        return min(LAST_BYTES, self.l3)

    def info(self, dtype, unit="vectors"):
        """Return the `Unit` of a name for a dtype, or None if the instruction set or the dtype has none."""
        return _unit(self.isa, dtype, unit)


@functools.cache
def _unit(isa, dtype, name):
    return unit_of(name, _core.kernel_info(dtype, name, isa))


@functools.cache
def _machine(isa, caches, packed_limit, family=None):
    """Return the Machine of an instruction set and cache sizes, with the machine file ``family`` or that of this CPU."""
    info = _core.kernel_info("float32", isa=isa)
    bits, (amx, dots) = 8 * info["vl"] * info["t_size"], [_core.kernel_info("float32", unit, isa) for unit in ("amx", "dots")]
    if family is not None:
        found = constants.known()[family]
    else:
        found = _DESCRIPTION or constants.of_cpu(cpu(), bits, amx is not None, dots is not None)
    profile = costs.profile_of(found.name, found.constants, bits)
    return Machine(found.name, isa, found.constants, *caches, costs.limits(*caches), profile, packed_limit, isa)


def cpu():
    """Return (vendor, family, model) of this CPU, ("", 0, 0) if the system does not tell.

    For x86, these are what CPUID reports. For AArch64, they are the implementer, the version of the architecture, and the part
    number of the first core; on macOS ("Apple", 0, 0).
    """
    fields = {}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in itertools.takewhile(str.strip, file):
            name, _, value = line.partition(":")
            fields[name.strip()] = value.strip()
    if sys.platform == "darwin" and os.uname().machine == "arm64":
        return "Apple", 0, 0
    if "CPU implementer" in fields:
        vendor = fields["CPU implementer"]
        vendor = _IMPLEMENTERS.get(vendor, vendor)
        family, model = (fields.get(name, "") for name in ("CPU architecture", "CPU part"))
    else:
        vendor, family, model = (fields.get(name, "") for name in ("vendor_id", "cpu family", "model"))
    return vendor, _number(family), _number(model)


_IMPLEMENTERS = {"0x41": "Arm", "0x61": "Apple"}  # implementer in an AArch64 CPU's main identification register -> name


def _number(text):
    """Return a decimal or hexadecimal (0x...) number, 0 if ``text`` is neither."""
    try:
        return int(text, 0)
    except ValueError:
        return 0


_pretended = None  # None, or a function: the real machine -> its replacement


def current():
    """Return the current machine, or its replacement inside `pretend`."""
    here = _machine(_core.isa(), _CACHES, config.get_packed_weights_limit() or 0)
    return here if _pretended is None else _pretended(here)


_CACHES = _core.cache_bytes()
_DESCRIPTION = constants.read(path, "CONVT_COSTS") if (path := environment.read("CONVT_COSTS")) else None


@contextlib.contextmanager
def pretend(isa=None, l1=None, l2=None, l3=None, profile=None, family=None, **limits):
    """Replace the machine in the whole process, inside a ``with`` block.

    Cache sizes are in bytes. ``family`` names a file of ``machines/`` for the constants. Plans for the ``isa`` of another CPU
    can be inspected, but not run.
    """
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
