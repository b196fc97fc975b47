"""Times of whole models in ONNX Runtime, before and after `convt.onnxruntime`, for `bench.models` ``--ways onnxruntime``.

PyTorch models are exported. The text detector is an ONNX file of an OCR package (rapidocr-onnxruntime). The models of
`published` come from packages that are downloaded.
"""

import importlib.util
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import convt.onnxruntime
from convt.onnxruntime.__main__ import SPINNING, difference, in_turns, node_seconds

from . import published, timing

_ROUNDS = 12  # turns of each session
_CLASSES = onnxruntime.InferenceSession, convt.onnxruntime.InferenceSession

# A program that loads a model and prints seconds and bytes. It runs in a process of its own.
_LOAD = """
import resource, sys, time
import onnxruntime
import {module}
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = {threads}
options.log_severity_level = 3
memory = lambda: int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before, start = memory(), time.perf_counter()
session = {module}.InferenceSession(sys.argv[1], options, ["CPUExecutionProvider"])
print(time.perf_counter() - start, memory() - before)
"""


def text_detector():
    """Return ``(path, inputs)`` of PP-OCRv4's text detector, for a page of 640x640 pixels."""
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    if found is None:
        raise ImportError("No module named 'rapidocr_onnxruntime'")
    path = Path(found.submodule_search_locations[0]) / "models" / "ch_PP-OCRv4_det_infer.onnx"
    return str(path), {"x": np.random.default_rng(0).standard_normal((1, 3, 640, 640), np.float32)}


def exported(model, x, path):
    """Export a PyTorch model to an ONNX file and return ``(path, inputs)``."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"])
    return path, {"x": x.contiguous().numpy()}


def _session(cls, model, threads, **more):
    """Make a session of class ``cls`` on the CPU. ``more`` sets further session options."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors only, because published models cause many warnings
    for name, value in more.items():
        setattr(options, name, value)
    return cls(model, options, ["CPUExecutionProvider"])


# ---------------------------------------------------------------- layers: ConvTranspose nodes and the nodes fused into them


def _load_named(path):
    """Load a model and name its unnamed nodes, because profiles refer to nodes by name."""
    model = onnx.load(path)
    taken = {node.name for node in model.graph.node}
    for n, node in enumerate(model.graph.node):
        if not node.name:
            node.name = next(name for name in (f"node{n}", f"node{n}'") if name not in taken)
    return model


def _layers(model):
    """Return {name: nodes} of the layers that convt computes: a ConvTranspose and the nodes fused into it."""
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # which keeps the names of values
    session = _session(convt.onnxruntime.InferenceSession, model.SerializeToString(), 1, graph_optimization_level=level)
    source = {name: node for node in model.graph.node for name in node.output}
    order = {node.name: n for n, node in enumerate(model.graph.node)}
    nodes = sorted(session.nodes.items(), key=lambda each: order[each[1].group.originals[-1].name])
    return {name: _chain(source, node.group.output, node.group.data) for name, node in nodes}


def _chain(source, name, data):
    """Return the nodes that compute ``name`` from ``data``, with the constants that they read, in order."""
    if name == data or name not in source:
        return []
    found = []
    for each in source[name].input:
        found += [node for node in _chain(source, each, data) if node not in found]
    return [*found, source[name]]


def _shares(data, layers, feed, threads):
    """Return {name: share of ONNX Runtime's time} of the layers, from ONNX Runtime's profiler."""

    def create(options):
        options.intra_op_num_threads = threads
        return onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])

    seconds = {name: each for name, (each, _) in node_seconds(create, feed, runs=10).items()}
    of_layers = {name: sum(seconds.get(node.name, 0.0) for node in chain) for name, chain in layers.items()}
    return {name: each / sum(seconds.values()) for name, each in of_layers.items()}


def _layer_times(model, chain, shape, threads, budget):
    """Time a layer alone. Return ``[ONNX Runtime's seconds, convt's seconds]``."""
    wanted = {name for node in chain for name in node.input}
    data = next(node for node in chain if node.op_type == "ConvTranspose").input[0]
    weights = [each for each in model.graph.initializer if each.name in wanted]
    graph = onnx.helper.make_graph(
        chain, "layer", [onnx.helper.make_tensor_value_info(data, 1, shape)],
        [onnx.helper.make_tensor_value_info(chain[-1].output[0], 1, None)], weights,
    )  # fmt: skip
    alone = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version).SerializeToString()
    feed = {data: np.random.default_rng(0).standard_normal(shape, np.float32)}
    sessions = [_session(cls, alone, threads) for cls in _CLASSES]
    return in_turns([lambda s=s: s.run(None, feed) for s in sessions], budget)


# ---------------------------------------------------------------- models


def _loading_costs(path, threads):
    """Measure loading a model, with ONNX Runtime and with convt: [(seconds, bytes)] of each, the least of three processes."""
    found = []
    for module in ("onnxruntime", "convt.onnxruntime"):
        command = [sys.executable, "-c", _LOAD.format(module=module, threads=threads), path]
        outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)]
        found.append(tuple(min(column) for column in zip(*(map(float, each.split()) for each in outputs), strict=True)))
    return found


def _timed_runs(data, feeds, threads, budget, order):
    """Make a session of each class, in this ``order``, and time the sessions on each feed.

    Return a list of {class: (outputs, seconds of the first run, least seconds of later runs)}.
    """
    sessions = {cls: _session(cls, data, threads) for cls in order}
    found = []
    for _, feed in feeds:
        first = {}
        for cls, session in sessions.items():
            time.sleep(SPINNING)
            start = time.perf_counter()
            first[cls] = session.run(None, feed), time.perf_counter() - start
        calls = [lambda s=s, f=feed: s.run(None, f) for s in sessions.values()]
        # Not the medians, because on a shared host the medians of whole models vary by more than convt changes them.
        least = timing.in_turns(calls, budget, _ROUNDS, min, pause=SPINNING)
        found.append({cls: (*first[cls], each) for cls, each in zip(order, least, strict=True)})
    return found


def measure(path, feeds, threads, budget):
    """Yield the figures of a model for each of ``feeds``, which are pairs of a size and inputs.

    The second session of a process is up to 6% slower than the first, even of the same class, because the weights of the first
    session occupy the memory that was free before. Therefore the sessions are made in both orders, and the least times count.
    """
    model, feeds = _load_named(path), list(feeds)
    layers, data = _layers(model), model.SerializeToString()
    costs = _loading_costs(path, threads)
    orders = [_timed_runs(data, feeds, threads, budget / 2, order) for order in (_CLASSES, _CLASSES[::-1])]
    plain, ours = (_session(cls, data, threads) for cls in _CLASSES)
    other = _session(
        onnxruntime.InferenceSession, data, threads,
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    )  # fmt: skip
    for runs, (size, feed) in zip(zip(*orders, strict=True), feeds, strict=True):
        before, after = (min(run[cls][2] for run in runs) for cls in _CLASSES)
        want, got = plain.run(None, feed), ours.run(None, feed)
        shares = _shares(data, layers, feed, threads)
        shapes = {name: ours.nodes[name].description()["in"] for name in layers}
        alone = {name: _layer_times(model, layers[name], shapes[name], threads, budget / len(layers)) for name in layers}
        gain = sum(a for a, _ in alone.values()) / sum(b for _, b in alone.values())
        share = sum(shares.values())
        yield {
            "size": size, "before": before, "share": share, "after": after, "speed_up": before / after,
            "layers": gain, "of_amdahl": before * (1 - share + share / gain) / after,
            "difference": difference(want, got), "own_difference": difference(want, other.run(None, feed)),
            "first_runs": tuple(runs[0][cls][1] for cls in _CLASSES), "loading": costs,
            "each": {
                name: {"in": shapes[name], "share": shares[name], "before": a, "after": b} for name, (a, b) in alone.items()
            },
        }  # fmt: skip


def feeds_of(name, made, folder):
    """Return the path of a model, and pairs of a size and inputs. ``made()`` makes the PyTorch model to export."""
    if name in published.PUBLISHED:
        return published.model_path(name), published.PUBLISHED[name].feeds()
    path, feed = text_detector() if name == "text_detector" else exported(*made(), os.path.join(folder, "model.onnx"))
    return path, [("x".join(map(str, feed["x"].shape)), feed)]
