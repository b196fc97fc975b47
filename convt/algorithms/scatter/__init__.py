"""scatter: a GEMM of each row of pixels with every tap of the last axis, overlap-added; for few out channels."""

from ..stages import Stages
from . import bind, cost, schedule

LIMIT, permits = schedule.LIMIT, bind.permits
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least, planar=True)
