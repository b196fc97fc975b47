"""The hardware limit of a problem: its minimum time on this machine, for ``python -m convt plan --time``.

The benchmark (`bench`) has its own code for the same limit, because its main process must not import convt.
"""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from .. import _core
from .._base.problem import ITEMSIZE

COPY_BYTES = 1 << 28  # size of the copied array: larger than most last-level caches


class Limit(NamedTuple):
    """The hardware limit: the longer of the operations at the peak and the bytes at the memory bandwidth."""

    seconds: float
    gflops: float  # peak of multiply-adds in registers, GFLOP/s
    copy_gbs: float  # bandwidth of a copy that exceeds the caches, GB/s read and written


def operations(problem):
    """Return the floating-point operations of a problem: two for each product that falls inside the output."""
    p, products = problem, 1
    for n, k, s, d, begin, out in zip(p.in_sizes, p.kernel, p.strides, p.dilations, p.begin, p.out_sizes, strict=True):
        first = begin - d * np.arange(k)  # for each tap, stride times the input that contributes to output 0
        products *= int((np.clip(-((-first - out) // s), 0, n) - np.clip(-(-first // s), 0, n)).sum())
    return 2 * problem.batch * problem.groups * problem.ci * problem.co * products


def bytes_of(problem):
    """Return the bytes of data, filter and output together."""
    filter = problem.groups * problem.ci * problem.co * math.prod(problem.kernel)
    return ITEMSIZE[problem.dtype] * (math.prod(problem.in_shape) + filter + math.prod(problem.out_shape))


class MachineLimits:
    """The limits of problems on a number of threads. Each property of the machine is measured when it is first needed."""

    def __init__(self, threads):
        self.threads, self._gflops, self._copy_gbs = threads, {}, None

    def of(self, problem):
        """Return the `Limit` of a problem."""
        if problem.dtype not in self._gflops:
            self._gflops[problem.dtype] = _core.fma_peak(problem.dtype, self.threads, 0.05)
        self._copy_gbs = self._copy_gbs or bandwidth(self.threads)
        gflops, copy_gbs = self._gflops[problem.dtype], self._copy_gbs
        return Limit(max(operations(problem) / gflops, bytes_of(problem) / copy_gbs) / 1e9, gflops, copy_gbs)


def bandwidth(threads):
    """Measure the memory bandwidth of a copy: GB/s read and written together, the better of two passes."""
    source = np.ones(COPY_BYTES // 8)
    target, best = np.zeros_like(source), math.inf
    parts = [np.array_split(each, threads) for each in (target, source)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(2):
            start = time.perf_counter()
            list(pool.map(np.copyto, *parts))
            best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best / 1e9
