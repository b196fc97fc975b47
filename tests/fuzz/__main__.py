"""The command ``python -m tests.fuzz``, described in docs/reliability.md."""

import argparse
import faulthandler
import itertools
import json
import shlex
import signal
import sys
import time

from . import draw, pool, shrink


def main(arguments=None):
    options = _parser().parse_args(arguments)
    if options.replay is not None:
        return _replay(json.loads(options.replay))
    if options.show is not None:
        print(json.dumps(draw.case(options.show, options.isa)))
        return 0
    first, last = options.seeds
    end = time.monotonic() + options.seconds if options.seconds else None
    seeds = itertools.takewhile(lambda _: end is None or time.monotonic() < end, range(first, last))
    tally, findings, last_report, highest = pool.Tally(), [], time.monotonic(), first
    try:
        for (seed, _), case, outcome in pool.run_cases(((seed, options.isa) for seed in seeds), options.workers):
            tally.add(case, outcome)
            highest = max(highest, seed)
            if outcome[0] in ("wrong", "crash", "hang"):
                findings.append((case, outcome[0]))
                print(f"FOUND {outcome[0]} at seed {seed}, {case['isa']}: {outcome[2].strip()[-1500:]}")
                schedules = {"schedules": list(dict.fromkeys(schedule for _, _, schedule in outcome[1]))} if outcome[1] else {}
                print(f"  python -m tests.fuzz --replay {shlex.quote(json.dumps(case | schedules))}", flush=True)
            if time.monotonic() - last_report > 60:
                last_report = time.monotonic()
                print(f"... seed {seed}", *tally.lines(), sep="\n", flush=True)
    except KeyboardInterrupt:
        pass
    print(f"seeds {first}-{highest + 1} done, {len(findings)} findings; continue with --seeds {highest + 1}-")
    print(*tally.lines(), sep="\n", flush=True)
    for case, outcome in findings if options.shrink else ():  # after the loop, because the children would wait for it
        smaller = shrink.shrink(case, pool.fails_as(outcome), options.shrink)
        print(f"reduced: python -m tests.fuzz --replay '{json.dumps(smaller)}'", flush=True)
    return 1 if findings else 0


def _replay(case):
    """Run a case in this process, for use in a debugger."""
    outcome, plans, error = pool.outcome_of(case)
    for _, text, schedule in plans:
        print("plan:", text)
        print("  ", schedule)
    print(outcome, error)
    return 1 if outcome == "wrong" else 0


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description="Run random calls with plans for random machines, and compare each result with the definition."
    )
    parser.add_argument(
        "--seeds", type=_seeds, default=(0, sys.maxsize), metavar="A-B", help="range of seeds, without B (default: 0-, no end)"
    )
    parser.add_argument("--seconds", type=float, help="stop after this time (default: no limit)")
    parser.add_argument("--workers", type=int, default=1, help="number of child processes that run cases (default: 1)")
    parser.add_argument("--isa", help="only this instruction set (default: all that the CPU has)")
    parser.add_argument(
        "--shrink", type=int, default=400, metavar="N", help="most cases to try to reduce a finding; 0: none (default: 400)"
    )
    parser.add_argument("--replay", metavar="JSON", help="run this case in this process, and print its plans and schedules")
    parser.add_argument("--show", type=int, metavar="SEED", help="print the case of a seed as JSON")
    return parser


def _seeds(text):
    first, _, last = text.partition("-")
    return int(first), int(last) if last else sys.maxsize


if __name__ == "__main__":
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the summary is also printed then
    sys.exit(main())
