"""Tests of a sum, a scale and a PRelu after a ConvTranspose node: fused with it, with ONNX Runtime's results and errors."""

import numpy as np
import pytest
from onnx_models import (
    VERSION,
    TensorProto,
    both,
    conv,
    helper,
    info,
    joined,
    model_of,
    norm,
    onnxruntime,
    outcome,
    plain,
    same,
    weights,
)

from convt.onnxruntime import InferenceSession, _node

SHAPE = (2, 6, 11, 13)  # the output of X (2, 4, 5, 6) with W (4, 6, 3, 3) and stride 2
X, W = weights(2, 4, 5, 6), weights(4, 6, 3, 3)


def fused(session):
    """Return the types of the operators that are fused with the only ConvTranspose of a session."""
    (name,) = (*session.report.packed, *session.report.unpacked)
    return session.report.fused.get(name, ())


def add_model(other, *more, order=("A", "S"), constants=None, inputs=None, **attributes):
    """Return a model that adds its input S of shape ``other`` to a ConvTranspose; ``more`` are nodes after the Add."""
    nodes = [conv(output="A", strides=[2, 2], **attributes), helper.make_node("Add", order, ["Y" if not more else "B"]), *more]
    inputs = {"X": ("N", 4, "H", "V"), "S": other, **(inputs or {})}
    return model_of(nodes, inputs, constants={"W": W} if constants is None else constants)


@pytest.mark.parametrize("order", [("A", "S"), ("S", "A")])
@pytest.mark.parametrize("activation", [None, "Relu", "Tanh"])
def test_a_sum_is_fused(order, activation):
    more = [] if activation is None else [helper.make_node(activation, ["B"], ["Y"])]
    model = add_model([None] * 4, *more, order=order)
    session = same(model, {"X": X, "S": weights(*SHAPE)})
    assert fused(session) == (("Add", activation) if activation else ("Add",))
    for shape in (X.shape, (1, 4, 1, 1), (3, 4, 9, 2), X.shape, X.shape):
        x = weights(*shape)
        other = weights(shape[0], 6, 2 * shape[2] + 1, 2 * shape[3] + 1)
        got, want = session.run(None, {"X": x, "S": other})[0], plain(model).run(None, {"X": x, "S": other})[0]
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_sum_after_a_bias_and_a_norm_is_fused():
    node, constants = norm("A", "B", 6)
    nodes = [
        conv(("X", "W", "bias"), "A", strides=[2, 2]), node, helper.make_node("Add", ["B", "S"], ["C"]),
        helper.make_node("LeakyRelu", ["C"], ["Y"], alpha=0.3),
    ]  # fmt: skip
    constants |= {"W": W, "bias": weights(6)}
    model = model_of(nodes, {"X": X.shape, "S": SHAPE}, constants=constants)
    session = same(model, {"X": X, "S": weights(*SHAPE)})
    assert joined(session) == ("Add", "LeakyRelu")


@pytest.mark.parametrize("other", [(1, 6, 1, 1), (6, 1, 1), (2, 1, 11, 13), (13,), (), (1, 1, 11, 1)])
def test_an_array_that_broadcasts_is_added(other, monkeypatch):
    monkeypatch.delattr(_node.Node, "compute_with_onnxruntime")
    session = same(add_model([None] * len(other)), {"X": X, "S": weights(*other)})
    assert fused(session) == ("Add",)


def test_an_array_that_does_not_fit_gives_onnxruntimes_error():
    model = add_model([None] * 4)
    feed = {"X": X, "S": weights(2, 6, 11, 12)}
    (ours, _), (theirs, message) = (outcome(each.run, None, feed) for each in (InferenceSession(model), plain(model)))
    assert ours is theirs and "axis == 1" in message


def test_a_sum_with_weights_of_the_run():
    nodes = [conv(output="A", strides=[2, 2]), helper.make_node("Add", ["A", "S"], ["Y"])]
    model = model_of(nodes, {"X": [None] * 4, "W": [None] * 4, "S": [None] * 4})
    for _ in range(3):
        feed = {"X": X, "W": weights(*W.shape), "S": weights(*SHAPE)}
        assert fused(same(model, feed)) == ("Add",)


def test_weights_that_a_run_may_replace_are_not_compared_with_the_array_that_is_added(monkeypatch):
    made, inner = [], _node.Node.packed_of
    monkeypatch.setattr(_node.Node, "packed_of", lambda self, *arguments: made.append(1) or inner(self, *arguments))
    model = add_model([None] * 4, inputs={"W": W.shape})
    session = InferenceSession(model)
    for _ in range(3):
        session.run(None, {"X": X, "S": weights(*SHAPE)})
    assert len(made) == 1


def test_a_value_that_is_read_twice_is_not_fused():
    add, mul = helper.make_node("Add", ["A", "S"], ["B"]), helper.make_node("Mul", ["A", "B"], ["Y"])
    nodes = [conv(output="A", strides=[2, 2]), add, mul]
    model = model_of(nodes, {"X": X.shape, "S": SHAPE}, constants={"W": W})
    assert fused(same(model, {"X": X, "S": weights(*SHAPE)})) == ()
    twice = model_of([nodes[0], helper.make_node("Add", ["A", "A"], ["Y"])], {"X": X.shape}, constants={"W": W})
    assert fused(same(twice, {"X": X})) == ()


def test_repeated_sums_are_computed_without_python(monkeypatch):
    computed, inner = [], _node.Node.compute
    monkeypatch.setattr(_node.Node, "compute", lambda self, inputs, out: computed.append(1) or inner(self, inputs, out))
    model = add_model([None] * 4, helper.make_node("Sigmoid", ["B"], ["Y"]))
    session, theirs = InferenceSession(model), plain(model)
    for other in (SHAPE, SHAPE, SHAPE, (1, 6, 1, 1), SHAPE, (1, 6, 1, 1)):
        feed = {"X": weights(*X.shape), "S": weights(*other)}
        np.testing.assert_allclose(session.run(None, feed)[0], theirs.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    assert len(computed) == 3  # the first of each shape of S, and every broadcast one


@pytest.mark.parametrize("dims", [(6, 1, 1), (1, 6, 1, 1)])
@pytest.mark.parametrize(
    "followers", [("Mul",), ("Mul", "Add"), ("Add", "Mul", "Add"), ("Mul", "Add", "Relu"), ("Mul", "Relu")], ids=" ".join
)
def test_scale_and_shift_per_channel_are_folded(dims, followers):
    nodes, constants, source = [conv(output="A0", strides=[2, 2])], {"W": W}, "A0"
    for n, name in enumerate(followers, 1):
        inputs = [source]
        if name != "Relu":
            constants[f"C{n}"] = weights(*dims)
            inputs.insert(n % 2, f"C{n}")
        source = "Y" if n == len(followers) else f"A{n}"
        nodes.append(helper.make_node(name, inputs, [source]))
    session = same(model_of(nodes, {"X": X.shape}, constants=constants), {"X": X}, tolerance=1e-5)
    assert fused(session) == followers


def test_a_scale_of_groups_is_folded():
    nodes = [conv(output="A", strides=[2, 2], group=2), helper.make_node("Mul", ["A", "C"], ["Y"])]
    model = model_of(nodes, {"X": X.shape}, constants={"W": weights(4, 3, 3, 3), "C": weights(6, 1, 1)})
    assert fused(same(model, {"X": X})) == ("Mul",)


@pytest.mark.parametrize("dims", [(13,), (1, 1, 11, 13), (2, 6, 1, 1)])
def test_a_scale_that_is_not_per_channel_is_left(dims):
    nodes = [conv(output="A", strides=[2, 2]), helper.make_node("Mul", ["A", "C"], ["Y"])]
    model = model_of(nodes, {"X": X.shape}, constants={"W": W, "C": weights(*dims)})
    assert fused(same(model, {"X": X})) == ()


def test_a_scale_after_a_norm_is_left():
    node, constants = norm("A", "B", 6)
    nodes = [conv(output="A", strides=[2, 2]), node, helper.make_node("Mul", ["B", "C"], ["Y"])]
    model = model_of(nodes, {"X": X.shape}, constants=constants | {"W": W, "C": weights(6, 1, 1)})
    session = same(model, {"X": X})
    assert joined(session) in ((), ("Mul",))  # the second if ONNX Runtime folds the norm itself


@pytest.mark.parametrize("followers", ["Mul", "Mul, Add"])
def test_what_convt_refuses_gets_onnxruntimes_scale(followers):
    """Check an input that convt refuses: ONNX Runtime computes the node with its scale, and raises its error."""
    both = "Add" in followers
    nodes = [conv(output="A", strides=[2, 2], group=2), helper.make_node("Mul", ["A", "C"], ["B" if both else "Y"])]
    if both:
        nodes.append(helper.make_node("Add", ["B", "D"], ["Y"]))
    constants = {"W": weights(4, 3, 3, 3), "C": weights(6, 1, 1), "D": weights(6, 1, 1)}
    model = model_of(nodes, {"X": [None] * 4}, constants={name: constants[name] for name in ("W", "C", "D")[: len(nodes)]})
    session, theirs = InferenceSession(model), plain(model)
    errors = [outcome(each.run, None, {"X": weights(1, 5, 4, 4)}) for each in (session, theirs)]
    assert issubclass(errors[0][0], Exception) and errors[0][0] is errors[1][0]
    np.testing.assert_allclose(session.run(None, {"X": X})[0], theirs.run(None, {"X": X})[0], rtol=1e-5, atol=1e-5)


MISTAKES = {
    "attribute of another type": (helper.make_node("BatchNormalization", ["A", *"sbmv"], ["Y"], momentum="text"), 17),
    "integer": (helper.make_node("LeakyRelu", ["A"], ["Y"], alpha=1), 17),
    "unknown attribute": (helper.make_node("Add", ["A", "S"], ["Y"], axis=1), 17),
    "older than the operator": (helper.make_node("HardSwish", ["A"], ["Y"]), 13),
    "older than Gelu": (helper.make_node("Gelu", ["A"], ["Y"]), 19),
    "older than the kernel": (helper.make_node("Add", ["A", "S"], ["Y"]), 6),
    "older than the kernel of Mul": (helper.make_node("Mul", ["A", "P"], ["Y"]), 6),
    "too many outputs": (helper.make_node("Relu", ["A"], ["Y", "Z"]), 17),
    "another type": (helper.make_node("Add", ["A", "D"], ["Y"]), 17),
}


def mistaken(name, place):
    """Return a model of a node and a follower that ONNX Runtime refuses, in a graph, a branch or a function."""
    follower, opset = MISTAKES[name]
    nodes = [conv(output="A", strides=[2, 2]), follower]
    constants = {"W": W, "P": weights(6, 1, 1), "D": np.zeros(1)} | {name: weights(6) for name in "sbmv"}
    inputs = {"X": X.shape, "S": SHAPE}
    if place == "branch":
        inner = helper.make_graph(nodes, "inner", [], [info("Y")])
        nodes = [helper.make_node("If", ["which"], ["out"], then_branch=inner, else_branch=inner)]
        model = model_of(nodes, inputs, ["out"], constants, opset=opset)
        model.graph.input.append(info("which", TensorProto.BOOL, []))
        return model
    if place == "function":
        names = [*inputs, *constants]
        function = helper.make_function("mine", "Up", names, ["Y"], nodes, [helper.make_opsetid("", opset)])
        call = helper.make_node("Up", names, ["out"], domain="mine")
        imports = [helper.make_opsetid("mine", 1)]
        return model_of([call], inputs, ["out"], constants, opset=opset, functions=[function], imports=imports)
    return model_of(nodes, inputs, constants=constants, opset=opset)


@pytest.mark.parametrize("place", ["graph", "branch", "function"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_follower_that_onnxruntime_refuses_is_refused(name, place):
    model = mistaken(name, place).SerializeToString()
    error, message = both(lambda kind: kind(model, providers=["CPUExecutionProvider"]))
    assert issubclass(error, Exception) and message


@pytest.mark.parametrize("dims, served", [
    ((), True), ((1,), True), ((1, 1, 1), True), ((6, 1, 1), True), ((1, 6, 1, 1), True), ((13,), False), ((6, 11, 13), False),
])  # fmt: skip
@pytest.mark.parametrize("followers", ["", "Add"])
def test_a_prelu_of_one_slope_or_one_for_each_channel_is_fused(dims, served, followers):
    nodes, inputs = [conv(output="A", strides=[2, 2], group=2)], {"X": [None] * 4}
    if followers:
        nodes.append(helper.make_node("Add", ["S", "A"], ["B"]))
        inputs["S"] = [None] * 4
    nodes.append(helper.make_node("PRelu", [nodes[-1].output[0], "P"], ["Y"]))
    slopes = np.asarray(weights(*dims), np.float32)
    model = model_of(nodes, inputs, constants={"W": weights(4, 3, 3, 3), "P": slopes})
    session, theirs = InferenceSession(model), plain(model)
    assert fused(session) == (("Add",) * bool(followers) + ("PRelu",) * served)
    for shape in (X.shape, X.shape, X.shape, (1, 4, 5, 6), (1, 4, 5, 6)) if served else (X.shape,):
        feed = {"X": weights(*shape)} | ({"S": weights(shape[0], 6, *SHAPE[2:])} if followers else {})
        np.testing.assert_allclose(session.run(None, feed)[0], theirs.run(None, feed)[0], rtol=1e-5, atol=1e-5)
    wrong = {"X": weights(1, 5, 5, 6), "S": weights(1, 6, 11, 13)}
    errors = []
    for each in (session, theirs):
        with pytest.raises(Exception) as raised:
            each.run(None, {name: wrong[name] for name in inputs})
        errors.append(type(raised.value))
    assert errors[0] is errors[1]


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_slopes_of_many_planes_are_divided_among_threads(threads):
    nodes = [conv(output="A", strides=[2, 2]), helper.make_node("PRelu", ["A", "P"], ["Y"])]
    constants = {"W": weights(4, 37, 3, 3), "P": weights(37, 1, 1)}
    model, x = model_of(nodes, {"X": [None] * 4}, constants=constants), weights(3, 4, 40, 41)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session, want = InferenceSession(model, options), plain(model).run(None, {"X": x})[0]
    for _ in range(3):
        np.testing.assert_allclose(session.run(None, {"X": x})[0], want, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(VERSION < (1, 28), reason="older versions compute other numbers")
def test_special_numbers_of_a_prelu():
    values = np.array([0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, -1, 2] * 3, np.float32).reshape(1, 1, -1)
    nodes = [conv(output="A"), helper.make_node("PRelu", ["A", "P"], ["Y"])]
    constants = {"W": np.ones((1, 2, 1), np.float32), "P": np.array([[-2.0], [0.5]], np.float32)}
    model = model_of(nodes, {"X": values.shape}, constants=constants)
    session = InferenceSession(model)
    assert fused(session) == ("PRelu",)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {"X": values})[0], plain(model).run(None, {"X": values})[0])


def test_a_slope_that_is_not_finite_or_not_constant_is_left():
    nodes = [conv(output="A", strides=[2, 2]), helper.make_node("PRelu", ["A", "P"], ["Y"])]
    model = model_of(nodes, {"X": X.shape, "P": (1,)}, constants={"W": W})
    assert fused(same(model, {"X": X, "P": weights(1)})) == ()
    model = model_of(nodes, {"X": X.shape}, constants={"W": W, "P": np.full(1, np.inf, np.float32)})
    session = InferenceSession(model)
    np.testing.assert_allclose(session.run(None, {"X": X})[0], plain(model).run(None, {"X": X})[0], rtol=1e-5, atol=1e-5)
    assert fused(session) == ()


def test_a_batch_of_none():
    add, prelu = helper.make_node("Add", ["A", "S"], ["B"]), helper.make_node("PRelu", ["B", "P"], ["Y"])
    nodes = [conv(output="A", strides=[2, 2]), add, prelu]
    model = model_of(nodes, {"X": [None] * 4, "S": [None] * 4}, constants={"W": W, "P": weights(6, 1, 1)})
    feed = {"X": X[:0], "S": weights(0, *SHAPE[1:])}
    both(lambda kind: kind(model.SerializeToString()).run(None, feed)[0].shape)
