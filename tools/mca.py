"""Predicted use of the multiply-add pipes by the inner loops of the AArch64 register tiles: a Markdown table.

    python tools/mca.py

It compiles the kernels of each instruction set to assembly with Debian's gcc-aarch64-linux-gnu, and llvm-mca (LLVM 19 or newer,
which knows these CPUs) simulates the loops, with all data in L1. It compiles for several minutes.
"""

import ast
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
MCA = "llvm-mca-19"
# Name of a CPU in LLVM -> multiply-adds of 16-byte vectors per cycle in LLVM's model
CPUS = {"neoverse-n1": 2, "neoverse-v1": 4, "neoverse-v2": 4, "apple-m1": 3}
# Instruction set -> (name of its tiles, rows, vectors, CPUs that lack it)
TILES = {
    "neon": [("f32_tile", 10, 2, ()), ("f32_tile", 10, 1, ()), ("f32_tile", 4, 4, ()), ("f64_tile", 10, 2, ())],
    "neon_bf16": [("dot_tile", 10, 2, ("neoverse-n1", "apple-m1"))],
}
MULTIPLY_ADD = re.compile(r"\t(fmla|bfdot)\t")


def assembly(isa):
    """Return the assembly of an instruction set's kernels, compiled with the flags of setup.py."""
    tree, flags = ast.parse((ROOT / "setup.py").read_text(encoding="utf-8")), {}
    names = {"CFLAGS", "KERNEL_CFLAGS", "ARM_ISAS"}
    lists = [node for node in tree.body if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in names]
    exec(compile(ast.Module(lists, []), "setup.py", "exec"), flags)
    rows = {row: (base, more) for row, base, more, _ in flags["ARM_ISAS"]}
    options = []
    at = isa
    while at in rows:
        at, more = rows[at]
        options = [*more, *options]
    kernels = ROOT / "convt" / "kernels"
    command = ["aarch64-linux-gnu-gcc", *flags["KERNEL_CFLAGS"], *options, f"-I{kernels}", "-S", "-o", "-", f"isa_{isa}.c"]
    return subprocess.run(command, cwd=kernels, check=True, capture_output=True, text=True).stdout


def loop(text, function):
    """Return the lines of the innermost loop of a function with the most multiply-adds."""
    body = re.search(rf"^{function}:\n(.*?)\n\t\.size\t{function},", text, re.MULTILINE | re.DOTALL)[1].splitlines()
    labels = {line[:-1]: n for n, line in enumerate(body) if re.fullmatch(r"\.L\w+:", line)}
    loops = []
    for n, line in enumerate(body):
        target = re.match(r"\t(?:b\.?\w\w|cbn?z|tbn?z)\t.*(\.L\w+)$", line)
        first = labels.get(target[1], n) if target else n
        if first < n and not any(re.match(r"\.L", each) for each in body[first + 1 : n]):
            loops.append(body[first + 1 : n + 1])
    return max(loops, key=lambda lines: len(MULTIPLY_ADD.findall("\n".join(lines))))


def cycles(lines, cpu, iterations=100):
    command = [MCA, "-mtriple=aarch64", f"-mcpu={cpu}", "-mattr=+bf16", f"-iterations={iterations}"]
    done = subprocess.run(command, input="\n".join(lines), check=True, capture_output=True, text=True)
    return int(re.search(r"Total Cycles: +(\d+)", done.stdout)[1]) / iterations


def main():
    print(f"| tile | multiply-adds | loads | {' | '.join(CPUS)} |\n|---|---|---|{'---|' * len(CPUS)}")
    for isa, tiles in TILES.items():
        text = assembly(isa)
        for name, rows, vectors, without in tiles:
            lines = loop(text, f"{name}_{rows}_{vectors}")
            found = len(MULTIPLY_ADD.findall("\n".join(lines)))
            loads = sum(2 if "\tldp\tq" in line else bool(re.match(r"\tld\w*\t[qvd{]", line)) for line in lines)
            shares = [
                "" if cpu in without else f"{found / rate / cycles(lines, cpu):.0%}" for cpu, rate in CPUS.items()
            ]  # fmt: skip
            print(f"| `{name}` {rows} x {vectors} | {found} | {loads} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
