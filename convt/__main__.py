"""The command line: what convt finds on a machine, what it would do with a layer, and tuning.

    python -m convt                     what was found on this machine
    python -m convt plan LAYER          algorithm, why, and what the others would cost; --time measures them
    python -m convt tune LAYER...       measures, and writes a file for CONVT_TUNING
    python -m convt bench               where the benchmark is

A layer is JSON, or a file of JSON (one layer, or a list, or {"layers": list}): Cin and Cout, in (spatial sizes), k (kernel);
and, where they differ from the defaults, N (batch), g (groups), s (strides), d (dilations), pb and pe (pads), op
(output_padding). Or it is an ONNX file, whose ConvTranspose nodes are meant. --json prints everything as JSON.
"""

import argparse
import functools
import json
import os
import sys

from . import _explain, _layers, _limits, _measure, get_num_threads, num_threads, show_config, tuning
from ._check import DTYPES
from ._problem import PRECISIONS
from .algorithms import machine

_BENCH = "convt-bench --quick"


def _read(asked, text):
    """The layers of an argument, in the precision, dtype and layout asked for, else in their own."""
    asked_for = {"dtype": asked.dtype, "layout": asked.layout}
    changes = {name: value for name, value in asked_for.items() if value}
    layers = _layers.read(text, dict(asked.shape))
    return [each._replace(attributes={**each.attributes, "precision": asked.precision}, **changes) for each in layers]


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
    if timed:
        data, runs = layer.numbers(shape), {}
        near = 4 * min(costs.values())
        for name in [name for name, cost in costs.items() if cost <= near or name == plan.algorithm]:
            each = op if name == plan.algorithm else layer.operator(backend="native", algorithm=name)[0]
            runs[name] = functools.partial(each, data, out=each(data))
        seconds = _measure.measure(runs)
        limit = _limits.limit(plan.problem, get_num_threads())
        found["milliseconds"] = {name: each * 1e3 for name, each in seconds.items()}
        found["limit"] = {"milliseconds": limit.seconds * 1e3, "gflops": limit.gflops, "copy_gbs": limit.copy_gbs}
        found["of_limit"] = {name: limit.seconds / each for name, each in seconds.items()}
    return found


def _expected(costs):
    """Milliseconds by algorithm: the cost model's cycles, of as many threads as would share them, at the system's clock."""
    clock, few = _limits.clock(), machine.current().limits.single_thread_cycles
    if clock is None:
        return {}
    return {name: 1e3 * cost / clock / (1 if cost < few else get_num_threads()) for name, cost in costs.items()}


def _print_plan(found):
    print(f"{found['name']}: {found['data']} -> {found['output']}")
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


def _cell(values, name, form):
    return form.format(values[name]) if name in values else ""


def _table(columns, rows):
    """Print a table: by rich on a terminal, where it is installed, else as plain text."""
    if sys.stdout.isatty():
        try:
            from rich import console, table
        except ImportError:
            pass
        else:
            drawn = table.Table(columns[0], *(table.Column(title, justify="right") for title in columns[1:]))
            for row in rows:
                drawn.add_row(*row)
            console.Console().print(drawn)
            return
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        others = [f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join([f"{row[0]:{widths[0]}}", *others]))


def _plan(asked):
    found = [described(layer, asked.algorithm, asked.time) for layer in _read(asked, asked.layer)]
    if asked.json:
        return found
    for each in found:
        _print_plan(each)
    return None


def _tune(asked):
    if os.path.exists(asked.out):
        tuning.load(asked.out)
    found = []
    for layer in [layer for text in asked.layers for layer in _read(asked, text)]:
        op, shape = layer.operator(backend="tune")
        op(layer.numbers(shape))
        plan = op.plan(shape)
        times = tuning.find(plan.problem, "auto", get_num_threads())
        best = min(times, key=times.get)
        found.append({"name": layer.name, "data": shape, "algorithm": best, "note": plan.note, "milliseconds": times})
    count = tuning.save(asked.out)
    if asked.json:
        return {"file": asked.out, "entries": count, "layers": found}
    cells = lambda times: ", ".join(f"{name} {time:.3g}" for name, time in sorted(times.items(), key=lambda item: item[1]))  # noqa: E731
    rows = [[each["name"], each["algorithm"], cells(each["milliseconds"])] for each in found]
    _table(["layer", "fastest", "milliseconds"], rows)
    print(f"{count} entries in {asked.out}: use them by CONVT_TUNING={asked.out}")
    return None


def _bench(asked):
    if asked.json:
        return {"command": _BENCH}
    print(f'{_BENCH} (pip install "convt[bench]" brings what it compares with); convt-bench --help says what else')
    return None


def _info(asked):
    return show_config(mode="dicts") if asked.json else show_config()


def _shape(text):
    name, _, sizes = text.rpartition("=")
    try:
        return name, [int(size) for size in sizes.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted NAME=N,N,...") from None


def _parser():
    parser = argparse.ArgumentParser(
        prog="python -m convt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.set_defaults(run=_info, threads=None)
    commands = parser.add_subparsers(metavar="info, plan, tune or bench")
    info = commands.add_parser("info", help="what was found on this machine (the default)")
    info.set_defaults(run=_info)
    plan = commands.add_parser("plan", help="what a layer is computed by, and why")
    plan.set_defaults(run=_plan)
    plan.add_argument("layer", help="an ONNX file, JSON, or a file of JSON: see python -m convt --help")
    plan.add_argument("--algorithm", default="auto", help="as of convt.ConvTranspose (default: auto)")
    plan.add_argument("--time", action="store_true", help="measure what comes into question, and the machine's limits")
    tune = commands.add_parser("tune", help="measure layers and keep what was found")
    tune.set_defaults(run=_tune)
    tune.add_argument("layers", nargs="+", metavar="layer", help="an ONNX file, JSON, or a file of JSON")
    tune.add_argument("--out", default="convt-tuning.json", help="the file (default: convt-tuning.json); what it has is kept")
    bench = commands.add_parser("bench", help="where the benchmark is")
    bench.set_defaults(run=_bench)
    parser.add_argument("--json", action="store_true", help="print JSON")
    for command in (info, plan, tune, bench):
        command.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    for command in (plan, tune):
        command.add_argument("--layout", choices=("NXC", "NCX"), help="default: NXC; an ONNX model's is NCX")
        command.add_argument("--dtype", choices=tuple(DTYPES.values()), help="default: float32; an ONNX model has its own")
        command.add_argument(
            "--precision", choices=PRECISIONS, help="what float32 may be computed by (default: CONVT_PRECISION)"
        )
        command.add_argument("--threads", type=int, default=get_num_threads())
        command.add_argument("--shape", action="append", type=_shape, default=[], metavar="NAME=N,N,...",
                             help="shape of an ONNX model's input; a batch that it leaves open is 1 else")  # fmt: skip
    return parser


def main(arguments=None):
    parser = _parser()
    asked = parser.parse_args(arguments)
    try:
        with num_threads(get_num_threads() if asked.threads is None else asked.threads):
            found = asked.run(asked)
    except (ImportError, OSError, TypeError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if found is not None:
        print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
