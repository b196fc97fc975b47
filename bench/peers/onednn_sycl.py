"""oneDNN of the wheel `onednn`, which is newer than `onednn-cpu-gomp` and made for SYCL, with threads of TBB; plain tags.

The wheel's library has the place of the other wheel's, which convt needs, so it is installed in a virtual environment of
its own: CONVT_BENCH_ONEDNN_SYCL is that folder. Nothing else needs to be set: the libraries that it wants, none of which is
in the loader's path, are opened before it, and SYCL is told here which driver the CPU has.

Primitives run behind the caller's back, so a call waits for them, which costs it some 30 microseconds. They take arrays of
this process by address.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from ..problem import Problem
from . import Ready, Unsupported

VARIABLE = "CONVT_BENCH_ONEDNN_SYCL"
NEEDED = ("libintlc.so.5", "libirng.so", "libimf.so", "libsvml.so", "libtbb.so.12", "libsycl.so.9")  # each after what it needs


def _open() -> None:
    """For `onednn`, which is imported thereafter."""
    if VARIABLE not in os.environ:
        raise ImportError(f"{VARIABLE} is not set")
    folder = Path(os.environ[VARIABLE], "lib")
    for name in NEEDED:
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    os.environ["OCL_ICD_FILENAMES"] = str(folder / "libintelocl.so")
    os.environ["CONVT_ONEDNN_LIB"] = str(folder / "libdnnl.so.3")


_open()

from . import onednn  # noqa: E402
from .onednn import DTYPES, LIB, PRECISIONS, version  # noqa: E402, F401


@cache
def _start(threads: int) -> None:
    """TBB has as many threads as there are CPUs that it may use when it is first needed: oneDNN heeds no other setting.
    Thereafter all threads may run anywhere, as those of other libraries do; the driver has tied some to a CPU each."""
    allowed = os.sched_getaffinity(0)
    if threads > len(allowed):
        raise Unsupported("no more threads than CPUs")
    os.sched_setaffinity(0, sorted(allowed)[:threads])
    try:
        onednn._engine()
    finally:
        for thread in os.listdir("/proc/self/task"):
            os.sched_setaffinity(int(thread), allowed)


def prepare(problem: Problem, threads: int) -> Ready:
    _start(threads)
    ready = onednn.prepare(problem, threads, "plain")
    stream, execute, wait = onednn._stream(), ready.run, LIB.dnnl_stream_wait

    def run():
        execute()
        if status := wait(stream):
            onednn._check("stream_wait", status)

    return ready._replace(run=run)
