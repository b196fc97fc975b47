"""Tests of packing: filters that are large enough for several threads to pack each panel, in every dtype and instruction set,
and weights that tasks of a one-shot call pack on the fly. Packed weights must give exact sums or the bits of prepacked ones."""

import numpy as np
import pytest
from cases import DTYPES, each_isa, matrix_unit, pretend, using_isa

import convt
from convt import _core
from convt._call import api
from convt._plan import plans, run
from convt.algorithms import packing

# groups, in-channels and out-channels of a group, kernel, stride
FILTERS = {
    "one panel": (1, 701, 5, (3, 3), 1),
    "panels cut short": (1, 333, 131, (2, 3), 1),
    "groups": (3, 517, 17, (4,), 1),
    "phases of one channel": (1, 640, 1, (4, 4), 2),
    "transformed": (1, 501, 40, (4, 4), 2),  # transformed weights, written by non-temporal stores
    "transformed, phases of a few channels": (1, 301, 3, (4, 4), 2),
    "transformed, several windows": (1, 170, 24, (5, 7), 1),
}


CASES = [(n, d) for n in FILTERS for d in DTYPES if not n.startswith("transformed") or d in ("float32", "float64")]
each_filter = pytest.mark.parametrize(("name", "dtype"), CASES)


def operands(name, dtype, seed=3):
    """Return arrays of small integers, whose sums are exact in every dtype."""
    groups, ci, co, kernel, stride = FILTERS[name]
    rng = np.random.default_rng(seed)
    draw = lambda shape: (rng.integers(-1, 2, shape) * (rng.random(shape) < 0.1)).astype(DTYPES[dtype][0])  # noqa: E731
    data, filter = draw((2, *(3,) * len(kernel), groups * ci)), draw((*kernel, groups * ci, co))
    algorithm = "winograd" if name.startswith("transformed") else "direct"
    return data, filter, draw(groups * co), {"strides": stride, "groups": groups}, algorithm


@each_isa
@each_filter
def test_every_weight_is_in_its_place(name, dtype, isa):
    data, filter, bias, keywords, algorithm = operands(name, dtype)
    wanted = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
    tolerance = 0 if algorithm == "direct" else 1e-4
    with using_isa(isa):
        for order in ("C", "F"):
            for threads in (1, 3):
                with convt.num_threads(threads):
                    got = convt.conv_transpose(data, np.asarray(filter, order=order), bias, algorithm=algorithm, **keywords)
                np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=0, atol=tolerance)


@each_isa
@each_filter
def test_no_weight_that_is_not_finite_is_overlooked(name, dtype, isa):
    data, filter, bias, keywords, algorithm = operands(name, dtype)
    places = np.random.default_rng(7).integers(0, filter.size, 3)
    with using_isa(isa):
        finite = lambda: not convt.ConvTranspose(filter, bias, algorithm=algorithm, **keywords).plan(data.shape).note  # noqa: E731
        assert finite()
        for place in (0, filter.size - 1, *places):
            before = filter.flat[place]
            filter.flat[place] = (np.nan, np.inf, -np.inf)[place % 3]
            assert not finite(), place
            filter.flat[place] = before
        assert finite()


# data, filter, keywords: channels that are not a multiple of a step of depth or of a panel; several classes, some at the
# window's edge; taps that are left out where they reach no input; few rows, multiplied with two panels at once; groups; several
# tap windows
PASSING = {
    "one tap": ((3, 5, 4, 300), (2, 2, 300, 141), {"strides": 2}),
    "edges": ((1, 9, 9, 96), (4, 4, 96, 64), {"strides": 2, "pads_begin": 1, "pads_end": 1}),
    "taps left out": ((1, 4, 3, 1024), (4, 4, 1024, 48), {"strides": 2, "pads_begin": 1, "pads_end": 1}),
    "one row": ((1, 1, 1, 520), (3, 3, 520, 96), {"strides": 3}),
    "groups": ((2, 7, 3 * 130), (4, 3 * 130, 80), {"strides": 2, "groups": 3}),
    "several windows": ((1, 6, 9, 64), (7, 8, 64, 96), {"strides": 2}),
    "cubes": ((1, 3, 4, 5, 34), (4, 4, 4, 34, 32), {"strides": 2}),
    "uneven": ((1, 6, 9, 300), (5, 3, 300, 40), {"strides": 2}),
}


def shots(name, dtype, algorithm, filter_format="XIO"):
    """Return (data, filter, keywords, plan of a one-shot call)."""
    shape, kernel, keywords = PASSING[name]
    rng = np.random.default_rng(len(name))
    data, filter = (rng.standard_normal(s).astype(DTYPES[dtype][0]) for s in (shape, kernel))
    if filter_format != "XIO":
        rank = filter.ndim - 2
        first = (rank + 1, rank) if filter_format == "OIX" else (rank, rank + 1)
        filter = np.ascontiguousarray(filter.transpose(*first, *range(rank)))
    keywords = {**keywords, "algorithm": algorithm, "filter_format": filter_format}
    attributes, view, _ = api.parse(filter, None, api.Keywords(**keywords))
    operator = plans.Plans(attributes, view, None, one_shot=True)
    return data, filter, keywords, run.contiguous(operator, attributes.problem(data.shape)).plan


@each_isa
@pytest.mark.parametrize("algorithm", ["direct:vectors", "direct:amx", "winograd:vectors", "winograd:amx"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PASSING)
def test_weights_packed_in_passing_give_the_same_bits(name, dtype, algorithm, isa):
    with using_isa(isa):
        if ":amx" in algorithm and not matrix_unit(dtype):
            pytest.skip("no matrix unit for this dtype")
        if "winograd" in algorithm and (dtype not in ("float32", "float64") or name in ("one tap", "one row")):
            pytest.skip("winograd does not accept the problem")
        for filter_format in ("XIO", "OIX", "IOX"):
            data, filter, keywords, _ = shots(name, dtype, algorithm, filter_format)
            bias = np.linspace(-1, 1, out_channels(filter, keywords)).astype(filter.dtype)
            wanted = convt.ConvTranspose(filter, bias, **keywords)(data).tobytes()
            for threads in (1, 3, 2, 2):
                with convt.num_threads(threads):
                    assert convt.conv_transpose(data, filter, bias, **keywords).tobytes() == wanted


def out_channels(filter, keywords):
    return filter.shape[{"XIO": -1, "OIX": 0, "IOX": 1}[keywords["filter_format"]]] * keywords.get("groups", 1)


@pytest.mark.parametrize("name", ["one tap", "taps left out", "one row"])
@pytest.mark.parametrize("filter_format", ["XIO", "OIX", "IOX"])
def test_panels_are_made_in_passing(name, filter_format):
    if _core.isa() == "baseline":
        pytest.skip("with vectors of 128 bits, the cost model of this machine packs some of these weights before")
    with pretend(family="zen4", l1=32 << 10, l2=1 << 20, l3=32 << 20):
        assert shots(name, "float32", "direct", filter_format)[3].packing_workspace


@pytest.mark.parametrize("name", ["cubes", "several windows", "edges", "uneven"])
@pytest.mark.parametrize("algorithm", ["winograd:vectors", "winograd:amx"])
@pytest.mark.parametrize("filter_format", ["XIO", "OIX"])
def test_points_are_made_in_passing(name, algorithm, filter_format):
    if ":amx" in algorithm and (not matrix_unit() or filter_format == "OIX" or name == "uneven"):
        pytest.skip("no matrix unit, or weights that are packed before the tasks run")
    with pretend(l2=2 << 20, pack_on_the_fly=0, pack_on_the_fly_again=100):
        assert shots(name, "float32", algorithm, filter_format)[3].packing_workspace


@pytest.mark.parametrize("algorithm", ["direct:vectors", "direct:amx", "winograd:vectors", "winograd:amx"])
@pytest.mark.parametrize("seed", range(24))
def test_random_weights_packed_in_passing(algorithm, seed):
    """Check whole panels of out-channels, and in-channels that fill no step of depth."""
    if ":amx" in algorithm and not matrix_unit():
        pytest.skip("no matrix unit")
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    kernel = rng.integers(2, (12, 6, 4)[rank - 1], rank, endpoint=True)
    ci, co = int(rng.integers(1, 300)), int(rng.choice([16, 32, 64]))
    strides = [int(rng.integers(1, k, endpoint=True)) for k in kernel]
    filter = rng.standard_normal((*kernel, ci, co)).astype(np.float32)
    data = rng.standard_normal((1, *rng.integers(2, (40, 8, 4)[rank - 1], rank, endpoint=True), ci)).astype(np.float32)
    with pretend(l2=16 << 20, pack_on_the_fly=0, pack_on_the_fly_again=1000):
        try:
            wanted = convt.ConvTranspose(filter, strides=strides, algorithm=algorithm)(data).tobytes()
        except ValueError:
            pytest.skip("winograd does not accept the problem")
        for _ in range(3):
            assert convt.conv_transpose(data, filter, strides=strides, algorithm=algorithm).tobytes() == wanted


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("name", ["edges", "taps left out"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_weights_met_in_passing_that_are_not_finite(name, algorithm, value):
    data, filter, keywords, _ = shots(name, "float32", algorithm)
    good, spoilt = filter.copy(), filter.copy()
    spoilt[1, 2, 7, 5] = value
    wanted = [convt.ConvTranspose(f, **keywords)(data).tobytes() for f in (good, spoilt)]
    out = convt.conv_transpose(data, good, **keywords)
    for n in (0, 1, 1, 0, 1, 0):
        filter[...] = (good, spoilt)[n]  # the same array with other values
        assert convt.conv_transpose(data, filter, out=out, **keywords).tobytes() == wanted[n]


# More phases or taps than NumPy's buffer of 8,192 elements has.
MANY = {
    "phases": ((9216,), (9216,)), "phases of two axes": ((128, 128), (128, 128)), "taps": ((9216,), (1,)),
    "both": ((9216,), (2,)),
}  # fmt: skip


@pytest.mark.parametrize("algorithm", ["auto", "direct", "scatter", "unpacked", "depthwise"])
@pytest.mark.parametrize("name", MANY)
def test_filters_of_many_taps(name, algorithm):
    kernel, strides = MANY[name]
    filter = (np.arange(np.prod(kernel)) % 8191 + 1).astype(np.float32).reshape(*kernel, 1, 1)
    data = np.arange(1, 4, dtype=np.float32).reshape(1, 3, *(1,) * len(kernel))
    wanted = convt.conv_transpose(data, filter, strides=strides, backend="reference")
    try:
        got = convt.conv_transpose(data, filter, strides=strides, algorithm=algorithm, backend="native")
    except ValueError:
        pytest.skip(f"{algorithm} does not accept the problem")
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 1, 7), (9216,), (96, 97), (21, 20, 23)])
def test_byte_offsets_of_taps(shape):
    taps = np.random.default_rng(0).permutation(np.prod(shape))
    strides = [4, -1000, 10**6][-len(shape) :]
    wanted = [np.dot(np.unravel_index(int(tap), shape), strides) for tap in taps]
    for view in (taps, taps[:, None], taps[None, :]):
        np.testing.assert_array_equal(packing.tap_bytes(view, shape, strides).ravel(), wanted)
