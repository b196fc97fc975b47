"""A case as a test in Python that needs no file of the fuzzer: `test_of`."""

import numpy as np
from onnx import AttributeProto, helper, numpy_helper

from . import build, oracle

_HEAD = """
import numpy as np, onnx, onnxruntime, convt.onnxruntime
from numpy import inf, nan
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_attribute, make_function, make_graph, make_node, make_tensor_value_info

def referring(node, **attributes):
    for name, (of_function, kind) in attributes.items():
        node.attribute.add(name=name, ref_attr_name=of_function, type=kind)
    return node

def test_case({fixture}):
    tensor = lambda values, dtype, name: numpy_helper.from_array(np.array(values, dtype), name)
"""


def test_of(case):
    """Return the text of a test that compares convt with ONNX Runtime as `perform` does, but with a plain tolerance."""
    built = build.build(case)
    model, lines = built.model, []
    for tensor in model.graph.initializer:
        if tensor.external_data:
            tensor.CopyFrom(numpy_helper.from_array(oracle.array_of(tensor, built.files), tensor.name))
    add = lines.append
    add(f"model = helper.make_model({_graph(model.graph, 1)},")
    imports = ", ".join(f"helper.make_opsetid({each.domain!r}, {each.version})" for each in model.opset_import)
    add(f"    ir_version={model.ir_version}, opset_imports=[{imports}],")
    add(f"    functions=[{', '.join(_function(each) for each in model.functions)}])")
    source = "model" if case.get("model") == "proto" else "model.SerializeToString()"
    if built.files:
        source = 'str(tmp_path / "model.onnx")'
        add('onnx.external_data_helper.convert_model_to_external_data(model, location="data.bin", size_threshold=0)')
        add(f"onnx.save_model(model, {source})  # all tensors outside; the case has only some of them there")
    elif case.get("model") == "path":
        source = 'str(tmp_path / "model.onnx")'
        add(f"onnx.save_model(model, {source})")
    add("options = onnxruntime.SessionOptions()")
    add(f"options.intra_op_num_threads = {case.get('threads', 1)}")
    level = ["DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT", "ENABLE_ALL"]
    if "level" in case:
        add(f"options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_{level[case['level']]}")
    for name, value in built.added.items():
        add(f"{name} = onnxruntime.OrtValue.ortvalue_from_numpy({_array(value)})")
        add(f"options.add_initializer({name!r}, {name})")
    providers = case.get("providers", ["CPUExecutionProvider"])
    providers = [tuple(each) if isinstance(each, list) else each for each in providers] if providers else providers
    add(f"theirs = onnxruntime.InferenceSession({source}, options, {providers})")
    for _ in range(case.get("sessions", 1)):
        add(f"ours = convt.onnxruntime.InferenceSession({source}, options, {providers})")
    add('for what in ("get_inputs", "get_outputs", "get_overridable_initializers"):')
    add("    mine, other = ([(v.name, v.type, v.shape) for v in getattr(s, what)()] for s in (ours, theirs))")
    add("    assert mine == other")
    for feed in built.feeds:
        add("feed = {" + ", ".join(f"{name!r}: {_array(value)}" for name, value in feed.items()) + "}")
        add("feed = {each.name: feed[each.name] for each in theirs.get_inputs()}")
        add("for mine, other in zip(ours.run(None, feed), theirs.run(None, feed)):")
        add("    np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)")
    fixture = "tmp_path" if "tmp_path" in source else ""
    return _HEAD.format(fixture=fixture).lstrip() + "".join(f"    {each}\n" for each in "\n".join(lines).split("\n"))


def _array(value):
    return f"np.array({_values(value)}, np.{value.dtype.name})"


def _values(value):
    return np.asarray(value, np.float64 if value.dtype.kind == "f" else None).tolist()


def _graph(graph, depth):
    space = "\n" + "    " * depth
    nodes = "".join(f"{space}    {_node(each, depth + 1)}," for each in graph.node)
    lists = [[_info(each) for each in field] for field in (graph.input, graph.output)]
    lists.append([_tensor(each) for each in graph.initializer])
    text = ", ".join("[" + ", ".join(each) + "]" for each in lists)
    infos = f", value_info=[{', '.join(map(_info, graph.value_info))}]" if graph.value_info else ""
    return f"make_graph([{nodes}{space}], {graph.name!r}, {text}{infos})"


def _node(node, depth):
    parts = [repr(node.op_type), repr(list(node.input)), repr(list(node.output))]
    parts += [f"{name}={getattr(node, name)!r}" for name in ("name", "domain") if getattr(node, name)]
    plain, others = [], []
    for each in node.attribute:
        if each.ref_attr_name:
            others.append(f"{each.name}=({each.ref_attr_name!r}, {each.type})")
        else:
            plain.append(f"{each.name}={_value(each, depth)}")
    text = f"make_node({', '.join(parts + plain)})"
    return f"referring({text}, {', '.join(others)})" if others else text


def _value(attribute, depth):
    value = helper.get_attribute_value(attribute)
    if attribute.type == AttributeProto.GRAPH:
        return _graph(value, depth)
    if attribute.type == AttributeProto.TENSOR:
        return _tensor(value)
    return repr(list(value) if attribute.type == AttributeProto.INTS else value)


def _tensor(tensor):
    value = numpy_helper.to_array(tensor)
    return f"tensor({_values(value)}, {value.dtype.name!r}, {tensor.name!r})"


def _info(info):
    tensor = info.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    return f"make_tensor_value_info({info.name!r}, {tensor.elem_type}, {shape})"


def _function(function):
    nodes = ", ".join(_node(each, 1) for each in function.node)
    imports = ", ".join(f"helper.make_opsetid({each.domain!r}, {each.version})" for each in function.opset_import)
    defaults = ", ".join(f"make_attribute({each.name!r}, {_value(each, 1)})" for each in function.attribute_proto)
    names = f"{function.domain!r}, {function.name!r}, {list(function.input)}, {list(function.output)}"
    return f"make_function({names}, [{nodes}], [{imports}], {list(function.attribute)}, [{defaults}])"
