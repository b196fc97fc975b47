"""Tests of numerical behaviour: the width of sums, the single rounding of 16-bit types, NaN and infinity, signed zeros,
denormals, activations, determinism and the less exact precisions. Results are compared with the float64 definition in cases.py,
or with exact values."""

import warnings
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cases import (
    ALGORITHMS,
    CURVED_ACTIVATIONS,
    DATA_FORMATS,
    DTYPES,
    EXACT_ACTIVATIONS,
    ISAS,
    NCX_ONLY,
    Case,
    activate,
    assert_same,
    cases,
    child,
    copy_in,
    doing,
    each_dtype,
    each_isa,
    each_sample,
    matrix_unit,
    may_refuse,
    operator,
    run,
    using_isa,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import convt
from convt import _core
from convt._plan import plans
from convt.algorithms import name_of

HALVES = [name for name, (dtype, _) in DTYPES.items() if dtype.itemsize == 2]
each_half = pytest.mark.parametrize("dtype", HALVES)
each_wide = pytest.mark.parametrize("dtype", ["float32", "float64"])
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)


def line(ci=1, co=1, n=1, **more):
    """Return a 1-D problem with a kernel of one tap: ``n`` dot products of length ci."""
    return Case(ci=ci, co=co, in_sizes=(n,), bias=False, **more)


# Problems whose outputs sum 4096 products: over channels, over taps, over both, and over the channels of one group and its taps
# for depthwise.
SUMS = {
    "channels": (line(ci=4096, co=3, n=2), "auto"),
    "taps": (Case(in_sizes=(64, 64), kernel=64, pads_begin=63, pads_end=63, bias=False), "auto"),
    "both": (Case(ci=64, co=2, in_sizes=(64,), kernel=64, pads_begin=63, pads_end=63, bias=False), "auto"),
    "scatter": (Case(ci=64, co=2, in_sizes=(64,), kernel=64, pads_begin=63, pads_end=63, bias=False), "scatter"),
    "depthwise": (Case(groups=3, in_sizes=(4096,), kernel=4096, pads_begin=4095, pads_end=4095, bias=False), "depthwise"),
}  # fmt: skip
each_sum = pytest.mark.parametrize("case, algorithm", SUMS.values(), ids=SUMS)


@each_isa
@each_half
@each_sum
def test_halves_sum_in_float32(case, algorithm, dtype, isa):
    """Check that a sum of 4096 ones is exact. A float16 sum would stop at 2048, a bfloat16 sum at 256."""
    case = replace(case, dtype=dtype)
    data, filter, _ = (a if a is None else np.ones_like(a) for a in case.arrays())
    with using_isa(isa):
        got = run(case, data, filter, algorithm=algorithm)
    assert_same(got, np.full(case.out_shape, 4096, got.dtype))


@each_isa
@pytest.mark.parametrize("ci, places", [(3, (0, 1, 2)), (700, (0, 350, 699))])
def test_halves_may_pass_their_own_range_on_the_way(ci, places, isa):
    """Check that partial sums may exceed the range of float16: 40000 + 40000 - 40000, with the terms adjacent and in three
    depth chunks."""
    case = line(ci=ci, co=5, n=3, dtype="float16")
    data, filter, _ = (a if a is None else np.zeros_like(a) for a in case.arrays())
    data[...] = 1
    for place, value in zip(places, (40000, 40000, -40000), strict=True):
        filter[:, place] = value
    with using_isa(isa):
        assert_same(run(case, data, filter), np.full(case.out_shape, 40000, np.float16))


@each_isa
@each_half
@pytest.mark.parametrize("algorithm", ["direct", "scatter", "depthwise"])
@pytest.mark.parametrize("activation", EXACT_ACTIVATIONS)
def test_halves_round_once(dtype, isa, algorithm, activation):
    """Integer sums that float32 holds and the dtype does not, ties among them: the result is the sum rounded once, to even."""
    top = 255 if dtype == "bfloat16" else 100
    for shape in ({"groups": 5, "ci": 12, "co": 1}, {"ci": 16, "co": 21}):
        case = Case(**shape, dtype=dtype, in_sizes=(11,), kernel=3, strides=2, pads_begin=1, activation=activation, batch=2)
        rng = np.random.default_rng(0)
        data, filter, bias = (rng.integers(-top, top + 1, a.shape).astype(a.dtype) for a in case.arrays())
        with using_isa(isa):
            got = run(case, data, filter, bias, algorithm=algorithm)
        exact = case.expected(data, filter, bias)
        assert_same(got, exact.astype(got.dtype))
        assert activation in ("relu", ("clip", -3, 5.5)) or (got.astype(np.float64) != exact).mean() > 0.3


@each_isa
def test_float16_results_below_the_normal_range_round_once(isa):
    case = line(ci=9, co=33, n=40, dtype="float16")
    rng = np.random.default_rng(0)
    data, filter = (
        (rng.integers(-15, 16, a.shape) * 2.0**-e).astype(np.float16) for a, e in zip(case.arrays(), (14, 13), strict=False)
    )
    with using_isa(isa):
        got = run(case, data, filter)
    want = case.expected(data, filter, None)
    assert 0 < np.abs(want).max() < 2**-14
    assert_same(got, want.astype(np.float16))


@each_isa
def test_float64_sums_in_float64(isa):
    case = line(ci=300, co=9, n=3, dtype="float64")
    data, filter, _ = (a if a is None else np.zeros_like(a) for a in case.arrays())
    data[...] = 1
    filter[:, 0], filter[:, 299] = 1, 2.0**-50
    with using_isa(isa):
        assert_same(run(case, data, filter), np.full(case.out_shape, 1 + 2.0**-50))


# ---------------------------------------------------------------- NaN and Inf


def spoil(array, places, values):
    """Put NaN or infinity at some elements of an array, if it has any."""
    if array is not None and array.size:
        for place, value in zip(places, values, strict=False):
            array.reshape(-1)[place % array.size] = value
    return array


@each_isa
@each_dtype
@pytest.mark.parametrize("memory", ["contiguous", "fortran", "permuted", "reversed", "strided", "cropped"])
def test_one_bad_element_is_seen_wherever_it_is(memory, dtype, isa):
    dtype_, shape = DTYPES[dtype][0], (3, 70, 601)
    largest = ml_dtypes.finfo(dtype_).max
    a = copy_in(memory, np.full(shape, largest, dtype_))
    rng = np.random.default_rng(0)
    with using_isa(isa):
        for threads in (1, 3):
            assert _core.finite(dtype, a, threads) and _core.finite(dtype, -a, threads)
            assert _core.finite(dtype, a[:0], threads)
            for place in [(0, 0, 0), (2, 69, 600), *zip(*(rng.integers(0, n, 5) for n in shape), strict=True)]:
                for bad in (np.nan, np.inf, -np.inf):
                    a[place] = bad
                    assert not _core.finite(dtype, a, threads), (place, bad)
                a[place] = largest


# ---------------------------------------------------------------- zeros and denormals


@each_isa
@each_wide
@each_algorithm
def test_denormals_survive(dtype, algorithm, isa):
    info = np.finfo(DTYPES[dtype][0])
    layout = "NCX" if name_of(algorithm) in NCX_ONLY else "NXC"
    case = Case(dtype=dtype, groups=3, ci=2, co=2, in_sizes=(21,), kernel=2, bias=False, data_format=layout)
    data, filter, _ = case.arrays()
    filter[...] = 1
    data = (np.abs(data) * info.smallest_subnormal).astype(data.dtype)
    with using_isa(isa):
        if ":amx" in algorithm and not matrix_unit(dtype):
            pytest.skip(f"{isa} has no matrix unit for {dtype}")
        got = run(case, data, filter, algorithm=algorithm)
        assert_same(got, case.expected(data, filter, None).astype(data.dtype))
        assert (got > 0).any() and (got < info.tiny).all()
        # Products of normal numbers that are too small to be normal.
        root = data.dtype.type(2.0) ** (info.minexp // 2 - 4)
        got = run(case, np.full_like(data, root), filter * root, algorithm=algorithm)
    assert (got > 0).all() and (got < info.tiny).all()


@each_isa
@each_wide
@pytest.mark.parametrize("activation", [None, "relu", ("leaky_relu", 0.25), ("clip", -1, 1), "tanh"])
def test_the_sign_of_zero_survives(dtype, activation, isa):
    """Check that -0 * 1 + -0 is -0, which activations that map 0 to 0 must keep."""
    for algorithm in ("auto", "rows", "turned"):
        layout = "NCX" if name_of(algorithm) in NCX_ONLY else "NXC"
        case = replace(line(co=19, n=5, dtype=dtype, activation=activation), data_format=layout)
        data, filter, _ = case.arrays()
        bias = np.full(19, -0.0, data.dtype)
        with using_isa(isa):
            got = run(case, np.full_like(data, -0.0), np.ones_like(filter), bias, algorithm=algorithm)
        assert (got == 0).all() and np.signbit(got).all(), algorithm


def test_the_process_keeps_its_denormals_and_rounding():
    """Neither import nor computation sets flush-to-zero or a rounding mode, in the caller's thread or in convt's threads."""
    script = """
import numpy as np
def state():
    tiny, one = np.full(64, 1e-40, np.float32), np.full(64, 1.0)
    return (tiny * np.float32(0.5)).tobytes(), (tiny + tiny).tobytes(), (one / 3).tobytes(), (one * 5e-324).tobytes()
before = state()
import convt
assert state() == before
with convt.num_threads(3):
    convt.conv_transpose(np.ones((4, 20, 20, 32), np.float32), np.ones((3, 3, 32, 32), np.float32), activation="gelu")
    tiny = np.full((4, 20, 20, 32), 1e-44, np.float32)
    assert convt.conv_transpose(tiny, np.ones((3, 3, 32, 32), np.float32)).min() > 0
assert state() == before and np.frombuffer(before[0], np.float32).min() > 0
"""
    code, _, errors = child(script)
    assert code == 0, errors


# ---------------------------------------------------------------- activations


def pointwise(x, activation, co=1):
    """Return the activation of each element of x, computed with one tap of weight 1 and ``co`` copies that must agree."""
    got = convt.conv_transpose(x.reshape(1, -1, 1), np.ones((1, 1, co), x.dtype), activation=activation)
    assert all(got[0, :, 0].tobytes() == got[0, :, c].tobytes() for c in range(1, co))
    return got[0, :, 0]


def every_number(dtype):
    """Return all numbers of a 16-bit dtype, or many numbers of all magnitudes of another dtype."""
    if dtype in HALVES:
        return np.arange(2**16, dtype=np.uint16).view(DTYPES[dtype][0])
    info = np.finfo(DTYPES[dtype][0])
    sizes = np.exp2(np.linspace(info.minexp - 20, info.maxexp, 20001)[:-1])
    dense = np.linspace(-120, 120, 60001)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, info.min, info.tiny, info.smallest_subnormal]
    with np.errstate(over="ignore"):
        return np.concatenate([sizes, -sizes, dense, special]).astype(DTYPES[dtype][0])


# Largest error before rounding to the dtype, in units of max(1, |result|).
_ERROR = {name: 1e-15 if dtype.itemsize == 8 else 5e-7 for name, (dtype, _) in DTYPES.items()}


@each_isa
@each_dtype
@pytest.mark.parametrize("activation", EXACT_ACTIVATIONS[1:] + CURVED_ACTIVATIONS)
def test_activations_over_the_whole_range(activation, dtype, isa):
    x = every_number(dtype)
    if isa == "avx512_bf16" and dtype == "bfloat16":  # the dot product of this instruction set flushes denormals to zero
        x = x[(x.view(np.uint16) & 0x7F80 != 0) | (x.view(np.uint16) & 0x7F == 0)]
    with using_isa(isa):
        got = pointwise(x, activation, co=3)
    with np.errstate(over="ignore", invalid="ignore"):  # 16-bit patterns include signalling NaNs
        exact = activate(activation, x.astype(np.float64))
        want = exact.astype(x.dtype)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))  # includes GELU and swish of -inf
    if activation in EXACT_ACTIVATIONS:
        assert_same(got, want)
        return
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    some = np.isfinite(want)
    unit = np.maximum(1, np.abs(exact[some]))
    rounding = np.abs(want[some].astype(np.float64) - exact[some])
    error = np.abs(got[some].astype(np.float64) - exact[some])
    assert ((error - rounding) / unit).max() <= _ERROR[dtype] + (ml_dtypes.finfo(x.dtype).eps if dtype in HALVES else 0)
    # Where the error before rounding cannot change the rounded value, the result is that value.
    assert (got[some] == want[some]).mean() > (0.98 if dtype in HALVES else 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("activation", EXACT_ACTIVATIONS + CURVED_ACTIVATIONS)
def test_activation_and_bias_where_no_product_reaches(activation, dtype):
    bias = np.array([1.5, -2, 0, np.inf, -np.inf, np.nan, 1e4], DTYPES[dtype][0])
    case = Case(dtype=dtype, ci=2, co=7, in_sizes=(3,), kernel=2, strides=4, output_padding=9, activation=activation)
    data, filter, _ = case.arrays()
    got = run(case, data, filter, bias)
    want = activate(activation, bias.astype(np.float64)).astype(bias.dtype).astype(np.float64)
    without_products = [o for o in range(case.out_shape[1]) if o % 4 >= 2 or o >= 10]
    assert len(without_products) == 13
    for o in without_products:
        np.testing.assert_allclose(got[0, o].astype(np.float64), want, rtol=DTYPES[dtype][1], atol=1e-6)


# ---------------------------------------------------------------- determinism


@each_sample
@each_dtype
@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_results_are_the_same_bits_for_any_number_of_threads(case, dtype, algorithm):
    case = replace(case, dtype=dtype, activation="gelu")
    data, filter, bias = case.arrays(exact=False)
    results, shots = set(), set()  # one-shot calls may choose another algorithm, because they pack the weights each time
    kept = operator(case, filter, bias, algorithm=algorithm)  # its plans serve any number of threads
    for n in (1, 2, 3, 1, 7):
        with convt.num_threads(n):
            op = operator(case, filter, bias, algorithm=algorithm)
            try:
                used = op.plan(data.shape).threads
            except ValueError as error:
                assert algorithm != "direct:vectors" and str(error).startswith("algorithm: got")
                return
            assert used == 1 if n == 1 else 1 < used <= n
            assert kept.plan(data.shape) == op.plan(data.shape)
            results |= {f(data).tobytes() for f in (op, kept, op, kept)}
            shots.add(run(case, data, filter, bias, algorithm=algorithm).tobytes())
    assert len(results) == len(shots) == 1


@each_isa
@each_wide
def test_huge_and_tiny_values_keep_their_scale(dtype, isa):
    """Check the largest number times 1, and the product of a huge and a tiny number."""
    info = np.finfo(DTYPES[dtype][0])
    case = line(ci=1, co=9, n=4, dtype=dtype)
    data, filter, _ = case.arrays()
    with using_isa(isa):
        got = run(case, np.full_like(data, info.max), np.ones_like(filter))
        assert_same(got, np.full_like(got, info.max))
        got = run(case, np.full_like(data, info.tiny), np.full_like(filter, 2.0 ** (-info.minexp)))
        assert_same(got, np.ones_like(got))


# ---------------------------------------------------------------- less exact precisions, and 16-bit types

LESS = [name for name, each in plans.ALGORITHMS.items() if each.precision != "highest"]
# (algorithm, precision) pairs with which a caller accepts less exact results
CHOICES = [("auto", "high"), ("auto", "medium"), *((name, None) for name in LESS)]
each_choice = pytest.mark.parametrize(
    "algorithm, precision", CHOICES, ids=[f"{name} {word or ''}".strip() for name, word in CHOICES]
)


def every_way(case, data, filter, bias=None, **more):
    """Return the results of a one-shot call twice, of an operator twice, and of both with ``out``."""
    out = lambda: np.full(case.out_shape, 7, case.numpy_dtype)  # noqa: E731
    more.setdefault("backend", "native")
    op = operator(case, filter, bias, **more)
    return (
        run(case, data, filter, bias, **more), run(case, data, filter, bias, **more), op(data), op(data),
        run(case, data, filter, bias, out=out(), **more), op(data, out=out()),
    )  # fmt: skip


def assert_like_the_sum(case, results, data, filter, bias, tolerance, denormals=0):
    """Assert NaN, Inf and -Inf where the direct sum has them. The other errors are bounded: by ``tolerance`` in units of the
    largest sum of the products' magnitudes, plus ``denormals`` in units of float32's smallest number."""
    exact = case.expected(data, filter, bias)
    with np.errstate(over="ignore"):
        want = exact.astype(case.numpy_dtype).astype(np.float64)
    some, finite = np.isfinite(want), [None if a is None else np.where(np.isfinite(a), a, 0) for a in (data, filter, bias)]
    scale = max(case.expected(*finite, magnitude=True).max(initial=0), 1e-300)
    for got in results:
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.where(np.isinf(got), got, 0), np.where(np.isinf(want), want, 0))
        error = np.abs(got[some].astype(np.float64) - want[some]).max(initial=0)
        assert error <= tolerance * scale + denormals * 2.0**-149, (error, scale)


def one_that_does(case, algorithm):
    """Return the case in the layout that the algorithm needs."""
    return replace(case, data_format="NCX") if name_of(algorithm) in NCX_ONLY else case


@pytest.mark.parametrize("which", ["data", "filter", "bias", "all"])
@settings(max_examples=240)
@given(
    case=cases(), choice=st.sampled_from([("auto", None), *((name, None) for name in ALGORITHMS), *CHOICES]),
    isa=st.sampled_from(ISAS), places=st.lists(st.integers(0, 2**20), min_size=1, max_size=3),
    values=st.lists(st.sampled_from([np.nan, np.inf, -np.inf]), min_size=3, max_size=3),
)  # fmt: skip
def test_nan_and_inf_reach_exactly_the_outputs_whose_sums_contain_them(which, case, choice, isa, places, values):
    algorithm, precision = choice
    case = one_that_does(case, algorithm)
    arrays = dict(zip(("data", "filter", "bias"), case.arrays(), strict=True))
    for name, array in arrays.items():
        if which in (name, "all"):
            spoil(array, places, values)
    with using_isa(isa), may_refuse():
        if choice in CHOICES:
            results = every_way(case, *arrays.values(), algorithm=algorithm, precision=precision)
            assert_like_the_sum(case, results, *arrays.values(), tolerance=2e-2)
        else:
            case.check(run(case, *arrays.values(), algorithm=algorithm), *arrays.values())


# Long kernels for winograd, and kernels as long as the stride, with enough channels for every unit.
WIDE = {
    "overlapping": Case(ci=70, co=40, in_sizes=(6, 7), kernel=(4, 3), strides=2, pads_begin=(1, 0), pads_end=(0, 1)),
    "apart": Case(ci=100, co=40, in_sizes=(6, 7), kernel=2, strides=2, data_format="NCX"),
    "few": Case(ci=70, co=3, in_sizes=(6, 7), kernel=5, strides=2, pads_begin=(2, 1), pads_end=(1, 2)),
}  # fmt: skip
each_wide_case = pytest.mark.parametrize("case", WIDE.values(), ids=WIDE)


@each_isa
@each_choice
@each_wide_case
def test_bad_values_stay_where_they_are_at_less_precision(case, algorithm, precision, isa):
    case = one_that_does(case, algorithm)
    with doing(case, algorithm, isa):
        spoilt = (("data", (700, 3001), None), ("filter", (70, 77), ("leaky_relu", 0.25)), ("bias", (1,), ("clip", -300, 300)))
        for which, places, activation in spoilt:
            case = replace(case, activation=activation)
            arrays = dict(zip(("data", "filter", "bias"), case.arrays(), strict=True))
            for array in arrays.values():
                array[array == 0] = 1  # because 0 * Inf is NaN
            spoil(arrays[which], places, (np.nan, -np.inf))
            results = every_way(case, *arrays.values(), algorithm=algorithm, precision=precision)
            assert_like_the_sum(case, results, *arrays.values(), tolerance=2e-2)
            assert not np.isnan(results[0]).all() and np.isnan(results[0]).any()


_MAX = float(np.finfo(np.float32).max)
_RANGES = ((1e-40, 1), (1, 1e-40), (2.0**-70, 2.0**-70), (2.0**-30, 2.0**-100), (2.0**100, 2.0**-80), (_MAX, 2.0**-12))


@each_isa
@each_choice
@each_wide_case
def test_float32_keeps_its_range_at_less_precision(case, algorithm, precision, isa):
    """Denormals, as inputs and as products, and the largest numbers, which rounding to bfloat16 would turn into infinity."""
    case = one_that_does(replace(case, bias=False), algorithm)
    signs = [None if a is None else np.sign(a + 0.5) for a in case.arrays()]
    with doing(case, algorithm, isa):
        for size, weight in (*_RANGES, _RANGES[-1][::-1]):
            data, filter = (signs[0] * size).astype(np.float32), (signs[1] * weight).astype(np.float32)
            more = {"algorithm": algorithm, "precision": precision, "backend": "native"}
            op = operator(case, filter, **more)
            results = run(case, data, filter, **more), op(data), op(data)
            # Winograd's transforms of six points multiply errors of a denormal's last bit by up to some ten thousand.
            denormals = 1e5 if algorithm in ("winograd:six:vectors", "auto") else 1e3
            assert_like_the_sum(case, results, data, filter, None, 2e-2, denormals)
            assert all((got != 0).any() for got in results)


@each_isa
@each_half
@each_algorithm
@pytest.mark.parametrize("layout", DATA_FORMATS)
def test_halves_overflow_in_the_last_rounding_alone(layout, dtype, algorithm, isa):
    """Check that sums beyond the range of the type are infinite even if their parts were in range, and that sums in range are
    finite even if a partial sum was not."""
    top = float(ml_dtypes.finfo(DTYPES[dtype][0]).max)
    weights = np.array([[1, 1], [1, -0.5], [-1, -1], [0.5, 0.25], [-0.75, -0.5], [1, -1], [0.5, 0.4375]]) * top * 0.75
    case = one_that_does(
        Case(dtype=dtype, groups=5, ci=2, co=7, in_sizes=(21,), kernel=3, strides=2, bias=False, data_format=layout),
        algorithm,
    )
    data, filter, _ = case.arrays()
    data, filter = np.ones_like(data), np.zeros_like(filter)
    filter[0] = filter[2] = np.tile(weights.T, (5, 1)).astype(filter.dtype) / filter.dtype.type(2)
    filter[1] = filter[0]
    if dtype == "bfloat16":  # room for float32's partial sums
        filter = (filter.astype(np.float32) * 0.5).astype(filter.dtype)
    with doing(case, algorithm, isa):
        assert_like_the_sum(case, every_way(case, data, filter, algorithm=algorithm), data, filter, None, tolerance=1e-2)
    want = case.expected(data, filter, None)
    assert dtype == "bfloat16" or (np.abs(want) > top).any()


def test_what_no_tap_reaches_overflows_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x, w, bias = np.ones((1, 2, 1), np.float16), np.ones((1, 1, 1), np.float16), np.full(1, 6e4, np.float16)
        got = convt.conv_transpose(x, w, bias, strides=2, activation=("clip", 1e6, 1e7), algorithm="direct:vectors")
    assert got.shape == (1, 3, 1) and np.isinf(got).all()
