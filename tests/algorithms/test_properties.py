"""Property tests: random cases from cases.py, in every combination of its options, compared with its float64 definition."""

import contextlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    ALGORITHMS,
    CURVED_ACTIVATIONS,
    DATA_FORMATS,
    DTYPES,
    EXACT_ACTIVATIONS,
    INPUT_MEMORY,
    ISAS,
    MEMORY,
    NON_TEMPORAL,
    WALLS,
    Case,
    Out,
    assert_same,
    cases,
    copy_in,
    each_dtype,
    may_refuse,
    operator,
    pretend,
    run,
    using_isa,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import convt
from convt import _core

isas, threads = st.sampled_from(ISAS), st.sampled_from([1, 2, 3])
backends = st.sampled_from([*["native"] * 5, "reference"])
inputs = st.sampled_from(["contiguous", *WALLS * 2, *INPUT_MEMORY])
outs = st.sampled_from([None, None, *WALLS, *MEMORY])


@pytest.mark.every_isa
@each_dtype
@settings(max_examples=500)
@given(data=st.data())
def test_native_is_the_definition_to_the_last_bit(dtype, data):
    """Check small integers. No sum rounds, so results are exact after one rounding at the end and an exact activation."""
    case = data.draw(cases(dtypes=(dtype,)))
    with using_isa(data.draw(isas)), convt.num_threads(data.draw(threads)):
        for again in range(2):  # the second call uses what the first one cached
            arrays = replace(case, seed=case.seed + again).arrays()
            case.check(run(case, *arrays, backend="native"), *arrays)


@pytest.mark.every_isa
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_is_the_definition_or_says_that_it_does_not_do_the_problem(algorithm):
    done, with_unit = [], [isa for isa in ISAS if ":amx" in algorithm and _core.kernel_info("float32", "amx", isa)]
    levels = st.sampled_from(with_unit) if with_unit else isas

    @settings(max_examples=250)
    @given(case=cases(activations=EXACT_ACTIVATIONS + CURVED_ACTIVATIONS), isa=levels, n=threads)
    def check(case, isa, n):
        arrays = case.arrays()
        with using_isa(isa), convt.num_threads(n), may_refuse():
            case.check(run(case, *arrays, algorithm=algorithm), *arrays)
            done.append(case)

    check()
    if ":amx" in algorithm and not with_unit:
        return  # without the unit it computes only problems without products
    assert len(done) >= (250 if algorithm == "direct:vectors" else 50)


@settings(max_examples=150)
@given(case=cases(activations=EXACT_ACTIVATIONS + CURVED_ACTIVATIONS))
def test_reference_is_the_definition(case):
    arrays = case.arrays()
    case.check(run(case, *arrays, backend="reference"), *arrays)


@settings(max_examples=250)
@given(case=cases(activations=EXACT_ACTIVATIONS + CURVED_ACTIVATIONS), isa=isas)
def test_real_numbers_stay_within_the_tolerance_of_their_dtype(case, isa):
    arrays = case.arrays(exact=False)
    with using_isa(isa):
        case.check(run(case, *arrays), *arrays, exact=False)


@settings(max_examples=400)
@given(
    case=cases(), memory=st.tuples(inputs, inputs, inputs, outs), backend=backends, isa=isas,
    algorithm=st.sampled_from(["auto", *ALGORITHMS]),
)  # fmt: skip
def test_any_memory_layout_of_inputs_and_out(case, memory, backend, isa, algorithm):
    arrays = [copy_in(m, a) for m, a in zip(memory, case.arrays(), strict=False)]
    before = [None if a is None else a.tobytes() for a in arrays]
    more = {"algorithm": algorithm} if backend == "native" else {}
    with using_isa(isa), may_refuse():
        run(case, *case.arrays(), **more)  # plain arrays first, whose cached plan must not be used for the others
        out = None if memory[3] is None else Out(memory[3], np.empty(case.out_shape, case.numpy_dtype))
        got = run(case, *arrays, backend=backend, out=out and out.view, **more)
        case.check(got, *arrays)
        assert before == [None if a is None else a.tobytes() for a in arrays]
        if out is not None:
            assert got is out.view
            out.assert_only_elements_written()


@settings(max_examples=150)
@given(case=cases(activations=EXACT_ACTIVATIONS + CURVED_ACTIVATIONS), isa=isas, more=st.data())
def test_one_operator_on_several_shapes_is_the_function_bit_for_bit(case, isa, more):
    sizes = st.tuples(*(st.integers(1, n + 3) for n in case.in_sizes))
    shapes = [(case.batch, case.in_sizes)]
    if case.output_shape is None:
        free = replace(case, pads_begin=(0,) * len(case.kernel), pads_end=(0,) * len(case.kernel))
        case = case if case.auto_pad is None and not any(case.pads_begin + case.pads_end) else free
        shapes += [(more.draw(st.integers(0, 4)), more.draw(sizes)) for _ in range(2)]
    _, filter, bias = case.arrays(exact=False)
    with using_isa(isa):
        op = operator(case, filter, bias)
        for batch, in_sizes in shapes + shapes[:1]:
            now = replace(case, batch=batch, in_sizes=in_sizes)
            if min(now.windows[1]) < 0:
                continue
            data = now.arrays(exact=False)[0]
            got = op(data)
            assert got.shape == op.output_shape(data.shape) == now.out_shape
            # A one-shot call may choose another algorithm, because it counts the time to pack the weights.
            same = run(now, data, filter, bias, algorithm=op.plan(data.shape).algorithm)
            assert got.tobytes() == same.tobytes()
            now.check(got, data, filter, bias, exact=False)


@settings(max_examples=250)
@given(
    case=cases(), memory=outs, data_memory=st.sampled_from(["contiguous", *WALLS]), isa=isas, n=threads,
    vectors=st.integers(1, 4),
)  # fmt: skip
def test_outputs_written_by_non_temporal_stores(case, memory, data_memory, isa, n, vectors):
    """Check non-temporal stores, otherwise used for outputs of many megabytes, with small outputs."""
    depthwise = case.groups > 1 and case.ci == case.co == 1
    case = replace(case, **{"groups" if depthwise else "co": 16 * vectors})
    arrays = case.arrays()
    with using_isa(isa), convt.num_threads(n), pretend(ordinary_stores=False, **NON_TEMPORAL):
        op = operator(case, *arrays[1:])
        out = Out(memory or "contiguous", np.empty(case.out_shape, case.numpy_dtype))
        for _ in range(2):
            case.check(op(copy_in(data_memory, arrays[0]), out.view), *arrays)
            out.assert_only_elements_written()
        case.check(op(arrays[0]), *arrays)


@pytest.mark.every_isa
@pytest.mark.parametrize("channels", range(1, 71))
def test_every_channel_count_around_the_vectors(channels):
    """Check dense problems with this many out-channels and then in-channels, and depthwise ones with this many channels."""
    for dtype in DTYPES:
        for ci, co, groups in ((5, channels, 1), (channels, 3, 1), (1, 1, channels)):
            case = Case(
                dtype=dtype, groups=groups, ci=ci, co=co, in_sizes=(3, 5), kernel=3, strides=(2, 1), pads_begin=1,
                pads_end=(0, 1), seed=channels,
            )  # fmt: skip
            arrays = case.arrays()
            for isa in ISAS:
                with using_isa(isa):
                    case.check(run(case, *arrays), *arrays)


LARGE = {
    "image": Case(batch=2, ci=48, co=40, in_sizes=(33, 29), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "narrow": Case(ci=3, co=3, in_sizes=(120, 130), kernel=9, strides=3, pads_begin=(4, 3), pads_end=(3, 4)),
    "sound": Case(ci=128, co=64, in_sizes=(500,), kernel=16, strides=8, pads_begin=4, pads_end=4),
    "dilated": Case(
        groups=2, ci=40, co=33, in_sizes=(14, 10, 9), kernel=3, strides=(1, 2, 1), dilations=(2, 1, 3), pads_begin=(2, 1, 3),
        pads_end=(2, 0, 3), output_padding=(0, 1, 0),
    ),
    "depthwise": Case(groups=520, in_sizes=(11, 13), kernel=5, strides=2, pads_begin=2, pads_end=2, output_padding=1),
}  # fmt: skip


@pytest.mark.every_isa
@pytest.mark.parametrize("data_format", DATA_FORMATS)
@pytest.mark.parametrize("case", LARGE.values(), ids=LARGE)
def test_large_problems_of_many_blocks(case, data_format):
    case = replace(case, data_format=data_format)
    arrays = case.arrays()
    want = case.expected(*arrays)
    for (numpy_dtype, _), isa, algorithm in itertools.product(DTYPES.values(), ISAS, ALGORITHMS):
        with using_isa(isa), convt.num_threads(2), contextlib.nullcontext() if algorithm == "direct:vectors" else may_refuse():
            got = run(case, *(a.astype(numpy_dtype) for a in arrays), algorithm=algorithm)
            assert_same(got, want.astype(numpy_dtype))


@pytest.mark.parametrize("algorithm", ["auto", "reference", *ALGORITHMS])
@pytest.mark.parametrize("groups, ci, co", [(1, 0, 3), (2, 0, 3), (1, 3, 2), (5, 1, 1), (1, 2, 0), (1, 40, 24)])
@pytest.mark.parametrize("in_sizes", [(0,), (4,), (0, 3), (3, 0), (2, 0, 2)])
def test_nothing_to_sum_is_zero_plus_bias(in_sizes, groups, ci, co, algorithm):
    more = {"backend": "reference"} if algorithm == "reference" else {"algorithm": algorithm}
    for dtype, data_format, batch in itertools.product(DTYPES, DATA_FORMATS, (0, 2)):
        case = Case(
            dtype=dtype, batch=batch, groups=groups, ci=ci, co=co, in_sizes=in_sizes, kernel=3, strides=2, output_padding=4,
            activation="relu", data_format=data_format,
        )  # fmt: skip
        arrays = case.arrays()
        with may_refuse():
            got = run(case, *arrays, **more)
            case.check(got, *arrays)
            if 0 in (ci, *in_sizes):
                bias = np.maximum(arrays[2], 0).reshape(-1, *(1,) * (len(in_sizes) if data_format == "NCX" else 0))
                np.testing.assert_array_equal(got, np.broadcast_to(bias, got.shape))


@pytest.mark.parametrize("rank", [5, 8, 20, 40])
def test_many_axes(rank):
    case = Case(
        ci=3, co=5, in_sizes=(1,) * (rank - 2) + (3, 4), kernel=(1,) * (rank - 2) + (3, 2), strides=(3,) * (rank - 2) + (2, 1),
        pads_end=(0,) * (rank - 1) + (1,),
    )  # fmt: skip
    arrays = case.arrays()
    case.check(run(case, *arrays), *arrays)


def test_inputs_larger_than_memory_by_repetition():
    """Check a view of 2**40 equal elements, of which the window shows five outputs."""
    n = 2**40
    for groups in (1, 3):
        data = np.broadcast_to(np.float32(2), (1, n, groups))
        filter = np.ones((3, groups, 1), np.float32)
        got = convt.conv_transpose(data, filter, groups=groups, pads_begin=n // 2, pads_end=n + 2 - n // 2 - 5)
        np.testing.assert_array_equal(got, np.full((1, 5, groups), 6, np.float32))


# ---------------------------------------------------------------- other implementations


def _like_frameworks(case):
    """Convert a case to the limits of PyTorch and onnxruntime: NCX, IOX, output_padding below the stride, no empty array."""
    limits = zip(case.output_padding, case.strides, strict=True)
    case = replace(case, output_padding=tuple(min(op, s - 1) for op, s in limits), batch=max(case.batch, 1))
    in_sizes = tuple(max(n, 1) for n in case.in_sizes)
    none = (0,) * len(case.kernel)
    case = replace(case, in_sizes=in_sizes, ci=max(case.ci, 1), data_format="NCX", filter_format="IOX", activation=None)
    return case if min(case.windows[1]) > 0 else replace(case, pads_begin=none, pads_end=none)


framework_cases = cases(dtypes=("float32", "float64"), activations=(None,), auto_pad=False, layouts=False).map(_like_frameworks)


@settings(max_examples=150)
@given(case=framework_cases.filter(lambda case: len(case.kernel) <= 3), isa=isas)
def test_pytorch_agrees(case, isa):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)  # with more threads, PyTorch's own results vary on some machines
    case = replace(case, pads_end=case.pads_begin)
    if min(case.windows[1]) <= 0:
        case = replace(case, pads_begin=(0,) * len(case.kernel), pads_end=(0,) * len(case.kernel))
    data, filter, bias = case.arrays()
    theirs = getattr(torch.nn.functional, f"conv_transpose{len(case.kernel)}d")
    want = theirs(
        torch.from_numpy(data), torch.from_numpy(filter), None if bias is None else torch.from_numpy(bias),
        stride=case.strides, padding=case.pads_begin, output_padding=case.output_padding, groups=case.groups,
        dilation=case.dilations,
    )  # fmt: skip
    with using_isa(isa):
        np.testing.assert_array_equal(run(case, data, filter, bias), want.numpy())
