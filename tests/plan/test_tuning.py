"""Tests of convt.tuning: results of backend="tune" are saved, loaded and used, and a damaged file is refused with a message
that says where."""

import ast
import json
import os
import re
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import ROOT, child, in_threads, needs_checkout

import convt
from convt import _core, tuning
from convt.algorithms import ALGORITHMS, candidates, name_of, onednn

KEYWORDS = {"strides": 2, "backend": "tune"}
FILTER = np.ones((4, 4, 8, 16), np.float32)
DATA = np.ones((1, 6, 5, 8), np.float32)


def tuned(path=None, filter=FILTER, data=DATA, **more):
    op = convt.ConvTranspose(filter, **KEYWORDS | more)
    op(data)
    return op.plan(data.shape)


def test_what_was_measured_is_known_to_the_next_process(measured, tmp_path):
    path = tmp_path / "tuning.json"
    plan = tuned()
    assert len(measured) == 1 and plan.note.startswith("measured: ")
    assert tuning.save(path) == 1
    tuning.clear()
    assert tuning.load(path) == (1, 0)
    again = tuned()
    assert len(measured) == 1 and again.note.startswith("measured earlier: ") and again == replace(plan, note=again.note)
    script = f"""
import numpy as np, convt
from convt._plan import measure as _measure
_measure.measure = None
op = convt.ConvTranspose(np.ones({FILTER.shape}, np.float32), strides=2, backend="tune")
op(np.ones({DATA.shape}, np.float32))
print(op.plan({DATA.shape}).key)
"""
    environment = {"CONVT_TUNING": str(path), "CONVT_NUM_THREADS": str(convt.get_num_threads()), "CONVT_ISA": _core.isa()}
    code, out, errors = child(script, **environment)
    assert (code, out.strip()) == (0, plan.key), errors


def test_a_file_is_one_that_a_person_can_read(measured, tmp_path):
    path = tmp_path / "tuning.json"
    tuned()
    tuned(data=DATA[:, :3])
    tuning.save(path)
    _, *entries, last = path.read_text().splitlines()
    assert json.loads(path.read_text())["format"] == tuning.FORMAT and len(entries) == 2 and last == "]}"
    entry = json.loads(entries[0].rstrip(","))
    assert "float32 mb1 g1 ic8 oc16 i6x5" in entry["problem"]
    assert entry["layout"] == "NXC" and entry["milliseconds"]["direct:vectors"] > 0


def test_entries_are_kept_apart(measured):
    tuned()
    with convt.num_threads(1):
        tuned()
    tuned(filter=FILTER.astype(np.float64), data=DATA.astype(np.float64))
    tuned(data=np.ascontiguousarray(DATA.transpose(0, 3, 1, 2)), data_format="NCX")
    tuned(algorithm="direct")
    assert len(measured) == 5 if convt.get_num_threads() > 1 else 4
    tuned()
    tuned(algorithm="direct")
    assert len(measured) == 5 if convt.get_num_threads() > 1 else 4


@pytest.mark.parametrize("change", [{"cpu": "another one"}, {"kernels": "0123456789abcdef"}])
def test_entries_of_another_cpu_or_other_kernels_are_skipped_and_kept(change, measured, tmp_path):
    path, back = tmp_path / "tuning.json", tmp_path / "back.json"
    tuned()
    tuning.save(path)
    path.write_text(json.dumps(found := edited(path, lambda entry: entry.update(change))))
    tuning.clear()
    assert tuning.load(path) == (0, 1)
    tuned()
    assert len(measured) == 2
    assert tuning.save(back) == 2 and found["entries"][0] in json.loads(back.read_text())["entries"]
    code, _, errors = child("import convt", CONVT_TUNING=str(path), CONVT_VERBOSE="1")
    assert code == 0 and "1 of 1 entry skipped, because it is for another CPU or other kernels" in errors


def edited(path, change):
    found = json.loads(path.read_text())
    for entry in found["entries"]:
        change(entry)
    return found


@pytest.mark.parametrize(("change", "says"), [
    (lambda e: e.pop("isa"), "isa"), (lambda e: e.update(more=1), "more"), (lambda e: e.update(threads=0), "threads: got 0"),
    (lambda e: e.update(threads="2"), "threads: got '2'"), (lambda e: e.update(threads=True), "threads: got True"),
    (lambda e: e.update(problem=None), "problem: got None"), (lambda e: e.update(algorithm="best"), "algorithm: got 'best'"),
    (lambda e: e.update(milliseconds={}), "milliseconds"), (lambda e: e.update(milliseconds=[1]), "milliseconds"),
    (lambda e: e.update(milliseconds={"best": 1}), "'best'"),
    (lambda e: e.update(milliseconds={"direct:vectors": 0}), "got 0 for direct:vectors"),
    (lambda e: e.update(milliseconds={"direct:vectors": float("nan")}), "got nan for direct:vectors"),
    (lambda e: e.update(milliseconds={"direct:vectors": "1"}), "got '1' for direct:vectors"),
])  # fmt: skip
def test_a_damaged_entry_is_an_error_that_names_the_line(change, says, measured, tmp_path):
    path = tmp_path / "tuning.json"
    tuned()
    tuned(data=DATA[:, :3])
    tuning.save(path)
    first, one, two, last = path.read_text().splitlines()
    entry = json.loads(two)
    change(entry)
    path.write_text("\n".join([first, one, json.dumps(entry), last]))
    tuning.clear()
    with pytest.raises(ValueError, match="line 3") as refused:
        tuning.load(path)
    assert says in str(refused.value) and str(path) in str(refused.value)
    assert tuning.save(tmp_path / "none.json") == 0, "nothing of a damaged file is taken"


@pytest.mark.parametrize(
    ("text", "line"),
    [("", 1), ("[]", 1), ("{}", 1), ('{"format": "x", "entries": []}', 1), ("\xff\xfe", None),
     ("[" * 100_000, 1),
     ('{"format": "convt tuning 3",\n"entries": [\n{,\n]}', 3), ('{"format": "convt tuning 3", "entries": [\n7\n]}', 2)],
)  # fmt: skip
def test_a_file_that_is_none_is_refused(text, line, tmp_path):
    path = tmp_path / "tuning.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=f"line {line}" if line else "not UTF-8 text"):
        tuning.load(path)
    imported_with_a_warning(path, "")


def imported_with_a_warning(path, why):
    """Check that a bad file in the environment variable is only a warning at import, so that a server still starts."""
    script = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import convt
(each,) = caught
assert each.category is RuntimeWarning and each.filename == "<string>", each
print(each.message)
print(convt.conv_transpose.__name__, len(convt.tuning._results))
"""
    code, out, errors = child(script, CONVT_TUNING=str(path))
    assert code == 0, errors
    warned, works = out.splitlines()
    assert warned.startswith(f"CONVT_TUNING: got {str(path)!r}, ") and why in warned
    assert warned.endswith("; the file is ignored") and works == "conv_transpose 0"


def test_a_file_that_is_not_there_is_an_error_for_load_and_a_warning_at_import(tmp_path):
    path = tmp_path / "none.json"
    with pytest.raises(FileNotFoundError):
        tuning.load(path)
    imported_with_a_warning(path, "which can't be read (No such file or directory)")
    with pytest.raises(IsADirectoryError):
        tuning.load(tmp_path)
    imported_with_a_warning(tmp_path, "which can't be read (Is a directory)")


def test_an_import_that_treats_warnings_as_errors_may_fail(tmp_path):
    code, _, errors = child("import warnings; warnings.simplefilter('error'); import convt", CONVT_TUNING=str(tmp_path / "no"))
    assert code == 1 and errors.splitlines()[-1].startswith("RuntimeWarning: CONVT_TUNING: got ")


# ------------------------------------------------------------------------------------------------ the identity of the kernels


def test_files_are_keyed_by_the_code_that_computes(measured, tmp_path):
    path = tmp_path / "tuning.json"
    tuned()
    tuning.save(path)
    (entry,) = json.loads(path.read_text())["entries"]
    assert entry["kernels"] == tuning.kernels() == convt.show_config(mode="dicts")["versions"]["kernels"]
    assert re.fullmatch("[0-9a-f]{16}", entry["kernels"]) and "version" not in entry
    assert child("from convt import tuning; print(tuning.kernels())")[1] == f"{tuning.kernels()}\n"  # equal in each process


@pytest.mark.parametrize("part", ["compiled", "python"])
def test_other_code_has_another_name(part, monkeypatch, tmp_path):
    """Check that other code has another identity."""
    before = tuning.kernels()
    if part == "compiled":
        monkeypatch.setattr(_core, "identity", lambda: "other kernels")
    else:
        (tmp_path / "algorithms" / "direct").mkdir(parents=True)
        (tmp_path / "algorithms" / "direct" / "plan.py").write_text("BLOCK = 17")
        monkeypatch.setattr(tuning, "__file__", str(tmp_path / "tuning.py"))
    assert tuning.kernels.__wrapped__() != before
    monkeypatch.undo()
    assert tuning.kernels.__wrapped__() == before


@needs_checkout
def test_the_compiled_code_is_named_by_kernels_and_loops(monkeypatch, tmp_path):
    """Check the inputs of the identity in setup.py: object files, whose names are hashes of all that they are made from, and
    the text of the loops."""
    monkeypatch.chdir(ROOT)
    names = {}
    tree = ast.parse((ROOT / "setup.py").read_text())
    wanted = [each for each in tree.body if getattr(each, "name", "") == "identity" or "LOOPS" in ast.unparse(each)[:6]]
    exec("import hashlib\nfrom pathlib import Path\n" + "\n".join(map(ast.unparse, wanted)), names)
    identity, loops = names["identity"], names["LOOPS"]
    assert {"convt/_core.pyx", "convt/algorithms/direct/loops.pyx", "convt/algorithms/winograd/weights.pxd"} <= set(
        map(str, loops)
    )
    objects = ["build/kernels/avx2-1234.o", "build/kernels/baseline-5678.o"]
    first = identity(objects)
    assert first == identity(objects[::-1]) == identity([each.replace("build", "elsewhere") for each in objects])
    assert first != identity(["build/kernels/avx2-1235.o", objects[1]])
    changed = tmp_path / "loops.pyx"
    changed.write_text("# another loop")
    names["LOOPS"] = [changed, *loops[1:]]
    assert first != identity(objects)


def test_what_can_not_be_had_here_is_measured_anew(measured, monkeypatch):
    tuned()
    (key,) = tuning._results
    tuning._results[key] = {"onednn": 0.1, "direct:vectors": 1.0}
    monkeypatch.setattr(onednn.library, "available", lambda: False)
    tuned()
    assert len(measured) == 2


@pytest.mark.parametrize("name", [*ALGORITHMS, "nothing that is known"])
@pytest.mark.parametrize("keywords", [{}, {"dilations": 2}, {"strides": 9}], ids=str)
def test_an_entry_can_not_name_what_does_not_do_the_problem(name, keywords, measured):
    """Check entries that name an algorithm that does not accept the problem, or one of lower precision."""
    op = convt.ConvTranspose(FILTER, **KEYWORDS | keywords)
    problem = op._plans.attributes.problem(DATA.shape)
    does = name in candidates(problem)
    tuning.keep(problem, "auto", convt.get_num_threads(), {name: 1.0, **({} if does else {"direct:vectors": 2.0})})
    got = op(DATA)
    assert op.plan(DATA.shape).key == (name if does else "direct:vectors") and not measured
    np.testing.assert_allclose(got, convt.conv_transpose(DATA, FILTER, backend="reference", **{"strides": 2} | keywords), 1e-4)
    tuning.clear()
    tuning.keep(problem, "auto", convt.get_num_threads(), {name: 1.0})
    convt.ConvTranspose(FILTER, **KEYWORDS | keywords)(DATA)
    assert len(measured) == (not does)


def _entry(problem, times, algorithm="auto"):
    tuning.keep(problem, algorithm, convt.get_num_threads(), times)


@pytest.mark.parametrize("backend", ["auto", "native"])
def test_auto_takes_what_was_measured(backend):
    """Check that "auto" prefers measured times to expected costs, without measuring itself, as FFTW does with its wisdom."""
    shape = (1, 24, 24, 8)
    make = lambda **more: convt.ConvTranspose(FILTER, strides=2, backend=backend, **more)  # noqa: E731
    problem, x = make()._attributes.problem(shape), np.random.default_rng(0).standard_normal(shape, np.float32)
    expected = make().plan(shape)
    others = [name for name in candidates(problem) if name != expected.key]
    assert others and not expected.note
    for name in others:
        _entry(problem, {name: 1.0, expected.key: 2.0, "winograd:six:vectors": 0.1})  # the last is too inexact for "auto"
        op = make()
        np.testing.assert_allclose(op(x), make(algorithm="direct")(x), rtol=1e-4, atol=1e-4)
        assert op.plan(shape).key == name and op.plan(shape).note.startswith("measured earlier: ")
        assert "measured earlier" in op.plan(shape).explain()
    assert make(algorithm="direct").plan(shape).algorithm == "direct"  # a named algorithm is not replaced
    assert make().plan((1, 23, 24, 8)).algorithm == expected.algorithm or not make().plan((1, 23, 24, 8)).note
    with convt.num_threads(convt.get_num_threads() + 1):
        assert not make().plan(shape).note  # an entry is valid for one number of threads
    tuning.clear()
    assert make().plan(shape) == expected


def test_auto_takes_onednn_where_it_was_the_fastest_and_is_there(monkeypatch):
    make = lambda backend: convt.ConvTranspose(FILTER, strides=2, backend=backend)  # noqa: E731
    _entry(make("auto")._attributes.problem(DATA.shape), {"onednn": 0.1, "direct:vectors": 0.2, "scatter:vectors": 9.0})
    if onednn.library.available():
        assert make("auto").plan(DATA.shape).backend == "onednn"
    assert make("native").plan(DATA.shape).algorithm == "direct"
    monkeypatch.setattr(onednn.library, "available", lambda: False)
    assert make("auto").plan(DATA.shape).algorithm == "direct"


def test_calls_that_bring_their_weights_choose_by_cost():
    problem = convt.ConvTranspose(FILTER, strides=2)._attributes.problem(DATA.shape)
    want = convt.conv_transpose(DATA, FILTER, strides=2)
    convt.clear_caches()
    for name in candidates(problem):
        _entry(problem, {name: 1.0})
        np.testing.assert_array_equal(convt.conv_transpose(DATA, FILTER, strides=2), want)


def test_pytorch_takes_what_was_measured():
    torch = pytest.importorskip("torch")
    import convt.torch
    from convt.torch import _weights

    module, x = torch.nn.ConvTranspose2d(8, 16, 4, 2), torch.randn(1, 8, 24, 24)
    with convt.num_threads(torch.get_num_threads()), torch.no_grad():
        op = convt.ConvTranspose(module.weight.numpy(), strides=2, data_format="NCX", filter_format="IOX")
        problem = op._attributes.problem(x.shape)
        for name in candidates(problem):
            _entry(problem, {name: 1.0})
            _weights.forget()
            accelerated, _ = convt.torch.accelerate(module, freeze=True)
            torch.testing.assert_close(accelerated(x), torch.nn.functional.conv_transpose2d(x, module.weight, module.bias, 2))
            (found,) = _weights._filters[id(module.weight)].values.operators.values()
            assert found.plan(x.shape).key == name


def onnx_model():
    """Return a model of a ConvTranspose, "up", and its weights. Skip the test without the packages."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    import convt.onnxruntime  # noqa: F401

    weights = np.random.default_rng(0).standard_normal((8, 16, 4, 4), np.float32)
    node = onnx.helper.make_node("ConvTranspose", ["X", "W"], ["Y"], name="up", strides=[2, 2])
    X, Y = (onnx.helper.make_tensor_value_info(name, 1, None) for name in "XY")
    graph = onnx.helper.make_graph([node], "g", [X], [Y], [onnx.numpy_helper.from_array(weights, "W")])
    return onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 17)]), weights


def test_onnx_runtime_takes_what_was_measured():
    model, weights = onnx_model()
    x = np.random.default_rng(1).standard_normal((1, 8, 24, 24), np.float32)
    op = convt.ConvTranspose(weights, strides=2, data_format="NCX", filter_format="IOX")
    problem, want = op._attributes.problem(x.shape), op(x)
    for name in candidates(problem):
        _entry(problem, {name: 1.0})
        session = convt.onnxruntime.InferenceSession(model)
        np.testing.assert_allclose(session.run(None, {"X": x})[0], want, rtol=1e-4, atol=1e-4)
        assert session.nodes["up"].description()["algorithm"] == name_of(name)


def test_a_session_of_onnx_runtime_tunes(measured):
    (model, weights), found = onnx_model(), []
    for tune in (True, False):  # the second session uses the entries that the first one measured
        session = convt.onnxruntime.InferenceSession(model, tune=tune)
        for size in (5, 6, 5):
            x = np.random.default_rng(1).standard_normal((1, 8, size, size), np.float32)
            want = convt.conv_transpose(x, weights, strides=2, data_format="NCX", filter_format="IOX", algorithm="direct")
            np.testing.assert_allclose(session.run(None, {"X": x})[0], want, rtol=1e-4, atol=1e-4)
        found.append(session.nodes["up"].description()["algorithm"])
    assert len(measured) == 2 and found[0] == found[1]


def test_a_file_keeps_the_entries_that_it_has(measured, tmp_path):
    path = tmp_path / "tuning.json"
    tuned()
    assert tuning.save(path) == 1
    (key,), before = tuning._results, json.loads(path.read_text())["entries"]
    tuning.clear()
    tuned(data=DATA[:, :3])
    assert tuning.save(path) == 2 and len(tuning._results) == 1
    assert before[0] in json.loads(path.read_text())["entries"]
    tuning._results[key] = {"direct:vectors": 7.0}
    assert tuning.save(path) == 2, "an entry of this process replaces the one with the same key"
    tuning.clear()
    assert tuning.load(path) == (2, 0) and tuning._results[key] == {"direct:vectors": 7.0}


def test_a_damaged_file_is_replaced(measured, tmp_path):
    path = tmp_path / "tuning.json"
    path.write_text("no JSON")
    tuned()
    assert tuning.save(path) == 1
    tuning.clear()
    assert tuning.load(path) == (1, 0)


_TUNING = """
import fcntl, json, os, sys, time
import numpy, convt
from convt import tuning
path, signals, first = *sys.argv[1:3], int(sys.argv[3])
open(f"{signals}/{first}", "w").close()
tuning.kernels()
if os.geteuid() == 0: os.setuid(65534)  # root may write everywhere, but another user may not import more modules
while not os.path.exists(f"{signals}/go"):
    time.sleep(0.001)
for channels in range(first, first + 40):
    problem = convt.ConvTranspose(numpy.ones((3, channels, 1), "f4"))._attributes.problem((1, 9, channels))
    tuning.keep(problem, "auto", 1, {"direct:vectors": channels})
    tuning.save(path)
print(len(tuning._results))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="needs POSIX")
@pytest.mark.parametrize("in_place", [False, True])
def test_processes_may_tune_at_once(in_place):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as signals, ThreadPoolExecutor(2) as pool:
        path = Path(folder, "tuning.json")
        os.chmod(signals, 0o755)
        if in_place:
            path.touch()
            path.chmod(0o666)
        os.chmod(folder, 0o555 if in_place else 0o777)
        runs = [pool.submit(child, _TUNING, path, signals, first, CONVT_ISA=_core.isa()) for first in (1, 1001)]
        while len(os.listdir(signals)) < 2 and not any(run.done() for run in runs):
            time.sleep(0.01)
        Path(signals, "go").touch()
        assert [run.result() for run in runs] == [(0, "40\n", "")] * 2
        os.chmod(folder, 0o755)
        assert tuning.load(path) == (80, 0) and os.listdir(folder) == ["tuning.json"]


def test_threads_may_save_and_load_at_once(measured, tmp_path):
    path = tmp_path / "tuning.json"
    for rows in range(1, 7):
        tuned(data=DATA[:, :rows])
    tuning.save(path)

    def work(_):
        for _ in range(20):
            tuning.save(path)
            assert tuning.load(path) == (6, 0)

    in_threads(work, 4)
