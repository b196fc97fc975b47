"""oneDNN of the wheel `onednn`, which is newer than `onednn-cpu-gomp` and built for SYCL with TBB threads. Tags are "plain".

The wheel installs its library in the same place as `onednn-cpu-gomp`, which convt needs. Therefore it has its own virtual
environment, whose folder CONVT_BENCH_ONEDNN_SYCL names. No other setting is needed, because this module opens the required
libraries, which are not in the loader's path, and tells SYCL the driver of the CPU.

Primitives run asynchronously. A call waits for them, which costs about 30 microseconds. They use arrays of this process by
address.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path

from ..problem import Problem
from ..shared import environment
from . import Ready, Unsupported

VARIABLE = "CONVT_BENCH_ONEDNN_SYCL"
NEEDED = (
    "libintlc.so.5",
    "libirng.so",
    "libimf.so",
    "libsvml.so",
    "libtbb.so.12",
    "libsycl.so.9",
)  # each after its dependencies


def _open() -> None:
    """Open the required libraries and set the environment for `onednn`, which is imported afterwards."""
    if not (place := environment.read(VARIABLE)):
        raise ImportError(f"{VARIABLE} is not set")
    folder = Path(place, "lib")
    for name in NEEDED:
        ctypes.CDLL(str(folder / name), mode=ctypes.RTLD_GLOBAL)
    os.environ["OCL_ICD_FILENAMES"] = str(folder / "libintelocl.so")
    os.environ["CONVT_ONEDNN_LIB"] = str(folder / "libdnnl.so.3")


_open()

from . import onednn  # noqa: E402
from .onednn import DTYPES, LIB, PRECISIONS, version  # noqa: E402, F401


@cache
def _start(threads: int) -> None:
    """Start TBB's threads on ``threads`` CPUs, because TBB starts one thread per allowed CPU and oneDNN has no other setting.

    Afterwards all threads may run on all CPUs again, as threads of other libraries do. The driver pins some to one CPU each.
    """
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
