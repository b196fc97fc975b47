"""Settings of the process: instruction set, threads, environment variables, and memory limits."""

from __future__ import annotations

import contextvars
import math
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _core
from .._base import check, control_groups, environment
from .._base.errors import BackendUnavailableError
from .._base.problem import ITEMSIZE, PRECISIONS
from . import cores

if TYPE_CHECKING:
    from typing import SupportsIndex

    from .._base.typing import Backend, Precision


def preferred_isa():
    """Return the name of the best instruction set that this CPU and build support."""
    return [row["name"] for row in _core.isa_rows() if row["available"]][-1]


def _choose_isa():
    """Select the instruction set of CONVT_ISA, which is returned, or else the best one that this CPU and build support."""
    rows = {row["name"]: row["available"] for row in _core.isa_rows()}
    name = environment.read("CONVT_ISA", rows)
    if name and not rows[name]:
        found = ", ".join(n for n, available in rows.items() if available)
        raise BackendUnavailableError(f"CONVT_ISA: got {name!r}, which this CPU lacks; wanted one of {found}")
    _core.use_isa(name or preferred_isa())
    return name


ISA_VARIABLE = _choose_isa()

_MOST_THREADS = 1024
_threads = None  # `Cores` of the process-wide setting


class Config(NamedTuple):
    """The settings of a block of `config`. None stands for the setting around it, or of the process."""

    threads: int | None = None
    backend: str | None = None
    precision: str | None = None
    packed_weights_limit: float | None = None
    verbose: bool | None = None


_NONE = Config()
scoped = contextvars.ContextVar("convt_settings", default=_NONE)  # those of one context
_around: contextvars.ContextVar[tuple[Config, ...]] = contextvars.ContextVar("convt_settings_around", default=())
verbose_scopes = 0  # number of blocks with verbose calls, in any thread; repeated calls then make all checks


def _from_environment():
    """Return the `Cores` of CONVT_NUM_THREADS or OMP_NUM_THREADS, else those that this process may use."""
    if number := environment.read("CONVT_NUM_THREADS"):
        return cores.Cores(number, "CONVT_NUM_THREADS")
    text = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # a number for each level of nested parallel regions
    if text.isdecimal() and int(text) >= 1:
        return cores.Cores(int(text), "OMP_NUM_THREADS")
    return cores.allowed()


def _process_threads():
    """Return the `Cores` of the process-wide setting, read from the environment at the first call."""
    global _threads
    if _threads is None:
        found = _from_environment()
        _threads = found._replace(number=min(found.number, _MOST_THREADS))
    return _threads


def threads_reason():
    """Return the reason for the result of `get_num_threads`, for `show_config`."""
    if _core.serial:
        return "the process was forked after convt had used threads" if _core.openmp() else "convt was built without OpenMP"
    return _process_threads().reason if scoped.get().threads is None else "num_threads"


def get_num_threads() -> int:
    """Return the maximum number of threads of a call.

    The first of these that is set determines it, up to 1024 threads:

    1. `config` or `num_threads`, inside its block;
    2. `set_num_threads`;
    3. the environment variable CONVT_NUM_THREADS;
    4. the environment variable OMP_NUM_THREADS;
    5. the cores that this process may use: the minimum of the machine's cores, the process's affinity, and the CPU quotas of
       its control groups (containers), rounded down. If OMP_PLACES or OMP_PROC_BIND make OpenMP bind its threads, the cores of
       its places count instead of the affinity, which is then that of a single thread.

    `show_config` prints which one it is. The result is 1 if convt was built without OpenMP, and in a process that was forked
    after convt used threads, because OpenMP's thread pool does not survive a fork.

    Returns
    -------
    int
        The number of threads, at least 1.

    Raises
    ------
    ValueError
        CONVT_NUM_THREADS is not an integer of at least 1.

    Examples
    --------
    >>> import convt
    >>> convt.get_num_threads() >= 1
    True
    """
    if _core.serial:
        return 1
    return scoped.get()[0] or (_threads or _process_threads()).number


def set_num_threads(n: SupportsIndex | None) -> None:
    """Set the maximum number of threads of all later calls of this process.

    Parameters
    ----------
    n : int or None
        The number of threads, at least 1. Numbers above 1024 count as 1024. None restores the default: the environment
        variables and the usable cores are read again.

    Raises
    ------
    ValueError
        ``n`` is less than 1.
    TypeError
        ``n`` is not an integer.

    Examples
    --------
    >>> import convt
    >>> convt.set_num_threads(1)
    >>> convt.set_num_threads(None)
    """
    global _threads
    _threads = None if n is None else cores.Cores(min(check.integer("n", n, 1), _MOST_THREADS), "set_num_threads")
    _core.invalidate_known_calls()


class ConfigBlock:
    """A block of `config`. It can be entered several times, also in other threads. Its attributes are those of `Config`."""

    __slots__ = ("_settings",)

    def __init__(self, settings: Config) -> None:
        self._settings = settings

    def __enter__(self) -> ConfigBlock:
        before = scoped.get()
        _around.set((*_around.get(), before))
        scoped.set(_merged(self._settings, before))
        self._count(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._count(-1)
        *others, before = _around.get()
        _around.set(tuple(others))
        scoped.set(before)

    def _count(self, more: int) -> None:
        """Count a block that begins (``more`` is 1) or ends (-1)."""
        global verbose_scopes
        _core.count_scopes(more)
        if self._settings.verbose:
            with _counting:
                verbose_scopes += more

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(_in_force(self._settings), name)

    def __repr__(self) -> str:
        return repr(_in_force(self._settings))


def _merged(settings: Config, around: Config) -> Config:
    """Return the settings of a block inside another."""
    if around is _NONE:
        return settings
    return Config._make(own if own is not None else other for own, other in zip(settings, around, strict=True))


_counting = threading.Lock()


def _in_force(settings: Config) -> Config:
    """Return the `Config` of a block with these settings in this context."""
    now = _merged(settings, scoped.get())
    threads = now.threads if now.threads and not _core.serial else get_num_threads()
    limit = _packed_limit if now.packed_weights_limit is None else now.packed_weights_limit
    verbose = VERBOSE if now.verbose is None else now.verbose
    return Config(threads, now.backend or _BACKEND, now.precision or _PRECISION, limit, verbose)


def config(
    *, threads: SupportsIndex | None = None, backend: Backend | None = None, precision: Precision = None,
    packed_weights_limit: float | None = None, verbose: bool | None = None,
) -> ConfigBlock:  # fmt: skip
    """Change settings inside a ``with`` block, for the current Python thread or asyncio task only.

    Blocks can be nested; the innermost counts. Without arguments, the result shows the settings in force, as attributes and as
    text. Operators, models and sessions keep the backend and the precision that were in force when they were created.
    `set_num_threads`, `set_packed_weights_limit` and the environment variables are the settings of the process outside of all
    blocks.

    Parameters
    ----------
    threads : int, optional
        Maximum number of threads of a call, at least 1. Numbers above 1024 count as 1024. `convt.torch` uses the number of
        threads of PyTorch instead.
    backend : "auto", "native", "onednn" or "reference", optional
        What ``backend="auto"`` stands for.
    precision : "highest", "high" or "medium", optional
        What ``precision=None`` stands for.
    packed_weights_limit : float, optional
        Limit of `set_packed_weights_limit`, at least 0.
    verbose : bool, optional
        Whether each call logs a line, as with CONVT_VERBOSE=1. Lines go to ``logging.getLogger("convt")`` at level INFO, or to
        standard error if that level is not enabled.

    Returns
    -------
    context manager
        Its attributes are ``threads``, ``backend``, ``precision``, ``packed_weights_limit`` and ``verbose``.

    Raises
    ------
    ValueError, TypeError
        A setting has a wrong value.

    Examples
    --------
    >>> import convt
    >>> with convt.config(threads=1, backend="native", precision="high"):
    ...     convt.config().precision, convt.get_num_threads()
    ('high', 1)
    >>> convt.config(backend="reference").backend
    'reference'
    """
    if verbose is not None and not isinstance(verbose, bool):
        raise TypeError(f"verbose: got {type(verbose).__name__}, wanted True or False")
    limit = packed_weights_limit
    return ConfigBlock(Config(
        None if threads is None else min(check.integer("threads", threads, 1), _MOST_THREADS),
        None if backend is None else check.word("backend", backend, BACKENDS),
        None if precision is None else check.word("precision", precision, PRECISIONS),
        None if limit is None else check.number("packed_weights_limit", limit, 0),
        verbose,
    ))  # fmt: skip


def num_threads(n: SupportsIndex) -> ConfigBlock:
    """Limit calls inside a ``with`` block to ``n`` threads, for the current Python thread or asyncio task only.

    This is `config` with ``threads=n``.

    Parameters
    ----------
    n : int
        The number of threads, at least 1. Numbers above 1024 count as 1024.

    Raises
    ------
    ValueError
        ``n`` is less than 1.
    TypeError
        ``n`` is not an integer.

    Examples
    --------
    >>> import convt
    >>> with convt.num_threads(1):
    ...     convt.get_num_threads()
    1
    """
    return ConfigBlock(Config(min(check.integer("n", n, 1), _MOST_THREADS)))


# Read once at import, because reading the environment takes longer than a short call.
BACKENDS = ("auto", "native", "onednn", "reference")
_BACKEND = environment.read("CONVT_BACKEND", BACKENDS) or "auto"
_PRECISION = environment.read("CONVT_PRECISION", PRECISIONS) or PRECISIONS[0]
VERBOSE = bool(environment.read("CONVT_VERBOSE"))
_packed_limit = environment.read("CONVT_PACKED_LIMIT")  # in multiples of the filter's bytes; None: the default limits


def default_backend():
    """Return the backend that "auto" stands for: that of `config`, CONVT_BACKEND at import, else "auto"."""
    return scoped.get().backend or _BACKEND


def default_precision() -> str:
    """Return the precision that ``precision=None`` stands for: that of `config`, CONVT_PRECISION at import, else "highest"."""
    return scoped.get().precision or _PRECISION


def get_packed_weights_limit() -> float | None:
    """Return the limit of `set_packed_weights_limit`.

    Returns
    -------
    float or None
        The limit in multiples of the filter's bytes; None if the default limits apply.

    Examples
    --------
    >>> import convt
    >>> convt.set_packed_weights_limit(4)
    >>> convt.get_packed_weights_limit()
    4.0
    >>> convt.set_packed_weights_limit(None)
    """
    limit = scoped.get().packed_weights_limit
    return _packed_limit if limit is None else limit


def set_packed_weights_limit(times: float | None) -> None:
    """Limit the memory of each operator's packed weights.

    An operator packs its weights once for each form that the algorithms of its shapes need. The limit applies to all forms of
    an operator together. When it is exceeded, the operator drops the least recently used form and packs it again when a call
    needs it. A single form may exceed the limit. Existing operators apply a new limit when they next pack weights. The
    environment variable CONVT_PACKED_LIMIT sets the limit at import.

    A limit of 4.5 or more permits larger Winograd transforms of large filters, which are up to 1.2 times as fast.

    Parameters
    ----------
    times : float or None
        The limit in multiples of the filter's bytes, at least 0. None restores the default limits: 2.5 for a filter of more
        than 1 MiB, 15 for a smaller one, and at least 256 KiB.

    Raises
    ------
    ValueError
        ``times`` is negative or NaN.
    TypeError
        ``times`` is not a number.

    Examples
    --------
    >>> import convt
    >>> convt.set_packed_weights_limit(4.5)
    >>> convt.set_packed_weights_limit(None)
    """
    global _packed_limit
    if times is not None:
        times = check.number("times", times, 0)
    _packed_limit = times


def verbose():
    """Check whether calls are logged: `config`, or CONVT_VERBOSE at import."""
    found = scoped.get().verbose
    return VERBOSE if found is None else found


def _memory(root="/"):
    """Return ``(bytes, description)`` of the memory that this process may use: the machine's, or a limit of a control group.

    ``root`` is the root of the file system.
    """
    try:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        size = 2**47
    found = [(size, f"the machine's {size} bytes of memory")]
    for folder in control_groups.folders("memory", root):
        for path in (folder / "memory.max", folder / "memory.limit_in_bytes"):  # version 2; version 1
            text = control_groups.read(path)
            if text.isdecimal():
                found.append((int(text), f"{text} bytes of memory, the limit of the control group ({path})"))
    return min(found)


_most_bytes = 0  # the result of an earlier `_memory`


def _check_bytes(what, size):
    """Raise MemoryError if ``size`` bytes exceed the memory that this process may use. ``what`` begins the message."""
    global _most_bytes
    if size > _most_bytes:  # the first call, or an error, unless a control group's limit has risen
        _most_bytes, description = _memory()
        if size > _most_bytes:
            raise MemoryError(f"{what}, {size} bytes, wanted at most {description}")


def check_memory(name, shape, itemsize):
    """Raise MemoryError if an array of this shape and item size, in bytes, exceeds the memory that this process may use."""
    _check_bytes(f"{name}: got shape {tuple(shape)}", math.prod(shape) * itemsize)


def check_size(problem):
    """Raise MemoryError if the output exceeds the memory that this process may use, ValueError from 2**63 bytes."""
    count = 1
    for size in problem.out_shape:
        count *= max(size, 1)  # NumPy refuses huge axes beside an empty one, too
    if 0 not in problem.out_shape:
        _check_bytes(f"output: got shape {problem.out_shape} (NXC order)", count * ITEMSIZE[problem.dtype])
    if count * ITEMSIZE[problem.dtype] > check.INT64_MAX:
        raise ValueError(f"output: got shape {problem.out_shape}, wanted a size below 2**63 bytes")
