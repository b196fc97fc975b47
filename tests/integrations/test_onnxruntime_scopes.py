"""Tests of random ONNX models with nested branches, in which a name may mean another thing elsewhere. Results of convt's
session are compared with those of ONNX Runtime's."""

import numpy as np
import pytest
from onnx_models import AttributeProto, TensorProto, helper, info, plain, tensors

import convt.onnxruntime

CHANNELS, SIZE = 4, 4  # a row of the output has as many elements as there are channels, so it could pass for a bias
SHAPES = {
    "W1": (CHANNELS, CHANNELS, 1, 1), "W3": (CHANNELS, CHANNELS, 3, 3), "bias": (CHANNELS, 1, 1), "row": (1, 1, 1, SIZE),
    "vector": (CHANNELS,),
}  # fmt: skip
OPERATORS = ["conv", "conv", "conv", "Identity", "Relu", "LeakyRelu", "sum", "norm", "Add", "If", "If"]


class Maker:
    """A maker of one graph of a random model. All values but constants have the shape of X.

    ``values``, and ``constants`` by kind, are the names that the outer graphs have defined so far. ``taken`` are the names that
    must not be used again. A new name is one of the first ``many`` free names: if ``many`` is small, graphs side by side use
    the same names.
    """

    def __init__(self, rng, values, constants, taken, depth, many):
        self.rng, self.values, self.taken, self.depth, self.many = rng, list(values), set(taken), depth, many
        self.constants = {kind: list(names) for kind, names in constants.items()}
        self.nodes, self.held = [], {}

    def pick(self, choices):
        return choices[self.rng.integers(len(choices))]

    def new(self, letter="n"):
        name = self.pick([name for name in (f"{letter}{n}" for n in range(400)) if name not in self.taken][: self.many[letter]])
        self.taken.add(name)
        return name

    def constant(self, kind):
        """Return the name of a constant of a kind: a visible one, or a new one that is stored or computed in one of several
        ways."""
        if self.constants[kind] and self.rng.random() < 0.3:
            return self.pick(self.constants[kind])
        name, way = self.new("c"), self.rng.random()
        array = self.rng.uniform(0.1, 0.5, SHAPES[kind]).astype(np.float32)
        source = name if way < 0.5 else self.new()
        if way >= 0.5:
            operator, words = self.pick([("Cast", {"to": TensorProto.FLOAT}), ("Identity", {}), ("Abs", {})])
            array = array.astype(np.float16) if operator == "Cast" else array
            self.nodes.append(helper.make_node(operator, [source], [name], **words))
        self.held[source] = array
        self.constants[kind].append(name)
        return name

    def add_node(self):
        source = self.values[-1] if self.rng.random() < 0.8 else self.pick(self.values)
        operator, words = self.pick(OPERATORS if self.depth else OPERATORS[:-2]), {}
        if self.nodes and self.nodes[-1].op_type == "ConvTranspose":
            source, operator = self.values[-1], self.pick(["Add", "Add", "row", "Identity", operator])
        inputs = [source]
        if operator == "conv":
            kind = self.pick(["W1", "W3"])
            words = {"pads": [1] * 4} if kind == "W3" else {}
            operator, inputs = "ConvTranspose", [source, self.constant(kind)]
        elif operator in ("Add", "row"):
            inputs = [source, self.constant("bias" if operator == "Add" else "row")][:: self.pick([1, -1])]
            operator = "Add"
        elif operator == "sum":
            operator, inputs = "Add", [source, self.pick(self.values)]
        elif operator == "norm":
            operator, inputs = "BatchNormalization", [source, *(self.constant("vector") for _ in range(4))]
        elif operator == "If":
            output = self.new()
            words = {f"{name}_branch": self.branch() for name in ("then", "else")}
            for each in words.values():
                self.taken |= _names(each)
            self.values.append(output)
            self.nodes.append(helper.make_node("If", [self.pick(["which", "other"])], [output], **words))
            return
        self.values.append(self.new())
        self.nodes.append(helper.make_node(operator, inputs, [self.values[-1]], **words))

    def branch(self):
        return Maker(self.rng, self.values, self.constants, self.taken, self.depth - 1, self.many).graph()

    def graph(self, inputs=(), more_outputs=False):
        for _ in range(self.rng.integers(3, 9)):
            self.add_node()
        outputs = {self.values[-1], *([self.pick(self.values[1:])] if more_outputs else [])}
        return helper.make_graph(self.nodes, "g", list(inputs), [info(name) for name in sorted(outputs)], tensors(self.held))


def _names(graph):
    """Return all names that a graph and its inner graphs define."""
    inner = [attribute.g for node in graph.node for attribute in node.attribute if attribute.type == AttributeProto.GRAPH]
    own = [each.name for each in graph.initializer] + [name for node in graph.node for name in node.output]
    return {*own, *(name for each in inner for name in _names(each))}


@pytest.mark.parametrize("seed", range(40))
def test_random_scopes(seed):
    rng = np.random.default_rng(seed)
    inputs = [info("X", shape=(1, CHANNELS, SIZE, SIZE)), *(info(name, TensorProto.BOOL, []) for name in ("which", "other"))]
    maker = Maker(rng, ["X"], {kind: [] for kind in SHAPES}, {"X", "which", "other"}, 2, {"c": 2, "n": 300 if seed % 2 else 2})
    graph = maker.graph(inputs, more_outputs=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session, theirs = convt.onnxruntime.InferenceSession(model), plain(model)
    for why in session.report.kept.values():
        assert "constant or unused, or its branch" in why, session.report
    x = rng.standard_normal((1, CHANNELS, SIZE, SIZE)).astype(np.float32)
    for which in (True, False):
        for other in (True, False):
            feed = {"X": x, "which": np.array(which), "other": np.array(other)}
            for got, want in zip(session.run(None, feed), theirs.run(None, feed), strict=True):
                assert got.shape == want.shape
                assert abs(got - want).max() <= 1e-4 * abs(want).max()
