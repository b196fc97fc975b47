"""turned: the GEMM of direct with pixels as columns, for NCX data. See README.md."""

from ..stages import Stages
from . import bind, cost, schedule

LIMIT, NAMES = schedule.LIMIT, schedule.NAMES
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least)
