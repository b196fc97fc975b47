"""The cost model: every value has a name, cycles say where they come from, profiles in files are checked."""

import math

import numpy as np
import pytest
from cases import SAMPLES, operator, pretend

import convt
from convt import _plan
from convt.algorithms import costs, machine


def problems():
    for case in SAMPLES.values():
        yield operator(case, *case.arrays()[1:])._attributes.problem(case.data_shape)


def test_every_value_has_a_name_and_a_unit():
    used = {name for names in costs.VALUES.values() for name in names}
    assert used == set(costs.NAMES)
    for name, about in costs.NAMES.items():
        assert about.unit and about.meaning and about.side in (costs.SERIAL, costs.COMPUTE, costs.FETCH), name
    for part, names in costs.VALUES.items():
        for name, values in names.items():
            assert len(values) == len(costs.PROFILES) and all(0 <= v < math.inf for v in values), (part, name)


def test_the_longer_side_hides_the_shorter():
    prices = costs.Costs("x", {"task": 10.0, "tile_call": 2.0, "weight_byte_l3": 1.0})
    assert prices.cycles({"task": 1, "tile_call": 100, "weight_byte_l3": 50}) == 10 + 200 + costs.HIDDEN * 50
    assert prices.cycles({"tile_call": 1, "weight_byte_l3": 50}) == 50 + costs.HIDDEN * 2


@pytest.mark.parametrize("isa", ["avx2", "avx512", "avx512_amx"])
def test_cycles_say_where_they_come_from(isa):
    """The counts that a cost is traced to make up all of it, for CPUs that are not at hand, too."""
    for problem in problems():
        with pretend(isa=isa):
            profile = machine.current().profile
            for name, algorithm in _plan.ALGORITHMS.items():
                plain = algorithm.cost(problem)
                if math.isinf(plain):
                    continue
                with pretend(isa=isa, profile=profile.traced):
                    traced = algorithm.cost(problem)
                values = profile.values()
                assert traced == pytest.approx(plain, rel=1e-12), name
                total = sum(values[part][kind] * count for (part, kind), count in traced.counts.items())
                assert total == pytest.approx(plain, rel=1e-9), name


def test_a_plan_shows_where_the_cycles_go():
    op = convt.ConvTranspose(np.ones((4, 4, 32, 32), np.float32), strides=2, algorithm="direct")
    plan = op.plan((1, 16, 16, 32))
    cycles = plan.cycles
    assert list(cycles.values()) == sorted(cycles.values(), reverse=True) and next(iter(cycles)) == "direct.tile_cycle"
    assert sum(cycles.values()) == pytest.approx(_plan.ALGORITHMS["direct"].cost(plan.problem))
    assert convt.ConvTranspose(np.ones((1, 1, 1)), backend="reference").plan((1, 2, 1)).cycles == {}
