"""Builds of convt in a separate folder, with extra compiler flags: shared by sanitize, emulate, arm and coverage."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "convt", "tests", "third_party", "bench", "tools")
# Arguments of pytest that leave out a test whose calls take seconds, and many minutes in these builds.
NO_LONG_CALLS = ("--deselect", "tests/run/test_threads.py::test_a_long_call_does_not_hold_the_gil")


def test_files(names):
    """Return the paths of test files from their names in words: "direct planes"."""
    return [str(path.relative_to(ROOT)) for name in names.split() for path in sorted(ROOT.glob(f"tests/*/test_{name}.py"))]


def instruction_sets(table):
    """Return the names of a table of setup.py, X86_ISAS or ARM_ISAS, from the smallest to the largest."""
    rows = (ROOT / "setup.py").read_text().split(f"\n{table} = [\n")[1].split("\n]")[0]
    return re.findall(r'^    \("(\w+)", ', rows, re.MULTILINE)


def copy(name):
    """Copy files that are newer here to build/<name>, except compiled modules and caches. Return that folder."""
    folder = ROOT / "build" / name
    folder.mkdir(parents=True, exist_ok=True)

    def newer(source, target):
        if not os.path.exists(target) or os.path.getmtime(source) > os.path.getmtime(target):
            shutil.copy2(source, target)

    for each in COPIED:
        if (ROOT / each).is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(ROOT / each, folder / each, copy_function=newer, dirs_exist_ok=True, ignore=ignored)
        else:
            newer(ROOT / each, folder / each)
    return folder


def build(folder, flags, **settings):
    # Flags in CC also reach the linker and the program with which setup.py detects OpenMP.
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    subprocess.run(command, check=True, cwd=folder, env=os.environ | {"CC": f"gcc {flags}", **settings})
