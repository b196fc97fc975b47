"""The process of one library. Separate processes avoid shared thread pools and allocators, and conflicts of runtimes.

`Worker` is the parent's end of a pipe. At the other end, `serve` imports the library and calls the methods of a `Service` on
request, one at a time. Between requests it waits for the pipe.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from . import check, machine, peers
from .layers import from_row
from .problem import DTYPES, PRECISIONS, Problem
from .timing import EmptyCaches, sample, wait_until_idle

# Removed from the environment, so that threads of each runtime spin for the default time, as they do for its users.
SPIN_SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
# Freed memory stays with the process. Otherwise, heuristics of the C library that depend on earlier allocations decide whether
# a library that allocates its results has page faults at each call. With these settings, no library has them.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_TOP_PAD_": str(1 << 26)}

# A problem with enough work for several threads and little memory.
WAKE_UP = Problem(from_row({"Cin": 32, "Cout": 32, "in": [32, 32], "k": [2, 2], "s": [2, 2]}), "f32", "NXC")


class Setting(NamedTuple):
    """The settings that a worker is started with."""

    threads: int
    isa: str | None = None  # limit of the instruction set, a key of `peers.CAPS`


class Died(Exception):
    """The process ended, or was ended because it exceeded a time limit."""


class Checked(NamedTuple):
    """The check of a first call."""

    error: float  # as `check.error` returns it
    how: str  # algorithm or implementation that ran
    seconds: float  # duration of the call


class Turn(NamedTuple):
    """The calls of one turn."""

    durations: list[float]  # seconds
    busy_cores: float | None  # cores that other processes kept busy
    became_idle: bool  # whether the process used no CPU time soon after the turn


class Service:
    """The requests that a worker answers. It sets up, checks and times one problem at a time."""

    def __init__(self, library: ModuleType, threads: int, options: dict):
        self._library = library
        self._threads = threads
        self._options = options
        self._ready: peers.Ready | None = None
        self._last_result: Any = None  # result of the last call
        self._empty_caches: Callable[[], Any] | None = None  # empties the caches before a call

    def version(self) -> str:
        return self._library.version()

    def set_up(self, problem: Problem) -> None:
        """Prepare a problem, which replaces the last one."""
        self._ready = self._last_result = None
        gc.collect()  # some libraries free memory only with their objects
        if problem.dtype not in self._library.DTYPES:
            raise peers.Unsupported(f"no {problem.dtype}")
        self._ready = self._library.prepare(problem, self._threads, **self._options)

    def prepare(self, problem: Problem, truth: str) -> Checked:
        """Set a problem up and compare its first result with the output of `check.expected` in the file `truth`."""
        self.set_up(problem)
        start = time.perf_counter()
        self._last_result = self._ready.run()
        seconds = time.perf_counter() - start
        return Checked(self.error(problem, truth), self._how(problem), seconds)

    def _how(self, problem: Problem) -> str:
        """Return the algorithm or implementation that runs, with a remark if the library does not offer the precision."""
        known = problem.precision in getattr(self._library, "PRECISIONS", PRECISIONS[:1])
        return ", ".join([self._ready.how] * bool(self._ready.how) + [f"has no precision {problem.precision}"] * (not known))

    def error(self, problem: Problem, truth: str) -> float:
        """Return the error of the result of the last call."""
        return check.error(problem, self._ready.nxc(self._last_result), np.load(truth))

    def time(self, seconds: float) -> Turn:
        """Time calls for ``seconds``."""
        others = machine.OtherProcesses()
        durations, self._last_result = sample(self._ready.run, seconds)
        return Turn(durations, others.busy_cores(), wait_until_idle())

    def time_cold(self, seconds: float) -> Turn:
        """Time calls for ``seconds``, with caches emptied before each call.

        A small problem is computed after emptying the caches, because it wakes up the library's threads.
        """
        if self._empty_caches is None:
            empty = EmptyCaches(self._threads, machine.cache_bytes())
            small = self._library.prepare(WAKE_UP, self._threads, **self._options).run
            self._empty_caches = lambda: (empty(), small())
        others = machine.OtherProcesses()
        durations, self._last_result = sample(self._ready.run, seconds, self._empty_caches)
        return Turn(durations, others.busy_cores(), wait_until_idle())

    def fma_peak(self, dtype: str) -> float:
        """Measure the multiply-add peak in GFLOP/s."""
        return machine.fma_peak(DTYPES[dtype], self._threads)

    def speeds(self) -> list[float]:
        """Measure the speed of the cores."""
        return machine.speeds(self._threads)


def serve(connection: Connection, kind: type[Service], peer: peers.Peer, threads: int) -> None:
    """Answer requests until the parent closes the pipe. A reply is a value, or an exception to raise in the parent."""
    service = None
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            method, arguments = connection.recv()
            try:
                service = service or kind(peers.load(peer), threads, peer.options)
                reply = getattr(service, method)(*arguments)
            except (peers.Absent, peers.Unsupported) as exc:
                reply = exc
            except Exception:
                reply = peers.Failed(traceback.format_exc(limit=-1).strip().splitlines()[-1])
            connection.send(reply)


@contextlib.contextmanager
def _start_conditions(setting: Setting, environment: dict[str, str]):
    """Set the environment of a worker for its start. Workers ignore Ctrl-C, because the parent ends them."""
    before = dict(os.environ)
    for word in SPIN_SETTINGS:
        os.environ.pop(word, None)
    os.environ["OMP_NUM_THREADS"] = str(setting.threads)
    os.environ |= KEEP_MEMORY | peers.CAPS.get(setting.isa, {}) | environment
    old_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, old_handler)
        os.environ.clear()
        os.environ.update(before)


class Worker:
    """The parent's end of a library's process, which starts at the first request."""

    def __init__(
        self, peer: peers.Peer, setting: Setting, service: type[Service] = Service, environment: dict[str, str] | None = None
    ):
        self.peer = peer
        self.setting = setting
        self._service = service
        self._environment = environment or {}
        self._process = None

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=serve, args=(theirs, self._service, self.peer, self.setting.threads), daemon=True)
        with _start_conditions(self.setting, self._environment):
            self._process.start()
        theirs.close()

    def ask(self, method: str, *arguments, timeout: float = 120.0) -> Any:
        """Call a method of the worker's `Service`. Start the process if needed; raise `Died` after ``timeout`` seconds."""
        if self._process is None:
            self._start()
        try:
            self._pipe.send((method, arguments))
            if not self._pipe.poll(timeout):
                self.close()
                raise Died(f"no answer in {timeout:.0f} s")
            reply = self._pipe.recv()
        except (EOFError, ConnectionError) as exc:
            self._process.join()
            code = self._process.exitcode
            self.close()
            raise Died(f"the process ended with {signal.Signals(-code).name if code < 0 else code}") from exc
        if isinstance(reply, Exception):
            raise reply
        return reply

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._pipe.close()
            self._process = None
