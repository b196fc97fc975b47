"""Measurement of this machine's constants for the cost model: ``python -m convt calibrate``.

convt/_model/constants.py defines the constants.
"""

import math
import time

import numpy as np

from .. import _core
from .._base import files
from .._version import __version__
from . import constants, machine, rates

# All measurements run in turns, one short turn each in a round. Only the best turns count, because short turns often run
# undisturbed even on a machine that is not quite idle.
WHOLE = 15  # seconds of all rounds
LEAST = 3  # minimum number of rounds
TURN = 0.002  # seconds of a turn
KEPT = 5  # best turns of each measurement that the machine file lists
STEADY = 1.1  # largest ratio of the fastest to the slowest of the best clock turns in an undisturbed measurement
MEMORY = 1 << 29  # bytes of an array that is assumed to exceed any last-level cache

_SECONDS = "region", "task", "call"  # measurements in seconds; all others are rates per second


def measure(threads, best_effort=False, step=lambda what, seconds: None):
    """Return ``(Constants, raw)`` of this machine, measured with ``threads`` threads.

    ``raw`` maps each measurement to a list of its best turns. Raise RuntimeError if other processes disturbed the measurement,
    unless ``best_effort``. ``step(what, seconds)`` is called before each round, with the seconds so far, up to `WHOLE`.
    """
    l2, l3 = _core.cache_bytes()[1:]
    inside, between = l2 // 2, math.isqrt(l2 * max(min(l3, machine.LAST_BYTES) // threads, 4 * l2))
    beyond = min(MEMORY, max(4 * l3, 1 << 26)) // threads
    memory = np.ones(threads * max(inside, between, beyond) + 64, np.uint8)
    swept = {
        "l2_read": ("read", inside), "l3_read": ("read", between), "memory_read": ("read", beyond),
        "memory_write": ("write", beyond), "non_temporal": ("stream", beyond),
    }  # fmt: skip
    amx, dots = [_core.kernel_info("float32", unit) is not None for unit in ("amx", "dots")]
    flops = 2 * _core.kernel_info("float32")["vl"]
    found = {}

    def keep(name, value):
        found.setdefault(name, []).append(value)

    begin, rounds = time.perf_counter(), 0
    while rounds < LEAST or time.perf_counter() < begin + WHOLE:
        rounds += 1
        step("measuring", min(WHOLE, round(time.perf_counter() - begin)))
        keep("clock", rates.rate("clock", memory[:64], 1, TURN))
        keep("chain", rates.rate("chain", memory[:64], 1, TURN))
        keep("multiply_adds", _core.fma_peak("float32", 1, TURN) * 1e9 / flops)
        keep("dots", _core.fma_peak("bfloat16", 1, TURN, "dots") * 1e9 / (2 * flops) if dots else 0.0)
        keep("products", rates.rate("products", memory[:64], 1, TURN) if amx else 0.0)
        for name, (what, bytes) in swept.items():
            keep(name, rates.rate(what, memory[: threads * bytes + 64], threads, TURN) / threads)
        keep("region", _seconds(rates.take_tasks, 500, 0, threads) / 500)
        keep("task", _seconds(rates.take_tasks, 1, 20_000, threads) * threads / 20_000)
        keep("call", _seconds(rates.call_tiles, 20_000) / 20_000)
    best = {name: sorted(values, reverse=name not in _SECONDS)[:KEPT] for name, values in found.items()}
    if not best_effort and best["clock"][0] > STEADY * best["clock"][-1]:
        raise RuntimeError(
            "other processes disturbed the measurement, so no file was written; run it on an idle machine, "
            "or with --best-effort"
        )
    return _constants(best), {name: [float(f"{value:.6g}") for value in values] for name, values in best.items()}


def _seconds(work, *arguments):
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def _constants(best):
    """Return the Constants that the best turns give. ``best`` maps a measurement to its turns, best first."""
    clock, first = best["clock"][0], {name: values[0] for name, values in best.items()}
    values = {name: value * clock if name in _SECONDS else value / clock for name, value in first.items()}
    values |= {"clock": clock / 1e9, "latency": clock / first["chain"]}
    return constants.Constants(**{name: float(f"{values[name]:.4g}") for name in constants.Constants._fields})


def described(threads, best_effort=False, step=lambda what, seconds: None):
    """Measure this machine with ``threads`` threads and return the contents of its machine file, a dict for JSON.

    "spread" is the relative difference of the best turns of the clock, which nothing but other processes changes.
    """
    started = time.strftime("%Y-%m-%d", time.gmtime())
    found, raw = measure(threads, best_effort, step)
    vendor, family, model = machine.cpu()
    info = _core.kernel_info("float32")
    return {
        "format": constants.FORMAT,
        "name": f"{vendor or 'cpu'}_{family}_{model}",
        "about": f"measured by python -m convt calibrate on {started}, {_core.isa()}, {threads} threads, convt {__version__}",
        "origin": "measured",
        "vector_bits": 8 * info["vl"] * info["t_size"],
        "amx": _core.kernel_info("float32", "amx") is not None,
        "cpus": [{"vendor": vendor, "family": family, "models": [model, model]}],
        "caches": dict(zip(("l1", "l2", "l3"), _core.cache_bytes(), strict=True)),
        "constants": found._asdict(),
        "spread": round(raw["clock"][0] / raw["clock"][-1] - 1, 4),
        "raw": raw,
    }


def write(path, found):
    """Write the machine file ``found`` to ``path``."""
    import json

    lines = []
    for key, value in found.items():
        if isinstance(value, dict):
            rows = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in value.items())
            lines.append(f" {json.dumps(key)}: {{\n" + ",\n".join(rows) + "\n }")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    files.write(path, "{\n" + ",\n".join(lines) + "\n}\n")
