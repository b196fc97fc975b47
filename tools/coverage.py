"""Coverage of the C kernels (lines and branches) and of the Cython modules (lines) by the fuzzer and the tests.

    python tools/coverage.py                          # build, run everything at each instruction set of this CPU, print tables
    python tools/coverage.py --isa avx2 --seconds 900 --keep tests/algorithms/test_depthwise.py  # add to earlier counts
    python tools/coverage.py --report --missing depthwise         # print the counts, and what never ran in files of this name

The build is in build/coverage: a copy of the files for a build and the tests, compiled without optimisation and with GCC's
counters. It needs GCC with gcov, and this Python needs the packages for a build and the tests. The exit code is not 0 if a
test or the fuzzer failed.

A kernel file is compiled once for each instruction set, and contains a function for each dtype. A line counts as covered if
any of these functions ran it. A branch, which is one way out of a condition, counts likewise. The report of an instruction set
leaves out kernels of other instruction sets, and kernels that it replaces by its own. A line of Cython counts as covered if
any of the C made from it ran. Branches of Cython are not counted, because most of them handle Python's errors.
tools/unreached.txt lists what cannot be reached: a reason, and below it, indented, "file: text" for each line that starts with
the text, and its block.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict

from instrumented import NO_LONG_CALLS, ROOT, build, copy, test_files

# With a fixed seed, the counts of an earlier object file also fit a rebuilt one.
FLAGS = "-w --coverage -fprofile-update=atomic -frandom-seed=0"
# Tests that reach what the fuzzer does not: wrong arguments, the caller's threads, failed allocations, oneDNN, kinds of arrays.
TESTS = "isa packing memory threads repeat onednn api bad_input process"
KERNELS = "convt/kernels/"
ROW = re.compile(r"ISA\((\w+), (\w+),")
# Comments that Cython writes before the C of a source line, and before the end of a function, which has no source line.
MARK = re.compile(r'\s*/\* (?:"(convt/[^"]+)":(\d+)|function exit code \*/)')


def levels(folder):
    """Return ``{instruction set: whether this CPU has it}``."""
    code = "import json; from convt import _core; print(json.dumps(_core.isa_rows()))"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=folder, capture_output=True, text=True)
    return {row["name"]: row["available"] for row in json.loads(done.stdout)}


def counts_of(folder, isa):
    return folder / "counts" / isa


def run(folder, isa, options):
    """Run the fuzzer and the tests at an instruction set, counting in a separate folder. Return whether all passed."""
    counts = counts_of(folder, isa)
    if not options.keep:
        shutil.rmtree(counts, ignore_errors=True)
    settings = {
        "PYTHONPATH": str(folder),
        # gcov writes counts to GCOV_PREFIX plus the path of the object file inside ``folder``.
        "GCOV_PREFIX": str(counts),
        "GCOV_PREFIX_STRIP": str(len(folder.parts) - 1),
    }
    alone = settings | {"CONVT_ISA": isa}
    fuzz = ["tests.fuzz", "--isa", isa, "--seconds", str(options.seconds), "--workers", str(options.workers), "--shrink", "0"]
    files = options.tests or [*NO_LONG_CALLS, *test_files(TESTS)]
    tests = ["pytest", "-q", "-p", "no:cacheprovider", *files]
    # Tests that select an instruction set have its name in their own, and are skipped if CONVT_ISA is set.
    commands = [(fuzz, alone)] * (options.seconds > 0) + [(tests, alone), ([*tests, "-k", isa], settings)]
    passed = True
    for command, environment in commands:
        print(f"== {isa}: python -m {' '.join(command)}", flush=True)
        passed &= not subprocess.run([sys.executable, "-m", *command], cwd=folder, env=os.environ | environment).returncode
    return passed


def own_kernels(folder, isa):
    """Return the kernel sources that an instruction set uses: its own, and those of bases that it does not replace."""
    bases = dict(ROW.findall(next((folder / "build").glob("temp.*/generated/isa_rows.h")).read_text()))
    found = []
    while isa != "none":
        found.append(f"isa_{isa}")
        isa = "none" if '"body.h"' in (folder / KERNELS / f"isa_{isa}.c").read_text() else bases[isa]
    return found


class Counts:
    """The counts of a file: lines, {line: ran}; branches, {(line, number of branches): [ran, ...]}; functions, {name: ran}."""

    def __init__(self):
        self.lines, self.branches, self.functions = {}, {}, {}

    def add_line(self, line, at, branches):
        self.lines[at] = self.lines.get(at, False) or line["count"] > 0
        taken = [branch["count"] > 0 for branch in line["branches"] if not branch["throw"]]
        if branches and taken:
            before = self.branches.get((at, len(taken)), [False] * len(taken))
            self.branches[at, len(taken)] = [a or b for a, b in zip(before, taken, strict=True)]

    def add_function(self, function):
        name = function["name"]
        self.functions[name] = self.functions.get(name, False) or function["execution_count"] > 0


def counted(folder, isa):
    """Return ``{file: Counts}`` at an instruction set."""
    counts, used = counts_of(folder, isa), own_kernels(folder, isa)
    found = defaultdict(Counts)
    for data in sorted(counts.rglob("*.gcda")):
        if data.stem.startswith("isa_") and data.stem not in used:
            continue
        notes = data.relative_to(counts).with_suffix(".gcno")
        shutil.copy2(folder / notes, data.parent)
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(data)]
        output = subprocess.run(command, check=True, cwd=folder, capture_output=True, text=True).stdout
        for file in json.loads(output)["files"]:
            name = file["file"]
            if name.startswith("build/"):
                places = cython_lines(folder / name)
                for line in file["lines"]:
                    if line["line_number"] in places:
                        of, at = places[line["line_number"]]
                        found[of].add_line(line, at, branches=False)
            elif name.startswith("convt/"):  # skips headers of Python, NumPy and the compiler
                for line in file["lines"]:
                    found[name].add_line(line, line["line_number"], branches=name.startswith(KERNELS))
                for function in file["functions"]:
                    found[name].add_function(function)
    return found


def unreached(folder, name):
    """Return the lines of a file that tools/unreached.txt lists as unreachable, and the lines indented below them."""
    text = (folder / name).read_text().splitlines()
    indent = lambda line: len(line) - len(line.lstrip())  # noqa: E731
    found = set()
    for line in (ROOT / "tools" / "unreached.txt").read_text().splitlines():
        of, _, start = line.strip().partition(": ")
        if not line.startswith(" ") or of != name:
            continue
        firsts = [n for n, each in enumerate(text) if each.strip().startswith(start)]
        if not firsts:
            sys.exit(f"tools/unreached.txt: no such line in {name}: {start}")
        for first in firsts:
            found.add(first + 1)
            for n, each in enumerate(text[first + 1 :], first + 2):
                if each.strip() not in ("", "{", "}") and not each.startswith("#") and indent(each) <= indent(text[first]):
                    break
                found.add(n)
                if each.strip() == "}" and indent(each) <= indent(text[first]):
                    break
    return found


def cython_lines(path):
    """Return ``{line of a C file: (Cython file, line)}``."""
    found, place = {}, None
    for number, text in enumerate(path.read_text().splitlines(), 1):
        if mark := MARK.match(text):
            place = (mark[1], int(mark[2])) if mark[1] else None
        elif place:
            found[number] = place
    return found


def share(some):
    some = list(some)
    return f"{sum(some)} of {len(some)} {100 * sum(some) / len(some):6.1f}%" if some else ""


def kind_of(name):
    if name.startswith(KERNELS):
        return "kernels"
    ours = name.startswith("convt/algorithms/") and not name.startswith("convt/algorithms/onednn/")
    return "loops" if ours or name.startswith(("convt/_core.", "convt/_run/memory.")) else "other modules"


def report(folder, isa, missing):
    found = counted(folder, isa)
    known = {name: unreached(folder, name) for name in found}
    # Unreachable lines that did not run are left out.
    lines = {name: [ran for at, ran in each.lines.items() if ran or at not in known[name]] for name, each in found.items()}
    flags = {
        name: [flag for (at, _), taken in each.branches.items() for flag in taken if flag or at not in known[name]]
        for name, each in found.items()
    }
    print(f"\n{isa:42}{'lines':>22}{'branches':>22}{'explained':>11}")
    for kind in ("kernels", "loops", "other modules"):
        names = sorted(name for name in found if kind_of(name) == kind)
        rows = [[name] for name in names] + [names]
        for row, title in zip(rows, [*names, f"all {kind}"], strict=True):
            left = sum(len(found[name].lines) - len(lines[name]) for name in row)
            some = [share(value for name in row for value in values[name]) for values in (lines, flags)]
            print(f"  {title:40}{some[0]:>22}{some[1]:>22}{left or '':>11}")
    if missing is not None:
        for name in sorted(found):
            if missing in name:
                list_missing(folder, name, found[name], known[name])


def list_missing(folder, name, counts, known):
    """Print lines that never ran, branches that were never taken (number of total), and functions that were never called."""
    text = (folder / name).read_text().splitlines()
    for at in sorted(set(counts.lines) - known):
        never = [
            f"{number + 1} of {count}"
            for (line, count), taken in counts.branches.items()
            for number, flag in enumerate(taken)
            if line == at and not flag
        ]
        if not counts.lines[at]:
            print(f"{name}:{at}: never ran: {text[at - 1].strip()}")
        elif never:
            print(f"{name}:{at}: branch {', '.join(never)}: {text[at - 1].strip()}")
    never = sorted(function for function, ran in counts.functions.items() if not ran)
    if never:
        print(f"{name}: never called: {' '.join(never)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="arguments of pytest (default: the test files that reach the loops)")
    parser.add_argument("--isa", help="only this instruction set (default: all that the CPU has)")
    parser.add_argument("--seconds", type=float, default=120, help="seconds of fuzzing at each instruction set (default: 120)")
    parser.add_argument("--workers", type=int, default=2, help="number of processes of the fuzzer (default: 2)")
    parser.add_argument("--keep", action="store_true", help="add to the counts of earlier runs")
    parser.add_argument("--report", action="store_true", help="only print the counts of earlier runs")
    parser.add_argument(
        "--missing", nargs="?", const="", metavar="NAME",
        help="also list what never ran, in files whose names contain NAME (default: all files)",
    )  # fmt: skip
    options = parser.parse_args()
    folder, passed = ROOT / "build" / "coverage", True
    if not options.report:
        build(copy("coverage"), FLAGS, CONVT_COVERAGE_BUILD="1")
    for isa, available in levels(folder).items():
        if options.isa not in (None, isa):
            continue
        if not available:
            print(f"\n{isa}: not on this CPU")
            continue
        passed &= options.report or run(folder, isa, options)
        report(folder, isa, options.missing)
    sys.exit(not passed)


if __name__ == "__main__":
    main()
