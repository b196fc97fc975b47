"""``python -m convt.onnxruntime model.onnx``: a model in ONNX Runtime as it is and with convt in it, side by side."""

import argparse
import json
import statistics
import sys
import time

import numpy as np
import onnxruntime

from .._problem import PRECISIONS
from . import InferenceSession

_DTYPES = {
    "tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16, "tensor(int64)": np.int64,
    "tensor(int32)": np.int32, "tensor(int8)": np.int8, "tensor(uint8)": np.uint8, "tensor(bool)": np.bool_,
}  # fmt: skip


def inputs(session, shapes):
    """Random arrays for the inputs of a session; sizes that a model leaves open are those of ``shapes``, or 1."""
    rng, feed = np.random.default_rng(0), {}
    for each in session.get_inputs():
        shape = shapes.get(each.name, [size if isinstance(size, int) else 1 for size in each.shape])
        if each.type not in _DTYPES:
            raise ValueError(f"input {each.name}: got {each.type}, wanted one of {', '.join(_DTYPES)}")
        dtype = np.dtype(_DTYPES[each.type])
        values = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(0, 2, shape)
        feed[each.name] = values.astype(dtype)
    return feed


def difference(before, after):
    """The largest difference of the outputs of two runs, of the largest magnitude of the output that has it."""
    worst = 0.0
    for a, b in zip(before, after, strict=True):
        if isinstance(a, np.ndarray) and a.size and a.dtype.kind in "fiub":
            a, b = a.astype(np.float64), b.astype(np.float64)
            worst = max(worst, float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)))
    return worst


def in_turns(calls, budget, rounds=4):
    """Seconds of each call: the least of the medians of some rounds, in which they take turns."""
    found = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(rounds):
        for call, medians in zip(calls, found, strict=True):
            times, end = [], time.perf_counter() + budget / rounds
            while time.perf_counter() < end or len(times) < 3:
                start = time.perf_counter()
                call()
                times.append(time.perf_counter() - start)
            medians.append(statistics.median(times))
    return [min(medians) for medians in found]


def compare(model, shapes, threads, budget, precision=None):
    """The figures of a model, as a dict: its nodes, seconds and ratios."""

    def options():
        made = onnxruntime.SessionOptions()
        made.intra_op_num_threads = threads
        return made

    providers = ["CPUExecutionProvider"]
    plain = onnxruntime.InferenceSession(model, options(), providers)
    ours = InferenceSession(model, options(), providers, precision=precision)
    feed = inputs(plain, shapes)
    worst = difference(plain.run(None, feed), ours.run(None, feed))
    before, after = in_turns([lambda: plain.run(None, feed), lambda: ours.run(None, feed)], budget)
    nodes = [{"name": name, **node.described(), "with": ours.report.fused.get(name, ())} for name, node in ours.nodes.items()]
    return {
        "nodes": nodes, "kept": ours.report.kept, "onnxruntime_s": before, "convt_s": after, "speed_up": before / after,
        "difference": worst, "precision": precision,
    }  # fmt: skip


def _shape(text):
    name, sizes = text.rsplit("=", 1)
    return name, [int(size) for size in sizes.split(",")]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m convt.onnxruntime", description=__doc__.split(": ", 1)[1])
    parser.add_argument("model", help="an ONNX file")
    parser.add_argument("--shape", action="append", type=_shape, default=[], metavar="NAME=N,N,...",
                        help="shape of an input; sizes that the model leaves open are 1 else")  # fmt: skip
    parser.add_argument("--precision", choices=PRECISIONS, help="what convt may take for float32 (default: CONVT_PRECISION)")
    parser.add_argument("--threads", type=int, default=0, help="of both (default: each its own number)")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds to time each for (default: 2)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    asked = parser.parse_args(arguments)
    try:
        found = compare(asked.model, dict(asked.shape), asked.threads, asked.budget, asked.precision)
    except Exception as error:  # ONNX Runtime's errors have no common class of their own
        parser.exit(1, f"{parser.prog}: {error}\n")
    if asked.json:
        print(json.dumps(found, indent=1))
        return 0
    for node in found["nodes"]:
        behind = "".join(f" + {each}" for each in node["with"])
        print(f"{node['name']}: {node['in']} -> {node['out']} by {node['algorithm']}{behind}")
    for name, why in found["kept"].items():
        print(f"{name}: left to ONNX Runtime, as {why}")
    if not found["nodes"] and not found["kept"]:
        print("no ConvTranspose nodes")
    print(f"ONNX Runtime {found['onnxruntime_s'] * 1e3:.3f} ms, with convt {found['convt_s'] * 1e3:.3f} ms: "
          f"{found['speed_up']:.2f} times as fast")  # fmt: skip
    print(f"largest difference {found['difference']:.1e} of the largest output")
    return 0


if __name__ == "__main__":
    sys.exit(main())
