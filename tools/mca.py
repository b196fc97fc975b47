"""Predicted use of the multiply-add pipes by the inner loops of the AArch64 kernels: a Markdown table.

    python tools/arm.py --cycles          # the loops that reach less than 85% on a CPU
    python tools/arm.py --cycles --all    # every loop

It compiles the kernels of each instruction set to assembly with Debian's gcc-aarch64-linux-gnu, and llvm-mca (LLVM 19 or newer,
which knows these CPUs) simulates the loops, with all data in L1. Of each function it takes the innermost loop with the most
multiply-adds. It takes three minutes.
"""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
MCA = "llvm-mca-19"
ENOUGH = 0.85
# Name of a CPU in LLVM -> multiply-adds of 16-byte vectors per cycle in LLVM's model
CPUS = {"neoverse-n1": 2, "neoverse-v1": 4, "neoverse-v2": 4, "apple-m1": 3, "cortex-a72": 1}
# Instruction set -> CPUs that lack it
ISAS = {"neon": (), "neon_bf16": ("neoverse-n1", "apple-m1", "cortex-a72")}
MULTIPLY_ADD = re.compile(r"\t(fmla|bfdot)\t")


def assembly(isa):
    """Return the assembly of an instruction set's kernels, compiled in parts with the flags of setup.py."""
    tree, flags = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")), {}
    names = {"CFLAGS", "KERNEL_CFLAGS", "ARM_ISAS", "PARTS"}
    lists = [node for node in tree.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names]
    exec(compile(ast.Module(lists, []), "setup.py", "exec"), flags)
    rows = {row: (base, more) for row, base, more, _ in flags["ARM_ISAS"]}
    options = []
    at = isa
    while at in rows:
        at, more = rows[at]
        options = [*more, *options]
    kernels = ROOT / "convt" / "kernels"
    whole = '"body.h"' in (kernels / f"isa_{isa}.c").read_text(encoding="utf-8")
    command = ["aarch64-linux-gnu-gcc", *flags["KERNEL_CFLAGS"], *options, f"-I{kernels}", "-S", "-o", "-", f"isa_{isa}.c"]
    commands = [[*command, f"-DPART_{part}"] for part in flags["PARTS"]] if whole else [command]
    return "".join(subprocess.run(each, cwd=kernels, check=True, capture_output=True, text=True).stdout for each in commands)


def functions(text):
    """Yield (name, lines) of the functions of an assembly file."""
    for name, body in re.findall(r"^(\w[\w.]*):\n\.LFB\d+:\n(.*?)\n\t\.size\t\1,", text, re.MULTILINE | re.DOTALL):
        yield name, body.splitlines()


def loop(body):
    """Return the lines of the innermost loop with the most multiply-adds of a function, and their number."""
    labels = {line[:-1]: n for n, line in enumerate(body) if re.fullmatch(r"\.L\w+:", line)}
    best, most = [], 0
    for n, line in enumerate(body):
        target = re.match(r"\t(?:b\.?\w\w|cbn?z|tbn?z)\t.*(\.L\w+)$", line)
        first = labels.get(target[1], n) if target else n
        lines = body[first + 1 : n + 1]
        found = len(MULTIPLY_ADD.findall("\n".join(lines)))
        if found > most and not any(re.match(r"\.L", each) for each in lines):
            best, most = lines, found
    return best, most


def cycles(lines, cpu, iterations=100):
    """Return the simulated cycles of an iteration."""
    command = [MCA, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+bf16", f"-iterations={iterations}"]
    done = subprocess.run(command, input="\n".join(lines), check=True, capture_output=True, text=True)
    return int(re.search(r"Total Cycles: +(\d+)", done.stdout)[1]) / iterations


def main(every=False):
    """Print the table: multiply-adds and loads per iteration, and cycles with the share of the peak for each CPU."""
    print(f"| loop | multiply-adds | loads | {' | '.join(CPUS)} |\n|---|---|---|{'---|' * len(CPUS)}")
    for isa, without in ISAS.items():
        for name, body in functions(assembly(isa)):
            lines, found = loop(body)
            if not found:
                continue
            loads = sum(2 if "\tldp\tq" in line else bool(re.match(r"\tld\w*\t[qvd{]", line)) for line in lines)
            took = {cpu: cycles(lines, cpu) for cpu in CPUS if cpu not in without}
            shares = {cpu: found / CPUS[cpu] / each for cpu, each in took.items()}
            if every or min(shares.values()) < ENOUGH:
                cells = [f"{took[cpu]:.0f} ({shares[cpu]:.0%})" if cpu in took else "" for cpu in CPUS]
                print(f"| `{name}` | {found} | {loads} | {' | '.join(cells)} |", flush=True)
