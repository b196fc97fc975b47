"""Fit of the cost model's efficiencies to times measured on this machine.

Run ``python -m bench.calibrate --out efficiencies.json``.

1. Problems are sampled (`samples`). All algorithms that may be the fastest on a problem are timed in turns.
2. The efficiencies are fitted to the times, so that the automatic choice loses the least time (`fit`). The constants of the
   machine stay fixed. Every fourth problem is held out from this fit. The loss on the held-out problems is printed for the
   efficiencies before and after the fit.
3. A second fit uses all problems. The output file holds its efficiencies.

Each problem is measured at several visits, minutes apart, and the least time of an algorithm counts, because other processes
can slow a machine down for seconds.

Measurements are kept next to the output file (suffix ``.measured``, one JSON object per line). The same command continues
where an earlier run stopped.
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
from convt import _core
from convt._model import constants, costs
from convt._model import machine as plan_machine
from convt._model.efficiencies import EFFICIENCIES
from convt._run import config
from convt.algorithms import ALGORITHMS

from . import COMMAND, command, fit, layers, machine, samples, timing
from .layers import Layer
from .planning import SESSION_LAYERS
from .problem import DTYPES, LAYOUTS, Problem, in_layout
from .shared import files, terminal

MAX_RATIO = 3.0  # algorithms that take more than this multiple of the least time are not measured
VISITS = 2  # visits per problem
ROUNDS = 3  # turns of each algorithm at a visit
TURN = 0.02  # seconds of a turn
HOLD_OUT = 4  # one problem in 4 is held out


def attributes(layer: Layer, layout: str = "NXC") -> dict:
    """Return the keyword arguments of `convt.ConvTranspose` for a layer."""
    return {
        "data_format": layout,
        "strides": layer.strides, "pads_begin": layer.pads_begin, "pads_end": layer.pads_end, "dilations": layer.dilations,
        "output_padding": layer.output_padding, "groups": layer.groups, "backend": "native",
    }  # fmt: skip


def canonical(layer: Layer, dtype: str, layout: str):
    """Return the `Problem` of convt that the cost model takes."""
    filter = np.broadcast_to(np.zeros((), DTYPES[dtype]), layer.filter_shape)
    parsed = convt._call.api.parse(filter, None, **attributes(layer, layout))[0]
    return parsed.problem(parsed.user_shape(layer.data_shape))


def expected(problem, profile: costs.Profile) -> dict[str, costs.Cycles]:
    """Return {algorithm: traced cycles under ``profile``} for the algorithms that "auto" may take."""
    with plan_machine.pretend(profile=profile.traced):
        found = {name: each.cost(problem) for name, each in ALGORITHMS.items() if each.permitted(problem)}
    return {name: cycles for name, cycles in found.items() if cycles < float("inf")}


def measure(layer: Layer, dtype: str, layout: str, names: list[str], profile: costs.Profile) -> dict[str, float]:
    """Time algorithms in turns, on plans made under ``profile``. Return the least of the medians of the turns, in seconds."""
    problem = Problem(layer, dtype, layout)
    data, filter = in_layout(problem.data(), layout), problem.filter()
    best: dict[str, float] = {}
    with plan_machine.pretend(profile=profile):
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
    """Check whether a problem is held out from the first fit. The answer depends only on its name."""
    return zlib.crc32(name.encode()) % HOLD_OUT == 0


class Measurements:
    """The measurements of all problems, kept in a file with one line per visit."""

    def __init__(self, path: Path, machine: dict):
        self._path, self.entries = path, {}
        header = {"machine": machine}
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if lines and json.loads(lines[0]) != header:
            raise ValueError(f"{path} was measured on another machine or version; remove it to start again")
        if not lines:
            files.write(path, json.dumps(header) + "\n")
        for line in lines[1:]:
            entry = json.loads(line)
            self.entries[entry["name"]] = entry

    def visits(self, name: str) -> int:
        return self.entries.get(name, {}).get("visits", 0)

    def add(self, entry: dict) -> None:
        """Add a visit of a problem and append it to the file. The least times of all visits are kept."""
        before = self.entries.get(entry["name"], {"seconds": {}})["seconds"]
        seconds = entry["seconds"] | {a: min(s, entry["seconds"].get(a, s)) for a, s in before.items()}
        entry = entry | {"visits": self.visits(entry["name"]) + 1, "seconds": seconds}
        self.entries[entry["name"]] = entry
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = command.parser(
        "calibrate", __doc__.splitlines()[0], "--out efficiencies.json", "--out efficiencies.json --layout NCHW --minutes 5"
    )
    add = parser.add_argument
    add("--out", type=lambda text: Path(files.argument(text)), required=True, metavar="FILE", help="output file")
    add("--layers", metavar="FILE",
        help=f"layers to sample around, as for {COMMAND} (default: the built-in layers and layers of ONNX models)")  # fmt: skip
    command.add_dtype(parser, list(DTYPES))  # most problems get the first one
    command.add_layout(parser, list(LAYOUTS))
    add("--minutes", type=command.positive, default=15.0, help="time of the measurements (default: 15)")
    add("--problems", type=int, default=2000, metavar="N", help="largest number of problems (default: 2000)")
    add("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    return parser


def _candidates(layer: Layer, dtype: str, layout: str, entry: dict | None, profile: costs.Profile) -> list[str]:
    """Return the algorithms that may be the fastest, from the times of earlier visits or, without any, from expected cycles."""
    found = entry["seconds"] if entry else expected(canonical(layer, dtype, layout), profile)
    return [each for each, amount in found.items() if amount <= MAX_RATIO * min(found.values())]


def collect(options: argparse.Namespace, known: list[Layer], measurements: Measurements, profile: costs.Profile) -> None:
    """Measure problems sampled around the ``known`` layers, up to the limits of time and number in the options."""
    begin = time.monotonic()
    with terminal.progress(VISITS * options.problems) as step:
        for visit in range(VISITS):
            end = begin + 60 * options.minutes * (visit + 1) / VISITS
            problems = samples.sample(known, options.dtype, options.layout, options.seed)
            for layer, dtype, layout in itertools.islice(problems, options.problems):
                name = f"{layer.name} {layout} {dtype}"
                if time.monotonic() > end:
                    break
                step(name)
                if measurements.visits(name) == visit:
                    names = _candidates(layer, dtype, layout, measurements.entries.get(name), profile)
                    seconds = measure(layer, dtype, layout, names, profile)
                    threads = config.get_num_threads()
                    entry = {"name": name, "layer": layer.to_row(), "dtype": dtype, "layout": layout}
                    measurements.add(entry | {"seconds": seconds, "threads": threads})


def cycles_a_second() -> float:
    """Return the clock of the machine's profile in Hz."""
    return plan_machine.current().constants.clock * 1e9


def rows_of(measurements: Measurements, profile: costs.Profile) -> dict:
    """Return problem -> algorithm -> (expected `Cycles`, measured cycles of all threads together)."""
    found = {}
    for name, entry in measurements.entries.items():
        guesses = expected(canonical(layers.from_row(entry["layer"]), entry["dtype"], entry["layout"]), profile)
        found[name] = {}
        for algorithm, seconds in entry["seconds"].items():
            cycles = guesses[algorithm]
            several = 1 if cycles < plan_machine.current().limits.single_thread_cycles else entry["threads"]
            found[name][algorithm] = cycles, seconds * several * cycles_a_second()
    return found


def cycles_by_efficiency(cycles: costs.Cycles, one: dict[str, float]) -> dict[str, float]:
    """Return {efficiency: cycles that it contributes if its value is one}. ``one`` is the result of `costs.units`."""
    found: dict[str, float] = {}
    for (_, name), count in cycles.counts.items():
        about = costs.NAMES[name]
        found[about.efficiency] = found.get(about.efficiency, 0.0) + count * one[about.constant]
    return found


def fitted(found: dict, measurements: Measurements, used: Callable[[str], bool]) -> tuple[dict[str, float], dict]:
    """Fit the efficiencies to the problems whose names are ``used``. Also return `rows_of` all problems under the result."""
    description = constants.known()[plan_machine.current().profile.name]
    one, values = costs.units(description.constants, description.vector_bits), EFFICIENCIES
    for _ in range(3):  # repeated: efficiencies change choices within an algorithm and which side of an overlap is longer
        rows = [
            fit.Row(cycles_by_efficiency(cycles, one), measured, name)
            for name, each in found.items()
            if used(name)
            for cycles, measured in each.values()
        ]
        values = fit.fit(rows, values)
        profile = costs.profile_of(description.name, description.constants, description.vector_bits, values)
        found = rows_of(measurements, profile)
    return values, found


def planner_loss(found: dict, kind: str = "") -> fit.Loss:
    """Return the loss on held-out problems: on all, or on one layout and dtype if ``kind`` names them ("NXC f32")."""
    return fit.loss({name: each for name, each in found.items() if held_out(name) and name.endswith(kind)})


def error(found: dict) -> dict[str, float]:
    """Return the median relative error of the expected time of each algorithm on held-out problems."""
    errors: dict[str, list[float]] = {}
    for name, each in found.items():
        for algorithm, (cycles, measured) in each.items():
            if held_out(name):
                errors.setdefault(algorithm, []).append(abs(cycles / measured - 1))
    return {algorithm: float(np.median(some)) for algorithm, some in errors.items()}


def report(title: str, found: dict, kinds: list[str]) -> None:
    """Print the loss on held-out problems, in total and for each of several kinds, and the errors of expected times."""
    print(f"{title}: {planner_loss(found)}")
    for kind in kinds if len(kinds) > 1 else ():
        print(f"  {kind}: {planner_loss(found, kind)}")
    print("  median error of the expected time: " + ", ".join(f"{a} {e:.0%}" for a, e in error(found).items()))


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    before = plan_machine.current().profile
    here = {"cpu": machine.cpu_model(), "caches": _core.cache_bytes(), "isa": _core.isa(), "threads": config.get_num_threads(),
            "version": convt.__version__, "profile": before.name}  # fmt: skip
    try:
        known = layers.read(options.layers) if options.layers else [*layers.parse(layers.TABLE), *layers.read(SESSION_LAYERS)]
    except (OSError, ValueError) as exc:
        parser.error(str(exc))
    measurements = Measurements(options.out.with_name(options.out.name + ".measured"), json.loads(json.dumps(here)))
    try:
        collect(options, known, measurements, before)
    except KeyboardInterrupt:
        print("interrupted: fitting the measurements made so far", file=sys.stderr)
    found = rows_of(measurements, before)
    kinds = [f"{layout} {dtype}" for dtype in options.dtype for layout in options.layout]
    report("before", found, kinds)
    report("after", fitted(found, measurements, lambda name: not held_out(name))[1], kinds)
    values, found = fitted(found, measurements, lambda name: True)
    report("after a fit to all problems", found, kinds)
    about = {**here, "problems": len(measurements.entries)}
    files.write(options.out, json.dumps({"about": about, "efficiencies": values}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
