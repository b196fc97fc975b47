"""Tests of the depthwise algorithm against the float64 definition in cases.py."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import DTYPES, ISAS, NO_CACHES, Case, beside_nan, checked_on_threads, on_threads, operator, pretend, run, using_isa

import convt
from convt import _core
from convt._base.problem import Problem
from convt._model import machine
from convt.algorithms import depthwise, rows

each_isa = pytest.mark.parametrize("isa", ISAS)


def _random(rng, **fixed):
    """Return a random case of small groups: few channels, strides up to the kernel and beyond, windows that cut the first and
    last cell."""
    rank = int(rng.integers(1, 4))
    pick = lambda *values: tuple(int(v) for v in rng.choice(values, rank))  # noqa: E731
    case = Case(
        groups=int(rng.choice([1, 2, 3, 4, 7, 12, 20, 33])), ci=int(rng.choice([1, 1, 2, 5])),
        co=int(rng.choice([1, 1, 2, 3, 4, 7])), batch=int(rng.choice([0, 1, 1, 2])),
        in_sizes=pick(1, 2, 5, 11), kernel=pick(1, 2, 3, 5, 8), strides=pick(1, 2, 3, 8),
        dilations=pick(1, 1, 1, 2), pads_begin=pick(0, 1, 2), pads_end=pick(0, 1, 3), output_padding=pick(0, 0, 2),
        bias=bool(rng.integers(2)), seed=int(rng.integers(1000)), **fixed,
    )  # fmt: skip
    return case if min(case.out_shape[1:]) >= 1 else _random(rng, **fixed)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("non_temporal", [False, True])
def test_small_groups(dtype, isa, non_temporal):
    rng = np.random.default_rng(list(DTYPES).index(dtype))
    with pretend(**(dict(depthwise_non_temporal=0) if non_temporal else {})):
        for _ in range(60):
            case = _random(rng, dtype=dtype, data_format=rng.choice(["NXC", "NXC", "NCX"]).item())
            arrays = case.arrays()
            with using_isa(isa):
                checked_on_threads(case, operator(case, *arrays[1:], algorithm="depthwise"), arrays)


@each_isa
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("stride", [1, 2, 3, 5])
@pytest.mark.parametrize("channels", [1, 2, 3, 5, 6, 7, 9, 12, 20, 21, 24, 33, 40, 49, 100])
def test_channels_that_fill_no_vector(channels, stride, past, isa, request):
    """Check cells of several j, rows whose length is not a multiple of a cell, and rows of one pixel."""
    if past:
        request.getfixturevalue("non_temporal_stores")
    for sizes in ((2, 1), (2, 2), (2, 19), (1, 385)):
        case = Case(
            groups=channels, in_sizes=sizes, kernel=(2, 5), strides=(2, stride), pads_begin=(0, 1), pads_end=(0, 2),
            seed=sizes[1],
        )  # fmt: skip
        arrays = case.arrays()
        with using_isa(isa):
            case.check(run(case, *arrays, algorithm="depthwise"), *arrays)


@each_isa
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_apart_by_the_dilation(dtype, past, isa, request):
    """Check stride 1 with dilation."""
    if past:
        request.getfixturevalue("non_temporal_stores")
    channels = [(16, 1, 1), (13, 1, 1), (20, 1, 1), (64, 1, 1), (1, 16, 16), (2, 4, 16), (4, 8, 8), (5, 2, 8), (3, 5, 4)]
    rng = np.random.default_rng(list(DTYPES).index(dtype))
    for groups, ci, co in channels:
        dilation, kernel = int(rng.integers(2, 5)), int(rng.choice([2, 3, 4, 6]))
        size = 2 * dilation**2 + int(rng.integers(0, 40))
        case = Case(
            groups=groups, ci=ci, co=co, batch=2, in_sizes=(2, size), kernel=(int(rng.integers(1, 4)), kernel),
            dilations=(1, dilation), pads_begin=(0, int(rng.integers(0, 5))), pads_end=(0, int(rng.integers(0, 5))),
            data_format=rng.choice(["NXC", "NXC", "NCX"]).item(), dtype=dtype, seed=size,
        )  # fmt: skip
        arrays = case.arrays()
        with using_isa(isa):
            checked_on_threads(case, operator(case, *arrays[1:], algorithm="depthwise"), arrays)


@pytest.mark.parametrize("size", [97, 200, 385])
def test_blocks_that_reach_beyond_the_row(size, non_temporal_stores):
    """Check blocks of equal size whose last one reaches past the end of the row."""
    case = Case(groups=24, in_sizes=(size,), kernel=5, strides=2, pads_begin=1, pads_end=2, seed=size)
    arrays = case.arrays()
    for threads in (1, 2, 3, 4, 5):
        with convt.num_threads(threads):
            case.check(run(case, *arrays, algorithm="depthwise"), *arrays)


@each_isa
@pytest.mark.parametrize("kernel, stride", [(3, 2), (4, 2), (2, 1), (3, 1), (4, 3), (5, 3), (5, 2)])
def test_terms_that_share_what_is_picked(kernel, stride, isa):
    """Check phases of one to three terms against the definition, and that the division of rows among threads does not change
    the bits."""
    rng = np.random.default_rng(kernel * stride)
    sizes = {(2, 2, 4): 45, (3, 4, 4): 18, (8, 3, 3): 7, (8, 8, 4): 4, (10, 8, 8): 5, (36, 2, 2): 3, (3, 2, 32): 12}
    for (groups, ci, co), width in sizes.items():
        data = rng.standard_normal((1, 3, width, groups * ci), np.float32)
        data[0, 1, width // 2, ci] = np.inf  # the first in-channel of the second group
        filter = rng.standard_normal((3, kernel, groups * ci, co), np.float32)
        keywords = {"strides": (2, stride), "pads_begin": (1, 1), "pads_end": (0, 1), "groups": groups}
        want = convt.conv_transpose(data, filter, backend="reference", **keywords)
        keywords |= {"backend": "native", "algorithm": "depthwise"}
        with using_isa(isa):
            got = on_threads(lambda: convt.conv_transpose(data, filter, **keywords), (1, 2, 3, 7))  # noqa: B023
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def _check_threads(case, arrays, data):
    checked_on_threads(case, operator(case, *arrays[1:], algorithm="depthwise"), arrays, data, (1, 3))


@each_isa
@pytest.mark.parametrize("groups, ci, co", [(20, 1, 1), (70, 1, 1), (2, 8, 8), (3, 4, 8), (3, 20, 16), (2, 32, 16)])
@pytest.mark.parametrize("kernel, stride", [(3, 2), (4, 2), (5, 1), (7, 1), (12, 1), (5, 2), (6, 3)])
def test_ends_that_skip_pixels(kernel, stride, groups, ci, co, isa):
    for width in (1, 2, 4, 9, 29, 60):
        case = Case(
            groups=groups, ci=ci, co=co, in_sizes=(4, width), kernel=(5, kernel), strides=(1, stride),
            pads_begin=(1, width % 3), pads_end=(2, 0), output_padding=(0, stride - 1), seed=width,
        )  # fmt: skip
        arrays = case.arrays()
        with using_isa(isa):
            _check_threads(case, arrays, beside_nan(arrays[0], 20))


@each_isa
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups, ci, co", [(4, 8, 8), (5, 4, 8), (3, 2, 4), (33, 6, 4), (5, 16, 16), (3, 5, 12), (7, 4, 2)])
def test_groups_that_fill_vectors(groups, ci, co, dtype, isa):
    """Check phases with one to many terms, equal or not, numbers of groups and of j that are not multiples of a vector, and
    outputs by non-temporal stores. The division of rows among threads must not change the bits."""
    rng = np.random.default_rng(groups)
    axes = ((4, 2, 1), (3, 2, 1), (3, 1, 2), (5, 1, 1), (2, 2, 1), (2, 3, 1), (5, 2, 2), (30, 1, 1), (2, 2, 3))
    for kernel, stride, dilation in axes:
        case = Case(
            dtype=dtype, groups=groups, ci=ci, co=co, in_sizes=(3, int(rng.integers(1, 40))), kernel=(3, kernel),
            strides=(1, stride), dilations=(1, dilation), pads_begin=(1, int(rng.integers(2))), pads_end=(1, 0),
            activation=rng.choice([None, "relu", "tanh"]), seed=kernel, data_format=rng.choice(["NXC", "NXC", "NCX"]).item(),
        )  # fmt: skip
        arrays = case.arrays()
        with using_isa(isa):
            op = operator(case, *arrays[1:], algorithm="depthwise")
            results = {checked_on_threads(case, op, arrays, threads=(1, 2))}
            assert results == {checked_on_threads(case, op, arrays, threads=(3, 7), depthwise_non_temporal=0)}


@each_isa
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_rows_whose_weights_stay_in_registers(rows, dtype, isa):
    """Check one to three terms of one to three input rows, and more of both."""
    rng = np.random.default_rng(rows)
    shapes = [(kernel, stride) for stride in (1, 2, 3) for kernel in range(stride, 4 * stride + 1)] + [(13, 1), (12, 2)]
    for kernel, stride in shapes:
        for channels in (16, 33, 112):
            case = Case(
                dtype=dtype, groups=channels, in_sizes=(3, int(rng.choice([3, 4, 5, 6, 9, 23]))), kernel=(rows, kernel),
                strides=(1, stride), pads_begin=(0, int(rng.integers(3))), pads_end=(0, int(rng.integers(3))),
                activation=rng.choice([None, "relu"]), seed=kernel,
            )  # fmt: skip
            if min(case.out_shape[1:]) < 1:
                continue
            arrays = case.arrays()
            with using_isa(isa):
                new = lambda: operator(case, *arrays[1:], algorithm="depthwise")  # noqa: B023, E731
                assert len({checked_on_threads(case, new(), arrays, **more) for more in ({}, *NO_CACHES)}) == 1


@each_isa
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("far", [False, True])
def test_ends_of_rows_take_nothing_from_outside(far, width, isa, request):
    """Check that weights that are not finite are not multiplied by zeros beside the image."""
    if far:
        request.getfixturevalue("no_caches")
    shapes = [(kernel, stride) for stride in (1, 2, 3) for kernel in range(1, 7)]
    for (kernel, stride), channels in itertools.product(shapes, (16, 33)):
        rng = np.random.default_rng(kernel)
        for begin, end, more in ((0, 0, 0), (1, 1, 0), (1, 0, stride - 1), (2, 1, 0), (0, 3, 0)):
            if (width - 1) * stride + kernel + more - begin - end < 1:
                continue
            data = rng.integers(-3, 4, (1, 3, width, channels)).astype(np.float32)
            filter = rng.integers(-3, 4, (3, kernel, channels, 1)).astype(np.float32)
            filter[1, 0, 3], filter[2, -1, 5], data[0, 1, -1, 7] = np.inf, np.nan, -np.inf
            keywords = {"strides": (1, stride), "pads_begin": (1, begin), "pads_end": (1, end), "groups": channels}
            keywords["output_padding"] = (0, more)
            want = convt.conv_transpose(data, filter, backend="reference", **keywords)
            with using_isa(isa):
                got = convt.conv_transpose(data, filter, backend="native", algorithm="depthwise", **keywords)
            np.testing.assert_array_equal(got, want)


@each_isa
@pytest.mark.parametrize("channels", [1, 2, 4, 8, 12])
@pytest.mark.parametrize("kernel, stride", [(3, 2), (5, 2), (5, 4), (6, 4), (7, 4), (5, 1)])
def test_lanes_without_a_tap_take_nothing_from_its_input(kernel, stride, channels, isa):
    data = np.ones((1, 2, 11, channels), np.float32)
    data[0, :, 4, 0], data[0, 1, 9, -1] = np.inf, np.nan
    filter = np.ones((2, kernel, channels, 1), np.float32)
    keywords = {"strides": (1, stride), "groups": channels}
    want = convt.conv_transpose(data, filter, backend="reference", **keywords)
    with using_isa(isa):
        got = convt.conv_transpose(data, filter, backend="native", algorithm="depthwise", **keywords)
    np.testing.assert_array_equal(got, want)


@each_isa
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_phase_without_a_tap_takes_nothing_from_its_input(value, isa):
    """Check that an infinite input is not multiplied by a zero weight that fills a cell."""
    for groups, ci, co in ((3, 1, 1), (1, 1, 1), (4, 5, 2), (2, 2, 3)):
        data = np.ones((1, 9, groups * ci), np.float32)
        data[0, 4] = value
        filter = np.ones((3, groups * ci, co), np.float32)
        with using_isa(isa):
            got = convt.conv_transpose(data, filter, strides=2, groups=groups, algorithm="depthwise")
        want = np.ones((1, 19, groups * co), np.float32) * ci
        want[0, 2:-2:2] *= 2  # two taps reach these outputs
        want[0, 8:11] = value
        np.testing.assert_array_equal(got, want)


@each_isa
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("groups, ci, co", [(4, 1, 1), (12, 1, 1), (20, 1, 1), (25, 1, 1), (2, 3, 2), (4, 5, 2), (6, 4, 4)])
@pytest.mark.parametrize("kernel, stride, dilation", [(3, 2, 1), (12, 2, 1), (9, 2, 1), (5, 2, 3), (7, 1, 3), (8, 3, 1)])
def test_two_pixels_share_a_vector(kernel, stride, dilation, groups, ci, co, dtype, isa):
    """Check channels that fill half a vector or one and a half vectors, in rows with and without a partial block."""
    for width in (1, 2, 3, 7, 8, 9, 16, 31, 33, 48, 700):
        case = Case(
            groups=groups, ci=ci, co=co, in_sizes=(3, width), kernel=(5, kernel), strides=(1, stride), dilations=(1, dilation),
            pads_begin=(2, width % 3), pads_end=(2, 0), activation="relu" if width % 2 else None, dtype=dtype, seed=width,
        )  # fmt: skip
        arrays = case.arrays()
        with using_isa(isa):
            _check_threads(case, arrays, beside_nan(arrays[0]))


@each_isa
@pytest.mark.parametrize(
    "ci, co, kernel, stride", [(1, 1, 32, 16), (1, 1, 37, 16), (1, 1, 40, 20), (3, 1, 16, 8), (2, 3, 12, 5)]
)
def test_cells_of_one_group(ci, co, kernel, stride, isa):
    """Check cells whose lanes all multiply the same input, which is read in place."""
    for width, begin in itertools.product((1, 2, 9, 40), (0, 3, stride)):
        case = Case(
            groups=1, ci=ci, co=co, in_sizes=(4, width), kernel=(3, kernel), strides=(1, stride), pads_begin=(1, begin),
            pads_end=(1, width % 3), seed=width,
        )  # fmt: skip
        arrays = case.arrays()
        for step in (1, 2):
            with using_isa(isa):
                case.check(operator(case, *arrays[1:], algorithm="depthwise")(beside_nan(arrays[0], 1, step, 1)), *arrays)


@each_isa
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("groups, ci, co", [(2, 9, 1), (8, 4, 1), (8, 8, 1), (8, 9, 1), (15, 8, 1), (18, 9, 1), (7, 15, 2)])
def test_inputs_that_are_far_apart(groups, ci, co, dtype, isa):
    """Check a vector of lanes whose inputs lie in one vector of the data, in two to eight vectors, or in more."""
    for width, stride in ((1, 2), (5, 2), (9, 1)):
        case = Case(
            groups=groups, ci=ci, co=co, in_sizes=(2, width), kernel=(2, 3), strides=(1, stride), pads_begin=(0, 1),
            pads_end=(1, 0), dtype=dtype, seed=width,
        )  # fmt: skip
        arrays = case.arrays()
        for step in (1, 2):
            with using_isa(isa):
                _check_threads(case, arrays, beside_nan(arrays[0], step=step))


@each_isa
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rows_read_backwards_are_told_apart(dtype, isa):
    """Check rows on an axis that runs backwards."""
    for shift in range(3):
        whole = np.arange(8 * (1 + shift), dtype=dtype).reshape(8, 1 + shift) % 5
        data = whole[::-1, :1][None, :, :, None]  # one pixel per row
        filter = np.arange(1, 13, dtype=dtype).reshape(3, 4, 1, 1)
        with using_isa(isa):
            got = convt.conv_transpose(data, filter, algorithm="depthwise")
            want = convt.conv_transpose(np.ascontiguousarray(data), filter, backend="reference")
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("step", [1 << 58, -(1 << 58), 1 << 61])
@pytest.mark.parametrize("channels", [3, 32])
def test_a_single_pixel_whose_axis_has_any_stride(channels, step):
    """Check an axis of one pixel with any stride."""
    data = np.lib.stride_tricks.as_strided(np.ones((1, 1, channels), np.float32), strides=(128, step, 4))
    filter = np.arange(3, dtype=np.float32)[:, None, None] + np.ones((3, channels, 1), np.float32)
    for more in ({}, {"dilations": 1 << 11}, {"strides": 1 << 10}):
        keywords = {"groups": channels, **more}
        got = convt.conv_transpose(data, filter, algorithm="depthwise", **keywords)
        want = convt.conv_transpose(np.ones((1, 1, channels), np.float32), filter, backend="reference", **keywords)
        np.testing.assert_array_equal(got, want)


@each_isa
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("non_temporal", [False, True])
@pytest.mark.parametrize(
    ("groups", "ci", "co", "kernel", "strides", "sizes"),
    [
        (5, 1, 1, (3, 4), (2, 2), (5, 300)),  # rows of outputs in several parts
        (600, 1, 1, (4,), (2,), (23,)),  # lanes in several tasks
        (9, 1, 1, (1, 6), (1, 1), (2, 90)),  # many terms
        (3, 1, 1, (2, 2), (3, 3), (4, 7)),  # phases that no tap reaches
        (33, 4, 16, (3, 3), (2, 2), (6, 40)),  # groups that fill vectors
        (1, 64, 3, (5, 5), (3, 3), (6, 70)),  # few out-channels: dot products
    ],
)
def test_16_bits_are_those_of_float32_rounded(groups, ci, co, kernel, strides, sizes, non_temporal, dtype, isa):
    dtype, rng = DTYPES[dtype][0], np.random.default_rng(groups)
    data = rng.standard_normal((2, *sizes, groups * ci)).astype(dtype)
    filter = rng.standard_normal((*kernel, groups * ci, co)).astype(dtype)
    bias = rng.standard_normal(groups * co).astype(dtype)
    with pretend(**(dict(depthwise_non_temporal=0) if non_temporal else {})), using_isa(isa):
        for activation in (None, "relu", "gelu"):
            keywords = dict(groups=groups, strides=strides, pads_end=1, algorithm="depthwise", activation=activation)
            want = convt.conv_transpose(*(each.astype(np.float32) for each in (data, filter, bias)), **keywords).astype(dtype)
            np.testing.assert_array_equal(convt.conv_transpose(data, filter, bias, **keywords), want)
            around = np.full((*want.shape[:-1], want.shape[-1] + 3), 7, dtype)
            convt.conv_transpose(data, filter, bias, out=around[..., 1:-2], **keywords)
            np.testing.assert_array_equal(around[..., 1:-2], want)
            assert (around[..., :1] == 7).all() and (around[..., -2:] == 7).all()


def test_a_window_that_begins_beyond_64_bits_is_left_to_direct():
    data, filter = np.arange(1.0, 29).reshape(1, 7, 4), np.ones((1, 4, 1))
    far = {"strides": 2**62, "groups": 4, "output_shape": (3,)}  # the outputs in the middle: the fourth pixel is at 3 * 2**62
    got = convt.conv_transpose(data, filter, **far)
    assert got.tolist() == [[[0] * 4, [13, 14, 15, 16], [0] * 4]]
    with pytest.raises(ValueError, match="depthwise"):
        convt.conv_transpose(data, filter, **far, algorithm="depthwise")


@each_isa
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_a_row_that_end_beside_a_run(dtype, isa):
    """Check parts of a row that are stored at once and end beside a run of few outputs."""
    channels = 65  # a number for which pixels share cache lines
    rng = np.random.default_rng(0)
    filter = rng.integers(1, 4, (3, channels, 1)).astype(DTYPES[dtype][0])
    for size in (*range(2, 40), *range(110, 124)):  # a part is 8 j, or 120 j for 16-bit types
        data = rng.integers(1, 5, (1, size, channels)).astype(filter.dtype)
        for more in ({"output_padding": 9}, {"output_shape": (size + 15,)}, {"pads_begin": 3, "output_padding": 4}):
            keywords = {"groups": channels, **more}
            with using_isa(isa), pretend(depthwise_non_temporal=0), convt.num_threads(1):
                got = convt.ConvTranspose(filter, algorithm="depthwise", **keywords)(data)
            np.testing.assert_array_equal(got, convt.conv_transpose(data, filter, backend="reference", **keywords))


def test_no_images_and_no_outputs():
    case = Case(groups=3, batch=0, in_sizes=(4, 4), kernel=3, strides=2)
    for one in (case, replace(case, batch=1, in_sizes=(0, 4)), replace(case, batch=1, pads_begin=(9, 0))):
        arrays = one.arrays()
        one.check(run(one, *arrays, algorithm="depthwise"), *arrays)


@each_isa
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("co", [1, 2, 3, 4])
def test_few_out_channels(co, dtype, isa):
    """Check vectors over in-channels: whole and partial tiles, sliding and dilated phases, pixels that are not adjacent or
    lie outside the input, and arbitrary windows. The bits must be the same for any number of threads and with non-temporal
    stores."""
    rng = np.random.default_rng(co)
    with using_isa(isa):
        fits = co <= _core.kernel_info(dtype)["vl"]  # a tile has all channels of one j
    for _ in range(30):
        case = _random(rng, dtype=dtype, activation=rng.choice([None, "relu", "tanh"]))
        in_sizes = (*case.in_sizes[:-1], case.in_sizes[-1] + int(rng.choice([0, 15, 30])))
        several = any(k > s and n > 1 for k, s, n in zip(case.kernel, case.strides, in_sizes, strict=True))  # several taps
        groups = int(rng.choice([1, 1, 3]))
        ci = int(rng.choice([16, 48])) if fits and several and groups == 1 else 16
        case = replace(case, groups=groups, ci=ci, co=co, in_sizes=in_sizes)
        arrays = case.arrays()
        wide = np.zeros((*arrays[0].shape[:-1], arrays[0].shape[-1] + 3), arrays[0].dtype)
        wide[..., 1:-2] = arrays[0]
        results = set()
        with using_isa(isa):
            op = operator(case, *arrays[1:], algorithm="depthwise")
            for limits, data in itertools.product(({}, {"depthwise_non_temporal": 0}), (arrays[0], wide[..., 1:-2])):
                results.add(checked_on_threads(case, op, arrays, data, (1, 3), **limits))
        assert len(results) == 1


@each_isa
@pytest.mark.parametrize("co", [1, 3])
def test_few_out_channels_take_nothing_from_outside(co, isa):
    for kernel, stride, dilation, width in ((3, 1, 1, 20), (5, 1, 1, 3), (5, 2, 1, 17), (4, 3, 1, 9), (3, 1, 2, 18)):
        data, filter = np.ones((1, 3, width, 16), np.float32), np.ones((3, kernel, 16, co), np.float32)
        data[0, 1, 2, 3], data[0, 2, -1, -1], filter[0, -1, 5, 0], filter[2, 0, 0, -1] = np.inf, np.nan, np.nan, -np.inf
        keywords = {"strides": (1, stride), "dilations": (1, dilation), "pads_begin": 1, "pads_end": (1, 0)}
        want = convt.conv_transpose(data, filter, backend="reference", **keywords)
        with using_isa(isa):
            got = convt.conv_transpose(data, filter, algorithm="depthwise", **keywords)
        np.testing.assert_array_equal(got, want)


def _problem(planar=False, groups=24, ci=1, co=1, in_sizes=(20, 30), kernel=(4, 4), stride=2, dtype="float32", dilation=1):
    rank = len(in_sizes)
    out = tuple((n - 1) * stride + dilation * (k - 1) - 1 for n, k in zip(in_sizes, kernel, strict=True))
    return Problem(
        dtype, 1, groups, ci, co, in_sizes, kernel, (stride,) * rank, (dilation,) * rank, (1,) * rank, out, planar=planar
    )  # fmt: skip


@pytest.mark.parametrize("algorithm", [depthwise, rows])
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_schedules_are_values(algorithm, threads):
    here, stages = machine.current(), algorithm.STAGES
    for fixed in ({}, {"groups": 3, "ci": 4, "co": 2}, {"groups": 1, "ci": 8, "co": 8, "stride": 1}, {"groups": 300}):
        problem = _problem(planar=algorithm is rows, **fixed)
        found = stages.schedule(problem, here, "vectors", threads, True)
        assert found == stages.schedule(problem, here, "vectors", threads, True) and hash(found) == hash(found)
        assert found.problem == problem and found.threads in (1, threads)
        assert eval(str(found.problem), {"Problem": Problem}) == problem
        assert {"kept", "taps", "sources", "weights"} <= {name for name, _, _ in found.workspace.regions}
        other = stages.schedule(problem._replace(in_sizes=(20, 31)), here, "vectors", threads, True)
        assert other != found and other.form == found.form
        assert 0 < stages.least(problem, here, "vectors") <= stages.cost(found, here) < np.inf


@pytest.mark.parametrize("algorithm", [depthwise, rows])
def test_what_an_algorithm_does_not_do_has_no_schedule(algorithm):
    here, stages = machine.current(), algorithm.STAGES
    problem = _problem(groups=1, ci=128, co=64)
    assert stages.schedule(problem, here, "vectors", 2, True) is None
    assert stages.least(problem, here, "vectors") == np.inf


@each_isa
@pytest.mark.parametrize(
    "kernel, stride, dilation, co", [(300, 7, 1, 1), (300, 6, 4, 2), (90, 1, 1, 2), (211, 1, 3, 1), (40, 20, 3, 3)]
)
def test_long_filters(kernel, stride, dilation, co, isa):
    """Check long filters. Their runs share terms, and phases are cut together only if this does not make too many runs."""
    case = Case(groups=5, co=co, in_sizes=(37,), kernel=kernel, strides=stride, dilations=dilation, pads_begin=3, pads_end=2)
    arrays = case.arrays()
    with using_isa(isa):
        case.check(run(case, *arrays, algorithm="depthwise"), *arrays)


@each_isa
@pytest.mark.parametrize("channels", [3, 6, 12])
def test_cells_of_pixels_that_are_apart(channels, isa):
    case = Case(groups=channels, in_sizes=(3, 21), kernel=(3, 4), strides=2, pads_begin=1, pads_end=(0, 1))
    data, filter, bias = case.arrays(exact=False)
    with using_isa(isa):
        op = operator(case, filter, bias, algorithm="depthwise")
        want = op(data)
        apart = np.full((*want.shape[:2], 2 * want.shape[2], channels), np.nan, np.float32)
        op(np.repeat(data, 2, axis=2)[:, :, ::2], apart[:, :, ::2])
    np.testing.assert_array_equal(apart[:, :, ::2], want)
    assert np.isnan(apart[:, :, 1::2]).all()


@each_isa
@pytest.mark.parametrize("outputs", [9, 10, 11, 12])
def test_cells_behind_the_last_tap(isa, outputs):
    rng = np.random.default_rng(0)
    data, filter = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 3, 4), (5, 4, 1)))
    keywords = {"strides": 2, "groups": 2, "output_shape": (outputs,)}
    want = convt.conv_transpose(data, filter, backend="reference", **keywords)
    with using_isa(isa):
        got = convt.ConvTranspose(filter, algorithm="depthwise", **keywords)(data)
    np.testing.assert_array_equal(got, want)
