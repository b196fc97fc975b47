"""Comparison of another checkout of convt with this one, timed in turns.

Run ``python -m bench.checkouts FOLDER``.

FOLDER is the other checkout, with built kernels. The ratio of a layer is the other checkout's time divided by this one's, so a
ratio above 1 means that this checkout is faster. Layers whose ratio is below ``--least`` are measured again for twice as long,
and the second ratio counts.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import geometric_mean

from . import layers, machine, peers
from .__main__ import _count, _one_of, _seconds
from .problem import DTYPES, LAYOUTS, MODES, Problem
from .record import Record
from .rounds import Result, measure
from .worker import Setting, Worker


def _line(problem: Problem, other: Result, own: Result) -> str:
    """Return a row of the table. `*` marks times that other processes may have disturbed."""
    if not other.seconds or not own.seconds:
        return f"{problem.layer.name:18}{problem.layout:5}{other.status}: {other.how}; {own.status}: {own.how}"
    marks = "*" * (other.disturbed or own.disturbed)
    how = own.how if own.how == other.how else f"{other.how} -> {own.how}"
    times = f"{other.seconds * 1e3:10.3f}{own.seconds * 1e3:10.3f}{other.seconds / own.seconds:8.3f}"
    return f"{problem.layer.name:18}{problem.layout:5}{times}{marks:2}{how}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.checkouts", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("checkout", metavar="FOLDER", help="other checkout, with built kernels")
    add("--names", metavar="NAME,...", help="only layers with these names")
    add("--layers", metavar="FILE", help="layers from a JSON file")
    add("--dtype", type=_one_of("dtype", tuple(DTYPES)), default=["f32"], metavar="DTYPE,...", help="default: f32")
    add("--layout", type=_one_of("layout", LAYOUTS), default=list(LAYOUTS), metavar="LAYOUT,...", help="default: both")
    add("--mode", type=_one_of("mode", MODES), default=MODES[:1], metavar="MODE,...", help="default: prepacked")
    add("--threads", type=_count, default=machine.cores(), metavar="N", help="default: the number of cores")
    add("--isa", choices=list(peers.CAPS), help="limit of the instruction set (default: no limit)")
    add("--rounds", type=_count, default=5, metavar="N", help="turns of each checkout on each layer (default: 5)")
    add("--budget", type=_seconds, default=2.0, metavar="SECONDS", help="time of one layer, all turns together (default: 2)")
    add(
        "--least",
        type=float,
        default=0.95,
        metavar="RATIO",
        help="measure layers below this ratio again and list them (default: 0.95)",
    )
    options = parser.parse_args(arguments)
    if not Path(options.checkout, "convt").is_dir():
        parser.error(f"{options.checkout} has no folder convt")
    known = layers.read(options.layers) if options.layers else layers.parse(layers.TABLE)
    wanted = options.names.split(",") if options.names else [layer.name for layer in known]
    problems = [
        Problem(layer, dtype, layout, mode)
        for mode in options.mode for dtype in options.dtype for layout in options.layout
        for layer in known if layer.name in wanted
    ]  # fmt: skip
    if not problems:
        parser.error("the options select no layer")
    setting, record, found = Setting(options.threads, options.isa), Record({}), {}
    with ExitStack() as stack:
        theirs = peers.convt_in(str(Path(options.checkout).resolve()), "other")
        pair = [Worker(peer, setting) for peer in (theirs, peers.PEERS[0])]
        for worker in pair:
            stack.callback(worker.close)

        def run(problem: Problem, budget: float) -> float | None:
            """Measure a problem, print its row and return its ratio, or None if a time is missing."""
            other, own = measure(problem, pair, options.rounds, budget, record.note)
            print(_line(problem, other, own), flush=True)
            found[problem] = other.seconds / own.seconds if other.seconds and own.seconds else None
            return found[problem]

        print(f"{'layer':23}{'other ms':>10}{'own ms':>10}{'ratio':>8}")
        slow = [problem for problem in problems if (run(problem, options.budget) or 0.0) < options.least]
        if slow:
            print("measured again:")
        for problem in slow:
            run(problem, 2 * options.budget)
    for dtype in options.dtype:
        for layout in options.layout:
            some = {p: ratio for p, ratio in found.items() if (p.dtype, p.layout) == (dtype, layout) and ratio}
            if some:
                print(f"{dtype} {layout}: geometric mean {geometric_mean(some.values()):.3f} of {len(some)} layers")
                low = sorted((ratio, p.layer.name) for p, ratio in some.items() if ratio < options.least)
                print(f"  below {options.least:g}: {', '.join(f'{name} {ratio:.3f}' for ratio, name in low) or 'none'}")
    for note in record.notes:
        print(f"note: {note}")
    return int(any(ratio is None for ratio in found.values()))


if __name__ == "__main__":
    sys.exit(main())
