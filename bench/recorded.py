"""Recorded times of algorithms on several CPUs: measure them, and fit the cost model's efficiencies to them.

``python -m bench.recorded --measure FAMILY`` measures each algorithm on the layers of the records, and writes
docs/measurements/FAMILY_times.jsonl. FAMILY is the machine file of this CPU. The machine must be idle. A dtype takes a quarter
of an hour, and the same command resumes when interrupted. An algorithm is measured if its expected cost is at most three times
the lowest one. Its time is the least of four turns; the algorithms of a layer take turns. A turn on slowed cores is repeated.

``python -m bench.recorded --fit FILE`` prints the loss of the automatic choice for each record, before and after a fit, and
writes the fitted efficiencies, which belong in convt/_model/efficiencies.py. A first fit leaves every fourth layer out, to show
the loss on layers that a fit has not seen.

tests/algorithms/test_recorded_times.py bounds the losses.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

import convt
from convt import _core
from convt._model import constants, costs, machine
from convt._model.efficiencies import EFFICIENCIES
from convt._run import config
from convt.algorithms import ALGORITHMS, allowed, candidates

from . import command, fit, layers, timing
from . import machine as bench_machine
from .peers.convt import canonical, keywords
from .problem import Problem, in_layout
from .shared import files, terminal

FOLDER = Path(__file__).parents[1] / "docs" / "measurements"
# record -> its instruction set
ISA = {"zen3": "avx2", "zen4": "avx512_bf16", "zen5": "avx512_bf16"}
ISA |= {"granite_rapids": "avx512_amx", "sapphire_rapids_amx": "avx512_amx"}
LAYERS = "sapphire_rapids_amx"  # the record whose layers others measure
NEAR = 3.0  # largest ratio of an expected cost to the lowest one
TURNS, SECONDS = 4, 0.03  # turns of each algorithm, and the least length of a turn
ROUNDS = 4  # fits one after the other, because efficiencies change choices within an algorithm, so that its counts change
HOLD_OUT = 4  # one layer in 4 is held out


def record(family: str) -> Path:
    """Return the path of a record."""
    return FOLDER / f"{family}_times.jsonl"


def lines(family: str) -> list[dict]:
    """Return the lines of a record: name, layout, dtype (default: f32), threads, layer, milliseconds of each algorithm."""
    return [json.loads(line) for line in record(family).read_text(encoding="utf-8").splitlines()]


def pretended(family: str, values: dict[str, float] | None = None):
    """Return a context in which plans are made for the CPU of a record. With ``values`` as efficiencies, costs keep their
    counts."""
    about = constants.known()[family]
    caches = json.loads((constants.FOLDER / f"{family}.json").read_text(encoding="utf-8"))["caches"]
    profile = None if values is None else costs.profile_of(family, about.constants, about.vector_bits, values).traced
    return machine.pretend(isa=ISA[family], family=family, profile=profile, **caches)


def layer_of(line: dict) -> Problem:
    """Return the layer of a line of a record, with its dtype and layout."""
    return Problem(layers.from_row(line["layer"]), line.get("dtype", "f32"), line["layout"])


def problem_of(line: dict):
    """Return convt's problem of a line of a record."""
    return canonical(layer_of(line))


# ---------------------------------------------------------------- measuring


def measured(line: dict) -> dict[str, float]:
    """Return {algorithm: milliseconds} of a layer on this machine."""
    problem, runs = layer_of(line), {}
    data, filter = in_layout(problem.data(), problem.layout), problem.filter()
    for name in candidates(canonical(problem), within=NEAR):
        op = convt.ConvTranspose(filter, **keywords(problem), backend="native", algorithm=name)
        out = op(data)
        runs[name] = lambda op=op, out=out: op(data, out=out)
    speeds = partial(bench_machine.speeds, config.get_num_threads())
    best = timing.in_turns(list(runs.values()), TURNS * SECONDS, TURNS, min, speeds=speeds)
    return {name: float(f"{seconds * 1e3:.4g}") for name, seconds in zip(runs, best, strict=True)}


def measure(family: str, dtypes: list[str]) -> None:
    """Measure the layers that the record of this CPU lacks, and append them."""
    path, key = record(family), lambda line: (line["name"], line["layout"], line.get("dtype", "f32"))
    done = set(map(key, lines(family))) if path.exists() else set()
    known = [
        {name: value for name, value in line.items() if name != "dtype"} for line in lines(LAYERS) if key(line)[2] == "f32"
    ]
    wanted = [line | ({"dtype": dtype} if dtype != "f32" else {}) for dtype in dtypes for line in known]
    left = [line for line in wanted if key(line) not in done]
    print(f"{machine.current().name}, {_isa()}: {len(left)} layers")
    with path.open("a", encoding="utf-8") as file, terminal.progress(len(left)) as begin:
        for each in left:
            begin(" ".join(key(each)))
            found = {"threads": config.get_num_threads(), "ms": measured(each)}
            file.write(json.dumps(each | found, separators=(",", ":")) + "\n")
            file.flush()


def _isa() -> str:
    return convt.show_config(mode="dicts")["isa"]["in use"]


# ---------------------------------------------------------------- fitting


def cycles_by_efficiency(cycles: costs.Cycles, one: dict[str, float]) -> dict[str, float]:
    """Return {efficiency: cycles that it contributes if its value is one}. ``one`` is the result of `costs.units`."""
    found: dict[str, float] = {}
    for (_, name), count in cycles.counts.items():
        about = costs.NAMES[name]
        found[about.efficiency] = found.get(about.efficiency, 0.0) + count * one[about.constant]
    return found


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
                guesses = {name: ALGORITHMS[name].cost(problem) for name in allowed(problem)}
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
    """Print the loss for each record, layout and dtype. Return them as rows for JSON."""
    print(title)
    losses, groups = [], {}
    for key, (_, line) in problems.items():
        group = key[0], line["layout"], line.get("dtype", "f32")
        groups.setdefault(group, {})[line["name"]] = found[key]
    for group, some in groups.items():
        loss = fit.loss(some)
        losses.append({"when": title, **dict(zip(("record", "layout", "dtype"), group, strict=True)), **loss._asdict()})
        print(f"  {' '.join(group)}: {loss}", flush=True)
    return losses


def fits(problems: dict) -> Iterator[tuple[dict[str, float], dict]]:
    """Yield (efficiencies, `traced`) of no fit and of each of ROUNDS fits."""
    values, found = EFFICIENCIES, traced(problems, EFFICIENCIES)
    with terminal.progress(ROUNDS) as begin:
        yield values, found
        for number in range(ROUNDS):
            begin(f"fit {number + 1}")
            values = fit.fit(rows(found), values)
            found = traced(problems, values)
            yield values, found


def fit_all(families: list[str], out: str) -> list[dict]:
    """Fit the efficiencies to records, and write the best ones found. Return the losses before and after each fit."""
    problems = {(family, n): (problem_of(line), line) for family in families for n, line in enumerate(lines(family))}
    held_out = {key: each for key, each in problems.items() if zlib.crc32(each[1]["name"].encode()) % HOLD_OUT == 0}
    *_, (seen, _) = fits({key: each for key, each in problems.items() if key not in held_out})
    losses = report("held out, before", held_out, traced(held_out, EFFICIENCIES))
    losses += report("held out, after fits to the others", held_out, traced(held_out, seen))
    found = [
        (report(f"after fit {number}" if number else "before", problems, costs), values)
        for number, (values, costs) in enumerate(fits(problems))
    ]
    _, best = min(found, key=lambda pair: np.mean([row["mean"] for row in pair[0]]))
    files.write(out, json.dumps(best, indent=1) + "\n")
    return [*losses, *(row for rows, _ in found for row in rows)]


def main(arguments: list[str] | None = None) -> int:
    parser = command.parser(
        "recorded", __doc__.splitlines()[0], "--measure zen4", "--fit efficiencies.json --families zen3 --json losses.json"
    )
    add = parser.add_argument
    add("--measure", metavar="FAMILY", help="measure the record of this CPU, whose machine file is FAMILY")
    command.add_dtype(parser, ["f32"])
    add("--fit", type=files.argument, metavar="FILE", help="fit the efficiencies to the records, and write them to FILE")
    add("--families", type=command.words_of(ISA), default=list(ISA), metavar="FAMILY,...",
        help="records to fit to (default: all)")  # fmt: skip
    command.add_json(parser)
    options = parser.parse_args(arguments)
    built = {row["name"] for row in _core.isa_rows()}
    lacking = [family for family in options.families if ISA[family] not in built]
    if options.fit and lacking:  # plans for another instruction set would say nothing about these records
        parser.error(f"--fit: this build lacks the instruction sets of {', '.join(lacking)}; leave these out of --families")
    with command.printing(options.json) as write_json:
        if options.measure:
            measure(options.measure, options.dtype)
        if options.fit:
            write_json(fit_all(options.families, options.fit))
    return 0


if __name__ == "__main__":
    sys.exit(main())
