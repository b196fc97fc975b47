"""Tests of NCX data: blocks that are transposed within the caches, vectors of pixels, and `turned`, the GEMM whose rows are
outputs. Results are compared with the float64 definition in cases.py."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    ALGORITHMS,
    DATA_FORMATS,
    ISAS,
    NON_TEMPORAL,
    SAMPLES,
    Case,
    check_all_ways,
    checked_on_threads,
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
from convt.algorithms import phases
from convt.algorithms.planes import blocks

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
    # More phases than a micro-kernel computes outputs: blocks of as many as it does, and of fewer.
    "many phases": Case(data_format="NCX", ci=3, co=3, in_sizes=(9,), kernel=54, strides=27, pads_begin=3),
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
    sizes, limits = itertools.cycle((1, 1 << 12, 1 << 15)), itertools.cycle(({}, NON_TEMPORAL))
    for isa, size, limit in zip([isa for isa in ISAS for _ in range(2)], sizes, limits, strict=False):
        with using_isa(isa), may_refuse():
            checked_on_threads(case, algorithm, arrays, threads=(1, 3), planes_block=size, **limit)
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


# Blocks with zeros around the input, and phases that share their inputs and lack taps.
SPOILT = (
    IMAGES["image"],
    Case(ci=3, co=21, in_sizes=(16,), kernel=5, strides=2, data_format="NCX"),
    Case(ci=3, co=21, in_sizes=(16,), kernel=3, strides=3, dilations=2, data_format="NCX"),
    *(Case(ci=2, co=2, in_sizes=(17,), kernel=3, data_format=data_format) for data_format in DATA_FORMATS),
)


@each_isa
@each_dtype
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["data", "filter"])
def test_what_is_not_finite_reaches_only_the_outputs_that_it_is_summed_in(where, value, dtype, isa):
    """Check that NaN and infinity are not multiplied by zeros, at each of several calls with these weights and others."""
    for case, algorithm in itertools.product(SPOILT, ALGORITHMS):
        case = replace(case, dtype=dtype)
        good = case.arrays()
        spoilt = [array.copy() for array in good]
        array = spoilt[where == "filter"]
        array[tuple(min(n - 1, at) for n, at in zip(array.shape, (0, 1, 6, 2), strict=False))] = value
        with using_isa(isa), pretend(planes_block=1 << 10, wide_block=1), may_refuse():
            convt.clear_caches()  # the cache of one-shot calls ignores the pretended machine
            for arrays in (spoilt, good, spoilt):
                case.check(on_threads(lambda: run(case, *arrays, algorithm=algorithm), (1, 3)), *arrays)  # noqa: B023
            case.check(operator(case, *spoilt[1:], algorithm=algorithm)(spoilt[0]), *spoilt)


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


def test_a_single_channel_is_the_same_in_either_layout():
    case = replace(SAMPLES[next(iter(SAMPLES))], ci=1, co=1, groups=1, data_format="NCX")
    data, filter, bias = case.arrays()
    op = operator(case, filter, bias)
    assert not op._attributes.problem(data.shape).planar
    case.check(op(data), data, filter, bias)


@each_dtype
@pytest.mark.parametrize("algorithm", ["auto", "direct:vectors", "rows:vectors", "turned:vectors"])
def test_channels_of_any_stride_on_either_side(algorithm, dtype):
    channels_last = lambda a: np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1)  # noqa: E731
    for name in ("image", "one pixel each"):
        case = replace(IMAGES[name], dtype=dtype)
        data, *weights = case.arrays()
        out = np.empty(case.out_shape, data.dtype)
        with pretend(planes_block=1 << 13):
            for view, to in itertools.product((data, channels_last(data)), (out, channels_last(out))):
                case.check(run(case, view, *weights, out=to, algorithm=algorithm), data, *weights)
            check_all_ways(case, algorithm)


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
