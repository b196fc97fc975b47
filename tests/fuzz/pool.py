"""Child processes that run cases. A child that crashes or does not answer in time is a finding, with its case.

``package`` is the name of the package of a fuzzer: it has ``draw.case(*request)`` and ``perform.perform(case)``, which returns
("right" or another word, {what is counted: number}) or raises an exception, such as `Difference`.
"""

import contextlib
import importlib
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path
from typing import NamedTuple

_CONTEXT = multiprocessing.get_context("spawn")
TIMEOUT = 120  # seconds for one case
_MEMORY = 6 << 30  # bytes of address space: a larger output is a MemoryError
_CASES_PER_CHILD = 5000  # a child that ran this number of cases is replaced by a new one


class Difference(AssertionError):
    """A wrong result. ``kind`` tells in which respect, so that a smaller case must be wrong in the same respect."""

    def __init__(self, kind, text, detail=""):
        super().__init__(f"{kind}: {text}")
        self.kind = f"wrong {kind} {detail}".strip()


class Outcome(NamedTuple):
    """What became of a case."""

    kind: str
    told: Counter = Counter()  # what `perform` counted
    error: str = ""
    more: dict = {}  # what a replay of the case needs, beside the case

    @property
    def is_finding(self):
        return self.kind.startswith(("wrong", "crash", "hang"))


def outcome_of(package, case):
    """Run a case in this process, and return its `Outcome`."""
    try:
        return Outcome(*importlib.import_module(f"{package}.perform").perform(case))
    except Exception as error:
        text = "".join(traceback.format_exception(error)[-3:])
        return Outcome(getattr(error, "kind", "wrong"), getattr(error, "told", Counter()), text, getattr(error, "more", {}))


def _case(package, request):
    return importlib.import_module(f"{package}.draw").case(*request) if isinstance(request, tuple) else request


def _serve(package, pipe):
    # A sanitizer's shadow memory is larger than this; tools/sanitize.py limits allocations by options.
    if int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() < _MEMORY:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import faulthandler

    faulthandler.enable()  # prints the place of a crash to standard error
    with contextlib.suppress(EOFError):  # the parent has ended
        while (request := pipe.recv()) is not None:
            case = _case(package, request)
            pipe.send((case, outcome_of(package, case)))


class Child:
    def __init__(self, package):
        self.package = package
        self.pipe, theirs = _CONTEXT.Pipe()
        os.environ.update(OMP_WAIT_POLICY="passive", MALLOC_ARENA_MAX="2")  # read by libraries when they are imported
        self.process = _CONTEXT.Process(target=_serve, args=(package, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.request, self.start, self.cases_run = None, 0.0, 0

    def send(self, request):
        self.request, self.start = request, time.monotonic()
        self.pipe.send(request)

    def receive(self):
        """Return the child's answer, or the way it crashed."""
        try:
            case, outcome = self.pipe.recv()
            self.cases_run += 1
        except (EOFError, ConnectionResetError):
            self.process.join()
            code = self.process.exitcode
            name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
            case, outcome = _case(self.package, self.request), Outcome("crash", error=name)
        self.request = None
        return case, outcome

    def end_hung(self):
        """End a child that did not answer in time, and return this outcome."""
        self.process.kill()
        self.process.join()
        case, self.request = _case(self.package, self.request), None
        return case, Outcome("hang", error=f"no answer in {TIMEOUT} s")

    def outcome(self, request):
        """Run one case, wait for it, and return the outcome."""
        self.send(request)
        return (self.receive() if self.pipe.poll(TIMEOUT) else self.end_hung())[1]

    def alive(self):
        return self.process.exitcode is None

    def end(self):
        """End the child normally, so that coverage tools write their counts, or kill it if it runs a case."""
        if self.request is None and self.alive():
            with contextlib.suppress(OSError):  # it may have ended meanwhile
                self.pipe.send(None)
            self.process.join(TIMEOUT)
        if self.alive():
            self.process.kill()
        self.process.join()


def run_cases(package, requests, workers):
    """Yield ``(request, case, outcome)`` for each request, in the order of completion, run by ``workers`` children."""
    requests, children = iter(requests), []
    more = True
    try:
        while more or any(child.request is not None for child in children):
            children = [child for child in children if child.request is not None or _is_reusable(child)]
            while more and len(children) < workers:
                children.append(Child(package))
            for child in children:
                if more and child.request is None:
                    request = next(requests, None)
                    more = request is not None
                    if more:
                        child.send(request)
            busy = {child.pipe: child for child in children if child.request is not None}
            ready = {busy[pipe] for pipe in wait(list(busy), timeout=5)} if busy else set()
            for child in busy.values():
                request = child.request
                if child in ready:
                    yield (request, *child.receive())
                elif time.monotonic() - child.start > TIMEOUT:
                    yield (request, *child.end_hung())
    finally:
        for child in children:
            child.end()


def fails_as(package, kind):
    """Return a function that checks whether a case fails in this way. It reuses one child as long as that lives."""
    children = []

    def fails(case):
        if not children or not _is_reusable(children[0]):
            children[:] = [Child(package)]
        return children[0].outcome(case).kind == kind

    return fails


def _is_reusable(child):
    if child.alive() and child.cases_run < _CASES_PER_CHILD:
        return True
    child.end()
    return False
