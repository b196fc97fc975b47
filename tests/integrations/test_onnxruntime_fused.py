"""Tests of a sum, a scale and a PRelu after a ConvTranspose node: fused with it, with ONNX Runtime's results and errors."""

import numpy as np
import pytest
from onnx_models import VERSION, both, conv, fused, helper, joined, model_of, norm, op, plain, same, weights

from convt.onnxruntime import InferenceSession, _node

SHAPE = (2, 6, 11, 13)  # the output of X (2, 4, 5, 6) with W (4, 6, 3, 3) and stride 2
X, W = weights(2, 4, 5, 6), weights(4, 6, 3, 3)


def add_model(other, *more, order=("A", "S"), constants=None, inputs=None, **attributes):
    """Return a model that adds its input S of shape ``other`` to a ConvTranspose; ``more`` are nodes after the Add."""
    nodes = [conv(output="A", strides=[2, 2], **attributes), op("Add", order, "B" if more else "Y"), *more]
    inputs = {"X": ("N", 4, "H", "V"), "S": other, **(inputs or {})}
    return model_of(nodes, inputs, constants={"W": W} if constants is None else constants)


@pytest.mark.parametrize("order", [("A", "S"), ("S", "A")])
@pytest.mark.parametrize("activation", [None, "Relu", "Tanh"])
def test_a_sum_is_fused(order, activation):
    more = [] if activation is None else [op(activation, ["B"], "Y")]
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
        conv(("X", "W", "bias"), "A", strides=[2, 2]), node, op("Add", ["B", "S"], "C"),
        op("LeakyRelu", ["C"], "Y", alpha=0.3),
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


def test_repeated_sums_are_computed_without_python(monkeypatch):
    computed, inner = [], _node.Node.compute
    monkeypatch.setattr(_node.Node, "compute", lambda self, inputs, out: computed.append(1) or inner(self, inputs, out))
    model = add_model([None] * 4, op("Sigmoid", ["B"], "Y"))
    session, theirs = InferenceSession(model), plain(model)
    for other in (SHAPE, SHAPE, SHAPE, (1, 6, 1, 1), SHAPE, (1, 6, 1, 1)):
        feed = {"X": weights(*X.shape), "S": weights(*other)}
        np.testing.assert_allclose(session.run(None, feed)[0], theirs.run(None, feed)[0], rtol=1e-5, atol=1e-6)
    assert len(computed) == 3  # the first of each shape of S, and every broadcast one


@pytest.mark.parametrize("dims, groups", [((6, 1, 1), 1), ((1, 6, 1, 1), 2)])
@pytest.mark.parametrize(
    "followers", [("Mul",), ("Mul", "Add"), ("Add", "Mul", "Add"), ("Mul", "Add", "Relu"), ("Mul", "Relu")], ids=" ".join
)
def test_scale_and_shift_per_channel_are_folded(dims, groups, followers):
    nodes, constants, source = [conv(output="A0", strides=[2, 2], group=groups)], {"W": W[:, : 6 // groups]}, "A0"
    for n, name in enumerate(followers, 1):
        inputs = [source]
        if name != "Relu":
            constants[f"C{n}"] = weights(*dims)
            inputs.insert(n % 2, f"C{n}")
        source = "Y" if n == len(followers) else f"A{n}"
        nodes.append(op(name, inputs, source))
    session = same(model_of(nodes, {"X": X.shape}, constants=constants), {"X": X}, tolerance=1e-5)
    assert fused(session) == followers


def test_a_scale_after_a_norm_is_left():
    node, constants = norm("A", "B", 6)
    nodes = [conv(output="A", strides=[2, 2]), node, op("Mul", ["B", "C"], "Y")]
    model = model_of(nodes, {"X": X.shape}, constants=constants | {"W": W, "C": weights(6, 1, 1)})
    session = same(model, {"X": X})
    assert joined(session) in ((), ("Mul",))  # the second if ONNX Runtime folds the norm itself


MISTAKES = {
    "attribute of another type": (op("BatchNormalization", ["A", *"sbmv"], "Y", momentum="text"), 17),
    "integer": (op("LeakyRelu", ["A"], "Y", alpha=1), 17),
    "unknown attribute": (op("Add", ["A", "S"], "Y", axis=1), 17),
    "older than the operator": (op("HardSwish", ["A"], "Y"), 13),
    "older than Gelu": (op("Gelu", ["A"], "Y"), 19),
    "older than the kernel": (op("Add", ["A", "S"], "Y"), 6),
    "older than the kernel of Mul": (op("Mul", ["A", "P"], "Y"), 6),
    "too many outputs": (helper.make_node("Relu", ["A"], ["Y", "Z"]), 17),
    "another type": (op("Add", ["A", "D"], "Y"), 17),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_follower_that_onnxruntime_refuses_is_refused(name):
    follower, opset = MISTAKES[name]
    constants = {"W": W, "P": weights(6, 1, 1), "D": np.zeros(1)} | {name: weights(6) for name in "sbmv"}
    nodes = [conv(output="A", strides=[2, 2]), follower]
    model = model_of(nodes, {"X": X.shape, "S": SHAPE}, constants=constants, opset=opset).SerializeToString()
    error, message = both(lambda kind: kind(model, providers=["CPUExecutionProvider"]))
    assert issubclass(error, Exception) and message


@pytest.mark.parametrize("dims, served", [
    ((), True), ((1,), True), ((1, 1, 1), True), ((6, 1, 1), True), ((1, 6, 1, 1), True), ((13,), False), ((6, 11, 13), False),
])  # fmt: skip
@pytest.mark.parametrize("followers", ["", "Add"])
def test_a_prelu_of_one_slope_or_one_for_each_channel_is_fused(dims, served, followers):
    nodes, inputs = [conv(output="A", strides=[2, 2], group=2)], {"X": [None] * 4}
    if followers:
        nodes.append(op("Add", ["S", "A"], "B"))
        inputs["S"] = [None] * 4
    nodes.append(op("PRelu", [nodes[-1].output[0], "P"]))
    slopes = np.asarray(weights(*dims), np.float32)
    model = model_of(nodes, inputs, constants={"W": weights(4, 3, 3, 3), "P": slopes})
    session, theirs = InferenceSession(model), plain(model)
    assert fused(session) == (("Add",) * bool(followers) + ("PRelu",) * served)
    for shape in (X.shape, X.shape, X.shape, (1, 4, 5, 6), (1, 4, 5, 6)) if served else (X.shape,):
        feed = {"X": weights(*shape)} | ({"S": weights(shape[0], 6, *SHAPE[2:])} if followers else {})
        np.testing.assert_allclose(session.run(None, feed)[0], theirs.run(None, feed)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(VERSION < (1, 28), reason="older versions compute other numbers")
def test_special_numbers_of_a_prelu():
    values = np.array([0.0, -0.0, 1e-40, -1e-40, 3e38, -3e38, np.inf, -np.inf, np.nan, -1, 2] * 3, np.float32).reshape(1, 1, -1)
    nodes = [conv(output="A"), op("PRelu", ["A", "P"], "Y")]
    constants = {"W": np.ones((1, 2, 1), np.float32), "P": np.array([[-2.0], [0.5]], np.float32)}
    model = model_of(nodes, {"X": values.shape}, constants=constants)
    session = InferenceSession(model)
    assert fused(session) == ("PRelu",)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {"X": values})[0], plain(model).run(None, {"X": values})[0])


def test_a_batch_of_none():
    add, prelu = op("Add", ["A", "S"], "B"), op("PRelu", ["B", "P"], "Y")
    nodes = [conv(output="A", strides=[2, 2]), add, prelu]
    model = model_of(nodes, {"X": [None] * 4, "S": [None] * 4}, constants={"W": W, "P": weights(6, 1, 1)})
    feed = {"X": X[:0], "S": weights(0, *SHAPE[1:])}
    both(lambda kind: kind(model.SerializeToString()).run(None, feed)[0].shape)
