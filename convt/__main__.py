"""The command line: what convt finds on a machine, what it would do with a layer, and tuning.

    python -m convt                     what was found on this machine
    python -m convt plan LAYER          algorithm, why, and what the others would cost; --time measures them
    python -m convt tune LAYER...       measures, and writes a file for CONVT_TUNING
    python -m convt calibrate           measures this machine, and writes a file for CONVT_COSTS
    python -m convt bench               where the benchmark is

A layer is JSON, or a file of JSON (one layer, or a list, or {"layers": list}): Cin and Cout, in (spatial sizes), k (kernel);
and, where they differ from the defaults, N (batch), g (groups), s (strides), d (dilations), pb and pe (pads), op
(output_padding); name, family and source are text. Or it is an ONNX file, whose ConvTranspose nodes are meant. --json prints
everything as JSON.

The exit code is 0 if all that was asked for was done, 1 if not, 2 if the arguments are wrong, and 130 after Ctrl-C. Each thing
that could not be done is a line on standard error, and layers beside it are done.
"""

import argparse
import functools
import json
import os
import sys
import warnings

from . import _calibrate as _calibration
from . import _command, _explain, _layer_format, _layers, _limits, _measure, _words, tuning
from ._config import get_num_threads, num_threads
from ._problem import ITEMSIZE, PRECISIONS
from ._show import show_config
from ._version import __version__
from .algorithms import ALGORITHMS, machine

_BENCH = "convt-bench --quick"
_PROGRAM = "python -m convt"


def _read(asked, text, complaints):
    """The layers of an argument, in the precision, dtype and layout asked for, else in their own."""
    asked_for = {"dtype": asked.dtype, "layout": asked.layout}
    changes = {name: value for name, value in asked_for.items() if value}
    found = []
    with complaints.about():
        for each in _layers.read(text, dict(asked.shape)):
            with complaints.about(_layer_format.called(each.name)):
                if isinstance(each, _layers.Refused):
                    raise each.error
                found.append(each._replace(attributes={**each.attributes, "precision": asked.precision}, **changes))
    return found


def described(layer, algorithm, timed):
    """What ``plan`` prints of a layer, as a dict."""
    op, shape = layer.operator(backend="native", algorithm=algorithm)
    plan = op.plan(shape)
    costs = {name: cost for name, cost in _explain.alternatives(plan.problem).items() if cost is not None}
    costs.setdefault(plan.algorithm, sum(plan.cycles.values()))  # one that "auto" does not take
    found = {
        "name": layer.name, "data": shape, "output": op.output_shape(shape), "dtype": layer.dtype, "layout": layer.layout,
        "algorithm": plan.algorithm, "isa": plan.isa, "threads": plan.threads, "tasks": plan.tasks,
        "packed_bytes": plan.packed_bytes, "cycles": costs, "expected_milliseconds": _expected(costs), "parts": plan.cycles,
        "explained": plan.explain(),
    }  # fmt: skip
    return found | _timed(layer, op, shape, plan, costs) if timed else found


def _timed(layer, op, shape, plan, costs):
    """Measures a layer: milliseconds of the algorithms near the best, and the limit of the machine."""
    data, runs, near = layer.numbers(shape), {}, 4 * min(costs.values())
    for name in [name for name, cost in costs.items() if cost <= near or name == plan.algorithm]:
        each = op if name == plan.algorithm else layer.operator(backend="native", algorithm=name)[0]
        runs[name] = functools.partial(each, data, out=each(data))
    found = {"undecided": None}
    try:
        seconds = _measure.measure(runs)
    except _measure.Undecided as undecided:
        seconds, found["undecided"] = undecided.seconds, str(undecided)
    limit = _limits.limit(plan.problem, get_num_threads())
    found["milliseconds"] = {name: each * 1e3 for name, each in seconds.items()}
    found["limit"] = {"milliseconds": limit.seconds * 1e3, "gflops": limit.gflops, "copy_gbs": limit.copy_gbs}
    found["of_limit"] = {name: limit.seconds / each for name, each in seconds.items()}
    return found


def _printable(name):
    """A name as it is, or escaped where it would move a terminal's cursor: names of a model's nodes may hold anything."""
    return name if name.isprintable() else ascii(name)


def _expected(costs):
    """Milliseconds by algorithm: the cost model's cycles, of as many threads as would share them, at the system's clock."""
    clock, few = _limits.clock(), machine.current().limits.single_thread_cycles
    if clock is None:
        return {}
    return {name: 1e3 * cost / clock / (1 if cost < few else get_num_threads()) for name, cost in costs.items()}


def _print_plan(found):
    print(f"{_printable(found['name'])}: {found['data']} -> {found['output']}")
    print(found["explained"])
    least, rows = min(found["cycles"].values()), []
    columns = ["algorithm", "cycles", "of the least", "expected ms"]
    timed = (
        [("measured ms", "milliseconds", "{:.3g}"), ("of the limit", "of_limit", "{:.0%}")] if "milliseconds" in found else []
    )
    for name, cost in sorted(found["cycles"].items(), key=lambda item: item[1]):
        cells = [name, f"{cost:.3g}", f"{cost / least:.2f}", _cell(found["expected_milliseconds"], name, "{:.3g}")]
        rows.append(cells + [_cell(found[key], name, form) for _, key, form in timed])
    _table([*columns, *(title for title, *_ in timed)], rows)
    if timed:
        limit = found["limit"]
        print(
            f"the limit: {limit['milliseconds']:.3g} ms, by a peak of {limit['gflops']:.0f} GFLOP/s and a copy of "
            f"{limit['copy_gbs']:.1f} GB/s; arrays that stay in the caches can pass it, and AMX and Winograd the peak"
        )
        if found["undecided"]:
            print(f"the times are not to be trusted, because {found['undecided']}")


def _cell(values, name, form):
    return form.format(values[name]) if name in values else ""


def _table(columns, rows):
    """Print a table: by rich on a terminal, where it is installed, else as plain text."""
    if sys.stdout is not None and sys.stdout.isatty():
        try:
            from rich import console, table, text
        except ImportError:
            pass
        else:
            drawn = table.Table(columns[0], *(table.Column(title, justify="right") for title in columns[1:]))
            for row in rows:
                drawn.add_row(*map(text.Text, row))  # as they are: a name may hold what rich takes for markup
            console.Console().print(drawn)
            return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        others = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([f"{row[0]:{widths[0]}}", *others]))


def _plan(asked, complaints):
    found = []
    for layer in _read(asked, asked.layer, complaints):
        done = len(found)
        with complaints.about(_layer_format.called(layer.name)):
            found.append(described(layer, asked.algorithm, asked.time))
        if len(found) > done and not asked.json:
            _print_plan(found[-1])
    return found


def _tune(asked, complaints):
    found, count = [], sum(tuning.read(asked.out, "--out")) if os.path.exists(asked.out) else 0
    for layer in [layer for text in asked.layers for layer in _read(asked, text, complaints)]:
        with complaints.about(_layer_format.called(layer.name)):
            op, shape = layer.operator(backend="tune")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # that of an undecided measurement, which the note repeats
                op(layer.numbers(shape))
            plan = op.plan(shape)
            times = tuning.find(plan.problem, "auto", get_num_threads())
            if times is None:
                complaints.say(f"{_layer_format.called(layer.name)}: {plan.note}")
                continue
            best = min(times, key=times.get)
            found.append({"name": layer.name, "data": shape, "algorithm": best, "note": plan.note, "milliseconds": times})
            count = tuning.save(asked.out)  # now, as whoever interrupts the rest keeps it
    if found and not asked.json:
        _print_tuned(found, asked.out, count)
    return {"file": asked.out, "entries": count, "layers": found}


def _print_tuned(found, path, count):
    rows = []
    for each in found:
        times = sorted(each["milliseconds"].items(), key=lambda item: item[1])
        rows.append([_printable(each["name"]), each["algorithm"], ", ".join(f"{name} {time:.3g}" for name, time in times)])
    _table(["layer", "fastest", "milliseconds"], rows)
    print(f"{_words.count(count, 'entry', 'entries')} in {path}: programs use what it says by CONVT_TUNING={path}")


def _calibrate(asked, complaints):
    try:
        found = _calibration.described(get_num_threads())
    except RuntimeError as disturbed:
        complaints.say(str(disturbed))
        return {}
    _calibration.write(asked.out, found)
    if not asked.json:
        planned = machine.current()
        rows = [[name, f"{value:.4g}", f"{getattr(planned.constants, name):.4g}"] for name, value in found["constants"].items()]
        _table(["constant", "measured", planned.name], rows)
        print(f"{asked.out}: programs use it by CONVT_COSTS={asked.out}")
    return found


def _bench(asked, _):
    if not asked.json:
        print(f'{_BENCH} (pip install "convt[bench]" brings what it compares with); convt-bench --help says what else')
    return {"command": _BENCH}


def _info(asked, _):
    return show_config(mode="dicts") if asked.json else show_config()


def _file(text):
    if not text or os.path.isdir(text) or not os.path.isdir(os.path.dirname(os.path.abspath(text))):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a file in a folder that exists")
    return text


def _parser():
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=_info, threads=None)
    parser.add_argument("--version", action="version", version=f"convt {__version__}")
    commands = parser.add_subparsers(metavar="info, plan, tune, calibrate or bench")
    info = commands.add_parser("info", help="what was found on this machine (the default)")
    info.set_defaults(run=_info)
    plan = commands.add_parser("plan", help="what a layer is computed by, and why")
    plan.set_defaults(run=_plan)
    plan.add_argument("layer", help="an ONNX file, JSON, or a file of JSON: see python -m convt --help")
    plan.add_argument(
        "--algorithm", default="auto", choices=("auto", *ALGORITHMS), metavar="NAME",
        help=f"auto (the default), {', '.join(ALGORITHMS)}",
    )  # fmt: skip
    plan.add_argument("--time", action="store_true", help="measure what comes into question, and the machine's limits")
    tune = commands.add_parser("tune", help="measure layers and keep what was found")
    tune.set_defaults(run=_tune)
    tune.add_argument("layers", nargs="+", metavar="layer", help="an ONNX file, JSON, or a file of JSON")
    tune.add_argument(
        "--out", type=_file, default="convt-tuning.json", help="the file (default: convt-tuning.json); what it has is kept"
    )
    calibrate = commands.add_parser("calibrate", help="measure this machine, which should be idle, for the cost model")
    calibrate.set_defaults(run=_calibrate)
    calibrate.add_argument("--out", type=_file, default="convt-machine.json", help="the file (default: convt-machine.json)")
    bench = commands.add_parser("bench", help="where the benchmark is")
    bench.set_defaults(run=_bench)
    parser.add_argument("--json", action="store_true", help="print JSON")
    for command in (info, plan, tune, calibrate, bench):
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    calibrate.add_argument("--threads", type=_command.threads, metavar="N", help="default: as many as any program's")
    for command in (plan, tune):
        command.add_argument("--layout", choices=("NXC", "NCX"), help="default: NXC; an ONNX model's is NCX")
        command.add_argument("--dtype", choices=tuple(ITEMSIZE), help="default: float32; an ONNX model has its own")
        command.add_argument(
            "--precision", choices=PRECISIONS, help="what float32 may be computed by (default: CONVT_PRECISION)"
        )
        command.add_argument("--threads", type=_command.threads, metavar="N", help="default: as many as any program's")
        command.add_argument("--shape", action=_command.Shapes, type=_command.shape, default={}, metavar="NAME=N,N,...",
                             help="shape of an ONNX model's input; a batch that it leaves open is 1 else")  # fmt: skip
    return parser


def main(arguments=None):
    """Do what the arguments ask for; ends by SystemExit where that could not be done as a whole."""
    asked = _parser().parse_args(arguments)

    def work(complaints):
        with num_threads(asked.threads or get_num_threads()):
            found = asked.run(asked, complaints)
        if asked.json:
            print(json.dumps(found, indent=1))

    _command.carry_out(_PROGRAM, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
