"""The layers that the command line is asked about: JSON, or the ConvTranspose nodes of an ONNX model."""

import json
import os
from typing import NamedTuple

import numpy as np

from . import _api, _check, _onnx, _padding

# A layer in JSON: attribute of convt.ConvTranspose by what it is called there.
_NAMES = {"s": "strides", "d": "dilations", "pb": "pads_begin", "pe": "pads_end", "op": "output_padding", "g": "groups"}
_WANTED = {"Cin", "Cout", "in", "k"}
_KNOWN = {*_WANTED, *_NAMES, "N", "name", "family", "source"}
_STANDARD = ("", "ai.onnx")


class Layer(NamedTuple):
    """A transposed convolution without its numbers."""

    name: str
    data: tuple  # shape, NCX
    filter: tuple  # shape, IOX
    attributes: dict  # keywords of convt.ConvTranspose
    dialect: str = _padding.CORE
    dtype: str = "float32"
    layout: str = "NXC"

    def operator(self, **more):
        """``(ConvTranspose, shape of its data)`` with random weights; ``more`` are further keywords."""
        dtype = next(dtype for dtype, name in _check.DTYPES.items() if name == self.dtype)
        filter = np.random.default_rng(0).standard_normal(self.filter, np.float32).astype(dtype)
        keywords = {**self.attributes, "data_format": self.layout, "filter_format": "IOX", **more}
        op = _api.ConvTranspose.borrowing(filter, None, self.dialect, **keywords)
        batch, channels, *sizes = self.data
        return op, self.data if self.layout == "NCX" else (batch, *sizes, channels)

    def numbers(self, shape):
        """Random data of a shape."""
        dtype = next(dtype for dtype, name in _check.DTYPES.items() if name == self.dtype)
        return np.random.default_rng(1).standard_normal(shape, np.float32).astype(dtype)


def read(text, shapes=None):
    """The layers that an argument speaks of: JSON, a file of JSON, or an ONNX file, of whose inputs ``shapes`` tells."""
    if not os.path.exists(text):
        return _of_json(text)
    if text.endswith(".onnx"):
        return _of_model(text, shapes or {})
    with open(text, encoding="utf-8") as file:
        return _of_json(file.read())


def _of_json(text):
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"layer: got {text[:80]!r}, wanted JSON, a file of JSON, or an ONNX file ({error})") from None
    rows = rows.get("layers", [rows]) if isinstance(rows, dict) else rows
    return [_of_row(row) for row in (rows if isinstance(rows, list) else [rows])]


def _of_row(row):
    if not isinstance(row, dict) or not _WANTED <= set(row) <= _KNOWN:
        got = sorted(row) if isinstance(row, dict) else row
        raise ValueError(f"layer: got {got}, wanted Cin, Cout, in and k, and of the others {', '.join(sorted(_KNOWN))}")
    rank = len(row["in"]) if isinstance(row["in"], list) else 1
    each = lambda name, value, length: _check.integers(name, value, length, 0)  # noqa: E731
    groups = _check.integer("g", row.get("g", 1), 1)
    batch, ci, co = (_check.integer(name, row.get(name, 1), 0) for name in ("N", "Cin", "Cout"))
    if co % groups:
        raise ValueError(f"g: got {groups}, wanted a divisor of Cout, {co}")
    attributes = {_NAMES[key]: row[key] for key in _NAMES if key in row}
    data, filter = (batch, ci, *each("in", row["in"], rank)), (ci, co // groups, *each("k", row["k"], rank))
    return Layer(row.get("name", "layer"), data, filter, attributes)


def _of_model(path, shapes):
    """The ConvTranspose nodes of a model's main graph. A batch that the model leaves open is 1."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError('an ONNX model needs the onnx package: pip install "convt[onnx]"') from error
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's
        raise ValueError(f"layer: got {path!r}, which is no ONNX model ({error})") from error
    weights = {each.name: each for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in weights]
    if unknown := set(shapes) - {each.name for each in inputs}:
        raise ValueError(f"shape: got {sorted(unknown)}, wanted inputs of the model, {[each.name for each in inputs]}")
    for each in inputs:
        _fill_in(each.type.tensor_type.shape, shapes.get(each.name))
    model = onnx.shape_inference.infer_shapes(model)
    known = {name: (each.data_type, tuple(each.dims)) for name, each in weights.items()}
    for each in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = each.type.tensor_type
        known.setdefault(each.name, (kind.elem_type, tuple(size.dim_value for size in kind.shape.dim)))
    opset = next((each.version for each in model.opset_import if each.domain in _STANDARD), 1)
    nodes = [node for node in model.graph.node if node.op_type == "ConvTranspose" and node.domain in _STANDARD]
    if not nodes:
        raise ValueError(f"layer: got {path!r}, a model without a ConvTranspose node in its main graph")
    return [_of_node(onnx, node, known, opset) for node in nodes]


def _fill_in(shape, sizes):
    """Set the sizes of an input: those given, else a batch that is left open to 1."""
    for n, size in enumerate(shape.dim):
        if sizes is not None and n < len(sizes):
            size.dim_value = sizes[n]
        elif n == 0 and not size.dim_value:
            size.dim_value = 1


def _of_node(onnx, node, known, opset):
    name = node.name or node.output[0]
    (_, data), (kind, filter) = (known.get(each, (0, ())) for each in node.input[:2])
    if len(filter) < 3 or len(data) != len(filter) or 0 in (*data, *filter):
        raise ValueError(
            f"layer: got node {name!r}, whose input {node.input[0]!r} has a shape that the model leaves open, {data}; "
            f"wanted shapes of the model's inputs, by --shape NAME=N,C,..."
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    given = {key: value.decode() if isinstance(value, bytes) else value for key, value in given.items()}
    attributes = _onnx.attributes(np.broadcast_to(np.zeros((), dtype), filter), **given, opset=opset)
    return Layer(name, data, filter, attributes, _padding.ONNX, _check.DTYPES[dtype], "NCX")
