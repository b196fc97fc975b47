"""Tests of the matrix unit (AMX): results as exact as those of vectors for any shape and magnitude, inputs out of its range,
which direct computes instead, and its use by several threads, processes and libraries. Results are compared with the float64
definition and with direct."""

import itertools
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    CURVED_ACTIVATIONS,
    DATA_FORMATS,
    DTYPES,
    EXACT_ACTIVATIONS,
    INPUT_MEMORY,
    ISA_ROWS,
    SAMPLES,
    Case,
    assert_same,
    check_all_ways,
    child,
    copy_in,
    errors,
    operator,
    random_case,
    run,
    taken,
    using_isa,
)

import convt
from convt.algorithms import onednn

MATRIX_DTYPES = [dtype for dtype in DTYPES if dtype != "float64"]
each_dtype = pytest.mark.parametrize("dtype", MATRIX_DTYPES)
each_sample = pytest.mark.parametrize("case", SAMPLES.values(), ids=SAMPLES)
BELOW, ABOVE = 2.0**-64, 2.0**48  # limits of the magnitude of data; zero is also accepted
WEIGHTS_BELOW = 2.0**-39
# Error that a component may have in addition to direct's, in units of the sum of its products' magnitudes. The products of the
# three parts of a float32 are rounded one by one. For the two parts of a float16, the product of the smaller parts is left out.
MORE = {"float32": 2.0**-23, "float16": 2.0**-23, "bfloat16": 2.0**-23}
HALF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}  # error of one rounding, relative
LEAST = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}  # absolute: half a denormal, or a flushed one


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param(name, marks=pytest.mark.skipif(not ISA_ROWS.get(name), reason=f"this CPU, or the build, lacks {name}"))
        for name in ("avx512_amx",)
    ],
)
def isa(request):
    """Use each instruction set with a matrix unit. The fixture has the usual name, so CONVT_ISA leaves out these tests as it
    does others."""
    with using_isa(request.param):
        yield request.param


def both(case, data, filter, bias=None, **more):
    """Return the results of matrix and of direct, both from packed weights."""
    found = []
    for algorithm in ("direct:amx", "direct:vectors"):
        op = operator(case, filter, bias, algorithm=algorithm, **more)
        assert op.plan(data.shape).key == algorithm
        found.append(op(data))
    return found


def line(ci=32, co=32, n=40, **more):
    """Return a problem of one tap: each output is a dot product over the channels."""
    return Case(ci=ci, co=co, in_sizes=(n,), bias=False, **more)


# ---------------------------------------------------------------- exactness


@each_dtype
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_as_exact_as_direct(rank, dtype):
    rng, found = np.random.default_rng(rank), []
    for ci, co in itertools.product((1, 16, 31, 32, 33, 48, 96, 300), (1, 8, 17, 32, 33, 100)):
        sizes = range(1, {1: 41, 2: 9, 3: 5}[rank])
        groups, kernel = int(rng.choice([1, 1, 1, 2, 3])), (1, 2, 3, 4)
        case = random_case(rng, rank, sizes, kernel, dtype=dtype, groups=groups, ci=ci, co=co)
        matrix, direct = errors(case, "direct:amx", "direct:vectors")
        assert matrix.max() <= 1.5 * direct.max() + MORE[dtype], case
        found.append([np.sqrt(np.mean(error**2)) for error in (matrix, direct)])
        case = replace(case, activation=[*EXACT_ACTIVATIONS[:-1], ("clip", -0.5, 1), *CURVED_ACTIVATIONS][rng.integers(8)])
        data, *weights = case.arrays(exact=False)
        view = copy_in(str(rng.choice(INPUT_MEMORY)), data)
        with convt.num_threads(int(rng.integers(1, 4))):
            got = operator(case, *weights, algorithm="direct:amx")(view)
        case.check(got, view, *weights, exact=False)
    matrix, direct = np.mean(found, 0)
    assert matrix <= 1.05 * direct


@each_dtype
@pytest.mark.parametrize("sigma", [1, 8])
def test_each_component_is_exact_whatever_the_sizes(sigma, dtype):
    """Check numbers of very different magnitudes."""
    rng = np.random.default_rng(sigma)
    limits = (2.0**-24, 2.0**15) if dtype == "float16" else (BELOW, ABOVE)
    for seed, ci in enumerate((16, 40, 96, 300)):
        case = Case(
            dtype=dtype, batch=2, ci=ci, co=33, in_sizes=(9, 7), kernel=(3, 4), strides=(1, 2), dilations=(2, 1),
            pads_begin=(1, 2), pads_end=(0, 1), output_padding=(1, 0), seed=seed,
        )  # fmt: skip
        wide = lambda a, least, most: (  # noqa: E731
            rng.choice([-1, 1], a.shape) * np.clip(np.exp(rng.normal(0, sigma, a.shape)), least, most)
        ).astype(a.dtype)
        data, filter, bias = case.arrays()
        data, bias = wide(data, *limits), wide(bias, *limits)
        filter = wide(filter, max(limits[0], WEIGHTS_BELOW), limits[1])
        if dtype == "float16":  # results of float16 end at 65504
            data, filter = (data / 256).astype(data.dtype), np.clip(filter, -8, 8)
        op = operator(case, filter, bias, algorithm="direct:amx")
        assert op.plan(data.shape).key == "direct:amx" and taken(op, data)
        exact, size = case.expected(data, filter, bias), case.expected(data, filter, bias, magnitude=True)
        got, direct = (found.astype(np.float64) for found in both(case, data, filter, bias))
        seen = np.isfinite(got)
        assert seen.mean() > 0.5 and (np.abs(exact[~seen]) > 65000).all()
        rounding = HALF[dtype] * np.abs(exact) + LEAST[dtype]
        off, off_direct = (((np.abs(y - exact) - rounding) / size)[seen].max() for y in (got, direct))
        assert off <= 2.5 * max(off_direct, 0) + MORE[dtype]
        assert off <= 12 * HALF["float32"] + MORE[dtype]


def test_parts_hold_every_bit():
    """Check that one product of a 24-bit number and a power of two is exact at every scale."""
    rng = np.random.default_rng(0)
    for e in (-64, -30, 0, 24, 47):
        x = (rng.integers(1 << 23, 1 << 24, (1, 64, 1)) * 2.0 ** (e - 23)).astype(np.float32)
        for w in (2.0**-39, -1.0, 2.0**48):
            got = convt.conv_transpose(x, np.full((1, 1, 17), w, np.float32), algorithm="direct:amx")
            assert_same(got, np.broadcast_to(x * np.float32(w), got.shape))
    whole = np.arange(-256, 257, dtype=np.float32).reshape(1, -1, 1)
    assert_same(convt.conv_transpose(whole, np.ones((1, 1, 1), "f4"), algorithm="direct:amx"), whole)
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    every = every[np.isfinite(every)].reshape(1, -1, 1)
    assert_same(convt.conv_transpose(every, np.ones((1, 1, 1), "f2"), algorithm="direct:amx"), every + np.float16(0))


@each_dtype
@pytest.mark.parametrize("activation", EXACT_ACTIVATIONS)
def test_channels_that_fill_tiles_and_others(activation, dtype):
    """Check panels of whole and partial tiles, and one tap, whose results may be stored late."""
    for co, data_format in ((40, "NXC"), (33, "NXC"), (8, "NXC"), (33, "NCX")):
        case = replace(SAMPLES["dense"], dtype=dtype, co=co, activation=activation, data_format=data_format)
        check_all_ways(case, "direct:amx")
    for ci, co in ((64, 48), (288, 64)):
        check_all_ways(line(ci, co, 137, batch=3, activation=activation, dtype=dtype), "direct:amx")


# ---------------------------------------------------------------- inputs that direct computes

F32 = np.float32
OUTSIDE = {  # value of data: whether the matrix unit accepts it
    "least": (BELOW, True),
    "below it": (float(np.nextafter(F32(BELOW), F32(0))), False),
    "minus least": (-BELOW, True),
    "minus below it": (-float(np.nextafter(F32(BELOW), F32(0))), False),
    "denormal": (1e-40, False),
    "least denormal": (-1.4e-45, False),
    "zero": (0.0, True),
    "minus zero": (-0.0, True),
    "most": (ABOVE, True),
    "above it": (float(np.nextafter(F32(ABOVE), F32(np.inf))), False),
    "2^62": (-(2.0**62), False),
    "largest": (float(np.finfo(F32).max), False),
    "NaN": (np.nan, False),
    "Inf": (np.inf, False),
    "-Inf": (-np.inf, False),
}
each_value = pytest.mark.parametrize("value", OUTSIDE)
each_matrix_algorithm = pytest.mark.parametrize("algorithm", ["direct:amx", "scatter:amx"])


@each_value
@each_matrix_algorithm
@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("place", [0, -1, 1234])
def test_data_at_its_bounds(place, data_format, algorithm, value):
    case = Case(batch=2, ci=40, co=33, in_sizes=(6, 9), kernel=3, strides=(2, 1), pads_begin=(1, 0), data_format=data_format)
    data, filter, bias = case.arrays(exact=False)
    number, fits = OUTSIDE[value]
    data.reshape(-1)[place] = number
    op, direct = (operator(case, filter, bias, algorithm=name) for name in (algorithm, "direct:vectors"))
    assert taken(op, data) is fits
    for threads in (1, 3):
        with convt.num_threads(threads):
            for _ in range(2):  # the second call takes the fast path of repeated calls
                got, want = op(data), direct(data)
                assert (got.tobytes() == want.tobytes()) is (not fits)
                np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
                np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
            out = np.full_like(want, -7)
            assert op(data, out=out) is out and out.tobytes() == got.tobytes()
            assert run(case, data, filter, bias, algorithm=algorithm).tobytes() == got.tobytes()
    data.reshape(-1)[place] = 1
    assert taken(op, data)
    assert op(data).tobytes() != direct(data).tobytes()


@pytest.mark.parametrize("place", [0, -1, 1234])
@each_matrix_algorithm
@each_value
def test_weights_at_their_bounds(value, algorithm, place):
    case = Case(ci=40, co=33, in_sizes=(20,), kernel=4, strides=2)
    data, filter, bias = case.arrays(exact=False)
    good = run(case, data, filter, bias, algorithm=algorithm).tobytes()
    number, fits = OUTSIDE[value]
    spoilt = filter.copy()
    spoilt.reshape(-1)[place] = number = {BELOW: WEIGHTS_BELOW, -BELOW: -WEIGHTS_BELOW}.get(number, number)
    op = operator(case, spoilt, bias, algorithm=algorithm)
    plan = op.plan(data.shape)
    assert (plan.key, bool(plan.note)) == ((algorithm, False) if fits else ("direct:vectors", True))
    want = operator(case, spoilt, bias, algorithm="direct:vectors")(data)
    for _ in range(2):
        assert (op(data).tobytes() == want.tobytes()) is (not fits)
        assert (run(case, data, spoilt, bias, algorithm=algorithm).tobytes() == want.tobytes()) is (not fits)
        assert run(case, data, filter, bias, algorithm=algorithm).tobytes() == good
    if np.isnan(number):
        assert "NaN" in plan.note


def test_a_one_shot_call_does_not_depend_on_the_filter_of_the_first():
    case = Case(ci=41, co=31, in_sizes=(21,), kernel=4, strides=3)
    data, filter, bias = case.arrays(exact=False)
    want = operator(case, filter, bias, algorithm="direct:amx")(data)
    spoilt = filter.copy()
    spoilt[1, 2, 3] = 1e-20
    first = run(case, data, spoilt, bias, algorithm="direct:amx")
    assert first.tobytes() == operator(case, spoilt, bias, algorithm="direct:vectors")(data).tobytes()
    for _ in range(2):
        assert run(case, data, filter, bias, algorithm="direct:amx").tobytes() == want.tobytes()


@pytest.mark.parametrize("e", [-40, -39, -38])
def test_the_least_weight_that_is_taken(e):
    weight = float(np.nextafter(F32(2.0**e), F32(0)))
    data, filter = np.ones((1, 5, 32), F32), np.full((1, 32, 16), weight, F32)
    plan = convt.ConvTranspose(filter, algorithm="direct:amx").plan(data.shape)
    assert plan.key == ("direct:amx" if e == -38 else "direct:vectors")
    assert_same(convt.conv_transpose(data, filter, algorithm="direct:amx"), np.full((1, 5, 16), 32 * F32(weight)))


def test_sums_in_range_do_not_overflow_on_the_way():
    """Check sums whose odd and even depths overflow only if they are summed apart, as the unit does."""
    signs = np.repeat([-1.0, 0.0, 1.0], [8, 8, 16])
    for e in (48, 62):
        data, filter = np.full((1, 40, 32), 2.0**e, F32), (np.ones((1, 32, 40)) * signs[:, None] * 2.0**e).astype(F32)
        assert (convt.conv_transpose(data, filter, algorithm="direct:amx") == 8 * 2.0 ** (2 * e)).all()


@each_dtype
def test_bias_of_every_kind(dtype):
    case = replace(SAMPLES["dense"], dtype=dtype, co=37)
    data, filter, _ = case.arrays()
    largest = 6e4 if dtype == "float16" else 3e38
    bias = np.resize(np.array([np.nan, np.inf, -np.inf, largest, 0.25, -0.0, 7.0]), 37).astype(case.numpy_dtype)
    got, want = both(case, data, filter, bias)
    assert_same(got, want)


def test_a_denormal_bias_is_kept():
    data, filter = np.zeros((1, 40, 64), F32), np.ones((1, 64, 40), F32)
    bias = np.linspace(-1e-38, 1e-38, 40).astype(F32)
    got = convt.conv_transpose(data, filter, bias, algorithm="direct:amx")
    assert_same(got, np.broadcast_to(bias, got.shape))


# ---------------------------------------------------------------- threads, processes, other users of the unit


@pytest.mark.skipif(not onednn.library.available(), reason="oneDNN is not installed")
@pytest.mark.parametrize("threads", [1, 2])
def test_in_turn_with_onednn(threads):
    """Check alternating calls of convt and oneDNN, in the caller's thread and in a pool. oneDNN loads a tile configuration of
    its own for bfloat16, and neither library may use the other's."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.integers(-2, 3, shape).astype(DTYPES["bfloat16"][0])  # noqa: E731
    work = []
    with convt.num_threads(threads):
        for ci, co, size in ((64, 48, 12), (40, 17, 9), (256, 64, 7), (32, 100, 20)):
            data, filter, bias = draw(2, size, size, ci), draw(4, 4, ci, co), draw(co)
            keywords = {"strides": 2, "pads_begin": 1, "pads_end": 1}
            want = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
            theirs = convt.ConvTranspose(filter, bias, backend="onednn", **keywords)
            for dtype in MATRIX_DTYPES:
                cast = [a.astype(DTYPES[dtype][0]) for a in (data, filter, bias)]
                ours = convt.ConvTranspose(*cast[1:], backend="native", algorithm="direct:amx", **keywords)
                work.append((ours, cast[0], want.astype(np.float64), theirs, data))

    def right(n):
        ours, data, want, theirs, halves = work[n % len(work)]
        with convt.num_threads(threads):
            for _ in range(3):
                got = [ours(data), theirs(halves), ours(data), ours(data), theirs(halves), theirs(halves)]
        return all(np.array_equal(g.astype(halves.dtype).astype(np.float64), want) for g in got)

    assert all(map(right, range(len(work))))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, range(3 * len(work))))


def test_the_process_asks_for_the_unit_once_and_works_without_it(isa):
    """Check that a process without matrix products, at the level below, only asks whether the unit exists."""
    script = "import convt; print(convt.show_config(mode='dicts')['isa']['in use'])"
    for level in (isa, "avx512"):
        assert child(script, CONVT_ISA=level)[:2] == (0, level + "\n")
    assert os.environ.get("CONVT_ISA") in (None, isa)
