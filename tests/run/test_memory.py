"""Tests of the memory of outputs: that of a dropped output is kept for the next ones, and clear_caches frees it."""

import ctypes
import gc

import numpy as np
import pytest
from cases import child, in_threads

import convt
from convt._run import memory

# A function of AddressSanitizer, which tools/sanitize.py loads: the address of the first poisoned byte of a region, or 0.
FORBIDDEN = getattr(ctypes.CDLL(None), "__asan_region_is_poisoned", None)
SHAPE = (1, 256, 256, 8)  # outputs of 2 MiB


@pytest.fixture
def op():
    convt.clear_caches()
    yield convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2)
    convt.clear_caches()


def address(array):
    return array.__array_interface__["data"][0]


def test_an_output_takes_the_memory_of_one_that_was_dropped(op):
    data = np.ones((1, 128, 128, 8), np.float32)
    first = op(data)
    assert first.shape == SHAPE and first.flags.c_contiguous and first.flags.writeable and address(first) % 64 == 0
    where = address(first)
    del first
    again = op(data)
    assert address(again) == where
    assert address(op(data)) != where  # `again` is still alive
    np.testing.assert_array_equal(again, np.full(SHAPE, 8, np.float32))


def test_memory_is_kept_as_long_as_a_view_lives(op):
    data = np.ones((1, 128, 128, 8), np.float32)
    view = op(data)[0, 5:7, ::3, 1]
    values = view.copy()
    for _ in range(4):
        op(data * 2)
    np.testing.assert_array_equal(view, values)


def test_memory_that_is_much_too_large_is_not_taken(op):
    large = op(np.ones((4, 128, 128, 8), np.float32))
    where = address(large)
    del large
    small = op(np.ones((1, 128, 128, 8), np.float32))
    assert address(small) != where
    assert address(op(np.ones((4, 128, 128, 8), np.float32))) == where


@pytest.mark.skipif(FORBIDDEN is None, reason="needs AddressSanitizer")
def test_memory_that_is_kept_must_not_be_touched(op):
    """Check that AddressSanitizer poisons kept memory, and in used memory the bytes beyond the requested size."""

    def forbidden(where, size):
        return FORBIDDEN(ctypes.c_void_p(where), ctypes.c_size_t(size))

    FORBIDDEN.restype = ctypes.c_size_t
    large = op(np.ones((1, 128, 140, 8), np.float32))
    where, size = address(large), large.nbytes
    assert not forbidden(where, size)
    del large
    assert forbidden(where, size) == where and forbidden(where + size - 1, 1)
    small = op(np.ones((1, 128, 128, 8), np.float32))
    assert address(small) == where and not forbidden(where, small.nbytes)
    assert forbidden(where, size) == where + small.nbytes and forbidden(where + size - 1, 1)
    del small
    again = op(np.ones((1, 128, 140, 8), np.float32))
    assert address(again) == where and not forbidden(where, size)


def test_what_is_kept_is_bounded_and_given_back(op):
    for size in range(64, 192, 6):
        op(np.ones((1, size, size, 8), np.float32))
    gc.collect()
    assert 0 < memory.kept_bytes() <= memory.CACHED_OUTPUT_BYTES + memory.CACHED_WEIGHT_BYTES + (64 << 20)
    plans = op._plans.calls
    assert plans
    convt.clear_caches()
    assert memory.kept_bytes() == 0 and not plans and plans.bytes == 0
    np.testing.assert_array_equal(op(np.ones((1, 3, 3, 8), np.float32)), np.full((1, 6, 6, 8), 8, np.float32))


def test_clear_caches_forgets_one_shot_calls():
    from convt._call import api

    data, filter = np.ones((1, 5, 8), np.float32), np.ones((3, 8, 4), np.float32)
    want = convt.conv_transpose(data, filter)
    assert api._ONE_SHOT_CALLS
    convt.clear_caches()
    assert not api._ONE_SHOT_CALLS
    np.testing.assert_array_equal(convt.conv_transpose(data, filter), want)


def test_threads_that_drop_outputs_of_each_other(op):
    data = [np.full((1, 128, 128, 8), n, np.float32) for n in range(4)]

    def work(n):
        for _ in range(40):
            got = op(data[n])
            assert got[0, 3, 5, 2] == got[-1, -1, -1, -1] == 8 * n

    in_threads(work, 4)


FORKED = """
import os, sys
import numpy as np, convt
op = convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2)
x = np.ones((1, 128, 128, 8), np.float32)
kept = op(x)
op(x * 3)
pid = os.fork()
for _ in range(5):
    again = op(x * (2 if pid else 5))
    assert (again == (16 if pid else 40)).all() and (kept == 8).all()
    del again
if pid:
    assert os.waitpid(pid, 0)[1] == 0
    print("done")
"""


def test_a_forked_child_has_memory_of_its_own():
    code, out, errors = child(FORKED)
    assert (code, out) == (0, "done\n"), errors
