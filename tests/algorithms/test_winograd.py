"""Tests of the Winograd algorithms: each transform on each number of axes, edges of the window, inputs that are summed directly
instead, and errors. Results are compared with the float64 definition or with the direct algorithm, whose error is the unit of
several bounds."""

import functools
import itertools
import math

import numpy as np
import pytest
from cases import Case, each_isa, may_refuse, operator, pretend, run, using_isa, without_matrix_unit

import convt
from convt import _core
from convt._base.problem import Problem
from convt._model import machine
from convt.algorithms import caches, common
from convt.algorithms import phases as _phases
from convt.algorithms.winograd import bind, cost, schedule, transforms

MATRIX = _core.kernel_info("float32", "amx") is not None
NAMES = ["winograd:vectors", *(["winograd:amx"] if MATRIX else [])]
each_name = pytest.mark.parametrize("name", NAMES)
with_matrix = pytest.mark.skipif(not MATRIX, reason="this CPU has no matrix unit")


def arrays(shape, kernel, co, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(s).astype(dtype) for s in (shape, (*kernel, shape[-1], co), (co,)))


def errors(data, filter, bias, algorithms, **keywords):
    """Return the largest error of each algorithm and of direct, in units of the output's scale."""
    exact = convt.conv_transpose(*(a.astype(np.float64) for a in (data, filter, bias)), backend="reference", **keywords)
    scale = np.abs(exact).max()
    for name in ("direct:vectors", *algorithms):
        op = convt.ConvTranspose(filter, bias, algorithm=name, **keywords)
        got = op(data)
        assert op.plan(data.shape).key == name
        yield np.abs(got - exact).max() / scale


def outside(combo, outputs):
    """Return the share of a class's rows that some phase has outside the window, for this many outputs per axis."""
    inside = 1.0
    for c, n in zip(combo, outputs, strict=True):
        low, high = c.inner
        inside *= max(0, high - low + 1 - n) / max(c.count, 1)
    return 1 - min(inside, 1.0)


@pytest.mark.parametrize("kind", transforms.KINDS[1:], ids=lambda t: f"F({t.outputs},{t.taps})")
def test_a_transform_is_a_correlation(kind):
    """The input and output transforms of the kernels against the definition, with a problem that uses no other transform."""
    n = kind.outputs * 4
    problem = Problem("float64", 1, 1, 1, 1, (n,), (kind.taps,), (1,), (1,), (0,), (n + kind.taps - 1,))
    found = schedule.schedule(problem, machine.current(), "vectors", 2, kinds=(kind,))
    assert {scheme for _, scheme in found.form[1]} == {(transforms.KINDS.index(kind),)}
    data, filter, bias = arrays((1, n, 1), (kind.taps,), 1, np.float64)
    name = "winograd:vectors" if kind in transforms.SMALL else "winograd:six:vectors"
    got = convt.conv_transpose(data, filter, bias, algorithm=name)
    np.testing.assert_allclose(got[0, :, 0], np.convolve(data[0, :, 0], filter[:, 0, 0]) + bias, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("sizes, output_shape", [((1,), (0,)), ((5, 5), (8, 0))])
def test_a_window_that_shows_nothing_has_no_transform(sizes, output_shape):
    """Check that winograd refuses a shape without outputs, because it has no tiles, and that other algorithms plan for it."""
    filter = np.ones((*(4 for _ in sizes), 8, 8), np.float32)
    op = convt.ConvTranspose(filter, strides=2, output_shape=output_shape)
    assert op.plan((1, *sizes, 8)).backend == "native"
    assert op(np.ones((1, *sizes, 8), np.float32)).shape == (1, *output_shape, 8)
    with pytest.raises(ValueError, match="algorithm"):
        convt.ConvTranspose(filter, strides=2, output_shape=output_shape, algorithm="winograd:vectors").plan((1, *sizes, 8))


@each_isa
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_kernels_strides_and_edges(rank, isa):
    """Check kernels and strides of any ratio, windows cut anywhere, and channels that are not a multiple of a vector."""
    rng = np.random.default_rng(rank)
    done = 0
    for _ in range(60):
        pick = lambda *values: tuple(int(v) for v in rng.choice(values, rank))  # noqa: E731
        case = Case(
            dtype=rng.choice(["float32", "float64"]).item(), ci=int(rng.choice([1, 5, 16, 33])), co=int(rng.choice([1, 7, 40])),
            groups=int(rng.choice([1, 1, 2])), batch=2, in_sizes=pick(1, 2, 4, 7), kernel=pick(1, 2, 3, 4, 6),
            strides=pick(1, 2, 3), pads_begin=pick(0, 1), pads_end=pick(0, 1), output_padding=pick(0, 0, 2), bias=True,
            data_format=rng.choice(["NXC", "NCX"]).item(), activation=("leaky_relu", 0.25),
        )  # fmt: skip
        if min(case.out_shape) < 1:
            continue
        data, filter, bias = case.arrays()
        with using_isa(isa), may_refuse():
            case.check(operator(case, filter, bias, algorithm="winograd:vectors")(data), data, filter, bias)
            done += 1
    assert done >= 25


@pytest.mark.parametrize(
    "shape, kernel, co, stride, pad",
    [
        ((1, 24, 20, 64), (4, 4), 48, 2, 1),
        ((2, 17, 19, 40), (3, 3), 64, 2, 1),
        ((1, 12, 16, 300), (5, 5), 32, 2, 2),
        ((1, 200, 600), (16,), 64, 8, 4),
        ((1, 9, 8, 10, 32), (4, 4, 4), 32, 2, 1),
        ((1, 300, 64), (8,), 64, 2, 3),
        ((1, 30, 30, 64), (3, 3), 64, 1, 1),
    ],
    ids=str,
)
def test_as_exact_as_the_direct_sum(shape, kernel, co, stride, pad):
    """Check that the error is at most twice the error of direct, and below 1e-4 of the output's scale for six points."""
    found = errors(*arrays(shape, kernel, co), ("winograd:six:vectors", *NAMES), strides=stride, pads_begin=pad, pads_end=pad)
    direct, six, *four = found
    assert max(four) <= 2 * max(direct, 2e-7)
    assert six <= 1e-4


@each_name
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3.4e38])
@pytest.mark.parametrize("where", ["data", "filter"])
def test_what_the_transforms_would_spoil_is_summed_directly(where, value, name):
    """Check that NaN and infinity reach only the outputs that the direct sum reaches."""
    data, filter, bias = arrays((1, 14, 15, 32), (4, 4), 32)
    {"data": data, "filter": filter}[where][(0, 7, 7, 3) if where == "data" else (1, 2, 3, 4)] = value
    if value == 3.4e38:
        data *= 1e-3
        data[0, 7, 8, 3] = data[0, 7, 7, 3] = 3.4e38 if where == "data" else 1e-3
        filter *= 1e-3 if where == "data" else 1
    op = convt.ConvTranspose(filter, bias, algorithm=name, strides=2)
    direct = convt.ConvTranspose(filter, bias, algorithm="direct:vectors", strides=2)
    for _ in range(2):  # the second call takes the fast path of repeated calls
        got, want = op(data), direct(data)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(want))
        assert np.isfinite(want).sum() > want.size / 2
        if value == 3.4e38:
            np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
        else:
            assert got.tobytes() == want.tobytes()


def test_a_result_that_was_refused_leaves_nothing_in_out():
    data, filter, bias = arrays((1, 14, 15, 32), (4, 4), 32)
    data[0, 13, 14, 5] = np.nan
    op = convt.ConvTranspose(filter, bias, algorithm="winograd:vectors", strides=2)
    out = np.full(op.output_shape(data.shape), -7, np.float32)
    assert op(data, out=out) is out
    np.testing.assert_array_equal(out, convt.conv_transpose(data, filter, bias, algorithm="direct:vectors", strides=2))


@without_matrix_unit()
def test_auto_takes_it_where_it_pays_and_nowhere_else():
    chosen = lambda shape, kernel, co, **keywords: (  # noqa: E731
        convt.ConvTranspose(np.ones((*kernel, shape[-1], co), np.float32), backend="native", **keywords).plan(shape).key
    )
    assert chosen((1, 64, 64, 256), (4, 4), 64, strides=2, pads_begin=1, pads_end=1) in NAMES
    assert chosen((1, 6880, 256), (16,), 128, strides=8) in NAMES
    assert chosen((1, 64, 64, 256), (2, 2), 64, strides=2) in ("direct:vectors", "direct:amx")  # each phase has one tap
    assert chosen((1, 64, 64, 256), (4, 4), 64, strides=2, dilations=2) != "winograd:six:vectors"


def test_one_shot_calls_count_the_transform_of_the_weights():
    """Few pixels with many weights: the transform pays off for packed weights, not for weights that come with each call."""
    from convt._plan import choose
    from convt.algorithms import reorder

    kernel, co, found = (4, 4), 256, []
    for sizes in ((4, 4), (5, 8), (8, 8), (12, 12), (16, 16)):
        shape = (1, *sizes, 512)
        out = tuple(2 * size for size in sizes)
        problem = Problem("float32", 1, 1, 512, 256, sizes, kernel, (2, 2), (1, 1), (1, 1), out)
        with pretend(isa="avx2", family="zen3"):
            found.append([choose.native(problem, "auto", brought) for brought in (None, reorder.NOT_IN_ROWS)])
    names = ["winograd:vectors", "direct:vectors"]
    assert names in found and names[::-1] not in found
    data, filter, bias = arrays(shape, kernel, co)
    keywords = {"strides": 2, "pads_begin": 1, "pads_end": 1}
    prepacked = convt.ConvTranspose(filter, bias, **keywords)(data)
    np.testing.assert_allclose(convt.conv_transpose(data, filter, bias, **keywords), prepacked, atol=1e-3)


@pytest.mark.parametrize("matrix", [False, pytest.param(True, marks=with_matrix)])
def test_every_cut_covers_every_tile_once(matrix):
    here = machine.current()
    unit = here.info("float32", "amx" if matrix else "vectors")
    for rows, (points, outputs), windows, columns, threads, channels in itertools.product(
        (1, 13, 28, 200, 5000), ((4, 3), (16, 9), (64, 27), (216, 64)), (1, 4), (8, 100, 900), (1, 2, 7), (16, 700)
    ):
        problem = Problem("float32", 1, 1, channels, columns, (rows,), (2,), (1,), (1,), (0,), (rows,))
        axis = transforms.AxisTransform(3, False, rows, points, outputs, windows, 1.0, 1.0, 1, 1.0, points * windows)
        work = cost.Work(cost.WorkTerms(problem, unit, here), [axis])
        cuts, chunks = cost.cuts(work, 1, threads), work.chunks
        assert 1 <= len(cuts) <= 16
        panels = -(-columns // unit.nr)
        for cut in cuts:
            assert 1 <= cut.block < rows + unit.grain
            assert (cut.blocks - 1) * cut.block < rows <= cut.blocks * cut.block
            assert (cut.panel_blocks - 1) * cut.panel_block < panels <= cut.panel_blocks * cut.panel_block
            assert 1 <= cut.span <= chunks
            assert cut.cycles > 0


@each_isa
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("sizes, kernel, strides, ci, co", [
    ((23, 20), (3, 3), 2, 64, 16), ((17, 26), (3, 3), 2, 40, 24), ((18, 18), (5, 5), 2, 48, 5), ((16, 19), (5, 3), 2, 70, 32),
    ((700,), (11,), 5, 64, 12), ((90,), (40,), 16, 130, 1), ((8, 9, 10), (3, 3, 3), 2, 150, 36),
])  # fmt: skip
def test_phases_that_have_not_all_taps(isa, dtype, sizes, kernel, strides, ci, co, monkeypatch):
    """Check phases that are merged with phases of more taps: points without weights are left out."""
    data, filter, bias = arrays((2, *sizes, ci), kernel, co, dtype)
    keywords = {"strides": strides, "pads_begin": 1, "pads_end": 2}
    monkeypatch.setattr(schedule, "_merges", lambda kernel, *_: [(_phases.NESTED,) * len(kernel)])
    monkeypatch.setattr(schedule, "MOST_FORM", 27)
    monkeypatch.setattr(schedule, "MOST_SMALL_FORM", 27)
    with using_isa(isa):
        caches.clear()
        want = convt.conv_transpose(data, filter, bias, algorithm="direct:vectors", **keywords)
        for view in (filter, np.asfortranarray(filter)):
            op = convt.ConvTranspose(view, bias, algorithm="winograd:vectors", **keywords)
            got = op(data)
            assert op.plan(data.shape).algorithm == "winograd"
            np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
        caches.clear()


def needed(c, transform):
    """Return the points of a run's tiles that outputs inside the window need, averaged over its phases, from the definition of
    the inverse transform."""
    n = transform.outputs
    rows = [[out == 0, *[True] * (transform.points - 2), out == n - 1] for out in range(n)]
    count = 0
    for low, high in c.valid:
        for first in range(0, c.count, n):
            count += sum(map(any, zip(*(rows[j - first] for j in range(max(first, low), min(first + n, high))), strict=True)))
    return count / len(c.valid)


@pytest.mark.parametrize("kind", transforms.KINDS[1:], ids=lambda t: f"F({t.outputs},{t.taps})")
@pytest.mark.parametrize("merge", [False, True, _phases.NESTED])
def test_points_of_outputs_outside_are_left_out(kind, merge):
    """Check that the cost of a run counts the points that its outputs inside the window need. A run that begins one output
    earlier never counts more."""
    for size, kernel, pad in itertools.product(range(2, 20), (3, 4, 6), (0, 1)):
        out = 2 * (size - 1) + kernel - 2 * pad
        groups, runs = _phases.axis(kernel, 2, 1, merge, size, pad, out, False)
        equal_runs = transforms.axis_transforms(kernel, 2, 1, merge, pad, out, (kind,), False)
        assert sorted(n for each in equal_runs for n in each.runs) == [n for n, c in enumerate(runs) if c.group >= 0]
        for equal, transform in ((each, transform) for each in equal_runs for transform in each.candidates[1:2]):
            for c in (runs[n] for n in equal.runs):
                assert equal.groups[equal.runs.index(runs.index(c))] == c.group
                way = c.extended_back(2) if transform.starts_early else c
                multiplied = transform.point_share * transform.tiles * transform.points
                assert multiplied == pytest.approx(needed(way, kind), rel=1e-12)
                assert transform.products == pytest.approx(-(-len(groups[c.group].offsets) // kind.taps) * multiplied)
                assert multiplied <= min(needed(c, kind), -(-c.count // kind.outputs) * kind.points) + 1e-9
                assert transform.tiles == -(-way.count // kind.outputs)
                assert not transform.starts_early or multiplied < needed(c, kind)
                assert transform.inside == pytest.approx(1 - outside([way], [kind.outputs]))


@each_isa
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("batch, sizes, kernel, strides, ci", [
    (3, (8,), (4,), 2, 40), (40, (7,), (2,), 1, 33), (9, (7, 8), (4, 4), 2, 70), (2, (23, 10), (4, 4), 2, 20),
    (5, (5, 13), (3, 5), 2, 300), (4, (9, 7), (3, 3), 1, 64), (1, (10, 5, 7), (4, 4, 4), 2, 33),
    (3, (4, 7, 3), (4, 3, 4), 2, 150),
])  # fmt: skip
def test_tiles_that_windows_cut_agree_with_direct(isa, batch, sizes, kernel, strides, ci, merge, monkeypatch):
    """Tiles at the ends of an axis whose outputs are partly outside the window, so that some of their points are not needed."""
    data, filter, bias = arrays((batch, *sizes, ci), kernel, 24)
    monkeypatch.setattr(schedule, "_merges", lambda kernel, *_: [(merge,) * len(kernel)])
    plans = []
    monkeypatch.setattr(bind, "WinogradPlan", lambda *a, of=bind.WinogradPlan: plans.append(a[0]) or of(*a))
    with using_isa(isa):
        for pads in ((0, 0), (1, 1), (2, 1)):
            keywords = {"strides": strides, "pads_begin": pads[0], "pads_end": pads[1]}
            caches.clear()
            op = convt.ConvTranspose(filter, bias, algorithm="winograd:vectors", **keywords)
            got, want = op(data), convt.conv_transpose(data, filter, bias, algorithm="direct:vectors", **keywords)
            assert op.plan(data.shape).algorithm == "winograd"
            np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())
        caches.clear()
    assert any(c.sorted for schedule in plans for c in schedule.classes)


@without_matrix_unit()
@pytest.mark.skipif(not _core.isa().startswith("avx512"), reason="needs the 32 registers of AVX-512")
def test_phases_of_few_channels_are_nested():
    problem = Problem("float32", 1, 1, 64, 16, (96, 96), (3, 3), (2, 2), (1, 1), (1, 1), (192, 192))
    with pretend(family="zen5"):
        assert schedule.schedule(problem, machine.current(), "vectors", 2).form[0] == (_phases.NESTED,) * 2


@each_name
def test_depth_in_chunks_and_blocks_of_panels_agrees_with_direct(name):
    """Check depths whose points do not fit in the workspace at once, so that partial sums of several panels are stored between
    chunks."""
    rng = np.random.default_rng(0)
    data = rng.standard_normal((1, 9, 9, 9, 600), dtype=np.float32)
    filter = rng.standard_normal((4, 4, 4, 600, 40), dtype=np.float32)
    got = convt.conv_transpose(data, filter, algorithm=name, strides=2, pads_begin=1, pads_end=1)
    want = convt.conv_transpose(data, filter, algorithm="direct:vectors", strides=2, pads_begin=1, pads_end=1)
    np.testing.assert_allclose(got, want, atol=1e-5 * np.abs(want).max())


@each_isa
@pytest.mark.parametrize("dtype, ci", [("float64", 4), ("float64", 9), ("float32", 4), ("float32", 17)])
def test_rows_of_any_number_keep_apart(dtype, ci, isa):
    """Check few channels."""
    for size in range(3, 150, 2):
        case = Case(groups=2, ci=ci, co=8, in_sizes=(size,), kernel=4, dtype=dtype, seed=size)
        arrays = case.arrays()
        with using_isa(isa):
            case.check(run(case, *arrays, algorithm="winograd:vectors"), *arrays)


def test_workspace_is_bounded():
    for rank, kernel, ci, co in itertools.product((2, 3), (3, 4), (16, 64, 128, 500), (32, 64, 300)):
        op = convt.ConvTranspose(np.zeros((*(kernel,) * rank, ci, co), np.float32), strides=2, algorithm="winograd:vectors")
        plan = op.plan((1, *(24,) * rank, ci))
        assert plan.algorithm == "winograd" and plan.workspace_bytes <= plan.threads << 22, (rank, kernel, ci, co)


@each_isa
def test_deep_sums_are_about_as_exact_as_direct(isa):
    """Check 256 channels, whose points are summed in one chunk."""
    with using_isa(isa):
        inputs = [arrays((1, 16, 12, 256), (4, 4), 64, seed=seed) for seed in range(3)]
        found = [list(errors(*each, ["winograd:vectors"], strides=2)) for each in inputs]
    direct, transformed = np.mean(found, 0)
    assert transformed <= 1.6 * direct


@each_name
@pytest.mark.parametrize("channels", [1, 2, 20])
def test_inputs_with_strides_of_any_sign(channels, name):
    data, filter, _ = arrays((2, 40, 40, channels), (4, 4), 24)
    for view in (data, data[:, ::-1], data[:, :, ::-1], np.broadcast_to(data[:, :, :1], data.shape), data[:, :, ::3],
                 np.asfortranarray(data), data.repeat(2, -1)[..., ::2]):  # fmt: skip
        got = convt.conv_transpose(view, filter, algorithm=name, strides=2)
        want = convt.conv_transpose(np.ascontiguousarray(view), filter, algorithm="direct:vectors", strides=2)
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@each_isa
@pytest.mark.parametrize("co, kernel, stride", [(1, (16,), 8), (1, (4, 6), 2), (20, (5, 4), 2), (67, (7,), 3)])
def test_filters_of_every_format_make_the_same_weights(co, kernel, stride, isa):
    data, filter, bias = arrays((2, *(9 for _ in kernel), 37), kernel, co)
    k = tuple(range(len(kernel)))
    i, o = len(kernel), len(kernel) + 1
    formats = {"XIO": (*k, i, o), "OIX": (o, i, *k), "IOX": (i, o, *k), "XOI": (*k, o, i)}
    with using_isa(isa):
        want = convt.conv_transpose(data, filter, bias, algorithm="direct:vectors", strides=stride)
        keywords = {"algorithm": "winograd", "strides": stride}
        views = {name: np.ascontiguousarray(filter.transpose(axes)) for name, axes in formats.items()}
        got = [convt.conv_transpose(data, view, bias, filter_format=name, **keywords) for name, view in views.items()]
    np.testing.assert_allclose(got[0], want, atol=2e-5 * np.abs(want).max())
    assert len({result.tobytes() for result in got}) == 1


@with_matrix
@pytest.mark.parametrize("ci", [1, 17, 32, 48, 80, 300])
@pytest.mark.parametrize(
    "kernel, stride", [((9,), 3), ((16,), 8), ((4, 4), 2), ((3, 3), 2), ((3, 3), 1), ((4, 3, 4), 2), ((6, 1), 2)]
)
def test_the_matrix_unit_at_any_depth(kernel, stride, ci):
    """Check channels that fill steps of depth or not, phases of one to three taps, merged or not, and some with several tap
    windows."""
    direct, found = errors(
        *arrays((2, *(7 for _ in kernel), ci), kernel, 40), ("winograd:amx",), strides=stride, pads_begin=1
    )
    # With one channel, a direct sum has few products and each is exact. Splitting into bfloat16 parts and three transforms
    # round more often.
    assert found <= 2 * max(direct, 1.5e-7)


def in_panel_blocks(count, point_major, work, _, threads, *, unit):
    """Cut a class into row blocks of one tile and into ``count`` panel blocks."""
    block, panels = unit.mr[-1], work.panels
    panel_block = -(-panels // count)
    blocks, panel_blocks = -(-work.rows // block), -(-panels // panel_block)
    return (common.Division(block, blocks, panel_block, panel_blocks, work.chunks, 1e6, point_major),)


@each_isa
@pytest.mark.parametrize("act", ["relu", "tanh"])
def test_outputs_gathered_on_their_way(act, isa, monkeypatch):
    """Check channels that are not a multiple of a vector: parts of panels, blocks of panels, windows that cut them, and any
    number of threads."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(common, "_KEPT_OUTPUT", 1 << 10)
    monkeypatch.setattr(schedule, "_STAGE_BYTES", 1 << 15)
    staged, found = schedule._staged_panels, []
    monkeypatch.setattr(schedule, "_staged_panels", lambda *args: found.append(staged(*args)) or found[-1])
    kernels = ((4, 4), (2, 2), 37), ((16, 8), (8, 4), 31), ((9,), (3,), 33)
    for (kernel, stride, co), blocks in itertools.product(kernels, (1, 2)):
        unit = machine.current().info("float32")
        monkeypatch.setattr(cost, "cuts", functools.partial(in_panel_blocks, blocks, False, unit=unit))
        size = {1: (41,), 2: (9, 11)}[len(kernel)]
        data, filter = rng.integers(-2, 3, (2, *size, 5)), rng.integers(-2, 3, (*kernel, 5, co))
        data, filter = data.astype(np.float32), filter.astype(np.float32)
        bias = rng.integers(-2, 3, co).astype(np.float32)
        for pads in ((0,) * len(kernel), tuple(2 * s - 1 for s in stride)):
            keywords = {"strides": stride, "pads_begin": pads, "pads_end": pads[::-1], "activation": act}
            exact = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
            with using_isa(isa):
                op = convt.ConvTranspose(filter, bias, algorithm="winograd:vectors", **keywords)
                with convt.num_threads(1):
                    alone = op(data)
                np.testing.assert_array_equal(op(data), alone)
            np.testing.assert_allclose(alone, exact, rtol=1e-6, atol=1e-6)
    assert max(found) > 1


@with_matrix
@pytest.mark.parametrize("panels", [1, 3])
def test_points_of_all_panels_in_turn(panels, monkeypatch):
    """Check the order for high blocks of many panels: each point is multiplied with all of a task's panels, and partial sums
    are stored."""
    data, filter, bias = arrays((1, 30, 21, 96), (4, 4), 70)
    unit = machine.current().info("float32", "amx")
    monkeypatch.setattr(cost, "cuts", functools.partial(in_panel_blocks, panels, True, unit=unit))
    caches.clear()
    try:
        direct, found = errors(data, filter, bias, ("winograd:amx",), strides=2, pads_end=1)
    finally:
        caches.clear()
    assert found <= 2 * direct


@with_matrix
@pytest.mark.parametrize("scale, of", [(1e-30, "data"), (1e-15, "filter"), (1e30, "data"), (1e-44, "data")])
def test_numbers_that_parts_can_not_hold_are_summed_directly(scale, of):
    data, filter, bias = arrays((1, 14, 15, 48), (4, 4), 32)
    data, filter = (data * np.float32(scale), filter) if of == "data" else (data, filter * np.float32(scale))
    op = convt.ConvTranspose(filter, 0 * bias, algorithm="winograd:amx", strides=2)
    want = convt.conv_transpose(data, filter, 0 * bias, algorithm="direct:vectors", strides=2)
    for _ in range(2):
        assert op(data).tobytes() == want.tobytes()
    assert np.abs(want).max() > 0


@with_matrix
def test_the_matrix_unit_is_for_float32():
    data, filter, bias = arrays((1, 8, 8, 16), (4, 4), 16, np.float64)
    with pytest.raises(ValueError, match="algorithm: got 'winograd:amx'"):
        convt.conv_transpose(data, filter, bias, algorithm="winograd:amx", strides=2)


@each_isa
def test_a_stage_whose_last_panel_the_window_does_not_show(isa, monkeypatch):
    """Six phases of an axis with one input, of which the window shows four: the panel of the other two stores no output."""
    monkeypatch.setattr(common, "_KEPT_OUTPUT", 0)
    rng = np.random.default_rng(0)
    for co in (4, 8, 16):
        data, filter = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((1, 7, 1, 5), (2, 6, 5, co)))
        keywords = {"pads_begin": (2, 0), "pads_end": (1, 2)}
        with using_isa(isa), pretend(l3=0):
            got = convt.ConvTranspose(filter, algorithm="winograd:vectors", **keywords)(data)
        want = convt.conv_transpose(data, filter, backend="reference", **keywords)
        np.testing.assert_array_equal(got, want)


PROBLEMS = [
    Problem("float32", 1, 1, 512, 256, (9, 9), (4, 4), (2, 2), (1, 1), (1, 1), (18, 18)),
    Problem("float32", 2, 1, 24, 20, (30, 17), (3, 3), (2, 2), (1, 1), (1, 1), (59, 33)),
    Problem("float32", 1, 1, 512, 256, (100,), (16,), (8,), (1,), (4,), (800,)),
    Problem("float32", 1, 2, 64, 40, (9, 8, 10), (4, 4, 4), (2, 2, 2), (1, 1, 1), (1, 1, 1), (18, 16, 20)),
    Problem("float64", 1, 1, 300, 64, (30, 30), (3, 3), (1, 1), (1, 1), (1, 1), (30, 30)),
]
MACHINES = [{}, {"isa": "avx512", "l1": 48 << 10, "l2": 2 << 20, "l3": 64 << 20}]


@pytest.mark.parametrize("there", MACHINES, ids=["here", "avx512"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: f"{p.ci}-{p.co} {p.in_sizes}")
def test_schedules_are_values(problem, there):
    with pretend(**there):
        here, found = machine.current(), []
        for threads in (1, 2, 2, 16):
            caches.clear()
            found.append(schedule.schedule(problem, here, "vectors", threads))
        assert found[1] == found[2] and hash(found[1]) == hash(found[2]) and repr(found[1]) == repr(found[2])
        assert len({(each.form, each.cycles, each.weight_bytes) for each in found}) == 1
        assert len(repr(found[1])) < 4000
        assert found[3].threads == 16 and sum(c.count * c.cut.tasks for c in found[3].classes) + len(found[3].plain) >= 12
        assert 0 < schedule.least(problem, here, "vectors") <= cost.cost(found[1], here)


@pytest.mark.parametrize("there", MACHINES, ids=["here", "avx512"])
@pytest.mark.parametrize("kinds", [transforms.SMALL, transforms.LARGE], ids=["small", "large"])
def test_packed_weights_are_bounded(kinds, there):
    done = 0
    for rank, kernel, stride, channels in itertools.product((1, 2, 3), (2, 3, 4, 5, 8), (1, 2, 3), (64, 256)):
        sizes = (17,) * rank
        out = tuple((n - 1) * stride + kernel for n in sizes)
        axes = [(n,) * rank for n in (kernel, stride, 1, 0)]
        problem = Problem("float32", 1, 1, channels, channels, sizes, *axes, out)
        with pretend(**there):
            found = schedule.schedule(problem, machine.current(), "vectors", 2, kinds=kinds)
        if found is not None:
            filter_bytes = 4 * kernel**rank * channels**2
            assert found.weight_bytes <= (2.5 if filter_bytes > 1 << 20 else 7.5) * filter_bytes
            done += 1
    assert done > 30


def test_problems_without_two_taps_are_refused():
    for problem in (
        PROBLEMS[0]._replace(kernel=(2, 2)),
        PROBLEMS[0]._replace(dilations=(3, 3)),
        PROBLEMS[0]._replace(dtype="float16"),
        PROBLEMS[0]._replace(out_sizes=(18, 0)),
    ):
        assert schedule.least(problem, machine.current(), "vectors") == math.inf
        assert schedule.schedule(problem, machine.current(), "vectors", 2) is None
