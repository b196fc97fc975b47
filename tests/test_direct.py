"""The direct algorithm where a phase has one tap: input rows that are multiplied where they lie, and those that are packed."""

import numpy as np
import pytest
from cases import DTYPES, each_dtype, each_isa, using_isa

import convt
from convt import _config

VIEWS = {
    "whole": (slice(None),) * 4,
    "every second row": (slice(None), slice(None, None, 2)),
    "every second pixel": (slice(None), slice(None), slice(None, None, 2)),
    "every second image": (slice(None, None, 2),),
    "some channels": (..., slice(1, -1)),
    "pixels backwards": (slice(None), slice(None), slice(None, None, -1)),
    "all backwards": (slice(None, None, -1),) * 3,
    "one pixel": (slice(None), slice(2, 3), slice(1, 2)),
    "one column": (slice(None), slice(None), slice(1, 2)),
    "one image": (slice(1, 2),),
}


@each_isa
@each_dtype
@pytest.mark.parametrize("view", VIEWS)
def test_one_tap_on_views(view, dtype, isa):
    """Whole numbers, so that every sum is exact but for the rounding of the result."""
    rng = np.random.default_rng(0)
    kind = DTYPES[dtype][0]
    data = rng.integers(-2, 3, (3, 7, 9, 22)).astype(kind)[VIEWS[view]]
    co = 37
    for kernel, pads, output_padding in ((1, 0, 0), (2, 0, 0), (2, (1, 0), 0), (2, (0, 1), 0), (2, 0, 1), (3, (3, 0), 0)):
        filter = rng.integers(-2, 3, (kernel, kernel, data.shape[-1], co)).astype(kind)
        bias = rng.integers(-2, 3, co).astype(kind)
        keywords = {"strides": kernel, "output_padding": output_padding}
        if pads:
            keywords["pads_begin"] = pads if data.shape[1] > 1 and data.shape[2] > 1 else 0
        with using_isa(isa):
            got = convt.conv_transpose(data, filter, bias, algorithm="direct", **keywords)
        wanted = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
        np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))


@each_isa
@pytest.mark.parametrize("ci", [256, 257, 600, 1024])
def test_one_tap_in_several_chunks(ci, isa):
    """Depth beyond a chunk; columns with and without a rest; few weights and many; any number of threads, the same bits."""
    rng = np.random.default_rng(ci)
    for co in (8, 40, 300):
        data = rng.integers(-2, 3, (1, 15, 21, ci)).astype(np.float32)
        filter = rng.integers(-2, 3, (2, 2, ci, co)).astype(np.float32)
        wanted = convt.conv_transpose(data, filter, strides=2, backend="reference")
        with using_isa(isa):
            op = convt.ConvTranspose(filter, strides=2, algorithm="direct")
            before = _config.get_num_threads()
            try:
                for threads in (1, 2, 3):
                    convt.set_num_threads(threads)
                    np.testing.assert_array_equal(op(data), wanted)
            finally:
                convt.set_num_threads(before)


def test_rows_that_lie_in_the_input_take_no_workspace():
    """A packed block of 140 rows alone would be 149 KiB a thread."""
    filter = np.ones((1, 1, 64, 128), np.float32)
    plan = convt.ConvTranspose(filter, algorithm="direct").plan((1, 100, 100, 64))
    assert plan.workspace_bytes < plan.threads * 32 << 10
