"""unpacked: one GEMM of all taps that reads a one-shot filter in IOX order without packing it first. See README.md."""

from ..stages import Stages
from . import bind, cost, schedule

STAGES = Stages(
    schedule.schedule, cost.cost, bind.recipe, bind.bind, schedule.least, planar=True,
    does="one GEMM for all taps on the filter without packing; for weights passed with each call", limit=schedule.LIMIT,
    unpacked=True,
)  # fmt: skip
