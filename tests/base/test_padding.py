"""Tests of the padding rules of the three dialects (core, ONNX and OpenVINO), line by line, and of the arguments that each
dialect refuses.

The examples have one dimension: x = [1, 2, 3] and w = [1, 10, 100], so each digit of an output shows which products it sums.
All numbers are small integers, so results are exact and compared exactly.
"""

import cases
import numpy as np
import pytest
from fuzz import oracle
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import convt
import convt.onnx
import convt.openvino

X, W = [1, 2, 3], [1, 10, 100]
FULL = [1, 12, 123, 230, 300]  # stride 1
FULL2 = [1, 10, 102, 20, 203, 30, 300]  # stride 2

# ----------------------------------------------------- one helper for all dialects: NCX data, IOX filter, core's keywords


def core(data, filter, bias=None, **attributes):
    return convt.conv_transpose(data, filter, bias, data_format="NCX", filter_format="IOX", **attributes)


def onnx(data, filter, bias=None, *, pads_begin=0, pads_end=0, auto_pad="NOTSET", groups=1, **attributes):
    rank = filter.ndim - 2
    pads = [*_each(pads_begin, rank), *_each(pads_end, rank)]
    return convt.onnx.conv_transpose(data, filter, bias, pads=pads, auto_pad=auto_pad, group=groups, **attributes)


def openvino(data, filter, bias=None, *, output_shape=None, groups=None, **attributes):
    attributes = {"strides": 1, "pads_begin": 0, "pads_end": 0, "dilations": 1, **attributes}
    function = convt.openvino.convolution_backprop_data
    if groups is not None:
        function = convt.openvino.group_convolution_backprop_data
        filter = filter.reshape(groups, filter.shape[0] // groups, *filter.shape[1:])
    result = function(data, filter, output_shape, **attributes)
    return result if bias is None else result + bias.reshape(-1, *[1] * (result.ndim - 2))


def _each(value, rank):
    return list(value) if isinstance(value, (list, tuple)) else [value] * rank


DIALECTS = {"core": core, "onnx": onnx, "openvino": openvino}
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def line(dialect, x=X, w=W, **attributes):
    """Call a dialect for one batch, one channel and one axis. The arguments and the result are lists."""
    x, w = np.array(x, np.float64).reshape(1, 1, -1), np.array(w, np.float64).reshape(1, 1, -1)
    return DIALECTS[dialect](x, w, **attributes)[0, 0].tolist()


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


# ---------------------------------------------------------------------------------------------------- worked examples


@every_dialect
def test_full_outputs(dialect):
    assert line(dialect) == FULL
    assert line(dialect, strides=2) == FULL2
    assert line(dialect, strides=[2], dilations=[2]) == [1, 0, 12, 0, 123, 0, 230, 0, 300]
    assert line(dialect, strides=2, pads_begin=2, pads_end=1) == FULL2[2:-1]
    assert line(dialect, strides=2, output_padding=1) == [*FULL2, 0]
    # pads_end and output_padding cancel out: no computed output is lost.
    assert line(dialect, strides=2, pads_end=2, output_padding=1) == FULL2[:-1]


BEGIN, END = FULL[1:], FULL[:-1]  # outputs from which the odd pixel of five is cut off


@pytest.mark.parametrize("dialect, auto_pad, expected", [
    ("onnx", "NOTSET", BEGIN), ("onnx", "VALID", BEGIN), ("onnx", "SAME_UPPER", END), ("onnx", "SAME_LOWER", BEGIN),
    ("openvino", None, END), ("openvino", "explicit", END), ("openvino", "valid", END), ("openvino", "same_upper", BEGIN),
    ("openvino", "same_lower", END), ("core", None, BEGIN), ("core", "none", BEGIN), ("core", "notset", BEGIN),
])  # fmt: skip
def test_odd_pixel_of_output_shape(dialect, auto_pad, expected):
    attributes = {} if auto_pad is None else {"auto_pad": auto_pad}
    assert line(dialect, output_shape=[4], **attributes) == expected
    assert line(dialect, output_shape=[3], **attributes) == FULL[1:-1]
    # The odd pixel if three pixels are cut off.
    assert line(dialect, output_shape=[2], **attributes) == (FULL[2:-1] if expected is BEGIN else FULL[1:-2])


@pytest.mark.parametrize("opset", [1, 10, 11, 13, 21, 22, 23])
def test_onnx_odd_pixel_at_every_opset(opset):
    # The text of opset 1 says the opposite; see the docstring of convt.onnx.conv_transpose.
    assert line("onnx", output_shape=[4], opset=opset) == BEGIN
    assert line("onnx", output_shape=[4], auto_pad="SAME_UPPER", opset=opset) == END


def test_core_auto_pad_loses_the_odd_pixel_at_the_end_or_the_beginning():
    # With k = 4 and stride 1, three pixels are cut off.
    w, full = [1, 10, 100, 1000], [1, 12, 123, 1230, 2300, 3000]
    assert line("core", w=w) == full
    assert line("core", w=w, auto_pad="same_upper") == full[1:-2]
    assert line("core", w=w, auto_pad="same_lower") == full[2:-1]
    assert line("core", w=w, auto_pad="valid") == full


@pytest.mark.parametrize("auto_pad, size", [("same_upper", 6), ("same_lower", 6), ("valid", 7)])
def test_core_output_shape_must_agree_with_auto_pad(auto_pad, size):
    alone = line("core", strides=2, auto_pad=auto_pad)
    assert len(alone) == size
    assert line("core", strides=2, auto_pad=auto_pad, output_shape=[size]) == alone
    for other in (size - 1, size + 1):
        with pytest.raises(ValueError, match=rf"^output_shape: got {other} on axis 0 .*wanted {size}"):
            line("core", strides=2, auto_pad=auto_pad, output_shape=[other])


def test_output_shape_beyond_the_scatter():
    # ONNX: zeros at the end if the excess is below the stride.
    assert line("onnx", strides=3, output_shape=[11]) == [1, 10, 100, 2, 20, 200, 3, 30, 300, 0, 0]
    assert line("onnx", strides=3, output_shape=[11], auto_pad="SAME_UPPER")[-3:] == [300, 0, 0]
    with pytest.raises(ValueError, match=r"^output_shape: got 12 on axis 0, wanted less than 12"):
        line("onnx", strides=3, output_shape=[12])
    with pytest.raises(ValueError, match=r"^output_shape: got 6"):
        line("onnx", output_shape=[6])
    # OpenVINO and core: zeros at the end for any excess.
    for auto_pad in (None, "same_upper", "same_lower", "valid"):
        assert line("openvino", output_shape=[9], auto_pad=auto_pad) == [*FULL, 0, 0, 0, 0]
    assert line("core", output_shape=[9]) == [*FULL, 0, 0, 0, 0]


@every_dialect
def test_output_shape_ignores_pads_and_is_never_adjusted(dialect):
    expected = line(dialect, strides=2, output_shape=[6])
    assert len(expected) == 6
    assert line(dialect, strides=2, output_shape=[6], pads_begin=2, pads_end=3) == expected
    assert line(dialect, output_shape=[0]) == []


@every_dialect
def test_output_padding_enters_the_total_of_output_shape(dialect):
    # The full size is 7 + 1 and the wanted size 6, so one output is cut off on either side. The last one is the zero of
    # output_padding.
    assert line(dialect, strides=2, output_padding=1, output_shape=[6]) == FULL2[1:]


@pytest.mark.parametrize(
    "dialect, auto_pad, expected",
    [
        ("onnx", "SAME_UPPER", FULL2[1:]),  # in * s: two are cut off
        ("onnx", "SAME_LOWER", FULL2[1:]),
        ("onnx", "VALID", [*FULL2, 0]),
        ("core", "same_upper", FULL2),  # in * s + op: one is cut off at the end
        ("core", "same_lower", [*FULL2[1:], 0]),
        ("core", "valid", [*FULL2, 0]),
        ("openvino", "same_upper", [*FULL2, 0]),  # pads are 0
        ("openvino", "same_lower", [*FULL2, 0]),
        ("openvino", "valid", [*FULL2, 0]),
    ],
)
def test_auto_pad_without_output_shape(dialect, auto_pad, expected):
    assert line(dialect, strides=2, output_padding=1, auto_pad=auto_pad) == expected


@pytest.mark.parametrize(
    "dialect, expected",
    [
        ("onnx", [1, 0, 0, 2, 0, 0, 3, 0, 0]),  # the size is in * s, with zeros at the end
        ("core", [1, 0, 0, 2, 0, 0, 3]),
        ("openvino", [1, 0, 0, 2, 0, 0, 3]),
    ],
)
@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "same_lower"])
def test_auto_pad_same_of_a_kernel_below_the_stride(dialect, expected, auto_pad):
    assert line(dialect, w=[1], strides=3, auto_pad=auto_pad) == expected


def test_pads_together_with_auto_pad():
    for auto_pad in ("same_upper", "same_lower", "valid"):
        for dialect in ("core", "openvino"):
            with_pads = line(dialect, strides=2, auto_pad=auto_pad, pads_begin=2, pads_end=1)
            assert with_pads == line(dialect, strides=2, auto_pad=auto_pad)
            for bad in ({"pads_begin": [1, 1]}, {"pads_end": -1}):
                with pytest.raises(ValueError, match=r"^pads_"):
                    line(dialect, auto_pad=auto_pad, **bad)
        for pads in ((1, 0), (0, 1)):
            with pytest.raises(ValueError, match=r"^pads: got .* together with auto_pad"):
                line("onnx", auto_pad=auto_pad, pads_begin=pads[0], pads_end=pads[1])
        with pytest.raises(ValueError, match=r"^pads: got"):
            line("onnx", auto_pad=auto_pad, pads_begin=1, output_shape=[4])


@every_dialect
@pytest.mark.parametrize("auto_pad", ["Same_Upper", "same_upper", "SAME_UPPER", "NotSet", "notset", "valid", "VALID"])
def test_auto_pad_in_any_case(dialect, auto_pad):
    assert line(dialect, strides=2, auto_pad=auto_pad) == line(dialect, strides=2, auto_pad=auto_pad.lower())


# ------------------------------------------------------------------------ formulas of the specifications


def window(dialect, size, k, s, d, op, begin, end, auto_pad, output_shape):
    """Return (begin, out) of an axis by the rules of a dialect, or None if they forbid it."""
    axis = {"in_sizes": [size], "kernel": [k], "strides": [s], "dilations": [d], "pads_begin": [begin], "pads_end": [end]}
    axis |= {"output_padding": [op], "auto_pad": auto_pad, "output_shape": None if output_shape is None else [output_shape]}
    try:
        return oracle.windows(axis, dialect)[0]
    except oracle.Invalid:
        return None


AXIS = {
    "size": st.integers(1, 6), "k": st.integers(1, 5), "s": st.integers(1, 4), "d": st.integers(1, 3), "op": st.integers(0, 4),
    "begin": st.integers(0, 5), "end": st.integers(0, 5),
    "auto_pad": st.sampled_from([None, None, "same_upper", "same_lower", "valid"]),
    "output_shape": st.none() | st.integers(0, 24),
}  # fmt: skip


@every_dialect
@settings(max_examples=300)
@given(axis=st.fixed_dictionaries(AXIS))
@example(axis=dict(size=6, k=1, s=4, d=1, op=3, begin=0, end=0, auto_pad=None, output_shape=27))
@example(axis=dict(size=2, k=2, s=1, d=1, op=0, begin=2, end=1, auto_pad=None, output_shape=None))
def test_against_the_formulas(dialect, axis):
    expected = window(dialect, **axis)
    if dialect == "onnx" and axis["auto_pad"]:
        assume(axis["begin"] == axis["end"] == 0 or axis["size"] == 1)  # other cases are refused; a few of these are enough
    x, w = list(range(1, axis["size"] + 1)), [3, 1, 4, 1, 5][: axis["k"]]
    attributes = dict(
        strides=axis["s"], dilations=axis["d"], output_padding=axis["op"], pads_begin=axis["begin"],
        pads_end=axis["end"], output_shape=None if axis["output_shape"] is None else [axis["output_shape"]],
    )  # fmt: skip
    if axis["auto_pad"]:
        attributes["auto_pad"] = axis["auto_pad"]
    if expected is None:
        with pytest.raises(ValueError, match=r": got .*, wanted "):
            line(dialect, x, w, **attributes)
        return
    begin, out = expected
    arrays = np.reshape(x, (1, -1, 1, 1)) * 1.0, np.reshape(w, (1, 1, 1, -1)) * 1.0
    full = cases.scatter(*arrays, (axis["s"],), (axis["d"],))
    assert line(dialect, x, w, **attributes) == cases.window(full, [begin], [out]).ravel().tolist()
    if dialect == "core":
        nat = axis["s"] * (axis["size"] - 1) + (axis["k"] - 1) * axis["d"] + 1
        resolved = convt.resolve((axis["size"],), (axis["k"],), **attributes)
        assert resolved == ((begin,), (nat + axis["op"] - begin - out,), (out,))


# ------------------------------------------------------------------------------------------------------------ resolve


def test_resolve_examples():
    assert convt.resolve((3,), (3,)) == ((0,), (0,), (5,))
    assert convt.resolve((3,), (3,), output_shape=[4]) == ((1,), (0,), (4,))
    assert convt.resolve((3,), (3,), output_shape=4) == ((1,), (0,), (4,))
    assert convt.resolve((3,), (3,), output_shape=[9]) == ((0,), (-4,), (9,))
    assert convt.resolve([32, 32], [4, 4], strides=2, auto_pad="same_lower") == ((1, 1), (1, 1), (64, 64))
    assert convt.resolve((8, 8), (3, 3), strides=2, auto_pad="SAME_LOWER", pads_begin=5) == ((1, 1), (0, 0), (16, 16))
    assert all(type(n) is int for part in convt.resolve(np.array([3]), np.array([3])) for n in part)


def test_resolve_goes_axis_by_axis():
    sizes, kernel, strides, dilations, paddings = (5, 1, 9), (3, 4, 2), (1, 3, 2), (2, 1, 3), (0, 2, 1)
    for auto_pad in (None, "same_upper", "same_lower", "valid"):
        together = convt.resolve(
            sizes, kernel, strides=strides, dilations=dilations, output_padding=paddings, auto_pad=auto_pad
        )
        alone = [
            convt.resolve((n,), (k,), strides=s, dilations=d, output_padding=op, auto_pad=auto_pad)
            for n, k, s, d, op in zip(sizes, kernel, strides, dilations, paddings, strict=True)
        ]
        assert together == tuple(tuple(part[i][0] for part in alone) for i in range(3))


def test_resolve_counts_beyond_64_bits():
    big = 2**62
    assert convt.resolve((big,), (3,), strides=big, auto_pad="valid") == ((0,), (0,), (big * (big - 1) + 3,))


@pytest.mark.parametrize("in_sizes, kernel, attributes, error, match", [
    ((3,), 3, {}, TypeError, "^kernel: got int"), ((3,), "3", {}, TypeError, "^kernel: got str"),
    ((3,), (), {}, ValueError, "^kernel: got no sizes"), ((3,), (0,), {}, ValueError, "^kernel: got 0"),
    ((3, 3), (3,), {}, ValueError, "^in_sizes: got 2 values, wanted 1"), ((-1,), (3,), {}, ValueError, "^in_sizes: got -1"),
    ((3,), (3,), {"strides": 0}, ValueError, "^strides: got 0"), ((3,), (3,), {"strides": 1.0}, TypeError, "^strides: got 1.0"),
    ((3,), (3,), {"pads_begin": 9}, ValueError, "^output size: got -4 on axis 0"),
    ((3,), (3,), {"auto_pad": "same"}, ValueError, "^auto_pad: got 'same'"),
    ((3,), (3,), {"output_shape": [1, 1, 4]}, ValueError, "^output_shape: got 3 values, wanted 1"),
    ((5.0,), (3,), {}, TypeError, "^in_sizes: got 5.0"), ((5,), (3,), {"strides": True}, TypeError, "^strides: got True"),
    ((5,), (3,), {"auto_pad": "valid", "output_shape": (6,)}, ValueError, "^output_shape: got 6"),
])  # fmt: skip
def test_resolve_refuses(in_sizes, kernel, attributes, error, match):
    with pytest.raises(error, match=match):
        convt.resolve(in_sizes, kernel, **attributes)


# ------------------------------------------------------------------------------------------------ bounds and bad input


def test_output_padding_is_bounded_by_onnx_alone():
    assert line("onnx", strides=2, dilations=3, output_padding=2)[-2:] == [0, 0]
    for output_padding, attributes in ((1, {}), (2, {"strides": 2}), (3, {"dilations": 3})):
        with pytest.raises(ValueError, match=r"^output_padding: got . on axis 0, wanted less than max"):
            line("onnx", output_padding=output_padding, **attributes)
    with pytest.raises(ValueError, match=r"^output_padding: got 2 on axis 1"):
        onnx(ones(1, 1, 3, 3), ones(1, 1, 3, 3), strides=[3, 2], output_padding=[2, 2])
    assert line("core", output_padding=4) == line("openvino", output_padding=4) == [*FULL, 0, 0, 0, 0]


def test_bias_where_nothing_reaches():
    y = core(ones(1, 2, 3), ones(2, 2, 1), np.array([5, -7], np.float32), strides=2, output_padding=3)
    assert y.tolist() == [[[7, 5, 7, 5, 7, 5, 5, 5], [-5, -7, -5, -7, -5, -7, -7, -7]]]
    y = onnx(ones(1, 2, 2), ones(2, 2, 1), np.array([5, -7], np.float32), strides=[3], auto_pad="SAME_LOWER")
    assert y.tolist() == [[[7, 5, 5, 7, 5, 5], [-5, -7, -7, -5, -7, -7]]]


@every_dialect
def test_sizes_at_the_edge(dialect):
    assert line(dialect, pads_begin=2, pads_end=3) == []  # size 0 exactly
    assert line(dialect, pads_begin=4) == [300]  # pads larger than the kernel
    assert line(dialect, x=[1], pads_begin=1, pads_end=1) == [10]  # a kernel larger than the output
    with pytest.raises(ValueError, match=r"^output size: got -1 on axis 0"):
        line(dialect, pads_begin=3, pads_end=3)


@every_dialect
def test_empty_arrays(dialect):
    call, bias = DIALECTS[dialect], np.array([5, -7], np.float32)
    assert call(ones(0, 3, 4, 5), ones(3, 2, 3, 3), bias, strides=2).shape == (0, 2, 9, 11)
    for y in (
        call(ones(2, 3, 0), ones(3, 2, 4), bias, strides=2),  # input size 0: (0 - 1) * 2 + 4 = 2
        call(ones(2, 0, 2), ones(0, 2, 1), bias),  # no channels
    ):
        assert y.dtype == np.float32
        assert y.tolist() == [[[5, 5], [-7, -7]]] * 2


@every_dialect
def test_output_shape_is_spatial(dialect):
    def call(value):
        return DIALECTS[dialect](ones(1, 1, 4, 4), ones(1, 1, 3, 3), output_shape=value)

    assert call([6, 5]).shape == call(np.array([6, 5])).shape == call((6, 5)).shape == (1, 1, 6, 5)
    for wrong, error in (
        ([1, 1, 6, 6], ValueError), (6, TypeError), ([6], ValueError), ([6, -1], ValueError), ([6, 6.0], TypeError),
        ([6, True], TypeError), ("66", TypeError), (np.array([[6, 6]]), ValueError), (np.array([6.0, 6.0]), TypeError),
    ):  # fmt: skip
        with pytest.raises(error, match=r"^output_shape: got"):
            call(wrong)


@every_dialect
@pytest.mark.parametrize("auto_pad, error", [("same", ValueError), ("", ValueError), (1, TypeError), (b"VALID", TypeError)])
def test_unknown_auto_pad(dialect, auto_pad, error):
    with pytest.raises(error, match=r"^auto_pad: got .*, wanted"):
        line(dialect, auto_pad=auto_pad)


def test_explicit_is_a_word_of_openvino_only():
    for dialect in ("core", "onnx"):
        with pytest.raises(ValueError, match=r"^auto_pad: got 'explicit'"):
            line(dialect, auto_pad="explicit")


@every_dialect
def test_outputs_that_cannot_exist(dialect):
    with pytest.raises((MemoryError, ValueError), match=r": got .*wanted"):
        line(dialect, strides=2**40)
    with pytest.raises((MemoryError, ValueError), match=r": got .*wanted"):
        DIALECTS[dialect](ones(1, 1, 3, 3), ones(1, 1, 1, 1), strides=2**62)
    with pytest.raises((MemoryError, ValueError), match=r": got .*wanted"):
        DIALECTS[dialect](ones(1, 1, 3, 3), ones(1, 1, 1, 1), output_shape=[2**62, 2**62])
    with pytest.raises(ValueError, match=r"strides: got .*below"):
        line(dialect, strides=2**63)


@every_dialect
@pytest.mark.parametrize("dtype", cases.ALL_DTYPES)
def test_dtype_of_the_result(dialect, dtype):
    y = DIALECTS[dialect](ones(1, 2, 3, dtype=dtype), ones(2, 3, 2, dtype=dtype))
    assert y.dtype == dtype
    assert y.astype(np.float64).tolist() == [[[2, 4, 4, 2]] * 3]


@every_dialect
def test_groups_are_contiguous_blocks(dialect):
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 4, 1)
    w = np.array([1, 10, 100, 1000, 2, 20, 200, 2000], np.float32).reshape(4, 2, 1)  # (in, out per group, kernel)
    y = DIALECTS[dialect](x, w, groups=2)
    assert y.ravel().tolist() == [1 + 2 * 100, 10 + 2 * 1000, 3 * 2 + 4 * 200, 3 * 20 + 4 * 2000]
