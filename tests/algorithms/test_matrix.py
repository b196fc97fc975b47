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
    FILTER_FORMATS,
    INPUT_MEMORY,
    ISA_ROWS,
    SAMPLES,
    Case,
    Out,
    assert_same,
    child,
    copy_in,
    filter_in,
    operator,
    run,
    taken,
    using_isa,
)

import convt
from convt._model import machine
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


def drawn(rng, dtype, rank, ci, co):
    """Draw a problem with these channels. It is small enough for the definition in float64."""
    top = {1: 40, 2: 8, 3: 4}[rank]
    pick = lambda *values: tuple(int(v) for v in rng.choice(values, rank))  # noqa: E731
    while True:
        case = Case(
            dtype=dtype, batch=int(rng.choice([1, 2, 3])), groups=int(rng.choice([1, 1, 1, 2, 3])), ci=ci, co=co,
            in_sizes=pick(*range(1, top + 1)), kernel=pick(1, 2, 3, 4)[: rank], strides=pick(1, 1, 2, 3),
            dilations=pick(1, 1, 2), pads_begin=pick(0, 0, 1, 2), pads_end=pick(0, 0, 1, 3), output_padding=pick(0, 0, 2),
            bias=bool(rng.integers(2)), data_format=str(rng.choice(DATA_FORMATS)),
            filter_format=str(rng.choice(FILTER_FORMATS)), seed=int(rng.integers(1 << 16)),
            activation=[*EXACT_ACTIVATIONS[:-1], ("clip", -0.5, 1), *CURVED_ACTIVATIONS][rng.integers(8)],
        )  # fmt: skip
        if min(case.out_shape) >= 1:
            return case


@each_dtype
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_as_exact_as_direct(rank, dtype):
    rng = np.random.default_rng(rank)
    ratios = []
    for ci, co in itertools.product((1, 16, 31, 32, 33, 48, 96, 300), (1, 8, 17, 32, 33, 100)):
        case = drawn(rng, dtype, rank, ci, co)
        data, filter, bias = case.arrays(exact=False)
        data = copy_in(str(rng.choice(INPUT_MEMORY)), data)
        with convt.num_threads(int(rng.integers(1, 4))):
            got, direct = both(case, data, filter, bias)
        assert got.dtype == case.numpy_dtype and got.shape == case.out_shape
        exact = case.expected(data, filter, bias)
        errors = [np.abs(found.astype(np.float64) - exact) for found in (got, direct)]
        scale = max(1.0, case.expected(data, filter, bias, magnitude=True).max())
        case.check(got, data, filter, bias, exact=False)
        assert errors[0].max() <= 1.5 * errors[1].max() + MORE[dtype] * scale, case
        ratios.append([np.sqrt(np.mean(error**2)) for error in errors])
    matrix, direct = np.mean(ratios, 0)
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
def test_batch_of_nothing(dtype):
    case = replace(SAMPLES["dense"], dtype=dtype, batch=0)
    got = run(case, *case.arrays(), algorithm="direct:amx")
    assert got.shape == case.out_shape and got.size == 0
    for empty in (replace(case, batch=2, ci=0), replace(case, batch=2, co=0), replace(case, batch=1, in_sizes=(0, 3))):
        arrays = empty.arrays()
        empty.check(run(empty, *arrays, algorithm="direct:amx"), *arrays)


@each_dtype
@pytest.mark.parametrize("activation", EXACT_ACTIVATIONS)
@pytest.mark.parametrize("memory", ["contiguous", "an element off", "strided", "reversed", "cropped", "byte off", "field"])
def test_nothing_but_the_result_is_read_or_written(memory, activation, dtype):
    for co, data_format in ((40, "NXC"), (33, "NXC"), (8, "NXC"), (33, "NCX")):
        case = replace(SAMPLES["dense"], dtype=dtype, co=co, activation=activation, data_format=data_format)
        data, filter, bias = case.arrays()
        out = Out(memory, np.zeros(case.out_shape, case.numpy_dtype))
        op = operator(case, filter, bias, algorithm="direct:amx")
        assert op(copy_in(memory, data), out=out.view) is out.view
        case.check(np.array(out.view), data, filter, bias)
        out.assert_only_elements_written()


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


@each_value
@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("place", [0, -1, 1234])
def test_data_at_its_bounds(place, data_format, value):
    case = Case(batch=2, ci=40, co=33, in_sizes=(6, 9), kernel=3, strides=(2, 1), pads_begin=(1, 0), data_format=data_format)
    data, filter, bias = case.arrays(exact=False)
    number, fits = OUTSIDE[value]
    data.reshape(-1)[place] = number
    op, direct = (operator(case, filter, bias, algorithm=name) for name in ("direct:amx", "direct:vectors"))
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
            assert run(case, data, filter, bias, algorithm="direct:amx").tobytes() == got.tobytes()
    data.reshape(-1)[place] = 1
    assert taken(op, data)
    assert op(data).tobytes() != direct(data).tobytes()


@pytest.mark.parametrize("place", [0, -1, 1234])
@each_value
def test_weights_at_their_bounds(value, place):
    case = Case(ci=40, co=33, in_sizes=(20,), kernel=4, strides=2)
    data, filter, bias = case.arrays(exact=False)
    good = run(case, data, filter, bias, algorithm="direct:amx").tobytes()
    number, fits = OUTSIDE[value]
    spoilt = filter.copy()
    spoilt.reshape(-1)[place] = number = {BELOW: WEIGHTS_BELOW, -BELOW: -WEIGHTS_BELOW}.get(number, number)
    op = operator(case, spoilt, bias, algorithm="direct:amx")
    plan = op.plan(data.shape)
    assert (plan.key, bool(plan.note)) == (("direct:amx", False) if fits else ("direct:vectors", True))
    want = operator(case, spoilt, bias, algorithm="direct:vectors")(data)
    for _ in range(2):
        assert (op(data).tobytes() == want.tobytes()) is (not fits)
        assert (run(case, data, spoilt, bias, algorithm="direct:amx").tobytes() == want.tobytes()) is (not fits)
        assert run(case, data, filter, bias, algorithm="direct:amx").tobytes() == good
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


# ---------------------------------------------------------------- packing

PHASES = {  # out-channels, kernel, stride: vectors with columns of several phases, columns that are not adjacent, cut ones
    "eight channels": (8, (4, 4), (2, 2)),
    "five channels": (5, (4, 6), (2, 3)),
    "one channel": (1, (4, 4), (2, 2)),
    "one channel, taps left over": (1, (5, 3), (2, 2)),
    "three phases": (11, (3, 2), (3, 1)),
    "two vectors": (32, (4, 4), (2, 2)),
    "many": (100, (3, 3), (1, 2)),
}


@each_dtype
@pytest.mark.parametrize("ci", [5, 32, 40, 300])
@pytest.mark.parametrize("phases", PHASES)
def test_weights_in_every_order(phases, ci, dtype):
    co, kernel, strides = PHASES[phases]
    case = Case(
        dtype=dtype, batch=2, ci=ci, co=co, in_sizes=(5, 4), kernel=kernel, strides=strides, pads_begin=(1, 0), pads_end=(0, 1),
    )  # fmt: skip
    data, _, bias = case.arrays()
    groups_first = np.random.default_rng(1).integers(-3, 4, (1, ci, co, *kernel)).astype(case.numpy_dtype)
    want = None
    for filter_format in FILTER_FORMATS:
        now = replace(case, filter_format=filter_format)
        filter = filter_in(filter_format, groups_first)
        for memory in ("contiguous", "fortran", "reversed", "strided", "permuted"):
            for threads in (1, 3):
                with convt.num_threads(threads):
                    view = copy_in(memory, filter)
                    got = run(now, data, view, bias, algorithm="direct:amx")
                    packed = operator(now, view, bias, algorithm="direct:amx")
                    assert packed.plan(data.shape).key == "direct:amx"
                    assert packed(data).tobytes() == got.tobytes()
            if want is None:
                want = got
                now.check(got, data, filter, bias)
            assert got.tobytes() == want.tobytes()


# ---------------------------------------------------------------- threads, processes, other users of the unit


_FORK = """
import os, sys
import numpy as np, convt
from cases import SAMPLES, operator, run
case = SAMPLES["dense"]
data, filter, bias = case.arrays()
op = operator(case, filter, bias, algorithm="direct:amx")
want = case.expected(data, filter, bias).astype(data.dtype)
def right():
    return all((f() == want).all() for f in (lambda: op(data), lambda: run(case, data, filter, bias, algorithm="direct:amx")))
convt.set_num_threads(int(sys.argv[1]))
if sys.argv[2] == "used":
    assert right()
child = os.fork()
if child == 0:
    os._exit(0 if op.plan(data.shape).key == "direct:amx" and right() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert right()
"""


@pytest.mark.parametrize("used", ["used", "unused"])
@pytest.mark.parametrize("threads", [1, 3])
def test_a_forked_child_computes(threads, used, isa):
    code, _, errors = child(_FORK, threads, used, CONVT_ISA=isa)
    assert code == 0, errors


def test_calls_from_many_threads():
    work = []
    for dtype, case in itertools.product(MATRIX_DTYPES, SAMPLES.values()):
        case = replace(case, dtype=dtype)
        data, filter, bias = case.arrays()
        op = operator(case, filter, bias, algorithm="direct:amx")
        work.append((op, data, op(data).tobytes()))
        case.check(op(data), data, filter, bias)
    for threads in (1, 2):

        def same(n, threads=threads):
            op, data, want = work[n % len(work)]
            with convt.num_threads(threads):
                return op(data).tobytes() == want

        with ThreadPoolExecutor(6) as pool:
            assert all(pool.map(same, range(20 * len(work))))


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


@pytest.mark.parametrize(("batch", "ci", "co", "activation"), [(3, 64, 48, "relu"), (1, 288, 64, "none")])
def test_results_too_large_for_the_caches_are_sent_off_late(batch, ci, co, activation):
    """Check results too large for the caches."""
    rng = np.random.default_rng(0)
    pixels = machine.current().limits.amx_non_temporal // (4 * (ci + co) * batch) + 37
    x = rng.standard_normal((batch, pixels, ci), dtype=np.float32)
    filter = rng.standard_normal((1, ci, co), dtype=np.float32)
    bias = rng.standard_normal(co, dtype=np.float32)
    keywords = {"activation": activation, "backend": "native"}
    names = "direct:amx", "direct:vectors"
    matrix, direct = (convt.ConvTranspose(filter, bias, algorithm=name, **keywords) for name in names)
    found = []
    for threads in (1, 2):
        with convt.num_threads(threads):
            found.append(matrix(x))
    expected = direct(x)
    np.testing.assert_allclose(found[0], expected, rtol=0, atol=2e-6 * abs(expected).max())
    assert found[0].tobytes() == found[1].tobytes()
