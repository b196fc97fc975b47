"""Description of this machine, and its measured limits: multiply-add peaks and copy bandwidth."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from .problem import Problem

# Prefixes of environment variables that change how the libraries run.
SETTINGS = ("ATEN_", "CONVT_", "DNNL_", "GOMP_", "KMP_", "MKL_", "OMP_", "ONEDNN_", "OPENBLAS_")

COPY_BYTES = 1 << 28  # exceeds most last-level caches


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_model() -> str:
    """Return the model name of the CPU, or what `platform` knows if /proc/cpuinfo has none."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _caches() -> list[str]:
    """Return the caches of the first core, each like `L1 Data 48K`."""
    levels = sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"))
    return [f"L{_read(f'{level}/level')} {_read(f'{level}/type')} {_read(f'{level}/size')}" for level in levels]


def cache_bytes() -> int:
    """Return twice the size of all caches of the first core, shared ones included, in bytes, but at most 256 MiB.

    The limit is for machines with larger caches, which many users share. If the system reports no sizes, the result is 64 MiB.
    """
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = [words[-1] for each in _caches() if (words := each.split())[-1][:-1].isdecimal() and words[-1][-1] in units]
    return min(2 * sum(int(size[:-1]) * units[size[-1]] for size in sizes) or 64 << 20, 256 << 20)


def _commit() -> str | None:
    """Return the commit of this checkout, marked if files were changed, or None without git or without a checkout."""
    if not Path(__file__).parents[1].joinpath(".git").exists():  # an installed package may be inside another project's checkout
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def describe() -> dict:
    """Return the properties of the machine and its software that can influence times."""
    cpufreq = "/sys/devices/system/cpu/cpu0/cpufreq"
    return {
        "cpu": cpu_model(),
        "cores": cores(),
        "caches": _caches(),
        "governor": _read(f"{cpufreq}/scaling_governor"),
        "max_khz": _read(f"{cpufreq}/scaling_max_freq"),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "commit": _commit(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith(SETTINGS)},
    }


class OtherProcesses:
    """A measurement, since its creation, of how many of this process's cores other processes keep busy."""

    STAT = Path("/proc/stat")

    def __init__(self):
        self._start = self._now()

    def _now(self) -> np.ndarray | None:
        """Return three counters in seconds: idle time of the cores, CPU time of this process, and wall-clock time."""
        if not self.STAT.exists():
            return None
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        lines = (line.split() for line in self.STAT.read_text().splitlines())
        idle = sum(int(words[4]) + int(words[5]) for words in lines if words[0] in ours)
        return np.array([idle / os.sysconf("SC_CLK_TCK"), time.process_time(), time.perf_counter()])

    def busy_cores(self) -> float | None:
        """Return the average number of busy cores, or None if the system does not report it."""
        if self._start is None:
            return None
        idle, own, wall = self._now() - self._start
        return max(0.0, float(cores() - (idle + own) / wall))


class Limits(NamedTuple):
    """The measured limits of the machine. There are no peaks without convt, whose core measures them."""

    peaks: dict[str, float]  # GFLOP/s by dtype; for bf16, that of dot products if the instruction set has them
    copy_gbs: float  # GB/s of a copy, read and written bytes together

    def or_better(self, other: Limits) -> Limits:
        """Return the higher value of each limit, because other processes may have disturbed the lower measurement."""
        best = {dtype: max(peak, self.peaks.get(dtype, 0)) for dtype, peak in other.peaks.items()}
        return Limits(self.peaks | best, max(self.copy_gbs, other.copy_gbs))

    def seconds(self, problem: Problem) -> float | None:
        """Return the hardware limit of a problem in seconds: the larger of bytes / bandwidth and least operations / peak.

        Return None if the peak is unknown. A call can be faster if its arrays stay in the caches between calls.
        """
        peak = self.peaks.get(problem.dtype)
        return max(problem.bytes / self.copy_gbs, problem.layer.least_flops / peak) / 1e9 if peak else None


def fma_peak(dtype: np.dtype, threads: int) -> float:
    """Measure GFLOP/s of multiply-adds in registers for 0.05 seconds. Loads convt, so call it in convt's process only."""
    from convt import _core

    return _core.fma_peak(dtype.name, threads, 0.05)


def speeds(threads: int) -> list[float]:
    """Measure the rates of multiply-adds and, if convt uses AMX, of its products, for `timing.Gauge`.

    Return the highest of several short measurements, because threads that just woke up can share a core for some milliseconds.
    """
    from convt import _core
    from convt._model import rates

    kinds = [lambda: _core.fma_peak("float32", threads, 0.003)]
    if _core.kernel_info("float32", "amx") is not None:
        kinds.append(lambda: rates.rate("products", np.zeros(64, np.uint8), threads, 0.003))
    return [max(measure() for _ in range(5)) for measure in kinds]


def copy_bandwidth(threads: int) -> float:
    """Measure GB/s, read and written together, of a copy that exceeds the caches. Return the better of two passes."""
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
