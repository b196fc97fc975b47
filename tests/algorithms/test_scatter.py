"""Tests of scatter on each unit: input rows that are packed once for several output rows or read in place, products in
each of the four layouts (columns, across, bands, gathered), and the problems that it leaves to other algorithms on AMX.
Results are compared with the float64 definition in cases.py."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from cases import (
    DATA_FORMATS,
    DTYPES,
    Case,
    check_all_ways,
    checked_on_threads,
    copy_in,
    each_isa,
    errors,
    matrix_unit,
    operator,
    pretend,
    run,
    using_isa,
)
from fuzz import machines

import convt
from bench.timing import durations
from convt._model import machine
from convt._plan import plans
from convt.algorithms import candidates, phases, planes, scatter, stages
from convt.algorithms.scatter import reach, schedule
from convt.algorithms.scatter.schedule import ACROSS, BANDS, GATHERED

AMX = "avx512_amx"
needs_amx = pytest.mark.skipif(not matrix_unit(), reason="no matrix unit, or CONVT_ISA caps it")
each_dtype = pytest.mark.parametrize("dtype", DTYPES)
each_format = pytest.mark.parametrize("data_format", DATA_FORMATS)

PROBLEMS = {
    "rows that share pixels": Case(
        batch=2, ci=40, co=3, in_sizes=(37, 21), kernel=(5, 4), strides=2, pads_begin=(1, 0), pads_end=(0, 2),
        output_padding=(1, 0),
    ),
    "one channel": Case(ci=56, in_sizes=(20, 70), kernel=9, strides=3, pads_begin=4, pads_end=4, output_padding=2),
    "dilated rows": Case(ci=33, co=2, in_sizes=(23, 18), kernel=3, strides=(2, 1), dilations=(3, 1), pads_begin=(2, 1)),
    "volume": Case(
        batch=2, ci=34, co=2, in_sizes=(5, 19, 9), kernel=3, strides=2, pads_begin=1, pads_end=(0, 1, 1), output_padding=1,
    ),
    "groups": Case(groups=3, ci=40, co=2, in_sizes=(18, 30), kernel=(4, 5), strides=(2, 4), pads_begin=1, pads_end=1),
    "deep": Case(ci=300, co=2, in_sizes=(370,), kernel=16, strides=8, pads_begin=3, bias=False),
    "deep rows": Case(ci=520, co=1, in_sizes=(18, 13), kernel=(3, 2), pads_begin=(1, 0), pads_end=(1, 0)),
    "few in-channels": Case(ci=5, co=5, in_sizes=(19, 40), kernel=(5, 3), strides=(2, 1)),
    "small images": Case(
        batch=7, ci=40, co=2, in_sizes=(4, 5), kernel=(3, 4), strides=2, pads_begin=1, pads_end=1, output_padding=(1, 0),
    ),
    "images of one tap": Case(batch=3, ci=20, co=2, in_sizes=(5, 7), kernel=2, strides=2),
    # The window shows no output that the input's only row reaches, so the workspace has no room for products.
    "rows of no taps": Case(
        ci=3, co=2, in_sizes=(1, 6), kernel=(1, 2), strides=(2, 1), pads_begin=(1, 0), output_padding=(1, 0),
    ),
    # Without an input row, a task with bands has no pixels.
    "no taps": Case(
        ci=3, co=2, in_sizes=(1, 6), kernel=(1, 2), strides=(3, 1), pads_begin=(1, 0), output_padding=(2, 0),
    ),
    "lanes of a vector and more": Case(ci=64, co=5, in_sizes=(100,), kernel=11, strides=4),
    # Rows that are multiplied as one.
    "a kernel as long as its stride": Case(batch=2, ci=24, in_sizes=(9, 44), kernel=2, strides=2),
    "cut by the window": Case(batch=3, ci=7, co=5, in_sizes=(11, 19), kernel=2, strides=2, pads_begin=(3, 1), pads_end=(1, 5)),
    "gaps between outputs": Case(batch=2, ci=3, co=2, in_sizes=(7, 40), kernel=(2, 1), strides=(3, 2), output_padding=(2, 1)),
    "short rows": Case(batch=5, ci=65, co=2, in_sizes=(4, 3), kernel=3, strides=2, pads_begin=1, pads_end=1, output_padding=1),
    "pixels": Case(batch=19, ci=40, co=4, in_sizes=(1, 1), kernel=(3, 2), strides=2, pads_begin=(1, 0)),
    "no tap reaches some": Case(
        batch=9, ci=16, co=3, in_sizes=(3, 4), kernel=2, strides=(3, 4), dilations=(2, 1), pads_begin=(0, 1), pads_end=(0, 2),
        output_padding=(2, 0),
    ),
    "images of a row": Case(batch=70, ci=33, co=3, in_sizes=(6,), kernel=4, strides=2, pads_begin=1, pads_end=1),
    "cubes": Case(
        batch=2, ci=6, co=1, in_sizes=(3, 4, 5), kernel=(2, 3, 2), strides=2, pads_begin=(1, 1, 0), pads_end=(0, 0, 1),
    ),
    "two groups": Case(batch=2, groups=2, ci=9, co=2, in_sizes=(6, 17), kernel=2, strides=2),
}  # fmt: skip
HERE = ({},)  # the machines of `check_all_ways`: without caches, some layouts are not permitted
each_problem = pytest.mark.parametrize("case", PROBLEMS.values(), ids=PROBLEMS)
each_name = pytest.mark.parametrize("name", ["scatter:vectors", pytest.param("scatter:amx", marks=needs_amx)])


@pytest.fixture(autouse=True)
def ways():
    """Restore the choice of layouts after a test that sets it with `take`, and forget the schedules made with it."""
    before = schedule._layouts
    yield
    schedule._layouts = before
    stages.cached_schedule.cache_clear()


def every_way(case, unit):
    """Return the layouts that the problem permits, and whose memory the caches of the machine permit."""
    problem, here = operator(case, *case.arrays()[1:])._attributes.problem(case.data_shape), machine.current()
    info, rows = here.info(case.dtype, unit), reach.of_problem(problem)
    return [way for way in WAYS(problem, info) if schedule._schedule_layout(way, problem, here, info, rows, 2) is not None]


WAYS = schedule._layouts


def take(*ways):
    schedule._layouts = lambda problem, info: ways
    stages.cached_schedule.cache_clear()


@each_isa
@each_problem
@each_name
def test_every_layout(name, case, isa):
    activations = itertools.cycle((None, "tanh", ("leaky_relu", 0.25), "relu", "gelu"))
    with using_isa(isa):
        for dtype, data_format, activation in zip(DTYPES, ("NXC", "NCX", "NCX", "NXC"), activations, strict=False):
            now, unit = replace(case, dtype=dtype, data_format=data_format, activation=activation), name.partition(":")[2]
            for way in every_way(now, unit) if unit == "vectors" or matrix_unit(dtype) else ():
                take(way)
                check_all_ways(now, name, HERE)


@each_isa
@each_problem
@pytest.mark.parametrize("way", [ACROSS, BANDS])
def test_planes_as_they_are(way, case, isa, monkeypatch):
    """Check planes that are multiplied in place, also where the algorithm would choose blocks."""
    monkeypatch.setattr(planes.schedule, "cheaper_on_planes", lambda those, *problem: those.schedule(*at_all(*problem)))
    at_all = lambda problem, here, unit, finite: (problem, here, unit, 2, finite)  # noqa: E731
    with using_isa(isa):
        for dtype, activation in zip(DTYPES, itertools.cycle(("tanh", None, "gelu", "relu")), strict=False):
            now = replace(case, dtype=dtype, activation=activation, data_format="NCX")
            take(*([way] if way in every_way(now, "vectors") else every_way(now, "vectors")))
            check_all_ways(now, "scatter:vectors", HERE)
            problem = operator(now, now.arrays()[1])._attributes.problem(now.data_shape)._replace(planar=True)
            done = scatter.STAGES.schedule(problem, machine.current(), "vectors", 2, True)
            assert done.form[0] in (ACROSS, BANDS)


def test_planes_of_few_columns_are_read_as_they_are_multiplied():
    """Check up to eight columns with any number of channels, and rows of all lengths, whose last vector ends with the plane."""
    for co, ci, width in itertools.product(range(1, 5), (1, 2, 3, 5, 24), (1, 7, 8, 31, 64, 100)):
        case = Case(ci=ci, co=co, in_sizes=(3, width), kernel=(1, 2), strides=(1, 2), data_format="NCX")
        data, *weights = case.arrays()
        case.check(run(case, copy_in("cropped", data), *weights, algorithm="scatter:vectors"), data, *weights)


@each_isa
@pytest.mark.parametrize("size", [(4, 64), (16, 16), (256, 128)], ids=str)
def test_planes_that_share_sets_of_a_cache(size, isa):
    """Check planes a multiple of 1 KiB apart, and 128 KiB apart, which are read in place or packed."""
    with using_isa(isa):
        for co, kernel, strides in itertools.product((1, 2, 3), (2, 4), (1, 2)):
            case = Case(ci=7, co=co, in_sizes=size, kernel=kernel, strides=strides, data_format="NCX")
            arrays = case.arrays()
            case.check(run(case, *arrays, algorithm="scatter:vectors"), *arrays)


@pytest.mark.parametrize("isa, family", [("avx2", "zen3"), ("avx512_bf16", "zen4")])
def test_products_of_images_of_a_few_pixels_are_gathered(isa, family):
    with pretend(isa, family=family):
        problem = convt.ConvTranspose(np.zeros((7, 7, 122, 1), np.float32))._attributes.problem((1, 7, 4, 122))
        assert scatter.STAGES.schedule(problem, machine.current(), "vectors", 2, True).form[0] == GATHERED


@each_name
def test_workspace_is_bounded(name):
    for ci, kernel, co in itertools.product((32, 300, 1100, 5000), ((3, 3), (9, 64), (5, 5, 5)), (1, 5)):
        op = convt.ConvTranspose(np.zeros((*kernel, ci, co), np.float32), strides=2, algorithm=name)
        for size in (3, 200):
            shape = (1, *(size if ax == len(kernel) - 1 else 3 for ax in range(len(kernel))), ci)
            problem = op._attributes.problem(shape)
            if np.isinf(plans.ALGORITHMS[name].cost(problem)):
                continue
            plan = op.plan(shape)
            assert plan.workspace_bytes <= plan.threads << 22, (shape, kernel, co)


# ---------------------------------------------------------------- AMX


@needs_amx
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@each_problem
def test_as_exact_as_direct(case, dtype):
    case = replace(case, dtype=dtype, ci=case.ci + 30)
    found = [errors(replace(case, seed=seed), "scatter:amx", "direct:vectors") for seed in range(4)]
    got, direct = np.swapaxes(found, 0, 1)
    assert got.max() <= 1.1 * direct.max() + 2.0**-26
    assert np.sqrt(np.mean(got**2)) <= 1.05 * np.sqrt(np.mean(direct**2))


@needs_amx
def test_auto_takes_it_where_it_fills_the_unit_and_only_there():
    def best(shape, kernel, co, **keywords):
        op = convt.ConvTranspose(np.zeros((*kernel, shape[-1], co), np.float32), backend="native", **keywords)
        costs = candidates(op._attributes.problem(shape))
        return min(costs, key=costs.get)

    with pretend(isa=AMX, family="granite_rapids"):
        assert best((1, 8426, 399), (16,), 14, strides=5, pads_begin=5, pads_end=5) == "scatter:amx"
        assert best((1, 480, 480, 24), (2, 2), 1, strides=2) == "scatter:vectors"
        assert best((2, 4001, 512), (16,), 1, strides=8) == "scatter:vectors"
    with using_isa("avx512"):
        problem = operator(PROBLEMS["deep"], *PROBLEMS["deep"].arrays()[1:])._attributes.problem((1, 370, 300))
        assert np.isinf(plans.ALGORITHMS["scatter:amx"].cost(problem))


@each_isa
def test_small_images_are_gathered_where_vectors_are_long(isa):
    case = replace(PROBLEMS["small images"], batch=16)
    if isa.startswith("avx512"):
        with using_isa(isa), pretend(family="zen5", l1=48 << 10, l2=1 << 20, l3=32 << 20):
            problem = operator(case, case.arrays()[1])._attributes.problem(case.data_shape)
            assert scatter.STAGES.schedule(problem, machine.current(), "vectors", 2, True).form[0] == GATHERED


@pytest.mark.parametrize("seed", [18043, *range(8)])
def test_an_empty_input_whatever_joining_rows_costs(seed):
    """Check an empty input whose outputs no tap reaches, for random costs, by which rows without pixels might be joined."""
    data, filter = np.ones((1, 4, 1, 1), np.float32)[:, :0], np.ones((2, 3, 1, 3), np.float32)
    for threads in (1, 2):
        with machines.using({"efficiencies": [seed, 6]}), convt.num_threads(threads):
            got = convt.conv_transpose(data, filter, algorithm="scatter:vectors")
        np.testing.assert_array_equal(got, np.zeros((1, 1, 3, 3)))


def test_a_long_filter_is_scheduled_by_formulas():
    """Check that a long filter is scheduled quickly: tables are made for each axis, not for the product of the axes, and for no
    problem that would need large tables."""
    for kernel, there in (((31, 31), True), ((9, 9, 9), True), ((31, 31, 31), False)):
        op = convt.ConvTranspose(np.zeros((*kernel, 4, 1), np.float32), algorithm="scatter" if there else "direct")
        shape = (1, *[20] * len(kernel), 4)
        found = schedule.schedule(op._attributes.problem(shape), machine.current(), "vectors", 2, True)
        assert (found is not None) is there


@pytest.mark.parametrize("out", [1, 2, 3])
def test_products_have_room_for_phases_that_the_window_hides(out):
    """Check a window of fewer outputs than the stride."""
    case = Case(
        dtype="float64", batch=2, ci=100, co=5, in_sizes=(2, 1, 3), kernel=(3, 3, 4), strides=(1, 3, 3), pads_begin=(2, 0, 3),
        pads_end=(0, 3 - out, 4),
    )  # fmt: skip
    problem = operator(case, case.arrays()[1])._attributes.problem(case.data_shape)
    found = scatter.STAGES.schedule(problem, machine.current(), "vectors", 2, True)
    unit, columns = machine.current().info(problem.dtype), 3 * 4 * problem.co
    rows = found.pixels * -(-columns // unit.nr) * unit.nr if found.form[0] == "columns" else columns * found.pixels
    products = next(bytes for name, _, bytes in found.workspace.regions if name == "products")
    assert products >= rows * unit.t_size
    check_all_ways(case, "scatter:vectors")


@pytest.mark.parametrize("seed", range(60))
def test_products_have_room_for_the_band_of_a_task(seed):
    """Check that no task with bands reads more input positions than its workspace holds, for random axes and a small L2."""
    rng = np.random.default_rng(seed)
    sizes, kernel = (int(rng.integers(9, 40)), *rng.integers(1, 4, 1 + seed % 2).tolist()), int(rng.integers(1, 6))
    stride, dilation, begin, end = (int(rng.integers(low, high)) for low, high in ((1, 5), (1, 4), (0, 4), (0, 4)))
    case = Case(
        ci=40, co=2, in_sizes=sizes, kernel=(kernel, *[2] * (len(sizes) - 1)), strides=(stride, *[1] * (len(sizes) - 1)),
        dilations=(dilation, *[1] * (len(sizes) - 1)), pads_begin=(begin, *[0] * (len(sizes) - 1)),
        pads_end=(end, *[0] * (len(sizes) - 1)),
    )  # fmt: skip
    problem = operator(case, case.arrays()[1])._attributes.problem(case.data_shape)
    if not all(problem.out_sizes):
        return
    (first_axis, inner), rows = reach.of_axes(problem), []
    for residues, offsets, _ in phases.phase_groups(kernel, stride, dilation, True):
        js = {(begin + out) // stride for out in range(problem.out_sizes[0]) if (begin + out) % stride in residues}
        rows += [(j, [j - offset for offset in offsets if 0 <= j - offset < sizes[0]]) for j in js]
    if len(rows) < first_axis.rows:  # phases that no tap reaches
        rows += [(begin // stride + n, []) for n in range(first_axis.row_js)]
    rows.sort(key=lambda row: row[0])
    assert len(rows) == first_axis.rows
    with pretend(family="zen3", l1=32 << 10, l2=int(rng.integers(20, 300)) << 10, l3=32 << 20):
        here = machine.current()
        for threads in (1, 2, 3):
            found = schedule._schedule_layout(BANDS, problem, here, here.info("float32"), reach.of_problem(problem), threads)
            if found is None:
                continue
            of_task = -(-len(rows) * inner.rows // found.tasks)
            for first in range(len(rows) * inner.rows):
                read = [at for _, some in rows[first // inner.rows : (first + of_task - 1) // inner.rows + 1] for at in some]
                if read:
                    assert (max(read) - min(read) + 1) * np.prod(sizes[1:]) <= found.pixels, (problem, found)


@each_isa
def test_blocks_of_planes_that_begin_between_the_taps(isa, monkeypatch):
    """Check blocks with more outputs than taps, whose window begins before the first input, where no tap reaches."""
    monkeypatch.setattr(planes.schedule, "cheaper_on_planes", lambda *_: False)
    case = Case(
        groups=2, co=2, in_sizes=(22,), kernel=6, strides=7, pads_begin=6, pads_end=5, output_padding=7, data_format="NCX",
    )  # fmt: skip
    with using_isa(isa), pretend(planes_block=0):
        checked_on_threads(case, "scatter:vectors", case.arrays())
        assert operator(case, case.arrays()[1], algorithm="scatter:vectors").plan(case.data_shape).tasks > 8


def test_rows_of_images_in_planes_are_multiplied_together():
    """Eight images whose pixels are in planes take about as long as one image with as many rows: vectors hold several rows."""
    weights = np.ones((64, 4, 2, 2), np.float32)
    best = []
    for shape in ((8, 64, 8, 6), (1, 64, 64, 6)):
        op = convt.ConvTranspose(weights, strides=2, data_format="NCX", filter_format="IOX", algorithm="scatter")
        data = np.ones(shape, np.float32)
        with convt.config(threads=1):
            out = op(data)
            best.append(min(durations(lambda op=op, data=data, out=out: op(data, out=out), 0.05)))
    assert best[0] < 1.6 * best[1]
