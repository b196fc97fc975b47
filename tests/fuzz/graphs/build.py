"""The model of a case: `build`. It makes a model of every case that `shrink.py` can make, too, though some are invalid.

References to values count back from the newest value that is visible (0), so that a case may lose nodes.
"""

import json
import math
import re
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from . import mutate, oracle

_SMALL = 40  # elements of a plane; larger planes do not grow by strides
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "float64": TensorProto.DOUBLE}


class Value(NamedTuple):
    """A value of a graph: its name, dtype, and its shape in each run (as far as `build` can tell)."""

    name: str
    dtype: str
    shapes: tuple


class Built(NamedTuple):
    """What a case is run with."""

    model: object  # onnx.ModelProto
    files: dict  # name of a file of external data -> bytes
    added: dict  # name -> array for SessionOptions.add_initializer
    feeds: list  # of each run: {name: array}
    nodes: int | None  # ConvTranspose nodes that a session meets; None if that depends on the inlining of functions


def array(values, seed, shape, dtype):
    """Return an array of values of this kind."""
    rng = np.random.default_rng(seed)
    big, small = {"float16": (1e3, 1e-4), "float64": (1e100, 1e-150)}.get(dtype, (1e20, 1e-30))
    found = rng.standard_normal(shape)
    if values in ("integers", "zero", "ones"):
        found = {"integers": rng.integers(-3, 4, shape), "zero": np.zeros(shape), "ones": np.ones(shape)}[values]
    factor = {"huge": big, "tiny": small, "subnormal": float(np.finfo(dtype).smallest_subnormal) * 3}.get(values, 1)
    found = np.asarray(found * factor).astype(dtype)
    if values == "special" and found.size:
        found.reshape(-1)[rng.integers(0, found.size, 2)] = rng.choice([np.nan, np.inf, -np.inf, 0.0], 2).astype(dtype)
    return found


def build(case):
    """Return the `Built` model of a case."""
    return _Builder(case).built()


class _Graph:
    """A graph or function that is being built. ``outer`` is the graph around it."""

    def __init__(self, outer, prefix, function=False):
        self.outer, self.prefix, self.count, self.function = outer, prefix, 0, function
        self.nodes, self.initializers, self.inputs, self.infos, self.made = [], [], [], [], []
        self.parameters = {}  # of a function: name of an input -> name in the calling graph
        self.defaults, self.plain = {}, {}  # of a function: attributes with and without a default

    def fresh(self, name):
        self.count += 1
        return f"{self.prefix}{name}{self.count}"

    def around(self):
        """Return the function that contains the graph, or None."""
        return self if self.function else None if self.outer is None else self.outer.around()

    def visible(self):
        """Return the values that nodes may read, the oldest first."""
        return [*(() if self.outer is None else self.outer.visible()), *self.made]


class _Builder:
    def __init__(self, case):
        self.case, self.runs = case, case["runs"] or [{}]
        self.opset, self.ir, self.rank = case.get("opset", 17), case.get("ir", 8), max(1, case.get("rank", 1))
        self.root = self.graph = _Graph(None, "")
        self.files, self.added, self.functions = {}, {}, []
        self.shared = {}  # shape and dtype of a constant of the outermost graph -> name of the last one
        self.feeds = [{} for _ in self.runs]
        self.convs, self.is_counted, self.called = 0, True, 0
        self.trips = 1  # the loops around the present graph run its nodes this number of times
        self.has_scan = '"scan"' in json.dumps(case)

    # ------------------------------------------------------------ the model

    def built(self):
        case, dtype = self.case, self.case.get("dtype", "float32")
        shapes = tuple(
            (run.get("batch", 1), case.get("channels", 1), *(max(1, n) for n in _sized(run.get("sizes") or [3], self.rank)))
            for run in self.runs
        )
        value = Value("X", dtype, shapes)
        self.root.made.append(value)
        self.root.inputs.append(self._info(value, case.get("declared")))
        for run, feed, shape in zip(self.runs, self.feeds, value.shapes, strict=True):
            feed["X"] = array(run.get("values", "real"), run.get("seed", 0), shape, dtype)
        for node in case["nodes"]:
            self._add(node)
        made = [each for each in self.root.made if each.name not in {info.name for info in self.root.inputs}]
        outputs = made[-1:] or [self._emit("Identity", [value.name], value)]
        if "also" in case and len(made) > case["also"]:
            outputs.append(made[-1 - case["also"]])
        graph = helper.make_graph(
            self.root.nodes, "fuzz", self.root.inputs, [self._info(each, case.get("declared_output")) for each in outputs],
            self.root.initializers, value_info=[each for each in self.root.infos if each.name not in {o.name for o in outputs}],
        )  # fmt: skip
        if self.ir < 4 and case.get("ir3_strict", True):
            there = {each.name for each in graph.input}
            for each in graph.initializer:
                if each.name not in there:
                    graph.input.append(helper.make_tensor_value_info(each.name, each.data_type, each.dims))
        imports = [helper.make_opsetid("", self.opset), *([helper.make_opsetid("own", 1)] if self.functions else [])]
        model = helper.make_model(graph, opset_imports=imports, ir_version=self.ir, functions=self.functions)
        if "mutation" in case:
            mutate.mutate(model, **case["mutation"])
        return Built(model, self.files, self.added, self.feeds, self.convs if self.is_counted else None)

    def _info(self, value, declared, name=None):
        """Return the declaration of a value: of nothing but its type, of symbols, of sizes, or of wrong sizes."""
        shape = list(value.shapes[0])
        if declared is None:
            shape = None
        elif declared == "symbols":
            shape = [f"{name or value.name}_{n}" for n in range(len(shape))]
        elif declared == "wrong":
            shape[-1] += 1
        elif any(list(each) != shape for each in value.shapes):
            shape = [size if all(each[n] == size for each in value.shapes) else None for n, size in enumerate(shape)]
        return helper.make_tensor_value_info(name or value.name, TYPES[value.dtype], shape)

    def _value(self, back):
        values = self.graph.visible()
        return values[-1 - back % len(values)]

    def _emit(self, operator, inputs, like, dtype=None, shapes=None, stem="v", domain=None, **attributes):
        """Add a node with one output, and return its value. ``like`` has its dtype and shapes unless these are given."""
        value = Value(self.graph.fresh(stem), dtype or like.dtype, like.shapes if shapes is None else shapes)
        if domain is None and self.case.get("domain"):
            domain = "ai.onnx"  # another name of ONNX's own domain
        node = helper.make_node(operator, inputs, [value.name], domain=domain, **attributes)
        self.graph.nodes.append(node)
        return value

    def _add(self, node):
        """Add a node. The method of its operator gets the value that it reads, and returns that of its output, or None."""
        value = getattr(self, "_" + node["op"])(node, self._value(node.get("from", 0)))
        if value is None:
            return
        self.graph.made.append(value)
        if "declared" in node and not self.graph.function:
            self.graph.infos.append(self._info(value, node["declared"]))

    # ------------------------------------------------------------ constants

    def _constant(self, spec, shape, dtype, change=None):
        """Return the name of a constant. ``change`` is a function of its array."""
        found = array(spec.get("values", "real"), spec.get("seed", 0), shape, dtype)
        found = found if change is None else np.asarray(change(found)).astype(dtype)
        place, via = spec.get("place", "initializer"), spec.get("via")
        if via == "identity":
            return self._computed("Identity", [self._stored(found, place)])
        if via == "cast":
            other = "float32" if dtype != "float32" else "float16"
            with np.errstate(over="ignore"):
                return self._computed("Cast", [self._stored(found.astype(other), place)], to=TYPES[dtype])
        if via == "dequantize":
            name = self._dequantized(spec, found, place)
            return name if dtype == "float32" else self._computed("Cast", [name], to=TYPES[dtype])
        return self._stored(found, place)

    def _computed(self, operator, inputs, **attributes):
        name = self.graph.fresh("c")
        self.graph.nodes.append(helper.make_node(operator, inputs, [name], **attributes))
        return name

    def _dequantized(self, spec, found, place):
        kind, _, axis = spec.get("quantized", "int8").partition(" ")
        axis, kind = axis and self.opset >= 13, "int8" if kind == "int16" and self.opset < 21 else kind
        scale = np.full(found.shape[1] if axis else (), 0.05, np.float32)
        rng = np.random.default_rng(spec.get("seed", 0))
        if axis:
            scale = (scale * rng.uniform(0.5, 2, scale.shape)).astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            info = np.iinfo(kind)
            whole = np.nan_to_num(found.astype(np.float64) * 20).clip(max(info.min, -9999), min(info.max, 9999)).astype(kind)
        inputs = [self._stored(whole, place), self._stored(scale, place)]
        if kind != "int32" and rng.random() < 0.5:
            inputs.append(self._stored(np.full(scale.shape, 1, kind), place))
        return self._computed("DequantizeLinear", inputs, **({"axis": 1} if axis else {}))

    def _stored(self, found, place):
        """Store an array and return the name that a node of the present graph reads."""
        graph = self.graph
        if place == "constant":
            name = graph.fresh("c")
            node = helper.make_node("Constant", [], [name], value=numpy_helper.from_array(found))
            graph.nodes.append(node)
            return name
        owner = graph if place == "initializer" and self.ir > 3 and not graph.function else self.root
        function = graph.around()
        if function is not None and owner is self.root:  # the constant is an argument of the function
            self.graph = function.caller
            outside = self._stored(found, place)
            self.graph = graph
            name = function.fresh("p")
            function.parameters[name] = outside
            return name
        key = found.shape, found.dtype
        if place == "shared" and key in self.shared:
            return self.shared[key]
        name = owner.fresh("w")
        if owner is self.root:
            self.shared[key] = name
        if place == "feed":
            owner.inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(found.dtype), found.shape))
            for feed in self.feeds:
                feed[name] = found
            return name
        tensor = numpy_helper.from_array(found, name)
        if place == "external":
            self._move_out(tensor)
        if place == "options":
            self.added[name] = found
            tensor = numpy_helper.from_array((found * 0.5).astype(found.dtype), name)
        if place == "input":
            owner.inputs.append(helper.make_tensor_value_info(name, tensor.data_type, found.shape))
            for run, feed in zip(self.runs, self.feeds, strict=True):
                if run.get("fed"):
                    feed[name] = (found * 2).astype(found.dtype) if found.dtype.kind == "f" else found
        owner.initializers.append(tensor)
        return name

    def _move_out(self, tensor):
        """Move the data of a tensor into a file."""
        data = bytearray(self.files.get("data.bin", b""))
        data += bytes(-len(data) % 64)
        raw = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in ("location", "data.bin"), ("offset", str(len(data))), ("length", str(len(raw))):
            tensor.external_data.add(key=key, value=text)
        self.files["data.bin"] = bytes(data + raw)

    # ------------------------------------------------------------ nodes

    def _conv(self, node, x):
        channels, rank = x.shapes[0][1], len(x.shapes[0]) - 2
        group = node.get("group", 1) if channels % node.get("group", 1) == 0 else channels if node["group"] == 99 else 1
        out = max(1, (node.get("out") or channels) // group)
        sizes = lambda name, plain: _sized(node.get(name) or [plain], rank)  # noqa: E731
        kernel = sizes("kernel", 1)
        weights = self._constant(node.get("weights", {}), (channels, out, *kernel), x.dtype)
        inputs = [x.name, weights]
        if "bias" in node:
            inputs.append(self._constant(node["bias"], (out * group,), x.dtype) if node["bias"] else "")
        names = ["dilations"]
        growth = 2 ** (rank * (self.trips - 1))
        if math.prod(x.shapes[0][2:]) * growth <= _SMALL:  # because the time of a case grows with its elements
            names += ["strides", "output_padding"]
        given = {name: sizes(name, 0) for name in names if name in node}
        if "pads" in node:
            given["pads"] = [n for side in _sized(node["pads"] or [[0]], 2) for n in _sized(side or [0], rank)]
        if "auto_pad" in node:
            given["auto_pad"] = node["auto_pad"]
        if "crop" in node and not self.has_scan:  # ONNX Runtime infers a wrong rank for some, and then crashes in a Scan
            full = _sizes(x.shapes[0][2:], kernel, {name: value for name, value in given.items() if "pad" not in name})
            given["output_shape"] = [max(1, size - n) for size, n in zip(full, sizes("crop", 0), strict=True)]
        given = self._referred(given)
        if group != 1:
            given["group"] = group
        if "kernel_shape" in node:
            given["kernel_shape"] = kernel
        self.convs += 1
        shapes = tuple((each[0], out * group, *_sizes(each[2:], kernel, given)) for each in x.shapes)
        value = self._emit("ConvTranspose", inputs, x, shapes=shapes, name=node.get("name"))
        self._set(given)
        return value

    def _referred(self, given):
        """Return attributes of a node. Those of a function are references to its attributes, as ``(name, value, value in its
        last call)``; the last is None where the attribute has no value then."""
        function, found = self.graph.around(), {}
        if function is None or function.attributes is None:
            return given
        for name, value in given.items():
            own = function.fresh(name)
            others = function.defaults if function.attributes == "default" else function.plain
            others[own] = value
            found[name] = own, value, _passed(function.call, {own: value}, function.attributes).get(own)
        return found

    def _set(self, given):
        """Set attributes of the newest node, as `_referred` returns them."""
        for name, value in given.items():
            attribute = helper.make_attribute(name, value[1] if isinstance(value, tuple) else value)
            if isinstance(value, tuple):
                kind = attribute.type
                attribute.Clear()
                attribute.name, attribute.ref_attr_name, attribute.type = name, value[0], kind
            self.graph.nodes[-1].attribute.append(attribute)

    def _norm(self, node, x):
        spec = node.get("tensors", {})
        channels = (x.shapes[0][1],)
        seed = spec.get("seed", 0)
        part = lambda n, change=None: self._constant(spec | {"seed": seed + n}, channels, x.dtype, change)  # noqa: E731
        inputs = [x.name, part(1), part(2), part(3), part(4, np.abs)]
        given = {name: node[name] for name in ("epsilon", "momentum") if name in node}
        value = self._emit("BatchNormalization", inputs, x)
        self._set(self._referred(given))
        return value

    def _instance(self, node, x):
        spec = node.get("tensors", {})
        inputs = [x.name, *(self._constant(spec, x.shapes[0][1:2], x.dtype) for _ in range(2))]
        return self._emit("InstanceNormalization", inputs, x)

    def _activation(self, node, x):
        value = self._emit(node["type"], [x.name], x)
        self._set(self._referred({name: node[name] for name in ("alpha", "beta", "approximate") if name in node}))
        return value

    def _identity(self, node, x):
        return self._emit("Identity", [x.name], x)

    def _cast(self, node, x):
        return self._emit("Cast", [x.name], x, dtype=node.get("to", "float32"), to=TYPES[node.get("to", "float32")])

    def _quantize(self, node, x):
        kind = node.get("to", "int8")
        if x.dtype != "float32":
            x = self._emit("Cast", [x.name], x, dtype="float32", to=TYPES["float32"])
        scale = self._stored(np.array(node.get("scale", 0.5), x.dtype), "initializer")
        zero = self._stored(np.array(3, kind), "initializer")
        quantized = self._emit("QuantizeLinear", [x.name, scale, zero], x, stem="q")
        return self._emit("DequantizeLinear", [quantized.name, scale, zero], x)

    def _binary(self, node, x):
        if "constant" in node:
            other = Value(self._constant(node["constant"], _common(node.get("shape"), x.shapes), x.dtype), x.dtype, x.shapes)
        else:
            back = node.get("with", 1)
            other = self._value(back)
            like = [v for v in self.graph.visible() if v.shapes == x.shapes and v.dtype == x.dtype and v.name != x.name]
            if not node.get("unlike") and (other.shapes, other.dtype) != (x.shapes, x.dtype):
                other = like[-1 - back % len(like)] if like else x
        inputs = [x.name, other.name][:: -1 if node.get("swapped") else 1]
        return self._emit(node.get("type", "Add"), inputs, x)

    def _prelu(self, node, x):
        slopes = self._constant(node.get("constant", {}), _common(node.get("shape"), x.shapes), x.dtype)
        return self._emit("PRelu", [x.name, slopes], x)

    def _input(self, node, x):
        """Add an input of the model with the shape of a value, or one that broadcasts to it."""
        if self.graph.around() is not None:
            return None
        shapes = tuple(_shape(node.get("shape", "whole"), each) for each in x.shapes)
        value = Value(self.root.fresh("Z"), x.dtype, shapes)
        self.root.inputs.append(self._info(value, node.get("declared")))
        for run, feed, shape in zip(self.runs, self.feeds, shapes, strict=True):
            feed[value.name] = array(run.get("values", "real"), run.get("seed", 0) + 1, shape, value.dtype)
        other = self._emit("Add", [x.name, value.name], x)
        return other

    # ------------------------------------------------------------ graphs in nodes

    def _inside(self, nodes, prefix, start=(), function=None, dtype=None):
        """Build the nodes of a graph or function, and return ``(graph, value of its output)``.

        ``start`` are its own values. ``dtype`` is that of its output, None for any.
        """
        outer, before = self.graph, self.convs
        self.graph = function or _Graph(outer, prefix)
        self.graph.made += start
        for node in nodes:
            self._add(node)
        found = self.graph
        new = [v for v in found.made if v not in start]
        value = new[-1] if new else self._emit("Identity", [self._value(0).name], self._value(0))
        if dtype not in (None, value.dtype):
            value = self._emit("Cast", [value.name], value, dtype=dtype, to=TYPES[dtype])
        self.graph = outer
        found.convs = self.convs - before
        return found, value

    def _proto(self, graph, name, inputs, outputs):
        infos = [each for each in graph.infos if each.name not in {o.name for o in outputs}]
        return helper.make_graph(graph.nodes, name, inputs, outputs, graph.initializers, value_info=infos)

    def _condition(self, node):
        """Return the name of the condition of an If, and its value in each run."""
        if node.get("condition") != "input" or self.graph.around() is not None:
            value = node.get("condition") != "false"
            return self._stored(np.array(value), "constant"), [value] * len(self.runs)
        name = "C"
        if not any(each.name == name for each in self.root.inputs):
            self.root.inputs.append(helper.make_tensor_value_info(name, TensorProto.BOOL, ()))
        values = [bool(run.get("condition")) for run in self.runs]
        for feed, value in zip(self.feeds, values, strict=True):
            feed[name] = np.array(value)
        return name, values

    def _if(self, node, x):
        condition, values = self._condition(node)
        prefixes = [self.graph.fresh("b")] * 2 if node.get("same_names") else [self.graph.fresh(name) for name in ("t", "e")]
        graphs, results = {}, []
        for prefix, branch in zip(prefixes, ("then", "else"), strict=True):
            dtype = results[0].dtype if results else None
            graph, value = self._inside(node.get(branch, []), prefix + "_", dtype=dtype)
            output = self._info(value, node.get("declared_inner"))
            graphs[branch + "_branch"] = self._proto(graph, branch, [], [output])
            results.append(value)
        shapes = tuple(results[not value].shapes[n] for n, value in enumerate(values))
        return self._emit("If", [condition], results[0], shapes=shapes, **graphs)

    def _loop(self, node, x):
        trips = self._stored(np.array(node.get("trips", 1), np.int64), "constant")
        truth = self._stored(np.array(True), "constant")
        prefix = self.graph.fresh("l")
        carried = Value(prefix + "_x", x.dtype, x.shapes)
        before, self.trips = self.trips, self.trips * max(1, node.get("trips", 1))
        graph, value = self._inside(node.get("body", []), prefix + "_", [carried], dtype=x.dtype)
        self.trips = before
        graph.nodes.append(helper.make_node("Identity", [prefix + "_c"], [prefix + "_d"]))
        inputs = [
            helper.make_tensor_value_info(prefix + "_i", TensorProto.INT64, ()),
            helper.make_tensor_value_info(prefix + "_c", TensorProto.BOOL, ()), self._info(carried, None),
        ]  # fmt: skip
        outputs = [
            helper.make_tensor_value_info(prefix + "_d", TensorProto.BOOL, ()), self._info(value, node.get("declared_inner"))
        ]  # fmt: skip
        body = self._proto(graph, "body", inputs, outputs)
        return self._emit("Loop", [trips, truth, x.name], x, shapes=value.shapes, body=body)

    def _scan(self, node, x):
        """Scan a value that is stacked as often as there are steps, and take the last result."""
        steps = max(1, node.get("steps", 1))
        stacked = self._unsqueezed(x)
        if steps > 1:
            stacked = self._emit("Concat", [stacked.name] * steps, stacked, axis=0)
        prefix = self.graph.fresh("s")
        one = Value(prefix + "_x", x.dtype, x.shapes)
        graph, value = self._inside(node.get("body", []), prefix + "_", [one])
        output = self._info(value, node.get("declared_inner"))
        body = self._proto(graph, "body", [self._info(one, None)], [output])
        whole = self._emit("Scan", [stacked.name], value, body=body, num_scan_inputs=1)
        index = self._stored(np.array(steps - 1, np.int64), "constant")
        return self._emit("Gather", [whole.name, index], value, axis=0)

    def _unsqueezed(self, x):
        shapes = tuple((1, *shape) for shape in x.shapes)
        if self.opset < 13:
            return self._emit("Unsqueeze", [x.name], x, shapes=shapes, axes=[0])
        axes = self._stored(np.array([0], np.int64), "constant")
        return self._emit("Unsqueeze", [x.name, axes], x, shapes=shapes)

    def _call(self, node, x):
        """Call a function one or more times, and return the value of the last call."""
        self.called += 1
        name = f"F{self.called}"
        graph = _Graph(None, f"f{self.called}_", function=True)
        calls = node.get("calls") or [{}]
        graph.caller, graph.attributes, graph.call = self.graph, node.get("attributes"), calls[-1]
        argument = Value("x", x.dtype, x.shapes)
        graph, value = self._inside(node.get("body", []), "", [argument], function=graph)
        function = helper.make_function(
            "own", name, ["x", *graph.parameters], [value.name], graph.nodes,
            [helper.make_opsetid("", self.case.get("function_opset", self.opset)), helper.make_opsetid("own", 1)],
            list(graph.plain), [helper.make_attribute(*each) for each in graph.defaults.items()],
        )  # fmt: skip
        self.functions.append(function)
        self.is_counted &= not graph.convs  # nodes of functions are counted where they are inlined
        for call in calls:
            given = _passed(call, graph.defaults | graph.plain, graph.attributes)
            given = {own: each for own, each in given.items() if graph.defaults.get(own) != each}
            result = self._emit(name, [x.name, *graph.parameters.values()], value, domain="own", **given)
        return result


def _passed(call, attributes, kind):
    """Return the values of a function's attributes in a call. ``kind`` is "default" if they have defaults."""
    given = {own for own in attributes if call.get("given", 0) >> int(re.sub(r"\D", "", own)) % 2 & 1}
    if kind == "default":
        return {own: _another(value) if own in given else value for own, value in attributes.items()}
    return {own: attributes[own] for own in given}


def _sized(values, count):
    """Return this count of values, repeated from the last one."""
    return (values + values[-1:] * count)[:count]


def _another(value):
    """Return another value of an attribute."""
    if isinstance(value, list):
        return [1] * len(value)
    return {str: "NOTSET", float: 0.25}.get(type(value), value)


def _sizes(sizes, kernel, given):
    """Return the sizes of an output, by the rules of ONNX."""
    plain = {name: value[2] if isinstance(value, tuple) else value for name, value in given.items()}
    plain = {name: value for name, value in plain.items() if value is not None}
    return [max(0, size) for _, size in oracle.windows(sizes, kernel, plain)]


def _common(kind, shapes):
    """Return the shape of a constant that broadcasts to a value in all its runs, if there is one of this kind."""
    return _shape(kind if _shape(kind, shapes[0]) == _shape(kind, shapes[-1]) else "channels", shapes[0])


def _shape(kind, shape):
    """Return the shape of another operand for a value of this shape."""
    channels, ones = shape[1], (1,) * (len(shape) - 2)
    return {
        "channels": (channels, *ones), "batched": (1, channels, *ones), "scalar": (), "one": (1,), "vector": (channels,),
        "whole": shape, "last": shape[-1:], "wide": (2, *shape), "larger": (max(shape[0], 2), *shape[1:]),
    }[kind or "channels"]  # fmt: skip
