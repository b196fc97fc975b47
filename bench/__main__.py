"""The command line of the micro-benchmark.

Layers come from the built-in table, from files or from the command line. Each layer is checked and then timed with convt and
the other libraries, which take turns. The command `compare` compares two runs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import datetime, timezone
from itertools import product
from pathlib import Path

from . import COMMAND, command, compare, descriptor, layers, live, machine, peers, samples, tables
from .batch import Batch, Entry
from .problem import DTYPES, LAYOUTS, MODES, PRECISIONS, Problem
from .record import Record
from .rounds import measure
from .shared import files
from .worker import Died, Setting, Worker

QUICK_OTHERS = "torch", "onnxruntime", "openvino"


def parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "",
        "Time convt and other libraries on transposed convolutions of public networks.",
        "--quick",
        "--suite seg --peers onednn --dtype f32,bf16 --layout NXC,NCX --json figures.json",
        program=COMMAND,
        note=f"`{COMMAND} compare A.json B.json` compares convt in two runs. Exit status 1: slower by more than the noise.\n\n",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="ten layers, and only oneDNN or another library; takes about a minute")

    which = parser.add_argument_group("layers (default: the built-in table)")
    add = which.add_argument
    add(
        "--deconv",
        action="append",
        metavar="DESCRIPTOR",
        help='one layer in benchdnn notation: mb1_ic8oc4_ih9kh4sh2ph1_n"name"',
    )
    add("--batch", action="append", metavar="FILE", help="layers of a benchdnn batch file")
    add("--neighbours", type=command.integer, metavar="N",
        help="add N random layers of the same classes, which were not used for tuning")  # fmt: skip
    add("--seed", type=int, default=0, help="seed of the random layers (default: 0)")
    command.add_layers(which)

    measurement = parser.add_argument_group("measurement")
    add = measurement.add_argument
    known = (*peers.LIBRARIES, *(peer.name for peer in peers.RIVALS if peer.name not in peers.LIBRARIES))
    add(
        "--peers",
        type=command.words_of((*known, "none")),
        metavar="LIBRARY,...",
        help=f"libraries to compare with: {', '.join(known)}, or none (default: all; with --quick, onednn)",
    )
    command.add_dtype(measurement, ["f32"])
    command.add_layout(measurement, ["NXC"])
    add(
        "--precision",
        type=command.words_of(PRECISIONS),
        default=["highest"],
        metavar="PRECISION,...",
        help=f"precision of f32: {', '.join(PRECISIONS)} (default: highest); set in other libraries too if they offer it",
    )
    add(
        "--mode",
        type=command.words_of(MODES),
        default=["prepacked"],
        metavar="MODE,...",
        help="prepacked: libraries get the weights before timing; one-shot: with each call (default: prepacked)",
    )
    add("--threads", type=command.several(command.integer), default=[machine.cores()], metavar="N,...",
        help="numbers of threads (default: the number of cores)")  # fmt: skip
    add(
        "--isa",
        type=command.words_of(peers.CAPS),
        default=[None],
        metavar="ISA,...",
        help=f"limit of the instruction set: {', '.join(peers.CAPS)} (default: no limit)",
    )
    add("--bias", action="store_true", help="add a bias")
    add("--rounds", type=command.integer, default=5, metavar="N", help="turns of each library on each layer (default: 5)")
    add("--cold", action="store_true", help="also time calls with emptied caches, whose weights come from memory")
    add(
        "--budget",
        type=command.positive,
        metavar="SECONDS",
        help="time of one layer, all turns together (default: 4; with --quick, 1.5)",
    )

    output = parser.add_argument_group("output")
    add = output.add_argument
    command.add_json(output)
    add("--report", type=command.folder, metavar="DIR", help="write DIR/index.html with tables, roofline and speedups")
    return parser


def chosen_entries(options: argparse.Namespace, note: Callable[[str], None]) -> list[Entry]:
    """Return the layers that the options select. Raise ValueError if there are none, or OSError if a file cannot be read."""
    found = [Entry(descriptor.read(text)) for text in options.deconv or ()]
    for path in options.batch or ():
        found += Batch(note).read(Path(path))
    if options.layers:
        found += map(Entry, layers.read(options.layers))
    if not (options.deconv or options.batch or options.layers):
        quick = options.quick and not (options.suite or options.names)
        known = layers.built_in(options.suite, options.names)
        found = [Entry(layer) for layer in known if not quick or layer.name in layers.QUICK]
    if options.neighbours:
        found += map(Entry, samples.neighbours([entry.layer for entry in found], options.neighbours, options.seed))
    found = layers.select(found, options.suite, options.names, lambda entry: entry.layer)
    if not found:
        raise ValueError("the options select no layer")
    return found


def chosen_problems(options: argparse.Namespace, entries: list[Entry]) -> list[Problem]:
    """Return each entry in every combination of the options, sorted by output table. A batch file overrides options."""
    problems = [
        Problem(entry.layer, dtype, layout, mode, options.bias if entry.bias is None else entry.bias, precision)
        for entry in entries
        for dtype in (options.dtype if entry.dtype is None else [entry.dtype])
        for precision in (options.precision if dtype == "f32" else PRECISIONS[:1])
        for layout in (options.layout if entry.layout is None else [entry.layout])
        for mode in options.mode
    ]

    def table(problem: Problem) -> tuple[int, ...]:
        known = (DTYPES, problem.dtype), (PRECISIONS, problem.precision), (LAYOUTS, problem.layout), (MODES, problem.mode)
        return tuple(list(words).index(word) for words, word in known)

    return sorted(dict.fromkeys(problems), key=table)


def chosen_peers(options: argparse.Namespace) -> list[peers.Peer]:
    """Return convt, followed by the libraries to compare with."""
    default = ["onednn"] if options.quick else list(peers.LIBRARIES)
    return [peers.PEERS[0], *peers.named(default if options.peers is None else options.peers)]


def present(chosen: list[peers.Peer], setting: Setting, record: Record) -> list[Worker]:
    """Return a worker for each installed library and record its version. Add a note for each missing library."""
    workers = []
    for peer in chosen:
        if setting.isa and not peer.caps:
            record.note(f"{peer.name} is skipped: --isa cannot limit its instruction set")
            continue
        worker = Worker(peer, setting)
        try:
            record.versions[peer.name] = worker.ask("version")
        except (peers.Absent, peers.Failed, Died) as exc:
            worker.close()
            record.note(f"{peer.name} is skipped: {exc}")
        else:
            workers.append(worker)
    return workers


def present_for(options: argparse.Namespace, setting: Setting, record: Record) -> list[Worker]:
    """Return the workers of a run. ``--quick`` without oneDNN compares with the first other library that is installed."""
    workers = present(chosen_peers(options), setting, record)
    if options.quick and options.peers is None:
        for name in QUICK_OTHERS:
            if len(workers) < 2:
                workers += present(peers.named([name]), setting, record)
    return workers


def limits_now(workers: list[Worker], setting: Setting, dtypes: Iterable[str]) -> machine.Limits:
    """Measure the peaks of ``dtypes`` and the copy bandwidth. Without convt's worker there are no peaks."""
    convt = next((worker for worker in workers if worker.peer.name == "convt"), None)
    peaks = {dtype: convt.ask("fma_peak", dtype) for dtype in dtypes} if convt else {}
    return machine.Limits(peaks, machine.copy_bandwidth(setting.threads))


def run(options: argparse.Namespace, problems: list[Problem], budget: float, record: Record) -> None:
    """Measure every problem in every setting. Results are added to `record`, and written to its file, after each problem."""
    settings = [Setting(threads, isa) for threads, isa in product(options.threads, options.isa)]
    with live.progress(len(problems) * len(settings)) as progress:
        for setting in settings:
            with ExitStack() as stack:
                progress.begin("starting libraries")
                workers = present_for(options, setting, record)
                for worker in workers:
                    stack.callback(worker.close)
                progress.begin("measuring peaks")
                best = record.limits[setting] = limits_now(workers, setting, DTYPES)
                for problem in problems:
                    results = measure(problem, workers, options.rounds, budget, record.note, options.cold)
                    record.results += results
                    best = record.limits[setting] = best.or_better(limits_now(workers, setting, [problem.dtype]))
                    if options.json not in (None, "-") and files.is_replaced(options.json):
                        with suppress(OSError):  # the last save reports it, after the measurements
                            record.save(options.json)
                    if results:
                        progress.step(results)
    record.complete = True


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] == ["compare"]:
        return compare.main(arguments[1:])
    parse = parser()
    options = parse.parse_args(arguments)
    budget = options.budget or (1.5 if options.quick else 4.0)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    asked = {"command": arguments, "options": vars(options) | {"budget": budget}}
    record = Record({"started": started, "machine": machine.describe()} | asked)
    try:
        problems = chosen_problems(options, chosen_entries(options, record.note))
    except (ValueError, OSError) as exc:
        parse.error(str(exc))
    with command.printing(options.json) as write_json:
        show_run(options, problems, budget, record)
        try:
            write_json(record.to_json())
            if options.report:
                from . import page

                print(f"report: {page.write(record, Path(options.report))}")
        except OSError as exc:
            parse.exit(1, f"{COMMAND}: {exc.filename}: {exc.strerror}\n")
    if not record.complete:
        return 130
    convt = [result for result in record.results if result.peer == "convt"]
    return int(not convt or any(result.status != "ok" for result in convt))


def show_run(options: argparse.Namespace, problems: list[Problem], budget: float, record: Record) -> None:
    """Measure the problems and print the results, after Ctrl-C those that there are."""
    here = record.about["machine"]
    print(f"{here['cpu']}, {here['cores']} cores, {here['system']}; Python {here['python']}, NumPy {here['numpy']}")
    try:
        run(options, problems, budget, record)
    except KeyboardInterrupt:
        record.note("interrupted: the results are partial")
    tables.show(record)


if __name__ == "__main__":
    sys.exit(main())
