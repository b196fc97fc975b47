"""The command line of convt.

LAYER is JSON, a file with JSON, or an ONNX file. JSON is one layer, a list of layers, or {"layers": list}. A layer is an
object with the keys Cin and Cout (channels), in (spatial sizes) and k (kernel), and the optional keys N (batch), g (groups),
s (strides), d (dilations), pb and pe (pads), op (output_padding), name, family and source (text). An ONNX file stands for
all ConvTranspose nodes of its main graph. --json prints JSON, or writes it to a file.

    python -m convt plan '{"Cin": 64, "Cout": 32, "in": [16, 16], "k": 4, "s": 2}'
    python -m convt plan '{"Cin": 64, "Cout": 32, "in": [16, 16], "k": 4, "s": 2}' --time --json -

The exit code is 0 if everything was done, 1 after an error, 2 if the arguments are wrong, and 130 after Ctrl-C. Each error is
a line on standard error. The other layers are still processed.
"""

import argparse
import contextlib
import functools
import os
import sys
import warnings

from . import tuning
from ._base import arguments, files, layer_format, terminal, words
from ._base.problem import PRECISIONS
from ._call.show import show_config
from ._cli import layers
from ._model import calibrate as _calibration
from ._model import limits, machine
from ._plan import explain, measure
from ._run.config import get_num_threads, num_threads
from ._version import __version__
from .algorithms import ALGORITHMS, NAMES

_FILES = {"tune": "convt-tuning.json", "calibrate": "convt-machine.json"}  # command -> the default of --out
_BENCH = "convt-bench --quick"
_PROGRAM = "python -m convt"
_EXAMPLE = '{"Cin": 64, "Cout": 32, "in": [16, 16], "k": 4, "s": 2, "pb": 1, "pe": 1}'


def _read(options, text, errors):
    """Return the layers of an argument, with the precision, dtype and layout of the options where these are given."""
    changes = {name: value for name in ("dtype", "layout") if (value := getattr(options, name))}
    found = []
    with errors.reporting():
        found = layers.read(text, options.shape, lambda name: errors.reporting(layer_format.message_name(name)))
    return [each._replace(attributes={**each.attributes, "precision": options.precision}, **changes) for each in found]


def described(layer, algorithm, timed):
    """Return what ``plan`` prints about a layer, as a dict for JSON."""
    op, shape = layer.operator(backend="native", algorithm=algorithm)
    plan = op.plan(shape)
    costs = {name: cost for name, cost in explain.alternatives(plan.problem).items() if cost is not None}
    costs.setdefault(plan.key, sum(plan.cycles.values()))  # an algorithm that "auto" does not permit
    found = {
        "name": layer.name, "data": shape, "output": op.output_shape(shape), "dtype": layer.dtype, "layout": layer.layout,
        "algorithm": plan.algorithm, "unit": plan.unit, "isa": plan.isa, "threads": plan.threads, "tasks": plan.tasks,
        "packed_bytes": plan.packed_bytes, "cycles": costs, "expected_milliseconds": _expected(costs), "parts": plan.cycles,
        "explained": plan.explain(),
    }  # fmt: skip
    return found | _timed(layer, op, shape, plan, costs) if timed else found


def _timed(layer, op, shape, plan, costs):
    """Measure the algorithms with at most four times the lowest expected cost, and the hardware limit. Return a dict."""
    data, runs, near = layer.numbers(shape), {}, 4 * min(costs.values())
    for name in [name for name, cost in costs.items() if cost <= near or name == plan.key]:
        each = op if name == plan.key else layer.operator(backend="native", algorithm=name)[0]
        runs[name] = functools.partial(each, data, out=each(data))
    found = {"undecided": None}
    try:
        seconds = measure.measure(runs)
    except measure.Undecided as undecided:
        seconds, found["undecided"] = undecided.seconds, str(undecided)
    limit = limits.MachineLimits(get_num_threads()).of(plan.problem)
    found["milliseconds"] = {name: each * 1e3 for name, each in seconds.items()}
    found["limit"] = {"milliseconds": limit.seconds * 1e3, "gflops": limit.gflops, "copy_gbs": limit.copy_gbs}
    found["of_limit"] = {name: limit.seconds / each for name, each in seconds.items()}
    return found


def _expected(costs):
    """Return the expected milliseconds of each algorithm from cycles, threads, and the clock of the machine file."""
    here = machine.current()
    clock, few = here.constants.clock * 1e6, here.limits.single_thread_cycles  # cycles per millisecond
    return {name: cost / clock / (1 if cost < few else get_num_threads()) for name, cost in costs.items()}


def _print_plan(found):
    print(f"{terminal.printable(found['name'])}: {found['data']} -> {found['output']}")
    terminal.say(*found["explained"].splitlines(), indent="    ")
    cycles, measured = found["cycles"], found.get("milliseconds")
    least, names = min(cycles.values()), sorted(cycles, key=cycles.get)
    columns = {
        "algorithm": names, "cycles": [f"{cycles[name]:.3g}" for name in names],
        "relative": [f"{cycles[name] / least:.2f}" for name in names],
        "expected ms": [f"{found['expected_milliseconds'][name]:.3g}" for name in names],
    }  # fmt: skip
    if measured:
        columns["measured ms"] = [f"{measured[name]:.3g}" if name in measured else "" for name in names]
        columns["of limit"] = [f"{found['of_limit'][name]:.0%}" if name in measured else "" for name in names]
    columns["bar".ljust(_BAR)] = _bars([(measured or cycles).get(name) for name in names])
    important = "algorithm", "relative", "measured ms", "expected ms", "of limit"
    terminal.draw("", list(columns), list(map(list, zip(*columns.values(), strict=True))), important)
    if measured:
        limit = found["limit"]
        terminal.say(
            f"hardware limit: {limit['milliseconds']:.3g} ms, from a peak of {limit['gflops']:.0f} GFLOP/s and a copy at "
            f"{limit['copy_gbs']:.1f} GB/s; arrays in the caches, AMX and Winograd can exceed it"
        )
        if found["undecided"]:
            terminal.say(f"the measured times are unreliable, because {found['undecided']}")


_BAR = 20  # characters of the longest bar


def _bars(values):
    """Return a bar for each time, five characters for the shortest. A bar that would be too long ends in ">"; None has none."""
    least = min(value for value in values if value is not None)
    lengths = [0 if value is None else min(round(5 * value / least), _BAR + 1) for value in values]
    return [("#" * length if length <= _BAR else "#" * (_BAR - 1) + ">").ljust(_BAR) for length in lengths]


def _plan(options, errors):
    found, chosen = [], _read(options, options.layer, errors)
    with terminal.progress(len(chosen) if options.time else 0) as begin:
        for layer in chosen:
            begin(f"timing {terminal.printable(layer.name)}")
            done = len(found)
            with errors.reporting(layer_format.message_name(layer.name)):
                found.append(described(layer, options.algorithm, options.time))
            if len(found) > done:
                _print_plan(found[-1])
    return found


def _tune(options, errors):
    chosen = [layer for text in options.layers for layer in _read(options, text, errors)]
    replaced = files.is_replaced(options.out)  # otherwise it is written once, at the end
    count = sum(tuning.read(options.out, "--out")) if replaced and os.path.exists(options.out) else 0
    found, kept, failed = [], 0, None

    def save():
        nonlocal count, kept, failed
        try:
            count, kept, failed = tuning.save(options.out), len(found), None
        except OSError as error:
            failed = error

    best_effort = measure.best_effort() if options.best_effort else contextlib.nullcontext([])
    with best_effort as doubts, terminal.progress(len(chosen)) as begin:
        for layer in chosen:
            begin(f"tuning {terminal.printable(layer.name)}")
            with errors.reporting(layer_format.message_name(layer.name)):
                found.append(_tuned(layer, doubts))
                if replaced:  # after each layer, so that Ctrl-C does not lose results
                    save()
    if found and not replaced:
        save()
    if failed is not None:
        lost = f"the last {words.count(len(found) - kept, 'layer')} were not kept" if kept else "nothing was kept"
        errors.print_error(f"{arguments.text_of(failed)}; {lost}")
    if found:
        _print_tuned(found)
    if kept:
        print(f"{words.count(count, 'entry', 'entries')} in {options.out}; set CONVT_TUNING={options.out} to use them")
    return {"file": options.out, "entries": count, "layers": found}


def _tuned(layer, doubts):
    """Measure a layer, and return what ``tune`` prints about it. ``doubts`` gets reasons why a measurement does not decide."""
    op, shape = layer.operator(backend="tune")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # an undecided measurement; the note has the same text
        op(layer.numbers(shape))
    plan = op.plan(shape)
    times = tuning.find(plan.problem, "auto", get_num_threads())
    if times is None:
        raise ValueError(plan.note)
    if doubts:
        print(f"{layer_format.message_name(layer.name)}: kept, but not sure, because {doubts.pop()}", file=sys.stderr)
        doubts.clear()
    best = min(times, key=times.get)
    return {"name": layer.name, "data": shape, "algorithm": best, "note": plan.note, "milliseconds": times}


def _print_tuned(found):
    rows = []
    for each in found:
        times = sorted(each["milliseconds"].items(), key=lambda item: item[1])
        ratio = f"{times[1][1] / times[0][1]:.2f}" if len(times) > 1 else "-"
        text = ", ".join(f"{name} {time:.3g}" for name, time in times)
        rows.append([terminal.printable(each["name"]), each["algorithm"], ratio, text])
    heads = ["layer", "fastest", "next / fastest", "milliseconds"]
    terminal.draw("", heads, rows, heads, left=(heads[0], heads[3]), wrapped={"layer": 16, "milliseconds": 12})


def _calibrate(options, errors):
    try:
        with terminal.progress(_calibration.WHOLE) as begin:
            found = _calibration.described(get_num_threads(), options.best_effort, begin)
    except RuntimeError as disturbed:
        errors.print_error(str(disturbed))
        return {}
    _calibration.write(options.out, found)
    planned = machine.current()
    rows = [[name, f"{value:.4g}", f"{getattr(planned.constants, name):.4g}"] for name, value in found["constants"].items()]
    heads = ["constant", "measured", planned.name]
    terminal.draw("", heads, rows, heads)
    if found["spread"] > _calibration.STEADY - 1:
        print(f"not sure: other processes disturbed the measurement, and its clock varied by {found['spread']:.0%}")
    print(f"wrote {options.out}; set CONVT_COSTS={options.out} to use it")
    return found


def _bench(options, _):
    print(f"{_BENCH} (to compare with oneDNN: pip install onednn-cpu-gomp); convt-bench --help lists the options")
    return {"command": _BENCH}


def _info(options, _):
    show_config()
    return show_config(mode="dicts")


_LAYER = "JSON, a file with JSON, or an ONNX file"
# Argument of commands -> its keywords for argparse
_ARGUMENTS = {
    "layer": {"help": f"{_LAYER}; see python -m convt --help"},
    "layers": {"nargs": "+", "metavar": "layer", "help": _LAYER},
    "--algorithm": {
        "default": "auto", "choices": ("auto", *NAMES, *ALGORITHMS), "metavar": "NAME",
        "help": f"algorithm: auto (default), {', '.join(NAMES)}, or one of them on one unit, as direct:vectors",
    },
    "--time": {"action": "store_true", "help": "also measure the layer and the hardware limit"},
    "--out": {"type": files.argument, "help": "file to write (default: %(default)s)"},
    "--best-effort": {
        "action": "store_true", "help": "also keep what was measured beside other programs, and say how sure it is",
    },
    "--layout": {"type": arguments.layout, "help": f"{arguments.LAYOUT} (default: NXC; NCX for ONNX)"},
    "--dtype": {"type": arguments.dtype, "help": f"{arguments.DTYPE} (default: float32; for ONNX, its own)"},
    "--precision": {"choices": PRECISIONS, "help": "lowest accuracy of float32 (default: CONVT_PRECISION)"},
    "--threads": {"type": arguments.integer, "metavar": "N", "help": "threads (default: as in any program)"},
}  # fmt: skip
_OF_LAYERS = "--layout", "--dtype", "--precision", "--threads"
# Command -> its function, its meaning, its arguments, and two examples, which tests/cli run
_COMMANDS = {
    "info": (_info, "print the configuration (default)", (), ("", "--json info.json")),
    "plan": (
        _plan, "print the algorithm of a layer, the reason, and the cost of the others",
        ("layer", "--algorithm", "--time", *_OF_LAYERS),
        (f"'{_EXAMPLE}' --time", f"'{_EXAMPLE}' --layout NCHW --dtype bf16 --json -"),
    ),
    "tune": (
        _tune, "measure layers and add them to a tuning file for CONVT_TUNING",
        ("layers", "--out", "--best-effort", *_OF_LAYERS),
        (f"'{_EXAMPLE}'", f"'{_EXAMPLE}' --out tuning.json --threads 1 --json -"),
    ),
    "calibrate": (
        _calibrate, "measure this machine, if idle, and write a machine file for CONVT_COSTS",
        ("--out", "--best-effort", "--threads"), ("--out machine.json", "--best-effort --threads 1 --json -"),
    ),
    "bench": (_bench, "print the command of the benchmark", (), ("", "--json")),
}  # fmt: skip


def _parser():
    parser = arguments.parser(_PROGRAM, __doc__)
    parser.set_defaults(run=_info, threads=None)
    parser.add_argument("--version", action="version", version=f"convt {__version__}")
    arguments.add_json(parser)
    commands = parser.add_subparsers(metavar="info, plan, tune, calibrate or bench")
    for name, (run, meaning, wanted, examples) in _COMMANDS.items():
        make = functools.partial(commands.add_parser, name, help=meaning)
        command = arguments.parser(f"{_PROGRAM} {name}", f"{meaning[0].upper()}{meaning[1:]}.", *examples, make=make)
        for each in wanted:
            command.add_argument(each, **_ARGUMENTS[each])
        if "--layout" in wanted:
            arguments.add_shape(command, 1, "shape of an ONNX model's input (default: the model's; 1 for an unknown batch)")
        arguments.add_json(command, default=argparse.SUPPRESS)
        command.set_defaults(run=run, out=_FILES.get(name))
    return parser


def main(words_given=None):
    """Run the command line. Raise SystemExit with a code other than 0 after an error."""
    options = _parser().parse_args(words_given)

    def work(errors):
        with num_threads(options.threads) if options.threads else contextlib.nullcontext():
            return options.run(options, errors)

    arguments.run(_PROGRAM, options.json, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
