"""Replacement of the ConvTranspose nodes of an ONNX model by convt's operator."""

import json
from typing import NamedTuple

import onnx

from . import _differences, _functions, _fuse, _host, _inputs, _options, _quantized, _replaced, _scopes

_DOMAIN = "convt"  # domain of the operator in library.pyx


class Rewritten(NamedTuple):
    """A model with convt's nodes, and the fate of each ConvTranspose node."""

    model: onnx.ModelProto
    fused: dict[str, tuple[str, ...]]  # name of a node of convt -> types of the operators fused with it, in node order
    kept: dict[str, str]  # name of a node left to ONNX Runtime -> reason


def names(model):
    """Return unique names of a model's ConvTranspose nodes, including those in functions."""
    found = []
    for function, node in _functions.transposed(model):
        found.append(_unique_name(node, function, found))
    return found


def rewrite(model, session, threads, precision=None, tune=False, left_out=None, severity=-1):
    """Replace the ConvTranspose nodes of a model by convt's operator, in place, and return `Rewritten`.

    Nodes for which ONNX Runtime and convt differ are kept (see `_differences`), and so are those whose data is quantized.
    Functions that contain a ConvTranspose are inlined. A bias, batch norm or scale, sum and activation that follow a node are
    fused with it if nothing else reads the values between them. ``session``, ``threads``, ``precision``, ``tune`` and
    ``severity``, that of the session's logger, become arguments of each node, together with the node's number. Of weights and
    constants, only shapes and dtypes are read: the values may be in another file, or in the session's options. ``left_out``
    maps names of nodes to reasons to keep them.

    Raise ONNX Runtime's error for a model that it refuses, because it does not see the nodes that are fused.
    """
    # With functions, because the shapes inside a function must fit exactly, and those outside need not.
    outputs = _options.load(model) if model.functions else ()
    model, closed = _functions.inlined(model)
    _declare(model.graph, outputs)
    _options.load(model)
    initializers = {each.name for each in model.graph.initializer}
    opset, fused, kept = _functions.opset_of(model), {}, {}
    for function, node in _functions.transposed(model):
        if function is not None:
            why = closed.get(_functions.key_of(function), "the onnx inliner leaves it in place")
            kept[_unique_name(node, function, kept)] = f"it is in function {function.name}, which is not inlined because {why}"
    root = _scopes.Scope(model.graph, model.ir_version)
    if any(_needs_shapes(scope, node) for scope in root for node in scope.nodes):
        _scopes.add_inferred_shapes(root, model)
    severity = max(severity, 2) if severity >= 0 else severity
    settings = {"session": session, "threads": threads, "tune": tune, "severity": severity}
    for scope in root:
        for position, node in enumerate(scope.nodes):
            if not _functions.is_transposed(node):
                continue
            name = _unique_name(node, None, {*fused, *kept})
            try:
                why = (left_out or {}).get(name) or _reason_to_keep(scope, node, opset)
                if why is None:
                    fused[name] = _replace(scope, position, opset, precision, settings | {"node": len(fused)})
            except Exception as error:
                if _host.is_foreign(error):
                    raise
                why = f"convt cannot replace it: {type(error).__name__}: {error}"
            if why is not None:
                kept[name] = why
    for scope in root:
        unread = {  # DequantizeLinear nodes of which convt's nodes have read the output, and nothing else
            position for position, node in enumerate(scope.nodes)
            if _scopes.is_standard(node, "DequantizeLinear") and [scope.readers.get(name) for name in node.output] == [[]]
        }  # fmt: skip
        for position in sorted(scope.removed | unread, reverse=True):
            del scope.graph.node[position]
    added = [each for each in model.graph.initializer if each.name not in initializers]
    _scopes.list_initializers(model, added, initializers.difference(each.name for each in model.graph.initializer))
    if fused and not any(each.domain == _DOMAIN for each in model.opset_import):
        model.opset_import.append(onnx.helper.make_opsetid(_DOMAIN, 1))
    return Rewritten(model, fused, kept)


def _declare(graph, outputs):
    """Declare the shapes of outputs of a graph that ONNX Runtime infers before functions are inlined.

    It keeps them, and may infer less afterwards, because inlining loses what nested graphs of a function declare.
    """
    for declared, inferred in zip(graph.output, outputs, strict=False):
        tensor, dims = declared.type.tensor_type, inferred.shape
        is_valid = not any(isinstance(size, int) and size < 0 for size in dims)
        if declared.type.HasField("tensor_type") and not tensor.HasField("shape") and dims and is_valid:
            declared.CopyFrom(onnx.helper.make_tensor_value_info(declared.name, tensor.elem_type, dims))


def may_enlarge(model):
    """Check whether a model with convt's nodes has a PRelu whose slopes may be larger than its input.

    ONNX forbids that, and ONNX Runtime computes it. It infers the shape of the input for the output. If that shape has names of
    convt for open sizes, ONNX Runtime takes the two values for equally large, and writes the output over the input.
    """
    has_prelu = lambda graph: any(_scopes.is_standard(node, "PRelu") for node in _scopes.all_nodes(graph))  # noqa: E731
    if any(map(has_prelu, model.functions)):
        return True  # its slopes are unknown
    if not has_prelu(model.graph):
        return False  # without a `Scope`, which takes a while for large models
    nodes = [(scope, node) for scope in _scopes.Scope(model.graph, model.ir_version) for node in scope.nodes]
    slopes = [scope.value(node.input[1]).dims for scope, node in nodes if _scopes.is_standard(node, "PRelu")]
    weights = [scope.value(node.input[1]).dims for scope, node in nodes if node.domain == _DOMAIN]
    ranks = {len(dims) for dims in weights if dims is not None}
    # Slopes do not enlarge data of these ranks if there is one, or one for each channel.
    return any(dims is None or any(n != 1 and len(dims) - ax + 1 not in ranks for ax, n in enumerate(dims)) for dims in slopes)


def _needs_shapes(scope, node):
    """Check whether a decision about a node needs shapes that must be inferred, which takes a while for large models."""
    if not _functions.is_transposed(node):
        return False
    names = {each.name for each in node.attribute}
    return not all(scope.value(each).in_model for each in node.input[1:2]) or names >= {"output_padding", "output_shape"}


def _reason_to_keep(scope, node, opset):
    """Return the reason to leave a node of a scope to ONNX Runtime, or None."""
    if node.input and _quantized.source(scope, node.input[0]) is not None:
        return "ONNX Runtime may quantize a node whose data comes from DequantizeLinear"
    if redefined := scope.redefined.intersection((*node.input, *node.output)):
        return f"nested graphs define two values with the name {min(redefined)!r}, which ONNX forbids"
    return _differences.difference(node, *[scope.value(each) for each in (*node.input, "", "", "")[:3]], opset)


def _replace(scope, position, opset, precision, settings):
    """Replace a node of a scope and the nodes fused with it by convt's node. Return the types of the fused operators.

    ``settings`` are arguments of convt's node.
    """
    node = scope.nodes[position]
    dims = scope.value(node.input[1]).dims
    attributes = _scopes.attributes(node) | {"opset": opset, "precision": precision}
    if dims is not None:
        attributes["kernel_shape"] = dims[2:]
    arguments = settings | {"attributes": attributes}
    made, places, fused_types = _fuse.fuse(scope, position, arguments)
    originals = [scope.nodes[each] for each in places]
    dequantizing = _quantized.read_quantized(scope, made, arguments)
    values = {n: scope.value(name) for n, name in enumerate(made.input) if name and n not in (_inputs.X, _inputs.ADDED)}
    arguments["inputs"], arguments["replaced"] = list(made.input), _replaced.text_of(scope, [*dequantizing, *originals])
    arguments["constants_in_model"] = all(each.in_model for each in values.values())
    arguments["shapes"] = [(n, each.dims) for n, each in values.items() if each.dims is not None]
    given = _inputs.given(made.input)
    arguments["scalars"] = [each for each in given if scope.value(each).dims == ()]
    made_here = {name for node in dequantizing for name in node.output}
    for place in places:
        for each in made_here.intersection(scope.nodes[place].input):
            scope.release(each, place)
    del made.input[:], made.attribute[:]
    made.input.extend(given)
    made.domain = _DOMAIN
    made.attribute.append(onnx.helper.make_attribute("arguments", json.dumps(arguments)))
    scope.nodes[places[-1]].CopyFrom(made)
    scope.replaced.update(places)
    scope.removed.update(places[:-1])
    return fused_types


def _unique_name(node, function, taken):
    """Return the name of a node, or of its output if it has none; unlike those in ``taken``, with the prefix "function/"."""
    name = node.name or next(iter(node.output), "")
    if function is not None:
        name = f"{function.name}/{name}"
    while name in taken:
        name += "'"
    return name
