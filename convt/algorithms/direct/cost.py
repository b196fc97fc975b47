"""The expected cycles of a schedule of `direct`.

shapes.pyx computes the cycles of each class while it is scheduled. This module adds memory traffic and threads that idle at the
end. convt/_model/costs.py defines the counts and costs.
"""

import math

from ..._model.costs import overlapped
from .. import common, phases
from ..caches import remembered
from ..stages import SHARED
from .shapes import part


@remembered(256)
def memory_cycles(problem, unit, here):
    """Return (cycles to stream data that L2 does not hold, cycles to fill outputs beforehand or to round them afterwards)."""
    limits = here.limits
    non_temporal = common.stores_non_temporally(problem, limits.direct_non_temporal, here) and not limits.ordinary_stores
    counts, serial = common.memory_counts(problem, non_temporal, here), common.fill_counts(problem, here)
    if unit.s_size < unit.t_size and not unit.matrix:
        serial["move"] = math.prod(problem.out_shape) / unit.vl
    prices = here.profile[part(unit)]
    return prices.cycles(counts), prices.cycles(serial)


def cost(schedule, here):
    """Return the cycles of all threads together: of the tasks and, if tasks are few, of threads that idle at the end."""
    problem, unit = schedule.problem, here.info(schedule.problem.dtype, schedule.unit)
    memory, serial = memory_cycles(problem, unit, here)
    most = [(c.cycles * c.count, c.most_tasks * c.count) for c in schedule.classes]
    cycles = sum([work for work, _ in most])
    if schedule.threads > 1 and common.has_few_tasks(most, here):
        cycles = SHARED * common.makespan(tasks(schedule.classes, problem.groups), SHARED)
    return overlapped(serial + cycles, memory)


def tasks(classes, groups):
    """Return the tasks of classes as pairs (cycles of a task, number of tasks), the largest first."""
    return sorted([(c.cut.cycles, groups * c.count * c.cut.tasks) for c in classes], reverse=True)


def repacked_bytes(problem, classes, unit):
    """Return the bytes that tasks pack if they pack on the fly: each row block packs all weights of its class again."""
    size = problem.groups * problem.ci * unit.e_size
    return sum([c.count * c.cut.blocks * c.taps * c.columns for c in classes]) * size


def least(problem, here, unit):
    """Return a lower bound of the cycles: products at the peak rate, weights read once, one row per pixel of a phase."""
    info = here.info(problem.dtype, unit)
    if info is None:
        return math.inf
    prices, pairs, bytes, rows = here.profile[part(info)], problem.batch, info.e_size, problem.batch * problem.groups
    for axis in phases.axes_of(problem):
        axis_pairs = common.tap_pair_count(*axis)
        pairs *= axis_pairs
        bytes *= axis_pairs / max(axis.size, 1)  # a lower bound of the taps that are read
        rows *= axis.out / axis.s
    channels = problem.groups * problem.ci * problem.co
    bytes *= channels
    weights = prices["weight_byte"] + prices["in_byte_l3"] * common.uncached_fraction(bytes, here.l2)
    products = pairs * channels * common.product_price(info, prices)
    return products + weights * bytes + (rows * prices["row"] if channels else 0.0)
