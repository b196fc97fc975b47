"""direct: every phase is an implicit GEMM over its own taps; ``matrix`` and ``dots`` are the same on other units."""

from ..stages import Stages
from . import bind, cost, schedule

NAMES = bind.NAMES
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least)
