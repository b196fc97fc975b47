"""direct: every phase is an implicit GEMM over its own taps; ``matrix`` and ``dots`` are the same on other units."""

from .. import stages
from . import bind, cost, schedule

NAMES = bind.NAMES
STAGES = stages.Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least)
