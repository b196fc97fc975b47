"""Tests of arguments that must be refused. Each must raise an error of the right class whose message starts with the name of
the argument, and must leave ``out`` unchanged. The table ROWS has one row per mistake: (argument, error, changed arguments of a
good call)."""

import collections
import decimal
import fractions
import re
import time
import tracemalloc
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from cases import ALL_DTYPES, BACKENDS, DATA_FORMATS, DTYPES, FILTER_FORMATS, Case, Out, activate, copy_in
from fuzz import oracle
from hypothesis import example, given, settings
from hypothesis import strategies as st

import convt
import convt.onnx
import convt.openvino

f32 = np.float32


def broken(name, result):
    """Return an object that claims to be an array by the method ``name`` and is none."""
    return type("Broken", (), {name: lambda self, *a, **k: result()})()


def fail(error):
    raise error


def zeros(*shape, dtype=f32):
    return np.zeros(shape, dtype)


GOOD = {"data": zeros(1, 5, 6, 4), "filter": zeros(3, 2, 4, 8), "bias": zeros(8)}
OUT_SHAPE = (1, 7, 7, 8)

# ---------------------------------------------------------------- one row per mistake: (argument named, error, what is passed)

NO_INTEGER = [
    1.0, [1, 1.5], True, [1, False], np.True_, np.float32(1), np.array([1.0, 1.0]), "1", "11", ["1", 1], b"11",
    bytearray(b"11"), 1j, None, [None, 1], [[1], [1]], {1: 1, 2: 2}, {1, 2}, frozenset([1, 2]), {1: 1, 2: 2}.keys(), object(),
    (n for n in (1, 1)), decimal.Decimal(1), fractions.Fraction(1), np.datetime64(1, "D"), np.array([True, True]),
    np.array(["1", "1"]), len,
]  # fmt: skip
WRONG_LENGTH = [[], [1], (1, 1, 1), np.ones(3, int), np.ones((1, 2), int), range(10**12)]
OUT_OF_RANGE = [-1, [1, -1], -(2**63), -(10**30), 2**63, [1, 2**64], 10**30, np.int64(-1), np.array([1, -1])]

ROWS = []
for name in ("strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape"):
    ROWS += [(name, TypeError, {name: v}) for v in NO_INTEGER if not (name == "output_shape" and v is None)]
    ROWS += [(name, ValueError, {name: v}) for v in WRONG_LENGTH]
    ROWS += [(name, ValueError, {name: v}) for v in OUT_OF_RANGE if name != "output_shape" or np.ndim(v)]
for name in ("strides", "dilations"):
    ROWS += [(name, ValueError, {name: v}) for v in (0, [1, 0], np.int8(0))]
ROWS += [("output_shape", TypeError, {"output_shape": v}) for v in (7, np.int64(7))]  # one size for every axis is not accepted
ROWS += [("output_shape", ValueError, {"output_shape": (1, 7, 7, 8)})]  # spatial sizes only
ROWS += [("groups", TypeError, {"groups": v}) for v in (1.0, True, "1", None, [1], (2,), np.float64(2))]
ROWS += [("groups", ValueError, {"groups": v}) for v in (0, -1, 3, 8, 2**63, 10**30)]  # there are 4 in-channels

EMPTY = {"data": zeros(1, 5, 6, 0), "filter": zeros(3, 3, 0, 2)}
ROWS += [("groups", ValueError, {"groups": v, **EMPTY}) for v in (2**62, 2**63 - 1)]

NO_ARRAY = [None, 1, 1.0, "array", b"array", [[[[0.0]]]], ((0.0,),), object(), np.ndarray, len, {}, memoryview(bytes(480))]
NO_FLOAT = [zeros(1, 5, 6, 4, dtype=d) for d in (
    int, np.int8, np.uint16, bool, complex, object, np.longdouble, ">f4", "M8[s]", [("x", f32)], "U1", ml_dtypes.float8_e4m3fn
)]  # fmt: skip
UNSHARED = [
    broken("__array__", lambda: [1, 2]), broken("__array__", lambda: fail(RuntimeError("no"))), broken("__dlpack__", lambda: 5),
    broken("__dlpack__", lambda: fail(BufferError("no"))), broken("__dlpack_device__", lambda: (2, 0)),
]  # fmt: skip
UNSHARED[-1].__class__.__dlpack__ = lambda self, **_: None
for name, rank in (("data", 4), ("filter", 4), ("bias", 1)):
    ROWS += [(name, TypeError, {name: v}) for v in NO_ARRAY + UNSHARED if not (name == "bias" and v is None)]
    ROWS += [(name, TypeError, {name: v if rank == 4 else v.reshape(-1)[:8]}) for v in NO_FLOAT]
for name in GOOD:  # dtypes that differ: the message names the array whose dtype differs from the filter's
    for dtype in ALL_DTYPES[1:]:
        odd = "bias" if name == "filter" else name  # bias is checked before data
        ROWS.append((odd, TypeError, {name: GOOD[name].astype(dtype)}))
ROWS.append(("data", TypeError, {"filter": GOOD["filter"].astype(np.float64), "bias": None}))
ROWS += [("data", ValueError, {"data": zeros(*shape)}) for shape in (
    (), (4,), (5, 4), (1, 5, 4), (1, 5, 6, 4, 4), (1, 5, 6, 3), (1, 5, 6, 8), (1, 4, 5, 6), (1, 5, 6, 0), (1,) * 20
)]  # fmt: skip
ROWS += [("filter", ValueError, {"filter": zeros(*shape)}) for shape in ((), (8,), (4, 8), (0, 2, 4, 8), (3, 0, 4, 8))]
ROWS += [("data", ValueError, {"filter": zeros(*shape)}) for shape in ((3, 4, 8), (3, 2, 5, 8), (3, 2, 0, 8), (3, 2, 2, 4, 8))]
ROWS += [("bias", ValueError, {"bias": zeros(*shape)}) for shape in ((), (1,), (4,), (7,), (9,), (1, 8), (8, 1), (0,))]
ROWS += [("bias", ValueError, {"groups": 2})]  # with 2 groups there are 16 out-channels
ROWS += [("groups", ValueError, {"groups": 3, "filter": zeros(2, 2, 2, 4, 3), "filter_format": "GIOX"})]
ROWS += [("filter", ValueError, {"filter": zeros(2, 4, 3), "filter_format": "GIOX"})]
ROWS += [("filter", ValueError, {"filter": zeros(0, 2, 4, 3, 2), "filter_format": "GIOX"})]

WORDS = {
    "data_format": (*DATA_FORMATS, "NHCW", "nxc", "NXC ", "nhwc"),
    "filter_format": (*FILTER_FORMATS, "OIHW", "xio", "XI", "GOIX"),
    "backend": ("auto", "native", "onednn", "reference", "tune", "numpy", "Native", "Tune", "cuda"),
    "algorithm": ("auto", "direct", "fft", "Direct", "gemm"),
    "auto_pad": ("none", "same", "SAME", "upper", "same_upper ", "explicit"),
    "activation": ("relu", "RELU", "elu", "none ", ()),
}
GOOD_WORDS = {*DATA_FORMATS, *FILTER_FORMATS, "auto", "native", "onednn", "reference", "tune", "direct", "none", "relu"}
for name, words in WORDS.items():
    ROWS += [(name, ValueError, {name: v}) for v in ("", *words) if v not in GOOD_WORDS]
    ROWS += [(name, TypeError, {name: v}) for v in (1, True, b"none", object(), [1], 1.5) if v is not None]
ROWS += [(name, TypeError, {name: None}) for name in ("data_format", "filter_format", "backend", "algorithm")]
ROWS += [("activation", ValueError, {"activation": v}) for v in (
    ("relu", 1), ("leaky_relu",), "leaky_relu", ("leaky_relu", 1, 2), "clip", ("clip", 1), ("clip", 2, 1), ("clip", 0, 1, 2),
    ("clip", np.nan, 1), ("leaky_relu", float("nan")), ("leaky_relu", 10**400), ("selu", 1.0), [],
)]  # fmt: skip
ROWS += [("activation", TypeError, {"activation": v}) for v in (
    ("leaky_relu", "0.1"), ("leaky_relu", None), ("leaky_relu", True), ("clip", 0, 1j), ("clip", [0], [1]), (None,), (1, 2),
)]  # fmt: skip
ROWS += [("output_shape", ValueError, {"auto_pad": v, "output_shape": (9, 9)}) for v in ("same_upper", "SAME_LOWER", "valid")]
ROWS += [("output size", ValueError, v) for v in (
    {"pads_begin": 8}, {"pads_end": (8, 0)}, {"pads_begin": (0, 4), "pads_end": (0, 4)},
    {"data": zeros(1, 0, 6, 4), "strides": 9}, {"pads_begin": 2**62, "pads_end": 2**62},
)]  # fmt: skip
ROWS += [("algorithm", ValueError, {"algorithm": "scatter", "dilations": (1, 2), "pads_end": (0, 1)})]
ROWS += [("algorithm", ValueError, {"algorithm": "depthwise", "data": zeros(1, 5, 6, 40), "filter": zeros(3, 2, 40, 8)})]
ROWS += [("out", TypeError, {"out": v}) for v in (
    [0.0], "out", 5, zeros(*OUT_SHAPE, dtype=np.float64), zeros(*OUT_SHAPE, dtype=">f4"), zeros(*OUT_SHAPE, dtype=int),
    broken("__array__", lambda: zeros(*OUT_SHAPE)), broken("__dlpack__", lambda: 5), f32(0),
)]  # fmt: skip
ROWS += [("out", ValueError, {"out": v}) for v in (
    zeros(*OUT_SHAPE[1:]), zeros(1, *OUT_SHAPE), zeros(1, 7, 7, 9), zeros(1, 8, 7, 7), zeros(2, 7, 7, 8), zeros(1, 7, 7, 0),
    copy_in("read-only", zeros(*OUT_SHAPE)), np.broadcast_to(zeros(8), OUT_SHAPE), copy_in("sliding", zeros(*OUT_SHAPE)),
    np.lib.stride_tricks.as_strided(zeros(8), OUT_SHAPE, (0, 0, 0, 4)),
    np.lib.stride_tricks.as_strided(zeros(99), OUT_SHAPE, (4, 4, 4, 4)),
)]  # fmt: skip


def labelled(rows):
    """Yield the rows as parameters with readable names."""
    for n, (name, error, change) in enumerate(rows):
        text = " ".join(f"{k}={v.shape if isinstance(v, np.ndarray) else type(v).__name__}" for k, v in change.items())
        yield pytest.param(name, error, change, id=f"{n}-{name}-{error.__name__}-{text}")


@pytest.mark.parametrize("name, error, change", [*labelled(ROWS)])
def test_the_message_names_the_argument_and_out_is_untouched(name, error, change):
    message = f"^{re.escape(name)}: got "
    convt.conv_transpose(**GOOD)  # a good call first, because its cached plan must not accept the bad call
    call = {**GOOD, **change}
    given_out = "out" in call
    guard = Out("cropped", np.full(OUT_SHAPE, 7, f32))
    guard.view[...] = 7
    before = guard.raw.tobytes()
    with pytest.raises(error, match=message) as caught:
        convt.conv_transpose(**{"out": guard.view, **call})
    assert type(caught.value) is error
    assert guard.raw.tobytes() == before
    if given_out:
        out = call.pop("out")
        with pytest.raises(error, match=message):
            convt.ConvTranspose(call["filter"], call["bias"])(call["data"], out=out)
        return
    with pytest.raises(error, match=message):
        convt.conv_transpose(**call)
    with pytest.raises(error, match=message):
        filter, bias, data = call.pop("filter"), call.pop("bias"), call.pop("data")
        op = convt.ConvTranspose(filter, bias, **call)
        op(data, out=guard.view)
    assert guard.raw.tobytes() == before


def test_the_table_is_long_enough():
    assert len(ROWS) >= 120


@pytest.mark.parametrize("change", [{"out": "data"}, {"out": "filter"}, {"out": "bias"}])
@pytest.mark.parametrize("offset", [0, 1, 16, -64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_out_that_overlaps_an_input_is_refused(change, offset, backend):
    which = change["out"]
    raw = np.zeros(4096, np.uint8)
    shared = raw[1024 : 1024 + GOOD[which].nbytes].view(f32).reshape(GOOD[which].shape)
    first = 1024 + offset
    out = raw[first : first + 4 * np.prod(OUT_SHAPE)].view(f32).reshape(OUT_SHAPE)
    for aligned in (True, False):
        if not aligned:
            out, shared = (raw[n : n + a.nbytes].view(f32).reshape(a.shape) for n, a in ((1024, out), (1025, shared)))
        raw[:] = 7
        convt.conv_transpose(**GOOD, backend=backend)
        with pytest.raises(ValueError, match=f"^out: got an array that overlaps {which}"):
            convt.conv_transpose(**{**GOOD, which: shared}, out=out, backend=backend)
        assert (raw == 7).all()


def test_out_between_the_elements_of_an_input_is_no_overlap():
    both = np.zeros((2, 3, 4, 2), f32)
    data, out = both[..., 0], both[..., 1]
    data[...] = 1
    got = convt.conv_transpose(data, np.ones((1, 4, 4), f32), out=out)
    assert got is out and (out == 4).all() and (data == 1).all()


# ---------------------------------------------------------------- objects that are no convolution

NCX = (zeros(1, 4, 5, 6), zeros(4, 8, 3, 2))
onnx, openvino = convt.onnx.conv_transpose, convt.openvino.convolution_backprop_data
VINO = {"strides": 1, "pads_begin": 0, "pads_end": 0, "dilations": 1}
operator = convt.ConvTranspose(GOOD["filter"])

CALLS = [
    ("shape", TypeError, lambda: operator.output_shape(5)),
    ("shape", TypeError, lambda: operator.output_shape((1, 5.0, 6, 4))),
    ("shape", ValueError, lambda: operator.plan((1, -5, 6, 4))),
    ("data", ValueError, lambda: operator.plan((1, 5, 6, 5))),
    ("data", ValueError, lambda: operator.output_shape((5, 6, 4))),
    ("n", ValueError, lambda: convt.set_num_threads(0)),
    ("n", TypeError, lambda: convt.set_num_threads(2.0)),
    ("n", TypeError, lambda: convt.set_num_threads(True)),
    ("n", TypeError, lambda: convt.set_num_threads("2")),
    ("n", ValueError, lambda: convt.num_threads(-1).__enter__()),
    ("n", TypeError, lambda: convt.num_threads("2").__enter__()),
    ("mode", ValueError, lambda: convt.show_config(mode="json")),
    ("mode", TypeError, lambda: convt.show_config(mode=1)),
]


@pytest.mark.parametrize("name, error, call", CALLS, ids=[f"{n}-{row[0]}" for n, row in enumerate(CALLS)])
def test_the_message_names_the_argument_elsewhere(name, error, call):
    with pytest.raises(error, match=f"^{name}: got ") as caught:
        call()
    assert type(caught.value) is error


def test_what_looks_bad_and_is_not():
    """Check unusual arguments that are accepted: NumPy integers and arrays of them, tuples, words in any case, float64
    everywhere, and values that only other dialects refuse."""
    data, filter, bias = (a + 1 for a in GOOD.values())
    want = convt.conv_transpose(data, filter, bias, strides=2, pads_begin=(1, 0))
    for strides, pads in (
        (np.int64(2), np.array([1, 0])), (np.uint8([2, 2]), [np.int16(1), 0]), (range(2, 4, 2), None), ([2, 2], (1, 0)),
        (np.array(2), np.array([1, 0], np.uint64)), (collections.UserList([2, 2]), collections.deque([1, 0])),
    ):  # fmt: skip
        if pads is None:
            continue
        got = convt.conv_transpose(data, filter, bias, strides=strides, pads_begin=pads)
        assert got.tobytes() == want.tobytes()
    upper = convt.conv_transpose(data, filter, auto_pad="SAME_UPPER")
    assert convt.conv_transpose(data, filter, auto_pad="same_Upper").tobytes() == upper.tobytes()
    assert convt.conv_transpose(data, filter, output_padding=9).shape == (1, 16, 16, 8)
    assert openvino(*(a.astype(np.float64) for a in NCX), **VINO).dtype == np.float64
    assert convt.conv_transpose(data, filter, pads_begin=(7, 0)).shape == (1, 0, 7, 8)


# ---------------------------------------------------------------- huge attributes

HUGE = [2**31 - 1, 2**31, 2**32, 2**40, 2**61, 2**62 - 1, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]


class Watch:
    """A context that asserts that its block takes less than a second and less than 64 MB."""

    def __enter__(self):
        tracemalloc.start()
        self.start = time.perf_counter()

    def __exit__(self, *_):
        seconds, (_, peak) = time.perf_counter() - self.start, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seconds < 1 and peak < 64e6, (seconds, peak)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("name", ["strides", "dilations", "pads_begin", "pads_end", "output_padding", "output_shape", "groups"])
def test_huge_attributes_fail_at_once(name, value, backend):
    """Check that an output too large to exist, without pads that crop it, is an error before any large allocation."""
    wide = (value, 1) if name == "output_shape" else value
    for more in ({}, {"data_format": "NCX"}, {"strides": 3}, {"dilations": 2, "activation": "tanh"}):
        with Watch(), pytest.raises((ValueError, MemoryError), match=r"^[a-z_ ]+: got ") as caught:
            convt.conv_transpose(**{**GOOD, **more, name: wide}, backend=backend)
        assert type(caught.value) in (ValueError, MemoryError)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", HUGE[:8])
def test_huge_dilation_under_same_keeps_its_small_output(value, backend):
    """Check that auto_pad "same" bounds the output by the stride for any dilation."""
    for word in ("same_upper", "same_lower"):
        case = Case(ci=2, co=3, in_sizes=(5,), kernel=3, strides=2, dilations=(value,), auto_pad=word)
        data, filter, bias = case.arrays()
        with Watch():
            got = convt.conv_transpose(data, filter, bias, **case.keywords, backend=backend)
        np.testing.assert_array_equal(got, by_the_definition(case, data, filter, bias))


@pytest.mark.parametrize("n", [2**40, 2**57])
def test_arrays_of_huge_shape_by_repetition_fail_at_once(n):
    one = np.ones((), f32)
    many = lambda *shape: np.broadcast_to(one, shape)  # noqa: E731
    for data, filter, more in (
        (many(1, n, 1), many(3, 1, 1), {}), (many(n, 1, 1), many(3, 1, 1), {}), (many(1, 5, 1), many(n, 1, 1), {}),
        (many(1, 5, 1), many(n, 1, 1), {"pads_begin": n // 2, "pads_end": n // 2}), (many(1, 5, 1), many(1, 1, n), {}),
        (many(1, 5, n), many(1, n, 1), {}),
    ):  # fmt: skip
        for backend in BACKENDS:
            with Watch(), pytest.raises((MemoryError, ValueError), match=r"^[a-z_ ]+: got "):
                convt.conv_transpose(data, filter, **more, backend=backend)
        with Watch(), pytest.raises((MemoryError, ValueError), match=r"^[a-z_ ]+: got "):
            convt.ConvTranspose(filter, **more)(data)


def by_the_definition(case, *arrays):
    """Return the result computed with Python integers, for strides that no array could hold."""
    return activate(case.activation, oracle.sums(vars(case), list(zip(*case.windows, strict=True)), *arrays)[0])


@st.composite
def far_windows(draw):
    """Draw a case with huge strides and dilations, and a small window where some product falls."""
    rank = draw(st.sampled_from([1, 1, 2, 3]))
    sizes = st.sampled_from([1, 1, 2, 3, 5, *(n for e in (31, 40, 61, 62) for n in (2**e - 1, 2**e, 2**e + 1)), 2**63 - 1])
    axes = []
    for _ in range(rank):
        size, k = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        s = draw(sizes)
        d = draw(st.one_of(sizes, st.sampled_from([max(s - 1, 1), s, min(s + 1, 2**63 - 1), max(s // 2, 1), max(s // 3, 1)])))
        reach = s * (size - 1) + (k - 1) * d + 1
        q = draw(st.integers(0, size - 1)) * s + draw(st.integers(0, k - 1)) * d
        begin = min(max(q - draw(st.integers(0, 3)), 0), 2**63 - 1)
        out = draw(st.integers(1, 5))
        op = max(0, begin + out - reach)
        axes.append((size, k, s, d, begin, reach + op - begin - out, op))
    names = ("in_sizes", "kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding")
    return Case(
        dtype="float64", ci=draw(st.sampled_from([1, 2, 9])), co=draw(st.sampled_from([1, 3, 40])),
        seed=draw(st.integers(0, 99)), **dict(zip(names, zip(*axes, strict=True), strict=True)),
    )  # fmt: skip


_TWO_PHASES = Case(in_sizes=(2,), kernel=2, strides=(2**63 - 1,), dilations=(2**63 - 2,), pads_begin=(2**63 - 2,))
_FAR_PHASE = Case(
    dtype="float64", co=40, in_sizes=(1, 1), kernel=(2, 1), strides=(2**61, 1), dilations=(2**61 - 1, 1),
    pads_begin=(2**61 - 1, 0), output_padding=(1, 0),
)  # fmt: skip
_FAR_EMPTY_PHASES = Case(
    dtype="float64", ci=40, co=40, in_sizes=(2, 1), kernel=2, strides=(2**60, 1), dilations=(2**60, 1),
    pads_begin=(2**60 - 2, 0), pads_end=(2**60 - 2, 0),
)  # fmt: skip


@settings(max_examples=500)
@example(case=replace(_TWO_PHASES, pads_end=(2**63 - 3,)), backend="native", depthwise=False)
@example(case=_FAR_PHASE, backend="native", depthwise=False)
@given(case=far_windows(), backend=st.sampled_from([*["native"] * 4, "reference"]), depthwise=st.booleans())
def test_windows_far_out_are_computed_or_refused(case, backend, depthwise):
    case = replace(case, ci=1, co=1) if depthwise else case
    data, filter, bias = case.arrays()
    if max(case.pads_end) > 2**63 - 1:
        with Watch(), pytest.raises(ValueError, match=r"^pads_end: got "):
            convt.conv_transpose(data, filter, bias, **case.keywords)
        return
    with Watch():
        got = convt.conv_transpose(data, filter, bias, **case.keywords, backend=backend)
    np.testing.assert_array_equal(got, by_the_definition(case, data, filter, bias))


@pytest.mark.parametrize("algorithm", ["auto", "direct", "scatter"])
def test_empty_phases_on_both_sides_of_a_far_row_are_filled(algorithm):
    arrays = _FAR_EMPTY_PHASES.arrays()
    with Watch():
        got = convt.conv_transpose(*arrays, **_FAR_EMPTY_PHASES.keywords, algorithm=algorithm)
    np.testing.assert_array_equal(got, by_the_definition(_FAR_EMPTY_PHASES, *arrays))


@pytest.mark.parametrize("dtype", DTYPES)
def test_messages_say_got_and_wanted(dtype):
    data, filter, bias = (a.astype(DTYPES[dtype][0]) for a in GOOD.values())
    for change in (
        {"strides": 0}, {"strides": 1.5}, {"strides": (1, 2, 3)}, {"data": data[0]}, {"data": data.astype(int)},
        {"bias": bias[1:]}, {"data_format": "NHCW"}, {"groups": 3}, {"pads_begin": 99}, {"out": data}, {"activation": "elu"},
        {"auto_pad": "same"},
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)) as caught:
            convt.conv_transpose(**{"data": data, "filter": filter, "bias": bias, **change})
        assert re.match(r"^[a-z_ ]+: got .+, wanted .+", str(caught.value)), str(caught.value)


@pytest.mark.parametrize(
    "name, meant",
    [
        ("stride", "strides"), ("padding", "pads_begin and pads_end, or auto_pad"), ("pads", "pads_begin and pads_end"),
        ("pad", "pads_begin and pads_end"), ("dilation", "dilations"), ("group", "groups"), ("dataformat", "data_format"),
        ("out_padding", "output_padding"),
    ],
)  # fmt: skip
def test_unknown_keywords_are_refused_with_the_name_that_is_probably_meant(name, meant):
    wanted = re.escape(f"got the unknown argument {name}, which probably means {meant}; wanted only strides, ")
    for call in (lambda **k: convt.ConvTranspose(GOOD["filter"], **k)), (lambda **k: convt.conv_transpose(*GOOD.values(), **k)):
        with pytest.raises(TypeError, match=wanted):
            call(**{name: 1})
    with pytest.raises(TypeError, match="got the unknown argument stride, which probably means strides; wanted only strides"):
        convt.resolve((4, 4), (3, 3), stride=2)
    with pytest.raises(TypeError, match="got the unknown argument weights; wanted only"):
        convt.ConvTranspose(GOOD["filter"], weights=3)
