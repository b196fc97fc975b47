"""What convt changes in a whole model: times of its nodes in both sessions, from ONNX Runtime's profiler."""

import json
import math
import os
import tempfile
from pathlib import Path

import onnxruntime

from .._call import worth
from .._call.worth import LayerTime, Worth
from .._run import config

_RUNS = 6  # profiled runs of each session; the first does not count
_SUFFIX = "_kernel_time"


def node_seconds(create, feed):
    """Return ``{name of a node: (seconds in a run, calls in a run)}`` of a session that ``create(options)`` returns."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, os.path.join(folder, "profile")
        session = create(options)
        for _ in range(_RUNS):
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    runs = [{}]
    for event in events:
        name = event["name"]
        if event.get("cat") == "Node" and name.endswith(_SUFFIX):
            runs[-1].setdefault(name.removesuffix(_SUFFIX), []).append(event["dur"] / 1e6)
        elif name == "model_run":
            runs.append({})
    counted = runs[1:-1]
    return {
        name: (min(sum(run.get(name, ())) for run in counted), max(len(run.get(name, ())) for run in counted))
        for name in {name for run in counted for name in run}
    }


def measured(session, host_seconds, convt_seconds, seconds, threads):
    """Return the `Worth` of a session of convt that has run.

    ``host_seconds`` and ``convt_seconds`` are results of `node_seconds`, and ``seconds`` the times of the whole in both.
    """
    report, limit, layers = session.report, worth.machine_limit(threads or config.get_num_threads()), []
    for name, node in session.nodes.items():
        if not node.shapes:
            continue  # no run has reached it
        (data, _), output = list(node.shapes.items())[-1]
        replaced = [host_seconds[each.name] for each in node.group.originals if each.name in host_seconds]
        host = sum(each for each, _ in replaced) if replaced else math.nan
        ours, calls = convt_seconds.get(node.host_name, (math.nan, 1))
        packed, of_limit = node.packed or node.last_packed[1], math.nan
        if packed is not None:
            of_limit = worth.planned(packed.operator, data, limit)[1] * calls / ours
        algorithm, fused = node.description()["algorithm"], report.fused.get(name, ())
        layers.append(LayerTime(name, data, output, host, ours, algorithm, of_limit, fused, calls))
    for name, why in report.kept.items():
        if name not in session.nodes:
            host, calls = host_seconds.get(name, (math.nan, 1))
            layers.append(LayerTime(name, (), (), host, algorithm=why, calls=calls))
    return Worth("ONNX Runtime", tuple(layers), *seconds, "ConvTranspose nodes, also in subgraphs and functions", _ADVICE)


_ADVICE = "Use convt.onnxruntime.InferenceSession."
