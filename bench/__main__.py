"""The command line of the micro-benchmark: choose, measure, report.

Layers come from the built-in table, a file or the command line; each is checked, then timed, on convt and its peers in
turns. `compare` holds two runs against each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timezone
from difflib import get_close_matches
from itertools import product
from pathlib import Path

from . import COMMAND, compare, descriptor, layers, live, machine, peers, samples, tables
from .batch import Batch, Entry
from .problem import DTYPES, LAYOUTS, MODES, PRECISIONS, Problem
from .record import Record
from .rounds import measure
from .worker import Died, Setting, Worker


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


def _folder(text: str) -> str:
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    try:
        import matplotlib  # noqa: F401
    except ImportError as exc:
        raise argparse.ArgumentTypeError(f"{exc}; a report needs it: pip install matplotlib") from exc
    return text


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Time convt and its peers on the transposed convolutions of real networks.",
        epilog=f"`{COMMAND} compare A.json B.json` says whether B is slower than A beyond the noise.",
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="about ten layers and oneDNN alone, about a minute")

    which = parser.add_argument_group("layers (default: the built-in table)")
    add = which.add_argument
    add("--layers", metavar="FILE", help="from a JSON file")
    add("--deconv", action="append", metavar="DESCRIPTOR", help='in benchdnn\'s words: mb1_ic8oc4_ih9kh4sh2ph1_n"name"')
    add("--batch", action="append", metavar="FILE", help="from a batch file of benchdnn's")
    add("--neighbours", type=_count, metavar="N", help="also N random layers of the same classes, which no one tuned to")
    add("--seed", type=int, default=0, help="of the neighbours (default: 0)")
    add("--suite", type=_words, metavar="FAMILY,...", help="only those of these families")
    add("--names", type=_words, metavar="NAME,...", help="only these")

    add = parser.add_argument_group("what is measured").add_argument
    known = (*peers.LIBRARIES, *(peer.name for peer in peers.RIVALS if peer.name not in peers.LIBRARIES))
    add(
        "--peers",
        type=_one_of("peer", (*known, "none")),
        metavar="PEER,...",
        help=f"compare with {', '.join(known)}, or none (default: all; with --quick, onednn)",
    )
    add("--dtype", type=_one_of("dtype", tuple(DTYPES)), default=["f32"], metavar="DTYPE,...", help=", ".join(DTYPES))
    add("--layout", type=_one_of("layout", LAYOUTS), default=["NXC"], metavar="LAYOUT,...", help=", ".join(LAYOUTS))
    add(
        "--precision",
        type=_one_of("precision", PRECISIONS),
        default=["highest"],
        metavar="PRECISION,...",
        help=f"what f32 may be computed by: {', '.join(PRECISIONS)} (default: highest); peers are set alike where they can be",
    )
    add(
        "--mode",
        type=_one_of("mode", MODES),
        default=["prepacked"],
        metavar="MODE,...",
        help="prepacked: the weights are known beforehand; one-shot: they come with each call (default: prepacked)",
    )
    add("--threads", type=_counts, default=[machine.cores()], metavar="N,...", help="default: every core")
    add(
        "--isa",
        type=_one_of("instruction set", tuple(peers.CAPS)),
        default=[None],
        metavar="ISA,...",
        help=f"at most these instructions: {', '.join(peers.CAPS)} (default: no cap)",
    )
    add("--bias", action="store_true", help="add a bias")
    add("--rounds", type=_count, default=5, metavar="N", help="turns of each library for each layer (default: 5)")
    add("--cold", action="store_true", help="also with caches emptied before each call: weights then come from memory")
    add("--budget", type=_seconds, metavar="SECONDS", help="for all turns of a layer (default: 4; with --quick, 1.5)")

    add = parser.add_argument_group("what is kept").add_argument
    add("--json", type=_writable, metavar="OUT", help="write every figure and what it was measured with")
    add("--report", type=_folder, metavar="DIR", help="write DIR/index.html: tables, roofline and speed ratios")
    return parser


def chosen_entries(options: argparse.Namespace, note: Callable[[str], None]) -> list[Entry]:
    """The layers that the options ask for; ValueError or OSError where there are none."""
    found = [Entry(descriptor.read(text)) for text in options.deconv or ()]
    for path in options.batch or ():
        found += Batch(note).read(Path(path))
    if options.layers:
        found += map(Entry, layers.read(options.layers))
    if not (options.deconv or options.batch or options.layers):
        quick = options.quick and not (options.suite or options.names)
        found = [Entry(layer) for layer in layers.parse(layers.TABLE) if not quick or layer.name in layers.QUICK]
    if options.neighbours:
        found += map(Entry, samples.neighbours([entry.layer for entry in found], options.neighbours, options.seed))
    for what, wanted, attribute in (("family", options.suite, "family"), ("layer", options.names, "name")):
        if wanted is None:
            continue
        known = sorted({getattr(entry.layer, attribute) for entry in found})
        if unknown := [word for word in wanted if word not in known]:
            near = get_close_matches(unknown[0], known)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
            raise ValueError(f"unknown {what} {unknown[0]!r}; {hint}")
        found = [entry for entry in found if getattr(entry.layer, attribute) in wanted]
    if not found:
        raise ValueError("no layer is left to measure")
    return found


def chosen_problems(options: argparse.Namespace, entries: list[Entry]) -> list[Problem]:
    """Every entry in every way asked for, those of one table together; a batch file's own word comes first."""
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
    """convt, then the libraries to compare it with."""
    default = ["onednn"] if options.quick else list(peers.LIBRARIES)
    return [peers.PEERS[0], *peers.named(default if options.peers is None else options.peers)]


def present(chosen: list[peers.Peer], setting: Setting, record: Record) -> list[Worker]:
    """A worker for each library that is installed, its version noted; for the others a note."""
    workers = []
    for peer in chosen:
        if setting.isa and not peer.caps:
            record.note(f"{peer.name} is left out with --isa: it has no such cap")
            continue
        worker = Worker(peer, setting)
        try:
            record.versions[peer.name] = worker.ask("version")
        except (peers.Absent, peers.Failed, Died) as exc:
            worker.close()
            record.note(f"{peer.name} is left out: {exc}")
        else:
            workers.append(worker)
    return workers


def limits_now(workers: list[Worker], setting: Setting, dtypes: Iterable[str]) -> machine.Limits:
    convt = next((worker for worker in workers if worker.peer.name == "convt"), None)
    peaks = {dtype: convt.ask("fma_peak", dtype) for dtype in dtypes} if convt else {}
    return machine.Limits(peaks, machine.copy_bandwidth(setting.threads))


def run(options: argparse.Namespace, problems: list[Problem], budget: float, record: Record) -> None:
    """Measure every problem in every setting; `record` grows as it goes, and so does its file."""
    settings = [Setting(threads, isa) for threads, isa in product(options.threads, options.isa)]
    with live.progress(len(problems) * len(settings)) as progress:
        for setting in settings:
            with ExitStack() as stack:
                workers = present(chosen_peers(options), setting, record)
                for worker in workers:
                    stack.callback(worker.close)
                best = record.limits[setting] = limits_now(workers, setting, DTYPES)
                for problem in problems:
                    results = measure(problem, workers, options.rounds, budget, record.note, options.cold)
                    record.results += results
                    best = record.limits[setting] = best.or_better(limits_now(workers, setting, [problem.dtype]))
                    if options.json:
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
    here = machine.describe()
    budget = options.budget or (1.5 if options.quick else 4.0)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    command = {"command": arguments, "options": vars(options) | {"budget": budget}}
    record = Record({"started": started, "machine": here} | command)
    try:
        problems = chosen_problems(options, chosen_entries(options, record.note))
    except (ValueError, OSError) as exc:
        parse.error(str(exc))

    print(f"{here['cpu']}, {here['cores']} cores, {here['system']}; Python {here['python']}, NumPy {here['numpy']}")
    try:
        run(options, problems, budget, record)
    except KeyboardInterrupt:
        record.note("interrupted: this is what was measured until then")

    if options.json:
        record.save(options.json)
    if options.report:
        from . import page

        written = page.write(record, Path(options.report))
    tables.show(record)
    if options.report:
        print(f"report: {written}")
    if not record.complete:
        return 130
    convt = [result for result in record.results if result.peer == "convt"]
    return int(not convt or any(result.status != "ok" for result in convt))


if __name__ == "__main__":
    sys.exit(main())
