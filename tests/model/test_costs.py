"""Tests of the cost model: every value has a name, the counts of a cost add up to it, and profile files are checked."""

import math

import numpy as np
import pytest
from cases import SAMPLES, operator, pretend

import convt
from convt._model import constants, costs, machine
from convt._model.efficiencies import EFFICIENCIES
from convt._plan import plans


def problems():
    for case in SAMPLES.values():
        yield operator(case, *case.arrays()[1:])._attributes.problem(case.data_shape)


def test_every_cost_has_a_meaning_an_efficiency_and_a_constant():
    assert {about.efficiency for about in costs.NAMES.values()} == set(EFFICIENCIES) and len(EFFICIENCIES) <= 40
    for name, about in costs.NAMES.items():
        assert about.unit and about.meaning and about.side in (costs.SERIAL, costs.COMPUTE, costs.FETCH), name
    for each in constants.known().values():
        assert {about.constant for about in costs.NAMES.values()} == set(costs.units(each.constants, each.vector_bits))
        found = costs.profile_of(each.name, each.constants, each.vector_bits).values
        assert set(found) == set(costs.NAMES) and all(0 <= value < math.inf for value in found.values())


def test_costs_follow_from_constants():
    here = constants.known()["zen3"].constants
    now = costs.profile_of("now", here, 256)["direct"]
    changed = here._replace(multiply_adds=here.multiply_adds / 2, l3_read=here.l3_read / 3)
    slower = costs.profile_of("slower", changed, 256)["direct"]
    assert slower["tile_cycle"] == pytest.approx(2 * now["tile_cycle"])
    assert slower["in_byte_l3"] == pytest.approx(3 * now["in_byte_l3"]) and slower["piece"] == now["piece"]


def test_the_longer_side_hides_the_shorter():
    prices = costs.Costs("x", {"task": 10.0, "tile_call": 2.0, "weight_byte_l3": 1.0})
    assert prices.cycles({"task": 1, "tile_call": 100, "weight_byte_l3": 50}) == 10 + 200 + costs.EXPOSED * 50
    assert prices.cycles({"tile_call": 1, "weight_byte_l3": 50}) == 50 + costs.EXPOSED * 2


@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_amx"])
def test_cycles_say_where_they_come_from(isa):
    for problem in problems():
        with pretend(isa=isa):
            profile = machine.current().profile
            for name, algorithm in plans.ALGORITHMS.items():
                plain = algorithm.cost(problem)
                if math.isinf(plain):
                    continue
                with pretend(isa=isa, profile=profile.traced):
                    traced = algorithm.cost(problem)
                values = profile.values
                assert traced == pytest.approx(plain, rel=1e-12), name
                total = sum(values[kind] * count for (_, kind), count in traced.counts.items())
                assert total == pytest.approx(plain, rel=1e-9), name


def test_a_plan_shows_where_the_cycles_go():
    op = convt.ConvTranspose(np.ones((4, 4, 32, 32), np.float32), strides=2, algorithm="direct:vectors")
    plan = op.plan((1, 16, 16, 32))
    cycles = plan.cycles
    assert list(cycles.values()) == sorted(cycles.values(), reverse=True) and next(iter(cycles)) == "direct.tile_cycle"
    assert sum(cycles.values()) == pytest.approx(plans.ALGORITHMS["direct:vectors"].cost(plan.problem))
    assert convt.ConvTranspose(np.ones((1, 1, 1)), backend="reference").plan((1, 2, 1)).cycles == {}
