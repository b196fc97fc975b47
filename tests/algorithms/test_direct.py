"""Tests of the direct algorithm: input rows that are read in place, rows that are packed, and rows that are left out because a
tap does not reach the input. Whole numbers make the sums exact, so results equal the float64 definition or the reference
backend."""

import itertools
import math

import numpy as np
import pytest
from cases import DTYPES, assert_same, each_dtype, each_isa, matrix_unit, on_threads, pretend, using_isa

import convt
from convt._base.problem import Problem
from convt._model import machine
from convt._run.memory import kept_bytes
from convt.algorithms import caches, common
from convt.algorithms.direct import cost, schedule

VIEWS = {
    "whole": (slice(None),) * 4, "every second row": (slice(None), slice(None, None, 2)),
    "every second pixel": (slice(None), slice(None), slice(None, None, 2)), "every second image": (slice(None, None, 2),),
    "some channels": (..., slice(1, -1)), "pixels backwards": (slice(None), slice(None), slice(None, None, -1)),
    "all backwards": (slice(None, None, -1),) * 3, "one pixel": (slice(None), slice(2, 3), slice(1, 2)),
    "one column": (slice(None), slice(None), slice(1, 2)), "one image": (slice(1, 2),),
}  # fmt: skip


@each_isa
@each_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_one_tap_on_views(view, dtype, isa):
    rng = np.random.default_rng(0)
    kind = DTYPES[dtype][0]
    data = rng.integers(-2, 3, (3, 7, 9, 22)).astype(kind)[VIEWS[view]]
    co = 37
    for kernel, pads, output_padding in ((1, 0, 0), (2, 0, 0), (2, (1, 0), 0), (2, (0, 1), 0), (2, 0, 1), (3, (3, 0), 0)):
        filter = rng.integers(-2, 3, (kernel, kernel, data.shape[-1], co)).astype(kind)
        bias = rng.integers(-2, 3, co).astype(kind)
        keywords = {"strides": kernel, "output_padding": output_padding}
        if pads:
            keywords["pads_begin"] = pads if data.shape[1] > 1 and data.shape[2] > 1 else 0
        with using_isa(isa):
            got = convt.conv_transpose(data, filter, bias, algorithm="direct:vectors", **keywords)
        wanted = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


@each_isa
@pytest.mark.parametrize("ci", [16, 20, 32, 33])
@pytest.mark.parametrize("co", [64, 80, 96])
def test_rows_of_little_depth(ci, co, isa):
    """Check small depths, for which one kernel call computes several tiles and two panels at once, with non-temporal and
    ordinary stores."""
    rng = np.random.default_rng(ci)
    filter = rng.integers(-2, 3, (1, 1, ci, co)).astype(np.float32)
    bias = rng.integers(-2, 3, co).astype(np.float32)
    for rows, columns, pads in ((9, 31, 0), (9, 31, (0, 1)), (257, 258, 0), (257, 258, (1, 1))):
        data = rng.integers(-2, 3, (1, rows, columns, ci)).astype(np.float32)
        limit = 16 << 20
        assert (rows * columns * co * 4 > limit) == (rows == 257)
        with using_isa(isa), pretend(direct_non_temporal=limit):
            got = convt.conv_transpose(data, filter, bias, pads_begin=pads, algorithm="direct:vectors", activation="relu")
        shown = data[:, pads[0] :, pads[1] :] if pads else data
        np.testing.assert_array_equal(got, np.maximum(shown @ filter[0, 0] + bias, 0))


@each_isa
@pytest.mark.parametrize("ci", [256, 257, 600, 1024])
def test_one_tap_in_several_chunks(ci, isa):
    """Check depths larger than a chunk, columns with and without a partial panel, few weights and many."""
    rng = np.random.default_rng(ci)
    for co in (8, 40, 300):
        data = rng.integers(-2, 3, (1, 15, 21, ci)).astype(np.float32)
        filter = rng.integers(-2, 3, (2, 2, ci, co)).astype(np.float32)
        wanted = convt.conv_transpose(data, filter, strides=2, backend="reference")
        with using_isa(isa):
            op = convt.ConvTranspose(filter, strides=2, algorithm="direct:vectors")
            np.testing.assert_array_equal(on_threads(lambda: op(data)), wanted)  # noqa: B023


@each_isa
def test_weights_read_to_and_fro(isa):
    """Check weights larger than L2, whose calls run tasks alternately forwards and backwards."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 2, 2, 130), dtype=np.float32)
    for kernel, co in ((3, 240), (2, 520)):  # several classes of different work that are divided among threads, and one class
        filter = rng.standard_normal((kernel, kernel, 130, co), dtype=np.float32)
        with using_isa(isa):
            op = convt.ConvTranspose(filter, strides=2, backend="native", algorithm="direct:vectors")
            assert op.plan(data.shape).packed_bytes > 1 << 20
            wanted = op(data)
            for threads in (1, 2, 3, 5, 2):
                with convt.num_threads(threads):
                    for _ in range(3):
                        np.testing.assert_array_equal(op(data), wanted)
        np.testing.assert_allclose(wanted, convt.conv_transpose(data, filter, strides=2, backend="reference"), atol=1e-4)


@each_isa
@pytest.mark.parametrize("ci, co, kernel", [(48, 40, 2), (300, 70, 2), (20, 33, 3), (16, 33, (4, 64))])
def test_the_order_of_tiles_follows_the_cache(ci, co, kernel, isa):
    """Check both orders of AMX tiles: all panels for a few rows, or, if there are many weights, one panel for all rows."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 9, 21, ci), dtype=np.float32)
    filter = rng.standard_normal((*np.broadcast_to(kernel, 2), ci, co), dtype=np.float32)
    keywords = {"strides": 2 if kernel != (4, 64) else (2, 32), "pads_end": 1}
    results = []
    with using_isa(isa):
        algorithm = "direct:amx" if matrix_unit() else "direct:vectors"
        for near in (0, 1 << 40):
            with pretend(near_weights=near):
                results.append(convt.ConvTranspose(filter, algorithm=algorithm, **keywords)(data))
    np.testing.assert_array_equal(*results)
    np.testing.assert_allclose(results[0], convt.conv_transpose(data, filter, backend="reference", **keywords), atol=1e-4)


@pytest.mark.parametrize("ci", [1024, 1040])
def test_rows_that_share_a_set_of_the_cache_are_packed(ci):
    """Check pixels that are 4 KiB apart."""
    filter = np.ones((1, 1, ci, 128), np.float32)
    plan = convt.ConvTranspose(filter, algorithm="direct:vectors").plan((1, 100, 100, ci))
    assert (plan.workspace_bytes > plan.threads * 128 << 10) == (ci == 1024)


@each_isa
def test_pixels_far_apart_in_the_output(isa):
    """Check many phases whose channels are not a multiple of a vector, a few panels at a time."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 5, 9, 16), dtype=np.float32)
    filter, bias = rng.standard_normal((4, 64, 16, 33), dtype=np.float32), rng.standard_normal(33, dtype=np.float32)
    for begin, end in (((0, 0), (0, 0)), ((1, 19), (2, 25)), ((3, 63), (1, 90))):
        keywords = {"strides": (2, 32), "pads_begin": begin, "pads_end": end, "activation": "relu"}
        wanted = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
        with using_isa(isa):
            op = convt.ConvTranspose(filter, bias, algorithm="direct:vectors", **keywords)
            with convt.num_threads(1):
                alone = op(data)
            np.testing.assert_array_equal(op(data), alone)
        np.testing.assert_allclose(alone, wanted, atol=1e-4)


@each_isa
@each_dtype
@pytest.mark.parametrize("algorithm", ["auto", "direct", "scatter"])
def test_an_axis_of_one_pixel(algorithm, dtype, isa):
    """Check an axis of one pixel, whose stride has no effect."""
    rng = np.random.default_rng(0)
    kind = DTYPES[dtype][0]
    filter = rng.integers(-2, 3, (4, 3, 20, 18)).astype(kind)
    for keywords in ({"strides": 1}, {"strides": 2, "pads_begin": 1}, {"strides": (1, 2), "output_padding": (0, 1)}):
        with using_isa(isa):
            op = convt.ConvTranspose(filter, backend="native", algorithm=algorithm, **keywords)
            for sizes in ((1, 1), (1, 3), (3, 1), (3, 3), (1, 1)):
                data = rng.integers(-2, 3, (2, *sizes, 20)).astype(kind)
                wanted = convt.conv_transpose(data, filter, backend="reference", **keywords)
                np.testing.assert_array_equal(op(data).astype(np.float64), wanted.astype(np.float64))


def test_one_pixel_is_planned_alike_for_every_stride():
    """Check that the plan for one pixel does not depend on the stride."""
    filter = np.ones((4, 4, 64, 64), np.float32)
    plans = {convt.ConvTranspose(filter, strides=s, backend="native").plan((1, 1, 1, 64)) for s in (1, 2, 3, 4)}
    assert len(plans) == 1


def test_rows_that_lie_in_the_input_take_no_workspace():
    """Check that rows that are read in place take no workspace."""
    filter = np.ones((1, 1, 64, 128), np.float32)
    plan = convt.ConvTranspose(filter, algorithm="direct:vectors").plan((1, 100, 100, 64))
    assert plan.workspace_bytes < plan.threads * 32 << 10


# (batch, input, in-channels, out-channels, kernel, stride, pads, groups): small images with large kernels, where many taps fall
# outside the input. The cases have one row block and several, depth chunks packed at once and separately, one chunk and several
# per tap, and cut edges.
SMALL_IMAGES = {
    "pose": (1, (8, 6), 300, 40, 4, 2, (1, 1), 1), "odd kernel": (3, (4, 4), 128, 64, 5, 2, (2, 2), 1),
    "two taps of four": (2, (2, 2), 512, 33, 4, 2, (1, 1), 1), "one pixel": (2, (1, 1), 260, 64, 4, 2, (1, 1), 1),
    "stride 1": (9, (5, 3), 100, 20, 3, 1, (1, 1), 1), "many images": (4, (4, 4), 513, 18, 4, 2, (1, 1), 1),
    "1-D": (2, (4,), 257, 70, 8, 2, (3, 2), 1), "3-D": (1, (3, 2, 2), 130, 17, 3, 2, (1, 0), 1),
    "groups": (2, (4, 4), 256, 64, 4, 2, (1, 1), 2), "kernel beyond the image": (1, (3, 3), 301, 8, 9, 1, (4, 4), 1),
    "uneven pads": (1, (4, 4), 128, 34, 5, 2, (3, 0), 1),
}  # fmt: skip


@each_isa
@each_dtype
@pytest.mark.parametrize("name", SMALL_IMAGES)
def test_rows_that_a_tap_does_not_reach(name, dtype, isa):
    batch, sizes, ci, co, kernel, stride, (begin, end), groups = SMALL_IMAGES[name]
    rng = np.random.default_rng(1)
    kind = DTYPES[dtype][0]
    data = rng.integers(-2, 3, (batch, *sizes, ci)).astype(kind)
    filter = rng.integers(-2, 3, (*[kernel] * len(sizes), ci, co // groups)).astype(kind)
    bias = rng.integers(-2, 3, co).astype(kind)
    keywords = {"strides": stride, "pads_begin": begin, "pads_end": end, "groups": groups, "activation": "relu"}
    wanted = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
    with using_isa(isa):
        op = convt.ConvTranspose(filter, bias, algorithm="direct:vectors", backend="native", **keywords)
        assert_same(on_threads(lambda: op(data), (1, 2)), wanted)


@each_isa
@each_dtype
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("co", [1, 3, 21, 40])
def test_windows_that_cut_phases(co, split, merge, dtype, isa, monkeypatch):
    """Check windows that hide some or all columns of panels, at borders and inside, for every division of the axes."""
    monkeypatch.setattr(schedule, "_ways", lambda problem, unit, finite: [((merge, merge), (split, split))])
    rng = np.random.default_rng(co)
    kind = DTYPES[dtype][0]
    data = rng.integers(-2, 3, (2, 9, 7, 5)).astype(kind)
    filter = rng.integers(-2, 3, (8, 8, 5, co)).astype(kind)
    bias = rng.integers(-2, 3, co).astype(kind)
    for begin, end, activation in (((15, 3), (17, 6), "none"), ((2, 5), (1, 24), "relu"), ((31, 0), (5, 13), ("clip", -9, 9))):
        keywords = {"strides": 4, "pads_begin": begin, "pads_end": end, "activation": activation}
        caches.clear()
        with using_isa(isa):
            got = convt.conv_transpose(data, filter, bias, algorithm="direct:vectors", **keywords)
        caches.clear()
        wanted = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


# (batch, input, in-channels of a group, out-channels, kernel, stride, dilation, pads, groups): rows of several taps that are
# adjacent in memory, or that are not because of dilation, of several groups or of the first axis. The depth is one chunk,
# chunks of several taps, or parts of a tap. Blocks lie inside an image, at its ends, and across images.
WINDOWS = {
    "one chunk": (1, (500,), 16, 24, 4, 2, 1, (1, 1), 1), "several chunks": (1, (400,), 96, 40, 8, 2, 1, (3, 3), 1),
    "chunks that end within taps": (1, (330,), 100, 20, 6, 2, 1, (2, 1), 1),
    "chunks within a tap": (1, (300,), 514, 10, 4, 2, 1, (1, 1), 1), "unlike phases": (1, (450,), 32, 18, 5, 2, 1, (2, 1), 1),
    "stride 1": (2, (317,), 34, 34, 3, 1, 1, (1, 1), 1), "images": (7, (61,), 64, 20, 6, 2, 1, (2, 2), 1),
    "no pads": (3, (200,), 48, 16, 5, 1, 1, (0, 0), 1), "cut beyond the border taps": (2, (400,), 20, 32, 4, 2, 1, (9, 160), 1),
    "dilated": (1, (390,), 130, 24, 3, 1, 3, (3, 3), 1), "dilated and strided": (2, (301,), 66, 24, 4, 2, 3, (4, 4), 1),
    "groups": (1, (350,), 132, 66, 4, 2, 1, (1, 1), 3), "first axis": (1, (9, 150), 260, 20, (4, 1), (2, 1), 1, (1, 0), 1),
    "last axis": (1, (4, 311), 64, 20, (1, 4), (1, 2), 1, (0, 1), 1), "both axes": (1, (5, 301), 40, 20, 3, 1, 1, (1, 1), 1),
}  # fmt: skip
ROWS = {
    "every second pixel": (slice(None), ..., slice(None, None, 2), slice(None)),
    "some channels": (..., slice(1, -1)),
    "backwards": (slice(None), ..., slice(None, None, -1), slice(None)),
    "images backwards": (slice(None, None, -1),),
}


def window_case(name, dtype, view="whole", seed=3):
    batch, sizes, ci, co, kernel, strides, dilations, (begin, end), groups = WINDOWS[name]
    rng = np.random.default_rng(seed)
    kind = DTYPES[dtype][0]
    kernel = np.broadcast_to(kernel, len(sizes))
    data = rng.integers(-2, 3, (batch, *sizes, ci * groups)).astype(kind)
    if view != "whole" and (groups == 1 or view != "some channels"):
        data = data[ROWS[view]]
    filter = rng.integers(-2, 3, (*kernel, data.shape[-1], co // groups)).astype(kind)
    keywords = {"strides": strides, "dilations": dilations, "groups": groups}
    # Pads on axes with one tap would cut off rows.
    keywords["pads_begin"] = [begin if k > 1 else 0 for k in kernel]
    keywords["pads_end"] = [end if k > 1 else 0 for k in kernel]
    return data, filter, keywords


@each_isa
@pytest.mark.parametrize(("view", "dtype"), [*(("whole", dtype) for dtype in DTYPES), *((view, "float32") for view in ROWS)])
@pytest.mark.parametrize("name", WINDOWS)
def test_several_taps_where_they_lie(name, view, dtype, isa):
    data, filter, keywords = window_case(name, dtype, view)
    wanted = convt.conv_transpose(data, filter, backend="reference", **keywords)
    with using_isa(isa):
        op = convt.ConvTranspose(filter, algorithm="direct:vectors", **keywords)
        assert_same(on_threads(lambda: op(data), (1, 2)), wanted)


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_are_summed_alike_on_any_threads(name):
    data, filter, keywords = window_case(name, "float32")
    rng = np.random.default_rng(4)
    data, filter = (rng.standard_normal(a.shape, dtype=np.float32) for a in (data, filter))
    op = convt.ConvTranspose(filter, algorithm="direct:vectors", **keywords)
    on_threads(lambda: op(data))


@each_isa
@pytest.mark.parametrize("name", WINDOWS)
def test_nan_beside_the_rows_that_are_read(name, isa):
    """Check that NaN around a view reaches nothing, so no row outside it is read, and that NaN in the first and the last input
    reaches the outputs of their taps."""
    data, filter, keywords = window_case(name, "float32")
    around = np.full(tuple(n + 8 for n in data.shape), np.nan, np.float32)
    inner = around[tuple(slice(4, -4) for _ in data.shape)]
    inner[...] = data
    with using_isa(isa):
        op = convt.ConvTranspose(filter, algorithm="direct:vectors", **keywords)
        np.testing.assert_array_equal(op(inner), convt.conv_transpose(data, filter, backend="reference", **keywords))
        flat = np.full(data.size + 2048, np.nan, np.float32)
        flat = flat[1024:-1024].reshape(data.shape)
        flat[...] = data
        np.testing.assert_array_equal(op(flat), convt.conv_transpose(data, filter, backend="reference", **keywords))
        last = tuple(n - 1 for n in data.shape)
        flat[(0,) * data.ndim] = flat[last] = np.nan
        wanted = convt.conv_transpose(flat, filter, backend="reference", **keywords)
        np.testing.assert_array_equal(op(flat), wanted)


SCHEDULED = {
    "one class": (1, 1, 512, 256, (9, 9), (4, 4), (2, 2), (1, 1), (1, 1), (18, 18)),
    "borders": (2, 1, 64, 32, (40, 30), (3, 3), (2, 2), (1, 1), (1, 1), (79, 59)),
    "sparse": (1, 1, 128, 32, (4, 4), (5, 5), (2, 2), (1, 1), (2, 2), (8, 8)),
    "window": (1, 3, 32, 8, (50, 40), (8, 8), (4, 4), (1, 1), (15, 3), (180, 140)),
    "three axes": (1, 1, 64, 32, (12, 12, 12), (2, 2, 2), (2, 2, 2), (1, 1, 1), (0, 0, 0), (24, 24, 24)),
    "holes": (1, 1, 8, 8, (30,), (1,), (2,), (1,), (0,), (60,)),
}


@pytest.mark.parametrize("isa", [None, "avx512", "avx512_amx"])
@pytest.mark.parametrize("name", SCHEDULED)
def test_schedules_are_values(name, isa):
    problem = Problem("float32", *SCHEDULED[name])
    with pretend(isa=isa):
        here, ways = machine.current(), set()
        for unit in ("vectors", "amx") if isa == "avx512_amx" else ("vectors",):
            for threads in (1, 2, 16):
                found = schedule.schedule(problem, here, unit, threads)
                caches.clear()
                assert found == schedule.schedule(problem, here, unit, threads) and hash(found) == hash(found)
                assert repr(found).startswith("Schedule(problem=Problem(")
                rows = sum(c.count * c.rows * c.columns for c in found.classes)
                assert rows >= math.prod(problem.out_shape) // problem.groups * (name != "holes")
                for c in found.classes:
                    assert c.cut.block * (c.cut.blocks - 1) < c.rows <= c.cut.block * c.cut.blocks
                cycles = cost.cost(found, here)
                assert 0 < cost.least(problem, here, unit) <= cycles < math.inf
                ways.add((unit, found.form, found.split))
        assert len({unit for unit, *_ in ways}) == len(ways)


@pytest.mark.parametrize("name", SCHEDULED)
def test_classes_that_are_alike_are_all_there(name):
    problem = Problem("float32", *SCHEDULED[name])
    found = schedule.schedule(problem, machine.current(), "vectors", 2)
    _, runs = common.axes(problem, found.merge, found.split)
    numbers = [choice for c in found.classes for choice in itertools.product(*c.runs)]
    reached = [[n for n, run in enumerate(axis) if run.group >= 0] for axis in runs]
    assert sorted(numbers) == sorted(itertools.product(*reached))
    assert [c.count for c in found.classes] == [len(list(itertools.product(*c.runs))) for c in found.classes]


def test_schedules_are_decided_without_packing():
    problem = Problem("float32", *SCHEDULED["borders"])
    kept = kept_bytes()
    found = schedule.schedule(problem, machine.current(), "vectors", 2)
    assert cost.cost(found, machine.current()) > 0 and kept_bytes() == kept
