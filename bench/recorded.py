"""Recorded times of algorithms on several CPUs: measure them, and fit the cost model's efficiencies to all of them.

``python -m bench.recorded --measure FAMILY`` measures each algorithm on the layers of the records, and writes
docs/measurements/FAMILY_times.jsonl. FAMILY is the machine file of this CPU. The machine must be idle. It takes a quarter of an
hour, and the same command resumes when interrupted. An algorithm is measured if its expected cost is at most three times the
lowest one. Its time is the least of six turns; the algorithms of a layer take turns.

``python -m bench.recorded --fit FILE`` prints the loss of the automatic choice for each record, before and after a fit, and
writes the fitted efficiencies, which belong in convt/_model/efficiencies.py.

tests/algorithms/test_recorded_times.py bounds the losses.
"""

from __future__ import annotations

import json
import math
import sys
import time
from pathlib import Path

import numpy as np

import convt
from convt._model import constants, costs, machine
from convt._model.efficiencies import EFFICIENCIES
from convt._plan import choose
from convt.algorithms import ALGORITHMS

from . import command, fit
from .calibrate import cycles_by_efficiency
from .shared import files, terminal

FOLDER = Path(__file__).parents[1] / "docs" / "measurements"
ISA = {"zen3": "avx2", "zen4": "avx512_bf16", "granite_rapids": "avx512_amx"}  # record -> its instruction set
LAYERS = "granite_rapids"  # the record whose layers others measure
NEAR = 3.0  # largest ratio of an expected cost to the lowest one
TURNS, SECONDS = 6, 0.03  # turns of each algorithm, and the least length of a turn
ROUNDS = 4  # fits one after the other, because efficiencies change choices within an algorithm, so that its counts change


def record(family: str) -> Path:
    """Return the path of a record."""
    return FOLDER / f"{family}_times.jsonl"


def lines(family: str) -> list[dict]:
    """Return the lines of a record: name, layout, threads, layer, and the milliseconds of each algorithm."""
    return [json.loads(line) for line in record(family).read_text(encoding="utf-8").splitlines()]


def pretended(family: str, values: dict[str, float] | None = None):
    """Return a context in which plans are made for the CPU of a record. With ``values`` as efficiencies, costs keep their
    counts."""
    about = constants.known()[family]
    caches = json.loads((constants.FOLDER / f"{family}.json").read_text(encoding="utf-8"))["caches"]
    profile = None if values is None else costs.profile_of(family, about.constants, about.vector_bits, values).traced
    return machine.pretend(isa=ISA[family], family=family, profile=profile, **caches)


def settings(layer: dict, layout: str) -> dict:
    """Return the keyword arguments of `convt.ConvTranspose` for a layer."""
    return {
        "strides": layer["s"], "pads_begin": layer.get("pb", 0), "pads_end": layer.get("pe", 0),
        "dilations": layer.get("d", 1), "output_padding": layer.get("op", 0), "groups": layer["g"], "data_format": layout,
    }  # fmt: skip


def shapes(layer: dict, layout: str) -> tuple[tuple, tuple]:
    """Return the shapes of data and filter."""
    size, channels = layer["in"], layer["Cin"]
    data = (layer["N"], *size, channels) if layout == "NXC" else (layer["N"], channels, *size)
    return data, (*layer["k"], channels, layer["Cout"] // layer["g"])


def problem_of(line: dict):
    """Return the `Problem` of a line of a record."""
    data, filter = shapes(line["layer"], line["layout"])
    op = convt.ConvTranspose._borrowing(np.broadcast_to(np.float32(1), filter), None, **settings(line["layer"], line["layout"]))
    return op._attributes.problem(data)


# ---------------------------------------------------------------- measuring


def measured(line: dict) -> dict[str, float]:
    """Return {algorithm: milliseconds} of a layer on this machine."""
    rng, chosen = np.random.default_rng(0), settings(line["layer"], line["layout"]) | {"backend": "native"}
    data, filter = (rng.standard_normal(shape, np.float32) for shape in shapes(line["layer"], line["layout"]))
    runs = {}
    for name in choose.permitted(problem_of(line), "auto", NEAR):
        op = convt.ConvTranspose(filter, **chosen, algorithm=name)
        out = op(data)
        runs[name] = lambda op=op, out=out: op(data, out=out)
    best = dict.fromkeys(runs, math.inf)
    for _ in range(TURNS):
        for name, run in runs.items():
            end = time.perf_counter() + SECONDS
            while (start := time.perf_counter()) < end:
                run()
                best[name] = min(best[name], time.perf_counter() - start)
    return {name: float(f"{seconds * 1e3:.4g}") for name, seconds in best.items()}


def measure(family: str) -> None:
    """Measure the layers that the record of this CPU lacks, and append them."""
    path = record(family)
    done = {(each["name"], each["layout"]) for each in lines(family)} if path.exists() else set()
    left = [each for each in lines(LAYERS) if (each["name"], each["layout"]) not in done]
    print(f"{machine.current().name}, {_isa()}: {len(left)} layers")
    with path.open("a", encoding="utf-8") as file, terminal.progress(len(left)) as begin:
        for each in left:
            begin(f"{each['name']} {each['layout']}")
            file.write(json.dumps(each | {"ms": measured(each)}, separators=(",", ":")) + "\n")
            file.flush()


def _isa() -> str:
    return convt.show_config(mode="dicts")["isa"]["in use"]


# ---------------------------------------------------------------- fitting


def traced(problems: dict, values: dict[str, float]) -> dict:
    """Return (family, number) -> algorithm -> (expected `Cycles`, measured cycles of all threads), under efficiencies."""
    found: dict = {}
    for family in dict.fromkeys(family for family, _ in problems):
        clock = constants.known()[family].constants.clock
        with pretended(family, values):
            least = machine.current().limits.single_thread_cycles
            for key, (problem, line) in problems.items():
                if key[0] != family:
                    continue
                guesses = {name: each.cost(problem) for name, each in ALGORITHMS.items() if each.permitted(problem)}
                found[key] = {
                    name: (guesses[name], ms * 1e6 * clock * (1 if guesses[name] < least else line["threads"]))
                    for name, ms in line["ms"].items()
                    if guesses.get(name, math.inf) < math.inf
                }
    return found


def rows(found: dict) -> list[fit.Row]:
    """Return the rows of a fit."""
    result = []
    for (family, number), each in found.items():
        about = constants.known()[family]
        one = costs.units(about.constants, about.vector_bits)
        for cycles, taken in each.values():
            result.append(fit.Row(cycles_by_efficiency(cycles, one), taken, f"{family} {number}"))
    return result


def report(title: str, problems: dict, found: dict) -> list[dict]:
    """Print the loss for each record and layout. Return them as rows for JSON."""
    print(title)
    losses = []
    for family, layout in dict.fromkeys((family, line["layout"]) for (family, _), (_, line) in problems.items()):
        some = {line["name"]: found[key] for key, (_, line) in problems.items() if (key[0], line["layout"]) == (family, layout)}
        loss = fit.loss(some)
        losses.append({"when": title, "record": family, "layout": layout, **loss._asdict()})
        print(f"  {family} {layout}: {loss}", flush=True)
    return losses


def fit_all(families: list[str], out: str) -> list[dict]:
    """Fit the efficiencies to records, and write the best ones found. Return the losses before and after each fit."""
    problems = {(family, n): (problem_of(line), line) for family in families for n, line in enumerate(lines(family))}
    values, found, losses = EFFICIENCIES, {}, []
    with terminal.progress(ROUNDS + 1) as begin:
        for number in range(ROUNDS + 1):
            begin(f"fit {number}" if number else "loss before")
            values = fit.fit(rows(found), values) if number else values
            found = traced(problems, values)
            losses.append((report(f"after fit {number}" if number else "before", problems, found), values))
    _, best = min(losses, key=lambda pair: np.mean([row["mean"] for row in pair[0]]))
    files.write(out, json.dumps(best, indent=1) + "\n")
    return [row for rows_of_step, _ in losses for row in rows_of_step]


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "recorded", __doc__.splitlines()[0], "--measure zen4", "--fit efficiencies.json --families zen3 --json losses.json"
    )
    add = parser.add_argument
    add("--measure", metavar="FAMILY", help="measure the record of this CPU, whose machine file is FAMILY")
    add("--fit", type=files.argument, metavar="FILE", help="fit the efficiencies to the records, and write them to FILE")
    add("--families", type=command.words_of(ISA), default=list(ISA), metavar="FAMILY,...",
        help="records to fit to (default: all)")  # fmt: skip
    command.add_json(parser)
    options = parser.parse_args(arguments)
    with command.printing(options.json) as write_json:
        if options.measure:
            measure(options.measure)
        if options.fit:
            write_json(fit_all(options.families, options.fit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
