"""The command line of a fuzzer: its options, its loop over seeds, and the replay of a case.

``package`` is the name of the fuzzer's package. It has the modules `draw` (the case of a seed), `perform` (run and check a
case; its function ``shown``, if it has one, describes a case) and `shrink` (smaller cases).
"""

import argparse
import faulthandler
import importlib
import itertools
import json
import shlex
import signal
import sys
import time
from collections import Counter

from . import pool, shrinking

_REDUCED = 10  # most findings that are reduced
_TEST = """
from {package}.perform import perform


def test_that_convt_is_right():
    perform({case})
"""


def _parser(package, description, more):
    parser = argparse.ArgumentParser(prog=_program(package), description=description)
    parser.add_argument(
        "--seeds", type=_seeds, default=(0, sys.maxsize), metavar="A-B", help="range of seeds, without B (default: 0-, no end)"
    )
    parser.add_argument("--seconds", type=float, help="stop after this time (default: no limit)")
    parser.add_argument("--workers", type=int, default=1, help="number of child processes that run cases (default: 1)")
    parser.add_argument(
        "--shrink", type=int, default=400, metavar="N", help="most cases to try to reduce a finding; 0: none (default: 400)"
    )
    parser.add_argument("--replay", metavar="JSON", help="run this case in this process, and print it as a test")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the case of a seed as JSON")
    for name, text in more.items():
        parser.add_argument(f"--{name}", help=text)
    return parser


def main(package, description, arguments=None, **more):
    """Run the command of a fuzzer, and return the exit status. ``more`` maps further options, which are arguments of the
    package's ``draw.case``, to their descriptions."""
    options = _parser(package, description, more).parse_args(arguments)
    more = [getattr(options, name) for name in more]
    if options.replay is not None:
        return _replay(package, json.loads(options.replay))
    if options.show is not None:
        print(json.dumps(_module(package, "draw").case(options.show, *more)))
        return 0
    first, last = options.seeds
    end = time.monotonic() + options.seconds if options.seconds else None
    seeds = itertools.takewhile(lambda _: end is None or time.monotonic() < end, range(first, last))
    tally, findings, last_report, highest = Tally(), [], time.monotonic(), first
    try:
        requests = ((seed, *more) for seed in seeds)
        for (seed, *_), case, outcome in pool.run_cases(package, requests, options.workers):
            tally.add(outcome)
            highest = max(highest, seed)
            if outcome.is_finding:
                findings.append((case, outcome.kind))
                print(f"FOUND {outcome.kind} at seed {seed}: {outcome.error.strip()[-1500:]}")
                _print_replay("", package, case | outcome.more if outcome.more else case)
            if time.monotonic() - last_report > 60:
                last_report = time.monotonic()
                print(f"... seed {seed}", *tally.lines(), sep="\n", flush=True)
    except KeyboardInterrupt:
        pass
    print(f"seeds {first}-{highest + 1} done, {len(findings)} findings; continue with --seeds {highest + 1}-")
    print(*tally.lines(), sep="\n", flush=True)
    smaller = _module(package, "shrink").smaller
    for case, kind in findings[:_REDUCED] if options.shrink else ():  # after the loop, because the children would wait
        reduced = shrinking.shrink(case, smaller, pool.fails_as(package, kind), options.shrink)
        _print_replay(f"reduced {kind}:", package, reduced)
        print(shown(package, reduced), flush=True)
    return 1 if findings else 0


class Tally:
    """The numbers of cases by outcome, and of what cases told by name. Details follow a name after a line feed."""

    def __init__(self):
        self.kinds, self.told, self.details = Counter(), Counter(), {}

    def add(self, outcome):
        self.kinds[outcome.kind] += 1
        for told, n in outcome.told.items():
            name, _, detail = told.partition("\n")
            self.told[name] += n
            if detail:
                self.details.setdefault(name, set()).add(hash(detail))

    def lines(self):
        yield f"{self.kinds.total()} cases: " + ", ".join(f"{n} {kind}" for kind, n in sorted(self.kinds.items()))
        for name, n in self.told.most_common():
            yield f"  {n} {name}" + (f", {len(self.details[name])} different" if name in self.details else "")


def shown(package, case):
    """Return a case as a test, after what describes it."""
    describe = getattr(_module(package, "perform"), "shown", lambda case: "")
    text = f"'''\n{case}\n'''" if isinstance(case, str) else case
    return describe(case) + _TEST.format(package=package.removeprefix("tests."), case=text)


def _replay(package, case):
    """Run a case in this process, for use in a debugger."""
    print(shown(package, case), flush=True)
    outcome = pool.outcome_of(package, case)
    for name, n in outcome.told.items():
        print(n, name)
    print(outcome.kind, outcome.error)
    return 1 if outcome.is_finding else 0


def _print_replay(before, package, case):
    print(f"{before}  {_program(package)} --replay {shlex.quote(json.dumps(case))}", flush=True)


def _program(package):
    return f"python -m tests.{package.removeprefix('tests.')}"


def _module(package, name):
    return importlib.import_module(f"{package}.{name}")


def _seeds(text):
    first, _, last = text.partition("-")
    return int(first), int(last) if last else sys.maxsize


def start(main):
    """Run the command of this process. Print the place of a crash, and print the summary also when it is terminated."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
