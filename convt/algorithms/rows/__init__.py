"""rows: vectors over the pixels of NCX rows, for few channels. See README.md."""

from ..stages import Stages
from . import bind, cost, layout, schedule

STAGES = Stages(
    schedule.schedule, cost.cost, layout.recipe, bind.bind, least=schedule.least,
    does="vectors of pixels of a row with broadcast weights; for planes (NCX) of few channels", limit=schedule.LIMIT,
)  # fmt: skip
