"""Tests of the schedules of every algorithm: they are values, decided without packing, and cost no less than their bound."""

import itertools
import math

import pytest
from cases import ISA_ROWS, pretend

from convt._base.problem import Problem
from convt._model import machine
from convt._run.memory import kept_bytes
from convt.algorithms import ALGORITHMS, caches

# batch, groups, in- and out-channels of a group, in_sizes, kernel, strides, dilations, begin, out_sizes
PROBLEMS = {
    "one class": (1, 1, 512, 256, (9, 9), (4, 4), (2, 2), (1, 1), (1, 1), (18, 18)),
    "borders": (2, 1, 64, 32, (40, 30), (3, 3), (2, 2), (1, 1), (1, 1), (79, 59)),
    "taps outside": (1, 1, 128, 32, (4, 4), (5, 5), (2, 2), (1, 1), (2, 2), (8, 8)),
    "window": (1, 3, 32, 8, (50, 40), (8, 8), (4, 4), (1, 1), (15, 3), (180, 140)),
    "apart": (1, 1, 64, 32, (12, 12, 12), (2, 2, 2), (2, 2, 2), (1, 1, 1), (0, 0, 0), (24, 24, 24)),
    "outputs without taps": (1, 1, 8, 8, (30,), (1,), (2,), (1,), (0,), (60,)),
    "sound": (1, 1, 512, 256, (100,), (16,), (8,), (1,), (4,), (800,)),
    "groups": (1, 2, 64, 40, (9, 8, 10), (4, 4, 4), (2, 2, 2), (1, 1, 1), (1, 1, 1), (18, 16, 20)),
    "stride 1": (1, 1, 300, 64, (30, 30), (3, 3), (1, 1), (1, 1), (1, 1), (30, 30)),
    "depthwise": (1, 300, 1, 1, (20, 30), (4, 4), (2, 2), (1, 1), (1, 1), (40, 60)),
    "small groups": (1, 3, 4, 2, (20, 31), (4, 4), (2, 2), (1, 1), (1, 1), (40, 62)),
    "one channel": (1, 1, 56, 1, (20, 70), (9, 9), (3, 3), (1, 1), (4, 4), (62, 212)),
    "dilated": (1, 1, 33, 2, (23, 18), (3, 3), (2, 1), (3, 1), (2, 1), (47, 18)),
    "deep": (1, 1, 1100, 5, (4, 5), (3, 4), (2, 2), (1, 1), (1, 1), (8, 9)),
    "pixel": (1, 1, 1024, 512, (1, 1), (4, 4), (2, 2), (1, 1), (1, 1), (2, 2)),
}


def answers(key, problem, here):
    """Check the schedules of a problem for several numbers of threads, and return whether there are any."""
    stages, unit = ALGORITHMS[key].stages, ALGORITHMS[key].unit
    found = []
    for threads in (1, 2, 2, 16):
        caches.clear()
        found.append(stages.schedule(problem, here, unit, threads, True))
    _, one, same, many = found
    least = stages.least(problem, here, unit)
    if one is None:
        assert found == [None] * 4 and (math.isinf(least) or problem.planar)  # `least` does not know the blocks
        return False
    assert one == same and hash(one) == hash(same) and repr(one) == repr(same) and len(repr(one)) < 20_000
    assert one.problem == problem and eval(str(problem), {"Problem": Problem}) == problem
    assert len({each.form for each in found}) == 1 and found[0].threads == 1 and many.threads in (1, 16)
    assert 0 < least <= stages.cost(one, here) < math.inf
    return True


@pytest.mark.parametrize("key", [key for key, each in ALGORITHMS.items() if not each.stages.by_name])
@pytest.mark.parametrize("isa", ISA_ROWS)
@pytest.mark.parametrize("limits", [{}, {"planes_block": 1 << 14}], ids=["", "small blocks"])
def test_schedules_are_values(limits, isa, key):
    dtypes, algorithm = ("float32", "float64", "bfloat16"), ALGORITHMS[key]
    with pretend(isa=isa, **limits):
        here, kept = machine.current(), kept_bytes()
        problems = [
            Problem(dtype, *sizes, planar=planar, precision="medium")
            for sizes, dtype, planar in itertools.product(PROBLEMS.values(), dtypes, (False, True))
        ]
        done = sum([answers(key, problem, here) for problem in problems if algorithm.permitted(problem)])
        assert kept_bytes() == kept  # nothing was packed
        assert (done > 0) == any(here.info(dtype, algorithm.unit) is not None for dtype in dtypes)
