"""Changes that make most models invalid: `mutate`."""

import numpy as np
from onnx import AttributeProto, helper, numpy_helper

_EARLIER = {"ConvTranspose": 11, "BatchNormalization": 7, "Relu": 6, "LeakyRelu": 6, "HardSwish": 14, "Gelu": 20}


def mutate(model, kind, at=0):
    """Change a model in place, in the way that `draw.MUTATIONS` names. ``at`` chooses what is changed."""
    graphs = [model.graph, *(a.g for node in model.graph.node for a in node.attribute if a.HasField("g")), *model.functions]
    nodes = [node for graph in graphs for node in graph.node if node.op_type != "Constant"]
    node, tensors = nodes[at % len(nodes)], list(model.graph.initializer)
    tensor = tensors[at % len(tensors)] if tensors else None
    attributes = [each for each in node.attribute if not each.HasField("g")]
    attribute = attributes[at % len(attributes)] if attributes else None
    if kind in ("earlier opset", "later opset"):
        model.opset_import[0].version += -(1 + at % 9) if kind == "earlier opset" else 1 + at % 9
    elif kind in ("missing input", "unknown name") and node.input:
        node.input[at % len(node.input)] = "" if kind == "missing input" else "nowhere"
    elif kind == "name defined twice":
        nodes[-1].output[0] = node.output[0]
    elif kind == "no output":
        node.output[0] = ""
    elif kind == "swapped inputs" and len(node.input) > 1:
        node.input[0], node.input[1] = node.input[1], node.input[0]
    elif kind == "unknown operator":
        node.op_type += "Two"
    elif kind == "unknown attribute":
        node.attribute.append(helper.make_attribute("flavour", 3))
    elif kind in ("wrong rank", "zero", "other dtype") and tensor is not None and not tensor.external_data:
        found = numpy_helper.to_array(tensor)
        if kind == "other dtype":
            found = found.astype([np.float64, np.float16, np.int32, np.float32][at % 4])
        else:
            found = found.reshape(1, *found.shape) if kind == "wrong rank" else found[:0] if found.ndim else found
        tensor.CopyFrom(numpy_helper.from_array(found, tensor.name))
    elif attribute is not None:
        name = attribute.name
        value = helper.get_attribute_value(attribute) if not attribute.ref_attr_name else None
        new = {"text for a number": "two", "integer for a float": 1}.get(kind)
        if kind == "empty list" or (kind == "negative size" and isinstance(value, list) and value):
            new = [] if kind == "empty list" else [-1, *value[1:]]
        if new is not None:
            ints = AttributeProto.INTS if isinstance(new, list) else None
            attribute.CopyFrom(helper.make_attribute(name, new, attr_type=ints))
    elif kind == "text for a number":
        node.attribute.append(helper.make_attribute({"ConvTranspose": "group"}.get(node.op_type, "alpha"), "two"))
    elif kind == "integer for a float":
        node.attribute.append(helper.make_attribute({"BatchNormalization": "epsilon"}.get(node.op_type, "alpha"), 1))
