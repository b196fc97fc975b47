"""winograd: phases of two or three taps an axis, with fewer multiplications than taps."""

from functools import partial

from ..stages import Stages
from . import bind, cost, schedule
from .transforms import LARGE

LIMIT = "it wants a phase of two or more taps one input apart, on an axis with two outputs or more"
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, schedule.least)
LARGE_STAGES = STAGES._replace(
    schedule=partial(schedule.schedule, kinds=LARGE), least=partial(schedule.least, kinds=LARGE)
)  # winograd6
