"""The `winograd` algorithm: Winograd's F(m, r) for phases of two or more adjacent taps per axis. ``matrix_winograd`` and
``matrix_high_winograd`` multiply on AMX; ``winograd6`` uses the transforms of six points."""

from functools import partial

from ..stages import Stages
from . import bind, cost, schedule
from .transforms import LARGE

LIMIT = "a phase of two or more taps that read adjacent inputs, on an axis with at least two outputs"
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, schedule.least)
LARGE_STAGES = STAGES._replace(
    schedule=partial(schedule.schedule, kinds=LARGE), least=partial(schedule.least, kinds=LARGE)
)  # winograd6
