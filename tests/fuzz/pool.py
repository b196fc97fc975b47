"""Child processes that run cases. A child that crashes or does not answer in time is a finding, with its case."""

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections import Counter
from multiprocessing.connection import wait
from pathlib import Path

_CONTEXT = multiprocessing.get_context("spawn")
TIMEOUT = 120  # seconds for one case
_MEMORY = 6 << 30  # bytes of address space: a larger output is a MemoryError
_CASES_PER_CHILD = 5000  # a child that ran this number of cases is replaced by a new one


def outcome_of(case):
    """Return (outcome of a case, plans made, text of the error)."""
    from .perform import perform

    try:
        outcome, plans = perform(case)
    except Exception as error:
        return "wrong", getattr(error, "plans", []), "".join(traceback.format_exception(error)[-3:])
    return outcome, plans, ""


def _serve(pipe):
    # A sanitizer's shadow memory is larger than this; tools/sanitize.py limits allocations by options.
    if int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() < _MEMORY:
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import faulthandler

    from . import draw

    faulthandler.enable()  # prints the place of a crash to standard error
    with contextlib.suppress(EOFError):  # the parent has ended
        while (request := pipe.recv()) is not None:
            case = draw.case(*request) if isinstance(request, tuple) else request
            pipe.send((case, outcome_of(case)))


class Child:
    def __init__(self):
        self.pipe, theirs = _CONTEXT.Pipe()
        os.environ.update(OMP_WAIT_POLICY="passive", MALLOC_ARENA_MAX="2")  # read by libraries when they are imported
        self.process = _CONTEXT.Process(target=_serve, args=(theirs,), daemon=True)
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
            case, outcome = self._case(), ("crash", [], name)
        self.request = None
        return case, outcome

    def end_hung(self):
        """End a child that did not answer in time, and return this outcome."""
        self.process.kill()
        self.process.join()
        case, self.request = self._case(), None
        return case, ("hang", [], f"no answer in {TIMEOUT} s")

    def outcome(self, request):
        """Run one case, wait for it, and return the outcome."""
        self.send(request)
        return (self.receive() if self.pipe.poll(TIMEOUT) else self.end_hung())[1]

    def _case(self):
        from . import draw

        return draw.case(*self.request) if isinstance(self.request, tuple) else self.request

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


def run_cases(requests, workers):
    """Yield ``(request, case, outcome)`` for each request, in the order of completion, run by ``workers`` children."""
    requests, children = iter(requests), []
    more = True
    try:
        while more or any(child.request is not None for child in children):
            children = [child for child in children if child.request is not None or _is_reusable(child)]
            while more and len(children) < workers:
                children.append(Child())
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


def fails_as(kind):
    """Return a function that checks whether a case fails in this way. It reuses one child as long as that lives."""
    children = []

    def fails(case):
        if not children or not _is_reusable(children[0]):
            children[:] = [Child()]
        return children[0].outcome(case)[0] == kind

    return fails


def _is_reusable(child):
    if child.alive() and child.cases_run < _CASES_PER_CHILD:
        return True
    child.end()
    return False


class Tally:
    """Statistics by instruction set: cases by outcome, calls, different plans, algorithms."""

    def __init__(self):
        self.cases, self.calls, self.plans, self.algorithms = Counter(), Counter(), {}, {}

    def add(self, case, outcome):
        isa = case["isa"]
        self.cases[isa, outcome[0]] += 1
        self.calls[isa] += len(case["calls"])
        for algorithm, text, _ in outcome[1]:
            self.plans.setdefault(isa, set()).add(hash((text, json.dumps(case["problem"], sort_keys=True))))
            self.algorithms.setdefault(isa, Counter())[algorithm] += 1

    def lines(self):
        for isa in dict.fromkeys(isa for isa, _ in self.cases):
            outcomes = {outcome: n for (of, outcome), n in self.cases.items() if of == isa}
            outcome_counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()))
            yield f"{isa}: {self.calls[isa]} calls in {sum(outcomes.values())} cases ({outcome_counts})"
            algorithms = self.algorithms.get(isa, Counter())
            algorithm_counts = ", ".join(f"{n} {algorithm}" for algorithm, n in algorithms.most_common())
            yield f"  {len(self.plans.get(isa, ()))} distinct plans: {algorithm_counts}"
