"""Tests of convt.onnxruntime's session as a replacement of ONNX Runtime's: it changes none of its arguments, a run raises the
errors of ONNX Runtime, and signals reach the caller."""

import contextlib
import copy
import gc
import pickle
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from cases import meanwhile
from onnx_models import PATHS, VERSION, both, close, conv, helper, model_of, onnx, onnxruntime, plain, weights

from convt.onnxruntime import InferenceSession, _host, _node, _provider

X = weights(1, 6, 5, 7)
W = weights(6, 4, 3, 3)


def simple(value=W, **attributes):
    return model_of([conv(strides=[2, 2], **attributes)], {"X": ("N", 6, "H", "V")}, constants={"W": value})


def properties(options):
    names = [name for name in dir(type(options)) if isinstance(getattr(type(options), name), property)]
    return {name: getattr(options, name) for name in names}


# ------------------------------------------------------------------------------------------------ arguments


def test_options_are_not_changed():
    options = onnxruntime.SessionOptions()
    before = properties(options)
    session = InferenceSession(simple(), options)
    assert session.report.packed and properties(options) == before


def test_providers_bytes_and_models_are_not_changed():
    data, model = simple().SerializeToString(), simple()
    providers, settings = ["CPUExecutionProvider"], [{}]
    kept = model.SerializeToString()
    session = InferenceSession(data, None, providers, settings)
    assert session._model_bytes is data and session._model_path is None
    assert providers == ["CPUExecutionProvider"] and settings == [{}]
    assert InferenceSession(model).report.packed and model.SerializeToString() == kept


@pytest.mark.parametrize("name", ["", "a", "~/model.onnx", "/nowhere/model.onnx", b"bytes.onnx", b"no model", None])
def test_paths_are_as_in_onnx_runtime(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    onnx.save(simple(), "model.onnx")
    onnx.save(simple(), "bytes.onnx")
    given = tmp_path / "model.onnx" if name is None else name
    want = both(lambda kind: kind(given, providers=["CPUExecutionProvider"])._model_path)
    if not isinstance(want, tuple):
        session = InferenceSession(given)
        assert session.report.packed and session._model_path == want and session._model_bytes is None


@pytest.mark.parametrize("kind", [bytearray, memoryview, list])
def test_what_is_no_model(kind):
    assert both(lambda session: session(kind(simple().SerializeToString())))[0] is TypeError


@pytest.mark.parametrize("copier", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_of_sessions(copier):
    """Check that a deep copy or pickle fails with ONNX Runtime's own error."""
    both(lambda kind: type(copier(kind(simple().SerializeToString()))) is kind)


@pytest.mark.skipif(not hasattr(onnxruntime.SessionOptions, "use_per_session_threads"), reason="options lack this property")
def test_options_that_onnx_runtime_refuses():
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    _, message = both(lambda kind: kind(simple().SerializeToString(), options, enable_fallback=0))
    assert "per session" in message


def test_options_with_providers_leave_the_model():
    options = onnxruntime.SessionOptions()
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == "CPUExecutionProvider"]
    options.add_provider_for_devices(devices, {})
    session = InferenceSession(simple(), options)
    assert not session.nodes and session.report.reason == "the session options have providers, without convt's"
    close(session, plain(simple()), {"X": X})


@pytest.mark.skipif(VERSION < (1, 28), reason="older versions read beyond the input for such an output_shape")
def test_errors_of_nodes_side_by_side():
    """Check that errors of nodes have the class and message of ONNX Runtime's, on any thread that computes a node."""
    options = onnxruntime.SessionOptions()
    options.execution_mode, options.inter_op_num_threads = onnxruntime.ExecutionMode.ORT_PARALLEL, 3
    nodes = [conv(output=f"c{n}", output_shape=[99, 99]) for n in range(4)]
    nodes.append(helper.make_node("Sum", [node.output[0] for node in nodes], ["Y"]))
    model = model_of(nodes, {"X": ("N", 6, "H", "V")}, constants={"W": W})
    session = InferenceSession(model, options)
    with pytest.raises(Exception, match="output_shape") as theirs:
        plain(model, options).run(None, {"X": X})
    with pytest.raises(type(theirs.value), match="output_shape"):
        session.run(None, {"X": X})
    assert not _host.foreign_exceptions and session.run(None, {"X": weights(1, 6, 97, 97)})[0].shape == (1, 4, 99, 99)


def test_runs_on_a_thread_of_onnx_runtime():
    model = model_of([conv(strides=[2, 2])], {"X": None}, constants={"W": W})
    session, found, ready = InferenceSession(model), [], threading.Event()

    def callback(results, _, error):
        found.append((results and results[0].shape, error))
        ready.set()

    for data in (X, weights(1, 5, 4, 4), X):
        ready.clear()
        session.run_async(["Y"], {"X": data}, callback, None)
        assert ready.wait(30)
    assert found[0] == found[2] == ((1, 4, 11, 15), "") and "ConvTranspose" in found[1][1]
    session.run(None, {"X": X})


# ------------------------------------------------------------------------------------------------ exceptions of signal handlers


class Mine(Exception):
    pass


@pytest.fixture
def no_collector():
    """Disable the garbage collector. Test tools add callbacks to it, and Python drops an exception that a handler raises in
    these."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("module", "foreign"), [({}, False), ({"__name__": "convt.a"}, False), ({"__name__": "mine"}, True)])
def test_modules_of_an_exception(module, foreign):
    with pytest.raises(ValueError, match="here") as raised:
        exec("raise ValueError('here')", dict(module))
    raised.value.__traceback__ = raised.value.__traceback__.tb_next
    assert _host.is_foreign(raised.value) == foreign


def ways(session):
    """Return every call that runs a session."""
    x, names = onnxruntime.OrtValue.ortvalue_from_numpy(X), ["Y"]
    binding = session.io_binding()
    binding.bind_cpu_input("X", X)
    binding.bind_output("Y")
    return {
        "run": lambda: session.run(names, {"X": X}),
        "run_with_ort_values": lambda: session.run_with_ort_values(names, {"X": x}),
        "run_with_iobinding": lambda: session.run_with_iobinding(binding),
    }


@contextlib.contextmanager
def handled(handler):
    """Let a function handle SIGALRM."""
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("way", ["run", "run_with_ort_values", "run_with_iobinding"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Mine, ValueError, RuntimeError, MemoryError])
@pytest.mark.usefixtures("no_collector")
def test_exceptions_of_signals_reach_the_caller(kind, way):
    session = InferenceSession(simple())
    (want,) = session.run(None, {"X": X})
    call, raised = ways(session)[way], []

    def handler(*_):
        raised.append(kind("from the handler"))
        raise raised[-1]

    with handled(handler):
        for n in range(6):
            with pytest.raises(kind) as caught:
                signal.setitimer(signal.ITIMER_REAL, 0.002 + 0.0007 * n)
                while True:
                    call()
            assert caught.value is raised[-1] and len(raised) == n + 1
    assert (session.run(None, {"X": X})[0] == want).all() and not _host.foreign_exceptions


def test_a_signal_within_a_node(monkeypatch):
    """Check signals in each step of computing a node and while nodes are made; each time another while the first is handled."""
    calls = []

    def handler(*_):
        calls.append(None)
        if len(calls) % 2:
            signal.raise_signal(signal.SIGALRM)
        raise Mine(len(calls))

    session, model = InferenceSession(simple()), simple()
    places = [(_node.Node, name, lambda: session.run(None, {"X": X})) for name in ("output_shape", "compute", "_compute")]
    places += [(place, name, lambda: InferenceSession(model)) for place, name in
               ((_provider, "Provider"), (_provider._fuse, "fused"), (_provider, "Node"))]  # fmt: skip
    with handled(handler):
        for place, name, call in places:
            with monkeypatch.context() as patch:
                patch.setattr(place, name, lambda *_: signal.raise_signal(signal.SIGALRM))
                with pytest.raises(Mine):
                    call()
    assert not _host.foreign_exceptions and not _provider.sessions
    assert session.run(None, {"X": X})[0].shape == (1, 4, 11, 15)


@pytest.mark.usefixtures("no_collector")
def test_other_threads_go_on():
    session = InferenceSession(simple())
    (want,) = session.run(None, {"X": X})

    def handler(*_):
        raise Mine

    with handled(handler), meanwhile(lambda: np.testing.assert_array_equal(session.run(None, {"X": X})[0], want), 3):
        for _ in range(5):
            with pytest.raises(Mine):
                signal.setitimer(signal.ITIMER_REAL, 0.01)
                while True:
                    session.run(None, {"X": X})


def test_ctrl_c_from_outside():
    code = f"""
import sys; sys.path[:0] = {PATHS!r}
from test_onnxruntime_session import *
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell makes its children in the background ignore
session = InferenceSession(simple())
print("ready", flush=True)
try:
    while True:
        session.run(None, {{"X": X}})
except KeyboardInterrupt:
    print("stopped", session.run(None, {{"X": X}})[0].shape)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "stopped (1, 4, 11, 15)\n"
