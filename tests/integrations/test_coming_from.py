"""Tests of docs/coming-from.md: the arguments in its tables give the numbers of the other libraries.

The functions `keras_pads` and `jax_pads` are those of the page. Libraries that are not installed are skipped. MATLAB, whose
definition is written out here, and the layouts of weights need no library.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import convt

TEXT = (Path(__file__).parents[2] / "docs/coming-from.md").read_text(encoding="utf-8")
PAGE = {}
for block in re.findall(r"^```python\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE):
    exec(re.sub(r"^print.*\n", "", block, flags=re.MULTILINE), PAGE)
RANDOM = np.random.default_rng(5)


def numbers(*shape):
    return RANDOM.integers(-4, 5, shape).astype(np.float32)


def reach(kernel, dilation):
    return dilation * (kernel - 1) + 1


def agree(ours, theirs):
    np.testing.assert_allclose(ours, np.asarray(theirs), rtol=1e-5, atol=1e-5)


def count_on_page(pattern):
    return int(re.search(pattern, " ".join(TEXT.split()))[1])


@pytest.mark.parametrize("channels_last", [False, True])
def test_pytorch(channels_last):
    torch = pytest.importorskip("torch")
    x, w = torch.from_numpy(numbers(2, 6, 5, 4)), torch.from_numpy(numbers(6, 2, 3, 2))
    layer = {"stride": (2, 3), "padding": (1, 0), "dilation": (2, 1), "output_padding": (1, 2), "groups": 3}
    want = torch.nn.functional.conv_transpose2d(x, w, **layer)
    data, layout = (x.permute(0, 2, 3, 1), "NXC") if channels_last else (x, "NCX")
    y = convt.conv_transpose(
        data, w, data_format=layout, filter_format="IOX", pads_begin=(1, 0), pads_end=(1, 0), strides=(2, 3), dilations=(2, 1),
        groups=3, output_padding=(1, 2),
    )  # fmt: skip
    agree(y.transpose(0, 3, 1, 2) if channels_last else y, want)


def keras_cases():
    sizes = itertools.product((1, 2, 3, 4, 5), (1, 2, 3), (1, 2, 5), ("same", "valid"))
    found = [(k, s, 1, size, padding, more) for k, s, size, padding in sizes for more in (None, *range(s))]
    return found + [(k, 1, d, 6, padding, None) for k in (2, 3) for d in (2, 3) for padding in ("same", "valid")]


def test_keras(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    keras = pytest.importorskip("keras", exc_type=ImportError)
    cases = keras_cases()
    assert len(cases) == count_on_page(r"(\d+) combinations of kernels, strides, dilations, sizes, both paddings")
    for kernel, stride, dilation, size, padding, more in cases:
        x, w = numbers(2, size, 3), numbers(kernel, 2, 3)
        layer = keras.layers.Conv1DTranspose(
            2, kernel, stride, padding, output_padding=more, dilation_rate=dilation, use_bias=False
        )
        layer.build(x.shape)
        layer.set_weights([w])
        long = reach(kernel, dilation)
        pads = PAGE["keras_pads"](long, stride, size, layer.compute_output_shape(x.shape)[1])
        if more is None and dilation == 1:
            assert layer.compute_output_shape(x.shape)[1] == size * stride + (padding == "valid") * max(kernel - stride, 0)
        y = convt.conv_transpose(x, w, strides=stride, dilations=dilation, filter_format="XOI", **pads)
        agree(y, layer(x))


def jax_cases():
    both = itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2), (1, 4), ("SAME", "VALID"), (False, True))
    given = itertools.product((2, 4), (1, 3), (1, 2), (8,), ((0, 0), (1, 2)), (False, True))
    return [*both, *given]


def test_jax():
    jax = pytest.importorskip("jax")
    cases = jax_cases()
    assert len(cases) == count_on_page(r"(\d+) combinations of kernels, strides, dilations, sizes, paddings")
    for kernel, stride, dilation, size, padding, turned in cases:
        x, rhs = numbers(2, size, 3), numbers(kernel, 2, 3) if turned else numbers(kernel, 3, 2)
        want = jax.lax.conv_transpose(
            x, rhs, (stride,), padding if isinstance(padding, str) else [padding], (dilation,),
            dimension_numbers=("NHC", "HIO", "NHC"), transpose_kernel=turned, precision="highest",
        )  # fmt: skip
        pads = PAGE["jax_pads"](reach(kernel, dilation), stride, padding)
        filter, order = (rhs, "XOI") if turned else (rhs[::-1], "XIO")
        if padding == "SAME":
            assert want.shape[1] == size * stride
        y = convt.conv_transpose(x, filter, strides=stride, dilations=dilation, filter_format=order, **pads)
        agree(y, want)


@pytest.mark.parametrize("module", ["linen", "nnx"])
def test_flax(module):
    flax, jax = pytest.importorskip("flax"), pytest.importorskip("jax")
    x, rhs = numbers(1, 5, 3), numbers(4, 3, 2)
    if module == "linen":
        layer = flax.linen.ConvTranspose(2, (4,), strides=(3,), use_bias=False, precision="highest")
        want = layer.apply({"params": {"kernel": rhs}}, x)
    else:
        from flax import nnx

        layer = nnx.ConvTranspose(3, 2, (4,), strides=(3,), use_bias=False, precision="highest", rngs=nnx.Rngs(0))
        layer.kernel[...] = jax.numpy.asarray(rhs)
        want = layer(x)
    agree(convt.conv_transpose(x, rhs[::-1], strides=3, **PAGE["jax_pads"](4, 3, "SAME")), want)


def test_mlx():
    mx = pytest.importorskip("mlx.core", exc_type=ImportError)
    x, weights = numbers(2, 5, 4, 3), numbers(2, 3, 2, 3)
    want = mx.conv_transpose2d(mx.array(x), mx.array(weights), stride=2, padding=1, output_padding=1, stream=mx.cpu)
    y = convt.conv_transpose(
        x, weights.transpose(1, 2, 0, 3), strides=2, filter_format="XOI", pads_begin=1, pads_end=1, output_padding=1
    )
    agree(y, want)


def litert(x, weights, size, stride, same):
    """Compute TRANSPOSE_CONV of TensorFlow Lite in two dimensions, by its reference kernels and by those of XNNPACK."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter", exc_type=ImportError)
    flatbuffers, schema = pytest.importorskip("flatbuffers"), pytest.importorskip("ai_edge_litert.schema_py_generated")
    shape = np.array([len(x), *size, len(weights)], np.int32)
    graph, model, buffers = schema.SubGraphT(), schema.ModelT(), [schema.BufferT()]
    graph.tensors = []
    for number, (array, constant) in enumerate(((shape, True), (weights, True), (x, False), (np.empty(shape), False))):
        tensor, buffer = schema.TensorT(), schema.BufferT()
        buffer.data = np.frombuffer(array.tobytes(), np.uint8) if constant else None
        tensor.shape, tensor.buffer, tensor.name = list(array.shape), len(buffers), f"tensor {number}"
        tensor.type = schema.TensorType.INT32 if array is shape else schema.TensorType.FLOAT32
        graph.tensors.append(tensor)
        buffers.append(buffer)
    options, node, code = schema.TransposeConvOptionsT(), schema.OperatorT(), schema.OperatorCodeT()
    options.padding = schema.Padding.SAME if same else schema.Padding.VALID
    options.strideH = options.strideW = stride
    node.inputs, node.outputs, node.opcodeIndex = [0, 1, 2], [3], 0
    node.builtinOptionsType, node.builtinOptions = schema.BuiltinOptions.TransposeConvOptions, options
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.TRANSPOSE_CONV
    code.version = 1
    graph.inputs, graph.outputs, graph.operators = [2], [3], [node]
    model.version, model.subgraphs, model.operatorCodes, model.buffers = 3, [graph], [code], buffers
    builder = flatbuffers.Builder(0)
    builder.Finish(model.Pack(builder), b"TFL3")
    kernels = interpreter.OpResolverType
    for resolver in (kernels.BUILTIN_REF, kernels.BUILTIN):
        runs = interpreter.Interpreter(model_content=bytes(builder.Output()), experimental_op_resolver_type=resolver)
        runs.allocate_tensors()
        runs.set_tensor(2, x)
        runs.invoke()
        yield runs.get_tensor(3)


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("kernel, stride", [(3, 2), (4, 2), (2, 3), (3, 1)])
def test_tensorflow_lite_and_xnnpack(kernel, stride, same):
    x, weights = numbers(2, 5, 5, 3), numbers(2, kernel, kernel, 3)
    size = 5 * stride if same else 5 * stride + max(kernel - stride, 0)
    pads = PAGE["keras_pads"](kernel, stride, 5, size)
    y = convt.conv_transpose(x, weights.transpose(1, 2, 0, 3), strides=stride, filter_format="XOI", **pads)
    for want in litert(x, weights, (size, size), stride, same):
        agree(y, want)


def test_onednn_weights_with_groups_are_a_view():
    x, goihw = numbers(1, 4, 5, 6), numbers(3, 4, 2, 3, 2)
    y = convt.conv_transpose(x, goihw.transpose(0, 2, 1, 3, 4), filter_format="GIOX", strides=2)
    for group, weights in enumerate(goihw):
        part = convt.conv_transpose(x[..., 2 * group : 2 * group + 2], weights, filter_format="OIX", strides=2)
        agree(y[..., 4 * group : 4 * group + 4], part)


def test_matlab():
    data, weights, (top, bottom, left, right) = numbers(4, 3, 2, 2), numbers(3, 2, 5, 2), (1, 0, 0, 1)
    full = np.zeros((2 * 3 + 3, 2 * 2 + 2, 5, 2), np.float32)
    for i, j in np.ndindex(4, 3):
        full[2 * i : 2 * i + 3, 2 * j : 2 * j + 2] += np.einsum("cn,hwfc->hwfn", data[i, j], weights)
    want = full[top : len(full) - bottom, left : full.shape[1] - right]
    y = convt.conv_transpose(
        data.transpose(3, 0, 1, 2), weights, filter_format="XOI", strides=2, pads_begin=(top, left), pads_end=(bottom, right)
    )
    agree(y.transpose(1, 2, 3, 0), want)
