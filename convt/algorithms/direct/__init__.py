"""The `direct` algorithm: one implicit GEMM per phase, over the taps of the phase. ``matrix`` and ``dots`` are direct on AMX
tiles and on dot products."""

from ..stages import Stages
from . import bind, cost, schedule

NAMES = bind.NAMES
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least)
