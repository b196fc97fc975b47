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


def key_of(function):
    return function.domain, function.name, function.overload


def transposed(model):
    """Return ``[(function or None, node)]``: the ConvTranspose nodes of a model, then those of the functions that it calls."""
    functions = {key_of(each): each for each in model.functions}
    found, seen, waiting = [], set(), [None]
    while waiting:
        function = waiting.pop(0)
        for node in _scopes.all_nodes(model.graph if function is None else function):
            key = node.domain, node.op_type, node.overload
            if key in functions and key not in seen:
                seen.add(key)
                waiting.append(functions[key])
            if is_transposed(node):
                found.append((function, node))
    return found


def inlined(model):
    """Return ``(model with its functions inlined, {key of a function that cannot be inlined: reason})``.

    The dict has only functions that contain a ConvTranspose or call a function that does, and those that they call. A function
    of another opset is inlined if its operators have the same meaning at the model's opset.
    """
    functions = {key_of(each): each for each in model.functions}
    if not _functions_to_inline(functions):
        return model, {}
    _give_defaults(model, functions)
    wanted = _functions_to_inline(functions)
    opset, why = opset_of(model), {}
    for key in wanted:
        changed = _redefined_operator(functions[key], opset)
        if changed:
            own = opset_of(functions[key])
            why[key] = f"its opset is {own} and the model's is {opset}, where {changed}: give both the same opset"
        else:
            for each in functions[key].opset_import:
                if each.domain in _scopes.STANDARD:
                    each.version = opset
    try:
        model = inliner.inline_local_functions(model)
    except Exception as error:  # the inliner raises many classes
        return model, dict.fromkeys(wanted, f"onnx cannot inline it: {error}")
    waiting = list(model.functions)  # functions that the inliner kept may call functions that it dropped: restore these
    present = {key_of(each) for each in waiting}
    while waiting:
        for node in _scopes.all_nodes(waiting.pop()):
            key = node.domain, node.op_type, node.overload
            if key in functions and key not in present:
                model.functions.append(functions[key])
                present.add(key)
                waiting.append(functions[key])
    waiting = list(why)
    while waiting:
        caller = functions[waiting.pop(0)]
        for node in _scopes.all_nodes(caller):
            key = node.domain, node.op_type, node.overload
            if key in functions and key not in why:
                why[key] = f"function {caller.name} calls it and is not inlined either because {why[key_of(caller)]}"
                waiting.append(key)
    return model, why


def _give_defaults(model, functions):
    """Write the default attributes of functions into the nodes that call them, because the onnx inliner omits defaults.

    ``functions`` maps the keys of the model's functions to them. Specialized copies are added to both.
    """
    waiting, seen = [model.graph], set()
    while waiting:
        for node in _scopes.all_nodes(waiting.pop()):
            called = functions.get((node.domain, node.op_type, node.overload))
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
                waiting.append(called)


def _passed_on(node, absent, functions):
    """Return the attributes of a call in a function that are attributes of the function itself, which its caller omits."""
    is_call = (node.domain, node.op_type, node.overload) in functions
    return [each for each in node.attribute if is_call and each.ref_attr_name in absent]


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


def _functions_to_inline(functions):
    """Return the keys of the functions that contain a ConvTranspose, or call a function that does."""
    found, before = [], None
    while len(found) != before:
        before = len(found)
        for key, function in functions.items():
            nodes = () if key in found else _scopes.all_nodes(function)
            if any(is_transposed(node) or (node.domain, node.op_type, node.overload) in found for node in nodes):
                found.append(key)
    return found


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
