"""Tests and fuzzing of convt under a sanitizer.

    python tools/sanitize.py asan                      # AddressSanitizer and UndefinedBehaviorSanitizer
    python tools/sanitize.py tsan -k threads           # ThreadSanitizer; arguments are pytest's
    python tools/sanitize.py asan tests/algorithms/test_direct.py -x
    python tools/sanitize.py asan fuzz --seconds 600   # arguments are those of python -m tests.fuzz
    CONVT_EMULATED_BUILD=1 python tools/sanitize.py asan fuzz --isa avx512_amx   # in software: see emulate.py

The build is in build/<asan|tsan>: a copy of the files for a build and the tests, with kernels that assert their contract
(CONVT_DEBUG_BUILD). Only changed files are copied and built again. It needs GCC with its sanitizer libraries, and this Python
needs NumPy, ml_dtypes, Cython, setuptools, pytest and hypothesis. A first build takes minutes, and less time for fewer
instruction sets (CONVT_BUILD_ISAS=baseline,avx2). The exit code is not 0 if the sanitizer or a test finds an error.

AddressSanitizer leaves frames of functions on the stack. With frames on the heap, it would detect the use of a variable after
its function returned, but GCC 12 then misaligns variables of 64-byte alignment by 32 bytes.

The interpreter and NumPy are not instrumented. The sanitizers do not search for leaks; tests/run/test_growth.py does so in an
ordinary build, because it replaces functions of the C library. Python's allocator is malloc, so that each object has a red
zone.

ThreadSanitizer replaces pthread's functions, so it sees the locks and threads of every library. GCC's OpenMP library waits by
futexes, which ThreadSanitizer cannot see. tools/openmp_pthreads.c therefore replaces that library. Its teams are threads that
pthread's functions create and join, with pthread's barriers.
"""

import os
import platform
import subprocess
import sys

from instrumented import NO_LONG_CALLS, build, copy, test_files

# Tests that need no package besides convt's own and reach every loop and kernel, in an order that shows errors early.
ASAN_TESTS = "planes direct depthwise winograd scatter matrix packing numerics memory properties threads"
TSAN_TESTS = "threads memory repeat planes"
# Larger allocations fail. A limit of the process's memory would not do, because it would also limit the shadow memory.
MAX_ALLOCATION_MIB = 6 << 10
FLAGS = {
    # Kernels compile in a third of the time without null and object-size, which AddressSanitizer also covers, and with calls
    # for its checks.
    "asan": "-fsanitize=address,undefined -fno-sanitize=null,object-size -fno-sanitize-recover=undefined "
    "-fno-omit-frame-pointer --param=asan-use-after-return=0 --param=asan-instrumentation-with-call-threshold=0",
    "tsan": "-fsanitize=thread -fno-omit-frame-pointer",
}


def library(name):
    """Return the path of one of GCC's libraries."""
    return subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], check=True, capture_output=True, text=True).stdout.strip()


def openmp_replacement(folder):
    """Compile the replacement of OpenMP's library and return its path."""
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
        "CONVT_BACKEND": os.environ.get("CONVT_BACKEND", "native"),  # oneDNN is not instrumented
        "OPENBLAS_NUM_THREADS": "1",
    }
    if kind == "asan":
        settings["LD_PRELOAD"] = f"{library('asan')} {library('ubsan')}"
        settings["ASAN_OPTIONS"] = f"detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb={MAX_ALLOCATION_MIB}"
        settings["UBSAN_OPTIONS"] = "print_stacktrace=1"
        wrapper = []
    else:
        settings["LD_PRELOAD"] = f"{library('tsan')} {openmp_replacement(folder)}"
        settings["TSAN_OPTIONS"] = "halt_on_error=0:exitcode=66:history_size=4:die_after_fork=0"
        # No address randomization, which may map libraries where ThreadSanitizer needs its shadow memory.
        wrapper = ["setarch", platform.machine(), "-R"]
    if arguments[:1] == ["fuzz"]:
        module = ["tests.fuzz", *arguments[1:]]
    else:
        if not any(each.startswith("tests") for each in arguments):
            arguments = [*arguments, *test_files(ASAN_TESTS if kind == "asan" else TSAN_TESTS)]
            arguments += NO_LONG_CALLS
        # Capture only Python's output, so that the report of a sanitizer that ends the process is printed.
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
