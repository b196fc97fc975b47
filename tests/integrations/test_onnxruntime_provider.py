"""Tests of convt's execution provider in sessions of ONNX Runtime itself: registration, options, errors, processes, threads."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx_models import PATHS, VERSION, both, conv, model_of, norm, onnx, onnxruntime, op, plain, weights

import convt.onnxruntime

NAME = "ConvtExecutionProvider"
X, W = weights(1, 6, 5, 7), weights(6, 4, 3, 3)


def decoder(inputs=("X", "W"), **attributes):
    """Return the bytes of a model of a node that stands alone and of one with an activation."""
    nodes = [conv(inputs, "a", strides=[2, 2], **attributes), conv(("a", "V"), "b"), op("Relu", ["b"], "Y")]
    constants = {"W": W, "V": weights(4, 3, 2, 2), "B": weights(4)}
    used = {name for node in nodes for name in node.input}
    return model_of(nodes, {"X": ("N", 6, "H", "V")}, constants={name: constants[name] for name in constants if name in used})


def session(model, **options):
    convt.onnxruntime.register()
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=[(NAME, options), "CPUExecutionProvider"])


def agrees(made, model):
    np.testing.assert_allclose(made.run(None, {"X": X})[0], plain(model).run(None, {"X": X})[0], rtol=1e-4, atol=1e-4)


def profiled(model, folder, **options):
    """Return the types of the nodes that a session with the provider runs, by the provider that computes them."""
    settings = onnxruntime.SessionOptions()
    settings.enable_profiling, settings.profile_file_prefix = True, str(folder / "profile")
    made = onnxruntime.InferenceSession(model.SerializeToString(), settings, [(NAME, options), "CPUExecutionProvider"])
    made.run(None, {"X": X})
    with open(made.end_profiling(), encoding="utf-8") as file:
        events = json.load(file)
    return [(e["args"]["provider"], e["args"]["op_name"]) for e in events if e["name"].endswith("_kernel_time")]


# ------------------------------------------------------------------------------------------------ registration and options


def test_registration():
    for _ in range(2):
        convt.onnxruntime.register()
    assert NAME in onnxruntime.get_available_providers() and convt.onnxruntime.get_ep_names() == [NAME]
    assert convt.onnxruntime.get_ep_name() == NAME and os.path.isfile(convt.onnxruntime.get_library_path())
    (device,) = [each for each in onnxruntime.get_ep_devices() if each.ep_name == NAME]
    assert device.device.type == onnxruntime.OrtHardwareDeviceType.CPU and device.ep_vendor == "convt"


def test_a_node_alone_is_a_kernel_and_fused_nodes_are_one(tmp_path):
    convt.onnxruntime.register()
    model = decoder()
    alone, fused = profiled(model, tmp_path)
    assert alone == (NAME, "ConvTranspose") and fused[0] == NAME and fused[1].startswith(NAME)
    unfused = profiled(model, tmp_path, fuse=0)
    assert unfused == [(NAME, "ConvTranspose")] * 2 + [("CPUExecutionProvider", "Relu")]


@pytest.mark.parametrize("options", [{}, {"threads": 1}, {"precision": "high"}, {"tune": "true"}, {"fuse": 0}], ids=str)
def test_options_of_the_provider(options):
    model = decoder(("X", "W", "B"))
    agrees(session(model, **options), model)


@pytest.mark.parametrize(("options", "message"), [
    ({"threads": "-1"}, "option threads: got '-1', wanted an integer >= 0"),
    ({"precision": "low"}, "option precision: got 'low', wanted one of highest, high, medium"),
    ({"tune": "2"}, "option tune: got '2', wanted 0 or 1"), ({"fuse": "no"}, "option fuse: got 'no', wanted 0 or 1"),
])  # fmt: skip
def test_options_that_are_refused(options, message):
    convt.onnxruntime.register()
    with pytest.raises(Exception, match=message):
        onnxruntime.InferenceSession(decoder().SerializeToString(), providers=[(NAME, options)], enable_fallback=0)


def test_devices_of_the_session_options():
    convt.onnxruntime.register()
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([each for each in onnxruntime.get_ep_devices() if each.ep_name == NAME], {"threads": "1"})
    options.log_severity_level = 3  # ONNX Runtime warns of the nodes that the CPU's provider computes
    model = decoder()
    made = onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert made.get_providers()[0] == NAME
    agrees(made, model)


def test_providers_of_a_session():
    kind, model = convt.onnxruntime.InferenceSession, decoder().SerializeToString()
    for providers, given in (
        (None, None), (["CPUExecutionProvider"], [{}]), ([NAME, "CPUExecutionProvider"], None), ([], None),
        ([(NAME, {"threads": 1}), "CPUExecutionProvider"], None), (["AzureExecutionProvider", "CPUExecutionProvider"], None),
    ):  # fmt: skip
        made = kind(model, None, providers, given)
        assert [name for name in made.get_providers() if "Azure" not in name] == [NAME, "CPUExecutionProvider"]
        assert len(made.nodes) == 2
    made.set_providers(["CPUExecutionProvider"])
    assert len(made.nodes) == 2 and made.report.fused == {"b": ("Relu",)}
    for each in (kind, onnxruntime.InferenceSession):
        with pytest.warns(UserWarning, match="provider 'NoSuchProvider' is not in available") as heard:
            each(model, providers=["NoSuchProvider"])
        assert len(heard) == 1
    for wrong in (5, [5], [()], [("CPUExecutionProvider",)]):
        assert issubclass(both(lambda cls, wrong=wrong: cls(model, providers=wrong, enable_fallback=0))[0], Exception)


@pytest.mark.parametrize("kind", ["fused", "ORT format"])
def test_models_that_onnx_runtime_saves(kind, tmp_path):
    options, model = onnxruntime.SessionOptions(), decoder()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(tmp_path / ("m.ort" if kind == "ORT format" else "m.onnx"))
    made = convt.onnxruntime.InferenceSession(model, options)
    agrees(made, model)
    if kind == "fused":
        saved = onnx.load(options.optimized_model_filepath)
        assert [node.op_type for node in saved.graph.node] == ["ConvTranspose", "ConvTranspose", "Relu"]
    again = convt.onnxruntime.InferenceSession(options.optimized_model_filepath)
    assert len(again.nodes) == 2
    agrees(again, model)


def test_long_names():
    w, a, b = (5000 * name for name in "wab")
    nodes = [conv(("X", w), a, name="n" * 5000, strides=[2, 2]), conv((a, w), b), op("Relu", [b], "Y")]
    model = model_of(nodes, {"X": None}, constants={w: weights(6, 6, 3, 3)})
    made = convt.onnxruntime.InferenceSession(model)
    assert len(made.nodes) == 2
    agrees(made, model)


# ------------------------------------------------------------------------------------------------ errors


DEQUANTIZE = op("DequantizeLinear", ["Q", "S"], "W")
QUANTIZED = {"Q": np.ones((6, 4, 3, 3), np.int8), "S": np.ones(5, np.float32)}
ERRORS = {
    "output_shape": ([conv(output_shape=[99, 99])], {"W": W}, {}), "channels": ([conv()], {"W": W}, {"X": X[:, :5]}),
    "rank": ([conv()], {"W": W}, {"X": X[0]}), "group": ([conv(group=2)], {"W": weights(5, 4, 3, 3)}, {"X": X[:, :5]}),
    "bias of two axes": ([conv(("X", "W", "B"))], {"W": W, "B": weights(1, 4)}, {}),
    "bias of one size": ([conv(("X", "W", "B"))], {"W": W, "B": weights(3)}, {}),
    "weights and bias of a run": ([conv(("X", "W", "B"))], {}, {"W": W, "B": weights(4, 1)}),
    "weights and bias of another rank": ([conv(("X", "W", "B"))], {}, {"W": W[..., 0], "B": weights(1, 4)}),
    "scale": ([DEQUANTIZE, conv()], QUANTIZED, {}),
    "scale of two axes": ([DEQUANTIZE, conv()], QUANTIZED | {"S": np.ones((2, 3), np.float32)}, {}),
    "channels of a scaled node": ([conv(output="a"), op("Mul", ["a", "C"], "b"), op("Add", ["b", "C"])],
                                  {"W": W, "C": weights(4, 1, 1)}, {"X": X[:, :5]}),
    "channels before slopes": ([conv(output="a"), op("Add", ["a", "S"], "b"), op("PRelu", ["b", "C"])],
                               {"W": W, "C": weights(4, 1, 1)}, {"X": X[:, :5], "S": weights(1, 4, 7, 9)}),
    "sum": ([conv(output="a"), op("Add", ["a", "S"], "Y")], {"W": W}, {"S": weights(1, 4, 2, 9)}),
    "norm": ([conv(output="a"), norm("a", "Y", 4)[0]], {"W": W} | dict(zip(
        norm("a", "Y", 4)[0].input[1:], [weights(4), weights(4), weights(3), weights(4)], strict=True)), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_onnx_runtimes_word_for_word(name):
    if name == "output_shape" and VERSION < (1, 28):
        pytest.skip("older versions read beyond the input for such an output_shape")
    nodes, constants, feed = ERRORS[name]
    inputs = {"X": None} | dict.fromkeys(each for each in feed if each != "X")
    model = model_of(nodes, inputs, constants=constants).SerializeToString()
    outcome = both(lambda kind: kind(model, providers=["CPUExecutionProvider"]).run(None, {"X": X} | feed))
    assert isinstance(outcome, tuple) and outcome[1], outcome


# ------------------------------------------------------------------------------------------------ processes and threads


def test_sessions_and_threads_at_once():
    model = decoder()
    want, sessions = plain(model).run(None, {"X": X})[0], [session(model, threads=n % 3) for n in range(4)]

    def run(n):
        return abs(sessions[n % 4].run(None, {"X": X})[0] - want).max()

    with ThreadPoolExecutor(16) as pool:
        assert max(pool.map(run, range(400))) < 1e-4


ENDS = {
    "a name": "", "a cycle": "class A: pass\na = A(); a.me, a.session = a, made",
    "a module": "import builtins; builtins.kept = made",
    "an exit": "import os; sys.stdout.flush(); os._exit(0)",
    "a fork": """
import os
child = os.fork()
if child == 0:
    ok = np.allclose(convt.onnxruntime.InferenceSession(model).run(None, {"X": X})[0], want, atol=1e-4)
    os._exit(0 if ok else 1)
assert os.waitpid(child, 0)[1] == 0
""",
}  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_processes_that_end_while_a_session_lives(end):
    code = f"""
import sys; sys.path[:0] = {PATHS!r}
from test_onnxruntime_provider import *
model = decoder()
made, want = session(model), plain(model).run(None, {{"X": X}})[0]
agrees(made, model)
print("done", flush=True)
{ENDS[end]}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_onnx_is_not_needed(tmp_path):
    onnx.save(model_of([conv()], {"X": None}, constants={"W": W}), tmp_path / "m.onnx")
    code = f"""
import sys; sys.modules["onnx"] = None
import numpy as np, convt.onnxruntime
session = convt.onnxruntime.InferenceSession({str(tmp_path / "m.onnx")!r})
assert len(session.nodes) == 1 and session.run(None, {{"X": np.ones((1, 6, 5, 7), np.float32)}})[0].shape[1] == 4
try:
    session.run(None, {{"X": np.ones((1, 5, 5, 7), np.float32)}})
except Exception as error:
    print("filter number not equal to input channel number" in str(error))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_an_older_onnx_runtime_is_refused():
    code = 'import onnxruntime; onnxruntime.__version__ = "1.24.4"\nimport convt.onnxruntime'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert "convt.onnxruntime needs ONNX Runtime 1.25 or newer: got 1.24.4" in done.stderr
