"""The planner's losses on recorded times.

docs/measurements/FAMILY_times.jsonl has the milliseconds of each algorithm on layers, measured on a CPU of a machine file. The
planner pretends that CPU, and takes an algorithm for each layer. Its loss is its time relative to the fastest one.

If a change of a constant or an efficiency fails here, the message has the layers that lost most. `bench/recorded.py` measures
records and fits efficiencies to them.
"""

import math

import numpy as np
import pytest
from cases import ISA_ROWS, needs_checkout

from bench import recorded
from convt._plan import choose

pytestmark = needs_checkout

# Record and layout -> geometric mean of the losses, the worst.
MOST = {
    ("zen3", "NXC"): (1.015, 1.8), ("zen3", "NCX"): (1.040, 1.9),
    ("zen4", "NXC"): (1.020, 1.9), ("granite_rapids", "NXC"): (1.029, 1.8),
    ("zen5", "NXC"): (1.020, 1.9), ("zen5", "NCX"): (1.039, 2.4),
    # The record of Sapphire Rapids was taken beside other machines, which slowed AMX to half at times.
    ("sapphire_rapids_amx", "NXC"): (1.050, 2.2), ("sapphire_rapids_amx", "NCX"): (1.070, 2.0),
}  # fmt: skip


def test_every_record_has_a_bound():
    found = {path.name.removesuffix("_times.jsonl") for path in recorded.FOLDER.glob("*_times.jsonl")}
    assert found == set(recorded.ISA) == {family for family, _ in MOST}


@pytest.mark.parametrize("family, layout", MOST)
def test_losses_of_the_planner(family, layout):
    if recorded.ISA[family] not in ISA_ROWS:
        pytest.skip(f"this build lacks {recorded.ISA[family]}")
    losses = []
    with recorded.pretended(family):
        for line in recorded.lines(family):
            if line["layout"] == layout:
                times, name = line["ms"], choose.native(recorded.problem_of(line), "auto")
                # Algorithms that were expected to take three times as long as the best were not measured.
                losses.append((times.get(name, math.inf) / min(times.values()), line["name"], name, times))
    mean = math.exp(np.mean([math.log(loss) for loss, *_ in losses]))
    losses.sort(reverse=True, key=lambda loss: loss[0])
    assert len(losses) > 250
    assert mean <= MOST[family, layout][0] and losses[0][0] <= MOST[family, layout][1], (mean, losses[:5])
