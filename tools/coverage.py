"""Says which lines and branches of the C kernels, and which lines of the Cython modules, the fuzzer and the tests reach:

    python tools/coverage.py                          # builds, runs all at each instruction set of this CPU, and prints tables
    python tools/coverage.py --isa avx2 --seconds 900 --keep tests/test_depthwise.py      # adds to what was counted before
    python tools/coverage.py --report --missing depthwise         # what was counted, and what never ran in files named so

The folder is build/coverage: a copy of what a build and the tests need, compiled without optimisation and with GCC's counters.
Needs GCC with gcov, and in this Python what a build and the tests need. A run ends with an error if anything failed in it.

A line has run if any of the functions that its file makes of it ran it: kernels are compiled once for each instruction set, and
there once for each dtype. The same goes for a branch, which is one way out of a condition. At an instruction set those of other
ones, and kernels that it replaced by its own, do not count. Of the C that Cython writes a line of Cython has run if any of what
is made of it did; its branches are not counted, as most of them are Python's errors. What is known not to be reached, and why,
is in docs/measurements/coverage.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from instrumented import ROOT, build, copy

# (With a seed an object file that was made again fits the counts of the one before.)
FLAGS = "-w --coverage -fprofile-update=atomic -frandom-seed=0"
# Those that reach loops and kernels.
TESTS = "direct depthwise planes winograd scatter matrix packing numerics memory threads repeat onednn api bad_input process"
KERNELS = "convt/kernels/"
ROW = re.compile(r"ISA\((\w+), (\w+),")
# What Cython writes before the C of a line, and what it writes before the C that ends a function, which is no line's.
MARK = re.compile(r'\s*/\* (?:"(convt/[^"]+)":(\d+)|function exit code \*/)')


def levels(folder):
    """The instruction sets: of each, whether this CPU has it."""
    code = "import json; from convt import _core; print(json.dumps({row['name']: row['available'] for row in _core.isa_rows()}))"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True, text=True)
    return json.loads(done.stdout)


def counts_of(folder, isa):
    return folder / "counts" / isa


def run(folder, isa, options):
    """Whether the fuzzer and the tests found nothing at an instruction set; what ran is counted in a folder of its own."""
    counts = counts_of(folder, isa)
    if not options.keep:
        shutil.rmtree(counts, ignore_errors=True)
    tests = options.tests or [f"tests/test_{name}.py" for name in TESTS.split()]
    settings = {
        "PYTHONPATH": str(folder),
        "CONVT_ISA": isa,
        # Of the path that an object file has for its counts, the part in the folder is put behind that of the counts.
        "GCOV_PREFIX": str(counts),
        "GCOV_PREFIX_STRIP": str(len(folder.parts) - 1),
    }
    fuzz = ["tests.fuzz", "--isa", isa, "--seconds", str(options.seconds), "--workers", str(options.workers)]
    good = True
    for command in [fuzz] * (options.seconds > 0) + [["pytest", "-q", "-p", "no:cacheprovider", *tests]]:
        print(f"== {isa}: python -m {' '.join(command)}", flush=True)
        good &= not subprocess.run([sys.executable, "-m", *command], cwd=folder, env=os.environ | settings).returncode
    return good


def own_kernels(folder, isa):
    """The sources of the kernels that an instruction set uses: its own, and those of its bases that it did not replace."""
    bases = dict(ROW.findall(next((folder / "build").glob("temp.*/generated/isa_rows.h")).read_text()))
    found = []
    while isa != "none":
        found.append(f"isa_{isa}")
        isa = "none" if '"body.h"' in (folder / KERNELS / f"isa_{isa}.c").read_text() else bases[isa]
    return found


def counted(folder, isa):
    """Of each file, what ran at an instruction set: {line: ran}, and {(line, number of branches): which were taken}."""
    counts, used = counts_of(folder, isa), own_kernels(folder, isa)
    lines, branches = defaultdict(dict), defaultdict(dict)
    for data in sorted(counts.rglob("*.gcda")):
        if data.stem.startswith("isa_") and data.stem not in used:
            continue
        notes = data.relative_to(counts).with_suffix(".gcno")
        shutil.copy2(folder / notes, data.parent)
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(data)]
        said = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True).stdout
        for file in json.loads(said)["files"]:
            name = file["file"]
            places = cython_lines(folder / name) if name.startswith("build/") else None
            if places is None and not name.startswith("convt/"):  # a header of Python, NumPy or the compiler
                continue
            for line in file["lines"]:
                at = line["line_number"]
                of, at = (name, at) if places is None else places.get(at, (None, 0))
                if of is None:
                    continue
                lines[of][at] = lines[of].get(at, False) or line["count"] > 0
                taken = [branch["count"] > 0 for branch in line["branches"] if not branch["throw"]]
                if of.startswith(KERNELS) and taken:
                    before = branches[of].get((at, len(taken)), [False] * len(taken))
                    branches[of][at, len(taken)] = [a or b for a, b in zip(before, taken, strict=True)]
    return lines, branches


def cython_lines(path):
    """Which line of which Cython file each line of a C file is from: {line: (file, line)}."""
    found, place = {}, None
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if mark := MARK.match(text):
            place = (mark[1], int(mark[2])) if mark[1] else None
        elif place:
            found[number] = place
    return found


def share(some):
    some = list(some)
    return f"{sum(some):6} of {len(some):5} {100 * sum(some) / len(some):6.1f}%" if some else ""


def report(folder, isa, missing):
    lines, branches = counted(folder, isa)
    flags = {name: [flag for taken in branches[name].values() for flag in taken] for name in lines}
    print(f"\n{isa:38}{'lines':>23}{'branches':>23}")
    for kind, of_kind in (("kernels", True), ("modules", False)):
        names = sorted(name for name in lines if name.startswith(KERNELS) == of_kind)
        for name in names:
            print(f"  {name:36}{share(lines[name].values()):>23}{share(flags[name]):>23}")
        all_lines = [ran for name in names for ran in lines[name].values()]
        all_branches = [flag for name in names for flag in flags[name]]
        print(f"  {'all ' + kind:36}{share(all_lines):>23}{share(all_branches):>23}")
    if missing is not None:
        for name in sorted(lines):
            if missing in name:
                list_missing(folder, name, lines[name], branches[name])


def list_missing(folder, name, lines, branches):
    """Lines that never ran, and those that ran, but not to each branch: of each, how many branches and which were not taken."""
    text = (folder / name).read_text().splitlines()
    for at in sorted(lines):
        never = [
            f"{number + 1} of {count}"
            for (line, count), taken in branches.items()
            for number, flag in enumerate(taken)
            if line == at and not flag
        ]
        if not lines[at]:
            print(f"{name}:{at}: never ran: {text[at - 1].strip()}")
        elif never:
            print(f"{name}:{at}: branch {', '.join(never)}: {text[at - 1].strip()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files of tests, and what else pytest takes; else those that reach the loops")
    parser.add_argument("--isa", help="at this instruction set alone")
    parser.add_argument("--seconds", type=float, default=120, help="of fuzzing at each instruction set")
    parser.add_argument("--workers", type=int, default=2, help="processes that fuzz")
    parser.add_argument("--keep", action="store_true", help="add to what earlier runs counted")
    parser.add_argument("--report", action="store_true", help="only print what was counted")
    parser.add_argument("--missing", nargs="?", const="", metavar="NAME", help="list what never ran, in files whose path has this")
    options = parser.parse_args()
    folder, good = ROOT / "build" / "coverage", True
    if not options.report:
        build(copy("coverage"), FLAGS, CONVT_COVERAGE_BUILD="1")
    for isa, available in levels(folder).items():
        if options.isa not in (None, isa):
            continue
        if not available:
            print(f"\n{isa}: not on this CPU")
            continue
        good &= options.report or run(folder, isa, options)
        report(folder, isa, options.missing)
    sys.exit(not good)


if __name__ == "__main__":
    main()
