"""Tests of convt.openvino: the example of the specification, forms of arguments, errors, and random problems compared with
OpenVINO's own runtime.

The padding rules are tested in test_padding.py. The comparison is skipped if the openvino package is not installed.
"""

import numpy as np
import pytest
from cases import ALL_DTYPES
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import convt.openvino

try:
    import openvino
    from openvino import opset1
except ImportError:
    openvino = None

PLAIN = convt.openvino.convolution_backprop_data
GROUPED = convt.openvino.group_convolution_backprop_data
BOTH = pytest.mark.parametrize("function, lead", [(PLAIN, ()), (GROUPED, (1,))], ids=["plain", "grouped"])

REQUIRED = {"strides": [1], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
X = np.array([[[1, 2, 3]]], np.float32)
W = np.array([[[1, 10, 100]]], np.float32)
FULL = [1, 12, 123, 230, 300]


def test_example_of_the_specification():
    # The layer "upsampling_node" of GroupConvolutionBackpropData-1.
    data, filter = np.ones((1, 20, 224, 224), np.float32), np.ones((4, 5, 2, 3, 3), np.float32)
    y = GROUPED(data, filter, dilations=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], strides=[2, 2])
    assert y.shape == (1, 8, 447, 447)
    # One, two or four taps overlap, with five channels each.
    line = np.ones(447)
    line[1::2] = 2
    assert np.array_equal(y, np.broadcast_to(5 * np.outer(line, line), y.shape))


def test_groups_are_the_filters_first_axis():
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 4, 1)
    w = np.array([1, 10, 100, 1000, 2, 20, 200, 2000], np.float32).reshape(2, 2, 2, 1)
    assert GROUPED(x, w, **REQUIRED).ravel().tolist() == [201, 2010, 806, 8060]
    # Without groups, the same numbers have (C_in, C_out) = (4, 2).
    assert PLAIN(x, w.reshape(4, 2, 1), **REQUIRED).ravel().tolist() == [1007, 10070]


@BOTH
@pytest.mark.parametrize(
    "output_shape", [[4], (4,), 4, np.array([4]), np.array([4], np.int32), np.array([4], np.uint8)], ids=repr
)
def test_output_shape_forms(function, lead, output_shape):
    assert function(X, W.reshape(*lead, 1, 1, 3), output_shape, **REQUIRED).tolist() == [[FULL[:-1]]]
    assert function(X, W.reshape(*lead, 1, 1, 3), output_shape=output_shape, **REQUIRED).tolist() == [[FULL[:-1]]]


def test_output_shape_as_a_tensor():
    torch = pytest.importorskip("torch")
    assert PLAIN(torch.tensor(X), torch.tensor(W), torch.tensor([4]), **REQUIRED).tolist() == [[FULL[:-1]]]
    for wrong, error in (
        (torch.tensor([4.0]), TypeError),
        (torch.tensor([True]), TypeError),
        (torch.tensor([[4]]), ValueError),
    ):
        with pytest.raises(error, match=r"^output_shape: got"):
            PLAIN(X, W, wrong, **REQUIRED)


@BOTH
def test_output_padding_is_optional(function, lead):
    w = W.reshape(*lead, 1, 1, 3)
    for nothing in (None, 0, [0]):
        assert function(X, w, output_padding=nothing, **REQUIRED).tolist() == [[FULL]]
    assert function(X, w, output_padding=[2], **REQUIRED).tolist() == [[[*FULL, 0, 0]]]


@BOTH
@pytest.mark.parametrize("name", REQUIRED)
def test_required_keywords(function, lead, name):
    rest = {key: value for key, value in REQUIRED.items() if key != name}
    with pytest.raises(TypeError, match=rf"missing 1 required keyword-only argument: '{name}'"):
        function(X, W.reshape(*lead, 1, 1, 3), **rest)


@BOTH
@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_every_dtype(function, lead, dtype):
    y = function(X.astype(dtype), W.astype(dtype).reshape(*lead, 1, 1, 3), **{**REQUIRED, "pads_end": [2]})
    assert y.dtype == dtype
    assert y.astype(np.float64).tolist() == [[FULL[:3]]]


@pytest.mark.parametrize("function, arguments, error, match", [
    (PLAIN, {"data": X[0]}, ValueError, "data: got rank 2"),
    (PLAIN, {"data": np.repeat(X, 2, 1)}, ValueError, "data: got 2 channels"),
    (PLAIN, {"data": X.astype(np.int32)}, TypeError, "data: got dtype int32"),
    (PLAIN, {"filter": W[0]}, ValueError, "filter: got rank 2"),
    (PLAIN, {"data": X[None]}, ValueError, r"data: got rank 4 .* wanted rank 3 because the filter has 1 spatial axis"),
    (PLAIN, {"filter": W.astype(np.float64)}, TypeError, "data: got dtype float32, wanted float64, the filter's"),
    (PLAIN, {"data": X.tolist()}, TypeError, "data: got list"),
    (PLAIN, {"filter": W[..., :0]}, ValueError, "filter: got an empty kernel axis"),
    (PLAIN, {"filter": W.astype(np.complex64)}, TypeError, "filter: got dtype complex64"),
    (PLAIN, {"filter": W.astype(">f4")}, TypeError, "filter: got dtype .*foreign byte order"),
    (PLAIN, {"strides": None}, TypeError, "strides: got NoneType"), (PLAIN, {"strides": [0]}, ValueError, "strides: got 0"),
    (PLAIN, {"pads_begin": [-1]}, ValueError, "pads_begin: got -1"),
    (PLAIN, {"pads_end": [1, 1]}, ValueError, "pads_end: got 2 values, wanted 1"),
    (PLAIN, {"dilations": [1.5]}, TypeError, r"dilations: got 1\.5"),
    (PLAIN, {"output_padding": [-1]}, ValueError, "output_padding: got -1"),
    (PLAIN, {"output_shape": [1, 1, 4]}, ValueError, "output_shape: got 3 values, wanted 1"),
    (PLAIN, {"output_shape": [-1]}, ValueError, "output_shape: got -1"),
    (PLAIN, {"auto_pad": "same"}, ValueError, "auto_pad: got 'same'"),
    (GROUPED, {"filter": W}, ValueError, "filter: got rank 3 .*GIOX"),
    (GROUPED, {"filter": W.reshape(1, 1, 1, 3)[:0]}, ValueError, "filter: got 0 groups"),
    (GROUPED, {"filter": np.ones((2, 1, 1, 3), np.float32)}, ValueError, "data: got 1 channel "),
])  # fmt: skip
def test_errors(function, arguments, error, match):
    with pytest.raises(error, match=rf"^{match}"):
        function(**{"data": X, "filter": W, **REQUIRED, **arguments})


@st.composite
def problems(draw):
    """Draw (data, filter, attributes, output_shape) of small integers. With groups, the filter has one axis more."""
    rank = draw(st.sampled_from([1, 2, 2, 3]))

    def each(low, high):
        return [draw(st.integers(low, high)) for _ in range(rank)]

    sizes, kernel, strides, dilations, output_padding = each(1, 5), each(1, 4), each(1, 4), each(1, 3), each(0, 2)
    eff = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [s * (n - 1) + e + op for s, n, e, op in zip(strides, sizes, eff, output_padding, strict=True)]
    begin = [draw(st.integers(0, min(3, f - 1))) for f in full]
    end = [draw(st.integers(0, min(3, f - 1 - b))) for f, b in zip(full, begin, strict=True)]  # at least one output
    attributes = dict(
        strides=strides, dilations=dilations, pads_begin=begin, pads_end=end, output_padding=output_padding,
        auto_pad=draw(st.sampled_from(["explicit", "explicit", "same_upper", "same_lower", "valid"])),
    )  # fmt: skip
    groups = draw(st.sampled_from([(), (2,), (3,)]))  # the runtime refuses most grouped filters with one group
    assume(max(kernel) > 1)  # for a kernel of 1, the runtime multiplies matrices and ignores the pads
    output_shape = None
    if draw(st.booleans()):
        output_shape = [draw(st.integers(max(1, f - 5), f + 2)) for f in full]
        # The specification cuts off total // 2 at the beginning. The runtime starts "valid" at 0, and "explicit" at pads_begin,
        # or at 0 if there are groups. They agree only if both starts are equal.
        if attributes["auto_pad"] == "valid" or groups:
            attributes["auto_pad"] = draw(st.sampled_from(["same_upper", "same_lower"]))
        if attributes["auto_pad"] == "explicit":
            attributes["pads_begin"] = [max(f - o, 0) // 2 for f, o in zip(full, output_shape, strict=True)]
    ci, co, batch = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    array = lambda *shape: rng.integers(-8, 9, shape).astype(np.float32)  # noqa: E731
    data, filter = array(batch, ci * (*groups, 1)[0], *sizes), array(*groups, ci, co, *kernel)
    return data, filter, attributes, output_shape


@pytest.mark.skipif(openvino is None, reason="openvino is not installed")
@settings(max_examples=120)
@given(problem=problems())
def test_against_openvino(problem):
    data, filter, attributes, output_shape = problem
    grouped = filter.ndim > data.ndim
    operator = opset1.group_convolution_backprop_data if grouped else opset1.convolution_backprop_data
    target = None if output_shape is None else opset1.constant(np.array(output_shape))
    parameter = opset1.parameter(data.shape, np.float32)
    node = operator(parameter, opset1.constant(filter), output_shape=target, **attributes)
    single = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    expected = openvino.Core().compile_model(openvino.Model([node], [parameter]), "CPU", single)([data])[0]
    y = (GROUPED if grouped else PLAIN)(data, filter, output_shape, **attributes)
    assert y.shape == expected.shape
    assert np.array_equal(y, expected)  # sums of small integers are exact in any order
