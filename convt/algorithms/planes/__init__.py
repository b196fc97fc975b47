from functools import partial

from ..stages import Stages
from . import bind, cost, schedule


def by_blocks(stages, widens=schedule.always, strided=False):
    """The `Stages` of an algorithm for channels of any stride and 16-bit types, of one that knows contiguous channels of the
    accumulators' type: see `schedule.schedule`."""
    return Stages(
        partial(schedule.schedule, stages, widens, strided), partial(cost.cost, stages), partial(cost.packing, stages),
        partial(bind.recipe, stages), partial(bind.bind, stages), partial(cost.least, stages),
    )  # fmt: skip
