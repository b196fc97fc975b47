"""Tests of the choice of "auto" by the cost model: the algorithm or schedule that must win for problems where the cost has one
main cause."""

import itertools

import numpy as np
import pytest
from cases import each_isa, matrix_unit, pretend, using_isa

import convt
from convt._base.problem import PRECISIONS, Problem
from convt._model import machine
from convt._plan import choose
from convt.algorithms import ALGORITHMS, NAMES, allowed, caches, candidates, depthwise, name_of
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
            found.append(candidates(problem))
    assert found[0] == found[1] == found[2]
    with using_isa(isa):
        assert ("direct:amx" in found[0]) == matrix_unit()
    vectors = {algorithm: cost for algorithm, cost in found[0].items() if ":amx" not in algorithm}
    assert name == "few pixels" or isa in ("baseline", "avx2") or min(vectors, key=vectors.get) == f"{name}:vectors"


def test_weights_that_no_cache_holds_are_not_made_larger():
    """Check 32 MiB of weights that are used for few pixels each."""
    ratios = []
    for channels in (256, 2048):
        op, shape = operator(((1, 8, 6, channels), (4, 4), 256, 1, 2), pads_begin=1, pads_end=1)
        problem = op._attributes.problem(shape)
        with pretend(isa="avx512", family="skylake_server"):
            ratios.append(ALGORITHMS["winograd:vectors"].cost(problem) / ALGORITHMS["direct:vectors"].cost(problem))
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
        found = candidates(problem)
    assert min(found, key=found.get) == "scatter:dots"


def test_many_small_groups_merge_their_phases():
    """Check that phases are merged for groups of one channel on a CPU where stores and gathers take long."""
    op, shape = operator(((1, 112, 256, 49), (4, 4), 1, 49, 2), pads_begin=1, pads_end=1)
    with pretend(family="zen3"):
        assert direct.schedule(op._attributes.problem(shape), machine.current(), "vectors", 2).form == ((True, True),)


@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_channels_first_are_not_gathered_where_pixels_lie_side_by_side(data_format):
    op, shape = operator(((1, 112, 256, 49), (4, 4), 1, 49, 2), pads_begin=1, pads_end=1, data_format=data_format)
    with pretend(isa="avx2", family="zen3"):
        found = candidates(op._attributes.problem(op._attributes.user_shape(shape)))
    assert min(found, key=found.get) == ("depthwise:vectors" if data_format == "NXC" else "rows:vectors")


def test_a_task_of_fewer_rows_than_a_tile_is_no_whole_tile():
    if not matrix_unit():
        pytest.skip("no matrix unit")
    costs = []
    for pixels in (4, 32):
        op, shape = operator(((1, 1, pixels, 1024), (4, 4), 16, 1, 4))
        with pretend(family="sapphire_rapids_amx"):
            costs.append(candidates(op._attributes.problem(shape))["direct:amx"])
    assert costs[0] < 0.7 * costs[1]


def test_a_key_is_an_algorithm_on_a_unit():
    assert NAMES == ("direct", "winograd", "scatter", "depthwise", "rows", "turned", "unpacked", "invariant")
    for key, each in ALGORITHMS.items():
        assert name_of(key) in NAMES and key.rpartition(":")[2] == each.unit


@pytest.mark.parametrize("precision, units", [
    ("highest", {"direct:vectors", "direct:amx"}), ("high", {"direct:vectors", "direct:amx", "direct:amx_two"}),
    ("medium", {key for key in ALGORITHMS if name_of(key) == "direct"}),
])  # fmt: skip
def test_precision_permits_units_of_a_named_algorithm(precision, units):
    problem = Problem("float32", 1, 1, 64, 64, (16, 16), (4, 4), (2, 2), (1, 1), (1, 1), (32, 32), precision=precision)
    assert set(allowed(problem, "direct")) == units < set(allowed(problem))
    assert "winograd:vectors" in allowed(problem, "winograd")
    assert ("winograd:six:vectors" in allowed(problem, "winograd")) == (precision != "highest")
    assert allowed(problem, "direct:amx_one") == ["direct:amx_one"]  # a key at any precision
    halves = problem._replace(dtype="bfloat16")
    assert set(allowed(halves, "direct")) == {"direct:vectors", "direct:amx", "direct:dots"}  # all are exact


@pytest.mark.parametrize("isa, family", [("avx512_amx", "granite_rapids"), ("avx512_bf16", "zen5")])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_means_the_cheapest_of_its_units(name, isa, family):
    """Check CPUs with AMX and with dot products, at each precision, in both layouts."""
    for dtype, precision, planar in itertools.product(("float32", "bfloat16"), PRECISIONS, (False, True)):
        problem = Problem(dtype, 1, 1, 64, 3, (16, 16), (4, 4), (2, 2), (1, 1), (1, 1), (32, 32), planar=planar)
        problem = problem._replace(precision=precision)
        with pretend(isa=isa, family=family):
            costs = {key: ALGORITHMS[key].cost(problem) for key in allowed(problem, name)}
            costs = {key: cost for key, cost in costs.items() if cost < np.inf}
            assert candidates(problem, name) == costs
            if costs:
                assert ALGORITHMS[choose.native(problem, name)].cost(problem) == min(costs.values())
                continue
            with pytest.raises(ValueError, match=f"algorithm: got '{name}', which is unavailable"):
                choose.native(problem, name)


@pytest.mark.parametrize("isa, family, unit", [("avx512_amx", "granite_rapids", "amx"), ("avx2", "zen3", "vectors")])
def test_the_cpu_chooses_the_unit_of_a_named_algorithm(isa, family, unit):
    op, shape = operator(((1, 64, 64, 256), (2, 2), 256, 1, 2), algorithm="direct")
    with pretend(isa=isa, family=family):
        assert choose.native(op._attributes.problem(shape), "direct") == f"direct:{unit}"


def test_a_plan_names_its_unit():
    op = convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2, backend="native", algorithm="direct:vectors")
    plan = op.plan((1, 4, 4, 8))
    assert (plan.algorithm, plan.unit) == ("direct", "vectors") and "algorithm='direct', unit='vectors'" in repr(plan)
    assert plan.explain().startswith("direct: one GEMM per phase (on vectors)")
    op = convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2, backend="reference")
    assert op.plan((1, 4, 4, 8)).unit == ""


@pytest.mark.skipif(matrix_unit(), reason="this CPU has AMX")
def test_explain_leaves_out_units_that_the_cpu_lacks():
    op = convt.ConvTranspose(np.ones((2, 2, 8, 8), np.float32), strides=2, backend="native")
    text = op.plan((1, 4, 4, 8)).explain()
    assert "rows:vectors: unavailable (needs NCX data" in text and "amx" not in text
