"""The cost stage of unpacked: the counts of the loops of a schedule, and their cycles (see convt._model.costs)."""

import math

from ..._model import costs
from .. import common

_SHORT_ROWS = 2  # the cost of transposing a vector of few pixels, relative to whole cache lines


def cost(schedule, here):
    """Return the cycles of all threads together, including idle threads at the end."""
    problem, info = schedule.problem, here.info(schedule.problem.dtype, schedule.unit)
    prices, vl = here.profile["unpacked"], info.vl
    pixels, taps = problem.batch * math.prod(problem.in_sizes), math.prod(problem.kernel)
    columns = schedule.channels * taps
    counts = common.tile_counts(pixels, columns, problem.ci, info, schedule.depth)
    if not schedule.in_place:
        counts["on_the_fly_byte"] = columns * problem.ci * info.e_size
    inputs, outputs = pixels * problem.ci / vl, schedule.channels * problem.batch * math.prod(problem.out_sizes) / vl
    counts["gather"] = outputs * (1 + schedule.terms)
    counts["turn"] = _SHORT_ROWS * (inputs if problem.planar else outputs)
    counts["move"] = 0 if problem.planar else inputs
    counts["task"] = 1
    tasks = problem.groups * schedule.blocks
    cycles = common.cycles_with_idle_thread([(prices.cycles(counts) * tasks, tasks)], schedule.threads, here)
    memory = common.plane_counts(problem, False, here) if problem.planar else common.memory_counts(problem, here=here)
    return costs.overlapped(cycles, prices.cycles(memory))
