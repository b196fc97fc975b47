"""The command line: what convt finds on a machine, what it would do with a layer, and tuning.

    python -m convt                     what was found on this machine
    python -m convt plan LAYER          algorithm, why, and what the others would cost; --time measures them
    python -m convt tune LAYER...       measures, and writes a file for CONVT_TUNING

A layer is JSON, or a file of JSON (one layer, or a list, or {"layers": list}): Cin and Cout, in (spatial sizes), k (kernel);
and, where they differ from the defaults, N (batch), g (groups), s (strides), d (dilations), pb and pe (pads), op
(output_padding).
"""

import argparse
import functools
import json
import os
import sys

import numpy as np

from . import ConvTranspose, _explain, _measure, get_num_threads, num_threads, show_config, tuning
from ._check import DTYPES
from ._problem import PRECISIONS

_KNOWN = {"Cin", "Cout", "in", "k", "N", "g", "s", "d", "pb", "pe", "op", "name", "family", "source"}


def layers(text):
    """The layers that an argument speaks of: dicts."""
    if os.path.exists(text):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"layer: got {text[:80]!r}, wanted JSON or a file of JSON ({error})") from None
    found = found.get("layers", [found]) if isinstance(found, dict) else found
    for layer in found if isinstance(found, list) else [found]:
        if not isinstance(layer, dict) or not {"Cin", "Cout", "in", "k"} <= set(layer) <= _KNOWN:
            got = sorted(layer) if isinstance(layer, dict) else layer
            raise ValueError(f"layer: got {got}, wanted Cin, Cout, in and k, and of the others {', '.join(sorted(_KNOWN))}")
    return found


def operator(layer, asked, **more):
    """``(ConvTranspose, shape of its data)`` of a layer, with random weights."""
    rank = len(layer["in"])
    each = lambda name, default: layer.get(name, default)  # noqa: E731
    kernel = layer["k"] if isinstance(layer["k"], list) else [layer["k"]] * rank
    groups, planar = each("g", 1), asked.layout == "NCX"
    dtype = next(dtype for dtype, name in DTYPES.items() if name == asked.dtype)
    filter = np.random.default_rng(0).standard_normal((layer["Cin"], layer["Cout"] // groups, *kernel), np.float32)
    op = ConvTranspose(
        filter.astype(dtype), strides=each("s", 1), dilations=each("d", 1), pads_begin=each("pb", 0), pads_end=each("pe", 0),
        output_padding=each("op", 0), groups=groups, data_format=asked.layout, filter_format="IOX",
        precision=asked.precision, **more,
    )  # fmt: skip
    batch, sizes, channels = each("N", 1), layer["in"], layer["Cin"]
    return op, (batch, channels, *sizes) if planar else (batch, *sizes, channels)


def _data(op, shape):
    return np.random.default_rng(1).standard_normal(shape, np.float32).astype(op._filter.dtype)


def described(layer, asked):
    """What ``plan`` prints of a layer, as a dict."""
    op, shape = operator(layer, asked, backend="native", algorithm=asked.algorithm)
    plan = op.plan(shape)
    costs = {name: cost for name, cost in _explain.alternatives(plan.problem).items() if cost is not None}
    found = {
        "name": layer.get("name"), "data": shape, "output": op.output_shape(shape), "algorithm": plan.algorithm,
        "isa": plan.isa, "threads": plan.threads, "tasks": plan.tasks, "packed_bytes": plan.packed_bytes,
        "cycles": costs, "parts": plan.cycles, "explained": plan.explain(),
    }  # fmt: skip
    if asked.time:
        data, runs = _data(op, shape), {}
        for name in [name for name, cost in costs.items() if cost <= 4 * min(costs.values())]:
            each = op if name == plan.algorithm else operator(layer, asked, backend="native", algorithm=name)[0]
            runs[name] = functools.partial(each, data, out=each(data))
        found["milliseconds"] = {name: seconds * 1e3 for name, seconds in _measure.measure(runs).items()}
    return found


def _print_plan(found):
    print(f"{found['name'] or 'layer'}: {found['data']} -> {found['output']}")
    print(found["explained"])
    for name, taken in sorted(found.get("milliseconds", {}).items(), key=lambda item: item[1]):
        print(f"measured: {name} {taken:.3f} ms")


def _tune(asked):
    for text in asked.layers:
        for layer in layers(text):
            op, shape = operator(layer, asked, backend="tune")
            op(_data(op, shape))
            print(f"{layer.get('name', 'layer')}: {op.plan(shape).note}")
    print(f"{tuning.save(asked.out)} entries in {asked.out}: use them by CONVT_TUNING={asked.out}")


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m convt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="info, plan, tune or bench")
    info = commands.add_parser("info", help="what was found on this machine (the default)")
    plan = commands.add_parser("plan", help="what a layer is computed by, and why")
    plan.add_argument("layer", help="JSON, or a file of JSON: see python -m convt --help")
    plan.add_argument("--algorithm", default="auto", help="as of convt.ConvTranspose (default: auto)")
    plan.add_argument("--time", action="store_true", help="measure the algorithms that come into question")
    tune = commands.add_parser("tune", help="measure layers and keep what was found")
    tune.add_argument("layers", nargs="+", metavar="layer", help="JSON, or a file of JSON")
    tune.add_argument("--out", default="convt-tuning.json", help="the file (default: convt-tuning.json); what it has is kept")
    commands.add_parser("bench", help="where the benchmark is")
    for command in (info, plan):
        command.add_argument("--json", action="store_true", help="print JSON")
    for command in (plan, tune):
        command.add_argument("--layout", choices=("NXC", "NCX"), default="NXC", help="default: NXC")
        command.add_argument("--dtype", choices=tuple(DTYPES.values()), default="float32", help="default: float32")
        command.add_argument(
            "--precision", choices=PRECISIONS, help="what float32 may be computed by (default: CONVT_PRECISION)"
        )
        command.add_argument("--threads", type=int, default=get_num_threads())
    asked = parser.parse_args(arguments)
    try:
        if asked.command == "plan":
            with num_threads(asked.threads):
                found = [described(layer, asked) for layer in layers(asked.layer)]
            if asked.json:
                print(json.dumps(found, indent=1))
            else:
                for each in found:
                    _print_plan(each)
        elif asked.command == "tune":
            if os.path.exists(asked.out):
                tuning.load(asked.out)
            with num_threads(asked.threads):
                _tune(asked)
        elif asked.command == "bench":
            print("python -m bench --quick, from a checkout of convt; python -m bench --help says what else")
        elif getattr(asked, "json", False):
            print(json.dumps(show_config(mode="dicts"), indent=1))
        else:
            show_config()
    except (OSError, TypeError, ValueError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
