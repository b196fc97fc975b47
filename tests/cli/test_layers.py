"""Tests of layers on the command line: the JSON format, which the benchmark also reads, and the nodes of ONNX models."""

import json
import re

import numpy as np
import pytest

import convt
import convt.onnx
from bench import layers as bench_layers
from convt import __main__ as cli
from convt._base import layer_format
from convt._cli import layers as _layers

ROW = {"Cin": 4, "Cout": 2, "in": [8, 6], "k": 3}


def refusals(arguments, capsys):
    """Return the lines on standard error of a call that ends with exit code 1."""
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 1
    return capsys.readouterr().err.splitlines()


def test_a_row_has_defaults_and_an_integer_stands_for_every_axis():
    (layer,) = _layers.read(json.dumps(ROW))
    assert (layer.name, layer.data, layer.filter) == ("layer", (1, 4, 8, 6), (4, 2, 3, 3))
    (layer,) = _layers.read(json.dumps(ROW | {"N": 3, "g": 2, "s": [2, 1], "pb": 1, "name": "up", "in": [8, 6]}))
    assert (layer.name, layer.data, layer.filter) == ("up", (3, 4, 8, 6), (4, 1, 3, 3))
    assert layer.attributes["strides"] == (2, 1) and layer.attributes["pads_begin"] == (1, 1)
    op, shape = layer.operator()
    assert op.output_shape(shape) == (3, 16, 7, 2)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"stride": 2}, "got the unknown key 'stride'; 'stride' probably means 's'; wanted only name, "),
        ({"dilaton": 2, "zz": 1}, "got the unknown keys 'dilaton' and 'zz'; 'dilaton' probably means 'd'; wanted only"),
        ({"N": 0}, "N: got 0, wanted an integer of at least 1"),
        ({"N": None}, "N: got None, wanted an integer"),
        ({"N": True}, "N: got True, wanted an integer"),
        ({"Cin": "4"}, "Cin: got '4', wanted an integer"),
        ({"Cin": 4.0}, "Cin: got 4.0, wanted an integer"),
        ({"Cout": 2**63}, "Cout: got 9223372036854775808, wanted an integer of at least 1 and below 2**63"),
        ({"in": []}, "in: got an empty list, wanted an integer for each spatial axis"),
        ({"in": [8, [6]]}, "in: got [6], wanted an integer"),
        ({"k": [3]}, "k: got a list of length 1, wanted 2, the number of spatial axes of in"),
        ({"k": {}}, "k: got {}, wanted an integer"),
        ({"s": 0}, "s: got 0, wanted an integer of at least 1"),
        ({"op": -1}, "op: got -1, wanted an integer of at least 0"),
        ({"g": 3}, "g: got 3, wanted a divisor of Cin, 4"),
        ({"g": 4}, "g: got 4, wanted a divisor of Cout, 2"),
        ({"pb": 9}, "pb, pe: got pads that leave an output of (1, -1), wanted at least 1 on every axis"),
        ({"name": 3}, "name: got 3, wanted text without control characters"),
        ({"name": "a\x1b[2J"}, "name: got 'a\\x1b[2J', wanted text without control characters"),
    ],
    ids=str,
)
def test_both_command_lines_refuse_the_same_rows_in_the_same_words(change, says, tmp_path, capsys):
    path = tmp_path / "layers.json"
    path.write_text(json.dumps([ROW | change]))
    (line,) = refusals(["plan", str(path)], capsys)
    assert line.startswith(f"python -m convt: layer 1: {says}")
    with pytest.raises(ValueError, match=f"^{re.escape(f'{path}: layer 1: {says}')}"):
        bench_layers.read(str(path))


@pytest.mark.parametrize(("row", "got"), [
    (3, "3, wanted an object with"), (None, "None, wanted an object with"), ("x", "'x', wanted an object with"),
    ([], "[], wanted an object with"), ({}, "no Cin, Cout, in and k, wanted"), ({"Cin": 1, "in": 2}, "no Cout and k, wanted"),
])  # fmt: skip
def test_what_is_no_row_is_refused(row, got, capsys):
    assert refusals(["plan", json.dumps([row])], capsys) == [f"python -m convt: layer 1: got {got} Cin, Cout, in and k"]


def test_both_command_lines_take_the_same_rows(tmp_path):
    rows = [ROW, ROW | {"N": 2, "name": "two", "source": "somewhere", "family": "f", "d": [1, 2], "pe": [1, 0]}]
    path = tmp_path / "layers.json"
    for content in (rows, {"layers": rows}):
        path.write_text(json.dumps(content))
        ours, theirs = _layers.read(str(path)), bench_layers.read(str(path))
        assert [each.name for each in ours] == [each.name for each in theirs] == ["layer 1", "two"]
        for one, other in zip(ours, theirs, strict=True):
            op, shape = one.operator()
            assert shape == other.data_shape and op.output_shape(shape) == other.result_shape
            assert one.filter == (other.cin, other.cout // other.groups, *other.kernel)
    path.write_text(json.dumps(ROW), encoding="utf-8-sig")  # with a byte order mark, as some editors write
    assert len(_layers.read(str(path))) == len(bench_layers.read(str(path))) == 1


@pytest.mark.parametrize(("content", "says"), [
    (b"", "not JSON: Expecting value"), (b"[{", "not JSON: "), (b"[" * 100_000, "not JSON of layers: it is nested too deeply"),
    (b"[]", "got an empty list, wanted at least one layer"),
    (b'{"layers": []}', "got an empty list, wanted at least one layer"), (b'{"layers": {}}', "layers: got {}, wanted a list"),
    (b'{"layers": [], "more": 1}', 'got more beside "layers", wanted "layers" alone'),
    (b'{"Cin": NaN}', "got NaN, wanted a JSON number"), (b'{"Cin": 1, "Cin": 2}', "got the key 'Cin' twice"),
    (b'{"Cin": ' + b"9" * 5000 + b"}", "got an integer of 5000 digits, wanted one below 2**63"),
    (b"\xff\xfe[\0]\0", "not UTF-8 text: invalid start byte at byte 0"), (b"\x93\0\1\2", "not UTF-8 text: "),
])  # fmt: skip
def test_a_file_that_is_none_is_refused_in_one_line(content, says, tmp_path, capsys):
    path = tmp_path / "layers.json"
    path.write_bytes(content)
    (line,) = refusals(["plan", str(path)], capsys)
    assert line.startswith(f"python -m convt: layer: {path}: {says}")
    with pytest.raises(ValueError, match=re.escape(f"{path}: {says}")):
        bench_layers.read(str(path))


def test_an_argument_that_is_neither_file_nor_json_is_named(tmp_path, capsys):
    for argument in ("nothing", "", "nowhere.onnx", str(tmp_path / "no.json")):
        (line,) = refusals(["plan", argument], capsys)
        assert f"layer: got {layer_format.shown(argument)}, neither a file nor JSON; wanted JSON, a file of JSON, or" in line
    (line,) = refusals(["plan", str(tmp_path)], capsys)
    assert line == (
        f"python -m convt: layer: got {str(tmp_path)!r}, which can't be read (Is a directory); "
        "wanted JSON, a file of JSON, or an ONNX file"
    )
    (line,) = refusals(["plan", "[]"], capsys)
    assert line == "python -m convt: layer: '[]': got an empty list, wanted at least one layer"
    (line,) = refusals(["plan", "nowhere.onnx", "--shape", "X=1"], capsys)
    assert "layer: got 'nowhere.onnx', neither a file nor JSON" in line
    (line,) = refusals(["plan", json.dumps(ROW), "--shape", "X=1"], capsys)
    assert "--shape: got a shape with " in line and "wanted it with an ONNX file only" in line


WEIGHTS = {"W": np.ones((3, 4, 4, 3), np.float32), "V": np.ones((4, 1, 3, 3), np.float32)}


def written(path, nodes, shape, weights=WEIGHTS, **more):
    """Write an ONNX file of nodes that read X, and whose output is Y."""
    builder = pytest.importorskip("onnx_builder", reason="onnx is not installed")
    nodes = [builder.conv(*names, **attributes) for names, attributes in nodes]
    declared = [builder.info(name, shape=shape) for name, shape in more.items()]
    model = builder.model_of(nodes, {"X": shape}, constants=weights, declared=declared, opset=22, ir_version=10)
    builder.onnx.save(model, path)
    return str(path)


FIRST = (["X", "W"], "H"), {"name": "up", "strides": [2, 2], "pads": [1, 0, 1, 0]}
SECOND = (["H", "V"], "Y"), {"strides": [2, 2], "group": 2, "auto_pad": "SAME_LOWER"}


@pytest.fixture
def model(tmp_path):
    """Write an ONNX file of two nodes: one with an open batch and sizes, and one that reads its output and has pads by
    auto_pad."""
    return written(tmp_path / "model.onnx", [FIRST, SECOND], ("N", 3, "H", "W"))


def test_layers_of_a_model_are_its_nodes(model):
    onnx = pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    first, second = _layers.read(model, {"X": [2, 3, 5, 6]})
    assert (first.name, first.data, first.filter) == ("up", (2, 3, 5, 6), (3, 4, 4, 3))
    assert (second.name, second.layout, second.dtype) == ("Y", "NCX", "float32")
    shapes = [op.output_shape(shape) for op, shape in (first.operator(), second.operator())]
    (want,) = ReferenceEvaluator(onnx.load(model), new_ops=[convt.onnx.ConvTranspose]).run(
        None, {"X": np.ones((2, 3, 5, 6), np.float32)}
    )
    assert shapes == [second.data, want.shape]


def test_a_model_is_tuned_and_planned(model, tmp_path, capsys, direct_wins):
    path = tmp_path / "tuning.json"
    shape = ["--shape", "X=1,3,5,6"]
    assert cli.main(["tune", model, *shape, "--out", str(path), "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(re.search(rf"^{name} +\S+ +\S+ +\S+ \d", printed, re.M) for name in ("up", "Y"))
    assert f"2 entries in {path}" in printed
    assert all('"layout": "NCX"' in line for line in path.read_text().splitlines() if "problem" in line)
    assert cli.main(["plan", model, *shape, "--json", "--layout", "NXC", "--dtype", "float64"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["data"] == [1, 5, 6, 3] and first["dtype"] == "float64" and second["name"] == "Y"


def test_sizes_that_replace_those_of_a_model_reach_every_node(tmp_path):
    """Check that sizes that replace those of a model reach every node."""
    path = written(tmp_path / "fixed.onnx", [FIRST, SECOND], (1, 3, 4, 4), H=(1, 4, 8, 9))
    first, second = _layers.read(path)
    assert (first.data, second.data) == ((1, 3, 4, 4), (1, 4, 8, 9))
    first, second = _layers.read(path, {"X": [2, 3, 5, 6]})
    assert (first.data, second.data) == ((2, 3, 5, 6), (2, 4, 10, 13))


def test_mistakes_about_a_model_are_said(model, tmp_path, capsys):
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"no model")
    empty = tmp_path / "empty.onnx"
    empty.write_bytes(b"")
    for arguments, said in (
        ([model, "--shape", "Z=1"], "--shape: got ['Z'], wanted inputs of the model: ['X']"),
        ([model, "--shape", "X=1,3"], "--shape: got rank 2 for 'X', wanted the model's rank, 4"),
        ([str(damaged)], "which is not an ONNX model"),
        ([str(empty)], "wanted a model with a ConvTranspose node in its main graph"),
    ):
        (line,) = refusals(["plan", *arguments], capsys)
        assert said in line
    (line,) = refusals(["plan", model], capsys)  # one for both nodes
    assert re.search(r"input X: got no sizes for the open axes of \[1, 3, .*\], wanted --shape X=1,3,N,N$", line)


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (((["X"], "H"), {}), "inputs: got 1, wanted at least 2, data and weights"),
        (((["X", "I"], "H"), {}), "weights: got dtype INT32, wanted one of float32, "),
        (((["X", "nowhere"], "H"), {}), "with unknown sizes (0)"),
        (((["X", "W"], "H"), {"nonsense": 1}), "attributes: got ['nonsense'], wanted only auto_pad, "),
        (((["X", "W"], "H"), {"opset": 1}), "attributes: got ['opset'], wanted only auto_pad, "),
        (((["X", "W"], "H"), {"strides": [1.5, 2.0]}), "strides: got 1.5"),
        (((["X", "W"], "H"), {"strides": [0, 1]}), "strides: got 0"),
        (((["X", "W"], "H"), {"auto_pad": "SAME"}), "auto_pad: got 'SAME'"),
        (((["X", "W"], "H"), {"kernel_shape": [1, 1]}), "kernel_shape: got [1, 1]"),
    ],
    ids=str,
)
def test_a_node_that_is_wrong_does_not_hide_the_others(node, says, tmp_path, capsys):
    weights = WEIGHTS | {"I": np.ones((3, 4, 4, 3), np.int32)}
    right = (["X", "W"], "Y"), {"name": "right"}
    path = written(tmp_path / "model.onnx", [node, right], (1, 3, 5, 6), weights)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", path])
    printed = capsys.readouterr()
    assert stopped.value.code == 1 and printed.out.startswith("right: (1, 3, 5, 6) -> (1, 4, 8, 8)\n")
    (line,) = printed.err.splitlines()
    assert line.startswith("python -m convt: layer 'H': ") and says in line
