"""Tests of packing: filters that are large enough for several threads to pack each panel, in every dtype and instruction set,
and weights that tasks of a one-shot call pack on the fly. Packed weights must give exact sums or the bits of prepacked ones."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    DTYPES,
    FILTER_FORMATS,
    NCX_ONLY,
    Case,
    copy_in,
    each_isa,
    filter_in,
    filter_out,
    matrix_unit,
    may_refuse,
    operator,
    pretend,
    random_case,
    run,
    using_isa,
)

import convt
from convt import _core
from convt._call import api
from convt._plan import plans
from convt._plan.run import contiguous
from convt.algorithms import name_of, packing

FILTERS = {
    "one panel": Case(batch=2, ci=701, co=5, in_sizes=(3, 3), kernel=3),
    "panels cut short": Case(batch=2, ci=333, co=131, in_sizes=(3, 3), kernel=(2, 3)),
    "groups": Case(batch=2, groups=3, ci=517, co=17, in_sizes=(3,), kernel=4),
    "phases of one channel": Case(batch=2, ci=640, in_sizes=(3, 3), kernel=4, strides=2),
}
TRANSFORMED = {
    "by non-temporal stores": Case(batch=2, ci=501, co=40, in_sizes=(3, 3), kernel=4, strides=2),
    "phases of a few channels": Case(batch=2, ci=301, co=3, in_sizes=(3, 3), kernel=4, strides=2),
    "several windows": Case(batch=2, ci=170, co=24, in_sizes=(3, 3), kernel=(5, 7)),
}
each_filter = pytest.mark.parametrize(
    ("case", "algorithm"),
    [
        pytest.param(replace(case, dtype=dtype), algorithm, id=f"{algorithm} {name} {dtype}")
        for algorithm, named, dtypes in (("direct", FILTERS, DTYPES), ("winograd", TRANSFORMED, ("float32", "float64")))
        for (name, case), dtype in itertools.product(named.items(), dtypes)
    ],
)


@each_isa
@each_filter
def test_every_weight_is_in_its_place(case, algorithm, isa):
    data, filter, bias = case.arrays()
    with using_isa(isa):
        for memory, threads in itertools.product(("contiguous", "fortran"), (1, 3)):
            with convt.num_threads(threads):
                got = run(case, data, copy_in(memory, filter), bias, algorithm=algorithm)
            case.check(got, data, filter, bias, exact=algorithm == "direct")


@each_isa
@each_filter
def test_no_weight_that_is_not_finite_is_overlooked(case, algorithm, isa):
    _, filter, bias = case.arrays()
    places = np.random.default_rng(7).integers(0, filter.size, 3)
    with using_isa(isa):
        finite = lambda: not operator(case, filter, bias, algorithm=algorithm).plan(case.data_shape).note  # noqa: E731
        assert finite(), f"{algorithm} on {isa}: got a note of a weight that is not finite before there is one"
        for place in (0, filter.size - 1, *places):
            before = filter.flat[place]
            filter.flat[place] = (np.nan, np.inf, -np.inf)[place % 3]
            assert not finite(), f"{algorithm} on {isa}: {filter.flat[place]} at {place} of {filter.shape} was overlooked"
            filter.flat[place] = before
        assert finite(), f"{algorithm} on {isa}: got a note of a weight that is not finite, of weights that were before"


# Channels that are not a multiple of a step of depth or of a panel; several classes, some at the window's edge; taps that are
# left out where they reach no input; few rows, multiplied with two panels at once; groups; several tap windows.
PASSING = {
    "one tap": Case(batch=3, ci=300, co=141, in_sizes=(5, 4), kernel=2, strides=2),
    "edges": Case(ci=96, co=64, in_sizes=(9, 9), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "taps left out": Case(ci=1024, co=48, in_sizes=(4, 3), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "one row": Case(ci=520, co=96, in_sizes=(1, 1), kernel=3, strides=3),
    "groups": Case(batch=2, groups=3, ci=130, co=80, in_sizes=(7,), kernel=4, strides=2),
    "several windows": Case(ci=64, co=96, in_sizes=(6, 9), kernel=(7, 8), strides=2),
    "cubes": Case(ci=34, co=32, in_sizes=(3, 4, 5), kernel=4, strides=2),
    "uneven": Case(ci=300, co=40, in_sizes=(6, 9), kernel=(5, 3), strides=2),
}
each_that_packs = pytest.mark.parametrize("algorithm", ["direct:vectors", "direct:amx", "winograd:vectors", "winograd:amx"])


def packs_in_passing(name, algorithm, filter_format):
    """Check whether tasks of a one-shot call pack the weights."""
    case = replace(PASSING[name], filter_format=filter_format)
    attributes, view, _ = api.parse(case.arrays()[1], None, api.Keywords(algorithm=algorithm, **case.keywords))
    one_shot = plans.Plans(attributes, view, None, one_shot=True)
    return contiguous(one_shot, attributes.problem(case.data_shape)).plan.packing_workspace > 0


def check_shots(case, algorithm):
    """Check that one-shot calls give the bits of prepacked weights, if the algorithm accepts the problem."""
    data, *weights = case.arrays(exact=False)
    with may_refuse():
        want = operator(case, *weights, algorithm=algorithm)(data).tobytes()
        for threads in (1, 3, 2, 2):
            with convt.num_threads(threads):
                assert run(case, data, *weights, algorithm=algorithm).tobytes() == want


@each_isa
@each_that_packs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PASSING)
def test_weights_packed_in_passing_give_the_same_bits(name, dtype, algorithm, isa):
    with using_isa(isa):
        for filter_format in ("XIO", "OIX", "IOX"):
            check_shots(replace(PASSING[name], dtype=dtype, filter_format=filter_format), algorithm)


@pytest.mark.parametrize("name", ["one tap", "taps left out", "one row"])
@pytest.mark.parametrize("filter_format", ["XIO", "OIX", "IOX"])
def test_panels_are_made_in_passing(name, filter_format):
    if _core.isa() == "baseline":
        pytest.skip("with vectors of 128 bits, the cost model of this machine packs some of these weights before")
    with pretend(family="zen4", l1=32 << 10, l2=1 << 20, l3=32 << 20):
        assert packs_in_passing(name, "direct", filter_format)


@pytest.mark.parametrize("name", ["cubes", "several windows", "edges", "uneven"])
@pytest.mark.parametrize("algorithm", ["winograd:vectors", "winograd:amx"])
@pytest.mark.parametrize("filter_format", ["XIO", "OIX"])
def test_points_are_made_in_passing(name, algorithm, filter_format):
    if ":amx" in algorithm and (not matrix_unit() or filter_format == "OIX" or name == "uneven"):
        pytest.skip("no matrix unit, or weights that are packed before the tasks run")
    with pretend(l2=2 << 20, pack_on_the_fly=0, pack_on_the_fly_again=100):
        assert packs_in_passing(name, algorithm, filter_format)


@each_that_packs
@pytest.mark.parametrize("seed", range(24))
def test_random_weights_packed_in_passing(algorithm, seed):
    """Check whole panels of out-channels, and in-channels that fill no step of depth."""
    rng, rank = np.random.default_rng(seed), 1 + seed % 3
    sizes = range(2, (41, 9, 5)[rank - 1]), range(2, (13, 7, 5)[rank - 1]), (1, 2, 3), (1,)
    case = random_case(rng, rank, *sizes, ci=int(rng.integers(1, 300)), co=int(rng.choice([16, 32, 64])))
    with pretend(l2=16 << 20, pack_on_the_fly=0, pack_on_the_fly_again=1000):
        check_shots(case, algorithm)


@pytest.mark.parametrize("algorithm", ["direct", "winograd"])
@pytest.mark.parametrize("name", ["edges", "taps left out"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_weights_met_in_passing_that_are_not_finite(name, algorithm, value):
    case = PASSING[name]
    data, filter, bias = case.arrays(exact=False)
    good, spoilt = filter.copy(), filter.copy()
    spoilt[1, 2, 7, 5] = value
    wanted = [operator(case, each, bias, algorithm=algorithm)(data).tobytes() for each in (good, spoilt)]
    out = run(case, data, good, bias, algorithm=algorithm)
    for n in (0, 1, 1, 0, 1, 0):
        filter[...] = (good, spoilt)[n]  # the same array with other values
        assert run(case, data, filter, bias, out=out, algorithm=algorithm).tobytes() == wanted[n]


# Vectors with columns of several phases, columns that are not adjacent, and cut ones; few and many in-channels; filters with
# each algorithm that transforms them.
ORDERS = {
    "eight channels": Case(batch=2, ci=40, co=8, in_sizes=(5, 4), kernel=4, strides=2, pads_begin=(1, 0)),
    "five channels": Case(batch=2, ci=32, co=5, in_sizes=(5, 4), kernel=(4, 6), strides=(2, 3), pads_end=(0, 1)),
    "one channel": Case(ci=300, in_sizes=(5, 4), kernel=4, strides=2, pads_begin=(1, 0)),
    "one channel, taps left over": Case(batch=2, ci=5, in_sizes=(5, 4), kernel=(5, 3), strides=2, pads_begin=(1, 0)),
    "three phases": Case(batch=2, ci=32, co=11, in_sizes=(5, 4), kernel=(3, 2), strides=(3, 1), pads_end=(0, 1)),
    "two vectors": Case(batch=2, ci=300, co=32, in_sizes=(5, 4), kernel=4, strides=2, pads_end=(0, 1)),
    "many": Case(batch=2, ci=40, co=100, in_sizes=(5, 4), kernel=3, strides=(1, 2), pads_begin=(1, 0)),
    "sound": Case(batch=2, ci=37, in_sizes=(9,), kernel=16, strides=8),
    "odd kernel": Case(batch=2, ci=37, co=20, in_sizes=(9, 9), kernel=(5, 4), strides=2),
    "groups": Case(batch=2, groups=2, ci=48, co=130, in_sizes=(6,), kernel=5, strides=2),
    "apart": Case(batch=2, ci=80, co=64, in_sizes=(6, 6), kernel=2, strides=2),
    "depthwise": Case(batch=2, groups=20, in_sizes=(6, 5), kernel=(3, 5), strides=(2, 1)),
}


@pytest.mark.parametrize("algorithm", plans.ALGORITHMS)
@pytest.mark.parametrize("name", ORDERS)
def test_filters_in_every_order_give_the_same_bits(name, algorithm):
    """Check one-shot calls, which read filters as they lie, also at negative offsets, and operators, which pack them before."""
    memories = ["contiguous", "fortran", "reversed", "strided", "permuted"]
    for turn, dtype in enumerate(DTYPES):
        case = replace(ORDERS[name], dtype=dtype, data_format="NCX" if name_of(algorithm) in NCX_ONLY else "NXC")
        (data, filter, bias), results = case.arrays(exact=False), set()
        weights = filter_out(case.filter_format, filter, case.groups)
        with may_refuse():
            for filter_format, memory in zip(FILTER_FORMATS, memories[turn:] + memories[:turn], strict=True):
                now, ordered = replace(case, filter_format=filter_format), filter_in(filter_format, weights)
                shot = run(now, data, copy_in(memory, ordered), bias, algorithm=algorithm)
                results |= {shot.tobytes(), operator(now, ordered, bias, algorithm=algorithm)(data).tobytes()}
            assert len(results) == 1
            if plans.ALGORITHMS[algorithm].precision == "highest":
                case.check(shot, data, filter, bias, exact=False)


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
    with may_refuse():
        got = convt.conv_transpose(data, filter, strides=strides, algorithm=algorithm, backend="native")
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 1, 7), (9216,), (96, 97), (21, 20, 23)])
def test_byte_offsets_of_taps(shape):
    taps = np.random.default_rng(0).permutation(np.prod(shape))
    strides = [4, -1000, 10**6][-len(shape) :]
    wanted = [np.dot(np.unravel_index(int(tap), shape), strides) for tap in taps]
    for view in (taps, taps[:, None], taps[None, :]):
        np.testing.assert_array_equal(packing.tap_bytes(view, shape, strides).ravel(), wanted)
