"""The `winograd` algorithm: Winograd's F(m, r) for phases of two or more adjacent taps per axis."""

from functools import partial

from ..stages import Stages, always
from . import bind, cost, schedule
from .transforms import LARGE

STAGES = Stages(
    schedule.schedule, cost.cost, bind.recipe, bind.bind, schedule.least,
    does="Winograd's minimal filtering", units=("vectors", "amx", "amx_two"), widens=always, transforms=True,
    limit="a phase of two or more taps that read adjacent inputs, on an axis with at least two outputs",
)  # fmt: skip
# Transforms of six points.
LARGE_STAGES = STAGES._replace(
    schedule=partial(schedule.schedule, kinds=LARGE), least=partial(schedule.least, kinds=LARGE),
    does="Winograd's minimal filtering with larger, less accurate tiles", units=("vectors",), precision="high",
)
