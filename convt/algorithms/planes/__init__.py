"""planes: algorithms for contiguous channels, extended block by block to NCX data and 16-bit dtypes. See README.md."""

from functools import partial

from ..stages import always
from . import bind, cost, schedule


def by_blocks(stages, widens=always, strided=False):
    """Return `Stages` for channels of any stride and for 16-bit dtypes, from ``stages`` for contiguous channels.

    `schedule.schedule` explains the other arguments.
    """
    return stages._replace(
        schedule=partial(schedule.schedule, stages, widens, strided), cost=partial(cost.cost, stages),
        recipe=partial(bind.recipe, stages), bind=partial(bind.bind, stages), least=partial(cost.least, stages),
    )  # fmt: skip
