"""Tests of repeated one-shot calls: which calls are recognised, that each uses its own weights and values, and that errors are
still found."""

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
from cases import DTYPES, SAMPLES, Case, child, copy_in, in_threads, operator, run, switching_often

import convt
from convt._call import api
from convt._plan import repeat as _repeat

f32 = np.float32
DENSE = SAMPLES["dense"]

# (data, filter, keywords) for each algorithm: weights from a few bytes to megabytes, packed by one thread and by several
CALLS = {
    "direct": ((1, 5, 4, 96), (2, 2, 96, 640), {"strides": 2}),
    "winograd": ((1, 9, 9, 128), (4, 4, 128, 192), {"strides": 2, "algorithm": "winograd"}),
    "winograd 3-D": ((1, 4, 5, 3, 20), (4, 4, 4, 20, 24), {"strides": 2, "algorithm": "winograd"}),
    "scatter": ((1, 8, 8, 8), (4, 4, 8, 1), {"strides": 2, "algorithm": "scatter"}),
    "depthwise": ((1, 7, 20), (3, 20, 1), {"groups": 20}),
    "depthwise in place": ((1, 9, 32), (3, 32, 1), {"groups": 32}),
}


def made(name, seed=0):
    shape, kernel, keywords = CALLS[name]
    rng = np.random.default_rng(seed)
    return rng.standard_normal(shape, f32), rng.standard_normal(kernel, f32), keywords


# ---------------------------------------------------------------- weights


def test_weights_are_those_of_the_call_when_shapes_alternate():
    """Check packed weights of alternating shapes."""
    calls = [made(name, seed) for name, seed in itertools.product(CALLS, range(3))]
    wanted = [convt.conv_transpose(x, w, **keywords) for x, w, keywords in calls]
    order = np.random.default_rng(5).permutation(np.repeat(np.arange(len(calls)), 6))
    for n in order:
        x, w, keywords = calls[n]
        assert convt.conv_transpose(x, w, **keywords).tobytes() == wanted[n].tobytes()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("groups, ci, co", [(32, 1, 1), (8, 1, 4), (1, 4, 32), (16, 2, 2), (24, 1, 1), (8, 2, 4)])
@pytest.mark.parametrize("memory", ["contiguous", "fortran", "reversed", "strided", "an element off"])
def test_lanes_that_lie_ready_are_read_where_they_are(dtype, groups, ci, co, memory):
    """Check that a depthwise filter in XIO, which may need no packing, is read in place, so that each call has its values."""
    for keywords in ({}, {"strides": (2, 1)}, {"strides": (1, 2)}, {"dilations": 2}):
        case = Case(dtype=dtype, batch=2, groups=groups, ci=ci, co=co, in_sizes=(5, 4), kernel=(3, 2), **keywords)
        data, filter, some = case.arrays(exact=False)
        filter = copy_in(memory, filter)
        for bias, _ in itertools.product((None, some, None), range(3)):
            filter *= -1
            wanted = operator(case, filter, bias, algorithm="depthwise")(data)
            assert run(case, data, filter, bias, algorithm="depthwise").tobytes() == wanted.tobytes()


def test_a_16_bit_filter_whose_elements_share_memory():
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (1, 16, 1)).astype(np.float16)
    memory = rng.integers(-3, 4, 300).astype(np.float16)
    w = np.lib.stride_tricks.as_strided(memory, (7, 1, 117), (4, 2, 4))
    wanted = convt.conv_transpose(x.astype(f32), w.astype(f32), strides=2)
    for _ in range(3):
        assert np.array_equal(convt.conv_transpose(x, w, strides=2), wanted)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_widened_lanes_that_lie_ready_stay_until_the_call_is_over(dtype):
    """Check that the float32 copy of a 16-bit filter, which may be read without packing, is not reused before the call ends."""
    rng = np.random.default_rng(0)
    for _ in range(4):
        x, w = rng.integers(-4, 5, (1, 8, 48)).astype(f32), rng.integers(-3, 4, (5, 48, 2)).astype(f32)
        half = DTYPES[dtype][0]
        got = convt.conv_transpose(x.astype(half), w.astype(half), groups=48, algorithm="depthwise")
        assert np.array_equal(got.astype(f32), convt.conv_transpose(x, w, groups=48, algorithm="depthwise"))


@pytest.mark.parametrize("names", [["direct"], ["winograd"], list(CALLS)])
def test_calls_of_many_threads_share_no_weights(names):
    calls = [made(names[n % len(names)], n) for n in range(8)]
    wanted = [convt.conv_transpose(x, w, **keywords) for x, w, keywords in calls]

    def repeat(n):
        x, w, keywords = calls[n]
        return all(convt.conv_transpose(x, w, **keywords).tobytes() == wanted[n].tobytes() for _ in range(40))

    with switching_often(1e-5):
        assert all(in_threads(repeat))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_parent_and_child_have_weights_of_their_own_after_a_fork():
    script = """
import os, numpy as np, convt
def call(seed):
    rng = np.random.default_rng(seed)
    x, w = rng.standard_normal((1, 5, 4, 96), np.float32), rng.standard_normal((2, 2, 96, 640), np.float32)
    keywords = {"strides": 2, "algorithm": "direct"}
    wanted = convt.ConvTranspose(w, **keywords)(x)
    return all(np.array_equal(convt.conv_transpose(x, w, **keywords), wanted) for _ in range(50))
assert call(0)
child = os.fork()
right = call(2 if child else 1)
if not child:
    os._exit(0 if right else 1)
print(right, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    code, out, errors = child(script)
    assert (code, out.split()) == (0, ["True", "0"]), errors


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
@pytest.mark.skipif("san.so" in os.environ.get("LD_PRELOAD", ""), reason="the memory of a sanitizer would also count")
def test_memory_of_very_large_weights_is_not_kept():
    script = """
import numpy as np, convt
from convt._model import machine
pretended = machine.pretend(pack_on_the_fly=1 << 40)  # all weights are packed beforehand
pretended.__enter__()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def call(co):
    x, w = np.ones((1, 1, 1, 1024), np.float32), np.ones((2, 2, 1024, co), np.float32)
    for _ in range(3):
        assert convt.conv_transpose(x, w, strides=2).max() == 1024
call(64)
before = resident()
call(6 * 1024)  # 96 MiB of them
large = resident()
call(2 * 1024)  # 32 MiB
print((large - before) >> 20, (resident() - before) >> 20)
"""
    code, out, errors = child(script)
    large, some = map(int, out.split())
    assert code == 0 and large < 24 and 24 < some < 48, (out, errors)


# ---------------------------------------------------------------- signatures of calls


@pytest.mark.parametrize("strides", [
    2, (2, 2), [2, 2], np.int64(2), [np.int64(2), 2], (np.int8(2), np.uint64(2)), np.array([2, 2]), memoryview(b"\2\2"),
    range(2, 3),
])  # fmt: skip
def test_every_way_to_say_it_gives_the_same_each_time(strides):
    x, w, _ = made("direct")
    if isinstance(strides, range):
        x, w = x[:, 0], w[0]
    wanted = convt.ConvTranspose(w, strides=2, algorithm="direct")(x)
    for _ in range(3):
        np.testing.assert_array_equal(convt.conv_transpose(x, w, strides=strides, algorithm="direct"), wanted)


@pytest.mark.parametrize("wrong", [
    True, 2.0, "2", b"\2\2", b"\2\0\0\0\0\0\0\0", None, 2**63, 2**200, -2, (2, True), (2, 2.0), [2, [2]], (2, (2,)),
    [2, None], (2, "2"),
    [b"\2\0\0\0\0\0\0\0"] * 2, [memoryview(b"\2\0\0\0\0\0\0\0")] * 2, [np.float64(2)] * 2, [np.timedelta64(2)] * 2,
    [np.bool_(1)] * 2,
    np.array([2.0, 2.0]), [np.array([2])] * 2, [2] * 3, [2] * 10_000, "\ud800", {2: 2}, {2}, object(),
])  # fmt: skip
def test_what_is_refused_is_refused_each_time(wrong):
    x, w, _ = made("direct")
    for _ in range(3):
        convt.conv_transpose(x, w, strides=2)
        convt.conv_transpose(x, w, strides=(2, 2))
        convt.conv_transpose(x, w, strides=[np.int64(2)] * 2)
        with pytest.raises((TypeError, ValueError), match=r"^strides: got"):
            convt.conv_transpose(x, w, strides=wrong)


def test_a_list_within_itself_is_refused():
    x, w, _ = made("direct")
    strides = [2]
    strides.append(strides)
    for _ in range(2):
        with pytest.raises(TypeError, match=r"^strides: got"):
            convt.conv_transpose(x, w, strides=strides)


def test_signatures_tell_calls_apart():
    x, w, _ = made("direct")
    b, attributes = np.zeros(640, f32), (2, None)
    calls = [
        ("a", x, w, None, attributes),
        ("b", x, w, None, attributes),
        ("a", x[:, :4], w, None, attributes),
        ("a", x.transpose(0, 2, 1, 3), w, None, attributes),
        ("a", x.astype(np.float64), w.astype(np.float64), None, attributes),
        ("a", x, w, b, attributes),
        ("a", x, w, np.zeros(1280, f32)[::2], attributes),
        ("a", x, w[:, :, :, ::-1], None, attributes),
        *(("a", x, w, None, (s, None)) for s in (1, [2], (2, 2), "2", None, 2.0, -2)),
        *(
            ("a", x, w, None, (2, a))
            for a in ("relu", "релу", ("clip", 0.0, 1.0), ("clip", -0.0, 1.0), ("clip", 0, 1), ("clip", (0.0, 1.0)))
        ),
    ]
    signature = lambda dialect, data, *rest, threads=1: _repeat.signature(data, threads, False, *rest[:2], dialect, rest[2])  # noqa: E731
    signatures = [signature(*call, threads=n) for n in (1, 2) for call in calls]
    assert None not in signatures and len(set(signatures)) == 2 * len(calls)
    assert signatures == [signature(*call, threads=n) for n in (1, 2) for call in calls]
    assert signature("a", x, w, None, ([2], None)) == signatures[9]
    for data in (None, [1], np.ma.array(x), x.view(np.recarray)):
        assert signature("a", data, w, None, attributes) is None
    for value in (True, np.int64(1), 2**63, b"1", object(), [1] * 1000, np.ones(1)):
        assert signature("a", x, w, None, (value,)) is None


def test_repeated_calls_are_recognised():
    api._ONE_SHOT_CALLS.clear()
    for _ in range(3):
        for n, name in enumerate(CALLS):
            x, w, keywords = made(name, n)
            convt.conv_transpose(x, w, **keywords)
    assert len(api._ONE_SHOT_CALLS) == len(CALLS)


def layouts(x):
    """Return the values of ``x`` as arrays and views of every kind, by name."""
    doubled = np.repeat(x, 2, axis=-1)
    kinds = {
        "contiguous": x, "every other channel": doubled[..., ::2], "backwards": np.ascontiguousarray(x[:, ::-1])[:, ::-1],
        "channels first": np.moveaxis(np.ascontiguousarray(np.moveaxis(x, -1, 1)), 1, -1),
        "a field of records": np.rec.fromarrays([x, x], names="a,b").a, "a subclass": x.view(type("Mine", (np.ndarray,), {})),
        "through __array__": type("Wrapped", (), {"__array__": lambda self, *a, **k: x})(),
        "through __dlpack__": type("Lent", (), {"__dlpack__": lambda self, *a, **k: x.__dlpack__()})(),
    }  # fmt: skip
    assert not kinds["every other channel"].flags.c_contiguous and not kinds["backwards"].flags.c_contiguous
    return kinds


@pytest.mark.parametrize("backend", ["native", "auto", "reference"])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("name", CALLS)
def test_data_of_any_layout_is_recognised(name, data_format, backend, monkeypatch):
    x, w, keywords = made(name)
    keywords = {**keywords, "data_format": data_format, "backend": backend}
    if data_format == "NCX":
        x = np.ascontiguousarray(np.moveaxis(x, -1, 1))
    other = np.random.default_rng(9).standard_normal(x.shape, f32)
    op = convt.ConvTranspose(w, **keywords)
    wanted = [op(x.copy()), op(other)]
    for kind in layouts(x):
        results = []
        for values in (x, other, x):
            results.append((convt.conv_transpose(layouts(values)[kind], w, **keywords), op(layouts(values)[kind])))
            if backend == "native":  # later calls need no new checks or plans
                monkeypatch.setattr(api, "execute", None)
        monkeypatch.undo()
        for n, pair in enumerate(results):
            for result in pair:  # the order of a sum may depend on the memory layout
                np.testing.assert_allclose(result, wanted[n % 2], rtol=1e-5, atol=1e-5, err_msg=kind)
        np.testing.assert_array_equal(results[2], results[0], err_msg=kind)


def test_tensors_are_recognised(monkeypatch):
    torch = pytest.importorskip("torch")
    x, w, keywords = made("direct")
    wanted = convt.conv_transpose(x, w, **keywords)
    for _ in range(2):
        for data, filter in itertools.product((x, torch.from_numpy(x)), (w, torch.from_numpy(w))):
            np.testing.assert_array_equal(convt.conv_transpose(data, filter, **keywords), wanted)
        monkeypatch.setattr(api, "execute", None)
    with pytest.raises(TypeError, match=r"^data: got Tensor, which can't be shared"):
        convt.conv_transpose(torch.from_numpy(x).requires_grad_(), w, **keywords)


# ---------------------------------------------------------------- checks of every call


def test_out_over_an_input_is_refused_after_a_good_call():
    x, w, keywords = made("direct")
    b = np.zeros(640, f32)
    shape = convt.conv_transpose(x, w, b, **keywords).shape
    memory = np.zeros(2 * max(x.size, w.size, np.prod(shape)) + 64, f32)
    out = memory[: np.prod(shape)].reshape(shape)
    far = memory[np.prod(shape) :]
    for _ in range(2):
        convt.conv_transpose(x, w, b, out=out, **keywords)
        for name, array in {"data": x, "filter": w, "bias": b}.items():
            inputs = {"data": x, "filter": w, "bias": b}
            inputs[name] = memory[: array.size].reshape(array.shape)
            with pytest.raises(ValueError, match=f"^out: got an array that overlaps {name} in memory"):
                convt.conv_transpose(**inputs, out=out, **keywords)
            inputs[name] = far[: array.size].reshape(array.shape)  # directly behind out
            assert convt.conv_transpose(**inputs, out=out, **keywords) is out
        with pytest.raises(ValueError, match=r"^out: got an array that overlaps bias in memory"):
            convt.conv_transpose(x, w, memory[np.prod(shape) - 1 :][:640], out=out, **keywords)
        with pytest.raises(ValueError, match=r"^out: got an array that overlaps bias in memory"):
            convt.conv_transpose(x, w, memory[np.prod(shape) + 638 :: -1][:640], out=out, **keywords)


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("algorithm", ["auto", "direct", "scatter", "depthwise"])
@pytest.mark.parametrize("shape", [{"kernel": 1, "strides": 2}, {"kernel": (2, 3), "strides": (3, 2), "groups": 2}], ids=str)
def test_what_no_product_reaches_is_filled_each_time(shape, algorithm, data_format, monkeypatch):
    """Check a stride larger than the kernel: repeated calls make no new checks or plans, and each fills the empty phases
    with its own bias."""
    case = Case(batch=2, ci=4, co=6, in_sizes=(4, 5), data_format=data_format, activation="sigmoid", **shape)
    data, filter, some = case.arrays(exact=False)
    for bias in (None, some):
        op, out = operator(case, filter, bias, algorithm=algorithm), np.empty(case.out_shape, f32)
        for turn in range(3):
            out[...] = np.nan
            case.check(op(data, out=out), data, filter, some - turn if bias is not None else None, exact=False)
            out[...] = np.nan
            case.check(run(case, data, filter, bias, algorithm=algorithm, out=out), data, filter, bias, exact=False)
            monkeypatch.setattr(api, "execute", None)
            if bias is not None:
                bias += 1  # for one-shot calls; the operator has its own bias
        monkeypatch.undo()


@pytest.mark.parametrize("name", ["data", "filter", "bias"])
def test_numbers_of_every_call_count(name):
    """Check NaN, alignment and values that change in place, which are not part of the signature of a call."""
    case = replace(DENSE, bias=True)
    inputs = dict(zip(("data", "filter", "bias"), case.arrays(), strict=True))
    for _ in range(2):
        run(case, *inputs.values())
    odd = np.zeros(inputs[name].nbytes + 1, np.uint8)[1:].view(f32).reshape(inputs[name].shape)
    odd[...] = inputs[name]
    inputs[name] = odd
    for value in (2, np.nan, -np.inf, 0):
        odd[(0,) * odd.ndim] = value
        wanted = operator(case, *list(inputs.values())[1:])(inputs["data"])
        np.testing.assert_array_equal(run(case, *inputs.values()), wanted)


def test_axes_are_tuples_of_plain_integers():
    assert _repeat.are_axes(((1, 2), (0, 0)), 2) and _repeat.are_axes(((2**70,),), 1)
    for value in ((True, 1), (1.0, 1), (np.int64(1), 1), [1, 1], (1,), (1, 1, 1), 1, None):
        assert not _repeat.are_axes(((1, 1), value), 2)


def test_a_small_filter_with_repeated_elements_is_recognised_as_its_copy(monkeypatch):
    """Check a filter for all channels, as upsampling without aliases uses it: only the first call is checked and planned."""
    data, one = np.ones((1, 9, 4), np.float32), np.arange(3, dtype=np.float32).reshape(3, 1, 1)
    filter = np.broadcast_to(one, (3, 4, 1))
    parsed, parse = [], api.parse
    monkeypatch.setattr(api, "parse", lambda *a, **k: parsed.append(1) or parse(*a, **k))
    convt.clear_caches()
    results = [convt.conv_transpose(data, filter, strides=2, groups=4) for _ in range(3)]
    assert len(parsed) == 1 and np.array_equal(results[0], results[2])
    assert np.array_equal(results[0], convt.conv_transpose(data, filter.copy(), strides=2, groups=4))
