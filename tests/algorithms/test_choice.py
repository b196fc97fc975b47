"""Tests of the choice of "auto" by the cost model: the algorithm or schedule that must win for problems where the cost has one
main cause."""

import numpy as np
import pytest
from cases import each_isa, matrix_unit, pretend, using_isa

import convt
from convt._base.problem import Problem
from convt._model import machine
from convt._model.unit import UNITS
from convt._plan import choose, plans
from convt.algorithms import ALGORITHMS, BASIC, caches, depthwise, on_unit
from convt.algorithms.direct import schedule as direct

PROBLEMS = {  # shape of the data, kernel, out-channels, groups, stride: problems of few tasks and many, one of each algorithm
    "few pixels": ((1, 4, 4, 512), (5, 5), 32, 1, 1),
    "winograd": ((1, 32, 24, 256), (4, 4), 256, 1, 2),
    "scatter": ((1, 60, 60, 48), (4, 4), 3, 1, 2),
    "depthwise": ((1, 1300, 128), (4,), 1, 128, 2),
}


def operator(problem, **keywords):
    shape, kernel, co, groups, stride = problem
    filter = np.broadcast_to(np.float32(1), (*kernel, shape[-1], co))
    return convt.ConvTranspose(filter, groups=groups, strides=stride, backend="native", **keywords), shape


@each_isa
@pytest.mark.parametrize("name", PROBLEMS)
def test_the_choice_does_not_depend_on_the_number_of_threads(name, isa):
    op, shape = operator(PROBLEMS[name])
    problem = op._attributes.problem(shape)
    found = []
    for threads in (1, 2, 7):
        caches.clear()
        with convt.num_threads(threads), using_isa(isa):
            found.append(choose.permitted(problem, "auto"))
    assert found[0] == found[1] == found[2]
    with using_isa(isa):
        assert ("matrix" in found[0]) == matrix_unit()
    vectors = {algorithm: cost for algorithm, cost in found[0].items() if not algorithm.startswith("matrix")}
    assert name == "few pixels" or isa in ("baseline", "avx2") or min(vectors, key=vectors.get) == name


def test_weights_that_no_cache_holds_are_not_made_larger():
    """Check 32 MiB of weights that are used for few pixels each."""
    ratios = []
    for channels in (256, 2048):
        op, shape = operator(((1, 8, 6, channels), (4, 4), 256, 1, 2), pads_begin=1, pads_end=1)
        problem = op._attributes.problem(shape)
        with pretend(isa="avx512", family="skylake_server", kept_weights=32 << 20):
            ratios.append(plans.ALGORITHMS["winograd"].cost(problem) / plans.ALGORITHMS["direct"].cost(problem))
    assert ratios[1] > 1.05 * ratios[0]


def test_threads_do_not_share_the_pixels_of_a_row():
    """Check that out-channels are divided among tasks only if their weights would not stay in the cache."""
    for kernel, lane_blocks in ((4, 1), (16, 1), (1024, 2)):
        op, shape = operator(((1, 1300, 128), (kernel,), 1, 128, 2))
        found = depthwise.STAGES.schedule(op._attributes.problem(shape), machine.current(), "vectors", 2, True)
        assert -(-found.task.lanes // found.task.lane_block) == lane_blocks


def test_few_lanes_are_multiplied_by_dot_products():
    """Check that few out-channels in bfloat16 take the dot products of the CPU, whose outputs are stored several j together."""
    problem = Problem("bfloat16", 1, 1, 56, 1, (360, 640), (9, 9), (3, 3), (1, 1), (4, 4), (1080, 1920))
    with pretend(isa="avx512_bf16", family="zen5"):
        found = choose.permitted(problem, "auto")
    assert min(found, key=found.get) == "dots_scatter"


def test_many_small_groups_merge_their_phases():
    """Check that phases are merged for groups of one channel on a CPU where stores and gathers take long."""
    op, shape = operator(((1, 112, 256, 49), (4, 4), 1, 49, 2), pads_begin=1, pads_end=1)
    with pretend(family="zen3"):
        assert direct.schedule(op._attributes.problem(shape), machine.current(), "vectors", 2).form == ((True, True),)


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_channels_first_are_not_gathered_where_pixels_lie_side_by_side(data_format):
    op, shape = operator(((1, 112, 256, 49), (4, 4), 1, 49, 2), pads_begin=1, pads_end=1, data_format=data_format)
    with pretend(isa="avx2", family="zen3"):
        found = choose.permitted(op._attributes.problem(op._attributes.user_shape(shape)), "auto")
    assert min(found, key=found.get) == ("depthwise" if data_format == "NXC" else "rows")


def test_a_task_of_fewer_rows_than_a_tile_is_no_whole_tile():
    if not matrix_unit():
        pytest.skip("no matrix unit")
    costs = []
    for pixels in (4, 32):
        op, shape = operator(((1, 1, pixels, 1024), (4, 4), 16, 1, 4))
        with pretend(family="sapphire_rapids_amx"):
            costs.append(choose.permitted(op._attributes.problem(shape), "auto")["matrix"])
    assert costs[0] < 0.7 * costs[1]


def test_names_are_an_algorithm_on_a_unit():
    assert BASIC == ("direct", "winograd", "scatter", "depthwise", "rows", "turned", "unpacked", "invariant")
    for name, each in ALGORITHMS.items():
        algorithm, unit = on_unit(name)
        assert algorithm in (*BASIC, "winograd6") and unit in ("vectors", *(each.prefix for each in UNITS.values()))
        assert {"vectors": "vectors", "matrix": "amx", "matrix_high": "amx_two", "matrix_medium": "amx_one", "dots": "dots"}[
            unit
        ] == each.unit


def test_a_plan_names_its_unit():
    op = convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2, backend="native", algorithm="direct")
    assert op.plan((1, 4, 4, 8)).unit == "vectors"
    op = convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2, backend="reference")
    assert op.plan((1, 4, 4, 8)).unit == ""


@pytest.mark.skipif(matrix_unit(), reason="this CPU has AMX")
def test_explain_leaves_out_units_that_the_cpu_lacks():
    op = convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2, backend="native")
    text = op.plan((1, 4, 4, 8)).explain()
    assert "rows: unavailable (needs NCX data" in text and "matrix" not in text
