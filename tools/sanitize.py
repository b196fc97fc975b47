"""Builds convt under a sanitizer, in a folder of its own, and runs tests or the fuzzer there:

    python tools/sanitize.py asan                      # AddressSanitizer and UndefinedBehaviorSanitizer
    python tools/sanitize.py tsan -k threads           # ThreadSanitizer; arguments are pytest's
    python tools/sanitize.py asan tests/test_direct.py -x
    python tools/sanitize.py asan fuzz --seconds 600   # arguments are those of python -m tests.fuzz
    CONVT_EMULATED_BUILD=1 python tools/sanitize.py asan fuzz --isa avx512_amx   # in software: see emulate.py

The folder is build/<asan|tsan>: a copy of what a build and the tests need, with kernels that assert their contract
(CONVT_DEBUG_BUILD). Only what changed is copied and built again. Needs GCC with its sanitizers' libraries, and in this Python
NumPy, ml_dtypes, Cython, setuptools, pytest and hypothesis; a first build takes minutes, fewer for fewer instruction sets
(CONVT_BUILD_ISAS=baseline,avx2). What is found ends the run with an error.

AddressSanitizer leaves frames of functions on the stack. It could put them on the heap, to see one used after its function
returned; but there GCC 12 lays variables that it aligns to 64 bytes, and reads as such, 32 bytes beside.

The interpreter and NumPy are not instrumented. Their leaks at exit are not looked for; convt's are by tests/test_growth.py, in
an ordinary build, as it has functions of its own in place of the C library's.
Python's allocator is malloc, so that each object has a red zone. ThreadSanitizer knows locks and threads of any library, as it
replaces pthread's functions; but GCC's OpenMP library waits by futexes, which it can't see. tools/openmp_pthreads.c therefore
stands in for that library: a team of threads that are created and joined by pthread's functions, with pthread's barriers.
"""

import os
import platform
import subprocess
import sys

from instrumented import NO_LONG_CALLS, build, copy

# Of the tests that need nothing but convt, those that reach every loop and kernel, in an order that tells of trouble early.
ASAN_TESTS = "planes direct depthwise winograd scatter matrix packing numerics memory properties threads"
TSAN_TESTS = "threads memory repeat planes"
MOST = 6 << 10  # MiB of an allocation: a larger one fails, as where memory is limited, which shadow memory would not survive
FLAGS = {
    # (Without what AddressSanitizer reports anyhow, and with calls for its checks, kernels compile in a third of the time.)
    "asan": "-fsanitize=address,undefined -fno-sanitize=null,object-size -fno-sanitize-recover=undefined "
    "-fno-omit-frame-pointer --param=asan-use-after-return=0 --param=asan-instrumentation-with-call-threshold=0",
    "tsan": "-fsanitize=thread -fno-omit-frame-pointer",
}


def library(name):
    """The path of one of GCC's libraries."""
    return subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], check=True, capture_output=True, text=True).stdout.strip()


def stand_in(folder):
    """Compile the library that stands in for OpenMP's."""
    target = folder / "libopenmp_pthreads.so"
    source = folder / "tools" / "openmp_pthreads.c"
    subprocess.run(
        ["gcc", *FLAGS["tsan"].split(), "-O1", "-g", "-fPIC", "-shared", "-o", target, source, "-lpthread"], check=True
    )
    return str(target)


def run(kind, folder, arguments):
    settings = {
        "PYTHONPATH": str(folder),
        "PYTHONMALLOC": "malloc",
        "CONVT_BACKEND": os.environ.get("CONVT_BACKEND", "native"),  # oneDNN is not instrumented either
        "OPENBLAS_NUM_THREADS": "1",
    }
    if kind == "asan":
        settings["LD_PRELOAD"] = f"{library('asan')} {library('ubsan')}"
        settings["ASAN_OPTIONS"] = f"detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb={MOST}"
        settings["UBSAN_OPTIONS"] = "print_stacktrace=1"
        wrapper = []
    else:
        settings["LD_PRELOAD"] = f"{library('tsan')} {stand_in(folder)}"
        settings["TSAN_OPTIONS"] = "halt_on_error=0:exitcode=66:history_size=4:die_after_fork=0"
        # Its shadow memory has to lie where the kernel would otherwise map libraries at random.
        wrapper = ["setarch", platform.machine(), "-R"]
    if arguments[:1] == ["fuzz"]:
        module = ["tests.fuzz", *arguments[1:]]
    else:
        if not any(each.startswith("tests") for each in arguments):
            names = (ASAN_TESTS if kind == "asan" else TSAN_TESTS).split()
            arguments = [*arguments, *(f"tests/test_{name}.py" for name in names)]
            arguments += NO_LONG_CALLS
        # Of what tests print only Python's is captured: what a sanitizer says as it ends the process must come out.
        module = ["pytest", "-q", "--capture=sys", "-p", "no:cacheprovider", *arguments]
    return subprocess.run([*wrapper, sys.executable, "-m", *module], cwd=folder, env=os.environ | settings).returncode


def main():
    if len(sys.argv) < 2 or sys.argv[1] not in FLAGS:
        sys.exit(__doc__)
    kind, *arguments = sys.argv[1:]
    folder = copy(kind)
    build(folder, FLAGS[kind], CONVT_DEBUG_BUILD="1")
    sys.exit(run(kind, folder, arguments))


if __name__ == "__main__":
    main()
