"""The `direct` algorithm: one implicit GEMM per phase, over the taps of the phase. It runs on every unit."""

from ..._model.unit import UNITS
from ..stages import Stages, never
from . import bind, cost, schedule

STAGES = Stages(
    schedule.schedule, cost.cost, bind.recipe, bind.bind, cost.least,
    does="one GEMM per phase", units=tuple(UNITS), widens=never,
)  # fmt: skip
