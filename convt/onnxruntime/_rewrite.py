"""Replacement of the ConvTranspose nodes of an ONNX model by convt's operator."""

import json
from typing import NamedTuple

import onnx

from . import _differences, _functions, _fuse, _options, _quantized, _replaced, _scopes

_DOMAIN = "convt"  # domain of the operator in library.pyx


class Rewritten(NamedTuple):
    """A model with convt's nodes, and the fate of each ConvTranspose node."""

    model: onnx.ModelProto
    fused: dict[str, tuple[str, ...]]  # name of a node of convt -> types of the operators fused with it, in node order
    kept: dict[str, str]  # name of a node left to ONNX Runtime -> reason


def names(model):
    """Return unique names of a model's ConvTranspose nodes, including those in functions.

    A node without a name takes the name of its output.
    """
    found = []
    for function, node in _functions.transposed(model):
        found.append(_unique_name(node, function, found))
    return found


def rewrite(
    model, session, threads, precision=None, tune=False, load=lambda tensor: tensor, left_out=None, severity=-1,
):  # fmt: skip
    """Replace the ConvTranspose nodes of a model by convt's operator, in place, and return `Rewritten`.

    Nodes for which ONNX Runtime and convt differ are kept (see `_differences`), and so are those whose data is quantized.
    Functions that contain a ConvTranspose are inlined. A bias, batch norm or scale, sum and activation that follow a node are
    fused with it if nothing else reads the values between them. ``session``, ``threads``, ``precision``, ``tune`` and
    ``severity``, that of the session's logger, become arguments of each node, together with the node's number. Of weights and
    constants, only shapes and dtypes are read, not values. Exceptions are quantized weights, which are dequantized, and the
    slopes of a PRelu. ``load(tensor)`` returns an initializer with its data. ``left_out`` maps names of nodes to reasons to
    keep them.

    Raise ONNX Runtime's error for a model that it refuses, because it does not see the nodes that are fused.
    """
    if model.functions:
        _options.load(model)  # because the shapes inside a function must fit exactly, and those outside need not
    model, closed = _functions.inlined(model)
    _options.load(model)
    initializers = {each.name for each in model.graph.initializer}
    opset, fused, kept = _functions.opset_of(model), {}, {}
    for function, node in _functions.transposed(model):
        if function is not None:
            why = closed.get(_functions.key_of(function), "the onnx inliner leaves it in place")
            kept[_unique_name(node, function, kept)] = f"it is in function {function.name}, which is not inlined because {why}"
    if not any(_functions.is_transposed(node) for node in _scopes.all_nodes(model.graph)):
        return Rewritten(model, fused, kept)
    root = _scopes.Scope(model.graph, model.ir_version)
    if any(_needs_shapes(scope, node) for scope in root for node in scope.nodes):
        _scopes.add_inferred_shapes(root, model)
    for scope in root:
        removed, replaced = set(), {}
        for position, node in enumerate(scope.nodes):
            if not _functions.is_transposed(node):
                continue
            name = _unique_name(node, None, {*fused, *kept})
            data, weights, bias = [scope.value(each) for each in (*node.input, "", "", "")[:3]]
            why = _differences.difference(node, data, weights, bias, opset)
            redefined = scope.redefined.intersection((*node.input, *node.output))
            if redefined:
                why = f"nested graphs define two values with the name {min(redefined)!r}, which ONNX forbids"
            if _quantized.is_dequantized(scope, node.input[0]):
                why = "ONNX Runtime may quantize a node whose data comes from DequantizeLinear"
            why = (left_out or {}).get(name, why)
            if why is not None:
                kept[name] = why
                continue
            attributes = _scopes.attributes(node) | {"opset": opset, "precision": precision}
            if weights.dims is not None:
                attributes["kernel_shape"] = weights.dims[2:]  # because the decision is valid for this kernel only
            arguments = {"session": session, "node": len(fused), "threads": threads, "attributes": attributes, "tune": tune,
                         "severity": max(severity, 2) if severity >= 0 else severity}  # fmt: skip
            made, places, fused[name] = _fuse.fuse(scope, position, arguments, load)
            names = list(made.input)
            for each in _quantized.dequantize(scope, made, load, opset):
                replaced.setdefault(each, set()).update(places)
            originals = _renamed([scope.nodes[each] for each in places], dict(zip(names, made.input, strict=True)))
            arguments["inputs"], arguments["replaced"] = list(made.input), _replaced.text_of(scope, originals, made.input, load)
            arguments["constants_in_model"] = all(scope.value(each).in_model for each in made.input[1:7] if each)
            given = [each for each in made.input if each]
            arguments["scalars"] = [each for each in given if scope.value(each).dims == ()]
            del made.input[:]
            made.input.extend(given)
            made.domain = _DOMAIN
            del made.attribute[:]
            made.attribute.append(onnx.helper.make_attribute("arguments", json.dumps(arguments)))
            scope.nodes[places[-1]].CopyFrom(made)
            scope.replaced.update(places)
            removed.update(places[:-1])
        for position in sorted(removed | _quantized.remove_unread(scope, replaced), reverse=True):
            del scope.graph.node[position]
    added = [each for each in model.graph.initializer if each.name not in initializers]
    _scopes.list_initializers(model, added, initializers.difference(each.name for each in model.graph.initializer))
    if fused and not any(each.domain == _DOMAIN for each in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    return Rewritten(model, fused, kept)


def _needs_shapes(scope, node):
    """Check whether a decision about a node needs shapes that must be inferred, which takes a while for large models."""
    if not _functions.is_transposed(node):
        return False
    names = {each.name for each in node.attribute}
    return not all(scope.value(each).in_model for each in node.input[1:2]) or names >= {"output_padding", "output_shape"}


def _renamed(nodes, names):
    """Return copies of nodes that read values of other names."""
    copies = [onnx.NodeProto() for _ in nodes]
    for node, copy in zip(nodes, copies, strict=True):
        copy.CopyFrom(node)
        for n, name in enumerate(copy.input):
            copy.input[n] = names.get(name, name)
    return copies


def _unique_name(node, function, taken):
    """Return a name for a node that is not in ``taken``. Nodes of a function get the prefix "function/"."""
    name = node.name or next(iter(node.output), "")
    if function is not None:
        name = f"{function.name}/{name}"
    while name in taken:
        name += "'"
    return name
