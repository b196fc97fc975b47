"""Tests of the Winograd algorithms: each transform on each number of axes, edges of the window, inputs that are summed directly
instead, and errors. Results are compared with the float64 definition or with the direct algorithm, whose error is the unit of
several bounds."""

import contextlib
import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    Case,
    check_all_ways,
    checked_on_threads,
    each_isa,
    errors,
    may_refuse,
    pretend,
    random_case,
    run,
    using_isa,
    without_matrix_unit,
)

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


@contextlib.contextmanager
def fresh_caches():
    """Forget schedules before and after a block that changes how they are made."""
    caches.clear()
    yield
    caches.clear()


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
        channels = {"ci": int(rng.choice([1, 5, 16, 33])), "co": int(rng.choice([1, 7, 40]))}
        channels["groups"], dtype = int(rng.choice([1, 1, 2])), str(rng.choice(["float32", "float64"]))
        case = random_case(rng, rank, (1, 2, 4, *[7] * (rank < 4)), dtype=dtype, activation=("leaky_relu", 0.25), **channels)
        with using_isa(isa), may_refuse():
            check_all_ways(case, "winograd:vectors")
            done += 1
    assert done >= 25


@pytest.mark.parametrize("case", [
    Case(ci=64, co=48, in_sizes=(24, 20), kernel=4, strides=2, pads_begin=1, pads_end=1),
    Case(batch=2, ci=40, co=64, in_sizes=(17, 19), kernel=3, strides=2, pads_begin=1, pads_end=1),
    Case(ci=300, co=32, in_sizes=(12, 16), kernel=5, strides=2, pads_begin=2, pads_end=2),
    Case(ci=600, co=64, in_sizes=(200,), kernel=16, strides=8, pads_begin=4, pads_end=4),
    Case(ci=32, co=32, in_sizes=(9, 8, 10), kernel=4, strides=2, pads_begin=1, pads_end=1),
    Case(ci=64, co=64, in_sizes=(300,), kernel=8, strides=2, pads_begin=3, pads_end=3),
    Case(ci=64, co=64, in_sizes=(30, 30), kernel=3, pads_begin=1, pads_end=1),
], ids=lambda case: f"{case.kernel}")  # fmt: skip
def test_as_exact_as_the_direct_sum(case):
    """Check that the error is at most twice the error of direct, and small for six points."""
    direct, six, *four = [error.max() for error in errors(case, "direct:vectors", "winograd:six:vectors", *NAMES)]
    assert max(four) <= 2 * max(direct, 2e-8)
    assert six <= 1e-5


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
        axis = transforms.AxisTransform(3, rows, points, outputs, windows, 1.0, 1.0, 1, 1.0, points * windows)
        work = cost.Work(cost.WorkTerms(problem, unit, here), [axis])
        cuts, chunks = cost.cuts(work, 1, threads), work.chunks
        assert 1 <= len(cuts) <= 16
        panels = -(-columns // unit.nr)
        for cut in cuts:
            assert 1 <= cut.block < rows + unit.m_step
            assert (cut.blocks - 1) * cut.block < rows <= cut.blocks * cut.block
            assert (cut.panel_blocks - 1) * cut.panel_block < panels <= cut.panel_blocks * cut.panel_block
            assert 1 <= cut.span <= chunks
            assert cut.cycles > 0


@each_isa
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sizes, kernel, strides, ci, co", [
    ((23, 20), 3, 2, 64, 16), ((17, 26), 3, 2, 40, 24), ((18, 18), 5, 2, 48, 5), ((16, 19), (5, 3), 2, 70, 32),
    ((700,), 11, 5, 64, 12), ((90,), 40, 16, 130, 1), ((8, 9, 10), 3, 2, 150, 36),
])  # fmt: skip
def test_phases_that_have_not_all_taps(isa, dtype, sizes, kernel, strides, ci, co, monkeypatch):
    """Check phases that are merged with phases of more taps: points without weights are left out."""
    monkeypatch.setattr(schedule, "_merges", lambda kernel, *_: [(_phases.NESTED,) * len(kernel)])
    monkeypatch.setattr(schedule, "MOST_FORM", 27)
    monkeypatch.setattr(schedule, "MOST_SMALL_FORM", 27)
    case = Case(dtype=dtype, batch=2, ci=ci, co=co, in_sizes=sizes, kernel=kernel, strides=strides, pads_begin=1, pads_end=2)
    with using_isa(isa), fresh_caches():
        checked_on_threads(case, "winograd:vectors", case.arrays())


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
    """Check that the cost of a run counts the points that its outputs inside the window need."""
    for size, kernel, pad in itertools.product(range(2, 20), (3, 4, 6), (0, 1)):
        out = 2 * (size - 1) + kernel - 2 * pad
        groups, runs = _phases.axis(kernel, 2, 1, merge, size, pad, out, False)
        equal_runs = transforms.axis_transforms(kernel, 2, 1, merge, pad, out, (kind,), False)
        assert sorted(n for each in equal_runs for n in each.runs) == [n for n, c in enumerate(runs) if c.group >= 0]
        for equal, transform in ((each, transform) for each in equal_runs for transform in each.candidates[1:2]):
            for c in (runs[n] for n in equal.runs):
                assert equal.groups[equal.runs.index(runs.index(c))] == c.group
                multiplied = transform.point_share * transform.tiles * transform.points
                assert multiplied == pytest.approx(needed(c, kind), rel=1e-12)
                assert transform.products == pytest.approx(-(-len(groups[c.group].offsets) // kind.taps) * multiplied)
                assert multiplied <= -(-c.count // kind.outputs) * kind.points
                assert transform.tiles == -(-c.count // kind.outputs)
                assert transform.inside == pytest.approx(1 - outside([c], [kind.outputs]))


@each_isa
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("batch, sizes, kernel, strides, ci", [
    (3, (8,), 4, 2, 40), (40, (7,), 2, 1, 33), (9, (7, 8), 4, 2, 70), (2, (23, 10), 4, 2, 20), (5, (5, 13), (3, 5), 2, 300),
    (4, (9, 7), 3, 1, 64), (1, (10, 5, 7), 4, 2, 33), (3, (4, 7, 3), (4, 3, 4), 2, 150),
])  # fmt: skip
def test_tiles_that_windows_cut(isa, batch, sizes, kernel, strides, ci, merge, monkeypatch):
    """Check tiles at the ends of an axis whose outputs are partly outside the window, so that some points are not needed."""
    monkeypatch.setattr(schedule, "_merges", lambda kernel, *_: [(merge,) * len(kernel)])
    plans = []
    monkeypatch.setattr(bind, "WinogradPlan", lambda *a, of=bind.WinogradPlan: plans.append(a[0]) or of(*a))
    case = Case(batch=batch, ci=ci, co=24, in_sizes=sizes, kernel=kernel, strides=strides)
    with using_isa(isa):
        for begin, end in ((0, 0), (1, 1), (2, 1)):
            now = replace(case, pads_begin=(begin,) * len(sizes), pads_end=(end,) * len(sizes))
            with fresh_caches():
                checked_on_threads(now, "winograd:vectors", now.arrays(), threads=(2,))
    assert any(c.sorted for schedule in plans for c in schedule.classes)


@without_matrix_unit()
@pytest.mark.skipif(not _core.isa().startswith("avx512"), reason="needs the 32 registers of AVX-512")
def test_phases_of_few_channels_are_nested():
    problem = Problem("float32", 1, 1, 64, 16, (96, 96), (3, 3), (2, 2), (1, 1), (1, 1), (192, 192))
    with pretend(family="zen5"):
        assert schedule.schedule(problem, machine.current(), "vectors", 2).form[0] == (_phases.NESTED,) * 2


@each_name
def test_depth_in_chunks_and_blocks_of_panels(name):
    """Check depths whose points do not fit in the workspace at once, so that partial sums of several panels are stored between
    chunks, and inputs of few channels with any strides."""
    cubes = Case(ci=600, co=40, in_sizes=(9, 9, 9), kernel=4, strides=2, pads_begin=1, pads_end=1)
    checked_on_threads(cubes, name, cubes.arrays())
    for ci in (1, 2, 20):
        check_all_ways(Case(batch=2, ci=ci, co=24, in_sizes=(40, 40), kernel=4, strides=2), name)


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
    case = Case(ci=256, co=64, in_sizes=(16, 12), kernel=4, strides=2)
    with using_isa(isa):
        found = [errors(replace(case, seed=seed), "direct:vectors", "winograd:vectors") for seed in range(3)]
    direct, transformed = np.max(found, (2, 3, 4, 5)).mean(0)
    assert transformed <= 1.6 * direct


@with_matrix
@pytest.mark.parametrize("ci", [1, 17, 32, 48, 80, 300])
@pytest.mark.parametrize(
    "kernel, stride", [(9, 3), (16, 8), ((4, 4), 2), ((3, 3), 2), ((3, 3), 1), ((4, 3, 4), 2), ((6, 1), 2)]
)
def test_the_matrix_unit_at_any_depth(kernel, stride, ci):
    """Check channels that fill steps of depth or not, phases of one to three taps, merged or not, and some with several tap
    windows."""
    sizes = (7,) * np.size(kernel)
    case = Case(batch=2, ci=ci, co=40, in_sizes=sizes, kernel=kernel, strides=stride, pads_begin=1)
    direct, found = errors(case, "direct:vectors", "winograd:amx")
    # With one channel, a direct sum has few products and each is exact. Splitting into bfloat16 parts and three transforms
    # round more often.
    assert found.max() <= 2 * max(direct.max(), 1.5e-7)


def in_panel_blocks(count, point_major, work, _, threads, *, unit):
    """Cut a class into row blocks of one tile and into ``count`` panel blocks."""
    block, panels = unit.mr[-1], work.panels
    panel_block = -(-panels // count)
    blocks, panel_blocks = -(-work.rows // block), -(-panels // panel_block)
    return (common.Division(block, blocks, panel_block, panel_blocks, work.chunks, 1e6, point_major),)


@each_isa
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_outputs_gathered_on_their_way(activation, isa, monkeypatch):
    """Check channels that are not a multiple of a vector: parts of panels, blocks of panels, windows that cut them, and any
    number of threads."""
    monkeypatch.setattr(common, "_KEPT_OUTPUT", 1 << 10)
    monkeypatch.setattr(schedule, "_STAGE_BYTES", 1 << 15)
    staged, found = schedule._staged_panels, []
    monkeypatch.setattr(schedule, "_staged_panels", lambda *args: found.append(staged(*args)) or found[-1])
    kernels = ((4, 4), (2, 2), 37, (9, 11)), ((16, 8), (8, 4), 31, (9, 11)), ((9,), (3,), 33, (41,))
    for (kernel, strides, co, sizes), blocks, cut in itertools.product(kernels, (1, 2), (False, True)):
        unit = machine.current().info("float32")
        monkeypatch.setattr(cost, "cuts", functools.partial(in_panel_blocks, blocks, False, unit=unit))
        pads = tuple(2 * s - 1 for s in strides) if cut else (0,) * len(kernel)
        case = Case(
            batch=2, ci=5, co=co, in_sizes=sizes, kernel=kernel, strides=strides, pads_begin=pads, pads_end=pads[::-1],
            activation=activation,
        )  # fmt: skip
        with using_isa(isa):
            checked_on_threads(case, "winograd:vectors", case.arrays(), threads=(1, 2))
    assert max(found) > 1


@with_matrix
@pytest.mark.parametrize("panels", [1, 3])
def test_points_of_all_panels_in_turn(panels, monkeypatch):
    """Check the order for high blocks of many panels: each point is multiplied with all of a task's panels, and partial sums
    are stored."""
    unit = machine.current().info("float32", "amx")
    monkeypatch.setattr(cost, "cuts", functools.partial(in_panel_blocks, panels, True, unit=unit))
    with fresh_caches():
        case = Case(ci=96, co=70, in_sizes=(30, 21), kernel=4, strides=2, pads_end=1)
        direct, found = errors(case, "direct:vectors", "winograd:amx")
    assert found.max() <= 2 * direct.max()


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


@each_isa
@pytest.mark.parametrize("co", [4, 8, 16])
def test_a_stage_whose_last_panel_the_window_does_not_show(co, isa, monkeypatch):
    """Check six phases of an axis with one input, of which the window shows four: the panel of the others stores nothing."""
    monkeypatch.setattr(common, "_KEPT_OUTPUT", 0)
    case = Case(ci=5, co=co, in_sizes=(7, 1), kernel=(2, 6), pads_begin=(2, 0), pads_end=(1, 2))
    with using_isa(isa):
        checked_on_threads(case, "winograd:vectors", case.arrays(), l3=0)


MACHINES = [{}, {"isa": "avx512", "l1": 48 << 10, "l2": 2 << 20, "l3": 64 << 20}]


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
    problem = Problem("float32", 1, 1, 512, 256, (9, 9), (4, 4), (2, 2), (1, 1), (1, 1), (18, 18))
    for change in ({"kernel": (2, 2)}, {"dilations": (3, 3)}, {"dtype": "float16"}, {"out_sizes": (18, 0)}):
        assert schedule.least(problem._replace(**change), machine.current(), "vectors") == math.inf
        assert schedule.schedule(problem._replace(**change), machine.current(), "vectors", 2) is None
