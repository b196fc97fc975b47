"""The number of cores that this process may use.

It is the minimum of the machine's cores, the process's affinity, and the CPU quotas of its control groups.
"""

import math
import os
from typing import NamedTuple

from .. import _core
from .._base import control_groups


class Cores(NamedTuple):
    """A number of cores, and the limit that sets it."""

    number: int
    reason: str  # for `show_config`


def allowed():
    """Return the `Cores` that this process may use."""
    found = [Cores(os.cpu_count() or 1, "the machine's cores")]
    if places := _core.bound_cores():  # OpenMP has then bound this thread to one of its places, when it was loaded
        found.append(Cores(len(places), "the places of OpenMP (OMP_PLACES, OMP_PROC_BIND)"))
    elif hasattr(os, "sched_getaffinity"):
        found.append(Cores(len(os.sched_getaffinity(0)), "affinity"))
    found += quotas()
    return min(found, key=lambda cores: cores.number)


def quotas(root="/"):
    """Return a `Cores` for each CPU quota of the process's Linux control group and the groups above it.

    A quota is rounded down, but not below one core. ``root`` is the root of the file system.
    """
    found = []
    for folder in control_groups.folders("cpu", root):
        for name, read in (("cpu.max", _version_2), ("cpu.cfs_quota_us", _version_1)):
            cores = read(folder)
            if cores is not None:
                found.append(Cores(max(1, math.floor(cores)), f"a quota of {cores:g} cores ({folder / name})"))
    return found


def _version_2(folder):
    """Return the cores of ``cpu.max``, which holds "quota period" in microseconds; None without a limit."""
    quota, _, period = control_groups.read(folder / "cpu.max").partition(" ")
    return _quotient(quota, period or "100000")


def _version_1(folder):
    """Return the cores of ``cpu.cfs_quota_us``; None without a limit, where the file holds -1."""
    return _quotient(*(control_groups.read(folder / name) for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us")))


def _quotient(quota, period):
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(quota) and int(period) else None
