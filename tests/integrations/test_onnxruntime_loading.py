"""Tests of how convt.onnxruntime loads models: models with large tensors and files, the memory that loading takes, and the
reasons for nodes that are left to ONNX Runtime."""

import io
import json
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from onnx_models import PATHS, VERSION, both, close, conv, info, model_of, norm, onnx, onnxruntime, outcome, plain, weights

from convt.onnxruntime import InferenceSession, _file, _host, _loading, _node, _options, _rewrite

TensorProto, helper, numpy_helper = onnx.TensorProto, onnx.helper, onnx.numpy_helper
X = weights(1, 6, 5, 7)
W = weights(6, 4, 3, 3)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")


def simple(**attributes):
    return model_of([conv(**attributes)], {"X": ("N", 6, "H", "V")}, constants={"W": W})


# ------------------------------------------------------------------------------------------------ large tensors


def large(count=3):
    """Return a model whose first tensors are large, in each of the fields that may hold them."""
    nodes = [conv(("X", "W0"), "c0")]
    nodes += [conv((f"c{n}", f"W{n + 1}"), f"c{n + 1}") for n in range(count)]
    nodes[-1].output[0] = "Y"
    arrays = {f"W{n}": weights(64, 64, 3, 3) / 10 for n in range(count + 1)}
    model = model_of(nodes, {"X": (1, 64, 4, 4)}, constants=arrays)
    nodes[0].doc_string = "a text that is longer than what is read of a field at once"
    model.graph.initializer[1].CopyFrom(helper.make_tensor("W1", TensorProto.FLOAT, (64, 64, 3, 3), arrays["W1"].reshape(-1)))
    return model


def sorted_tensors(model):
    return sorted(each.SerializeToString(deterministic=True) for each in model.graph.initializer)


@pytest.mark.parametrize("way", ["path", "bytes"])
def test_large_tensors_stay_where_they_lie(tmp_path, way):
    model = large()
    onnx.save(model, tmp_path / "m.onnx")
    source = _file.Source(tmp_path / "m.onnx", None) if way == "path" else _file.Source(None, model.SerializeToString())
    size = 4 * 64 * 64 * 3 * 3
    assert source.model.ByteSize() < 2000 and 0 <= _file.source_bytes(source.model) - 4 * size < 200 and not source.external
    assert [tuple(each.dims) for each in source.model.graph.initializer] == [(64, 64, 3, 3)] * 4
    read = onnx.load_from_string(b"".join(source.pieces(source.model)))
    assert sorted_tensors(read) == sorted_tensors(model)
    del read.graph.initializer[:], model.graph.initializer[:]
    assert read == model


@pytest.mark.parametrize("way", ["path", "bytes"])
@pytest.mark.parametrize("small", [0, 1 << 30], ids=["by a file", "as bytes"])
def test_sessions_of_large_models(tmp_path, monkeypatch, way, small):
    monkeypatch.setattr(_loading, "_SMALL", small)
    model = large()
    onnx.save(model, tmp_path / "m.onnx")
    session = InferenceSession(tmp_path / "m.onnx" if way == "path" else (tmp_path / "m.onnx").read_bytes())
    assert len(session.report.packed) == 4
    close(session, plain(model), {"X": weights(1, 64, 4, 4) / 100})


def test_tensors_that_are_not_the_usual_ones_stay_as_they_are():
    """Check unusual tensors: one with its data twice, one with its data although it names an external file, and messages in two
    parts. They must not change."""
    model = large(1)
    twice = model.SerializeToString() + onnx.ModelProto(graph=onnx.GraphProto(initializer=[
        numpy_helper.from_array(weights(200, 200), "more")])).SerializeToString()  # fmt: skip
    odd = onnx.TensorProto(name="odd", data_type=1, dims=[200, 200], raw_data=bytes(160000), float_data=[0.0] * 40000)
    other = onnx.ModelProto(graph=onnx.GraphProto(initializer=[odd])).SerializeToString()
    for data in (twice, model.SerializeToString() + other):
        source = _file.Source(None, data)
        assert sorted_tensors(onnx.load_from_string(b"".join(source.pieces(source.model)))) == sorted_tensors(
            onnx.load_from_string(data)
        )


@pytest.mark.parametrize("named", [False, True])
def test_large_constant_nodes_are_initializers(named):
    """Check that large Constant nodes become initializers, as in ONNX Runtime."""
    array = numpy_helper.from_array(weights(40, 40, 3, 3), "other name")
    words = {"name": "held", "doc_string": "text"} if named else {}
    constant = helper.make_node("Constant", [], ["W"], value=array, **words)
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["V"], value=array), conv(("X", "V"), "Z")], "g", [], [info("Z")]
    )
    choice = helper.make_node("If", ["which"], ["U"], then_branch=inner, else_branch=inner)
    floats = helper.make_node("Constant", [], ["F"], value_floats=[1.0] * 2000)
    total = [helper.make_node("ReduceSum", ["F"], ["one"], keepdims=0), helper.make_node("Add", ["U", "one"], ["Y1"])]
    model = model_of([constant, conv(), choice, floats, *total], {"X": (1, 40, 4, 4)}, ("Y", "Y1", "W"))
    model.graph.input.append(info("which", TensorProto.BOOL, []))
    source = _file.Source(None, model.SerializeToString())
    assert [each.name for each in source.model.graph.initializer] == ["W"]
    assert [node.op_type for node in source.model.graph.node].count("Constant") == 1
    session = InferenceSession(model)
    assert len(session.nodes) == 3 and "Y" in session.report.packed
    close(session, plain(model), {"X": weights(1, 40, 4, 4), "which": np.array(True)})


def test_what_is_no_model_is_none():
    data = large(1).SerializeToString()
    for cut in [*range(1, 60, 3), len(data) // 2, len(data) - 1]:
        want = outcome(onnx.load_from_string, data[:cut])
        want = None if isinstance(want, tuple) else want
        try:
            source = _file.Source(None, data[:cut])
            found = onnx.load_from_string(b"".join(source.pieces(source.model)))
        except Exception as error:
            assert isinstance(error, ValueError | DecodeError)
            found = None
        assert found == want, cut
    for bad in (b"\xff" * 20, b"\x0b", b"\x3a\xff\xff\xff\xff\x0f", bytes(5)):
        with pytest.raises(Exception, match="."):
            list(_file._fields(io.BytesIO(bad), len(bad), 0)) or onnx.ModelProto.FromString(bad)


def contents(model):
    """Return a model's tensors, those of its Constant nodes included, and its other nodes."""
    tensors, nodes = [], []
    for node in model.graph.node:
        if node.op_type == "Constant" and len(node.attribute) == len(node.output) == 1 and node.attribute[0].HasField("t"):
            tensors.append((node.output[0], node.attribute[0].t))
        else:
            nodes.append(node.SerializeToString(deterministic=True))
    tensors += [(each.name, each) for each in model.graph.initializer]
    found = []
    for name, tensor in tensors:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor)
        copy.ClearField("name")
        found.append((str(name), copy.SerializeToString(deterministic=True)))
    return sorted(found), nodes


def test_models_with_mistakes_are_read_as_by_protobuf(monkeypatch):
    """Models in which random bytes change: convt reads the contents that protobuf reads, and refuses what protobuf refuses."""
    monkeypatch.setattr(_file, "LARGE", 16)
    nodes = [helper.make_node("Constant", [], ["C"], value=numpy_helper.from_array(weights(3, 4), "q")), conv(("X", "C"))]
    model = model_of(nodes, {"X": (1, 3, 4)}, constants={"W": weights(3, 3, 2), "V": weights(5)})
    model.graph.initializer.append(helper.make_tensor("f", TensorProto.FLOAT, (6,), range(6)))
    model.graph.initializer.append(helper.make_tensor("i", TensorProto.INT64, (6,), range(6)))
    data, rng, read = model.SerializeToString(), np.random.default_rng(0), 0
    for _ in range(1500):
        changed = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 3)):
            changed[at] = rng.choice([0, 128, 255, changed[at] ^ 1, rng.integers(256)])
        try:
            want = onnx.ModelProto.FromString(bytes(changed))
        except DecodeError:
            with pytest.raises((ValueError, DecodeError)):
                source = _file.Source(None, bytes(changed))
                onnx.ModelProto.FromString(b"".join(source.pieces(source.model)))
            continue
        source = _file.Source(None, bytes(changed))
        found = onnx.ModelProto.FromString(b"".join(source.pieces(source.model)))
        assert contents(found) == contents(want)
        read += 1
    assert read > 500


MEMORY = """
import ctypes, gc, sys
sys.path[:0] = {paths!r}
import numpy as np, onnx, onnxruntime, convt.onnxruntime

def mebibytes(name):
    status = dict(line.split(":") for line in open("/proc/self/status"))  # resource.ru_maxrss may be the parent's
    return int(status[name].split()[0]) // 1024

before = mebibytes("VmRSS")
given = {path!r} if {way!r} == "path" else open({path!r}, "rb").read()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = {module}.InferenceSession(given, options, ["CPUExecutionProvider"])
session.run(None, {{"X": np.ones((1, 8, 4, 4), np.float32)}})
if {module} is convt.onnxruntime:
    assert len(session.report.packed) == 1, session.report
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
print(mebibytes("VmHWM") - before, mebibytes("VmRSS") - before)
"""


@LINUX
@pytest.mark.parametrize("way", ["path", "bytes"])
def test_memory_of_loading(tmp_path, way):
    """Check that loading 160 MiB takes at most 1.1 times the memory of ONNX Runtime, without a second copy that stays.

    ONNX Runtime packs each of the ten matrices and frees the original. By default glibc moves large blocks from mappings of
    their own to the heap after the first was freed, and the heap returns a block to the system only if no later block is in
    use. Memory then differs by over 100 MiB between processes. A fixed threshold gives each matrix a mapping of its own, so
    that the figures count what is in use. They begin after the imports.
    """
    arrays = {f"M{n}": np.full((2048, 2048), n + 1, np.float32) for n in range(10)} | {"W": weights(8, 8, 1, 1)}
    size = sum(each.nbytes for each in arrays.values()) >> 20
    nodes = [conv(output="c"), helper.make_node("Reshape", ["c", "S"], ["h"]), helper.make_node("Tile", ["h", "R"], ["t0"])]
    nodes += [helper.make_node("MatMul", [f"t{n}", f"M{n}"], [f"t{n + 1}"]) for n in range(10)]
    nodes[-1].output[0] = "Y"
    arrays |= {"S": np.array([1, 128]), "R": np.array([1, 16])}
    path = str(tmp_path / "m.onnx")
    onnx.save(model_of(nodes, {"X": (1, 8, 4, 4)}, constants=arrays), path)
    del arrays
    figures = {}
    for module in ("onnxruntime", "convt.onnxruntime"):
        code = MEMORY.format(paths=PATHS, path=path, way=way, module=module)
        env = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
        assert done.returncode == 0, done.stderr
        figures[module] = [int(each) for each in done.stdout.split()]
    (peak, kept), (ours, ours_kept) = figures.values()
    assert ours <= 1.1 * peak and ours_kept <= kept + size / 8, figures


# ------------------------------------------------------------------------------------------------ saved models


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_ALL"])
def test_an_optimised_model_is_onnx_runtimes_own(tmp_path, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    model = model_of([conv(output="c"), helper.make_node("Relu", ["c"], ["Y"])], {"X": X.shape}, constants={"W": W})
    session = InferenceSession(model, options)
    assert session.report.fused == {"c": ("Relu",)}
    assert session.get_session_options().optimized_model_filepath == options.optimized_model_filepath
    for each in (InferenceSession, onnxruntime.InferenceSession):
        loaded = each(options.optimized_model_filepath, providers=["CPUExecutionProvider"])
        close(loaded, plain(model), {"X": X})
    assert not any(node.domain == "convt" for node in onnx.load(options.optimized_model_filepath).graph.node)


# ------------------------------------------------------------------------------------------------ reasons


def test_onnx_runtimes_own_format_has_a_reason(tmp_path):
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(simple().SerializeToString(), options, ["CPUExecutionProvider"])
    told = onnxruntime.SessionOptions()
    told.add_session_config_entry("session.load_model_format", "ORT")
    data = (tmp_path / "m.ort").read_bytes()
    for given in ((tmp_path / "m.ort",), (data,), (data, told)):
        session = InferenceSession(*given)
        said = "convt computes 0 ConvTranspose nodes: none, because the model is in ONNX Runtime's own format (ORT)"
        assert str(session.report) == said
        assert session.run(None, {"X": X})[0].shape == (1, 4, 7, 9)


def test_a_fallback_says_whose_refusal_it_was(monkeypatch):
    from convt.onnxruntime import _session

    create = onnxruntime.InferenceSession._create_inference_session

    def refuse(self, *arguments):
        if b"convt" in (self._model_bytes or b""):
            onnxruntime.InferenceSession(b"no model")
        create(self, *arguments)

    monkeypatch.setattr(onnxruntime.InferenceSession, "_create_inference_session", refuse)
    monkeypatch.setattr(_host, "_LIBRARIES", _host._LIBRARIES | {__name__.partition(".")[0]})
    session = InferenceSession(simple())
    assert session.report.reason.startswith("ONNX Runtime refuses the model with convt's nodes: ")
    assert list(session.report.kept) == ["Y"] and not session.nodes
    left = _session._cause(RuntimeError("made"), ["up"], {0: ValueError("strides: got 3")})
    assert str(left) == "convt refuses up: ValueError: strides: got 3"


def chain(count):
    """Return a model of nodes n0, n1, ... one behind the other."""
    names = ["X", *(f"c{n}" for n in range(count))]
    nodes = [conv((names[n], "W"), names[n + 1], name=f"n{n}", pads=[1] * 4) for n in range(count)]
    return model_of(nodes, {"X": X.shape}, names[-1:], {"W": weights(6, 6, 3, 3) / 5})


@pytest.mark.parametrize("bad", [{"n0"}, {"n4"}, {"n2", "n6"}, {"n0", "n1", "n5"}, {f"n{n}" for n in range(7)}])
def test_refused_nodes_are_left_out_and_the_others_served(bad, monkeypatch):
    create, tries = onnxruntime.InferenceSession._create_inference_session, []

    def refuse(self, *arguments):
        tries.append({node.name for node in onnx.load_from_string(self._model_bytes).graph.node if node.domain == "convt"})
        if found := tries[-1] & bad:
            raise RuntimeError(f"no {sorted(found)}")
        create(self, *arguments)

    monkeypatch.setattr(onnxruntime.InferenceSession, "_create_inference_session", refuse)
    monkeypatch.setattr(_host, "_LIBRARIES", _host._LIBRARIES | {__name__.partition(".")[0]})
    model = chain(7)
    session = InferenceSession(model)
    assert set(session.report.packed) == set(session.nodes) == {f"n{n}" for n in range(7)} - bad
    if len(bad) < 7:
        assert {*session.report.kept} == bad and not session.report.reason
    for name in bad:
        assert f"'{name}'" in session.report.kept[name]
    assert len(tries) <= 2 + 6 * len(bad)
    monkeypatch.undo()
    (got,), (want,) = (each.run(None, {"X": X}) for each in (session, plain(model)))
    assert abs(got - want).max() <= 1e-5 * abs(want).max()


def test_the_search_for_refused_nodes_ends(monkeypatch):
    from convt.onnxruntime import _session

    create, tries = onnxruntime.InferenceSession._create_inference_session, []

    def refuse(self, *arguments):
        tries.append(b"convt" in self._model_bytes)
        if tries[-1]:
            raise RuntimeError("no")
        create(self, *arguments)

    monkeypatch.setattr(_session, "_PATIENCE", 0)
    monkeypatch.setattr(onnxruntime.InferenceSession, "_create_inference_session", refuse)
    monkeypatch.setattr(_host, "_LIBRARIES", _host._LIBRARIES | {__name__.partition(".")[0]})
    session = InferenceSession(chain(7))
    assert tries == [True, False] and len(session.report.kept) == 7
    assert session.report.reason == "ONNX Runtime refuses the model with convt's nodes: no"


def test_a_node_that_neither_computes_is_left_out(monkeypatch):
    made = _node.Node.__init__

    def refuse(self, text, *rest):
        if '"node": 1' in text and len(_host.sessions) and _host.sessions[json.loads(text)["session"]].nodes:
            _host.sessions[json.loads(text)["session"]].nodes[1] = ValueError("strides: got 3")
            raise ValueError("strides: got 3")
        made(self, text, *rest)

    monkeypatch.setattr(_host, "_LIBRARIES", _host._LIBRARIES | {__name__.partition(".")[0]})
    monkeypatch.setattr(_node.Node, "__init__", refuse)
    session = InferenceSession(chain(2))
    assert session.report.packed == ("n0",)
    assert session.report.kept == {"n1": "convt refuses it: ValueError: strides: got 3"}


def test_a_full_disk_leaves_the_model(monkeypatch):
    class Full(io.BytesIO):
        def writelines(self, _):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(_loading, "_SMALL", 0)
    monkeypatch.setattr(_loading.tempfile, "TemporaryFile", Full)
    session = InferenceSession(large())
    assert "copy of the model for ONNX Runtime cannot be made: [Errno 28] No space left on device" in session.report.kept["Y"]
    assert session.run(None, {"X": weights(1, 64, 4, 4)})[0].shape == (1, 64, 12, 12)


@pytest.mark.parametrize("way", ["replaced", "overwritten"])
def test_a_file_that_changes_meanwhile(tmp_path, monkeypatch, way):
    """Check a file that changes while it is loaded: ONNX Runtime reads the new file, and weights of one file are never used
    with the graph of the other."""
    models = [large(), large()]
    paths = [tmp_path / "m.onnx", tmp_path / "other.onnx"]
    for model, path in zip(models, paths, strict=True):
        onnx.save(model, path)
    rewrite = _rewrite.rewrite

    def change(*arguments):
        if way == "replaced":
            paths[1].replace(paths[0])
        else:
            onnx.save(models[1], paths[0])
        return rewrite(*arguments)

    monkeypatch.setattr(_rewrite, "rewrite", change)
    session = InferenceSession(paths[0])
    assert "the model file changed while convt read it" in session.report.kept["Y"]
    close(session, plain(models[1]), {"X": weights(1, 64, 4, 4) / 100})


def test_no_report_without_a_reason():
    assert InferenceSession.__new__(InferenceSession).report.reason


def test_providers_that_are_no_others():
    for providers in (["AzureExecutionProvider", "CPUExecutionProvider"], [("CPUExecutionProvider", {})]):
        if {each if isinstance(each, str) else each[0] for each in providers} <= {*onnxruntime.get_available_providers()}:
            assert InferenceSession(simple(), providers=providers).report.packed == ("Y",)


@pytest.mark.parametrize("providers", [5, [5], [()], [("CPUExecutionProvider",)]])
def test_what_are_no_providers(providers):
    both(lambda kind: kind(simple().SerializeToString(), providers=providers, enable_fallback=0).get_providers())


def test_nodes_after_set_providers(tmp_path):
    onnx.save(simple(), tmp_path / "m.onnx")
    session = InferenceSession(tmp_path / "m.onnx")
    before = session.nodes["Y"]
    session.set_providers(["CPUExecutionProvider"])
    assert session.nodes["Y"] is not before and session.report.packed == ("Y",)
    assert session.run(None, {"X": X})[0].shape == (1, 4, 7, 9)
    assert session.nodes["Y"].shapes and session._model_path == str(tmp_path / "m.onnx") and not _host.sessions


@pytest.mark.parametrize("built", [False, True], ids=["built without it", "without a device"])
def test_providers_that_do_not_work_here(built, monkeypatch):
    """Check a provider that ONNX Runtime warns of and does without: convt serves the session, which warns as often."""
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this build of ONNX Runtime has the provider")
    if built:
        available = ["CUDAExecutionProvider", *onnxruntime.get_available_providers()]
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    providers, found = ["CUDAExecutionProvider", "CPUExecutionProvider"], []
    for kind in (onnxruntime.InferenceSession, InferenceSession):
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            session = kind(simple().SerializeToString(), providers=providers)
        found.append((session.get_providers(), session.get_provider_options(), [str(each.message) for each in warned]))
    assert found[0] == found[1] and len(found[0][2]) == 1
    assert session.report.packed == ("Y",) and not session.report.kept
    with pytest.warns(UserWarning, match="CUDAExecutionProvider"):
        session.set_providers(providers)
    assert session.report.packed == ("Y",) and not _host.sessions
    close(session, plain(simple()), {"X": X})


def test_a_provider_that_works_keeps_the_model(monkeypatch):
    """Check a session with another provider, and one without it that convt cannot serve."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(InferenceSession, "get_providers", lambda self: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    up = onnx.helper.make_function("mine", "Up", ["a", "b"], ["c"], [conv(("a", "b"), "c")], [helper.make_opsetid("", 17)])
    call = helper.make_node("Up", ["X", "W"], ["Y"], domain="mine")
    model = model_of([call], {"X": X.shape}, constants={"W": W}, functions=[up], imports=[helper.make_opsetid("mine", 1)])
    with pytest.warns(UserWarning):
        session = InferenceSession(model, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.report.kept == {"Up/c": "the session uses CUDAExecutionProvider"} and not session.nodes
    monkeypatch.undo()
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr(InferenceSession, "_create_with_nodes", _refuse_twice())
    with pytest.warns(UserWarning):
        session = InferenceSession(model, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert session.report.kept == {"Up/c": "of another reason"} and session.report.reason == "of another reason"
    close(session, plain(model), {"X": X})


def _refuse_twice():
    """Return a function that refuses a model because of its provider, then because of something else."""
    other = _loading.OtherProviders("the session uses CUDAExecutionProvider", ["Up/c"])
    left = [other, _loading.NotConverted("of another reason", ["Up/c"])]

    def refuse(*_):
        raise left.pop(0)

    return refuse


# ------------------------------------------------------------------------------------------------ runs that convt refuses

REFUSED = {
    "auto_pad": ({"auto_pad": ""}, X),
    "pads": ({"pads": [-1, 0, -1, 0]}, X),
    "output_shape": ({"output_shape": [99, 99]}, X),
    "channels": ({}, weights(1, 5, 4, 4)),
    "size": ({"pads": [4, 4, 4, 4]}, weights(1, 6, 2, 2)),
    "rank": ({}, weights(1, 6, 4)),
}


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "with a norm"])
@pytest.mark.parametrize("constant", [False, True], ids=["weights of the run", "packed"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_convt_refuses_onnx_runtime_computes(name, constant, behind, capfd):
    """Check that ONNX Runtime computes what convt refuses, and gives its own results or errors."""
    if name == "output_shape" and VERSION < (1, 25):
        pytest.skip("older versions read outside the input for such an output_shape")
    attributes, x = REFUSED[name]
    nodes, constants = [conv(("X", "W", "B"), "c", **attributes)], {"B": weights(4)}
    if behind:
        batch_norm, more = norm("c", "n", 4)
        nodes += [batch_norm, helper.make_node("LeakyRelu", ["n"], ["Y"], alpha=0.3)]
        constants |= more
    else:
        nodes[0].output[0] = "Y"
    if constant:
        constants["W"] = W
    model = model_of(nodes, {"X": None} | ({} if constant else {"W": None}), constants=constants)
    feed = {"X": x} | ({} if constant else {"W": W})
    theirs, session = plain(model), InferenceSession(model)
    if isinstance(want := outcome(theirs.run, None, feed), tuple):
        assert outcome(session.run, None, feed) == want
    else:
        capfd.readouterr()
        (got,) = session.run(None, feed)
        assert got.shape == want[0].shape
        np.testing.assert_allclose(got, want[0], rtol=1e-4, atol=1e-4)
        assert "onnxruntime" not in capfd.readouterr().err
    assert session.report.kept, session.report
    if "auto_pad" not in attributes and min(attributes.get("pads", [0])) >= 0:
        good = {"X": weights(1, 6, 97, 97) if "output_shape" in attributes else weights(1, 6, 9, 9)}
        close(session, theirs, feed | good)


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16])
@pytest.mark.skipif(VERSION < (1, 25), reason="older versions read outside the input for such an output_shape")
def test_what_neither_computes_is_convts_error(kind):
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    model = model_of([conv(output_shape=[99, 99])], {"X": None}, constants={"W": W.astype(dtype)}, dtype=kind)
    session = InferenceSession(model)
    if not session.report.packed:
        pytest.skip("ONNX Runtime computes this node")
    with pytest.raises(Exception, match="99"):
        session.run(None, {"X": X.astype(dtype)})
    assert session.run(None, {"X": weights(1, 6, 97, 97).astype(dtype)})[0].shape == (1, 4, 99, 99)


def test_refusals_when_nodes_are_made_print_nothing(capfd, monkeypatch):
    def refuse(*_):
        raise ValueError("strides: got 3, wanted less")

    monkeypatch.setattr(_node.Node, "values", refuse)
    monkeypatch.setattr(_host, "_LIBRARIES", _host._LIBRARIES | {__name__.partition(".")[0]})
    session = InferenceSession(simple())
    assert session.report.kept == {"Y": "convt refuses it: ValueError: strides: got 3, wanted less"}
    assert not session.report.packed and not session.report.unpacked and session.nodes
    close(session, plain(simple()), {"X": X})
    assert not capfd.readouterr().err


def test_saving_ends_no_profile_of_the_caller(tmp_path):
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = InferenceSession(simple(), options)
    session.end_profiling()
    assert len(list(tmp_path.glob("profile*"))) == 1
    assert _options.has_providers(options) is False


def test_subgraph_inputs_are_typed(capfd):
    branch = helper.make_graph([conv(output="Z")], "branch", [], [info("Z")])
    choice = helper.make_node("If", ["which"], ["Y"], then_branch=branch, else_branch=branch)
    model = model_of([choice], {"X": X.shape}, constants={"W": W})
    model.graph.input.append(info("which", TensorProto.BOOL, []))
    assert len(InferenceSession(model).nodes) == 2
    assert not capfd.readouterr().err
