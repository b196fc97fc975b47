"""The command line of the micro-benchmark: choose, measure, report.

Layers come from the built-in table or a file; each is checked, then timed, on convt and its peers in turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from difflib import get_close_matches
from itertools import product
from pathlib import Path

from bench import layers, machine, peers, report
from bench.problem import DTYPES, LAYOUTS, Problem
from bench.rounds import measure
from bench.worker import Died, Worker


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _one_of(what: str, known: tuple[str, ...]) -> Callable[[str], list[str]]:
    """An argument type: comma-separated words, each of them known."""

    def parse(text: str) -> list[str]:
        words = _words(text)
        if not words:
            raise argparse.ArgumentTypeError(f"wanted a {what}; known: {', '.join(known)}")
        if unknown := [word for word in words if word not in known]:
            raise argparse.ArgumentTypeError(f"unknown {what} {unknown[0]!r}; known: {', '.join(known)}")
        return words

    return parse


def _counts(text: str) -> list[int]:
    words = _words(text)
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"wanted whole numbers of at least 1 with commas between, got {text!r}")
    return [int(word) for word in words]


def _count(text: str) -> int:
    if len(counts := _counts(text)) != 1:
        raise argparse.ArgumentTypeError(f"wanted one number, got {text!r}")
    return counts[0]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"wanted a number of seconds above 0, got {text!r}")
    return seconds


def _writable(text: str) -> str:
    if not Path(text).absolute().parent.is_dir() or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a file that can be made here")
    return text


def parser() -> argparse.ArgumentParser:
    rivals = tuple(name for name in peers.PACKAGES if name != "convt")
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Time convt and its peers on the transposed convolutions of real networks."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="about ten layers and oneDNN alone, about a minute")
    add("--layers", metavar="FILE", help="layers from a JSON file instead of the built-in table")
    add("--suite", type=_words, metavar="FAMILY,...", help="only layers of these families")
    add("--names", type=_words, metavar="NAME,...", help="only these layers")
    add(
        "--peers",
        type=_one_of("peer", (*rivals, "none")),
        metavar="PEER,...",
        help=f"libraries to compare with: {', '.join(rivals)}, or none (default: all; with --quick, onednn)",
    )
    add("--dtype", type=_one_of("dtype", tuple(DTYPES)), default=["f32"], metavar="DTYPE,...", help=", ".join(DTYPES))
    add("--layout", type=_one_of("layout", LAYOUTS), default=["NXC"], metavar="LAYOUT,...", help=", ".join(LAYOUTS))
    add("--threads", type=_counts, default=[machine.cores()], metavar="N,...", help="default: every core")
    add("--bias", action="store_true", help="add a bias")
    add("--rounds", type=_count, default=5, metavar="N", help="turns of each library for each layer (default: 5)")
    add("--budget", type=_seconds, metavar="SECONDS", help="for all turns of a layer (default: 4; with --quick, 2)")
    add("--json", type=_writable, metavar="OUT", help="write every figure and what it was measured with")
    return parser


def chosen_layers(options: argparse.Namespace) -> list[layers.Layer]:
    """The layers that the options ask for; ValueError or OSError where there are none."""
    found = layers.read(options.layers) if options.layers else layers.parse(layers.TABLE)
    for what, wanted, attribute in (("family", options.suite, "family"), ("layer", options.names, "name")):
        if wanted is None:
            continue
        known = sorted({getattr(layer, attribute) for layer in found})
        if unknown := [word for word in wanted if word not in known]:
            near = get_close_matches(unknown[0], known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"unknown {what} {unknown[0]!r}; {hint}")
        found = [layer for layer in found if getattr(layer, attribute) in wanted]
    if options.quick and not (options.layers or options.suite or options.names):
        found = [layer for layer in found if layer.name in layers.QUICK]
    if not found:
        raise ValueError("no layer is left to measure")
    return found


def chosen_peers(options: argparse.Namespace) -> list[str]:
    """convt, then the libraries to compare it with."""
    default = ["onednn"] if options.quick else list(peers.PACKAGES)
    wanted = default if options.peers is None else options.peers
    return ["convt", *(name for name in wanted if name not in ("convt", "none"))]


def present(names: list[str], threads: int, record: report.Record) -> list[Worker]:
    """A worker for each library that is installed, its version noted; for the others a note."""
    workers = []
    for name in names:
        worker = Worker(name, threads)
        try:
            record.versions[name] = worker.ask("version")
        except (peers.Absent, peers.Failed, Died) as exc:
            worker.close()
            record.note(f"{name} is left out: {exc}")
        else:
            workers.append(worker)
    return workers


def limits_now(workers: list[Worker], dtype: str, threads: int) -> machine.Limits:
    peak = next((worker.ask("fma_peak", dtype) for worker in workers if worker.peer == "convt"), None)
    return machine.Limits(peak, machine.copy_bandwidth(threads))


def run(options: argparse.Namespace, chosen: list[layers.Layer], budget: float, record: report.Record) -> None:
    """Measure every combination asked for; `record` grows as it goes."""
    total = len(chosen) * len(options.dtype) * len(options.layout) * len(options.threads)
    with report.progress(total) as progress:
        for threads in options.threads:
            workers = present(chosen_peers(options), threads, record)
            for dtype in options.dtype:
                best = record.limits[dtype, threads] = limits_now(workers, dtype, threads)
                for layout, layer in product(options.layout, chosen):
                    problem = Problem(layer, dtype, layout, options.bias)
                    results = measure(problem, workers, options.rounds, budget, record.note)
                    record.results += results
                    best = record.limits[dtype, threads] = best.or_better(limits_now(workers, dtype, threads))
                    progress.step(report.brief(results))
            for worker in workers:
                worker.close()
    record.complete = True


def main(arguments: list[str] | None = None) -> int:
    parse = parser()
    options = parse.parse_args(arguments)
    try:
        chosen = chosen_layers(options)
    except (ValueError, OSError) as exc:
        parse.error(str(exc))
    budget = options.budget or (2.0 if options.quick else 4.0)

    here = machine.describe()
    print(f"{here['cpu']}, {here['cores']} cores, {here['system']}; Python {here['python']}, NumPy {here['numpy']}")
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    record = report.Record({"started": started, "machine": here, "options": vars(options) | {"budget": budget}})
    try:
        run(options, chosen, budget, record)
    except KeyboardInterrupt:
        record.note("interrupted: this is what was measured until then")

    report.show(record)
    if options.json:
        report.save(record, options.json)
    if not record.complete:
        return 130
    return int(any(result.peer == "convt" and result.status != "ok" for result in record.results))


if __name__ == "__main__":
    sys.exit(main())
