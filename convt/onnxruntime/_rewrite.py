"""ONNX models whose ConvTranspose nodes are made convt's: what each is told, and what it computes together."""

import collections
import json

import onnx
from onnx import inliner

_OURS = "convt"  # the domain of the operator in library.pyx
_STANDARD = ("", "ai.onnx")
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_FOLDED = (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)  # dtypes in which weights take a batch norm without a loss


def is_transposed(node):
    return node.op_type == "ConvTranspose" and node.domain in _STANDARD


def graphs(graph):
    """A graph or function, and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inside in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
                yield from graphs(inside)


def transposed(graph):
    """The ConvTranspose nodes of a graph or function, and of those inside it."""
    return [node for each in graphs(graph) for node in each.node if is_transposed(node)]


def name_of(node):
    return node.name or node.output[0]


def rewrite(model, session, threads, precision=None):
    """Make the ConvTranspose nodes of a model convt's, in place.

    Functions that have some are inlined, as their attributes may be the call's. A bias, a batch norm and an activation behind a
    node, if nothing else reads what lies between, are computed with it. ``session``, ``threads`` and ``precision`` are handed
    on to the nodes.

    Returns
    -------
    (model, {name of a node: operators behind it that it computes}), the nodes in the order of the numbers that they are told.
    """
    if any(transposed(function) for function in model.functions):
        model = inliner.inline_local_functions(model)
    opset = next((each.version for each in model.opset_import if each.domain in _STANDARD), 1)
    readers, values = _readers(model), constants(model)
    found = {}
    for graph in list(graphs(model.graph)):
        for node in [each for each in graph.node if is_transposed(each)]:
            name = _new(name_of(node), found)
            told = {"session": session, "node": len(found), "threads": threads, "attributes": _attributes(node)}
            told["attributes"] |= {"opset": opset, "precision": precision}
            node, found[name] = _join(graph, node, readers, values, told)
            node.domain = _OURS
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("arguments", json.dumps(told)))
    if found:
        model.opset_import.append(onnx.helper.make_opsetid(_OURS, 1))
    return model, found


def _new(name, names):
    while name in names:
        name += "'"
    return name


def _attributes(node):
    plain = {}
    for each in node.attribute:
        value = onnx.helper.get_attribute_value(each)
        if isinstance(value, bytes):
            value = value.decode()
        plain[each.name] = list(value) if each.type == onnx.AttributeProto.INTS else value
    return plain


def _readers(model):
    """{name of a value: how many read it}, the graphs' outputs among them."""
    count = collections.Counter()
    for graph in graphs(model.graph):
        count.update(each.name for each in graph.output)
        for node in graph.node:
            count.update(node.input)
    return count


def constants(model):
    """{name: TensorProto} of what is in the model: initializers, Constant nodes, and what is Identity of these."""
    found = {}
    for graph in graphs(model.graph):
        found.update((each.name, each) for each in graph.initializer)
        for each in graph.input:
            found.pop(each.name, None)  # a default, which a run may replace
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                found[node.output[0]] = node.attribute[0].t
            elif node.op_type == "Identity" and node.input[0] in found:
                found[node.output[0]] = found[node.input[0]]
    return found


def _join(graph, node, readers, values, told):
    """Let a node compute the bias, the batch norm and the activation behind it: ``(node, their operators)``."""
    joined = []
    bias = _next(graph, node, readers)
    if bias is not None and _is_bias(bias, node, values):
        del node.input[2:]
        node.input.append(next(name for name in bias.input if name != node.output[0]))
        joined.append(bias.op_type)
        node = _replace(graph, node, bias)
    norm = _next(graph, node, readers)
    if norm is not None and norm.input[0] == node.output[0] and _is_norm(norm, values):
        told["epsilon"] = _attributes(norm).get("epsilon", 1e-5)
        node.input.extend([""] * (3 - len(node.input)))
        node.input.extend(norm.input[1:])
        joined.append(norm.op_type)
        node = _replace(graph, node, norm)
    behind = _next(graph, node, readers)
    activation = None if behind is None else _activation(behind)
    if activation is not None:
        told["activation"] = activation
        joined.append(behind.op_type)
        node = _replace(graph, node, behind)
    return node, tuple(joined)


def _next(graph, node, readers):
    """The node of the same graph that alone reads the output of another."""
    if readers[node.output[0]] != 1:
        return None
    return next((each for each in graph.node if node.output[0] in each.input), None)


def _replace(graph, node, behind):
    """The node in the place of the one behind it, where all that either reads is known."""
    node.output[0] = behind.output[0]
    behind.CopyFrom(node)
    graph.node.remove(node)
    return behind


def _is_bias(node, conv, values):
    """Whether a node adds one number to each channel, and the transposed convolution has no bias."""
    if node.op_type != "Add" or node.domain not in _STANDARD or "".join(conv.input[2:]) or conv.input[1] not in values:
        return False
    bias = next((values[name] for name in node.input if name in values), None)
    weights = values[conv.input[1]]
    if bias is None or bias.data_type != weights.data_type:
        return False
    channels = weights.dims[1] * _attributes(conv).get("group", 1)
    sizes, wanted = list(bias.dims), [channels] + [1] * (len(weights.dims) - 2)
    return sizes in (wanted, [1, *wanted])


def _is_norm(node, values):
    """Whether a node is a batch norm of an inference, whose tensors are in the model."""
    if node.op_type != "BatchNormalization" or node.domain not in _STANDARD or len([name for name in node.output if name]) != 1:
        return False
    attributes = _attributes(node)
    if attributes.get("training_mode") or not attributes.get("spatial", 1) or not attributes.get("is_test", 1):
        return False
    tensors = [values.get(name) for name in node.input[1:]]
    return len(tensors) == 4 and all(each is not None and each.data_type in _FOLDED for each in tensors)


def _activation(node):
    """What convt calls an activation; None for other nodes."""
    if node.domain not in _STANDARD:
        return None
    attributes = _attributes(node)
    if node.op_type == "LeakyRelu":
        return ["leaky_relu", attributes.get("alpha", 0.01)]
    if node.op_type == "Gelu" and attributes.get("approximate", "none") != "none":
        return None
    return {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Gelu": "gelu"}.get(node.op_type)
