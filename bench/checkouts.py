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
from itertools import product
from pathlib import Path
from statistics import geometric_mean

from . import command, machine, peers, tables
from .problem import LAYOUTS, MODES, Problem
from .record import Record
from .rounds import Result, measure
from .shared import terminal
from .worker import Setting, Worker

COLUMNS = {"layer": 18, "layout": 6, "other ms": 9, "own ms": 9, "ratio": 7, "how": 20}  # head -> width


def _cells(problem: Problem, other: Result, own: Result) -> list[str]:
    """Return a row of the table. `*` marks times that other processes may have disturbed."""
    start = [problem.layer.name, problem.layout]
    if not other.seconds or not own.seconds:
        return [*start, other.status, own.status, "-", f"{other.how}; {own.how}"]
    marks = "*" * (other.disturbed or own.disturbed)
    how = own.how if own.how == other.how else f"{other.how} -> {own.how}"
    times = (f"{each.seconds * 1e3:.3f}" for each in (other, own))
    return [*start, *times, f"{marks}{other.seconds / own.seconds:.3f}", how]


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "checkouts", __doc__.splitlines()[0], "../before --names unet_up1", "../before --layout NCHW --json ratios.json"
    )
    add = parser.add_argument
    add("checkout", metavar="FOLDER", help="other checkout, with built kernels")
    command.add_layers(parser)
    command.add_dtype(parser, ["f32"])
    command.add_layout(parser, list(LAYOUTS))
    add("--mode", type=command.words_of(MODES), default=MODES[:1], metavar="MODE,...",
        help=f"{', '.join(MODES)} (default: prepacked)")  # fmt: skip
    command.add_threads(parser, machine.cores())
    command.add_json(parser)
    add("--isa", choices=list(peers.CAPS), help="limit of the instruction set (default: no limit)")
    add("--rounds", type=command.integer, default=5, metavar="N", help="turns of each checkout on each layer (default: 5)")
    add("--budget", type=command.positive, default=2.0, metavar="SECONDS",
        help="time of one layer, all turns together (default: 2)")  # fmt: skip
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
    known = command.layers_of(parser, options)
    combinations = product(options.mode, options.dtype, options.layout, known)
    problems = [Problem(layer, dtype, layout, mode) for mode, dtype, layout, layer in combinations]
    record = Record({})
    with command.printing(options.json) as write_json:
        found = compared(options, problems, record)
        for dtype in options.dtype:
            for layout in options.layout:
                some = {p: ratio for p, ratio in found.items() if (p.dtype, p.layout) == (dtype, layout) and ratio}
                if some:
                    print(f"{dtype} {layout}: geometric mean {geometric_mean(some.values()):.3f} of {len(some)} layers")
                    low = sorted((ratio, p.layer.name) for p, ratio in some.items() if ratio < options.least)
                    print(f"  below {options.least:g}: {', '.join(f'{name} {ratio:.3f}' for ratio, name in low) or 'none'}")
        for note in record.notes:
            print(f"note: {note}")
        rows = [
            {"layer": p.layer.name, "dtype": p.dtype, "layout": p.layout, "mode": p.mode, "ratio": ratio}
            for p, ratio in found.items()
        ]  # fmt: skip
        write_json({"rows": rows, "notes": record.notes})
    return int(any(ratio is None for ratio in found.values()))


def compared(options: argparse.Namespace, problems: list[Problem], record: Record) -> dict[Problem, float | None]:
    """Measure the problems and print a row for each. Return the ratios, with None where a time is missing."""
    setting, found = Setting(options.threads, options.isa), {}
    with ExitStack() as stack:
        theirs = peers.convt_in(str(Path(options.checkout).resolve()), "other")
        pair = [Worker(peer, setting) for peer in (theirs, peers.PEERS[0])]
        for worker in pair:
            stack.callback(worker.close)
        lines = tables.Lines(COLUMNS, ("layer", "ratio", "layout", "own ms", "other ms"), ("layer", "layout", "how"))

        def run(problems: list[Problem], budget: float) -> None:
            with terminal.progress(len(problems)) as begin:
                for problem in problems:
                    begin(f"{problem.layer.name} {problem.layout}")
                    other, own = measure(problem, pair, options.rounds, budget, record.note)
                    lines.print(_cells(problem, other, own))
                    found[problem] = other.seconds / own.seconds if other.seconds and own.seconds else None

        run(problems, options.budget)
        slow = [problem for problem in problems if (found[problem] or 0.0) < options.least]
        if slow:
            print("measured again:")
        run(slow, 2 * options.budget)
    return found


if __name__ == "__main__":
    sys.exit(main())
