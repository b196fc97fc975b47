"""The `scatter` algorithm, for few out-channels: a GEMM of input rows with all taps of the last axis, then an overlap-add."""

from ..stages import Stages
from . import bind, cost, schedule

LIMIT, permits = schedule.LIMIT, bind.permits
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least, planar=True)
