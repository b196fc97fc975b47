"""Tests of streams: every division into chunks gives the bits of the whole; state, copies, batches, trims and errors."""

import pickle
import re
from dataclasses import replace

import numpy as np
import pytest
from cases import DTYPES, ISAS, in_threads, operator, random_case, using_isa

import convt
from convt._call import steps
from convt._model import machine
from convt._run import config

ACTIVATIONS = (None, None, "relu", ("leaky_relu", 0.25), "tanh", "gelu", ("clip", -1, 1.5), "swish")


def draw(seed):
    """Return (operator, whole data, streamed axis, axis in the data, trim) of a random problem with a valid output."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    rank, mode = pick(1, 1, 1, 2, 3), pick("none", "pads", "pads", "more", "same_upper", "same_lower", "valid")
    groups, ci, co = pick(1, 1, 1, 2, 5), pick(1, 2, 3, 16, 40, 130, 300), pick(1, 1, 2, 5, 16, 40)
    if rng.integers(6) == 0:
        groups, ci, co = pick(8, 33, 64), pick(1, 1, 2), 1
    sizes = range(1, (20, 8, 5)[rank - 1]), range(1, 8), range(1, 6), range(1, 4)
    dtype, activation = pick("float32", *DTYPES), pick(*ACTIVATIONS)
    case = random_case(rng, rank, *sizes, dtype=dtype, groups=groups, ci=ci, co=co, activation=activation)
    axis, trim, none = int(rng.integers(rank)), pick(None, None, None, "right"), (0,) * rank
    sizes = (*case.in_sizes[:axis], int(rng.integers(1, (60, 14, 9)[rank - 1])), *case.in_sizes[axis + 1 :])
    more = tuple(int(n) for n in rng.integers(0, 5, rank))
    case = replace(case, in_sizes=sizes, output_padding=none if mode == "pads" else more)
    if mode in ("pads", "more"):
        reach = [(k - 1) * d + 1 for k, d in zip(case.kernel, case.dilations, strict=True)]
        begin, end = (tuple(int(rng.integers(n + 1)) for n in reach) for _ in range(2))
        case = replace(case, pads_begin=begin, pads_end=end)
    else:
        case = replace(case, pads_begin=none, pads_end=none, auto_pad=None if mode == "none" else mode)
    data, filter, bias = case.arrays(exact=False)
    for array in (data, filter):
        if rng.integers(8) == 0:
            array.flat[rng.integers(array.size)] = pick(np.nan, np.inf, -np.inf)
    op = operator(case, filter, bias, algorithm="invariant", backend="auto")
    return op, data, axis, axis + (1 if case.data_format == "NXC" else 2), trim, rng


def whole_of(op, data, axis, place, trim):
    """Return the output of the whole, or None if it has none. With a trim, it is that of an operator without pads_end."""
    if trim:
        a = op._attributes
        begins, _, outs = a.windows(a.shape_of(data.shape)[1])
        attributes = a._replace(pads_begin=begins, auto_pad=None, output_padding=(0,) * a.rank, pads_end=(0,) * a.rank)
        _, _, plain = attributes.windows(a.shape_of(data.shape)[1])
        wanted = [data.shape[place] * a.strides[n] if n == axis else out for n, out in enumerate(outs)]
        more = tuple(max(0, want - have) for want, have in zip(wanted, plain, strict=True))
        less = tuple(max(0, have - want) for want, have in zip(wanted, plain, strict=True))
        op = convt._call.operator._rebuild(
            type(op), attributes._replace(output_padding=more, pads_end=less)._asdict(), op._plans.filter, op._plans.bias
        )
    return op(data)


def cut(data, place, rng):
    """Yield the chunks of a random division, with lengths 0 and 1 among them."""
    at, size = 0, data.shape[place]
    most = int(rng.integers(1, size + 2))
    while at < size:
        length = min(int(rng.integers(0, most + 1)), size - at)
        yield np.take(data, range(at, at + length), place)
        at += length
    if rng.integers(2):
        yield np.take(data, range(0), place)


def bits(array):
    return array.shape, np.ascontiguousarray(array).tobytes()


def check_chunks(seed):
    """Check a random problem, and return whether it has an output."""
    op, data, axis, place, trim, rng = draw(seed)
    block = (None, None, 4096, 32768)[rng.integers(4)]  # bytes of a block in NCX; otherwise most problems need no blocks
    with machine.pretend(**({} if block is None else {"planes_block": block})), np.errstate(all="ignore"):
        try:
            want = whole_of(op, data, axis, place, trim)
        except ValueError as error:
            assert "output size" in str(error)
            return False
        stream, pieces = op.stream(len(data), axis, trim), []
        t = stream._steps.timeline
        for chunk in cut(data, place, rng):
            pieces.append(stream(chunk))
            assert stream.state["inputs"].shape[place] <= t.kept
        assert sum(p.shape[place] for p in pieces) == max(0, t.stride * data.shape[place] - stream.delay)
        pieces.append(stream.finish())
        assert pieces[-1].dtype == want.dtype and bits(np.concatenate(pieces, place)) == bits(want), seed
    return True


@pytest.mark.parametrize("seed", range(200))
def test_chunks_have_the_bits_of_the_whole(seed):
    check_chunks(seed)


@pytest.mark.parametrize("seed", range(300, 340))
def test_every_instruction_set(seed, each_isa_of_the_cpu):
    check_chunks(seed)


@pytest.fixture(params=ISAS)
def each_isa_of_the_cpu(request):
    with using_isa(request.param):
        yield


def layer(k=4, ci=3, co=2, dtype=np.float32, seed=0, **keywords):
    rng = np.random.default_rng(seed)
    keywords = dict(strides=2, algorithm="invariant") | keywords
    filter, bias = rng.standard_normal((k, ci, co)).astype(dtype), rng.standard_normal(co).astype(dtype)
    return convt.ConvTranspose(filter, bias, **keywords)


def signal(n=20, batch=1, ci=3, seed=1):
    return np.random.default_rng(seed).standard_normal((batch, n, ci)).astype(np.float32)


def run(stream, x, *lengths):
    """Return the outputs of chunks of these lengths, and of the rest, as one array."""
    made, at = [], 0
    for length in (*lengths, x.shape[1] - sum(lengths)):
        made.append(stream(x[:, at : at + length]))
        at += length
    return np.concatenate((*made, stream.finish()), 1)


def test_an_operator_of_another_algorithm_gives_the_same_outputs_but_for_rounding():
    x = signal(64)
    for keywords in (dict(algorithm="auto"), dict(algorithm="winograd"), dict(backend="reference", algorithm="auto")):
        op = layer(**keywords)
        one, other = run(op.stream(), x), run(op.stream(), x, *[3] * 21)
        assert bits(one) == bits(other)
        np.testing.assert_allclose(one, op(x), rtol=0, atol=1e-5)


def test_what_was_measured_does_not_replace_the_algorithm():
    x = signal()
    op = layer(backend="tune")
    assert op.plan(x.shape).algorithm == "invariant" and not op.plan(x.shape).note
    assert bits(run(op.stream(), x, 3)) == bits(op(x)) == bits(layer()(x))


def test_streams_share_packed_weights():
    op = layer(ci=64, co=64)
    x = signal(ci=64)
    op(x)
    bytes = op._plans.weights.bytes
    for pads in range(3):
        run(op.stream(trim=("right", None, None)[pads]), x, 1, 2, 3)
    assert op._plans.weights.bytes == bytes > 0
    auto = layer(ci=64, co=64, algorithm="auto")
    run(auto.stream(), x)
    run(auto.stream(trim="right"), x, 4)
    assert auto._plans.weights.bytes == bytes


def test_a_repeated_length_makes_no_plan(monkeypatch):
    op, x = layer(), signal(30)
    stream = op.stream()
    for n in range(4):
        stream(x[:, n : n + 1])
        stream(x[:, n : n + 7])
    monkeypatch.setattr(type(op._plans), "_bind", None)
    monkeypatch.setattr(convt._call.api, "execute", None)
    other = stream.copy()
    for n in range(4):
        assert bits(stream(x[:, n : n + 1])) == bits(other(x[:, n : n + 1]))
        stream(x[:, n : n + 7]), other(x[:, n : n + 7])


def test_delay_and_kept_inputs():
    for k, s, d, begin, end, delay, kept in [
        (4, 2, 1, 0, 0, 0, 1), (4, 2, 1, 1, 1, 1, 1), (5, 2, 1, 0, 0, 0, 2), (16, 8, 1, 4, 4, 4, 1), (3, 1, 4, 0, 0, 0, 8),
        (1, 1, 1, 0, 0, 0, 0), (2, 5, 1, 0, 0, 3, 0), (4, 2, 1, 0, 3, 1, 2), (7, 3, 1, 2, 6, 4, 2),
    ]:  # fmt: skip
        stream = layer(k, strides=s, dilations=d, pads_begin=begin, pads_end=end).stream()
        stream(signal(40))
        held = stream.state["inputs"].shape[1]
        assert (stream.delay, held) == (delay, kept) and held <= -(-(k - 1) * d // s), (k, s, d)


def test_trim_right_has_the_length_times_the_stride():
    op, x = layer(pads_end=1, output_padding=5), signal()
    got = run(op.stream(trim="right"), x, 0, 1, 5)
    assert bits(got) == bits(layer()(x)[:, :40]) and op.stream(trim="right").delay == 0
    short = layer(k=1)
    assert bits(run(short.stream(trim="right"), x, 4)) == bits(layer(k=1, output_padding=1)(x))


def test_with_tail_is_the_whole_so_far():
    op, x = layer(k=7), signal()
    stream, made = op.stream(), 0
    for n in range(0, 20, 4):
        got = stream.with_tail(x[:, n : n + 4])
        assert bits(got) == bits(op(x[:, : n + 4])[:, made:])
        made += 8


def test_copy_reset_and_pickle():
    op, x = layer(pads_begin=2), signal()
    want = op(x)
    stream = op.stream()
    first = stream(x[:, :7])
    copies = [stream.copy(), pickle.loads(pickle.dumps(stream))]
    stream(x[:, :5])  # does not disturb the copies
    for other in copies:
        assert bits(np.concatenate((first, other(x[:, 7:]), other.finish()), 1)) == bits(want)
    for other in (stream, *copies):
        other.reset()
        assert bits(run(other, x, 3)) == bits(want)
    two = op.stream(axis=0), op.stream()
    two[0](x[:, :7])
    one, other = pickle.loads(pickle.dumps(two))
    assert one._op is other._op and "after 7 inputs" in repr(one) and "batch=1, axis=0" in repr(one)


def test_state_moves_to_another_process_of_an_equal_operator():
    x = signal(batch=2)
    for begin in (0, 3):
        stream = layer(pads_begin=begin).stream(2)
        other, made = layer(pads_begin=begin).stream(2), []
        for n in range(20):
            state = stream.state
            assert state.keys() == {"inputs", "position"} and not np.may_share_memory(state["inputs"], stream._kept)
            other.state = state
            made.append(other(x[:, n : n + 1]))
            stream.state = other.state
        stream.finish()
        other.state = other.state
        made.append(other.finish())
        assert bits(np.concatenate(made, 1)) == bits(layer(pads_begin=begin)(x))
        with pytest.raises(ValueError, match="after finish"):
            other.state = stream.state
            other(x)


@pytest.mark.parametrize("state", [
    {}, {"inputs": np.empty(0, np.float32)}, {"inputs": np.empty((1, 2, 3), np.float32), "position": [9, 0]},
    {"inputs": np.empty((2, 1, 3), np.float32), "position": [9, 0]}, {"inputs": np.empty((1, 1, 3)), "position": [9, 0]},
    {"inputs": np.empty((1, 1, 3), np.float32), "position": [-1, 0]}, {"inputs": 3, "position": [9, 0]}, [1],
    {"inputs": np.empty((1, 1, 4), np.float32), "position": [9, 0]}, {"inputs": np.empty(0, np.float32), "position": [9, 0]},
])  # fmt: skip
def test_wrong_states(state):
    stream = layer().stream()
    stream(signal(4))
    before = stream.state
    with pytest.raises((TypeError, ValueError), match="^(state|data)"):
        stream.state = state
    assert all(np.array_equal(before[key], stream.state[key]) for key in before)


def test_many_streams_have_the_bits_of_single_ones():
    rng = np.random.default_rng(0)
    ops = [layer(pads_begin=3), layer(data_format="NCX"), layer(k=1, strides=3)]
    streams = [ops[n % 3].stream(1 + n % 2) for n in range(14)]
    single = [stream.copy() for stream in streams]
    for _ in range(12):
        shapes = [(s.batch, int(rng.choice([0, 1, 1, 1, 4])), 3) for s in streams]
        chunks = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        chunks = [c.swapaxes(1, 2) if s._op is ops[1] else c for s, c in zip(streams, chunks, strict=True)]
        some = sorted(rng.permutation(14)[:11])
        got = convt.stream_many([streams[n] for n in some], [chunks[n] for n in some])
        assert [bits(y) for y in got] == [bits(single[n](chunks[n])) for n in some]
    assert [bits(s.finish()) for s in streams] == [bits(s.finish()) for s in single]


def test_many_streams_compute_one_batch(monkeypatch):
    op, x = layer(), signal(6, batch=5)
    streams = [op.stream() for _ in range(5)]
    convt.stream_many(streams, list(x[:, None, :3]))
    ran, original = [], steps.Step.__call__
    monkeypatch.setattr(steps.Step, "__call__", lambda own, data: (ran.append(len(data)), original(own, data))[1])
    got = convt.stream_many(streams, list(x[:, None, 3:]))
    assert ran == [5] and bits(np.concatenate(got)) == bits(op(x)[:, 6:12])
    assert convt.stream_many([], []) == []


@pytest.mark.parametrize(("change", "error", "said"), [
    (lambda s, c: (s, c[:1]), ValueError, "chunks: got 1, wanted 2"),
    (lambda s, c: ([s[0], s[0]], c), ValueError, "a stream twice"),
    (lambda s, c: ([s[0], 3], c), TypeError, r"streams\[1\]: got int"),
    (lambda s, c: (s, [c[0], c[1][..., :1]]), ValueError, r"chunks\[1\]: got "),
    (lambda s, c: (s, [c[0], c[1].astype(float)]), TypeError, r"chunks\[1\]: got dtype float64"),
])  # fmt: skip
def test_mistakes_in_many_streams_change_none(change, error, said):
    op = layer()
    streams, chunks = [op.stream(), op.stream()], [signal(3), signal(3)]
    with pytest.raises(error, match=said):
        convt.stream_many(*change(streams, chunks))
    assert [int(s.state["position"][0]) for s in streams] == [0, 0]


def test_update_serves_from_the_next_chunk_on():
    x = signal()
    op, other = layer(), layer(seed=5)
    want, stream = np.concatenate((op(x)[:, :20], other(x)[:, 20:]), 1), op.stream()
    made = [stream(x[:, :10])]
    op.update(np.moveaxis(other._plans.filter[0], -1, 0), other._plans.bias)
    made += [stream(x[:, 10:]), stream.finish()]
    assert bits(np.concatenate(made, 1)) == bits(want)


def test_threads_and_views_and_other_arrays():
    op, x = layer(ci=40, co=30), signal(300, ci=40, batch=3)
    want = op(x)
    for threads in (1, 2, 5):
        with convt.num_threads(threads):
            assert bits(run(op.stream(3), x, 100, 1)) == bits(want)
    strided = np.repeat(x, 2, 1)[:, ::2]
    assert bits(run(op.stream(3), strided, 100)) == bits(want)
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert bits(run(op.stream(3), torch.from_numpy(x), 100)) == bits(want)
    made = in_threads(lambda n: run(op.stream(3), x, *[1 + n] * 9), 4)
    assert {bits(y) for y in made} == {bits(want)}


def test_no_input_at_all():
    assert op_empty(layer()) == bits(np.tile(layer()._plans.bias, (1, 2, 1)))
    assert op_empty(layer(pads_begin=5)) == ((1, 0, 2), b"")
    with pytest.raises(ValueError, match="finish: got a call before any chunk"):
        convt.ConvTranspose(np.ones((2, 2, 1, 1), np.float32), algorithm="invariant").stream().finish()


def op_empty(op):
    return bits(op.stream().finish())


@pytest.mark.parametrize(("op", "arguments", "said"), [
    (layer(), dict(axis=1), "axis: got 1, wanted -1 to 0, because the filter has 1 spatial axis"),
    (layer(), dict(axis=-2), "axis: got -2"),
    (layer(), dict(batch=-1), "batch: got -1"), (layer(), dict(trim="left"), "trim: got 'left', wanted one of right"),
    (layer(), dict(batch=1.5), "batch: got 1.5"), (layer(output_shape=9), {}, "output_shape (9,), wanted an operator without"),
])  # fmt: skip
def test_mistakes_in_stream(op, arguments, said):
    with pytest.raises((TypeError, ValueError), match=re.escape(said)):
        op.stream(**arguments)


def test_mistakes_in_chunks_leave_the_stream_as_it_was():
    op, x = layer(), signal()
    stream = op.stream()
    made = [stream(x[:, :4])]
    for chunk, error, said in [
        (x[:, :2, :1], ValueError, "chunk: got 1 channel (shape (1, 2, 1)"), (x[0], ValueError, "chunk: got rank 2"),
        (x.astype(float), TypeError, "chunk: got dtype float64, wanted float32"), ([1, 2], TypeError, "chunk: got list"),
        (np.concatenate((x, x)), ValueError, "chunk: got batch 2 (shape (2, 20, 3)), wanted 1"),
    ]:  # fmt: skip
        with pytest.raises(error, match=re.escape(said)):
            stream(chunk)
    made += [stream(x[:, 4:]), stream.finish()]
    assert bits(np.concatenate(made, 1)) == bits(op(x))
    for call in (lambda: stream(x), stream.finish):
        with pytest.raises(ValueError, match="wanted reset"):
            call()
    fresh = op.stream(2)
    for chunk, said in [(x, "chunk: got batch 1"), (x[..., :2], "chunk: got 2 channels"), (x[0], "chunk: got rank 2")]:
        with pytest.raises(ValueError, match=re.escape(said)):
            fresh(chunk)


def test_outputs_that_exceed_the_memory_are_refused(monkeypatch):
    stream = layer().stream()
    made = [stream(signal(5))]
    monkeypatch.setattr(config, "check_size", lambda problem: (_ for _ in ()).throw(MemoryError("output: too large")))
    with pytest.raises(MemoryError):
        stream(signal(9))
    monkeypatch.undo()
    made += [stream(signal(20)[:, 5:]), stream.finish()]
    x = np.concatenate((signal(5), signal(20)[:, 5:]), 1)
    assert bits(np.concatenate(made, 1)) == bits(layer()(x))
