"""Layers given on the command line: JSON, or the ConvTranspose nodes of an ONNX model."""

import contextlib
import inspect
import os
from typing import NamedTuple

import numpy as np

from .._base import arguments, check, layer_format, padding
from .._base.problem import ITEMSIZE, NUMPY_DTYPE
from .._call import onnx_rules
from .._call import operator as _operator
from .._run import config

# Keyword of convt.ConvTranspose -> key of a layer in JSON.
_KEYWORDS = {"strides": "s", "dilations": "d", "pads_begin": "pb", "pads_end": "pe", "output_padding": "op", "groups": "g"}
_WANTED = "JSON, a file of JSON, or an ONNX file"
_STANDARD = ("", "ai.onnx")  # names of the standard ONNX domain
_ATTRIBUTES = inspect.signature(onnx_rules.attributes).parameters.keys() - {"W", "opset", "precision"}


class Layer(NamedTuple):
    """A transposed convolution without data and weights."""

    name: str
    data: tuple  # shape, NCX
    filter: tuple  # shape, IOX
    attributes: dict  # keywords of convt.ConvTranspose
    dialect: str = padding.CORE
    dtype: str = "float32"
    layout: str = "NXC"

    def operator(self, **more):
        """Return ``(ConvTranspose with random weights, shape of its data)``; ``more`` are further keywords."""
        # Two copies: the numbers, and the packed weights.
        filter = self._random(0, "filter (numbers and packed weights)", self.filter, 2)
        keywords = {**self.attributes, "data_format": self.layout, "filter_format": "IOX", **more}
        op = _operator.ConvTranspose._borrowing(filter, None, self.dialect, **keywords)
        batch, channels, *sizes = self.data
        return op, self.data if self.layout == "NCX" else (batch, *sizes, channels)

    def numbers(self, shape):
        """Return random data of a shape, in the layer's dtype."""
        return self._random(1, "data", shape, 1)

    def _random(self, seed, what, shape, copies):
        """Return random numbers. Raise MemoryError first if ``copies`` arrays of this shape exceed the machine's memory."""
        config.check_memory(what, shape, copies * ITEMSIZE[self.dtype])
        return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(NUMPY_DTYPE[self.dtype], copy=False)


def read(text, shapes=None, reporting=lambda name: contextlib.nullcontext()):
    """Return the layers of an argument: JSON, a file with JSON, or an ONNX file.

    ``shapes`` maps inputs of an ONNX model to their sizes. Each layer is made in a context ``reporting(name)``, so that an
    invalid one need not hide the others. Raise ValueError if the whole argument is invalid, ImportError if an ONNX file needs
    the onnx package.
    """
    found = []
    for name, make, *details in _parts(text, shapes or {}):
        with reporting(name):
            found.append(make(*details))
    return found


def _parts(text, shapes):
    """Return ``(name, function, *its arguments)`` for each layer; the function makes the layer."""
    there = os.path.exists(text)
    if there and text.endswith(".onnx"):
        return _of_model(text, shapes)
    if shapes and not text.endswith(".onnx"):
        raise ValueError(f"--shape: got a shape with {layer_format.shown(text)}, wanted it with an ONNX file only")
    try:
        rows = layer_format.rows(layer_format.text_of(text) if there else text)
    except OSError as error:
        raise ValueError(f"layer: got {text!r}, which can't be read ({error.strerror}); wanted {_WANTED}") from error
    except ValueError as error:
        if not there and not text.lstrip().startswith(("{", "[")):
            raise ValueError(f"layer: got {layer_format.shown(text)}, neither a file nor JSON; wanted {_WANTED}") from None
        raise ValueError(f"layer: {text if there else layer_format.shown(text)}: {error}") from error
    return [(name, _of_row, row, name) for name, row in rows]


def _of_row(row, name):
    row = layer_format.checked(row, name)
    attributes = {keyword: row[key] for keyword, key in _KEYWORDS.items()}
    data, filter = (row["N"], row["Cin"], *row["in"]), (row["Cin"], row["Cout"] // row["g"], *row["k"])
    return Layer(name, data, filter, attributes)


def _of_model(path, shapes):
    """Return the `_parts` of the ConvTranspose nodes of a model's main graph. A batch of unknown size is 1."""
    try:
        import onnx
    except ImportError as error:
        raise ImportError("an ONNX model needs the onnx package: pip install onnx") from error
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf has its own exception classes
        raise ValueError(f"layer: got {path!r}, which is not an ONNX model ({error})") from error
    weights = {each.name: each for each in model.graph.initializer}
    inputs = {each.name: each.type for each in model.graph.input if each.name not in weights}
    if unknown := sorted(shapes.keys() - inputs.keys()):
        raise ValueError(f"--shape: got {unknown}, wanted inputs of the model: {list(inputs)}")
    for name, kind in inputs.items():
        _fill_in(name, kind, shapes.get(name))
    if shapes:  # so that shape inference computes all others anew
        del model.graph.value_info[:]
        for each in model.graph.output:
            each.type.tensor_type.ClearField("shape")
    try:
        model = onnx.shape_inference.infer_shapes(model)
    except Exception as error:  # protobuf has its own exception classes
        raise ValueError(f"layer: got {path!r}, whose shapes ONNX can't infer ({error})") from error
    known = {name: (each.data_type, tuple(each.dims)) for name, each in weights.items()}
    for each in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        kind = each.type.tensor_type
        known.setdefault(each.name, (kind.elem_type, tuple(size.dim_value for size in kind.shape.dim)))
    opset = next((each.version for each in model.opset_import if each.domain in _STANDARD), 1)
    nodes = [node for node in model.graph.node if node.op_type == "ConvTranspose" and node.domain in _STANDARD]
    if not nodes:
        raise ValueError(f"layer: got {path!r}, wanted a model with a ConvTranspose node in its main graph")
    if any(0 in known.get(node.input[0], (0, ()))[1] for node in nodes if node.input):
        for name, kind in inputs.items():
            shape = [each.dim_value or each.dim_param or None for each in kind.tensor_type.shape.dim]
            arguments.check_sizes(name, shape)
    names = [node.name or next(iter(node.output), f"node {n}") for n, node in enumerate(nodes, 1)]
    return [(name, _of_node, onnx, node, name, known, opset) for name, node in zip(names, nodes, strict=True)]


def _fill_in(name, kind, sizes):
    """Set the sizes of a model's input to ``sizes``; if these are None, set an unknown batch to 1."""
    tensor = kind.tensor_type
    if sizes is None:
        if tensor.shape.dim and not tensor.shape.dim[0].dim_value:
            tensor.shape.dim[0].dim_value = 1
        return
    if not kind.HasField("tensor_type"):
        raise ValueError(f"--shape: got {name!r}, which is not a tensor; wanted an input that is a tensor")
    if not tensor.HasField("shape"):
        for _ in sizes:
            tensor.shape.dim.add()
    if len(tensor.shape.dim) != len(sizes):
        raise ValueError(f"--shape: got rank {len(sizes)} for {name!r}, wanted the model's rank, {len(tensor.shape.dim)}")
    for dim, size in zip(tensor.shape.dim, sizes, strict=True):
        dim.dim_value = size


def _of_node(onnx, node, name, known, opset):
    if len(node.input) < 2:
        raise ValueError(f"inputs: got {len(node.input)}, wanted at least 2, data and weights")
    (_, data), (kind, filter) = (known.get(each, (0, ())) for each in node.input[:2])
    if len(filter) < 3 or len(data) != len(filter) or 0 in (*data, *filter):
        raise ValueError(
            f"input {node.input[0]!r}: got shape {data} with unknown sizes (0); "
            f"wanted known sizes: set those of the model's inputs with --shape NAME=N,C,..."
        )
    dtypes = {onnx.helper.np_dtype_to_tensor_dtype(dtype): dtype for dtype in NUMPY_DTYPE.values()}
    if kind not in dtypes:
        got = onnx.TensorProto.DataType.Name(kind) if kind in onnx.TensorProto.DataType.values() else kind
        raise TypeError(f"weights: got dtype {got}, wanted one of {', '.join(NUMPY_DTYPE)}")
    given = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    given = {key: value.decode() if isinstance(value, bytes) else value for key, value in given.items()}
    if unknown := sorted(given.keys() - _ATTRIBUTES):
        raise ValueError(f"attributes: got {unknown}, wanted only {', '.join(sorted(_ATTRIBUTES))}")
    attributes = onnx_rules.attributes(np.broadcast_to(np.zeros((), dtypes[kind]), filter), **given, opset=opset)
    return Layer(name, data, filter, attributes._asdict(), padding.ONNX, check.DTYPES[dtypes[kind]], "NCX")
