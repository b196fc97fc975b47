"""Fits the efficiencies of the cost model to this machine: ``python -m bench.calibrate --out efficiencies.json``.

Problems are sampled (`samples`), every algorithm that may be the best is timed on each, in turns, and the efficiencies, which
are the same on all machines, are fitted to the times so that the planner loses least (`fit`), with the constants of the
machine's file as they are. Every fourth problem is held out from a first fit: on those the planner's loss is printed, before
and after. The file is of a second fit, to all problems.

Machines have slow seconds: each problem is measured at several visits, minutes apart, and an algorithm's least time counts.

What was measured is kept beside the file (``.measured``, a line of JSON each): the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

import convt
from convt import _config, _core
from convt.algorithms import ALGORITHMS, constants, costs
from convt.algorithms import machine as planned
from convt.algorithms.efficiencies import EFFICIENCIES

from . import COMMAND, fit, layers, machine, samples, timing
from .__main__ import _one_of, _seconds
from .layers import Layer
from .planning import SESSION_LAYERS
from .problem import DTYPES, LAYOUTS, Problem, in_layout
from .tables import rich_if_terminal

HOPELESS = 3.0  # an algorithm that takes so many times the least is not measured
VISITS = 2
ROUNDS = 3  # of a visit
TURN = 0.02  # seconds of calls in a row
HOLD_OUT = 4  # one problem in so many


def attributes(layer: Layer, layout: str = "NXC") -> dict:
    return {
        "data_format": layout,
        "strides": layer.strides, "pads_begin": layer.pads_begin, "pads_end": layer.pads_end, "dilations": layer.dilations,
        "output_padding": layer.output_padding, "groups": layer.groups, "backend": "native",
    }  # fmt: skip


def canonical(layer: Layer, dtype: str, layout: str):
    """The problem as the planner sees it."""
    filter = np.broadcast_to(np.zeros((), DTYPES[dtype]), layer.filter_shape)
    parsed = convt._api.parse(filter, None, **attributes(layer, layout))[0]
    return parsed.problem(parsed.user_shape(layer.data_shape))


def expected(problem, profile: costs.Profile) -> dict[str, costs.Cycles]:
    """Each automatic algorithm that does the problem -> its traced cycles under a profile."""
    with planned.pretend(profile=profile.traced):
        found = {name: each.cost(problem) for name, each in ALGORITHMS.items() if each.permitted(problem)}
    return {name: cycles for name, cycles in found.items() if cycles < float("inf")}


def measure(layer: Layer, dtype: str, layout: str, names: list[str], profile: costs.Profile) -> dict[str, float]:
    """Seconds of each algorithm on the plans that a profile makes, taking turns: the least of the turns' medians."""
    problem = Problem(layer, dtype, layout)
    data, filter = in_layout(problem.data(), layout), problem.filter()
    best: dict[str, float] = {}
    with planned.pretend(profile=profile):
        operators = {name: convt.ConvTranspose(filter, algorithm=name, **attributes(layer, layout)) for name in names}
        out = in_layout(np.zeros(layer.result_shape, data.dtype), layout)
        for operator in operators.values():
            operator(data, out=out)
        for _ in range(ROUNDS):
            for name, operator in operators.items():
                durations, _ = timing.sample(lambda operator=operator: operator(data, out=out), TURN)
                best[name] = min(best.get(name, np.inf), float(np.median(durations)))
    return best


def held_out(name: str) -> bool:
    return zlib.crc32(name.encode()) % HOLD_OUT == 0


class Measurements:
    """What was measured, by problem: kept in a file, a line each."""

    def __init__(self, path: Path, machine: dict):
        self._path, self.found = path, {}
        header = {"machine": machine}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) != header:
            raise ValueError(f"{path} was measured on another machine or version; remove it to begin anew")
        if not lines:
            path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        for line in lines[1:]:
            entry = json.loads(line)
            self.found[entry["name"]] = entry

    def visits(self, name: str) -> int:
        return self.found.get(name, {}).get("visits", 0)

    def add(self, entry: dict) -> None:
        """Add a visit to a problem."""
        before = self.found.get(entry["name"], {"seconds": {}})["seconds"]
        seconds = entry["seconds"] | {a: min(s, entry["seconds"].get(a, s)) for a, s in before.items()}
        entry = entry | {"visits": self.visits(entry["name"]) + 1, "seconds": seconds}
        self.found[entry["name"]] = entry
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.calibrate", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    add("--layers", metavar="FILE",
        help=f"layers to sample around, as of {COMMAND} (default: the table's and those of ONNX models)")  # fmt: skip
    add("--dtype", type=_one_of("dtype", tuple(DTYPES)), default=list(DTYPES), metavar="DTYPE,...",
        help=f"of {', '.join(DTYPES)} (default: all; the first one is most of the problems)")  # fmt: skip
    add(
        "--layout",
        type=_one_of("layout", LAYOUTS),
        default=list(LAYOUTS),
        metavar="LAYOUT,...",
        help=f"of {', '.join(LAYOUTS)} (default: both)",
    )
    add("--minutes", type=lambda text: _seconds(text), default=15.0, help="how long to measure (default: 15)")
    add("--problems", type=int, default=2000, metavar="N", help="the most problems to measure (default: 2000)")
    add("--seed", type=int, default=0, help="of the sample (default: 0)")
    return parser


def progress_bar(total: int):
    """``(advance, close)`` of a progress bar on a terminal, else of a line now and then."""
    rich = rich_if_terminal()
    if rich is None:
        done = [0]

        def advance(text: str) -> None:
            done[0] += 1
            if done[0] % 50 == 0:
                print(f"[{done[0]}/{total}] {text}", file=sys.stderr, flush=True)

        return advance, lambda: None
    bar = rich.progress.Progress(*rich.progress.Progress.get_default_columns(), rich.progress.TimeElapsedColumn())
    task = bar.add_task("measuring", total=total)
    bar.start()
    return lambda text: bar.update(task, advance=1, description=text[:30].ljust(30)), bar.stop


def _promising(layer: Layer, dtype: str, layout: str, entry: dict | None, profile: costs.Profile) -> list[str]:
    """The algorithms that may be the best one, by what was measured at an earlier visit or by what a profile expects."""
    found = entry["seconds"] if entry else expected(canonical(layer, dtype, layout), profile)
    return [each for each, amount in found.items() if amount <= HOPELESS * min(found.values())]


def collect(options: argparse.Namespace, known: list[Layer], kept: Measurements, profile: costs.Profile) -> None:
    """Measure problems like the layers known until the time or their number is used up."""
    begin = time.monotonic()
    advance, close = progress_bar(VISITS * options.problems)
    try:
        for visit in range(VISITS):
            end = begin + 60 * options.minutes * (visit + 1) / VISITS
            problems = samples.sample(known, options.dtype, options.layout, options.seed)
            for layer, dtype, layout in itertools.islice(problems, options.problems):
                name = f"{layer.name} {layout} {dtype}"
                if time.monotonic() > end:
                    break
                advance(name)
                if kept.visits(name) == visit:
                    names = _promising(layer, dtype, layout, kept.found.get(name), profile)
                    seconds = measure(layer, dtype, layout, names, profile)
                    kept.add({"name": name, "layer": layer.to_row(), "dtype": dtype, "layout": layout, "seconds": seconds,
                              "threads": _config.get_num_threads()})  # fmt: skip
    finally:
        close()


def cycles_a_second() -> float:
    return planned.current().constants.clock * 1e9


def rows_of(kept: Measurements, profile: costs.Profile) -> dict:
    """problem -> algorithm -> (Cycles expected, cycles measured of all threads together)."""
    found = {}
    for name, entry in kept.found.items():
        guesses = expected(canonical(layers.from_row(entry["layer"]), entry["dtype"], entry["layout"]), profile)
        found[name] = {}
        for algorithm, seconds in entry["seconds"].items():
            cycles = guesses[algorithm]
            several = 1 if cycles < planned.current().limits.single_thread_cycles else entry["threads"]
            found[name][algorithm] = cycles, seconds * several * cycles_a_second()
    return found


def of_efficiencies(cycles: costs.Cycles, one: dict[str, float]) -> dict[str, float]:
    """What an efficiency of one would take of each, in cycles; ``one`` is `costs.units`."""
    found: dict[str, float] = {}
    for (_, name), count in cycles.counts.items():
        about = costs.NAMES[name]
        found[about.efficiency] = found.get(about.efficiency, 0.0) + count * one[about.constant]
    return found


def fitted(found: dict, kept: Measurements, used: Callable[[str], bool]) -> tuple[dict[str, float], dict]:
    """The efficiencies that fit the problems whose names are ``used``; all problems as expected by them."""
    description = constants.known()[planned.current().profile.name]
    one, values = costs.units(description.constants, description.vector_bits), EFFICIENCIES
    for _ in range(3):  # other values make other choices within an algorithm, and other sides of the overlap longer
        rows = [
            fit.Row(of_efficiencies(cycles, one), measured, name)
            for name, each in found.items()
            if used(name)
            for cycles, measured in each.values()
        ]
        values = fit.fit(rows, values)
        found = rows_of(kept, costs.profile_of(description.name, description.constants, description.vector_bits, values))
    return values, found


def planner_loss(found: dict, kind: str = "") -> fit.Loss:
    """The loss on problems held out from the fit, those of a kind ("NXC f32") or all."""
    return fit.loss({name: each for name, each in found.items() if held_out(name) and name.endswith(kind)})


def error(found: dict) -> dict[str, float]:
    """The median relative error of each algorithm's expected time, on problems held out."""
    errors: dict[str, list[float]] = {}
    for name, each in found.items():
        for algorithm, (cycles, measured) in each.items():
            if held_out(name):
                errors.setdefault(algorithm, []).append(abs(cycles / measured - 1))
    return {algorithm: float(np.median(some)) for algorithm, some in errors.items()}


def report(title: str, found: dict, kinds: list[str]) -> None:
    print(f"{title}: {planner_loss(found)}")
    for kind in kinds if len(kinds) > 1 else ():
        print(f"  {kind}: {planner_loss(found, kind)}")
    print("  median error of the expected time: " + ", ".join(f"{a} {e:.0%}" for a, e in error(found).items()))


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    before = planned.current().profile
    here = {"cpu": machine.cpu_model(), "caches": _core.cache_bytes(), "isa": _core.isa(), "threads": _config.get_num_threads(),
            "version": convt.__version__, "profile": before.name}  # fmt: skip
    try:
        known = layers.read(options.layers) if options.layers else [*layers.parse(layers.TABLE), *layers.read(SESSION_LAYERS)]
    except (OSError, ValueError) as exc:
        parser.error(str(exc))
    kept = Measurements(options.out.with_name(options.out.name + ".measured"), json.loads(json.dumps(here)))
    try:
        collect(options, known, kept, before)
    except KeyboardInterrupt:
        print("interrupted: fitting what was measured until then", file=sys.stderr)
    found = rows_of(kept, before)
    kinds = [f"{layout} {dtype}" for dtype in options.dtype for layout in options.layout]
    report("before", found, kinds)
    report("after", fitted(found, kept, lambda name: not held_out(name))[1], kinds)
    values, found = fitted(found, kept, lambda name: True)
    report("after, and none held out", found, kinds)
    about = {**here, "problems": len(kept.found)}
    options.out.write_text(json.dumps({"about": about, "efficiencies": values}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
