"""The planner's losses on recorded times.

docs/measurements/FAMILY_times.jsonl has the milliseconds of each algorithm on layers, measured on a CPU of a machine file. The
planner pretends that CPU, and takes an algorithm for each layer. Its loss is its time relative to the fastest one.

If a change of a constant or an efficiency fails here, the message has the layers that lost most.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from cases import pretend

import convt
from convt._plan import choose

FOLDER = Path(__file__).parents[2] / "docs" / "measurements"
ISA = {"zen3": "avx2"}  # machine file -> instruction set of the measurement
MOST = {("zen3", "NXC"): (1.020, 2.1), ("zen3", "NCX"): (1.046, 2.4)}  # -> geometric mean of the losses, the worst


def test_every_record_has_a_bound():
    recorded = {path.name.removesuffix("_times.jsonl") for path in FOLDER.glob("*_times.jsonl")}
    assert recorded == set(ISA) == {family for family, _ in MOST}


@pytest.mark.parametrize("family, layout", MOST)
def test_losses_of_the_planner(family, layout):
    lines = map(json.loads, (FOLDER / f"{family}_times.jsonl").read_text(encoding="utf-8").splitlines())
    losses = []
    with pretend(ISA[family], family=family):
        for each in lines:
            if each["layout"] == layout:
                times, name = each["ms"], choose.native(problem_of(each["layer"], layout), "auto")
                # Algorithms that were expected to take three times as long as the best were not measured.
                losses.append((times.get(name, math.inf) / min(times.values()), each["name"], name, times))
    mean = math.exp(np.mean([math.log(loss) for loss, *_ in losses]))
    losses.sort(reverse=True, key=lambda loss: loss[0])
    assert len(losses) > 300
    assert mean <= MOST[family, layout][0] and losses[0][0] <= MOST[family, layout][1], (mean, losses[:5])


def problem_of(layer, layout):
    """Return the `Problem` of a layer of a record: N, channels, groups, sizes, kernel, strides, pads."""
    filter = np.broadcast_to(np.float32(1), (*layer["k"], layer["Cin"], layer["Cout"] // layer["g"]))
    op = convt.ConvTranspose._borrowing(
        filter, None, strides=layer["s"], pads_begin=layer.get("pb", 0), pads_end=layer.get("pe", 0),
        dilations=layer.get("d", 1), output_padding=layer.get("op", 0), groups=layer["g"], data_format=layout,
    )  # fmt: skip
    size, channels = layer["in"], layer["Cin"]
    shape = (layer["N"], *size, channels) if layout == "NXC" else (layer["N"], channels, *size)
    return op._attributes.problem(shape)
