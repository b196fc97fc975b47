"""The case of a seed: `case`. Rare features are drawn much more often than models have them.

A key that is left out of a dict of a case has its plainest value (see `build.py`), so that a case shrinks by losing keys.
"""

import random

import onnx
from cases import PARAMETERS

from convt._base.activation import ACTIVATIONS

_ACTIVATIONS = {  # operator -> attributes and their values
    row.onnx[0]: {attribute: [float(each[n]) for each in PARAMETERS[name]] for n, (attribute, _) in enumerate(row.onnx[1:])}
    for name, row in ACTIVATIONS.items() if row.onnx
} | {
    "LeakyRelu": {"alpha": [0.1, 0.3, 1.5, -0.5, 0.0, 1e20]}, "Gelu": {"approximate": ["none", "tanh"]},
    "HardSigmoid": {"alpha": [0.1, 0.2], "beta": [0.4]}, "Softplus": {}, "Selu": {},
    "ThresholdedRelu": {"alpha": [0.5]}, "Neg": {}, "Abs": {},
}  # fmt: skip
_SCHEMAS = [each for each in onnx.defs.get_all_schemas_with_history() if each.domain == ""]
_SINCE = {name: min(each.since_version for each in _SCHEMAS if each.name == name) for name in _ACTIVATIONS}  # the first opset
_DOUBLE = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs")  # activations that ONNX Runtime has in float64
_VALUES = ["real"] * 8 + ["integers"] * 3 + ["zero", "ones", "huge", "tiny", "subnormal", "special"]
_SIZES = {1: [1, 2, 3, 4, 5, 7, 9], 2: [1, 2, 3, 4, 5], 3: [1, 2, 3]}  # number of axes -> sizes of inputs
_KERNELS = {1: [1, 2, 2, 3, 3, 4, 5, 7], 2: [1, 2, 2, 3, 3, 4, 5], 3: [1, 2, 2, 3]}
_PLACES = ["initializer"] * 8 + ["constant"] * 3 + ["external", "outer", "shared"] * 2 + ["input", "options", "feed"]
PROVIDERS = [
    ["CPUExecutionProvider"], None, ["CUDAExecutionProvider", "CPUExecutionProvider"], ["CUDAExecutionProvider"],
    [["CPUExecutionProvider", {}]], ["AzureExecutionProvider", "CPUExecutionProvider"], ["NoSuchProvider"],
]  # fmt: skip
MUTATIONS = (
    "text for a number", "integer for a float", "unknown attribute", "earlier opset", "later opset", "missing input",
    "unknown name", "name defined twice", "wrong rank", "empty list", "negative size", "zero", "other dtype", "no output",
    "swapped inputs", "unknown operator",
)  # fmt: skip


def case(seed):
    """Return the case of a seed. It depends only on the seed."""
    return _Draw(random.Random(seed)).case()


class _Draw:
    def __init__(self, rng):
        self.rng = rng
        self.opset = self.dtype = None
        self.extreme = rng.random() < 0.3

    def maybe(self, share):
        return self.rng.random() < share

    def case(self):
        rng = self.rng
        self.opset = rng.choice([*range(11, 25), 13, 17, 17, 20, 22])
        self.dtype = rng.choice(["float32"] * 6 + ["float16", "float64"])
        self.plain_places = self.maybe(0.5)  # all constants are initializers
        self.rank = rng.choice([1, 1, 1, 2, 2, 2, 3])
        found = {"opset": self.opset, "ir": rng.choice([3, 4, 6, 7, 8, 8, 8, 9, 10, 10, 11]), "dtype": self.dtype}
        found |= {"channels": rng.choice([1, 2, 3, 4, 6, 16]), "rank": self.rank}
        self._optional(found, 0.5, declared=["symbols", "sizes"], declared_output=["symbols", "sizes", "sizes", "wrong"])
        found["nodes"] = self.nodes(rng.choice([1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 10]), depth=0)
        self._optional(found, 0.2, model=["path", "proto"], level=[0, 1, 2, 3], providers=PROVIDERS, threads=[2])
        self._optional(found, 0.1, also=[1, 2, 3], sessions=[2, 3], ir3_strict=[False], function_opset=[13, 17, 18])
        self._optional(found, 0.03, domain=[1])
        if self.maybe(0.08):
            found["mutation"] = {"kind": rng.choice(MUTATIONS), "at": rng.randrange(100)}
        found["runs"] = [self.run() for _ in range(rng.choice([1, 2, 2, 3, 4]))]
        return found

    def _optional(self, found, share, **keys):
        """Set each key to one of its values in this share of the cases."""
        for key, values in keys.items():
            if self.maybe(share):
                found[key] = self.rng.choice(values)

    def run(self):
        rng = self.rng
        found = {"batch": rng.choice([1, 1, 1, 2, 3]), "sizes": [rng.choice(_SIZES[self.rank]) for _ in range(self.rank)]}
        found |= {"values": self.values(), "seed": rng.randrange(1 << 16)}
        self._optional(found, 0.2, how=["binding", "values", "reversed"], condition=[1], fed=[1])
        self._optional(found, 0.05, bad=["missing", "extra", "dtype", "rank"])
        return found

    def values(self):
        return self.rng.choice(_VALUES) if self.extreme else self.rng.choice(_VALUES[:11])

    def nodes(self, count, depth, same=False):
        """Return nodes of a graph. ``same`` is whether its convolutions keep the number of channels."""
        found = [self.conv(same)] if self.maybe(0.8) or not depth else []
        while len(found) < count:
            found += self.some(depth, same)
        return found

    def some(self, depth, same):
        """Return one or more nodes that follow one another."""
        kinds = ["conv"] * 4 + ["norm"] * 3 + ["activation"] * 6 + ["add"] * 4 + ["mul"] * 2 + ["prelu"] * 2 + ["identity"] * 2
        kinds += ["cast", "quantize", "residual", "residual", "input", "instance"]
        kinds += ["branches", "branches", "loop", "scan", "call", "call", "call"] if depth < 2 else []
        kind = self.rng.choice(kinds)
        found = getattr(self, kind)(*((same,) if kind in ("conv", "residual") else (depth,) if depth < 2 else ()))
        found = found if isinstance(found, list) else [found]
        for node in found:
            self._optional(node, 0.1, declared=["symbols", "sizes", "sizes", "wrong"])
            self._optional(node, 0.05, **{"from": [1, 2, 3]})
        return found

    def constant(self, **more):
        found = {"values": self.values(), "seed": self.rng.randrange(1 << 16), **more}
        if not self.plain_places and (place := self.rng.choice(_PLACES)) != "initializer":
            found["place"] = place
        self._optional(found, 0.04, via=["identity", "cast"])
        return found

    def conv(self, same=False):
        rng = self.rng
        sizes = lambda *of: [rng.choice(of) for _ in range(self.rank)]  # noqa: E731
        found = {"op": "conv", "weights": self.constant(), "kernel": sizes(*_KERNELS[self.rank])}
        if not same:
            found["out"] = rng.choice([1, 2, 3, 4, 6, 8, 16])
        if self.maybe(0.15):
            found["weights"]["via"] = "dequantize"
            found["weights"]["quantized"] = rng.choice(["int8", "uint8", "int8 axis", "uint8 axis", "int32", "int16"])
        self._optional(found, 0.7, strides=[sizes(1, 2, 2, 3), [2] * self.rank])
        self._optional(found, 0.4, pads=[[sizes(0, 1, 1, 2), sizes(0, 1, 1)]], bias=[self.constant()])
        self._optional(found, 0.02, bias=[{}])  # an input without a name
        self._optional(found, 0.2, group=[2, 3, 99], dilations=[sizes(1, 1, 2)], kernel_shape=[1])
        self._optional(found, 0.2, name=[f"n{rng.randrange(60)}"])
        self._optional(found, 0.1, output_padding=[sizes(0, 1, 1)])
        self._optional(found, 0.06, crop=[sizes(0, 0, 1, 2, 5)])  # of the whole output, by output_shape
        if "pads" in found and self.maybe(0.9):  # so that some of the output is left
            begin = [min(n, k - 1) for n, k in zip(found["pads"][0], found["kernel"], strict=True)]
            end = [min(n, k - 1 - b) for n, k, b in zip(found["pads"][1], found["kernel"], begin, strict=True)]
            found["pads"] = [begin, end]
        if "output_padding" in found and self.maybe(0.9):  # less than the strides, as ONNX Runtime wants it
            strides = found.get("strides", [1] * self.rank)
            found["output_padding"] = [min(n, s - 1) for n, s in zip(found["output_padding"], strides, strict=True)]
        self._optional(found, 0.1, auto_pad=["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
        if "auto_pad" in found and self.maybe(0.8):
            found.pop("pads", None)
        if self.maybe(0.01):
            negative = [[-1] * self.rank, [0] * self.rank]
            found |= rng.choice([{"pads": negative}, {"strides": sizes(0, 1)}, {"dilations": sizes(0, 1)}])
        return found

    def residual(self, same=False):
        """Return two convolutions of a value and their sum, with a norm or activation in between or not."""
        first = self.conv(same)
        second = first | {"weights": self.constant(), "from": 1}
        nodes = [first, second]
        if self.maybe(0.3):
            nodes = [first, self.norm(), second | {"from": 2}, self.norm()] if self.maybe(0.7) else [first, self.norm(), second]
            if len(nodes) == 3:
                nodes[2]["from"] = 2
        sums = {"op": "binary", "type": "Add", "with": 1 if len(nodes) < 4 else 2}
        return [*nodes, sums, *([self.activation()] if self.maybe(0.7) else [])]

    def norm(self, depth=0):
        found = {"op": "norm", "tensors": self.constant()}
        self._optional(found, 0.3, epsilon=[0.0, 1e-3, 1e-30, 1.0], momentum=[0.8], spread=[1])
        return found

    def instance(self, depth=0):
        return {"op": "instance", "tensors": self.constant()}

    def activation(self, depth=0):
        names = [name for name in _ACTIVATIONS if self.opset >= _SINCE[name] or self.maybe(0.05)]
        if self.dtype == "float64" and self.maybe(0.95):
            names = [name for name in names if name in _DOUBLE]
        kind = self.rng.choice(names)
        found = {"op": "activation", "type": kind}
        for name, values in _ACTIVATIONS[kind].items():
            self._optional(found, 0.7, **{name: values})
        return found

    def add(self, depth=0):
        return self._binary("Add")

    def mul(self, depth=0):
        return self._binary("Mul")

    def _binary(self, kind):
        found = {"op": "binary", "type": kind}
        if self.maybe(0.4):
            found["with"] = self.rng.choice([1, 1, 1, 2, 3])
            self._optional(found, 0.1, unlike=[1])
        else:
            found["constant"] = self.constant()
            shapes = ["channels"] * 6 + ["batched"] * 3 + ["scalar", "scalar", "one", "one", "whole", "last", "wide", "vector"]
            found["shape"] = self.rng.choice(shapes)
        self._optional(found, 0.3, swapped=[1])
        return found

    def prelu(self, depth=0):
        shape = self.rng.choice(["channels"] * 4 + ["one", "scalar", "batched", "last"])
        return {"op": "prelu", "constant": self.constant(), "shape": shape}

    def identity(self, depth=0):
        return {"op": "identity"}

    def cast(self, depth=0):
        return {"op": "cast", "to": self.rng.choice(["float32", "float16", "float64"])}

    def quantize(self, depth=0):
        return {"op": "quantize", "scale": self.rng.choice([0.05, 0.5, 2.0]), "to": self.rng.choice(["int8", "uint8"])}

    def input(self, depth=0):
        found = {"op": "input"}
        self._optional(found, 0.4, shape=["channels", "one", "batched", "last", "larger"])
        return found

    def _inner(self, depth, same=False):
        return self.nodes(self.rng.choice([1, 1, 2, 3]), depth + 1, same)

    def branches(self, depth):
        found = {"op": "if", "then": self._inner(depth), "else": self._inner(depth)}
        self._optional(found, 0.5, condition=["input", "input", "false"], same_names=[1])
        self._optional(found, 0.3, declared_inner=["symbols", "sizes", "wrong"])
        return found

    def loop(self, depth):
        found = {"op": "loop", "trips": self.rng.choice([0, 1, 1, 2, 3]), "body": self._inner(depth, same=True)}
        self._optional(found, 0.3, declared_inner=["symbols", "sizes", "wrong"], stacked=[1])
        return found

    def scan(self, depth):
        found = {"op": "scan", "steps": self.rng.choice([1, 1, 2]), "body": self._inner(depth)}
        self._optional(found, 0.3, declared_inner=["symbols", "sizes", "wrong"])
        return found

    def call(self, depth):
        """Return calls of a function. Attributes of its nodes are the function's, with defaults or without."""
        found = {"op": "call", "body": self._inner(depth), "calls": [{}]}
        self._optional(found, 0.7, attributes=["default", "plain"])
        if self.maybe(0.3):
            found["calls"].append({})
        for each in found["calls"]:
            self._optional(each, 0.5, given=[1, 2, 3])  # a bit mask of the attributes that the call gives
        return found
