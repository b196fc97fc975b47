"""The number of cores that this process may use.

It is the minimum of the machine's cores, the process's affinity, and the CPU quotas of its control groups.
"""

import math
import os
import re
from pathlib import Path
from typing import NamedTuple


class Cores(NamedTuple):
    """A number of cores, and the limit that sets it."""

    number: int
    reason: str  # for `show_config`


def allowed():
    """Return the `Cores` that this process may use."""
    found = [Cores(os.cpu_count() or 1, "the machine's cores")]
    if hasattr(os, "sched_getaffinity"):
        found.append(Cores(len(os.sched_getaffinity(0)), "affinity"))
    found += quotas()
    return min(found, key=lambda cores: cores.number)


def quotas(root="/"):
    """Return a `Cores` for each CPU quota of the process's Linux control group and the groups above it.

    A quota is rounded down, but not below one core. ``root`` is the root of the file system.
    """
    root = Path(root)
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {}  # "cgroup2" (version 2) or the name of a controller (version 1) -> path of the process's group
    for line in groups:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for name in ["cgroup2"] if number == "0" and not controllers else controllers.split(","):
            paths[name] = path
    found = []
    for line in mounts:
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 5 or len(kind) < 3:
            continue
        name = "cgroup2" if kind[0] == "cgroup2" else "cpu" if kind[0] == "cgroup" and "cpu" in kind[2].split(",") else ""
        if name in paths:
            mount_root, mount_point = map(_unescaped, fields[3:5])
            found += _of_hierarchy(root / mount_point.lstrip("/"), _below(paths[name], mount_root))
    return found


def _of_hierarchy(mount, below):
    """Return the `Cores` of a group and of its ancestors up to ``mount``; ``below`` is the group's path below ``mount``."""
    found = []
    for folder in [mount.joinpath(*below[:n]) for n in range(len(below), -1, -1)]:
        for name, read in (("cpu.max", _version_2), ("cpu.cfs_quota_us", _version_1)):
            cores = read(folder)
            if cores is not None:
                found.append(Cores(max(1, math.floor(cores)), f"a quota of {cores:g} cores ({folder / name})"))
    return found


def _version_2(folder):
    """Return the cores of ``cpu.max``, which holds "quota period" in microseconds; None without a limit."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return _quotient(quota, period or "100000")


def _version_1(folder):
    """Return the cores of ``cpu.cfs_quota_us``; None without a limit, where the file holds -1."""
    return _quotient(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _quotient(quota, period):
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(quota) and int(period) else None


def _read(path):
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _below(path, mount_root):
    """Return the parts of a group's path below ``mount_root``, the root of a mount.

    Return () if the group is outside the mount, as a control group namespace can show it.
    """
    parts, above = Path(path).parts, Path(mount_root).parts
    return () if parts[: len(above)] != above or ".." in parts else parts[len(above) :]


def _unescaped(field):
    """Decode a field of mountinfo, in which spaces, tabs, newlines and backslashes are octal escapes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
