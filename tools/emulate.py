"""Tests and fuzzing of convt's AVX-512 and AMX kernels, emulated in software on a CPU with AVX2.

    python tools/emulate.py                                     # tests, at each instruction set beyond AVX2
    python tools/emulate.py tests/algorithms/test_direct.py -x             # arguments are pytest's
    python tools/emulate.py fuzz --isa avx512 --seconds 600     # arguments are those of python -m tests.fuzz

The build is in build/emulated: a copy of the files for a build and the tests. Kernels assert their contract
(CONVT_DEBUG_BUILD), and those of AVX-512, AVX512_BF16 and AMX include tools/emulated.h. Plans are those of a CPU with these
instructions; times have no meaning. A first build takes ten minutes. It needs GCC and SIMDe (Debian's libsimde-dev), and this
Python needs NumPy, ml_dtypes, Cython, setuptools, pytest and hypothesis.
"""

import os
import subprocess
import sys

from instrumented import build, copy, instruction_sets, test_files

EMULATED = instruction_sets("X86_ISAS")[1:]
# Tests that compute and need no package besides convt's own.
TESTS = "planes direct depthwise winograd scatter matrix packing numerics memory properties threads"


def run(folder, arguments):
    """Run the tests at each instruction set, or the fuzzer once for all. Return the first exit status that is not 0, else 0."""
    # Threads that spin while they wait would take the few cores from other processes.
    waiting = {"OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    settings = os.environ | waiting | {"PYTHONPATH": str(folder), "CONVT_BACKEND": "native"}
    if arguments[:1] == ["fuzz"]:
        return subprocess.run([sys.executable, "-m", "tests.fuzz", *arguments[1:]], cwd=folder, env=settings).returncode
    if not any(each.startswith("tests") for each in arguments):
        arguments = [*arguments, *test_files(TESTS)]
    # This test needs bfloat16 in oneDNN, which detects the features of the real CPU.
    without = ["--deselect", "tests/algorithms/test_matrix.py::test_in_turn_with_onednn"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *without, *arguments]
    # Without CONVT_ISA, convt selects the last instruction set. Tests that select instruction sets themselves run only there,
    # because they are skipped if CONVT_ISA is set.
    chosen = [{"CONVT_ISA": isa} for isa in EMULATED[:-1]] + [{}]
    statuses = [subprocess.run(command, cwd=folder, env=settings | isa).returncode for isa in chosen]
    return next((status for status in statuses if status), 0)  # negative if a signal ended the process


def main():
    folder = copy("emulated")
    build(folder, "", CONVT_EMULATED_BUILD="1", CONVT_DEBUG_BUILD="1")
    sys.exit(run(folder, sys.argv[1:]))


if __name__ == "__main__":
    main()
