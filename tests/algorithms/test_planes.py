"""Tests of NCX data: blocks that are transposed within the caches, vectors of pixels, and `turned`, the GEMM whose rows are
outputs. Results are compared with the float64 definition in cases.py."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    ALGORITHMS,
    ISAS,
    SAMPLES,
    Case,
    child,
    each_dtype,
    each_isa,
    matrix_unit,
    may_refuse,
    on_threads,
    operator,
    pretend,
    run,
    using_isa,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import convt
from convt._model import machine
from convt.algorithms import direct, phases, planes, stages, turned
from convt.algorithms.planes import blocks
from convt.algorithms.rows.schedule import channel_blocks, phase_blocks
from convt.algorithms.turned.schedule import accepts as turned_accepts

IMAGES = {
    "image": Case(
        data_format="NCX", batch=3, ci=21, co=19, in_sizes=(13, 17), kernel=4, strides=2, pads_begin=1, pads_end=(1, 2),
        activation="relu",
    ),
    "one tap": Case(data_format="NCX", batch=2, ci=40, co=24, in_sizes=(9, 33), kernel=2, strides=2),
    "one pixel each": Case(data_format="NCX", batch=2, ci=37, co=26, in_sizes=(9, 19)),
    "uneven phases": Case(
        data_format="NCX", batch=1, ci=6, co=5, in_sizes=(11, 50), kernel=(3, 5), strides=(2, 3), pads_begin=(1, 2),
        pads_end=(0, 1), output_padding=(1, 0), activation=("leaky_relu", 0.25),
    ),
    "depthwise": Case(data_format="NCX", batch=2, groups=9, in_sizes=(12, 37), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "dilated": Case(
        data_format="NCX", batch=2, groups=2, ci=5, co=7, in_sizes=(10, 21), kernel=3, strides=(1, 2), dilations=(2, 3),
        pads_begin=(2, 3), pads_end=(2, 0), output_padding=(0, 1),
    ),
    "sound": Case(data_format="NCX", ci=24, co=3, in_sizes=(700,), kernel=16, strides=8, pads_begin=4, pads_end=4),
    # On AMX the second of two tiles begins at row 24 of 48.
    "tiles of three channels": Case(data_format="NCX", ci=40, co=6, in_sizes=(20,), kernel=8, strides=8, pads_begin=3),
    "volume": Case(
        data_format="NCX", batch=2, ci=9, co=8, in_sizes=(5, 6, 7), kernel=3, strides=2, pads_begin=1, pads_end=1,
        output_padding=1,
    ),
}  # fmt: skip


@pytest.mark.every_isa
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("case", IMAGES.values(), ids=IMAGES)
@each_dtype
def test_blocks_of_any_size_are_the_definition(case, algorithm, dtype):
    case, ran = replace(case, dtype=dtype), 0
    arrays = case.arrays()
    for isa, size, limit in itertools.product(ISAS, (1, 1 << 12, 1 << 15, 1 << 40), (0, 1 << 40)):
        with using_isa(isa), pretend(planes_block=size, non_temporal=limit, direct_non_temporal=limit), may_refuse():
            case.check(on_threads(lambda: run(case, *arrays, algorithm=algorithm)), *arrays)
            ran += 1
    if not ran:
        pytest.skip(f"no {algorithm} of {dtype}")


@pytest.mark.parametrize("case", IMAGES.values(), ids=IMAGES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_more_threads_than_a_run_has_pixels_for(case, dtype):
    case = replace(case, dtype=dtype)
    arrays = case.arrays(exact=False)
    with pretend(planes_block=1 << 15, wide_block=1 << 15):
        convt.clear_caches()  # the cache of one-shot calls ignores the pretended machine
        on_threads(lambda: run(case, *arrays, algorithm="direct:vectors"), (1, 7, 40))


@settings(max_examples=300)
@given(st.data())
def test_blocks_of_an_axis_show_every_output_once_and_read_all_its_inputs(data):
    whole = st.integers
    size, kernel, stride, dilation = (data.draw(whole(1, n)) for n in (40, 9, 7, 4))
    begin, out, count = data.draw(whole(-9, 30)), data.draw(whole(1, 200)), data.draw(whole(1, 12))
    cut = phases.Axis(kernel, stride, dilation, size, begin, out).cut(count)
    assert 1 <= cut.count <= count and (cut.count - 1) * cut.out < out <= cut.count * cut.out

    def reached(o, size, begin):
        taps = ((o + begin - t * dilation, t) for t in range(kernel))
        return {(i // stride, t) for i, t in taps if i % stride == 0 and 0 <= i // stride < size}

    for o in range(out):
        block, place = divmod(o, cut.out)
        first = cut.first + block * cut.step
        found = {(i + first, t) for i, t in reached(place, cut.size, cut.begin)}
        assert {(i, t) for i, t in found if 0 <= i < size} == reached(o, size, begin)


def test_blocks_stay_near_and_few_are_even():
    for case, size in itertools.product(IMAGES.values(), (1 << 13, 1 << 16, 1 << 18)):
        with pretend(planes_block=size):
            here = machine.current()
            problem = operator(case, *case.arrays()[1:])._attributes.problem(case.data_shape)._replace(planar=False)
            cut = blocks.blocks(problem, here, size)
        bytes = 4 * (math.prod(cut.problem.in_shape) + math.prod(cut.problem.out_shape))
        assert bytes <= 4 * size or all(n <= s for n, s in zip(cut.problem.out_sizes, problem.strides, strict=True))
        assert cut.total >= 32 or cut.total % 2 == 0 or cut.total == 1 or problem.batch < 4


@each_isa
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["data", "filter"])
def test_what_is_not_finite_reaches_only_the_outputs_that_it_is_summed_in(where, value, isa):
    """Check that NaN and infinity are not multiplied by the zeros that blocks and rows have around the input."""
    case = IMAGES["image"]
    data, filter, bias = case.arrays()
    (data if where == "data" else filter)[0, 1, 0, 2] = value
    with using_isa(isa), pretend(planes_block=1 << 12):
        for algorithm in ALGORITHMS:
            with may_refuse():
                got = run(case, data, filter, bias, algorithm=algorithm)
                np.testing.assert_array_equal(got, case.expected(data, filter, bias).astype(np.float32), algorithm)


@pytest.mark.skipif(not matrix_unit(), reason="this CPU has no matrix unit")
@pytest.mark.parametrize("size", [2.0**-45, 2.0**-55])
def test_data_may_be_smaller_than_weights_on_a_matrix_unit(size):
    case = replace(IMAGES["one tap"], activation=None)
    data, filter, _ = case.arrays(exact=False)
    op = operator(replace(case, bias=False), filter, None, algorithm="turned:amx")
    got, want = op(data * np.float32(size)), op(data) * np.float32(size)
    assert op.plan(data.shape).key == "turned:amx"
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
    small = operator(replace(case, bias=False), filter * np.float32(2.0**-50), None, algorithm="turned:amx")
    assert small.plan(data.shape).key == "direct:vectors"
    np.testing.assert_allclose(small(data), op(data) * np.float32(2.0**-50), rtol=1e-5, atol=1e-5 * 2.0**-50)


@pytest.mark.parametrize(
    "co, kernel, stride, most", [(7, 4, 2, 14), (1, 5, 3, 6), (30, 3, 2, 14), (3, 40, 20, 14), (5, 3, 1, 6)]
)
def test_blocks_of_rows_have_every_output_once(co, kernel, stride, most):
    phases = phase_blocks(kernel, stride, 1, most)
    assert sorted(p for block in phases for p in block.residues) == list(range(stride))
    for block in phases:
        assert all(tap % stride == p for tap, p in zip(block.taps, block.residues, strict=True))
        assert {len(range(tap, kernel, stride)) for tap in block.taps} == {block.terms}
    count = channel_blocks(co, phases, most)
    ends = [co * n // count for n in range(count + 1)]
    assert ends[0] == 0 and ends[-1] == co
    for first, end in itertools.pairwise(ends):
        assert first < end
        assert all((end - first) * len(block.residues) <= most for block in phases)


def test_a_single_channel_is_the_same_in_either_layout():
    case = replace(SAMPLES[next(iter(SAMPLES))], ci=1, co=1, groups=1, data_format="NCX")
    data, filter, bias = case.arrays()
    op = operator(case, filter, bias)
    assert not op._attributes.problem(data.shape).planar
    case.check(op(data), data, filter, bias)


@each_dtype
def test_channels_of_any_stride_on_either_side(dtype):
    """Check NXC input with NCX output and all other views."""
    for name in ("image", "one pixel each"):
        check_views(replace(IMAGES[name], dtype=dtype))


def check_views(case):
    data, filter, bias = case.arrays()
    views = {
        "planes": data,
        "channels last": np.moveaxis(np.ascontiguousarray(np.moveaxis(data, 1, -1)), -1, 1),
        "every second": np.repeat(data, 2, axis=3)[..., ::2],
        "reversed": np.ascontiguousarray(data[:, ::-1, ::-1])[:, ::-1, ::-1],
    }
    outs = {
        "planes": np.empty(case.out_shape, data.dtype),
        "channels last": np.moveaxis(np.empty((case.out_shape[0], *case.out_shape[2:], case.out_shape[1]), data.dtype), -1, 1),
        "every second": np.empty((*case.out_shape[:3], 2 * case.out_shape[3]), data.dtype)[..., ::2],
    }
    for algorithm, view, out in itertools.product(("auto", "direct", "rows", "turned"), views.values(), outs.values()):
        with pretend(planes_block=1 << 13):
            case.check(run(case, view, filter, bias, out=out, algorithm=algorithm), data, filter, bias)


DENORMAL = """
import time
import numpy as np
import convt
convt.set_num_threads(1)  # a second one waits for its core where others compute
x, w = (np.random.rand(*shape).astype(np.float32) for shape in ((1, 48, 10), (48, 576, 2)))
least = {}
for algorithm in ("turned", "direct"):
    op = convt.ConvTranspose(w, strides=2, data_format="NCX", filter_format="IOX", algorithm=algorithm)
    y = op(x)
    for _ in range(50):
        start = time.perf_counter()
        op(x, out=y)
        least[algorithm] = min(least.get(algorithm, 1.0), time.perf_counter() - start)
print(least["turned"] / least["direct"])
"""


def test_columns_without_a_pixel_are_not_computed_with_denormal_numbers():
    """Check columns without a pixel."""
    code, out, errors = child(DENORMAL)
    assert code == 0 and float(out) < 10, (out, errors)


@each_isa
@each_dtype
@pytest.mark.parametrize("kernel, stride, dilation", [(5, 2, 1), (3, 3, 2)])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_turned_keeps_nan_and_inf_from_phases_without_the_tap(kernel, stride, dilation, bad, dtype, isa):
    """Check phases that share their inputs: the zeros for taps that a phase lacks must not be multiplied by NaN or infinity."""
    case = Case(dtype=dtype, ci=3, co=21, in_sizes=(16,), kernel=(kernel,), strides=(stride,), dilations=(dilation,),
                data_format="NCX")  # fmt: skip
    data, filter, bias = case.arrays()
    data[0, 1, 6] = bad
    with using_isa(isa):
        for algorithm in ("turned:vectors", "turned:amx") if matrix_unit(dtype) else ("turned:vectors",):
            got = on_threads(lambda: run(case, data, filter, bias, algorithm=algorithm), (1, 3))  # noqa: B023
            case.check(got, data, filter, bias)


@pytest.mark.parametrize("algorithm", ["winograd:vectors", "depthwise:vectors", "winograd:amx"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_blocks_that_would_be_widened_of_no_input(dtype, algorithm):
    """Check blocks of an empty axis, whose outputs exist because of output_padding and are the bias."""
    case = Case(dtype=dtype, in_sizes=(0,), kernel=2, output_padding=3)
    arrays = case.arrays()
    with may_refuse():
        case.check(run(case, *arrays, algorithm=algorithm), *arrays)


@each_isa
@each_dtype
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_depthwise_in_blocks_keeps_nan_and_inf_of_the_filter(bad, data_format, dtype, isa):
    """NaN and infinity in the filter, which must not be multiplied by the zeros outside the input, at each of several calls."""
    case = Case(dtype=dtype, ci=2, co=2, in_sizes=(17,), kernel=3, data_format=data_format)
    data, filter, bias = case.arrays()
    spoilt = filter.copy()
    spoilt[1, 0, 1] = bad
    with using_isa(isa), pretend(planes_block=1, wide_block=1):
        for weights in (spoilt, filter, spoilt, spoilt):
            case.check(run(case, data, weights, bias, algorithm="depthwise"), data, weights, bias)
        case.check(operator(case, spoilt, bias, algorithm="depthwise")(data), data, spoilt, bias)


def test_schedules_print_compare_and_pack_nothing():
    here = machine.current()
    for case in IMAGES.values():
        problem = operator(case, *case.arrays()[1:])._attributes.problem(case.data_shape)
        found = [turned.STAGES.schedule(problem, here, "vectors", threads, True) for threads in (2, 2, 16)]
        if found[0] is None:
            assert not turned_accepts(problem, here.info(problem.dtype)) and turned.STAGES.least(problem, here) == math.inf
            continue
        assert found[0] == found[1] and hash(found[0]) == hash(found[1]) and len(repr(found[0])) < 20_000
        assert all(each.form == () for each in found)
        cost = turned.STAGES.cost(found[0], here)
        assert turned.STAGES.least(problem, here) <= cost < math.inf
        for each in found[0].classes:
            assert (each.blocks - 1) * each.block < each.pixels <= each.blocks * each.block
            assert (each.tile_blocks - 1) * each.tile_block < each.tiles <= each.tile_blocks * each.tile_block


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_schedules_by_blocks_print_compare_and_pack_nothing(dtype):
    those = planes.by_blocks(direct.STAGES, stages.never)
    for case in IMAGES.values():
        case = replace(case, dtype=dtype)
        problem = operator(case, *case.arrays()[1:])._attributes.problem(case.data_shape)
        with pretend(planes_block=1 << 14):
            here = machine.current()
            found = [those.schedule(problem, here, "vectors", threads, True) for threads in (2, 2, 16)]
            if found[0] is None:
                continue
            assert found[0] == found[1] and hash(found[0]) == hash(found[1]) and len(repr(found[0])) < 20_000
            assert found[0].cut == found[2].cut and found[0].form == found[2].form and not found[0].wide
            assert those.least(problem, here) <= those.cost(found[0], here) < math.inf
            alone = problem._replace(planar=False)
            assert those.schedule(alone, here, "vectors", 2, True) == direct.STAGES.schedule(alone, here, "vectors", 2, True)
            unsafe = those.schedule(problem, here, "vectors", 2, False)  # blocks have zeros around the input
            assert (unsafe is None) == found[0].cut.framed
