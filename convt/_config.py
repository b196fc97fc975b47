"""What a process is set to: instruction set, threads, environment, and the sizes it can hold."""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import sys
from typing import TYPE_CHECKING

from . import _check, _core, _cores
from ._errors import BackendUnavailableError
from ._problem import ITEMSIZE, PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import SupportsIndex


def preferred_isa():
    """The instruction set used unless CONVT_ISA says otherwise."""
    return [row["name"] for row in _core.isa_rows() if row["available"]][-1]


def _choose_isa():
    """The best instruction set this CPU has, or the one CONVT_ISA names: at most, and exactly, that one."""
    rows = {row["name"]: row["available"] for row in _core.isa_rows()}
    name = os.environ.get("CONVT_ISA", "")
    if not name:
        name = preferred_isa()
    elif name not in rows:
        raise ValueError(f"CONVT_ISA: got {name!r}, wanted one of {', '.join(rows)}")
    elif not rows[name]:
        found = ", ".join(n for n, available in rows.items() if available)
        raise BackendUnavailableError(f"CONVT_ISA: got {name!r}, which this CPU lacks; wanted one of {found}")
    _core.use_isa(name)


_choose_isa()

_MOST_THREADS = 1024
_PARALLEL = bool(_core.openmp())
_threads = None  # the process-wide setting
_scoped = contextvars.ContextVar("convt_num_threads", default=None)  # num_threads(n): this context only


def _from_environment():
    """The `Cores` that variables of the environment name, else those that this process may use."""
    for name in ("CONVT_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "").split(",")[0].strip()
        if text.isdecimal() and int(text) >= 1:
            return _cores.Cores(int(text), name)
        if text and name == "CONVT_NUM_THREADS":
            raise ValueError(f"CONVT_NUM_THREADS: got {text!r}, wanted an integer >= 1")
    return _cores.allowed()


def _process_threads():
    """The `Cores` of the process-wide setting."""
    global _threads
    if _threads is None:
        found = _from_environment()
        _threads = found._replace(number=min(found.number, _MOST_THREADS))
    return _threads


def threads_reason():
    """Say what sets `get_num_threads`."""
    if not _PARALLEL:
        return "convt was built without OpenMP"
    if _core.forked():
        return "the process was forked after convt had used threads"
    return _process_threads().reason if _scoped.get() is None else "num_threads"


def get_num_threads() -> int:
    """The number of threads a call may use: `num_threads`, else `set_num_threads`, else the environment.

    CONVT_NUM_THREADS comes first, then OMP_NUM_THREADS, then the cores this process may use: the fewest of the machine's, of
    its affinity, and of the quotas of its control groups (containers), rounded down. `show_config` says which it is. 1 without
    OpenMP, and in a process forked after convt used threads (OpenMP's pool does not survive a fork).
    """
    if not _PARALLEL or _core.forked():
        return 1
    return _scoped.get() or (_threads or _process_threads()).number


def set_num_threads(n: SupportsIndex) -> None:
    """Let every later call use up to ``n`` threads. Raises ValueError below 1, TypeError for what is no integer."""
    global _threads
    _threads = _cores.Cores(min(_check.integer("n", n, 1), _MOST_THREADS), "set_num_threads")
    _core.forget_known()


@contextlib.contextmanager
def num_threads(n: SupportsIndex) -> Iterator[None]:
    """``with convt.num_threads(n): ...`` uses up to ``n`` threads inside the block, in this thread or task only."""
    token = _scoped.set(min(_check.integer("n", n, 1), _MOST_THREADS))
    _core.count_scopes(1)
    try:
        yield
    finally:
        _core.count_scopes(-1)
        _scoped.reset(token)


# Read once: a look at the environment costs more than a short call.
_BACKEND = _check.word("CONVT_BACKEND", os.environ.get("CONVT_BACKEND") or "auto", ("auto", "native", "onednn", "reference"))
_PRECISION = _check.word("CONVT_PRECISION", os.environ.get("CONVT_PRECISION") or PRECISIONS[0], PRECISIONS)
_VERBOSE = os.environ.get("CONVT_VERBOSE", "0") not in ("", "0")


def default_backend():
    """What "auto" means: CONVT_BACKEND as it was when convt was imported, else "auto"."""
    return _BACKEND


def default_precision() -> str:
    """What ``precision=None`` means: CONVT_PRECISION as it was when convt was imported, else "highest"."""
    return _PRECISION


def _limit_of(text):
    try:
        times = float(text) if text else None
    except ValueError:
        times = math.nan
    if times is not None and not times >= 0:
        raise ValueError(f"CONVT_PACKED_LIMIT: got {text!r}, wanted a number >= 0")
    return times


_packed_limit = _limit_of(os.environ.get("CONVT_PACKED_LIMIT"))  # times a filter's bytes; None: nobody has set it


def get_packed_weights_limit() -> float | None:
    """The limit of `set_packed_weights_limit`; None where nobody has set one."""
    return _packed_limit


def set_packed_weights_limit(times: float | None) -> None:
    """Let each operator keep packed weights of at most ``times`` the bytes of its filter, in all forms together.

    None: 2.5 times the bytes of a filter over 1 MiB, 6 times those of a smaller one, 64 KiB in any case. CONVT_PACKED_LIMIT
    sets it when convt is imported. The form that was not used for longest is dropped, and packed again when a call wants it; a
    single form may be larger than the limit. Operators that exist follow when they pack next. A limit of 4.5 or more permits
    larger Winograd transforms of large filters, which are up to 1.2 times as fast. Raises ValueError below 0, TypeError for
    what is no number.
    """
    global _packed_limit
    if times is not None:
        times = _check.number("times", times, 0)
    _packed_limit = times


def verbose():
    """Whether CONVT_VERBOSE asked for a line per call when convt was imported."""
    return _VERBOSE


def report(problem, plan, seconds):
    """The line CONVT_VERBOSE asks for, on standard error."""
    print(
        f"convt,exec,{plan.backend},{plan.algorithm},{plan.isa},{problem.descriptor()},{seconds * 1e3:.3f} ms",
        file=sys.stderr,
    )


def note(what, text):
    """A line about something other than a call, if CONVT_VERBOSE is set."""
    if verbose():
        print(f"convt,{what},{text}", file=sys.stderr)


def _physical_memory():
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 2**47


_MEMORY = _physical_memory()


def check_memory(name, shape, itemsize):
    """MemoryError for an array that has to be copied and cannot exist in this machine's memory."""
    size = math.prod(shape) * itemsize
    if size > _MEMORY:
        raise MemoryError(
            f"{name}: got shape {tuple(shape)}, {size} bytes, wanted at most the machine's {_MEMORY} bytes of memory"
        )


def check_size(problem):
    """MemoryError if the output cannot exist in this machine's memory; before anything is allocated."""
    count = 1
    for size in problem.out_shape:
        count *= max(size, 1)  # an empty axis does not excuse an absurd one: NumPy counts the others too
    if count * ITEMSIZE[problem.dtype] > _MEMORY and 0 not in problem.out_shape:
        raise MemoryError(
            f"output: got shape {problem.out_shape} (NXC order), {count * ITEMSIZE[problem.dtype]} bytes, "
            f"wanted at most the machine's {_MEMORY} bytes of memory"
        )
    if count * ITEMSIZE[problem.dtype] > _check.INT64_MAX:
        raise ValueError(f"output: got shape {problem.out_shape}, wanted a size below 2**63 bytes")
