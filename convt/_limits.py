"""The least time of a problem on this machine, which `python -m convt plan --time` holds times against.

`bench` has the same definition in files of its own, as the process that leads a benchmark must not import convt.
"""

import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from . import _core
from ._problem import ITEMSIZE

COPY_BYTES = 1 << 28  # beyond most last-level caches


class Limit(NamedTuple):
    """The least seconds: operations at the peak, or bytes at the bandwidth, whichever takes longer."""

    seconds: float
    gflops: float  # peak of multiply-adds in registers
    copy_gbs: float  # bandwidth of a copy beyond the caches


def operations(problem):
    """Two for each input, tap and pair of channels that meet inside the output."""
    p, meetings = problem, 1
    for n, k, s, d, begin, out in zip(p.in_sizes, p.kernel, p.strides, p.dilations, p.begin, p.out_sizes, strict=True):
        first = begin - d * np.arange(k)  # of each tap: the place of the input whose product lands on output 0
        meetings *= int((np.clip(-((-first - out) // s), 0, n) - np.clip(-(-first // s), 0, n)).sum())
    return 2 * problem.batch * problem.groups * problem.ci * problem.co * meetings


def bytes_of(problem):
    """Of data, filter and output, once each."""
    filter = problem.groups * problem.ci * problem.co * math.prod(problem.kernel)
    return ITEMSIZE[problem.dtype] * (math.prod(problem.in_shape) + filter + math.prod(problem.out_shape))


def limit(problem, threads):
    """The `Limit` of a problem, measured now."""
    gflops, copy_gbs = _core.fma_peak(problem.dtype, threads, 0.05), bandwidth(threads)
    return Limit(max(operations(problem) / gflops, bytes_of(problem) / copy_gbs) / 1e9, gflops, copy_gbs)


def bandwidth(threads):
    """GB/s read and written by copying an array too large for the caches, the better of two passes."""
    source = np.ones(COPY_BYTES // 8)
    target, best = np.zeros_like(source), math.inf
    parts = [np.array_split(each, threads) for each in (target, source)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(2):
            start = time.perf_counter()
            list(pool.map(np.copyto, *parts))
            best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best / 1e9


def clock():
    """Cycles a second, as the system says; None where it does not."""
    try:
        found = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return max(map(float, found)) * 1e6 if found else None
