"""Differences between ONNX Runtime's ConvTranspose and convt.onnx.

`convt.onnx` follows the ONNX specification, but a session must return ONNX Runtime's shapes, numbers and errors. So nodes for
which the two may differ are left to ONNX Runtime. The decision depends on a node's attributes and on what is known of its
inputs' shapes and dtypes. tests/integrations/test_onnxruntime_differences.py compares the two on random nodes.
"""

import numpy as np
import onnx

from .._base import dtypes
from .._call import onnx_rules
from . import _scopes

_LISTS = ("dilations", "kernel_shape", "output_padding", "output_shape", "pads", "strides")
_TYPES = {"auto_pad": onnx.AttributeProto.STRING, "group": onnx.AttributeProto.INT}
_TYPES |= dict.fromkeys(_LISTS, onnx.AttributeProto.INTS)
_DTYPES = {each.onnx: each.dtype for each in dtypes.COMPUTED}
_SAME = ("SAME_UPPER", "SAME_LOWER")


def difference(node, data, weights, bias, opset):
    """Return the reason to leave a node to ONNX Runtime, or None if convt computes it.

    ``data``, ``weights`` and ``bias`` are `_scopes.Value`: what is known about the inputs X, W and B.
    """
    if not (2 <= len(node.input) <= 3 and all(node.input[:2]) and len(node.output) == 1 and node.output[0]):
        return "it does not have the inputs and the output of a ConvTranspose"
    for each in node.attribute:
        if each.ref_attr_name or _TYPES.get(each.name) != each.type:
            return f"its attribute {each.name} is unknown to ConvTranspose or has the wrong type"
    values = _scopes.attributes(node)
    if [] in values.values():
        return "one of its attributes is an empty list"
    kernel = values.get("kernel_shape") if weights.dims is None else list(weights.dims[2:])
    why, filter = _other_rules(values, data.dims, kernel), _zeros(weights)
    if why is None and filter is not None:
        try:
            onnx_rules.check(filter, _zeros(bias), onnx_rules.attributes(filter, **values, opset=opset))
        except (ValueError, TypeError, MemoryError) as error:
            return f"convt refuses it: {error}"
    return why


def _zeros(value):
    """Return an array of a value's shape and dtype without memory for its elements, or None if one of the two is unknown."""
    known = value.dims is not None and value.kind in _DTYPES
    return np.broadcast_to(np.zeros((), _DTYPES[value.kind]), value.dims) if known else None


def _other_rules(values, data, kernel):
    """Return how ONNX Runtime's rules for a node with these attributes may differ from the specification, or None.

    ``data`` is the shape of X and ``kernel`` the kernel sizes; each is None if it is unknown.
    """
    auto_pad, sizes = values.get("auto_pad", "NOTSET"), values.get("output_shape", [])
    if auto_pad not in ("NOTSET", "VALID", *_SAME):
        return f"its auto_pad is {auto_pad!r}, which the ONNX specification does not define"
    if auto_pad != "NOTSET" and "pads" in values:
        return "it has both auto_pad and pads, which ONNX Runtime refuses even if the pads are 0"
    if min(values.get("pads", [0])) < 0:
        return "it has a negative pad"
    rank = max(len(values.get(name, [])) for name in ("strides", "dilations", "output_padding")) or len(kernel or [0])
    strides, dilations, paddings = (
        values.get(name, [default] * rank) for name, default in (("strides", 1), ("dilations", 1), ("output_padding", 0))
    )
    if not rank == len(strides) == len(dilations) == len(paddings) == len(kernel or strides):
        return "its attributes differ in their number of axes"
    if any(padding >= stride for padding, stride in zip(paddings, strides, strict=True)):
        return "its output_padding is not less than its stride, which ONNX Runtime refuses"
    if sizes and (len(sizes) != rank or min(sizes) < 1):
        return f"its output_shape is {sizes}, which the ONNX specification does not define"
    reaches = [(size - 1) * dilation + 1 for size, dilation in zip(kernel or [1] * rank, dilations, strict=True)]
    axes = range(rank)
    if sizes and any(paddings):
        if data is None or not kernel or len(data) != rank + 2:
            return "it has output_padding and output_shape, which ONNX Runtime may refuse together, and inputs of unknown shape"
        if any(sizes[n] - strides[n] * (data[n + 2] - 1) - reaches[n] >= strides[n] for n in axes):
            return "ONNX Runtime may refuse its output_padding together with its output_shape"
    if auto_pad in _SAME and not sizes and any(reaches[n] + paddings[n] < strides[n] for n in axes):
        known = "its kernel is" if kernel else "the shape of its weights is unknown, so its kernel may be"
        return f"{known} smaller than its stride, where ONNX Runtime's {auto_pad} differs from the specification"
    return None
