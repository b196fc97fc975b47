"""``python -m convt.onnxruntime model.onnx``: Compare run time and outputs of an ONNX model with and without convt.

It prints a table of the ConvTranspose nodes, the share of the run time that they take, and how much faster the model gets.
"""

import argparse
import functools
import json
import math
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from .._base import arguments as _arguments
from .._base import dtypes, terminal
from .._base.problem import PRECISIONS
from .._call import worth
from .._call.worth import LayerTime, Worth
from .._model.limits import MachineLimits
from .._run import config
from . import InferenceSession

_RUNS = 6  # profiled runs of each session; the first does not count
_SUFFIX = "_kernel_time"
SPINNING = 0.13  # seconds; ONNX Runtime's threads spin this long after a run and slow down whatever runs next

# ONNX Runtime's name of an input's type -> the dtype of random arrays for the input
_NAMES = {"float32": "float", "float64": "double"}
_DTYPES = {
    f"tensor({_NAMES.get(each.dtype.name, each.dtype.name)})": each.dtype for each in dtypes.ALL if each.dtype.kind in "fiub"
}


def inputs(session, shapes, given=()):
    """Return ``{input name: array}`` for a session: the arrays in ``given``, and random arrays for the other inputs.

    ``shapes`` maps input names to shapes. Inputs without an entry take the shape that the model declares.
    """
    wanted = {each.name: each for each in session.get_inputs()}
    given = dict(given)
    for name in (*shapes, *given):
        if name not in wanted:
            raise ValueError(f"input {name}: got an unknown name, wanted an input of the model: {', '.join(wanted) or 'none'}")
    rng = np.random.default_rng(0)
    return {name: given[name] if name in given else _random(each, shapes.get(name), rng) for name, each in wanted.items()}


def _random(each, shape, rng):
    """Return a random array for an input. ``shape`` is None for the shape that the model declares."""
    if each.type not in _DTYPES:
        raise ValueError(f"input {each.name}: got {each.type}, wanted an array by --input, or one of {', '.join(_DTYPES)}")
    shape = each.shape if shape is None else shape
    _arguments.check_sizes(each.name, shape)
    dtype = _DTYPES[each.type]
    values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
    return values.astype(dtype)


def difference(before, after):
    """Return the largest difference between the outputs of two runs, relative to the largest magnitude of that output.

    Elements that are NaN in both runs, or the same infinity in both, do not differ. If only one run has NaN or an infinity at
    an element, or if the shapes differ, the result is infinite.
    """
    worst = 0.0
    for a, b in zip(before, after, strict=True):
        if isinstance(a, np.ndarray) and a.size and a.dtype.kind in "fiub":
            if a.shape != b.shape:
                return math.inf
            a, b = a.astype(np.float64), b.astype(np.float64)
            with np.errstate(invalid="ignore"):  # the difference of NaN, or of equal infinities, is NaN
                off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.abs(a - b))
            largest = np.abs(a[np.isfinite(a)]).max(initial=1e-30)
            worst = max(worst, float(np.nan_to_num(off, nan=math.inf, posinf=math.inf).max() / largest))
    return worst


in_turns = functools.partial(worth.in_turns, pause=SPINNING)


def node_seconds(create, feed, runs=_RUNS):
    """Return ``{name of a node: (seconds in a run, calls in a run)}`` of a session that ``create(options)`` returns."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, os.path.join(folder, "profile")
        session = create(options)
        for _ in range(runs):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    found = [[]]
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            found[-1].append((event["name"].removesuffix(_SUFFIX), event["dur"] / 1e6))
        elif event["name"] == "model_run":
            found.append([])
    return worth.summed(found[1:-1])


def _layers(session, host_seconds, convt_seconds, threads):
    """Yield the `LayerTime` of the nodes of a session that has run. The seconds are results of `node_seconds`."""
    report, limits = session.report, MachineLimits(threads or config.get_num_threads())
    for name, node in session.nodes.items():
        if not node.shapes:
            continue  # no run has reached it
        (data, _), output = list(node.shapes.items())[-1]
        replaced = [host_seconds[each.name][0] for each in node.group.originals if each.name in host_seconds]
        seconds, calls = convt_seconds.get(node.host_name, (math.nan, 1))
        packed, found = node.packed or node.last_packed[1], {"algorithm": node.description()["algorithm"]}
        if packed is not None:
            found = worth.planned(packed.operator, data, seconds / calls, limits) | found
        found |= {"fused": report.fused.get(name, ()), "calls": calls}
        yield LayerTime(name, data, output, sum(replaced) if replaced else math.nan, seconds, **found)
    for name, why in report.kept.items():
        if name not in session.nodes:
            seconds, calls = host_seconds.get(name, (math.nan, 1))
            yield LayerTime(name, (), (), seconds, algorithm=why, calls=calls)


def compare(model, shapes, threads, budget, precision=None, given=()):
    """Run a model with and without convt, and return ``(results, Worth)``: a dict of nodes, seconds, speedup and differences.

    ``own_difference`` compares ONNX Runtime with and without its graph optimisations. It shows how strongly the model amplifies
    rounding errors, and is None if ONNX Runtime cannot run the model without optimisations.
    """

    def session(kind, options=None, optimised=True):
        options = options or onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return kind(model, options, ["CPUExecutionProvider"])

    kinds = onnxruntime.InferenceSession, functools.partial(InferenceSession, precision=precision)
    plain = session(kinds[0])
    feed = inputs(plain, shapes, given)
    ours = session(kinds[1])
    want = plain.run(None, feed)
    worst = difference(want, ours.run(None, feed))
    try:
        own = difference(want, session(kinds[0], optimised=False).run(None, feed))
    except Exception:  # ONNX Runtime can run some operators only after its optimisations replace them
        own = None
    with terminal.progress(2 * worth.ROUNDS) as begin:
        calls = [functools.partial(each.run, None, feed) for each in (plain, ours)]
        before, after = in_turns(calls, budget, functools.partial(begin, "timing the model"))
    report, layers = ours.report, ()
    if ours.nodes or report.kept:
        seconds = [node_seconds(functools.partial(session, kind), feed) for kind in kinds]
        layers = tuple(_layers(ours, *seconds, threads))
    found = Worth(
        "ONNX Runtime", layers, before, after, "ConvTranspose nodes, also in subgraphs and functions",
        "Use convt.onnxruntime.InferenceSession.",
    )  # fmt: skip
    nodes = [{"name": name, **node.description(), "with": report.fused.get(name, ())} for name, node in ours.nodes.items()]
    results = {
        "nodes": nodes, "kept": report.kept, "reason": report.reason, "onnxruntime_s": before, "convt_s": after,
        "speed_up": before / after, "difference": worst, "own_difference": own, "precision": precision,
    }  # fmt: skip
    return results, found


def _arrays(path):
    """Load the arrays of an .npz file as ``{name: array}``."""
    try:
        with np.load(path) as file:
            return dict(file)
    except Exception as error:  # the file system, zipfile and NumPy raise many classes
        raise argparse.ArgumentTypeError(f"got {path!r}, wanted an .npz file of arrays named after inputs: {error}") from None


def main(arguments=None):
    program, example = "python -m convt.onnxruntime", "model.onnx --shape X=1,3,64,64"
    parser = _arguments.parser(program, __doc__.split(": ", 1)[1], example, f"{example} --threads 1 --json -")
    parser.add_argument("model", help="ONNX file")
    _arguments.add_shape(parser, 0, "shape of a random input; required if the model leaves sizes of that input open")
    parser.add_argument("--input", type=_arrays, default={}, metavar="FEED.npz", help="arrays for inputs, named after them")
    parser.add_argument("--precision", choices=PRECISIONS,
                        help="lowest precision that convt may use for float32 (default: CONVT_PRECISION)")  # fmt: skip
    parser.add_argument("--threads", type=_arguments.integer, default=0, metavar="N",
                        help="threads of each session (default: the number that each library uses)")  # fmt: skip
    _arguments.add_budget(parser, "seconds to time each session")
    _arguments.add_json(parser)
    asked = parser.parse_args(arguments)

    def work(_):
        results, found = compare(asked.model, asked.shape, asked.threads, asked.budget, asked.precision, asked.input)
        found.show()
        print(_text(results))
        return found.as_dict() | {name: "inf" if value == math.inf else value for name, value in results.items()}

    _arguments.run(program, asked.json, work, Exception)  # ONNX Runtime's errors have no common base class
    return 0


def _text(results):
    """Format what `compare` finds beside the times as text."""
    served, own = {node["name"] for node in results["nodes"]}, results["own_difference"]
    kept = {name: why for name, why in results["kept"].items() if name in served}
    return "\n".join([
        *(f"{name}: some runs are left to ONNX Runtime because {why}" for name, why in kept.items()),
        *([] if served else [f"convt computes no node of the model because {results['reason']}"]),
        f"largest relative difference of outputs: convt against ONNX Runtime {results['difference']:.1e}; "
        f"ONNX Runtime against itself without graph optimisations {'unknown' if own is None else f'{own:.1e}'}",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
