"""unpacked: one GEMM of all taps that reads a one-shot filter in IOX order without packing it first. See README.md."""

from ..stages import Stages
from . import bind, cost, schedule
from .schedule import LIMIT as LIMIT

STAGES = Stages(schedule.schedule, cost.cost, cost.packing, bind.recipe, bind.bind, cost.least, planar=True)
