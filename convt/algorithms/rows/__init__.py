"""rows: vectors over the pixels of NCX rows, for few channels. See README.md."""

from ..stages import Stages
from . import bind, cost, schedule

LIMIT = schedule.LIMIT
STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, schedule.least)
