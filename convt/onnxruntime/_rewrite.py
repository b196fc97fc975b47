"""ONNX models whose ConvTranspose nodes are made convt's: what is served, and why not."""

import json

import onnx
from onnx import inliner

_OURS = "convt"  # the domain of the operator in library.pyx
_STANDARD = ("", "ai.onnx")
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def is_transposed(node):
    return node.op_type == "ConvTranspose" and node.domain in _STANDARD


def nodes(graph):
    """The nodes of a graph or function, and of the graphs inside them."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inside in (attribute.g, *attribute.graphs) if attribute.type in _GRAPHS else ():
                yield from nodes(inside)


def rewrite(model, session, threads):
    """Make the ConvTranspose nodes of a model convt's, in place: ``(model, names)``, a name for each node in their order.

    ``session`` and ``threads`` are handed on to the nodes. Functions that have some are inlined, as their attributes may be
    the call's.
    """
    if any(is_transposed(node) for function in model.functions for node in nodes(function)):
        model = inliner.inline_local_functions(model)
    opset = next((each.version for each in model.opset_import if each.domain in _STANDARD), 1)
    names = []
    for node in nodes(model.graph):
        if is_transposed(node):
            attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            if "auto_pad" in attributes:
                attributes["auto_pad"] = attributes["auto_pad"].decode()
            told = {
                "session": session, "node": len(names), "threads": threads,
                "attributes": {**_plain(attributes), "opset": opset},
            }  # fmt: skip
            names.append(node.name or node.output[0])
            node.domain = _OURS
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("arguments", json.dumps(told)))
    if names:
        model.opset_import.append(onnx.helper.make_opsetid(_OURS, 1))
    return model, names


def _plain(attributes):
    return {name: list(value) if isinstance(value, (list, tuple)) else value for name, value in attributes.items()}
