"""Tests of the depthwise algorithm: problems that force a branch of its schedule or of its loops, against the definition."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    DATA_FORMATS,
    DTYPES,
    Case,
    check_all_ways,
    checked_on_threads,
    each_isa,
    random_case,
    using_isa,
)

import convt
from convt import _core
from convt._base.problem import Problem
from convt._model import machine
from convt.algorithms import depthwise, rows


def _random(rng):
    """Return a case of small groups: few channels, strides up to the kernel and beyond."""
    groups, ci = int(rng.choice([1, 2, 3, 4, 7, 12, 20, 33])), int(rng.choice([1, 1, 2, 5]))
    co = int(rng.choice([1, 1, 2, 3, 4, 7]))
    return random_case(rng, kernel=(1, 2, 3, 5, 8), strides=(1, 2, 3, 8), groups=groups, ci=ci, co=co)


def small_groups(rng):
    for _ in range(120):
        yield _random(rng)


def channels_that_fill_no_vector(rng):
    """Yield cells of several j, rows whose length is not a multiple of a cell, and rows of one pixel."""
    channels = (1, 2, 3, 5, 6, 7, 9, 12, 20, 21, 24, 33, 40, 49, 100)
    for groups, stride, height in itertools.product(channels, (1, 2, 3, 5), (1, 2)):
        width = int(rng.choice([1, 2, 19, 385]))
        yield Case(
            groups=groups, in_sizes=(height, width), kernel=(2, 5), strides=(2, stride), pads_begin=(0, 1), pads_end=(0, 2)
        )


def rows_apart_by_the_dilation(rng):
    channels = [(16, 1, 1), (13, 1, 1), (20, 1, 1), (64, 1, 1), (1, 16, 16), (2, 4, 16), (4, 8, 8), (5, 2, 8), (3, 5, 4)]
    for (groups, ci, co), data_format in itertools.product(channels, DATA_FORMATS * 2):
        dilation = int(rng.integers(2, 5))
        yield Case(
            groups=groups, ci=ci, co=co, batch=2, in_sizes=(2, 2 * dilation**2 + int(rng.integers(40))),
            kernel=(int(rng.integers(1, 4)), int(rng.choice([2, 3, 4, 6]))), dilations=(1, dilation), data_format=data_format,
            pads_begin=(0, int(rng.integers(5))), pads_end=(0, int(rng.integers(5))),
        )  # fmt: skip


def blocks_that_reach_beyond_the_row(rng):
    """Yield rows whose last block of non-temporal stores, which is as long as the others, reaches past their end."""
    for size in (97, 200, 385):
        yield Case(groups=24, in_sizes=(size,), kernel=5, strides=2, pads_begin=1, pads_end=2)


def terms_that_share_what_is_picked(rng):
    """Yield phases of one to three terms."""
    sizes = {(2, 2, 4): 45, (3, 4, 4): 18, (8, 3, 3): 7, (8, 8, 4): 4, (10, 8, 8): 5, (36, 2, 2): 3, (3, 2, 32): 12}
    axes = (3, 2), (4, 2), (2, 1), (3, 1), (4, 3), (5, 3), (5, 2)
    for (kernel, stride), ((groups, ci, co), width) in itertools.product(axes, sizes.items()):
        yield Case(
            groups=groups, ci=ci, co=co, in_sizes=(3, width), kernel=(3, kernel), strides=(2, stride), pads_begin=1,
            pads_end=(0, 1),
        )  # fmt: skip


def ends_that_skip_pixels(rng):
    channels = (20, 1, 1), (70, 1, 1), (2, 8, 8), (3, 4, 8), (3, 20, 16), (2, 32, 16)
    axes = (3, 2), (4, 2), (5, 1), (7, 1), (12, 1), (5, 2), (6, 3)
    for (groups, ci, co), (kernel, stride), _ in itertools.product(channels, axes, range(3)):
        width = int(rng.choice([1, 2, 4, 9, 29, 60]))
        yield Case(
            groups=groups, ci=ci, co=co, in_sizes=(4, width), kernel=(5, kernel), strides=(1, stride),
            pads_begin=(1, width % 3), pads_end=(2, 0), output_padding=(0, stride - 1),
        )  # fmt: skip


def groups_that_fill_vectors(rng):
    """Yield phases with one to many terms, equal or not, and numbers of groups and of j that are not multiples of a vector."""
    channels = (4, 8, 8), (5, 4, 8), (3, 2, 4), (33, 6, 4), (5, 16, 16), (3, 5, 12), (7, 4, 2)
    axes = (4, 2, 1), (3, 2, 1), (3, 1, 2), (5, 1, 1), (2, 2, 1), (2, 3, 1), (5, 2, 2), (30, 1, 1), (2, 2, 3)
    for (groups, ci, co), (kernel, stride, dilation), data_format in itertools.product(channels, axes, DATA_FORMATS):
        yield Case(
            groups=groups, ci=ci, co=co, in_sizes=(3, int(rng.integers(1, 40))), kernel=(3, kernel), strides=(1, stride),
            dilations=(1, dilation), pads_begin=(1, int(rng.integers(2))), pads_end=(1, 0), data_format=data_format,
        )  # fmt: skip


def rows_whose_weights_stay_in_registers(rng):
    """Yield one to three terms of one to three input rows, and more of both."""
    axes = [(kernel, stride) for stride in (1, 2, 3) for kernel in range(stride, 4 * stride + 1)] + [(13, 1), (12, 2)]
    for height, (kernel, stride), groups in itertools.product((1, 2, 3, 4), axes, (16, 33, 112)):
        case = Case(
            groups=groups, in_sizes=(3, int(rng.choice([3, 4, 5, 6, 9, 23]))), kernel=(height, kernel), strides=(1, stride),
            pads_begin=(0, int(rng.integers(3))), pads_end=(0, int(rng.integers(3))),
        )  # fmt: skip
        if min(case.out_shape[1:]) >= 1:
            yield case


def ends_of_rows(rng):
    """Yield terms that lie outside the row at one end or at both."""
    shapes = [(kernel, stride) for stride in (1, 2, 3) for kernel in range(1, 7)]
    for (kernel, stride), width, groups in itertools.product(shapes, (1, 2, 3, 4, 5, 9), (16, 33)):
        begin, end, more = rng.choice([(0, 0, 0), (1, 1, 0), (1, 0, stride - 1), (2, 1, 0), (0, 3, 0)]).tolist()
        if (width - 1) * stride + kernel + more - begin - end >= 1:
            yield Case(
                groups=groups, in_sizes=(3, width), kernel=(3, kernel), strides=(1, stride), pads_begin=(1, begin),
                pads_end=(1, end), output_padding=(0, more),
            )  # fmt: skip


def lanes_without_a_tap(rng):
    """Yield phases with fewer taps than others of their cell, whose inputs must not be multiplied by the zeros there."""
    axes = (3, 2), (5, 2), (5, 4), (6, 4), (7, 4), (5, 1)
    for (kernel, stride), channels in itertools.product(axes, (1, 2, 4, 8, 12)):
        yield Case(groups=channels, in_sizes=(2, 11), kernel=(2, kernel), strides=(1, stride))
    for groups, ci, co in ((3, 1, 1), (1, 1, 1), (4, 5, 2), (2, 2, 3)):
        yield Case(groups=groups, ci=ci, co=co, in_sizes=(9,), kernel=3, strides=2)


def two_pixels_that_share_a_vector(rng):
    """Yield channels that fill half a vector or one and a half vectors, in rows with and without a partial block."""
    channels = (4, 1, 1), (12, 1, 1), (20, 1, 1), (25, 1, 1), (2, 3, 2), (4, 5, 2), (6, 4, 4)
    axes = (3, 2, 1), (12, 2, 1), (9, 2, 1), (5, 2, 3), (7, 1, 3), (8, 3, 1)
    for (groups, ci, co), (kernel, stride, dilation), _ in itertools.product(channels, axes, range(3)):
        width = int(rng.choice([1, 2, 3, 7, 8, 9, 16, 31, 33, 48, 700]))
        yield Case(
            groups=groups, ci=ci, co=co, in_sizes=(3, width), kernel=(5, kernel), strides=(1, stride),
            dilations=(1, dilation), pads_begin=(2, width % 3), pads_end=(2, 0),
        )  # fmt: skip


def cells_of_one_group(rng):
    """Yield cells whose lanes all multiply the same input, which is read in place."""
    axes = (1, 1, 32, 16), (1, 1, 37, 16), (1, 1, 40, 20), (3, 1, 16, 8), (2, 3, 12, 5)
    for (ci, co, kernel, stride), width, begin in itertools.product(axes, (1, 2, 9, 40), (0, 3, 5)):
        yield Case(
            ci=ci, co=co, in_sizes=(4, width), kernel=(3, kernel), strides=(1, stride), pads_begin=(1, begin),
            pads_end=(1, width % 3),
        )  # fmt: skip


def inputs_that_are_far_apart(rng):
    """Yield vectors of lanes whose inputs lie in one vector of the data, in two to eight vectors, or in more."""
    channels = (2, 9, 1), (8, 4, 1), (8, 8, 1), (8, 9, 1), (15, 8, 1), (18, 9, 1), (7, 15, 2)
    for (groups, ci, co), (width, stride), _ in itertools.product(channels, ((1, 2), (5, 2), (9, 1)), range(3)):
        yield Case(
            groups=groups, ci=ci, co=co, in_sizes=(2, width), kernel=(2, 3), strides=(1, stride), pads_begin=(0, 1),
            pads_end=(1, 0),
        )  # fmt: skip


def long_filters(rng):
    """Yield filters whose runs share terms, and whose phases are cut together only if this does not make too many runs."""
    for kernel, stride, dilation, co in ((300, 7, 1, 1), (300, 6, 4, 2), (90, 1, 1, 2), (211, 1, 3, 1), (40, 20, 3, 3)):
        yield Case(groups=5, co=co, in_sizes=(37,), kernel=kernel, strides=stride, dilations=dilation, pads_begin=3, pads_end=2)


def few_out_channels(rng):
    """Yield vectors over in-channels: whole and partial tiles, sliding and dilated phases, pixels outside the input, and
    arbitrary windows."""
    for co, _ in itertools.product((1, 2, 3, 4), range(20)):
        case = replace(_random(rng), data_format="NXC")
        in_sizes = (*case.in_sizes[:-1], case.in_sizes[-1] + int(rng.choice([0, 15, 30])))
        several = any(k > s and n > 1 for k, s, n in zip(case.kernel, case.strides, in_sizes, strict=True))  # several taps
        fits = co <= _core.kernel_info("float64")["vl"]  # a tile has all channels of one j
        groups = int(rng.choice([1, 1, 3]))
        ci = int(rng.choice([16, 48])) if fits and several and groups == 1 else 16
        yield replace(case, groups=groups, ci=ci, co=co, in_sizes=in_sizes)


def rows_and_lanes_in_several_parts(rng):
    for _ in range(3):
        yield Case(groups=5, batch=2, in_sizes=(5, 300), kernel=(3, 4), strides=2, pads_end=1)
        yield Case(groups=600, batch=2, in_sizes=(23,), kernel=4, strides=2, pads_end=1)
        yield Case(groups=9, batch=2, in_sizes=(2, 90), kernel=(1, 6), pads_end=1)  # many terms
        yield Case(groups=3, batch=2, in_sizes=(4, 7), kernel=2, strides=3, pads_end=1)  # phases that no tap reaches
        yield Case(groups=33, ci=4, co=16, batch=2, in_sizes=(6, 40), kernel=3, strides=2, pads_end=1)
        yield Case(ci=64, co=3, batch=2, in_sizes=(6, 70), kernel=5, strides=3, pads_end=1)  # dot products


def lanes_that_are_picked(rng):
    """Yield lanes picked from one vector of inputs or two, or several vectors of lanes, in rows up to the last."""
    channels = (4, 1, 2), (4, 4, 4), (4, 5, 2), (9, 8, 8), (24, 8, 4), (32, 2, 2)
    for (groups, ci, co), _ in itertools.product(channels, range(4)):
        yield Case(
            groups=groups, ci=ci, co=co, batch=2, in_sizes=(3, 9), kernel=3, strides=2, pads_begin=1, pads_end=1,
        )  # fmt: skip


def rows_without_a_row_beside_them(rng):
    """Yield fewer terms than outputs that a window could show beside a row, and phases that begin with different pixels."""
    for (kernel, stride), _ in itertools.product(((1, 1), (2, 2), (3, 3), (1, 2), (4, 2), (3, 2)), range(4)):
        yield Case(groups=32, in_sizes=(2, 9), kernel=(stride, kernel), strides=stride)
    for _ in range(8):
        yield Case(batch=2, ci=64, in_sizes=(1, 6), kernel=4, strides=(4, 3), dilations=(1, 2))


def cells_behind_the_last_tap(rng):
    for outputs in (9, 10, 11, 12):
        yield Case(groups=2, ci=2, co=1, in_sizes=(3,), kernel=5, strides=2, output_shape=(outputs,))


FORCED = (
    small_groups, channels_that_fill_no_vector, rows_apart_by_the_dilation, blocks_that_reach_beyond_the_row,
    terms_that_share_what_is_picked, ends_that_skip_pixels, groups_that_fill_vectors, rows_whose_weights_stay_in_registers,
    ends_of_rows, lanes_without_a_tap, two_pixels_that_share_a_vector, cells_of_one_group, inputs_that_are_far_apart,
    long_filters, few_out_channels, rows_and_lanes_in_several_parts, lanes_that_are_picked, rows_without_a_row_beside_them,
    cells_behind_the_last_tap,
)  # fmt: skip


@each_isa
@pytest.mark.parametrize("forced", FORCED, ids=lambda cases: cases.__name__)
def test_problems_that_force_a_branch(forced, isa):
    rng = np.random.default_rng(0)
    with using_isa(isa):
        for seed, case in enumerate(forced(rng)):
            more = {"activation": rng.choice([None, "relu", "tanh"]), "seed": seed}
            dtype = "float32" if rng.integers(2) else str(rng.choice(list(DTYPES)))
            check_all_ways(replace(case, dtype=dtype, **more), "depthwise")


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
    with using_isa(isa):
        for size in (*range(2, 40), *range(110, 124)):  # a part is 8 j, or 120 j for 16-bit types
            for more in ({"output_padding": 9}, {"output_shape": (size + 15,)}, {"pads_begin": 3, "output_padding": 4}):
                case = Case(dtype=dtype, groups=65, in_sizes=(size,), kernel=3, **more)  # so that pixels share cache lines
                checked_on_threads(case, "depthwise", case.arrays(), threads=(1,), depthwise_non_temporal=0)


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
