"""The `scatter` algorithm, for few out-channels: a GEMM of input rows with all taps of the last axis, then an overlap-add."""

from ..._model.unit import UNITS
from ..stages import Stages, never
from . import bind, cost, schedule

STAGES = Stages(
    schedule.schedule, cost.cost, bind.recipe, bind.bind, least=cost.least, planar=True,
    does="products of all taps, then overlap-add; for few out channels", limit=schedule.LIMIT, units=tuple(UNITS),
    widens=never, permits=bind.permits,
)  # fmt: skip
