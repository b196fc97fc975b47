"""How many cores this process may use: the fewest of the machine's, of its affinity, and of its control groups' quotas."""

import math
import os
import re
from pathlib import Path
from typing import NamedTuple


class Cores(NamedTuple):
    number: int
    reason: str  # what sets the limit


def allowed():
    """The `Cores` of this process."""
    found = [Cores(os.cpu_count() or 1, "the machine's cores")]
    if hasattr(os, "sched_getaffinity"):
        found.append(Cores(len(os.sched_getaffinity(0)), "affinity"))
    found += quotas()
    return min(found, key=lambda cores: cores.number)


def quotas(root="/"):
    """The `Cores` that Linux' control groups allow: the quotas of the group the process is in and of those above it, rounded
    down, to one core at least. ``root`` is where the system's files are."""
    root = Path(root)
    try:
        groups = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        mounts = (root / "proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = {}  # of the group, by kind: that of version 2, or of version 1's controller
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
    """The `Cores` of the group ``below`` a mount point, and of the groups above it up to the mount point."""
    found = []
    for folder in [mount.joinpath(*below[:n]) for n in range(len(below), -1, -1)]:
        for name, read in (("cpu.max", _version_2), ("cpu.cfs_quota_us", _version_1)):
            cores = read(folder)
            if cores is not None:
                found.append(Cores(max(1, math.floor(cores)), f"a quota of {cores:g} cores ({folder / name})"))
    return found


def _version_2(folder):
    """The cores of ``cpu.max``, "quota period" in microseconds; None without a limit."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    return _quotient(quota, period or "100000")


def _version_1(folder):
    """The cores of ``cpu.cfs_quota_us``, -1 without a limit."""
    return _quotient(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _quotient(quota, period):
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(quota) and int(period) else None


def _read(path):
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _below(path, mount_root):
    """The parts of a group's path below the root of a mount; none where a namespace shows the group outside of it."""
    parts, above = Path(path).parts, Path(mount_root).parts
    return () if parts[: len(above)] != above or ".." in parts else parts[len(above) :]


def _unescaped(field):
    """A field of mountinfo, where spaces and the like are octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
