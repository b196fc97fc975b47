"""depthwise: vectors over channels, for many small channel groups and few channels. See README.md."""

from ..stages import Stages
from . import bind, cost, kinds, layout, schedule

STAGES = Stages(
    schedule.schedule, cost.cost, layout.recipe, bind.bind, least=schedule.least,
    does="one vector of channels or pixels at a time; for small groups and few channels", limit=kinds.LIMIT,
    widens=kinds.widens,
)  # fmt: skip
