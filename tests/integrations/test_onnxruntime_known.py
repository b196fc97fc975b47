"""Tests of shapes that a node of a session has computed before: they are computed without Python and the GIL, with the weights
and the number of threads that are current."""

import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx_models import close, conv, helper, model_of, sessions, weights

import convt
from convt._run import memory
from convt.onnxruntime import InferenceSession, _node

W = weights(6, 4, 3, 3)
SIZES = [(1, 6, 5, 7), (2, 6, 9, 4), (1, 6, 16, 16), (3, 6, 1, 1)]


@pytest.fixture
def computed(monkeypatch):
    """Record the shapes of X that nodes compute in Python."""
    found = []
    inner = _node.Node.compute

    def compute(self, inputs, out):
        found.append(inputs[self.group.data].shape)
        inner(self, inputs, out)

    monkeypatch.setattr(_node.Node, "compute", compute)
    return found


def session_of(constants=None, inputs=None, threads=0):
    constants = {"W": W} if constants is None else constants
    model = model_of([conv(strides=[2, 2])], inputs or {"X": ("N", 6, "H", "V")}, constants=constants)
    return sessions(model, intra_op_num_threads=threads)


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_shape_is_computed_by_python_once(computed, threads):
    session, other = session_of(threads=threads)
    for _ in range(4):
        for n, shape in enumerate(SIZES):
            close(session, other, {"X": weights(*shape) + n})
    assert computed == SIZES


def test_more_shapes_than_a_node_keeps(computed):
    session, other = session_of()
    shapes = [(1, 6, 3 + n, 5) for n in range(_node.SHAPES + 4)]
    for shape in shapes + shapes[::-1]:
        close(session, other, {"X": weights(*shape)})
    assert set(computed) == set(shapes) and len(computed) < 2 * len(shapes)
    assert len(session.nodes["Y"].shapes) <= _node.SHAPES


@pytest.mark.parametrize("rank, dtype", [(1, "float32"), (2, "float16"), (2, "float64"), (3, "float32")])
def test_ranks_and_dtypes(computed, rank, dtype):
    kind, x, w = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), weights(1, 3, *[5] * rank), weights(3, 2, *[3] * rank)
    model = model_of([conv(strides=[2] * rank)], {"X": x.shape}, constants={"W": w.astype(dtype)}, dtype=kind)
    session, feed = InferenceSession(model), {"X": x.astype(dtype)}
    first = session.run(None, feed)[0]
    np.testing.assert_array_equal(session.run(None, feed)[0], first)
    assert len(computed) == 1


def test_nan_and_infinity(computed):
    """Check values that an algorithm refuses, which another algorithm computes."""
    session, other = session_of({"W": weights(6, 4, 4, 4)})
    data = weights(1, 6, 16, 16)
    close(session, other, {"X": data})
    for value in (np.nan, np.inf):
        odd = data.copy()
        odd[0, 2, 7, 7] = value
        got, want = session.run(None, {"X": odd})[0], other.run(None, {"X": odd})[0]
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        close(session, other, {"X": data})


def test_weights_that_a_run_brings_are_never_taken_for_known(computed):
    session, other = session_of({}, {"X": ("N", 6, "H", "V"), "W": W.shape})
    for n in range(3):
        close(session, other, {"X": weights(1, 6, 5, 7), "W": W + n})
    assert len(computed) == 3


def test_threads_that_change_are_used(computed):
    session, other = session_of()
    feed = {"X": weights(1, 6, 16, 16)}
    before = convt.get_num_threads()
    for _ in range(2):
        close(session, other, feed)
    assert len(computed) == 1
    try:
        convt.set_num_threads(3)
        for _ in range(2):
            close(session, other, feed)
        assert len(computed) == 2
    finally:
        convt.set_num_threads(before)
    with convt.num_threads(1):
        close(session, other, feed)
        assert len(computed) == 3  # Python computes every call inside a num_threads block
    close(session, other, feed)
    close(session, other, feed)
    assert len(computed) == 4


def test_what_is_dropped_is_made_anew(computed):
    session, other = session_of()
    feed = {"X": weights(1, 6, 16, 16)}
    for _ in range(2):
        close(session, other, feed)
    convt.clear_caches()
    for _ in range(2):
        close(session, other, feed)
    (node,) = session.nodes.values()
    node.operator._plans.weights.clear()
    for _ in range(2):
        close(session, other, feed)
    assert len(computed) == 3


def test_a_known_shape_needs_no_gil(computed):
    """Check that nodes of known shapes do not wait for the GIL, which another thread holds for a second at a time."""
    chain, names = [], ["X", *[f"T{n}" for n in range(29)], "Y"]
    for n in range(30):
        chain.append(conv((names[n], "W"), names[n + 1], strides=[1, 1], pads=[1, 1, 1, 1]))
    model = model_of(chain, {"X": (1, 4, 6, 6)}, constants={"W": weights(4, 4, 3, 3) * 0.1})
    session, feed = InferenceSession(model), {"X": weights(1, 4, 6, 6)}
    for _ in range(2):
        session.run(None, feed)
    assert len(computed) == 30
    over, before = threading.Event(), sys.getswitchinterval()

    def busy():
        while not over.is_set():
            sum(range(1000))

    sys.setswitchinterval(0.05)
    thread = threading.Thread(target=busy)
    thread.start()
    try:
        taken = []
        for _ in range(3):
            start = time.perf_counter()
            session.run(None, feed)
            taken.append(time.perf_counter() - start)
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(before)
    assert len(computed) == 30
    assert min(taken) < 0.75, taken  # if 30 nodes waited 0.05 s each, this would take 1.5 s


def test_many_threads_at_once(computed):
    session, _ = session_of(threads=1)
    feeds = [{"X": weights(*shape) + n} for n, shape in enumerate(SIZES * 3)]
    want = [session.run(None, feed)[0] for feed in feeds]
    stop = time.perf_counter() + 2

    def work(n):
        k = n
        while time.perf_counter() < stop:
            k = (k + 1) % len(feeds)
            np.testing.assert_array_equal(session.run(None, feeds[k])[0], want[k])
            if n == 0:
                convt.clear_caches()
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_sessions_come_and_go():
    feed = {"X": weights(1, 6, 16, 16)}
    for _ in range(20):
        session, other = session_of()
        for _ in range(3):
            close(session, other, feed)
        del session, other
    gc.collect()
    assert memory.kept_bytes() < 1 << 30
