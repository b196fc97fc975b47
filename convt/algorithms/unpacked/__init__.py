"""unpacked: a GEMM on the filter as it lies, for weights that come with a call. See README.md."""

from ..stages import Stages
from . import bind, cost, schedule
from .schedule import LIMIT as LIMIT

STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least, planar=True)
