"""The command line of a fuzzer: its options, its loop over seeds, and the replay of a case.

``package`` is the name of the fuzzer's package. It has the modules `draw` (the case of a seed), `perform` (run and check a
case), `shrink` (smaller cases) and `report` (what is printed).
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

from . import pool, shrinking

_REDUCED = 10  # most findings that are reduced


def parser(package, description):
    """Return a parser of the options that all fuzzers have."""
    found = argparse.ArgumentParser(prog=_program(package), description=description)
    found.add_argument(
        "--seeds", type=_seeds, default=(0, sys.maxsize), metavar="A-B", help="range of seeds, without B (default: 0-, no end)"
    )
    found.add_argument("--seconds", type=float, help="stop after this time (default: no limit)")
    found.add_argument("--workers", type=int, default=1, help="number of child processes that run cases (default: 1)")
    found.add_argument(
        "--shrink", type=int, default=400, metavar="N", help="most cases to try to reduce a finding; 0: none (default: 400)"
    )
    found.add_argument("--replay", metavar="JSON", help="run this case in this process, and print how it is computed")
    found.add_argument("--show", type=int, metavar="SEED", help="print the case of a seed as JSON")
    return found


def main(package, description, arguments=None):
    """Run the command of a fuzzer without options of its own."""
    return run(package, parser(package, description).parse_args(arguments))


def run(package, options, *more):
    """Do what the options ask for, and return the exit status. ``more`` are arguments of the package's ``draw.case``."""
    draw, report = _module(package, "draw"), _module(package, "report")
    if options.replay is not None:
        return _replay(package, json.loads(options.replay))
    if options.show is not None:
        print(json.dumps(draw.case(options.show, *more)))
        return 0
    first, last = options.seeds
    end = time.monotonic() + options.seconds if options.seconds else None
    seeds = itertools.takewhile(lambda _: end is None or time.monotonic() < end, range(first, last))
    tally, findings, last_report, highest = report.Tally(), [], time.monotonic(), first
    try:
        requests = ((seed, *more) for seed in seeds)
        for (seed, *_), case, outcome in pool.run_cases(package, requests, options.workers):
            tally.add(case, outcome)
            highest = max(highest, seed)
            if outcome[0].startswith(("wrong", "crash", "hang")):
                findings.append((case, outcome[0]))
                print(f"FOUND {outcome[0]} at seed {seed}: {outcome[2].strip()[-1500:]}")
                _print_replay("", package, report.replayable(case, outcome[1]))
            if time.monotonic() - last_report > 60:
                last_report = time.monotonic()
                print(f"... seed {seed}", *tally.lines(), sep="\n", flush=True)
    except KeyboardInterrupt:
        pass
    print(f"seeds {first}-{highest + 1} done, {len(findings)} findings; continue with --seeds {highest + 1}-")
    print(*tally.lines(), sep="\n", flush=True)
    smaller = _module(package, "shrink").smaller
    for case, outcome in findings[:_REDUCED] if options.shrink else ():  # after the loop, because the children would wait
        reduced = shrinking.shrink(case, smaller, pool.fails_as(package, outcome), options.shrink)
        _print_replay(f"reduced {outcome}:", package, reduced)
        print(*report.shown(reduced, ()), sep="\n", flush=True)
    return 1 if findings else 0


def _replay(package, case):
    """Run a case in this process, for use in a debugger."""
    outcome, told, error = pool.outcome_of(package, case)
    for line in _module(package, "report").shown(case, told):
        print(line)
    print(outcome, error)
    return 1 if outcome.startswith("wrong") else 0


def _print_replay(before, package, case):
    print(f"{before}  {_program(package)} --replay {shlex.quote(json.dumps(case))}", flush=True)


def _program(package):
    return f"python -m tests.{package.removeprefix('tests.')}"


def _module(package, name):
    return importlib.import_module(f"{package}.{name}")


def _seeds(text):
    first, _, last = text.partition("-")
    return int(first), int(last) if last else sys.maxsize


def prepare_process():
    """Print the place of a crash, and print the summary also when the process is terminated."""
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
