"""The command line of convt.

    python -m convt                     print the configuration: instruction sets, caches, threads, backends
    python -m convt plan LAYER          print the algorithm of a layer, the reason, and the cost of the others
    python -m convt tune LAYER...       measure layers and write a tuning file for CONVT_TUNING
    python -m convt calibrate           measure this machine and write a machine file for CONVT_COSTS
    python -m convt bench               print the command of the benchmark

LAYER is JSON, a file with JSON, or an ONNX file. JSON is one layer, a list of layers, or {"layers": list}. A layer is an
object with the keys Cin and Cout (channels), in (spatial sizes) and k (kernel), and the optional keys N (batch), g (groups),
s (strides), d (dilations), pb and pe (pads), op (output_padding), name, family and source (text). An ONNX file stands for
all ConvTranspose nodes of its main graph. --json prints JSON.

The exit code is 0 if everything was done, 1 after an error, 2 if the arguments are wrong, and 130 after Ctrl-C. Each error is
a line on standard error. The other layers are still processed.
"""

import argparse
import contextlib
import functools
import json
import os
import sys
import warnings

from . import tuning
from ._base import files, layer_format, tables, words
from ._base.problem import ITEMSIZE, PRECISIONS
from ._call.show import show_config
from ._cli import command as _command
from ._cli import layers
from ._model import calibrate as _calibration
from ._model import limits, machine
from ._plan import explain, measure
from ._run.config import get_num_threads, num_threads
from ._version import __version__
from .algorithms import ALGORITHMS, BASIC

_BENCH = "convt-bench --quick"
_PROGRAM = "python -m convt"


def _read(options, text, errors):
    """Return the layers of an argument, with the precision, dtype and layout of the options where these are given."""
    overrides = {"dtype": options.dtype, "layout": options.layout}
    changes = {name: value for name, value in overrides.items() if value}
    found = []
    with errors.reporting():
        for each in layers.read(text, dict(options.shape)):
            with errors.reporting(layer_format.message_name(each.name)):
                if isinstance(each, layers.InvalidLayer):
                    raise each.error
                found.append(each._replace(attributes={**each.attributes, "precision": options.precision}, **changes))
    return found


def described(layer, algorithm, timed):
    """Return what ``plan`` prints about a layer, as a dict for JSON."""
    op, shape = layer.operator(backend="native", algorithm=algorithm)
    plan = op.plan(shape)
    costs = {name: cost for name, cost in explain.alternatives(plan.problem).items() if cost is not None}
    costs.setdefault(plan.algorithm, sum(plan.cycles.values()))  # an algorithm that "auto" does not permit
    found = {
        "name": layer.name, "data": shape, "output": op.output_shape(shape), "dtype": layer.dtype, "layout": layer.layout,
        "algorithm": plan.algorithm, "isa": plan.isa, "threads": plan.threads, "tasks": plan.tasks,
        "packed_bytes": plan.packed_bytes, "cycles": costs, "expected_milliseconds": _expected(costs), "parts": plan.cycles,
        "explained": plan.explain(),
    }  # fmt: skip
    return found | _timed(layer, op, shape, plan, costs) if timed else found


def _timed(layer, op, shape, plan, costs):
    """Measure the algorithms with at most four times the lowest expected cost, and the hardware limit. Return a dict."""
    data, runs, near = layer.numbers(shape), {}, 4 * min(costs.values())
    for name in [name for name, cost in costs.items() if cost <= near or name == plan.algorithm]:
        each = op if name == plan.algorithm else layer.operator(backend="native", algorithm=name)[0]
        runs[name] = functools.partial(each, data, out=each(data))
    found = {"undecided": None}
    try:
        seconds = measure.measure(runs)
    except measure.Undecided as undecided:
        seconds, found["undecided"] = undecided.seconds, str(undecided)
    limit = limits.limit(plan.problem, get_num_threads())
    found["milliseconds"] = {name: each * 1e3 for name, each in seconds.items()}
    found["limit"] = {"milliseconds": limit.seconds * 1e3, "gflops": limit.gflops, "copy_gbs": limit.copy_gbs}
    found["of_limit"] = {name: limit.seconds / each for name, each in seconds.items()}
    return found


def _printable(name):
    """Return a name, escaped if it has control characters, because names of a model's nodes may contain any characters."""
    return name if name.isprintable() else ascii(name)


def _expected(costs):
    """Return the expected milliseconds of each algorithm from cycles, threads and clock; {} if the clock is unknown."""
    clock, few = limits.clock(), machine.current().limits.single_thread_cycles
    if clock is None:
        return {}
    return {name: 1e3 * cost / clock / (1 if cost < few else get_num_threads()) for name, cost in costs.items()}


def _print_plan(found):
    print(f"{_printable(found['name'])}: {found['data']} -> {found['output']}")
    print(found["explained"])
    least, rows = min(found["cycles"].values()), []
    columns = ["algorithm", "cycles", "relative", "expected ms"]
    timed = [("measured ms", "milliseconds", "{:.3g}"), ("of limit", "of_limit", "{:.0%}")] if "milliseconds" in found else []
    for name, cost in sorted(found["cycles"].items(), key=lambda item: item[1]):
        cells = [name, f"{cost:.3g}", f"{cost / least:.2f}", _cell(found["expected_milliseconds"], name, "{:.3g}")]
        rows.append(cells + [_cell(found[key], name, form) for _, key, form in timed])
    measured = found.get("milliseconds")
    bars = _bars([(measured or found["cycles"]).get(name) for name in sorted(found["cycles"], key=found["cycles"].get)])
    title = "measured" if measured else "expected"
    rows = [[*row, bar] for row, bar in zip(rows, bars, strict=True)]
    tables.show([*columns, *(name for name, *_ in timed), title.ljust(_BAR)], rows)
    if timed:
        limit = found["limit"]
        print(
            f"hardware limit: {limit['milliseconds']:.3g} ms, from a peak of {limit['gflops']:.0f} GFLOP/s and a copy at "
            f"{limit['copy_gbs']:.1f} GB/s; arrays in the caches, AMX and Winograd can exceed it"
        )
        if found["undecided"]:
            print(f"the measured times are unreliable, because {found['undecided']}")


_BAR = 20  # characters of the longest bar


def _bars(values):
    """Return a bar for each time, five characters for the shortest. A bar that would be too long ends in ">"; None has none."""
    least = min(value for value in values if value is not None)
    lengths = [0 if value is None else min(round(5 * value / least), _BAR + 1) for value in values]
    return [("#" * length if length <= _BAR else "#" * (_BAR - 1) + ">").ljust(_BAR) for length in lengths]


def _cell(values, name, form):
    return form.format(values[name]) if name in values else ""


def _plan(options, errors):
    found = []
    for layer in _read(options, options.layer, errors):
        done = len(found)
        with errors.reporting(layer_format.message_name(layer.name)):
            found.append(described(layer, options.algorithm, options.time))
        if len(found) > done and not options.json:
            _print_plan(found[-1])
    return found


def _tune(options, errors):
    with measure.best_effort() if options.best_effort else contextlib.nullcontext([]) as doubts:
        return _tuned(options, errors, doubts)


def _tuned(options, errors, doubts):
    """Measure the layers of `_tune`. ``doubts`` gets the reasons why a measurement does not decide, with --best-effort."""
    replaced = files.is_replaced(options.out)  # otherwise it is written once, at the end
    count = sum(tuning.read(options.out, "--out")) if replaced and os.path.exists(options.out) else 0
    found, kept, failed = [], 0, None

    def save():
        nonlocal count, kept, failed
        try:
            count, kept, failed = tuning.save(options.out), len(found), None
        except OSError as error:
            failed = error

    for layer in [layer for text in options.layers for layer in _read(options, text, errors)]:
        with errors.reporting(layer_format.message_name(layer.name)):
            op, shape = layer.operator(backend="tune")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # an undecided measurement; the note has the same text
                op(layer.numbers(shape))
            plan = op.plan(shape)
            times = tuning.find(plan.problem, "auto", get_num_threads())
            if times is None:
                errors.print_error(f"{layer_format.message_name(layer.name)}: {plan.note}")
                continue
            best = min(times, key=times.get)
            if doubts:
                print(f"{layer_format.message_name(layer.name)}: kept, but not sure, because {doubts.pop()}", file=sys.stderr)
                doubts.clear()
            found.append({"name": layer.name, "data": shape, "algorithm": best, "note": plan.note, "milliseconds": times})
            if replaced:  # after each layer, so that Ctrl-C does not lose results
                save()
    if found and not replaced:
        save()
    if failed is not None:
        lost = f"the last {words.count(len(found) - kept, 'layer')} were not kept" if kept else "nothing was kept"
        errors.print_error(f"{_command.text_of(failed)}; {lost}")
    if found and not options.json:
        _print_tuned(found)
        if kept:
            print(f"{words.count(count, 'entry', 'entries')} in {options.out}; set CONVT_TUNING={options.out} to use them")
    return {"file": options.out, "entries": count, "layers": found}


def _print_tuned(found):
    rows = []
    for each in found:
        times = sorted(each["milliseconds"].items(), key=lambda item: item[1])
        rows.append([_printable(each["name"]), each["algorithm"], ", ".join(f"{name} {time:.3g}" for name, time in times)])
    tables.show(["layer", "fastest", "milliseconds"], rows)


def _calibrate(options, errors):
    try:
        found = _calibration.described(get_num_threads(), options.best_effort)
    except RuntimeError as disturbed:
        errors.print_error(str(disturbed))
        return {}
    _calibration.write(options.out, found)
    if not options.json:
        planned = machine.current()
        rows = [[name, f"{value:.4g}", f"{getattr(planned.constants, name):.4g}"] for name, value in found["constants"].items()]
        tables.show(["constant", "measured", planned.name], rows)
        if found["spread"] > _calibration.STEADY - 1:
            print(f"not sure: other processes disturbed the measurement, and its clock varied by {found['spread']:.0%}")
        print(f"wrote {options.out}; set CONVT_COSTS={options.out} to use it")
    return found


def _bench(options, _):
    if not options.json:
        print(f'{_BENCH} (install with: pip install ".[bench]"); convt-bench --help lists the options')
    return {"command": _BENCH}


def _info(options, _):
    return show_config(mode="dicts") if options.json else show_config()


def _parser():
    parser = argparse.ArgumentParser(prog=_PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=_info, threads=None)
    parser.add_argument("--version", action="version", version=f"convt {__version__}")
    commands = parser.add_subparsers(metavar="info, plan, tune, calibrate or bench")
    info = commands.add_parser("info", help="print the configuration (default)")
    info.set_defaults(run=_info)
    plan = commands.add_parser("plan", help="print the algorithm of a layer and the reason")
    plan.set_defaults(run=_plan)
    plan.add_argument("layer", help="JSON, a file with JSON, or an ONNX file; see python -m convt --help")
    plan.add_argument(
        "--algorithm", default="auto", choices=("auto", *ALGORITHMS), metavar="NAME",
        help=f"algorithm: auto (default), {', '.join(BASIC)}; on another unit: matrix, matrix_turned, dots, ...",
    )  # fmt: skip
    plan.add_argument("--time", action="store_true", help="also measure the layer and the hardware limit")
    tune = commands.add_parser("tune", help="measure layers and write a tuning file")
    tune.set_defaults(run=_tune)
    tune.add_argument("layers", nargs="+", metavar="layer", help="JSON, a file with JSON, or an ONNX file")
    tune.add_argument(
        "--out",
        type=files.argument,
        default="convt-tuning.json",
        help="tuning file (default: convt-tuning.json); existing entries are kept",
    )
    calibrate = commands.add_parser("calibrate", help="measure this machine for the cost model; it should be idle")
    calibrate.set_defaults(run=_calibrate)
    calibrate.add_argument("--out", type=files.argument, default="convt-machine.json",
                           help="machine file (default: convt-machine.json)")  # fmt: skip
    bench = commands.add_parser("bench", help="print the command of the benchmark")
    bench.set_defaults(run=_bench)
    parser.add_argument("--json", action="store_true", help="print JSON")
    for command in (info, plan, tune, calibrate, bench):
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    calibrate.add_argument("--threads", type=_command.threads, metavar="N", help="threads (default: as in any program)")
    for command in (tune, calibrate):
        command.add_argument("--best-effort", action="store_true",
                             help="also keep what was measured beside other programs, and say how sure it is")  # fmt: skip
    for command in (plan, tune):
        command.add_argument("--layout", type=words.layout, choices=("NXC", "NCX"),
                             help="layout, also NHWC, channels_last, ... (default: NXC; NCX for an ONNX model)")  # fmt: skip
        command.add_argument("--dtype", type=words.dtype, choices=tuple(ITEMSIZE),
                             help="dtype, also f32, bf16, ... (default: float32; the model's for an ONNX model)")  # fmt: skip
        command.add_argument("--precision", choices=PRECISIONS, help="lowest accuracy of float32 (default: CONVT_PRECISION)")
        command.add_argument("--threads", type=_command.threads, metavar="N", help="threads (default: as in any program)")
        command.add_argument("--shape", action=_command.Shapes, type=_command.shape, default={}, metavar="NAME=N,N,...",
                             help="shape of an ONNX model's input (default: the model's; 1 for an unknown batch)")  # fmt: skip
    return parser


def main(arguments=None):
    """Run the command line. Raise SystemExit with a code other than 0 after an error."""
    options = _parser().parse_args(arguments)

    def work(errors):
        with num_threads(options.threads) if options.threads else contextlib.nullcontext():
            found = options.run(options, errors)
        if options.json:
            print(json.dumps(found, indent=1))

    _command.run_command(_PROGRAM, work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
