"""The Linux control groups (containers) that limit this process."""

import re
from pathlib import Path


def folders(controller, root="/"):
    """Return the folder of the process's group and those of the groups above it, of version 2 and of a version 1 controller.

    ``root`` is the root of the file system.
    """
    root = Path(root)
    groups, mounts = (read(root / "proc/self" / name).splitlines() for name in ("cgroup", "mountinfo"))
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
        is_version_1 = kind[0] == "cgroup" and controller in kind[2].split(",")
        name = "cgroup2" if kind[0] == "cgroup2" else controller if is_version_1 else ""
        if name in paths:
            mount_root, mount_point = map(_unescaped, fields[3:5])
            below = _below(paths[name], mount_root)
            found += [(root / mount_point.lstrip("/")).joinpath(*below[:n]) for n in range(len(below), -1, -1)]
    return found


def read(path):
    """Return the text of a file, "" if it can't be read."""
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
