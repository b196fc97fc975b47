"""What unpacked's loops do, as counts: see convt.algorithms.costs. All is read off the schedule."""

import math

from .. import common, costs
from . import schedule as schedules

_SHORT_ROWS = 2  # a vector of a few pixels takes this many times as long to transpose as one of whole cache lines


def cost(schedule, here):
    """Cycles of all threads together, and of threads that have nothing left to do."""
    problem, info = schedule.problem, here.info(schedule.problem.dtype, schedule.unit)
    prices, vl = here.profile[schedules.NAME], info.vl
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
    cycles = prices.cycles(counts) * tasks
    if schedule.threads > 1 and tasks <= common.EVEN and cycles >= here.limits.single_thread_cycles:
        cycles = cycles * (-(-tasks // 2) * 2 / tasks)  # of two threads: the choice must not depend on how many there are
    memory = common.plane_counts(problem, False, here) if problem.planar else common.memory_counts(problem, here=here)
    return costs.beside(cycles, prices.cycles(memory))


def least(problem, here, unit="vectors"):
    """Cycles that no schedule is below: multiply-adds by whole vectors."""
    info = here.info(problem.dtype, unit)
    if not schedules.takes(problem, info):
        return math.inf
    products = problem.batch * problem.groups * math.prod((*problem.in_sizes, *problem.kernel, problem.ci, problem.co))
    return products * here.profile[schedules.NAME]["tile_cycle"] / (info.vl * costs.FMA_PORTS)


def packing(schedule, here):
    """Cycles to pack the weights of a call that brings its own: none, because tasks copy them in each call."""
    return 0.0
