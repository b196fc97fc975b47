"""Builds convt with AVX-512 and AMX in software, in a folder of its own, and runs tests or the fuzzer there, where AVX2 is all
there is:

    python tools/emulate.py                                     # tests, at each instruction set beyond AVX2
    python tools/emulate.py tests/test_direct.py -x             # arguments are pytest's
    python tools/emulate.py fuzz --isa avx512 --seconds 600     # or those of python -m tests.fuzz

The folder is build/emulated: a copy of what a build and the tests need, with kernels that assert their contract
(CONVT_DEBUG_BUILD), and tools/emulated.h before those of AVX-512, AVX512_BF16 and AMX. Plans are the ones of a CPU that has
these instructions; times mean nothing. A first build takes ten minutes. Needs GCC, SIMDe (Debian's libsimde-dev), and in this
Python NumPy, ml_dtypes, Cython, setuptools, pytest and hypothesis.
"""

import os
import subprocess
import sys

from instrumented import build, copy

EMULATED = "avx512", "avx512_bf16", "avx512_amx"
# Of the tests that need nothing but convt, those that compute.
TESTS = "planes direct depthwise winograd scatter matrix packing numerics memory properties threads"


def run(folder, arguments):
    """The first exit status that is not 0, of a command for each instruction set or, of the fuzzer, one for all."""
    # Threads that spin while they wait would take the few cores from other processes.
    waiting = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    settings = os.environ | waiting | {"PYTHONPATH": str(folder), "CONVT_BACKEND": "native"}
    if arguments[:1] == ["fuzz"]:
        return subprocess.run([sys.executable, "-m", "tests.fuzz", *arguments[1:]], cwd=folder, env=settings).returncode
    if not any(each.startswith("tests") for each in arguments):
        arguments = [*arguments, *(f"tests/test_{name}.py" for name in TESTS.split())]
    # (This test wants bfloat16 of oneDNN, which asks the CPU itself what it can do.)
    without = ["--deselect", "tests/test_matrix.py::test_in_turn_with_onednn"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *without, *arguments]
    # The last of these instruction sets is chosen where nothing is said. Tests that choose one themselves run there alone, for
    # they are left out where CONVT_ISA chooses.
    chosen = [{"CONVT_ISA": isa} for isa in EMULATED[:-1]] + [{}]
    statuses = [subprocess.run(command, cwd=folder, env=settings | isa).returncode for isa in chosen]
    return next((status for status in statuses if status), 0)  # of a process that a signal ended it is negative


def main():
    folder = copy("emulated")
    build(folder, "", CONVT_EMULATED_BUILD="1", CONVT_DEBUG_BUILD="1")
    sys.exit(run(folder, sys.argv[1:]))


if __name__ == "__main__":
    main()
