"""Tests of streams: every division into chunks gives the bits of the whole; state, copies, batches, trims and errors."""

import pickle
import re
import threading

import ml_dtypes
import numpy as np
import pytest

import convt
from convt._call.stream import Timeline
from convt._model import machine

DTYPES = (np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
ACTIVATIONS = (None, None, "relu", ("leaky_relu", 0.25), "tanh", "gelu", ("clip", -1, 1.5), "swish")


def draw(seed):
    """Return (operator, whole data, streamed axis, axis in the data, trim) of a random problem with a valid output."""
    rng = np.random.default_rng(seed)
    pick = lambda *values: values[rng.integers(len(values))]  # noqa: E731
    rank = pick(1, 1, 1, 2, 3)
    each = lambda low, high: tuple(int(n) for n in rng.integers(low, high, rank))  # noqa: E731
    groups, ci, co = pick(1, 1, 1, 2, 5), pick(1, 2, 3, 16, 40, 130, 300), pick(1, 1, 2, 5, 16, 40)
    if rng.integers(6) == 0:
        groups, ci, co = pick(8, 33, 64), pick(1, 1, 2), 1
    kernel, strides, dilations = each(1, 8), each(1, 6), each(1, 4)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    keywords = dict(strides=strides, dilations=dilations, groups=groups, activation=pick(*ACTIVATIONS))
    mode = pick("none", "pads", "pads", "more", "same_upper", "same_lower", "valid")
    if mode in ("pads", "more"):
        keywords["pads_begin"] = tuple(int(rng.integers(0, n + 1)) for n in reach)
        keywords["pads_end"] = tuple(int(rng.integers(0, n + 1)) for n in reach)
    elif mode != "none":
        keywords["auto_pad"] = mode
    if mode != "pads":
        keywords["output_padding"] = each(0, 5)
    dtype, data_format = pick(*DTYPES), pick("NXC", "NCX")
    filter = rng.standard_normal((*kernel, groups * ci, co)).astype(dtype)
    if rng.integers(8) == 0:
        filter.flat[rng.integers(filter.size)] = pick(np.nan, np.inf)
    bias = rng.standard_normal(groups * co).astype(dtype) if rng.integers(2) else None
    op = convt.ConvTranspose(filter, bias, algorithm="invariant", data_format=data_format, **keywords)
    axis, trim = int(rng.integers(rank)), pick(None, None, None, "right")
    sizes = [int(rng.integers(1, (20, 8, 5)[rank - 1])) for _ in range(rank)]
    sizes[axis] = int(rng.integers(1, (60, 14, 9)[rank - 1]))
    batch = pick(1, 1, 2, 3)
    shape = (batch, *sizes, groups * ci) if data_format == "NXC" else (batch, groups * ci, *sizes)
    data = rng.standard_normal(shape).astype(dtype)
    if rng.integers(8) == 0:
        data.flat[rng.integers(data.size)] = pick(np.nan, -np.inf)
    return op, data, axis, axis + (1 if data_format == "NXC" else 2), trim, rng


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
    with np.errstate(all="ignore"):
        try:
            want = whole_of(op, data, axis, place, trim)
        except ValueError as error:
            assert "output size" in str(error)
            return False
        stream, pieces = op.stream(len(data), axis, trim), []
        t = stream._shared.timeline
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
