"""``python -m convt.onnxruntime model.onnx``: Compare run time and outputs of an ONNX model with and without convt.

It prints a table of the ConvTranspose nodes, the share of the run time that they take, and how much faster the model gets.
"""

import argparse
import math
import sys

import numpy as np
import onnxruntime

from .._base import arguments as _arguments
from .._base import dtypes, terminal
from .._base.problem import PRECISIONS
from .._call import worth
from . import InferenceSession, _profile

_EXAMPLES = """examples:
  python -m convt.onnxruntime model.onnx --shape X=1,3,64,64
  python -m convt.onnxruntime model.onnx --shape X=1,3,64,64 --threads 1 --json -
"""
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
    if any(not isinstance(size, int) for size in shape):
        sizes = ",".join(str(size) if isinstance(size, int) else "N" for size in shape)
        raise ValueError(f"input {each.name}: got no sizes for the open axes of {shape}, wanted --shape {each.name}={sizes}")
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
            same = (a == b) | (np.isnan(a) & np.isnan(b))
            known = np.isfinite(a) & np.isfinite(b)
            if not (same | known).all():
                return math.inf
            largest = np.abs(a[known]).max(initial=0)
            worst = max(worst, float(np.abs(a[known] - b[known]).max(initial=0) / max(largest, 1e-30)))
    return worst


def in_turns(calls, budget, rounds=4, step=lambda: None):
    """Return the seconds of each call, as `worth.in_turns` does, with a pause of `SPINNING` before each turn."""
    return worth.in_turns(calls, budget, rounds, SPINNING, step)


def compare(model, shapes, threads, budget, precision=None, given=()):
    """Run a model with and without convt, and return ``(results, Worth)``: a dict of nodes, seconds, speedup and differences.

    ``own_difference`` compares ONNX Runtime with and without its graph optimisations. It shows how strongly the model amplifies
    rounding errors, and is None if ONNX Runtime cannot run the model without optimisations.
    """

    def session(kind, optimised=True, options=None, **words):
        options = options or onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        if not optimised:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return kind(model, options, ["CPUExecutionProvider"], **words)

    plain = session(onnxruntime.InferenceSession)
    feed = inputs(plain, shapes, given)
    ours = session(InferenceSession, precision=precision)
    want = plain.run(None, feed)
    worst = difference(want, ours.run(None, feed))
    try:
        own = difference(want, session(onnxruntime.InferenceSession, optimised=False).run(None, feed))
    except Exception:  # ONNX Runtime can run some operators only after its optimisations replace them
        own = None
    with terminal.progress(2 * 4) as begin:
        calls = [lambda: plain.run(None, feed), lambda: ours.run(None, feed)]
        seconds = in_turns(calls, budget, 4, lambda: begin("timing the model"))
    report, (before, after) = ours.report, seconds
    host, convts = {}, {}
    if ours.nodes or report.kept:
        host = _profile.node_seconds(lambda options: session(onnxruntime.InferenceSession, options=options), feed)
        create = lambda options: session(InferenceSession, options=options, precision=precision)  # noqa: E731
        convts = _profile.node_seconds(create, feed)
    found = _profile.measured(ours, host, convts, seconds, threads)
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


def _number(kind, what):
    """Return a parser of numbers of at least 0."""

    def checked(text):
        try:
            if 0 <= (value := kind(text)) < math.inf:
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted {what} >= 0")

    return checked


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m convt.onnxruntime", description=__doc__.split(": ", 1)[1])
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("model", help="ONNX file")
    _arguments.add_shape(parser, 0, "shape of a random input; required if the model leaves sizes of that input open")
    parser.add_argument("--input", type=_arrays, default={}, metavar="FEED.npz", help="arrays for inputs, named after them")
    parser.add_argument("--precision", choices=PRECISIONS,
                        help="lowest precision that convt may use for float32 (default: CONVT_PRECISION)")  # fmt: skip
    parser.add_argument("--threads", type=_arguments.threads, default=0, metavar="N",
                        help="threads of each session (default: the number that each library uses)")  # fmt: skip
    parser.add_argument("--budget", type=_number(float, "a number"), default=2.0,
                        help="seconds to time each session (default: 2)")  # fmt: skip
    _arguments.add_json(parser)
    asked = parser.parse_args(arguments)
    try:
        with _arguments.printing(asked.json) as write_json:
            results, found = compare(asked.model, asked.shape, asked.threads, asked.budget, asked.precision, asked.input)
            found.show()
            print(_text(results))
            known = {name: "inf" if value == math.inf else value for name, value in results.items()}  # JSON has no infinity
            write_json(found.as_dict() | known)
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: stopped\n")
    except Exception as error:  # ONNX Runtime's errors have no common base class
        parser.exit(1, f"{parser.prog}: {error}\n")
    return 0


def _text(results):
    """Format what `compare` finds beside the times as text."""
    lines, served = [], {node["name"] for node in results["nodes"]}
    kept = {name: why for name, why in results["kept"].items() if name in served}
    lines += [f"{name}: some runs are left to ONNX Runtime because {why}" for name, why in kept.items()]
    if not results["nodes"]:
        lines.append(f"convt computes no node of the model because {results['reason']}")
    own = results["own_difference"]
    return "\n".join([
        *lines,
        f"largest relative difference of outputs: convt against ONNX Runtime {results['difference']:.1e}; "
        f"ONNX Runtime against itself without graph optimisations {'unknown' if own is None else f'{own:.1e}'}",
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
