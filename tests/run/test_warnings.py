"""Tests that the kernels compile without a warning, for each instruction set, with GCC and Clang, with and without assertions.
No object code is generated."""

import ast
import functools
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from cases import HAS_CHECKOUT, ROOT, needs_checkout

GCC, CLANG = shutil.which("gcc"), shutil.which("clang")
GCC_ONLY = {"-fvect-cost-model=dynamic", "-Wno-maybe-uninitialized"}  # Clang warns that it does not know them
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]

pytestmark = [needs_checkout, pytest.mark.skipif(not GCC, reason="needs GCC")]


TABLE = "X86", "ARM", "BASELINE", "X86_ISAS", "ARM_ISAS", "ISAS", "isa_rows", "KERNELS", "PARTS", "parts_of"


def from_setup(*names):
    """Return the definitions of these names in setup.py without running its other statements, which need the build tools."""
    tree = ast.parse((ROOT / "setup.py").read_text())
    of = lambda node: node.name if isinstance(node, ast.FunctionDef) else getattr(node, "targets", [node])[0]  # noqa: E731
    chosen = [node for node in tree.body if (getattr(of(node), "id", None) or of(node)) in names]
    assert len(chosen) == len(names)
    space = {"sysconfig": sysconfig, "Path": Path}
    exec(compile(ast.Module(chosen, []), "setup.py", "exec"), space)
    space["KERNELS"] = ROOT / space["KERNELS"]
    return space


def compile_only(source, *flags, compiler=GCC, **more):
    """Return a compiler's messages about a source, or an empty string. Without -O, intrinsics are macros in GCC."""
    done = subprocess.run([compiler, "-fsyntax-only", *flags, source], capture_output=True, text=True, **more)
    return done.stderr + ("" if done.returncode == 0 else f"\nexit status {done.returncode}")


@functools.cache
def rows():
    if not (GCC and HAS_CHECKOUT):
        return {}
    setup = from_setup(*TABLE)
    known = lambda flags: not compile_only("-", "-xc", *flags, input="int main(void) { return 0; }\n")  # noqa: E731
    return {name: flags for name, _, flags, _ in setup["isa_rows"](known)}


@pytest.mark.parametrize(
    "compiler", [GCC, pytest.param(CLANG, marks=pytest.mark.skipif(not CLANG, reason="needs Clang"))], ids=["gcc", "clang"]
)
@pytest.mark.parametrize("debug", [[], ["-UNDEBUG", "-DCONVT_DEBUG"]], ids=["release", "debug"])
@pytest.mark.parametrize("isa", [*rows(), "dispatch"])
def test_kernels_compile_without_a_warning(isa, debug, compiler, tmp_path):
    setup = from_setup(*TABLE, "isa_header", "CFLAGS", "KERNEL_CFLAGS")
    (tmp_path / "isa_rows.h").write_text(setup["isa_header"](setup["isa_rows"](lambda flags: True)))
    kernels = ROOT / "convt" / "kernels"
    source = kernels / ("dispatch.c" if isa == "dispatch" else f"isa_{isa}.c")
    options = [each for each in setup["KERNEL_CFLAGS"] if compiler == GCC or each not in GCC_ONLY]
    flags = [*options, *rows().get(isa, []), *debug, *WARNINGS, f"-I{kernels}", f"-I{tmp_path}"]
    for part in [""] if isa == "dispatch" else setup["parts_of"](isa):
        assert compile_only(str(source), *flags, *([f"-DPART_{part}"] if part else []), compiler=compiler) == ""


def test_a_warning_is_found(tmp_path):
    source = tmp_path / "wrong.c"
    source.write_text("int f(long n);\nint f(long n) { return n; }\n")
    assert "-Werror=conversion" in compile_only(str(source), *WARNINGS)
