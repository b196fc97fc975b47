"""Whole models in ONNX Runtime, before and after `convt.onnxruntime`: what `bench.models` measures by ``--ways onnxruntime``.

Models of PyTorch are exported; a text detector comes as ONNX in an OCR package (rapidocr-onnxruntime).
"""

import importlib.util
import json
import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import convt.onnxruntime
from convt.onnxruntime import _scopes
from convt.onnxruntime.__main__ import difference, in_turns


def text_detector():
    """PP-OCRv4's text detector, a page of 640x640 pixels: ``(path, inputs)``."""
    found = importlib.util.find_spec("rapidocr_onnxruntime")
    if found is None:
        raise ImportError("No module named 'rapidocr_onnxruntime'")
    path = Path(found.submodule_search_locations[0]) / "models" / "ch_PP-OCRv4_det_infer.onnx"
    return str(path), {"x": np.random.default_rng(0).standard_normal((1, 3, 640, 640), np.float32)}


def exported(model, x, path):
    """A model of PyTorch as an ONNX file: ``(path, inputs)``."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), path, dynamo=False, opset_version=17, input_names=["x"], output_names=["y"])
    return path, {"x": x.contiguous().numpy()}


def _session(cls, model, threads, **more):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in more.items():
        setattr(options, name, value)
    return cls(model, options, ["CPUExecutionProvider"])


def _share(path, feed, threads, calls):
    """The part of ONNX Runtime's own time that its ConvTranspose nodes take, as its profiler counts it."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "profile")
        session = _session(onnxruntime.InferenceSession, path, threads, enable_profiling=True, profile_file_prefix=prefix)
        for _ in range(calls):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text())
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")]
    ours = sum(e["dur"] for e in nodes if e["args"].get("op_name") == "ConvTranspose")
    return ours / sum(e["dur"] for e in nodes)


def _alone(path, nodes, threads, budget):
    """Seconds of the transposed convolutions by themselves: ``(ONNX Runtime's, convt's)``."""
    model, totals = onnx.load(path), [0.0, 0.0]
    scope, rng = _scopes.Scope(model.graph, model.ir_version), np.random.default_rng(0)
    transposed = {node.name or node.output[0]: node for node in scope.nodes if node.op_type == "ConvTranspose"}
    for name, node in nodes.items():
        single, shape = transposed[name], node.described()["in"]
        sizes = [(each, scope.value(each).dims) for each in single.input[1:]]
        weights = [onnx.numpy_helper.from_array(rng.standard_normal(dims, np.float32), each) for each, dims in sizes]
        graph = onnx.helper.make_graph(
            [single], name, [onnx.helper.make_tensor_value_info(single.input[0], 1, shape)],
            [onnx.helper.make_tensor_value_info(single.output[0], 1, None)], weights,
        )  # fmt: skip
        alone = onnx.helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version).SerializeToString()
        feed = {single.input[0]: rng.standard_normal(shape, np.float32)}
        classes = onnxruntime.InferenceSession, convt.onnxruntime.InferenceSession
        sessions = [_session(cls, alone, threads) for cls in classes]
        times = in_turns([lambda s=s, f=feed: s.run(None, f) for s in sessions], budget / len(nodes))
        totals = [total + time for total, time in zip(totals, times, strict=True)]
    return totals


def measure(path, feed, threads, budget):
    """One model's figures, as `bench.models.measure` has them."""
    plain = _session(onnxruntime.InferenceSession, path, threads)
    ours = _session(convt.onnxruntime.InferenceSession, path, threads)
    worst = difference(plain.run(None, feed), ours.run(None, feed))
    before, after = in_turns([lambda: plain.run(None, feed), lambda: ours.run(None, feed)], budget)
    share = _share(path, feed, threads, calls=10)
    theirs, convts = _alone(path, ours.nodes, threads, budget)
    return {
        "before": before, "share": share, "after": after, "speed_up": before / after, "layers": theirs / convts,
        "of_amdahl": before * (1 - share + share * convts / theirs) / after, "difference": worst,
    }  # fmt: skip
