"""Tests of the graphs of models in convt.onnxruntime: names in scopes, nodes that are fused, constant weights and
functions. Each model runs in convt's session and in ONNX Runtime's own, and the results are compared."""

import numpy as np
import pytest
from onnx_models import (
    RNG,
    AttributeProto,
    TensorProto,
    alike,
    choice,
    close,
    conv,
    function_of,
    graph_of,
    helper,
    info,
    model_of,
    norm,
    onnxruntime,
    op,
    outcome,
    plain,
    same,
    sessions,
    weights,
)

import convt.onnxruntime
from convt.onnxruntime import _node

X, W = weights(1, 6, 4, 4), weights(6, 6, 3, 3)  # the output is 6 wide and has 6 channels, so a row could pass for a bias
BIAS, ROW = weights(6, 1, 1), weights(1, 1, 1, 6)


def _both_ways(model, served, feed=None, **more):
    for which in (True, False):
        session = same(model, {"X": X, "which": np.array(which)} | (feed or {}), served, **more)
    return session


# ------------------------------------------------------------------------------------------------ scopes


@pytest.mark.parametrize("way", ["initializers", "computed", "other way round", "around it"])
def test_branches_use_one_name_for_different_things(way):
    """Check two branches that use one name: c is a bias in one and a row of the output's width in the other."""
    add = [conv(("X", "W"), "z"), op("Add", ["z", "c"], "out")]
    bias, around = graph_of(add, constants={"c": BIAS}), {"W": W}
    row = graph_of(add, constants={"c": ROW})
    if way == "computed":
        row = graph_of([op("Neg", ["r"], "c"), *add], constants={"r": ROW})
    if way == "around it":  # a branch without its own c reads the c of the outer graph
        row, around = graph_of(add), {"W": W, "c": ROW}
        bias.initializer[0].name = "d"
        bias.node[1].input[1] = "d"
    branches = (row, bias) if way == "other way round" else (bias, row)
    model = model_of([choice(*branches)], {"X": X.shape}, constants=around)
    session = _both_ways(model, served=2)
    assert list(session.report.fused.values()) == [("Add",)]  # a constant that is not one value for each channel is left


def test_a_branch_hides_a_name_of_the_graph_around_it():
    """Check a branch that redefines a name of the outer graph."""
    add = [conv(("X", "W"), "z"), op("Add", ["z", "c"], "out")]
    hidden = graph_of(add, constants={"c": weights(6, 1, 1)})
    model = model_of([choice(hidden, graph_of(add))], {"X": X.shape}, constants={"W": W, "c": BIAS})
    try:
        plain(model)
    except Exception as error:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__}: {error}")
    assert list(_both_ways(model, served=2).report.fused.values()) == [("Add",)] * 2


@pytest.mark.parametrize("named", ["W", "c"])
def test_what_a_loop_carries_is_no_constant(named):
    """Check a state variable of a Loop's body that has the name of a constant in a branch beside it. It is not a constant."""
    carried = {"W": W, "c": ROW}[named]
    constants = {"W": weights(6, 6, 3, 3), "c": BIAS}
    body_nodes = [op("Identity", ["go"], "on"), conv(("X", "W"), "z"), op("Add", ["z", "c"], "t"),
                  op("Neg", [named], "next")]  # fmt: skip
    inputs = [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info(named)]
    body = graph_of(body_nodes, info("on", TensorProto.BOOL), "next", "t", inputs=inputs)
    loop = helper.make_node("Loop", ["trips", "", "start"], ["last", "stack"], body=body)
    beside = graph_of([conv(("X", "W"), "z"), op("Add", ["z", "c"], "out")], constants={named: constants[named]})
    other = {name: value for name, value in constants.items() if name != named}
    model = model_of(
        [loop, choice(beside, [op("Neg", ["X"], "out")])], {"X": X.shape}, ("stack", "Y"),
        other | {"trips": np.array(3), "start": carried},
    )  # fmt: skip
    _both_ways(model, served=2)


def test_a_scan_has_its_own_names():
    body = graph_of([conv(("X", "W"), "z"), op("Add", ["z", "c"], "t")], inputs=[info("W", shape=W.shape)])
    scan = helper.make_node("Scan", ["stack"], ["Y"], body=body, num_scan_inputs=1)
    model = model_of([scan], {"X": X.shape}, constants={"stack": weights(2, *W.shape), "c": BIAS})
    session = same(model, {"X": X})
    assert session.report.unpacked == ("z",) and session.report.fused == {"z": ("Add",)}


@pytest.mark.parametrize("reader", ["branch", "branch of a branch", "branch's output"])
def test_what_a_graph_inside_reads_stays(reader):
    """Check a branch that reads the output of a ConvTranspose with a Relu behind it: the output must stay."""
    inner = [op("Neg", ["z"], "out")]
    if reader == "branch of a branch":
        inner = [choice(inner, [op("Abs", ["z"], "out2")], "out3")]
    if reader == "branch's output":
        inner = [op("Identity", ["z"], "out")]
    nodes = [conv(output="z"), op("Relu", ["z"], "Y"), choice(inner, [op("Abs", ["X"], "out4")], "V")]
    model = model_of(nodes, {"X": X.shape}, ("Y", "V"), {"W": W})
    assert _both_ways(model, served=1).report.fused == {}


def test_a_name_of_a_branch_is_no_reader_of_the_same_name_around_it():
    own = [op("Neg", ["X"], "z"), op("Abs", ["z"], "out")]
    nodes = [choice(own, [op("Abs", ["X"], "out2")], "V"), conv(output="c"), op("Relu", ["c"], "Y")]
    model = model_of(nodes, {"X": X.shape}, ("Y", "V"), {"W": W})
    assert _both_ways(model, served=1).report.fused == {"c": ("Relu",)}


def test_nodes_of_one_name():
    then, other = [conv(("X", "W"), "out", name="up")], [conv(("X", "W"), "out", name="up", auto_pad="")]
    nodes = [conv(("X", "W"), "V", name="up"), choice(then, other)]
    model = model_of(nodes, {"X": X.shape}, ("Y", "V"), {"W": W})
    session = _both_ways(model, served=2)
    assert {*session.nodes, *session.report.kept} == {"up", "up'", "up''"} and len(session.report.kept) == 1


@pytest.mark.parametrize("saved", [False, True])
def test_nodes_of_two_graphs_whose_outputs_have_one_name(saved, tmp_path):
    branches = ([conv(output="out", strides=[n, n])] for n in (2, 3))
    model = model_of([choice(*branches)], {"X": X.shape}, constants={"W": W})
    if not saved:
        _both_ways(model, served=2)
        return
    session, theirs = sessions(model, optimized_model_filepath=str(tmp_path / "m.onnx"))
    for which in (True, False):
        close(session, theirs, {"X": X, "which": np.array(which)})
    assert len(session.nodes) == 1 and "output of the same name" in str(session.report)


# ------------------------------------------------------------------------------------------------ fused nodes


@pytest.mark.parametrize("level", ["ORT_ENABLE_ALL", "ORT_DISABLE_ALL"])
def test_weights_from_a_cast(level):
    """Check weights, bias and norm in float16 or behind several nodes."""
    more, constants = norm("a", "n", 6)
    halves = {f"{name}16": value.astype(np.float16) for name, value in (constants | {"W": W, "B": BIAS}).items()}
    nodes = [op("Cast", [name], name[:-2], to=TensorProto.FLOAT) for name in halves]
    nodes += [conv(output="c"), op("Add", ["c", "B"], "a"), more, op("Relu", ["n"], "Y")]
    model = model_of(nodes, {"X": X.shape}, constants=halves)
    assert same(model, {"X": X}, tolerance=3e-5).report.fused == {"c": ("Add", "BatchNormalization", "Relu")}
    session, theirs = sessions(model, graph_optimization_level=getattr(onnxruntime.GraphOptimizationLevel, level))
    for _ in range(3):
        close(session, theirs, {"X": X})


def test_a_cast_to_another_dtype_is_not_the_weights():
    nodes = [op("Cast", ["B64"], "B", to=TensorProto.FLOAT), conv(output="c"), op("Add", ["c", "B"], "a"),
             op("Cast", ["a"], "h", to=TensorProto.FLOAT16), op("Cast", ["h"], "Y", to=TensorProto.FLOAT)]  # fmt: skip
    model = model_of(nodes, {"X": X.shape}, constants={"W": W, "B64": BIAS.astype(np.float64)})
    assert same(model, {"X": X}, tolerance=2e-3).report.fused == {"c": ("Add",)}


def _halves(statistics):
    """Return a model of a float32 node and a float16 node followed by a batch norm with these dtypes."""
    more, constants = norm("h", "n", 6)
    kinds = dict(zip(constants, statistics, strict=True))
    nodes = [conv(("X", "W"), "z", name="single"), op("Cast", ["z"], "z16", to=TensorProto.FLOAT16),
             conv(("z16", "W16"), "h", name="half"), more, op("Cast", ["n"], "Y", to=TensorProto.FLOAT)]  # fmt: skip
    constants = {name: value.astype(kinds[name]) for name, value in constants.items()}
    return model_of(nodes, {"X": X.shape}, constants={"W": W, "W16": (W / 64).astype(np.float16)} | constants)


@pytest.mark.parametrize("statistics", [[np.float16] * 4, [np.float16] * 2 + [np.float32] * 2, [np.float32] * 4])
def test_a_norm_in_another_dtype_is_not_computed_with_a_node(statistics):
    model = _halves(statistics)
    want = outcome(lambda: plain(model).run(None, {"X": X})[0])
    if isinstance(want, tuple):  # neither session accepts the model
        assert "BatchNormalization" in outcome(convt.onnxruntime.InferenceSession, model)[1]
        return
    session = convt.onnxruntime.InferenceSession(model)
    assert session.report.packed == ("single", "half") and session.report.fused == {}
    np.testing.assert_allclose(session.run(None, {"X": X})[0], want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", ["bias", "Add", "scale", "group", "attribute", "epsilon", "slope"])
def test_what_does_not_fit_is_left_and_the_rest_served(kind, capfd):
    """Check that a node with mistakes is left to ONNX Runtime and the others are served."""
    more, constants = norm("c", "n", 5 if kind == "scale" else 6)
    constants |= {"B": weights(5), "A": weights(5, 1, 1)}
    inputs = ("X", "W", "B") if kind == "bias" else ("X", "W")
    nodes = [conv(inputs, "c", name="wrong", **({"group": 4} if kind == "group" else {}))]
    others = {"Add": op("Add", ["c", "A"], "n"), "slope": op("LeakyRelu", ["c"], "n", alpha=float("nan"))}
    nodes.append(others.get(kind, more))
    if kind == "attribute":
        nodes[0].attribute.append(helper.make_attribute("foo", 1))
    if kind == "epsilon":
        more.attribute.append(helper.make_attribute("foo", 1))
    wrong = [*nodes, op("Identity", ["n"], "out")]
    right = [conv(("X", "W"), "z", name="right"), op("Relu", ["z"], "out2")]
    model = model_of([choice(wrong, right)], {"X": X.shape}, constants=constants | {"W": W})
    model.graph.input[0].type.tensor_type.ClearField("shape")  # otherwise shape inference may report the mistake
    session = alike(model, [{"X": X, "which": np.array(which)} for which in (False, True)], capfd, served=None)
    assert session is None or session.report.fused["right"] == ("Relu",)


def test_sparse_weights():
    values = helper.make_tensor("W", TensorProto.FLOAT, [2], [2.0, 3.0])
    sparse = helper.make_sparse_tensor(values, helper.make_tensor("at", TensorProto.INT64, [2], [5, 70]), W.shape)
    nodes = [conv(output="z", strides=[2, 2]), conv(("z", "W"), auto_pad="SAME_UPPER", strides=[4, 2])]
    model = model_of(nodes, {"X": X.shape})
    model.graph.sparse_initializer.append(sparse)
    session = convt.onnxruntime.InferenceSession(model)
    assert session.report.packed == ("z",) and "its kernel is smaller than its stride" in session.report.kept["Y"]
    want = plain(model).run(None, {"X": X})[0]
    np.testing.assert_allclose(session.run(None, {"X": X})[0], want, rtol=1e-4, atol=1e-5)


def test_two_nodes_that_one_sum_adds():
    """Check the residual block of a decoder: one of the two nodes takes the sum, and the other its own norm at most."""
    nodes = [conv(("X", "W"), "a"), conv(("X", "V"), "b"), op("Add", ["a", "b"], "s"), op("Relu", ["s"], "Y")]
    session = same(model_of(nodes, {"X": X.shape}, constants={"W": W, "V": weights(*W.shape)}), {"X": X}, served=2)
    assert list(session.report.fused.values()) == [("Add", "Relu")]
    norms = [norm(name, f"{name}n", 6) for name in "ab"]
    nodes[2:3] = [*(node for node, _ in norms), op("Identity", ["bn"], "i"), op("Add", ["i", "an"], "s")]
    constants = {"W": W, "V": weights(*W.shape)} | norms[0][1] | norms[1][1]
    session = same(model_of(nodes, {"X": X.shape}, constants=constants), {"X": X}, served=2, tolerance=3e-5)
    assert [each[-2:] for each in session.report.fused.values() if "Add" in each] == [("Add", "Relu")]


# ------------------------------------------------------------------------------------------------ weights passed to a run


def _replaceable(ir_version):
    """Return a model whose initializers are also inputs."""
    more, constants = norm("a", "n", 6)
    constants |= {"W": W, "B": BIAS}
    nodes = [conv(output="c", strides=[2, 2]), op("Add", ["c", "B"], "a"), more, op("Relu", ["n"], "Y")]
    inputs = {"X": ("N", 6, "H", "V")}
    return model_of(nodes, inputs, constants=constants, replaceable=constants, ir_version=ir_version)


@pytest.mark.parametrize("ir_version", [3, 4, 8])
def test_initializers_that_are_inputs_are_constants(ir_version, monkeypatch):
    model = _replaceable(ir_version)
    session = same(model, {"X": X}, tolerance=3e-5)
    assert session.report.fused == {"c": ("Add", "BatchNormalization", "Relu")}
    theirs = plain(model)
    for ask in ("get_inputs", "get_overridable_initializers"):
        assert [each.name for each in getattr(session, ask)()] == [each.name for each in getattr(theirs, ask)()]
    made, calls = _node.Node.packed_of, []
    monkeypatch.setattr(_node.Node, "packed_of", lambda *arguments: calls.append(1) or made(*arguments))
    session.run(None, {"X": X})
    session.run(None, {"X": weights(2, 6, 5, 3)})
    assert not calls  # no repeated packing


@pytest.mark.parametrize("given", ["W", "B", "n_scale", "n_var", "all"])
def test_a_run_replaces_initializers(given):
    """Check that a run uses the values that it receives, in every way to run, and that the next run uses the defaults again."""
    model = _replaceable(8)
    sizes = {each.name: each.dims for each in model.graph.initializer}
    feed = {name: RNG.uniform(1, 2, dims).astype(np.float32) for name, dims in sizes.items() if given in (name, "all")}
    session, theirs = convt.onnxruntime.InferenceSession(model), plain(model)
    want, default = (theirs.run(None, {"X": X} | more)[0] for more in (feed, {}))
    assert abs(want - default).max() > 0.1

    def compare(got, wanted):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)

    compare(session.run(None, {"X": X} | feed)[0], want)
    compare(session.run(None, {"X": X})[0], default)
    binding = session.io_binding()
    for name, value in ({"X": X} | feed).items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value))
    binding.bind_output("Y")
    session.run_with_iobinding(binding)
    compare(binding.copy_outputs_to_cpu()[0], want)
    for name, value in feed.items():  # ONNX Runtime does not report new numbers in unchanged memory
        value[...] = np.ones(sizes[name], np.float32) / 2
    compare(session.run(None, {"X": X} | feed)[0], theirs.run(None, {"X": X} | feed)[0])
    compare(session.run(None, {"X": X})[0], default)


def test_sizes_that_a_run_may_change_are_not_relied_on():
    model = _replaceable(8)
    for each in model.graph.input[1:]:
        each.type.tensor_type.ClearField("shape")
    session, theirs = convt.onnxruntime.InferenceSession(model), plain(model)
    assert session.report.fused == {}
    for feed in ({}, {"W": weights(6, 6, 5, 2)}, {"B": weights(1, 1, 1, 9)}):
        got, want = (each.run(None, {"X": X} | feed)[0] for each in (session, theirs))
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_weights_of_the_graph_around_a_branch_are_packed_once(monkeypatch):
    made, calls = _node.Node.packed_of, []
    monkeypatch.setattr(_node.Node, "packed_of", lambda *arguments: calls.append(1) or made(*arguments))
    branches = ([conv(("X", "W"), f"out{n}", strides=[n, n])] for n in (2, 3))
    model = model_of([choice(*branches)], {"X": X.shape}, constants={"W": W})
    session = convt.onnxruntime.InferenceSession(model)
    for which in (True, False, True, False):
        session.run(None, {"X": X, "which": np.array(which)})
    assert len(calls) == 2


def test_weights_that_every_run_brings_give_the_same_bits_in_any_run():
    model = model_of([conv()], {"X": X.shape, "W": W.shape})
    session, other = convt.onnxruntime.InferenceSession(model), weights(*W.shape)
    first, _, *more = (session.run(None, {"X": X, "W": w})[0].tobytes() for w in (W, other, W, W, W))
    assert set(more) == {first}


# ------------------------------------------------------------------------------------------------ functions


def _call(name, inputs, output, **attributes):
    return op(name, inputs, output, domain="mine", **attributes)


def _calling(functions, opset, calls, outputs=("Y",)):
    return model_of(calls, {"X": X.shape}, outputs, {"W": W}, opset=opset, functions=functions)


@pytest.mark.parametrize("versions", [(17, 17), (17, 18), (18, 17), (10, 17), (11, 20)])
def test_functions_of_another_opset_are_inlined_where_it_means_the_same(versions):
    own, models = versions
    node = conv(("a", "b"), "t")
    node.attribute.append(AttributeProto(name="strides", type=AttributeProto.INTS, ref_attr_name="s"))
    up = function_of("Up", [node, op("Relu", ["t"], "c")], opset=own, attributes=["s"])
    calls = [_call("Up", ["X", "W"], "Z", s=[2, 2]), _call("Up", ["Z", "W"], "Y", s=[1, 3])]
    session = same(_calling([up], models, calls), {"X": X}, served=2, tolerance=3e-5)
    assert list(session.report.fused.values()) == [("Relu",)] * 2


def test_functions_whose_operators_another_opset_reads_otherwise():
    """Check a function whose operators mean something else in another opset: Softmax covers all following axes up to opset 12
    and one axis from 13 on."""
    up = function_of("Up", [conv(("a", "b"), "t"), op("Softmax", ["t"], "c", axis=1)], opset=11)
    beside = [_call("Up", ["X", "W"], "Z"), conv(("X", "W"), "Y", name="beside")]
    same(_calling([up], 17, beside, ("Y", "Z")), {"X": X}, served=2)


def test_functions_with_branches_and_functions_inside():
    up = function_of("Up", [conv(("a", "b"), "t"), op("Relu", ["t"], "c")])
    outer = function_of("Outer", [choice([conv(("a", "b"), "o0")], [_call("Up", ["a", "b"], "o1")], "c")], ("a", "b", "which"))
    _both_ways(_calling([up, outer], 17, [_call("Outer", ["X", "W", "which"], "Y")]), served=2)
