"""The machine at hand: what it is, and the two limits that a figure is held against."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

# What in the environment changes how the libraries run.
SETTINGS = ("CONVT_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_")

COPY_BYTES = 1 << 28  # beyond most last-level caches


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """The processor's own name, or the best that Python knows."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def describe() -> dict:
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }


class Neighbours:
    """Watches, from its making on, how many of this process's cores others keep busy."""

    STAT = Path("/proc/stat")

    def __init__(self):
        self._start = self._now()

    def _now(self) -> np.ndarray | None:
        """Seconds so far: of those cores idle, of this process on any core, by the clock."""
        if not self.STAT.exists():
            return None
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = (line.split() for line in self.STAT.read_text().splitlines())
        idle = sum(int(words[4]) + int(words[5]) for words in lines if words[0] in ours)
        return np.array([idle / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()])

    def busy(self) -> float | None:
        """The cores' number, None where the system does not say."""
        if self._start is None:
            return None
        idle, own, wall = self._now() - self._start
        return max(0.0, float(cores() - (idle + own) / wall))


class Limits(NamedTuple):
    """What the machine can do at most, measured; no peak without convt, whose core has the instructions for it."""

    fma_gflops: float | None
    copy_gbs: float

    def or_better(self, other: Limits) -> Limits:
        """Of two measurements the higher figures: something else may have run during the other."""
        return Limits(max(self.fma_gflops or 0, other.fma_gflops or 0) or None, max(self.copy_gbs, other.copy_gbs))


def fma_peak(dtype: np.dtype, threads: int) -> float:
    """GFLOP/s of multiply-adds in registers, for a moment; called in a process that has convt anyway."""
    from convt import _core

    return _core.fma_peak(dtype.name, threads, 0.1)


def copy_bandwidth(threads: int) -> float:
    """GB/s read and written by copying an array too large for the caches, the better of two passes."""
    source = np.ones(COPY_BYTES // 8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))

    def copy(part):
        np.copyto(*part)

    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(2):
            start = time.perf_counter()
            list(pool.map(copy, parts))
            best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best / 1e9
