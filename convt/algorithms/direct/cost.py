"""What direct's schedules cost: cycles are read off the classes of a schedule (see shapes.pyx, and convt.algorithms.costs)."""

import functools
import math

from .. import common, execution
from ..costs import beside
from ..stages import SHARED
from .shapes import part


def non_temporal_from(problem, unit, here):
    """Bytes of output beyond which non-temporal stores write it."""
    return here.limits.amx_non_temporal - execution.data_bytes(problem) if unit.matrix else here.limits.direct_non_temporal


@functools.lru_cache(maxsize=256)
def memory_cycles(problem, unit, here):
    """``(cycles to stream data that L2 does not hold, cycles to fill outputs beforehand or to round them afterwards)``."""
    non_temporal = common.streams(problem, non_temporal_from(problem, unit, here), here) and not here.limits.ordinary_stores
    counts, serial = common.memory_counts(problem, non_temporal, here), common.fill_counts(problem, here)
    if unit.s_size < unit.t_size and not unit.matrix:
        serial["move"] = math.prod(problem.out_shape) / unit.vl
    prices = here.profile[part(unit)]
    return prices.cycles(counts), prices.cycles(serial)


def cost(schedule, here):
    """Cycles of a schedule: of its tasks, and of threads that have none left where there are few."""
    problem, unit = schedule.problem, here.info(schedule.problem.dtype, schedule.unit)
    memory, serial = memory_cycles(problem, unit, here)
    cycles, most = serial, 0
    for c in schedule.classes:
        cycles += c.cycles * c.count
        most += c.most_tasks * c.count
    if most > common.EVEN or cycles < here.limits.single_thread_cycles:
        return beside(cycles, memory)
    return beside(serial + SHARED * common.makespan(tasks(schedule.classes, problem.groups), SHARED), memory)


def tasks(classes, groups):
    """The tasks of classes, (cycles, how many), the largest first."""
    return sorted([(c.work, groups * c.count * c.blocks * c.panel_blocks) for c in classes], reverse=True)


def packing(schedule, here):
    """Cycles to pack the weights of a call that brings its own, beforehand or on the fly."""
    unit = here.info(schedule.problem.dtype, schedule.unit)
    bytes = common.filter_bytes(schedule.problem, unit)
    return common.packing_cycles(bytes, unit, packed_again(schedule.problem, schedule.classes, unit), here)


def packed_again(problem, classes, unit):
    """Bytes that tasks pack if they pack what they multiply: of a block of rows those that the blocks before it packed, too."""
    size = problem.groups * problem.ci * unit.e_size
    return sum([c.count * c.blocks * c.taps * c.columns for c in classes]) * size


def least(problem, here, unit):
    """Cycles that no schedule is below: its products at the peak, its weights read once, a row for each pixel of a phase."""
    info = here.info(problem.dtype, unit)
    if info is None:
        return math.inf
    name, pairs, bytes, rows = part(info), problem.batch, info.e_size, problem.batch * problem.groups
    for axis in zip(problem.kernel, problem.strides, problem.dilations, problem.in_sizes, problem.begin, problem.out_sizes,
                    strict=True):  # fmt: skip
        met = common.pairs_met(*axis)
        pairs *= met
        bytes *= met / max(axis[3], 1)  # of at least so many taps
        rows *= axis[5] / axis[1]
    channels = problem.groups * problem.ci * problem.co
    bytes *= channels
    prices = here.profile[name]
    if info.matrix:
        price, each = "amx_product", info.products / (16 * 16 * info.kstep)
    else:
        price, each = "tile_cycle" if info.kstep == 1 else "dot_cycle", 0.5 / (info.vl * info.kstep)
    weights = prices["weight_byte"] + prices["in_byte_l3"] * common.far(bytes, here.l2)
    return pairs * channels * each * prices[price] + weights * bytes + (rows * prices["row"] if channels else 0.0)
