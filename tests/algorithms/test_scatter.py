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
    INPUT_MEMORY,
    Case,
    Out,
    copy_in,
    each_isa,
    kept_forms,
    matrix_unit,
    on_threads,
    operator,
    pretend,
    run,
    taken,
    using_isa,
)
from fuzz import machines

import convt
from convt._base.problem import Problem
from convt._model import machine
from convt._plan import plans
from convt.algorithms import candidates, planes, scatter, stages
from convt.algorithms.scatter import reach, schedule
from convt.algorithms.scatter.schedule import ACROSS, BANDS, COLUMNS, GATHERED

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
    # The window shows no output that the input's only row reaches, so the workspace has no room for products.
    "rows of no taps": Case(
        ci=3, co=2, in_sizes=(1, 6), kernel=(1, 2), strides=(2, 1), pads_begin=(1, 0), output_padding=(1, 0),
    ),
    # Without an input row, a task with bands has no pixels.
    "no taps": Case(
        ci=3, co=2, in_sizes=(1, 6), kernel=(1, 2), strides=(3, 1), pads_begin=(1, 0), output_padding=(2, 0),
    ),
    "lanes of a vector and more": Case(ci=64, co=5, in_sizes=(100,), kernel=11, strides=4),
}  # fmt: skip
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


def skip_without(name, dtype):
    if name == "scatter:amx" and not matrix_unit(dtype):
        pytest.skip(f"no matrix unit for {dtype}")


@each_dtype
@each_format
@each_problem
@each_name
def test_every_way_is_the_definition_for_any_number_of_threads(name, case, data_format, dtype):
    skip_without(name, dtype)
    case = replace(case, dtype=dtype, data_format=data_format)
    whole, any_data = case.arrays(), case.arrays(exact=False)
    for way in every_way(case, name.partition(":")[2]):
        take(way)
        results = set()
        for threads in (1, 2, 3, 5):
            with convt.num_threads(threads):
                op = operator(case, *whole[1:], algorithm=name)
                assert op.plan(case.data_shape).key == name
                case.check(op(whole[0]), *whole)
                op = operator(case, *any_data[1:], algorithm=name)
                results |= {op(any_data[0]).tobytes() for _ in range(2)}
        assert len(results) == 1, way
        case.check(op(any_data[0]), *any_data, exact=False)


@each_isa
@each_problem
def test_every_way_at_every_instruction_set(case, isa):
    with using_isa(isa):
        for dtype, activation in zip(DTYPES, ("tanh", ("leaky_relu", 0.25), "gelu", None), strict=True):
            now = replace(case, dtype=dtype, activation=activation)
            arrays = now.arrays()
            for way in every_way(now, "vectors"):
                take(way)
                now.check(run(now, *arrays, algorithm="scatter:vectors"), *arrays)


@each_isa
@each_problem
@pytest.mark.parametrize("memory", ["contiguous", "strided", "reversed", "cropped"])
@pytest.mark.parametrize("way", [ACROSS, BANDS])
def test_planes_as_they_are(way, memory, case, isa, monkeypatch):
    """Planes that are multiplied in place, also where the algorithm would choose blocks, in memory that is followed by NaN."""
    monkeypatch.setattr(planes.schedule, "cheaper_on_planes", lambda those, *problem: those.schedule(*at_all(*problem)))
    at_all = lambda problem, here, unit, finite: (problem, here, unit, 2, finite)  # noqa: E731
    with using_isa(isa):
        for dtype, activation in zip(DTYPES, ("tanh", None, "gelu", "relu"), strict=True):
            now = replace(case, dtype=dtype, activation=activation, data_format="NCX")
            take(*([way] if way in every_way(now, "vectors") else every_way(now, "vectors")))
            data, filter, bias = now.arrays()
            view, out = copy_in(memory, data), Out(memory, np.zeros(now.out_shape, now.numpy_dtype))
            op = operator(now, filter, bias, algorithm="scatter:vectors")
            op(view, out=out.view)
            now.check(np.array(out.view), data, filter, bias)
            out.assert_only_elements_written()
            problem = op._attributes.problem(now.data_shape)._replace(planar=True)
            done = scatter.STAGES.schedule(problem, machine.current(), "vectors", 2, True)
            assert done.form[0] in (ACROSS, BANDS)


def test_planes_of_few_columns_are_read_as_they_are_multiplied():
    """Check up to eight columns with any number of channels, and rows of all lengths, whose last vector ends with the plane."""
    rng = np.random.default_rng(0)
    for co, ci, width in itertools.product(range(1, 5), (1, 2, 3, 5, 24), (1, 7, 8, 31, 64, 100)):
        case = Case(ci=ci, co=co, in_sizes=(3, width), kernel=(1, 2), strides=(1, 2), data_format="NCX")
        data, filter, bias = case.arrays()
        whole = np.full((*data.shape[:-1], width + rng.integers(1, 9)), np.nan, data.dtype)
        whole[..., :width] = data
        case.check(run(case, whole[..., :width], filter, bias, algorithm="scatter:vectors"), data, filter, bias)


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
@each_problem
@pytest.mark.parametrize("memory", INPUT_MEMORY)
def test_nothing_but_the_result_is_read_or_written(memory, case, name):
    for data_format, dtype in (("NXC", "float32"), ("NCX", "float32"), ("NXC", "bfloat16")):
        now = replace(case, data_format=data_format, dtype=dtype, activation="relu")
        data, filter, bias = now.arrays()
        data = copy_in(memory, data)
        out = Out(memory if memory in ("contiguous", "strided", "reversed", "cropped") else "contiguous",
                  np.zeros(now.out_shape, now.numpy_dtype))  # fmt: skip
        for way in every_way(now, name.partition(":")[2]):
            take(way)
            op = operator(now, filter, bias, algorithm=name)
            assert op(data, out=out.view) is out.view
            now.check(np.array(out.view), np.array(data), filter, bias)
        out.assert_only_elements_written()


JOINED = {
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
    "volume": Case(
        batch=2, ci=6, co=1, in_sizes=(3, 4, 5), kernel=(2, 3, 2), strides=2, pads_begin=(1, 1, 0), pads_end=(0, 0, 1),
    ),
    "groups": Case(batch=2, groups=2, ci=9, co=2, in_sizes=(6, 17), kernel=2, strides=2),
}  # fmt: skip


@each_isa
@pytest.mark.parametrize("case", JOINED.values(), ids=JOINED)
def test_rows_multiplied_as_one(case, isa):
    with using_isa(isa):
        for dtype, memory, activation in zip(DTYPES, ("contiguous", "cropped", "reversed", "strided"),
                                             ("relu", None, "tanh", None), strict=True):  # fmt: skip
            now = replace(case, dtype=dtype, activation=activation)
            data, filter, bias = now.arrays()
            for way in every_way(now, "vectors"):
                take(way)
                op = operator(now, filter, bias, algorithm="scatter:vectors")
                if way != COLUMNS:  # there are fewer tasks than rows
                    assert op.plan(now.data_shape).tasks < now.batch * now.groups * int(np.prod(now.out_shape[1:-2]))
                for where in {"contiguous", memory}:
                    view, results = copy_in(where, data), set()
                    for threads in (1, 3):
                        with convt.num_threads(threads):
                            out = Out(where, np.zeros(now.out_shape, now.numpy_dtype))
                            operator(now, filter, bias, algorithm="scatter:vectors")(view, out=out.view)
                        now.check(np.array(out.view), np.array(view), filter, bias)
                        out.assert_only_elements_written()
                        results.add(np.array(out.view).tobytes())
                    assert len(results) == 1, way


@each_name
@each_problem
def test_of_nothing(case, name):
    for empty in (replace(case, batch=0), replace(case, ci=0)):
        arrays = empty.arrays()
        empty.check(run(empty, *arrays, algorithm=name), *arrays)
        empty.check(run(empty, *arrays), *arrays)


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
    errors = []
    for seed in range(4):
        case = replace(case, seed=seed)
        arrays = case.arrays(exact=False)
        exact = case.expected(*arrays)
        errors.append([
            np.abs(run(case, *arrays, algorithm=name, backend="native").astype(np.float64) - exact)
            for name in ("scatter:amx", "direct:vectors")
        ])  # fmt: skip
    scale = case.expected(*arrays, magnitude=True).max()
    got, direct = np.swapaxes(errors, 0, 1)
    assert got.max() <= 1.1 * direct.max() + 2.0**-26 * scale
    assert np.sqrt(np.mean(got**2)) <= 1.05 * np.sqrt(np.mean(direct**2))


@needs_amx
@pytest.mark.parametrize(
    ("number", "fits"),
    [(0.0, True), (2.0**-64, True), (2.0**-65, False), (-1e-40, False), (2.0**48, True), (-(2.0**49), False),
     (np.nan, False), (np.inf, False)],
)  # fmt: skip
@pytest.mark.parametrize("place", [0, 5555, -1])
def test_data_out_of_range_is_left_to_direct(place, number, fits):
    case = PROBLEMS["rows that share pixels"]
    data, filter, bias = case.arrays(exact=False)
    data.reshape(-1)[place] = number
    op, direct = (operator(case, filter, bias, algorithm=name) for name in ("scatter:amx", "direct:vectors"))
    assert taken(op, data) is fits
    want = direct(data)
    for threads in (1, 3):
        with convt.num_threads(threads):
            for got in (op(data), op(data), run(case, data, filter, bias, algorithm="scatter:amx")):
                assert (got.tobytes() == want.tobytes()) is (not fits)
                np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@needs_amx
@pytest.mark.parametrize("number", [2.0**-40, 1e-40, 2.0**49, np.inf, np.nan])
def test_a_filter_out_of_range_is_left_to_vectors(number):
    case = PROBLEMS["rows that share pixels"]
    data, filter, bias = case.arrays(exact=False)
    good = operator(case, filter, bias, algorithm="scatter:amx")(data).tobytes()
    spoilt = filter.copy()
    spoilt.reshape(-1)[77] = number
    op = operator(case, spoilt, bias, algorithm="scatter:amx")
    plan = op.plan(data.shape)
    assert plan.unit == "vectors" and plan.note
    want = run(case, data, spoilt, bias, algorithm=plan.key).tobytes()
    for _ in range(2):
        assert op(data).tobytes() == run(case, data, spoilt, bias, algorithm="scatter:amx").tobytes() == want
        assert run(case, data, filter, bias, algorithm="scatter:amx").tobytes() == good


@needs_amx
def test_auto_takes_it_where_it_fills_the_unit_and_only_there():
    def best(shape, kernel, co, **keywords):
        op = convt.ConvTranspose(np.zeros((*kernel, shape[-1], co), np.float32), backend="native", **keywords)
        costs = candidates(op._attributes.problem(shape))
        return min(costs, key=costs.get)

    with pretend(isa=AMX, family="granite_rapids"):
        assert best((1, 8426, 399), (16,), 14, strides=5, pads_begin=5, pads_end=5) == "scatter:amx"
        assert best((1, 480, 480, 24), (2, 2), 1, strides=2) == "scatter"
        assert best((2, 4001, 512), (16,), 1, strides=8) == "scatter"
    with using_isa("avx512"):
        problem = operator(PROBLEMS["deep"], *PROBLEMS["deep"].arrays()[1:])._attributes.problem((1, 370, 300))
        assert np.isinf(plans.ALGORITHMS["scatter:amx"].cost(problem))


@each_isa
def test_small_images_are_picked_where_memory_allows(isa):
    """Check that small images are gathered if vectors are long and the memory is contiguous, and otherwise computed by rows,
    with the same bits for any number of threads."""
    case = replace(PROBLEMS["small images"], batch=16)
    with using_isa(isa):
        for dtype in DTYPES:
            now = replace(case, dtype=dtype, activation="relu")
            data, filter, bias = now.arrays(exact=False)
            schedule._layouts = WAYS
            problem = operator(now, filter, bias)._attributes.problem(now.data_shape)
            if GATHERED not in every_way(now, "vectors"):
                continue
            if isa.startswith("avx512") and dtype == "float32":
                stages.cached_schedule.cache_clear()
                with machine.pretend(l1=48 << 10, l2=1 << 20, l3=32 << 20, family="zen5"):
                    assert stages.cached_schedule(scatter.STAGES, problem, machine.current()).form[0] == GATHERED
            take(GATHERED)
            op = operator(now, filter, bias, algorithm="scatter:vectors")
            on_threads(lambda: op(data), (1, 2, 3, 3))  # noqa: B023
            out = Out("strided", np.zeros(now.out_shape, now.numpy_dtype))
            op(data, out=out.view)
            now.check(np.array(out.view), data, filter, bias, exact=False)
            out.assert_only_elements_written()


def test_nan_and_infinity_stay_with_the_outputs_that_sum_them():
    case = replace(PROBLEMS["small images"], bias=False)
    data, filter, _ = case.arrays()
    data[1, 2, 3, 5], data[4, 0, 0, 0] = np.nan, np.inf
    filter[..., 1, 0, 0] = np.inf
    take(GATHERED)
    picked = operator(case, filter, None, algorithm="scatter:vectors")(data)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(picked, operator(case, filter, None, algorithm="direct:vectors")(data))


@pytest.mark.parametrize("seed", [18043, *range(8)])
def test_an_empty_input_whatever_joining_rows_costs(seed):
    """Check an empty input whose outputs no tap reaches, for random costs, by which rows without pixels might be joined."""
    data, filter = np.ones((1, 4, 1, 1), np.float32)[:, :0], np.ones((2, 3, 1, 3), np.float32)
    for threads in (1, 2):
        with machines.using({"efficiencies": [seed, 6]}), convt.num_threads(threads):
            got = convt.conv_transpose(data, filter, algorithm="scatter:vectors")
        np.testing.assert_array_equal(got, np.zeros((1, 1, 3, 3)))


@each_name
@each_problem
def test_a_schedule_is_decided_without_weights_prints_and_compares(case, name):
    unit = name.partition(":")[2]
    skip_without(name, case.dtype)
    op = operator(case, *case.arrays()[1:], algorithm=name)
    problem, here = op._attributes.problem(case.data_shape), machine.current()
    for threads in (1, 2, 16):
        first, again = (schedule.schedule(problem, here, unit, threads, True) for _ in range(2))
        assert first == again and hash(first) == hash(again) and repr(first) == repr(again)
        assert first.form == schedule.schedule(problem, here, unit, 2, True).form
        assert scatter.STAGES.cost(first, here) > 0 and len(repr(first)) < 2000
    assert not kept_forms(op)


def test_a_long_filter_is_scheduled_by_formulas():
    """Check that a long filter is scheduled quickly: tables are made for each axis, not for the product of the axes, and for no
    problem that would need large tables."""
    for kernel, there in (((31, 31), True), ((9, 9, 9), True), ((31, 31, 31), False)):
        op = convt.ConvTranspose(np.zeros((*kernel, 4, 1), np.float32), algorithm="scatter" if there else "direct")
        shape = (1, *[20] * len(kernel), 4)
        found = schedule.schedule(op._attributes.problem(shape), machine.current(), "vectors", 2, True)
        assert (found is not None) is there


@each_problem
@each_isa
def test_no_schedule_costs_less_than_the_bound(case, isa):
    with using_isa(isa):
        for dtype in DTYPES:
            now, here = replace(case, dtype=dtype), machine.current()
            problem = operator(now, *now.arrays()[1:])._attributes.problem(now.data_shape)
            for unit in ("vectors", "amx", "dots"):
                found = schedule.schedule(problem, here, unit, 2, True)
                bound = scatter.STAGES.least(problem, here, unit)
                assert bound <= scatter.STAGES.cost(found, here) if found else unit != "vectors" and np.isinf(bound)


@pytest.mark.parametrize("out", [1, 2, 3])
def test_products_have_room_for_phases_that_the_window_hides(out):
    """Check a window of fewer outputs than the stride."""
    problem = Problem("float64", 2, 1, 100, 5, (2, 1, 3), (3, 3, 4), (1, 3, 3), (1, 1, 1), (2, 0, 3), (2, out, 3))
    found = scatter.STAGES.schedule(problem, machine.current(), "vectors", 2, True)
    unit, columns = machine.current().info(problem.dtype), 3 * 4 * problem.co
    rows = found.pixels * -(-columns // unit.nr) * unit.nr if found.form[0] == "columns" else columns * found.pixels
    products = next(bytes for name, _, bytes in found.workspace.regions if name == "products")
    assert products >= rows * unit.t_size
    data, filter = np.ones((2, 2, 1, 3, 100)), np.ones((3, 3, 4, 100, 5))
    keywords = {"strides": (1, 3, 3), "pads_begin": (2, 0, 3), "pads_end": (0, 3 - out, 4), "algorithm": "scatter"}
    want = convt.conv_transpose(data, filter, **keywords | {"algorithm": "auto", "backend": "reference"})
    np.testing.assert_array_equal(convt.conv_transpose(data, filter, **keywords), want)


@each_isa
def test_blocks_of_planes_that_begin_between_the_taps(isa, monkeypatch):
    """Check blocks with more outputs than taps, whose window begins before the first input, where no tap reaches."""
    monkeypatch.setattr(planes.schedule, "cheaper_on_planes", lambda *_: False)
    rng = np.random.default_rng(0)
    keywords = {"strides": 7, "pads_begin": 6, "pads_end": 5, "output_padding": 7, "groups": 2, "data_format": "NCX"}
    data, filter, bias = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((1, 2, 22), (6, 2, 2), (4,)))
    want = convt.conv_transpose(data, filter, bias, backend="reference", **keywords)
    with using_isa(isa), pretend(planes_block=0):
        got = np.full_like(want, 99)
        op = convt.ConvTranspose(filter, bias, algorithm="scatter:vectors", **keywords)
        op(data, out=got)
        assert op.plan(data.shape).algorithm == "scatter" and op.plan(data.shape).tasks > 8
    np.testing.assert_array_equal(got, want)
