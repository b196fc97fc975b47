"""depthwise: vectors over channels, for many small channel groups and few channels. See README.md."""

from ..stages import Stages
from . import bind, cost, kinds, schedule

LIMIT, widens = kinds.LIMIT, kinds.widens
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, schedule.least)
