"""Scopes of an ONNX model: the values that names denote in each graph, and the nodes that read them.

A graph inside a node (a branch of an If, the body of a Loop or Scan) sees the names of the graphs around it. The innermost
definition of a name applies, so two branches may use the same name for different values.

A shape that a model only declares may be wrong, and ONNX Runtime computes such a model. So shapes come from constants, from the
inputs of the model, which ONNX Runtime checks in each run, and from what onnx infers from these (`add_inferred_shapes`).
"""

from typing import NamedTuple

import onnx

STANDARD = ("", "ai.onnx")
_FIXED_IR = 3  # up to this IR version, runs cannot override an initializer that is also an input


class Value(NamedTuple):
    """A value of a graph, as far as it is known before a run."""

    dims: tuple[int, ...] | None  # shape; None if unknown
    kind: int  # element type of onnx.TensorProto; 0 if unknown
    in_model: bool  # whether the model contains it: a constant, or an initializer that a run may override


UNKNOWN = Value(None, 0, in_model=False)


def is_standard(node, *operators):
    return node.op_type in operators and node.domain in STANDARD


def _inner_graphs(node):
    """Yield the graphs among the attributes of a node."""
    for each in node.attribute:
        if each.type == onnx.AttributeProto.GRAPH:
            yield each.g
        elif each.type == onnx.AttributeProto.GRAPHS:
            yield from each.graphs


def graphs(graph):
    """Yield a graph or function and all graphs nested in it, in the order of `Scope.__iter__`."""
    yield graph
    for node in graph.node:
        for inner in _inner_graphs(node):
            yield from graphs(inner)


def all_nodes(graph):
    """Yield the nodes of a graph or function, and those of nested graphs."""
    for each in graphs(graph):
        yield from each.node


def attributes(node):
    """Return a node's attributes as ``{name: value}``, with strings as str and integers as a list."""
    plain = {}
    for each in node.attribute:
        value = onnx.helper.get_attribute_value(each)
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        plain[each.name] = list(value) if each.type == onnx.AttributeProto.INTS else value
    return plain


def add_inferred_shapes(scope, model):
    """Add what onnx infers of a model's values to the scope of its graph and all nested scopes.

    onnx does not see the shapes that the model declares, except those of its inputs, nor initializers that a run may override.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    inputs = {each.name for each in copy.graph.input} if model.ir_version > _FIXED_IR else ()
    constants = [each for each in copy.graph.initializer if each.name not in inputs]
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(constants)
    for n, graph in enumerate(graphs(copy.graph)):
        del graph.value_info[:]
        for each in (*graph.output, *(graph.input if n else ())):
            if each.type.HasField("tensor_type"):
                each.type.tensor_type.ClearField("shape")
    try:
        copy = onnx.shape_inference.infer_shapes(copy)
    except Exception:  # the model is invalid, and ONNX Runtime reports the error
        return
    for each, graph in zip(scope, graphs(copy.graph), strict=True):
        each.set_inferred((*graph.value_info, *graph.input, *graph.output))


def list_initializers(model, added, removed=()):
    """Make initializers that were added to a model its inputs, too, and drop the inputs that are names of removed ones.

    Up to IR version 3, a model lists its initializers. ONNX Runtime refuses one that only a branch reads if it is not listed.
    """
    if model.ir_version <= _FIXED_IR:
        inputs = [each for each in model.graph.input if each.name not in removed]
        inputs += [onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in added]
        del model.graph.input[:]
        model.graph.input.extend(inputs)


class Scope:
    """A graph and the names that it defines. Iterating yields the scope and all nested scopes.

    ``nodes`` is the list of the graph's nodes, and ``scopes`` the list of scopes of the graphs inside them. ``readers`` maps a
    name to the positions of the nodes that read it, with None for other readers: the graph's outputs and nested graphs.
    ``redefined`` is the set of names that a nested graph redefines. ONNX forbids that, and ONNX Runtime may use either value.
    ``replaced`` are the positions of the nodes that convt's nodes replace, and ``removed`` of those to remove in the end.
    """

    def __init__(self, graph, ir_version, outer=None):
        self.graph, self.outer = graph, outer
        self.nodes, self.scopes, self.readers = list(graph.node), [], {}
        self.replaced, self.removed = set(), set()
        self._infos = None  # name -> onnx.ValueInfoProto that the graph declares
        self._inferred = {}  # name -> onnx.ValueInfoProto that onnx infers
        self._values = {each.name: Value(tuple(each.dims), each.data_type, in_model=True) for each in graph.initializer}
        for each in graph.sparse_initializer:
            self._values[each.values.name] = Value(tuple(each.dims), each.values.data_type, in_model=True)
        self._producers = {name: node for node in self.nodes for name in node.output if name}
        for each in graph.input:
            if outer is not None:
                self._values.pop(each.name, None)  # inputs of a Loop or Scan body always come from outside
            elif ir_version > _FIXED_IR and each.name in self._values:
                self._values[each.name] = self._declared(each.name)._replace(in_model=True)
        self._defined = {*self._values, *self._producers, *(each.name for each in graph.input)}
        self.redefined = set() if outer is None else outer.redefined
        while outer is not None:
            self.redefined |= self._defined & outer._defined
            outer = outer.outer
        for position, node in enumerate(self.nodes):
            for name in node.input:
                self._read(name, position)
            self.scopes += [Scope(inner, ir_version, self) for inner in _inner_graphs(node)]
        for each in graph.output:
            self._read(each.name, None)

    def __iter__(self):
        """Yield this scope and all nested scopes."""
        yield self
        for scope in self.scopes:
            yield from scope

    def _read(self, name, position):
        """Record that the node at ``position`` reads a name; None for another reader."""
        scope_of_name = self._defining_scope(name)
        if scope_of_name is not None:
            scope_of_name.readers.setdefault(name, []).append(position if scope_of_name is self else None)

    def _defining_scope(self, name):
        """Return the scope whose definition of a name applies here, or None."""
        scope = self
        while scope is not None and name not in scope._defined:
            scope = scope.outer
        return scope

    def value(self, name):
        """Return what is known about the value that a name denotes here."""
        scope = self._defining_scope(name)
        if scope is None or name in self.redefined:
            return UNKNOWN
        if name not in scope._values:
            scope._values[name] = UNKNOWN  # ends the recursion if nodes form a cycle
            scope._values[name] = scope._produced(name) or scope._declared(name)
        return scope._values[name]

    def producer(self, name):
        """Return the node that produces the value that a name denotes here, or None."""
        scope = self._defining_scope(name)
        return None if scope is None or name in self.redefined else scope._producers.get(name)

    def release(self, name, position):
        """Record that the node at ``position`` no longer reads a name."""
        scope_of_name, count = self._defining_scope(name), list(self.nodes[position].input).count(name)
        for _ in range(count):
            scope_of_name.readers[name].remove(position if scope_of_name is self else None)

    def _produced(self, name):
        """Return the value of a Constant, or of an Identity, Cast or DequantizeLinear of values in the model; else None."""
        node = self._producers.get(name)
        if node is None:
            return None
        if is_standard(node, "Constant"):
            tensor = attributes(node).get("value")
            return None if tensor is None else Value(tuple(tensor.dims), tensor.data_type, in_model=True)
        if not is_standard(node, "Identity", "Cast", "DequantizeLinear") or not any(node.input):
            return None
        source, *others = [self.value(each) for each in node.input if each]
        if not all(each.in_model for each in (source, *others)):
            return None
        if node.op_type == "DequantizeLinear":
            return source._replace(kind=others[0].kind) if others else None
        return source if node.op_type == "Identity" else source._replace(kind=attributes(node).get("to", 0))

    def declared(self, name):
        """Return the onnx.ValueInfoProto with which the graph declares a value, or None."""
        if self._infos is None:
            self._infos = {each.name: each for each in (*self.graph.output, *self.graph.value_info, *self.graph.input)}
        return self._infos.get(name)

    def set_inferred(self, infos):
        """Store the onnx.ValueInfoProto that onnx infers for values of this graph."""
        self._inferred = {each.name: each for each in infos}
        self._values = {name: value for name, value in self._values.items() if value.in_model}

    def _declared(self, name):
        """Return the dtype that the model declares or onnx infers for a value, and the shape if it is certain and fixed."""
        is_input = self.outer is None and name not in self._producers
        certain = self.declared(name) if is_input else self._inferred.get(name)
        info = certain or self.declared(name)
        if info is None or not info.type.HasField("tensor_type"):
            return UNKNOWN
        tensor, dims = info.type.tensor_type, None
        if certain and tensor.HasField("shape") and all(size.HasField("dim_value") for size in tensor.shape.dim):
            dims = tuple(size.dim_value for size in tensor.shape.dim)
        return Value(dims, tensor.elem_type, in_model=False)

    def following(self, name):
        """Return the positions of the nodes that follow a value: Identity nodes, then one other node.

        Each is the only reader of the value before it, and no fused node has replaced it. The list is empty if there is no
        such chain.
        """
        path = []
        for _ in self.nodes:
            readers = self.readers.get(name, ())
            if len(readers) != 1 or readers[0] in (None, *self.replaced) or name in self.redefined:
                break
            path.append(readers[0])
            node = self.nodes[readers[0]]
            if not is_standard(node, "Identity"):
                return path
            name = node.output[0]
        return []
