"""The choice of an algorithm for a problem: a function over the registries of convt.algorithms.

A measured result has priority over the cost model: `convt.tuning` has those of earlier measurements, and the backend "tune"
measures.
"""

import functools
import math
import os
import threading
import warnings

from .. import tuning
from .._base.errors import BackendUnavailableError
from .._model import machine
from .._run import config, log
from ..algorithms import ALGORITHMS, BACKENDS, allowed, candidates, fastest, name_of, onednn
from . import measure, strides
from .repeat import Kept

_COMPARED_BYTES = 11  # bytes of a filter that a thread compares with earlier ones per cycle (checksum.pyx)
NEAR = 4 / 3  # "tune" measures algorithms up to this multiple of the lowest expected cost


def choose(plans, problem, data=None):
    """Return ``(key, note)`` of the algorithm that the backend and algorithm of a `Plans` select.

    "tune" measures with ``data``, or with zeros if it is None. Saved results are not used where the choice counts the time to
    pack weights, because the measured times do not include it.
    """
    a = plans.attributes
    if a.backend in BACKENDS:
        return a.backend, ""
    if all(ALGORITHMS[key].stages.by_name for key in allowed(problem, a.algorithm)):  # nothing else gives its bits
        return native(problem, a.algorithm), ""
    if a.backend == "tune":
        found = plans.tuned.get_or_make(
            (problem, machine.current(), config.get_num_threads()),
            lambda: _Tuned(*(_saved(problem, a) or _measure(plans, problem, data))), _measuring,
        )  # fmt: skip
        return found.name, found.note
    found = _saved(problem, a) if plans.packing_order is None else None
    return found or (cheapest(problem, a, plans.packing_order), "")


def cheapest(problem, attributes, packing_order=None):
    """Return the key of the algorithm with the lowest expected cost, or "onednn" where it is known to be faster.

    ``packing_order`` is the memory order of a filter whose packing counts (`reorder.memory_order`), or None.
    """
    key = native(problem, attributes.algorithm, packing_order)
    if packing_order is None and attributes.backend != "native" and onednn.preferred(problem, attributes, key):
        return "onednn"
    return key


def unpacked_pays(problem, attributes, filter_bytes):
    """Check whether "unpacked" is expected to be faster than comparing a filter with an earlier one and multiplying packed
    weights."""
    key = "unpacked:vectors"
    if attributes.backend in BACKENDS or attributes.algorithm != "auto" or _saved(problem, attributes):
        return False
    packed = cheapest(problem, attributes)
    return packed in ALGORITHMS and key in allowed(problem, "unpacked") and (
        ALGORITHMS[key].cost(problem) < ALGORITHMS[packed].cost(problem) + filter_bytes / _COMPARED_BYTES
    )


def native(problem, algorithm, packing_order=None):
    """Return the key with the lowest expected cost that ``algorithm`` allows. Raise ValueError if none is available."""
    key = fastest(problem, machine.current(), algorithm, packing_order)
    if key is None:
        limit = ALGORITHMS.get(algorithm, ALGORITHMS[f"{name_of(algorithm)}:vectors"]).limit
        raise ValueError(
            f"algorithm: got {algorithm!r}, which is unavailable (needs {limit}); wanted 'auto' or 'direct'"
        )
    return key


class _Tuned(Kept):
    """A result of "tune" for a problem: the key of an algorithm, and a note with the times or the reason."""

    def __init__(self, name, note):
        super().__init__(256 + len(note))
        self.name, self.note = name, note


def _saved(problem, attributes):
    """Return ``(name, note)`` of the fastest algorithm in `tuning`, or None without an entry or if it is not available."""
    a = attributes
    times = tuning.find(problem, a.algorithm, config.get_num_threads())
    if not times:
        return None
    possible = set(candidates(problem, a.algorithm))
    if a.backend == "tune" or (a.backend == "auto" and onednn.library.available()):
        possible.add("onednn")
    # A file may name algorithms that do not support the problem.
    times = {name: time for name, time in times.items() if name in possible}
    if not times:
        return None
    best = min(times, key=times.get)
    if best == "onednn" and not onednn.library.available():
        log.note("tune", f"{problem.descriptor()},oneDNN was the fastest but is not available")
        return None
    return best, "measured earlier: " + ", ".join(f"{name} {time:.3f} ms" for name, time in times.items())


def _measure(plans, problem, data):
    """Measure the candidates on ``data``, or on zeros, and return ``(name, note)`` of the fastest.

    If the measurement does not decide, it is the choice of "auto".
    """
    a, threads = plans.attributes, config.get_num_threads()
    name = cheapest(problem, a)
    source = strides.empty(problem.in_shape, problem.dtype, a.data_format)
    source[...] = 0 if data is None else data
    out = strides.empty(problem.out_shape, problem.dtype, a.data_format)
    trial, runs = plans.trial(), {}
    for key in (*candidates(problem, a.algorithm, NEAR), "onednn"):
        try:
            call = trial.prepared(problem, source.strides, out.strides, key)
        except BackendUnavailableError:
            continue
        runs[key] = functools.partial(trial.run, call, source, out)
    try:
        best = measure.measure(runs)
    except measure.Undecided as undecided:
        note = f"could not decide what is the fastest, because {undecided}; using {name} as 'auto' does; no result is kept"
        log.note("tune", f"{problem.descriptor()},{note}")
        warnings.warn(f"convt: {problem.descriptor()}: {note}", RuntimeWarning, stacklevel=2)
        return name, note
    if math.isinf(min(best.values())):
        return name, "nothing was measured, because no candidate supports the values of the data"
    tuning.keep(problem, a.algorithm, threads, best)
    times = ", ".join(f"{name} {seconds * 1e3:.3f} ms" for name, seconds in best.items())
    log.note("tune", f"{problem.descriptor()},{times}")
    return min(best, key=best.get), f"measured: {times}"


_measuring = threading.Lock()  # one measurement at a time in the process, because two would disturb each other


def _unlock():
    """Replace the lock in a forked child, because a lock held by another thread at the fork is never released."""
    global _measuring
    _measuring = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)
