"""Time of brief calls on an idle machine and next to a process that keeps one core busy: median and 99th percentile.

`python -m bench.beside` prints a Markdown table. Each library runs in its own process, and in a new one for the first calls
next to the busy process. The busy process is pinned to the last core that this process may use. The threads of the libraries
are not pinned.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from . import command, layers, machine, peers, tables
from .problem import Problem
from .shared import terminal
from .worker import Setting, Worker

LAYERS = (
    {"name": "depthwise", "Cin": 512, "Cout": 512, "g": 512, "in": [125], "k": 3, "s": 2, "pb": 1, "pe": 1},
    {"name": "4x4", "Cin": 256, "Cout": 128, "in": [16, 16], "k": 4, "s": 2, "pb": 1, "pe": 1},
    {"name": "1-D", "Cin": 128, "Cout": 64, "in": [4000], "k": 4, "s": 2, "pb": 1, "pe": 1},
    {"name": "2x2", "Cin": 128, "Cout": 64, "in": [64, 64], "k": 2, "s": 2},
)
BUSY = "while True: pass"
ROUNDS = 3
FIRST = 300  # the first calls of a process, which are counted apart


class Times(NamedTuple):
    """Statistics of the durations of calls, in milliseconds."""

    median: float
    p99: float  # 99th percentile

    def __str__(self) -> str:
        return f"{self.median:.3f}, {self.p99:.3f}"


class Row(NamedTuple):
    """The times of one library on one layer."""

    layer: str
    library: str
    quiet: Times
    beside: Times  # next to the busy process
    first: Times  # next to the busy process, first calls of a new process


@contextlib.contextmanager
def busy_core() -> Iterator[subprocess.Popen]:
    """Run a process that keeps one core busy, until the context ends."""
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(process.pid, {max(os.sched_getaffinity(0))})
        yield process
    finally:
        process.kill()
        process.wait()


def measured(problem: Problem, worker: Worker, seconds: float) -> tuple[Times, Times, Times]:
    """Time calls on the idle machine and next to a busy process, in turns. ``seconds`` is the length of a turn.

    The third result is of the first calls next to a busy process, of which each round begins with a new process.
    """
    durations: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(ROUNDS):
        worker.close()
        worker.ask("set_up", problem)
        with busy_core():
            durations[2].extend(worker.ask("time", seconds).durations[:FIRST])
    for _ in range(ROUNDS):
        durations[0].extend(worker.ask("time", seconds).durations)
        with busy_core():
            durations[1].extend(worker.ask("time", seconds).durations)
    quiet, beside, first = (Times(*(1e3 * np.percentile(each, [50, 99]))) for each in durations)
    return quiet, beside, first


def table(rows: list[Row]) -> list[str]:
    """Return the lines of a Markdown table. Times are "median, 99th percentile" in milliseconds."""
    head = (
        "layer", "library", "idle: median, 99% (ms)", "busy: median, 99% (ms)", "busy, first calls: median, 99% (ms)",
        "busy / idle", "busy: 99% / median",
    )  # fmt: skip
    cells = [
        (row.layer, row.library, row.quiet, row.beside, row.first, f"{row.beside.median / row.quiet.median:.2f}",
         f"{row.beside.p99 / row.beside.median:.1f}")
        for row in rows
    ]  # fmt: skip
    return tables.markdown(head, cells)


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser("beside", __doc__, "--peers onnxruntime", "--layout NHWC --seconds 0.5 --json beside.json")
    command.add_layers(parser, "four built-in layers")
    parser.add_argument(
        "--peers",
        type=command.several(str),
        metavar="NAME,...",
        default=["onnxruntime"],
        help="libraries to compare with (default: onnxruntime)",
    )
    command.add_layout(parser, "NCX")
    parser.add_argument(
        "--seconds", type=command.positive, default=1.0,
        help=f"length of each turn, of {ROUNDS} idle and {2 * ROUNDS} busy ones (default: 1)",
    )  # fmt: skip
    command.add_json(parser)
    options = parser.parse_args(arguments)
    chosen = command.layers_of(parser, options, [layers.from_row(row) for row in LAYERS])
    setting, rows, libraries = Setting(machine.cores()), [], [peers.PEERS[0], *peers.named(options.peers)]
    with command.printing(options.json) as write_json:
        with terminal.progress(len(libraries) * len(chosen)) as begin:
            for peer in libraries:
                worker = Worker(peer, setting)
                try:
                    for layer in chosen:
                        begin(f"{layer.name} {peer.name}")
                        problem = Problem(layer, "f32", options.layout)
                        try:
                            rows.append(Row(layer.name, peer.name, *measured(problem, worker, options.seconds)))
                        except (peers.Absent, peers.Unsupported) as error:
                            print(f"{layer.name}: {peer.name}: {error}", file=sys.stderr)
                finally:
                    worker.close()
        rows.sort(key=lambda row: [layer.name for layer in chosen].index(row.layer))
        print("\n".join(table(rows)))
        write_json([row._asdict() for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
