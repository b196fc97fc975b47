"""ONNX models whose ConvTranspose nodes are made convt's: what each is told, and what it computes together."""

import json
from typing import NamedTuple

import onnx

from . import _differences, _functions, _fuse, _scopes

_OURS = "convt"  # the domain of the operator in library.pyx


class Rewritten(NamedTuple):
    model: onnx.ModelProto
    fused: dict[str, tuple[str, ...]]  # name of a node of convt's -> operators behind it that it computes, in the nodes' order
    kept: dict[str, str]  # name of a node that is left to ONNX Runtime -> why


def names(model):
    """The names of a model's ConvTranspose nodes, those in functions too; their outputs' where they have none."""
    found = []
    for function, node in _functions.transposed(model):
        found.append(_new(node, function, found))
    return found


def rewrite(model, session, threads, precision=None, tune=False):
    """Make the ConvTranspose nodes of a model convt's, in place, but those for which ONNX Runtime and convt differ.

    Functions that have some are inlined. A bias, a batch norm and an activation behind a node, if nothing else reads what lies
    between, are computed with it. ``session``, ``threads``, ``precision`` and ``tune`` are handed on to the nodes, which learn
    their numbers, too. Of weights and constants only sizes and dtypes are looked at.
    """
    model, closed = _functions.inlined(model)
    opset, fused, kept = _functions.opset_of(model), {}, {}
    for function, node in _functions.transposed(model):
        if function is not None:
            why = closed.get(_functions.key_of(function), "onnx's inliner leaves it or what calls it")
            kept[_new(node, function, kept)] = f"it is in function {function.name}, which is not inlined, as {why}"
    if not any(_functions.is_transposed(node) for node in _scopes.all_nodes(model.graph)):
        return Rewritten(model, fused, kept)
    for scope in _scopes.Scope(model.graph, model.ir_version):
        removed = []
        for position, node in enumerate(scope.nodes):
            if not _functions.is_transposed(node):
                continue
            name = _new(node, None, {*fused, *kept})
            data, weights, bias = [scope.value(each) for each in (*node.input, "", "", "")[:3]]
            why = _differences.difference(node, data, weights, bias, opset)
            hidden = scope.hidden.intersection((*node.input, *node.output))
            if hidden:
                why = f"two values that are seen at once have the name {min(hidden)!r}, which ONNX forbids"
            if why is not None:
                kept[name] = why
                continue
            attributes = _scopes.attributes(node) | {"opset": opset, "precision": precision}
            if weights.dims is not None:
                attributes["kernel_shape"] = weights.dims[2:]  # because the decision holds for this kernel alone
            told = {"session": session, "node": len(fused), "threads": threads, "attributes": attributes, "tune": tune}
            made, places, fused[name] = _fuse.fuse(scope, position, told)
            told["settled"] = all(scope.value(each).default for each in made.input[1:] if each)
            made.domain = _OURS
            del made.attribute[:]
            made.attribute.append(onnx.helper.make_attribute("arguments", json.dumps(told)))
            scope.nodes[places[-1]].CopyFrom(made)
            removed += places[:-1]
        for position in sorted(removed, reverse=True):
            del scope.graph.node[position]
    if fused and not any(each.domain == _OURS for each in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_OURS, 1))
    return Rewritten(model, fused, kept)


def _new(node, function, taken):
    """A node's name that no other has: in a function behind the function's."""
    name = node.name or next(iter(node.output), "")
    if function is not None:
        name = f"{function.name}/{name}"
    while name in taken:
        name += "'"
    return name
