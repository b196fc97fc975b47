"""convt.dask against single calls: random problems and chunks, schedulers, worker processes, mistakes."""

import doctest
import pickle
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import child
from hypothesis import given, settings
from hypothesis import strategies as st

da = pytest.importorskip("dask.array", reason="dask is not installed")

import convt  # noqa: E402
import convt.dask  # noqa: E402

ROOT = Path(__file__).parents[1]


@st.composite
def problems(draw):
    """(data, filter, bias, keywords, chunks) of one to three spatial axes."""
    rank = draw(st.integers(1, 3))
    each = lambda low, high: [draw(st.integers(low, high)) for _ in range(rank)]  # noqa: E731
    groups, ci, co = draw(st.sampled_from([1, 1, 2])), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    kernel, sizes, strides = each(1, 6), each(1, 14), each(1, 4)
    keywords = dict(strides=strides, dilations=each(1, 3), groups=groups)
    mode = draw(st.sampled_from(["pads", "auto", "shape", "beyond"]))
    if mode in ("pads", "beyond"):
        keywords.update(pads_begin=each(0, 4), pads_end=each(0, 4))
    if mode == "beyond":
        keywords.update(output_padding=each(0, 5))
    if mode == "auto":
        keywords.update(auto_pad=draw(st.sampled_from(["same_upper", "same_lower", "valid"])))
    if mode == "shape":
        keywords.update(output_shape=[max(1, s * n + draw(st.integers(-2, 3))) for s, n in zip(strides, sizes, strict=True)])
    keywords.update(data_format=draw(st.sampled_from(["NXC", "NCX", "channels_last"])))
    keywords.update(activation=draw(st.sampled_from([None, "relu", ("leaky_relu", 0.5)])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    batch, channels = draw(st.integers(1, 3)), groups * ci
    shape = (batch, channels, *sizes) if keywords["data_format"] == "NCX" else (batch, *sizes, channels)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    filter = rng.standard_normal((*kernel, channels, co)).astype(dtype)
    bias = rng.standard_normal(groups * co).astype(dtype) if draw(st.booleans()) else None
    steps = [draw(st.integers(1, size)) for size in shape]
    chunks = tuple(tuple(min(step, n - i) for i in range(0, n, step)) for step, n in zip(steps, shape, strict=True))
    return rng.standard_normal(shape).astype(dtype), filter, bias, keywords, chunks


@settings(max_examples=150, deadline=None)
@given(problems())
def test_chunks_are_one(problem):
    data, filter, bias, keywords, chunks = problem
    try:
        want = convt.conv_transpose(data, filter, bias, **keywords)
    except ValueError as error:
        with pytest.raises(ValueError, match=re.escape(str(error))):
            convt.dask.conv_transpose(da.from_array(data, chunks=chunks), filter, bias, **keywords)
        return
    lazy = convt.dask.conv_transpose(da.from_array(data, chunks=chunks), filter, bias, **keywords)
    assert lazy.shape == want.shape and lazy.dtype == want.dtype and type(lazy._meta) is np.ndarray
    got = lazy.compute(scheduler="sync")
    assert got.shape == want.shape
    np.testing.assert_allclose(
        got, want, rtol=0, atol=(1e-5 if data.dtype == np.float32 else 1e-12) * max(1, abs(want).max(initial=0))
    )


def test_chunks_stay_where_they_were(monkeypatch):
    data = da.ones((2, 40, 30, 8), chunks=(1, 10, 15, 4), dtype=np.float32)
    lazy = convt.dask.conv_transpose(data, np.ones((4, 4, 8, 3), np.float32), strides=2, pads_begin=1, pads_end=1)
    assert lazy.chunks == ((1, 1), (19, 20, 20, 21), (29, 31), (3,))
    computed, original = [], convt.dask._Block.__call__
    monkeypatch.setattr(convt.dask._Block, "__call__", lambda self, data, block_id: (
        computed.append(block_id), original(self, data, block_id))[1])  # fmt: skip
    assert lazy[:1, :19, 29:].compute(scheduler="sync").shape == (1, 19, 31, 3)
    assert computed == [(0, 0, 1, 0)]  # a part of the output takes its own chunks alone


def test_every_output_is_computed_once(monkeypatch):
    computed = []
    original = convt.dask._Block.__call__
    monkeypatch.setattr(convt.dask._Block, "__call__", lambda self, data, block_id: (
        computed.append(original(self, data, block_id).size), original(self, data, block_id))[1])  # fmt: skip
    lazy = convt.dask.conv_transpose(da.ones((1, 33, 20, 2), chunks=(1, 8, 7, 2)), np.ones((5, 3, 2, 2)), strides=(2, 3))
    lazy.compute(scheduler="sync")
    assert sum(computed) == lazy.size


def test_blocks_travel_without_what_they_packed(monkeypatch):
    blocks = []
    original = convt.dask._Block.__call__
    monkeypatch.setattr(convt.dask._Block, "__call__", lambda self, data, block_id: (
        blocks.append(self), original(self, data, block_id))[1])  # fmt: skip
    convt.dask.conv_transpose(da.ones((1, 9, 2), chunks=(1, 3, 2)), np.ones((3, 2, 2))).compute(scheduler="sync")
    assert blocks[-1].operators and not pickle.loads(pickle.dumps(blocks[-1])).operators


CLUSTER = """
import numpy as np, dask.array as da, convt, convt.dask
from dask.distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster, Client(cluster):
        data = np.random.default_rng(0).standard_normal((2, 40, 24, 8)).astype(np.float32)
        filter = np.random.default_rng(1).standard_normal((5, 4, 8, 3)).astype(np.float32)
        keywords = dict(strides=2, pads_begin=1, pads_end=(1, 0), activation="relu")
        lazy = convt.dask.conv_transpose(da.from_array(data, chunks=(1, 10, 9, 8)), filter, **keywords)
        print(float(abs(lazy.compute() - convt.conv_transpose(data, filter, **keywords)).max()) < 1e-4)
"""


def test_worker_processes(tmp_path):
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    code, out, errors = child(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert code == 0 and out.strip().endswith("True"), (out, errors)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (dict(data=np.ones((1, 8, 2), np.float32)), "data: got ndarray, wanted a dask array"),
        (dict(data=da.ones((1, 8, 2))), "data: got dtype float64, wanted float32, the filter's"),
        (dict(data=da.ones((1, 8, 3), dtype=np.float32)), "data: got 3 channels"),
        (dict(data=da.ones((1, 8, 8, 2), dtype=np.float32)), "data: got rank 4"),
        (dict(out=np.ones(1)), "out, backend: wanted neither"),
        (dict(backend="tune"), "out, backend: wanted neither"),
        (dict(strides=0), "strides: got 0"),
        (dict(threads=0), "threads: got 0"),
        (dict(pads_begin=99), "output size: got"),
    ],
)
def test_mistakes_are_said_at_once(change, said):
    keywords = dict(data=da.ones((1, 8, 2), dtype=np.float32), filter=np.ones((3, 2, 2), np.float32)) | change
    with pytest.raises((TypeError, ValueError), match=said):
        convt.dask.conv_transpose(**keywords)


def test_unknown_sizes_are_refused():
    data = da.ones((8, 8, 2), dtype=np.float32)
    data = data[data[:, 0, 0] > 0]
    with pytest.raises(ValueError, match="data: got a shape that dask does not know"):
        convt.dask.conv_transpose(data, np.ones((3, 2, 2), np.float32))


def test_the_page_and_the_example_run(capsys):
    failed, tried = doctest.testmod(sys.modules["convt.dask"])
    assert tried and not failed
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/dask.md").read_text(encoding="utf-8"), re.S)
    exec(code, {})
    assert capsys.readouterr().out == "(1, 192, 192, 192, 1) (63, 64, 65)\n"


def test_without_dask_the_error_says_how_to_install_it():
    code, _, errors = child("import sys; sys.modules['dask'] = None\nimport convt.dask")
    assert code != 0 and 'pip install "convt[dask]"' in errors
