"""Tests of convt.dask against single calls of convt: random problems and chunks, schedulers, worker processes, and errors."""

import os
import pickle
import re

import ml_dtypes
import numpy as np
import pytest
from cases import ALL_DTYPES, child, copy_in, kept_forms
from fuzz import oracle
from hypothesis import given, settings
from hypothesis import strategies as st

da = pytest.importorskip("dask.array", reason="dask is not installed")

import convt  # noqa: E402
import convt.dask  # noqa: E402
from convt._model import machine  # noqa: E402

EXAMPLES = 40 if os.environ.get("CONVT_ISA") else 100  # fewer if CONVT_ISA splits the run


@st.composite
def problems(draw, most_channels=(3, 3), dtypes=(np.float32, np.float64)):
    """Draw (data, filter, bias, keywords, chunks) of one to three spatial axes."""
    rank = draw(st.integers(1, 3))
    each = lambda low, high: [draw(st.integers(low, high)) for _ in range(rank)]  # noqa: E731
    groups, ci, co = (
        draw(st.sampled_from([1, 1, 2])),
        draw(st.integers(1, most_channels[0])),
        draw(st.integers(1, most_channels[1])),
    )
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
    dtype = draw(st.sampled_from(dtypes))
    filter = rng.standard_normal((*kernel, channels, co)).astype(dtype)
    bias = rng.standard_normal(groups * co).astype(dtype) if draw(st.booleans()) else None
    steps = [draw(st.integers(1, size)) for size in shape]
    chunks = tuple(tuple(min(step, n - i) for i in range(0, n, step)) for step, n in zip(steps, shape, strict=True))
    return rng.standard_normal(shape).astype(dtype), filter, bias, keywords, chunks


@settings(max_examples=EXAMPLES, deadline=None)
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


def assert_same_bits(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape and oracle.same_bits(got, want)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    problems((300, 40), (np.float32, np.float32, np.float64, np.float16, ml_dtypes.bfloat16)),
    st.sampled_from([None, np.nan, np.inf, -0.0]),
    st.sampled_from([None, np.nan, -np.inf]),
    st.sampled_from([None, 4096, 32768]),  # bytes of a block in NCX: otherwise these problems are too small for blocks
    st.sampled_from([None, "tanh", ("clip", -1, 1)]),
)
def test_invariant_sums_chunks_in_the_order_of_the_whole(problem, in_data, in_filter, planes_block, activation):
    data, filter, bias, keywords, chunks = problem
    keywords.update(algorithm="invariant", **({"activation": activation} if activation else {}))
    for array, value in (data, in_data), (filter, in_filter):
        if value is not None:
            array.flat[:: max(1, array.size // 3)] = value
    limits = {} if planes_block is None else {"planes_block": planes_block}
    with machine.pretend(**limits), np.errstate(all="ignore"):
        convt.clear_caches()  # because the caches ignore the pretended machine
        try:
            want = convt.conv_transpose(data, filter, bias, **keywords)
        except ValueError:
            return  # test_chunks_are_one checks errors
        lazy = convt.dask.conv_transpose(da.from_array(data, chunks=chunks), filter, bias, **keywords)
        assert_same_bits(lazy.compute(scheduler="sync"), want)


@pytest.mark.parametrize("chunks", [(1, 50, 7, 4), (1, 300, 9, 40), (1, 300, 1, 1)])
@pytest.mark.parametrize(("kernel", "strides", "size", "ci", "co", "begins", "planes_block"), [
    ((4, 3), (2, 1), (34, 16), 100, 16, (3, 3), 65536), ((4, 3), (1, 4), (36, 8), 96, 32, (3, 1), 4096),
    ((4, 4), (2, 3), (36, 35), 64, 32, (1, 3), 16384), ((5, 2), (3, 1), (20, 27), 64, 16, (1, 3), 65536),
])  # fmt: skip
def test_blocks_of_planes_with_several_orders(kernel, strides, size, ci, co, begins, planes_block, chunks):
    """NCX blocks that contain ends of runs, whose depth chunks differ from those of other runs if vectors have 512 bits."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, ci, *size)).astype(np.float32)
    filter = rng.standard_normal((*kernel, ci, co)).astype(np.float32)
    keywords = dict(strides=strides, pads_begin=begins, data_format="NCX", algorithm="invariant")
    with machine.pretend(planes_block=planes_block):
        lazy = convt.dask.conv_transpose(da.from_array(data).rechunk(chunks), filter, **keywords)
        assert_same_bits(lazy.compute(scheduler="sync"), convt.conv_transpose(data, filter, **keywords))


def test_unaligned_data_are_summed_as_aligned_ones_are():
    """The copy of unaligned data keeps the order of its axes, because a plan for contiguous channels sums in another order."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((2, 76, 5)).astype(np.float32)
    filter = rng.standard_normal((4, 76, 1)).astype(np.float32)
    keywords = dict(pads_begin=1, output_padding=4, data_format="NCX", algorithm="invariant")
    unaligned = copy_in("byte off", data)
    with machine.pretend(planes_block=1):
        want = convt.conv_transpose(data, filter, **keywords)
        assert_same_bits(convt.conv_transpose(unaligned, filter, **keywords), want)
        lazy = convt.dask.conv_transpose(da.from_array(unaligned, chunks=(1, 76, 2)), filter, **keywords)
        assert_same_bits(lazy.compute(scheduler="sync"), want)


def test_chunks_stay_where_they_were(monkeypatch):
    data = da.ones((2, 40, 30, 8), chunks=(1, 10, 15, 4), dtype=np.float32)
    lazy = convt.dask.conv_transpose(data, np.ones((4, 4, 8, 3), np.float32), strides=2, pads_begin=1, pads_end=1)
    assert lazy.chunks == ((1, 1), (20, 20, 20, 20), (30, 30), (3,))
    computed, original = [], convt.dask._Block.__call__
    monkeypatch.setattr(convt.dask._Block, "__call__", lambda self, data, block_id: (
        computed.append(block_id), original(self, data, block_id))[1])  # fmt: skip
    assert lazy[:1, :20, 30:].compute(scheduler="sync").shape == (1, 20, 30, 3)
    assert computed == [(0, 0, 1, 0)]  # only the needed chunks are computed


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
    keywords = dict(strides=2, pads_begin=1, algorithm="invariant")
    convt.dask.conv_transpose(da.ones((1, 29, 2), chunks=(1, 3, 2)), np.ones((3, 2, 2)), **keywords).compute(scheduler="sync")
    assert len({id(block) for block in blocks}) == 1 and len(kept_forms(blocks[0].op)) == 1  # packed once for all chunks
    assert len(blocks[0].op._plans.calls) < len(blocks) == 10  # chunks of one size share a plan
    assert not kept_forms(pickle.loads(pickle.dumps(blocks[0])).op)


CLUSTER = """
import numpy as np, dask.array as da, convt, convt.dask
from dask.distributed import Client, LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, processes=True) as cluster, Client(cluster):
        data = np.random.default_rng(0).standard_normal((2, 40, 24, 8)).astype(np.float32)
        filter = np.random.default_rng(1).standard_normal((5, 4, 8, 3)).astype(np.float32)
        keywords = dict(strides=2, pads_begin=1, pads_end=(1, 0), activation="relu", algorithm="invariant")
        lazy = convt.dask.conv_transpose(da.from_array(data, chunks=(1, 10, 9, 8)), filter, **keywords)
        print(bool((lazy.compute() == convt.conv_transpose(data, filter, **keywords)).all()))
"""


def test_worker_processes(tmp_path):
    pytest.importorskip("distributed", reason="dask.distributed is not installed")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    code, out, errors = child(f"import runpy; runpy.run_path({str(script)!r}, run_name='__main__')")
    assert code == 0 and out.strip().endswith("True"), (out, errors)


@pytest.mark.parametrize(("change", "said"), [
    (dict(data=np.ones((1, 8, 2), np.float32)), "data: got ndarray, wanted a dask array"),
    (dict(data=da.ones((1, 8, 2))), "data: got dtype float64, wanted float32, the filter's"),
    (dict(data=da.ones((1, 8, 3), dtype=np.float32)), "data: got 3 channels"),
    (dict(data=da.ones((1, 8, 8, 2), dtype=np.float32)), "data: got rank 4"),
    (dict(out=np.ones(1)), "out, backend: got out or backend='tune', wanted neither"),
    (dict(backend="tune"), "out, backend: got out or backend='tune', wanted neither"), (dict(strides=0), "strides: got 0"),
    (dict(threads=0), "threads: got 0"), (dict(pads_begin=99), "output size: got"),
    (dict(stride=2), "got the unknown argument stride, which probably means strides"),
])  # fmt: skip
def test_mistakes_are_said_at_once(change, said):
    keywords = dict(data=da.ones((1, 8, 2), dtype=np.float32), filter=np.ones((3, 2, 2), np.float32)) | change
    with pytest.raises((TypeError, ValueError), match=said):
        convt.dask.conv_transpose(**keywords)


def test_type_and_shape_are_known_before_anything_is_computed():
    def fail(block):
        raise AssertionError("computed")

    for dtype in ALL_DTYPES:
        data = da.zeros((2, 6, 9, 8), chunks=(1, 6, 3, 4), dtype=dtype).map_blocks(
            fail, dtype=dtype, meta=np.empty((0,) * 4, dtype)
        )
        for data_format, shape, chunks in (
            ("NHWC", (2, 12, 18, 3), ((1, 1), (12,), (6, 6, 6), (3,))),
            ("NCHW", (2, 3, 18, 16), ((1, 1), (3,), (6, 6, 6), (8, 8))),
        ):
            filter = np.ones((2, 2, data.shape[-1 if data_format == "NHWC" else 1], 3), dtype)
            lazy = convt.dask.conv_transpose(data, filter, strides=2, data_format=data_format)
            assert (lazy.shape, lazy.chunks, lazy.dtype, lazy._meta.dtype) == (shape, chunks, dtype, dtype)
            assert type(lazy._meta) is np.ndarray and lazy._meta.ndim == 4


@pytest.mark.parametrize(
    ("chunks", "cut"),
    [
        ((1, 1, 1, 1), ((1, 1), (10, 10, 21), (20,), (2,))),  # chunks of one pixel: halos are 5 and 7 inputs long
        ((2, 2, 9, 4), ((2,), (12, 29), (20,), (2,))),
        (((1, 0, 1), (16, 0), (12, 1), (2, 2)), ((1, 0, 1), (41,), (20,), (2,))),  # an axis with empty chunks becomes one chunk
    ],
)
def test_chunks_too_small_for_their_halo_are_merged(chunks, cut):
    rng = np.random.default_rng(0)
    data, filter = rng.standard_normal((2, 16, 13, 4)).astype(np.float32), rng.standard_normal((11, 8, 4, 2)).astype(np.float32)
    keywords = dict(strides=(2, 1), algorithm="invariant")
    lazy = convt.dask.conv_transpose(da.from_array(data).rechunk(chunks), filter, **keywords)
    want = convt.conv_transpose(data, filter, **keywords)
    assert_same_bits(lazy.compute(scheduler="sync"), want)
    assert lazy.chunks == cut


def test_what_to_expect_of_more_workers():
    from bench import scaling

    chunks = scaling.counted(64, 16, 2, 3)
    assert chunks.number == 64 and chunks.tasks > 64
    there = scaling.Machine(cores=4, peak=1e9, copy_one=1e12, copy_all=1e12, network=1e12, storage=1e12, overhead=0)
    one, limit = scaling.expected(chunks, there, 1)
    assert limit == "computing" and one == pytest.approx(64 * 2 * 16**3 * 64 * 2 * 3 / 1e9)
    assert scaling.expected(chunks, there, 64)[0] == pytest.approx(one / 64, rel=0.01)
    assert scaling.expected(chunks, there, 48)[0] == pytest.approx(one / 32, rel=0.01)  # some workers have two chunks
    slow = there._replace(peak=1e15, copy_all=1e9)  # memory copies as fast for one worker as for two
    assert scaling.expected(chunks, slow, 4) == (pytest.approx(scaling.expected(chunks, slow, 1)[0], rel=0.01), "memory")
    assert scaling.expected(chunks, there._replace(overhead=1), 64) == (chunks.tasks, "scheduler")
    assert scaling.expected(chunks, there._replace(storage=1e3), 2) == (64 * 4 * 3 * 32**3 / 1e3, "storage")


def test_unknown_sizes_are_refused():
    data = da.ones((8, 8, 2), dtype=np.float32)
    data = data[data[:, 0, 0] > 0]
    with pytest.raises(ValueError, match="data: got unknown sizes in shape"):
        convt.dask.conv_transpose(data, np.ones((3, 2, 2), np.float32))


@pytest.mark.parametrize("precision", [None, "highest", "high", "medium"])
def test_precision_reaches_every_chunk(precision):
    """Check that one chunk has the bits of a single call, and that several chunks have its precision."""
    rng = np.random.default_rng(0)
    data, filter = (rng.standard_normal(shape).astype(np.float32) for shape in ((1, 24, 24, 64), (4, 4, 64, 32)))
    keywords = dict(strides=2, pads_begin=1, pads_end=1, precision=precision)
    with convt.num_threads(1):
        want = convt.ConvTranspose(filter, **keywords)(data)
    whole = convt.dask.conv_transpose(da.from_array(data, chunks=-1), filter, **keywords)
    assert whole.compute().tobytes() == want.tobytes()
    cut = convt.dask.conv_transpose(da.from_array(data, chunks=(1, 12, 8, 64)), filter, **keywords).compute()
    error = {None: 1e-6, "highest": 1e-6, "high": 1e-4, "medium": 1e-2}[precision]
    assert np.abs(cut - want).max() <= error * np.abs(want).max()


def test_what_is_no_precision():
    with pytest.raises(ValueError, match="precision: got 'tf32'"):
        convt.dask.conv_transpose(da.ones((1, 4, 1), dtype=np.float32), np.ones((2, 1, 1), np.float32), precision="tf32")


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("wide_block", [None, 8192])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_sums_of_widened_blocks_are_those_of_their_chunks(data_format, wide_block, dtype):
    """Check few channels of a 16-bit type. `direct` would widen blocks of the whole but compute a chunk without widening."""
    rng = np.random.default_rng(3)
    for kernel, strides, co in (((3, 32), (1, 16), 1), ((5, 6), (2, 2), 3), ((2, 9), (1, 4), 2)):
        data = rng.standard_normal((1, 40, 70, 1)).astype(dtype)
        filter = rng.standard_normal((*kernel, 1, co)).astype(dtype)
        data = data if data_format == "NXC" else data.transpose(0, 3, 1, 2)
        keywords = dict(strides=strides, pads_begin=1, data_format=data_format, algorithm="invariant")
        chunks = (1, 13, 30, 1) if data_format == "NXC" else (1, 1, 13, 30)
        with machine.pretend(**({} if wide_block is None else {"wide_block": wide_block})):
            convt.clear_caches()  # because the caches ignore the pretended machine
            lazy = convt.dask.conv_transpose(da.from_array(data, chunks=chunks), filter, **keywords)
            assert_same_bits(lazy.compute(scheduler="sync"), convt.conv_transpose(data, filter, **keywords))
