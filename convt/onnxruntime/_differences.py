"""Differences between ONNX Runtime's ConvTranspose and convt.onnx.

`convt.onnx` follows the ONNX specification, but a session must return ONNX Runtime's shapes, numbers and errors. So nodes and
runs for which the two may differ are left to ONNX Runtime. tests/integrations/test_onnxruntime_differences.py compares the two
on random nodes.
"""

_SAME = ("SAME_UPPER", "SAME_LOWER")


def difference(values, data, kernel):
    """Return how ONNX Runtime's rules for a node with these attributes may differ from the specification, or None.

    ``data`` is the shape of X and ``kernel`` the kernel sizes; each is None before a run if it is unknown. The run asks again.
    """
    if [] in values.values():
        return "one of its attributes is an empty list"
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
    if min(*strides, *dilations, values.get("group", 1)) < 1:
        return "one of its strides or dilations, or its group, is less than 1, which ONNX Runtime refuses"
    if any(padding >= stride for padding, stride in zip(paddings, strides, strict=True)):
        return "its output_padding is not less than its stride, which ONNX Runtime refuses"
    if sizes and (len(sizes) != rank or min(sizes) < 1):
        return f"its output_shape is {sizes}, which the ONNX specification does not define"
    if kernel is None:
        return None
    axes, reaches = range(rank), [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    pixels = data[2:] if data is not None and len(data) == rank + 2 and any(paddings) else ()
    if sizes and pixels and any(sizes[n] - strides[n] * (pixels[n] - 1) - reaches[n] >= strides[n] for n in axes):
        return "ONNX Runtime may refuse its output_padding together with its output_shape"
    if auto_pad in _SAME and not sizes and any(reaches[n] + paddings[n] < strides[n] for n in axes):
        return f"its kernel is smaller than its stride, where ONNX Runtime's {auto_pad} differs from the specification"
    return None
