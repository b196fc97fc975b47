"""Inlining of model functions that contain a ConvTranspose: attributes of their nodes may come from the calling node."""

import onnx
from onnx import inliner

from . import _scopes

# Operator -> version since which later opsets only add dtypes.
_SAME_SINCE = {
    "Add": 7, "BatchNormalization": 14, "Cast": 9, "Constant": 1, "Conv": 11, "ConvTranspose": 1, "Gelu": 20, "Identity": 1,
    "LeakyRelu": 6, "Mul": 7, "Relu": 6, "Sigmoid": 6, "Sub": 7, "Tanh": 6,
}  # fmt: skip


def is_transposed(node):
    return _scopes.is_standard(node, "ConvTranspose")


def opset_of(model):
    """Return the opset version of ONNX's own domain in a model or function."""
    return next((each.version for each in model.opset_import if each.domain in _scopes.STANDARD), 1)


def key_of(each):
    """Return the key of a function, or of the function that a node calls if it calls any."""
    return each.domain, each.op_type if isinstance(each, onnx.NodeProto) else each.name, each.overload


def _calls(body, functions):
    """Return the keys of the functions that a graph or function calls."""
    return [key for key in map(key_of, _scopes.all_nodes(body)) if key in functions]


def _reached(bodies, functions):
    """Return ``{key: function}`` of the functions that graphs or functions call, directly or through others."""
    bodies, found = list(bodies), {}
    for body in bodies:  # this list grows
        for key in _calls(body, functions):
            if key not in found:
                found[key] = functions[key]
                bodies.append(functions[key])
    return found


def transposed(model):
    """Return ``[(function or None, node)]``: the ConvTranspose nodes of a model, then those of the functions that it calls."""
    functions = _reached([model.graph], {key_of(each): each for each in model.functions}).values()
    bodies = [(None, model.graph), *zip(functions, functions, strict=True)]
    return [(function, node) for function, body in bodies for node in _scopes.all_nodes(body) if is_transposed(node)]


def inlined(model):
    """Return ``(model with its functions inlined, {key of a function that cannot be inlined: reason})``.

    The dict has only functions that contain a ConvTranspose or call a function that does, and those that they call. A function
    of another opset is inlined if its operators have the same meaning at the model's opset.
    """
    functions = {key_of(each): each for each in model.functions}
    if not _functions_to_inline(functions):
        return model, {}
    _give_defaults(model, functions)
    wanted, opset, why = _functions_to_inline(functions), opset_of(model), {}
    for key in wanted:
        if changed := _redefined_operator(functions[key], opset):
            own = opset_of(functions[key])
            why[key] = f"its opset is {own} and the model's is {opset}, where {changed}: give both the same opset"
            continue
        for each in functions[key].opset_import:
            if each.domain in _scopes.STANDARD:
                each.version = opset
    try:
        model = inliner.inline_local_functions(model)
    except Exception as error:  # the inliner raises many classes
        return model, dict.fromkeys(wanted, f"onnx cannot inline it: {error}")
    present = {key_of(each) for each in model.functions}  # these may call functions that the inliner dropped
    dropped = {key: each for key, each in functions.items() if key not in present}
    model.functions.extend(_reached(model.functions, dropped).values())
    for caller in (callers := list(why)):  # this list grows
        for key in _calls(functions[caller], functions):
            if key not in why:
                why[key] = f"function {functions[caller].name} calls it and is not inlined either because {why[caller]}"
                callers.append(key)
    return model, why


def _functions_to_inline(functions):
    """Return the keys of the functions that contain a ConvTranspose, or call a function that does."""
    calls = {key: {*_calls(each, functions)} for key, each in functions.items()}
    found = [key for key, each in functions.items() if any(map(is_transposed, _scopes.all_nodes(each)))]
    for called in found:  # this list grows
        found += [key for key in functions if called in calls[key] and key not in found]
    return found


def _give_defaults(model, functions):
    """Write the default attributes of functions into the nodes that call them, because the onnx inliner omits defaults.

    ``functions`` maps the keys of the model's functions to them. Specialized copies are added to both.
    """
    bodies, seen = [model.graph], set()
    for body in bodies:  # this list grows
        for node in _scopes.all_nodes(body):
            called = functions.get(key_of(node))
            if called is None:
                continue
            given = {each.name for each in node.attribute}
            node.attribute.extend(each for each in called.attribute_proto if each.name not in given)
            absent = {name for name in called.attribute if name not in given}
            if any(_passed_on(inner, absent, functions) for inner in _scopes.all_nodes(called)):
                called = _without_attributes(called, absent, model, functions)
                node.op_type = called.name
            if key_of(called) not in seen:
                seen.add(key_of(called))
                bodies.append(called)


def _passed_on(node, absent, functions):
    """Return the attributes of a call in a function that are attributes of the function itself, which its caller omits."""
    return [each for each in node.attribute if each.ref_attr_name in absent] if key_of(node) in functions else []


def _without_attributes(function, absent, model, functions):
    """Return a copy of a function for callers that omit the attributes ``absent``. Its calls omit them, too."""
    copy = onnx.FunctionProto()
    copy.CopyFrom(function)
    copy.name += "".join(f"/without {name}" for name in sorted(absent))
    if key_of(copy) not in functions:
        for node in _scopes.all_nodes(copy):
            for each in _passed_on(node, absent, functions):
                node.attribute.remove(each)
        model.functions.append(copy)
        functions[key_of(copy)] = model.functions[-1]
    return functions[key_of(copy)]


def _redefined_operator(function, opset):
    """Return a clause that names an operator of a function with another meaning at ``opset``, or None if there is none."""
    own = opset_of(function)
    for node in _scopes.all_nodes(function) if own != opset else ():
        if node.domain in _scopes.STANDARD and not _has_same_meaning(node.op_type, own, opset):
            return f"{node.op_type} is defined differently"
    return None


def _has_same_meaning(operator, own, opset):
    """Check whether an operator means the same at two opsets, for the dtypes of the first."""
    try:
        before, after = (onnx.defs.get_schema(operator, version).since_version for version in (own, opset))
    except onnx.defs.SchemaError:
        return False
    return before == after or _SAME_SINCE.get(operator, opset + 1) <= before < after
