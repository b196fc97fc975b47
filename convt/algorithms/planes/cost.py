"""The cost stage of planes: the cycles of all blocks, with the counts of moving them (see convt._model.costs)."""

import math

from ..._base.problem import ITEMSIZE
from .. import common
from .blocks import Schedule

_SHORT_RUNS = 2  # the cost of a byte that non-temporal stores write from a block, relative to long rows of one plane


def cost(stages, schedule, here):
    """Return the cycles to compute all blocks with ``stages`` and to move them, or those of a schedule of the algorithm
    alone."""
    if type(schedule) is not Schedule:
        return stages.cost(schedule, here)
    total = schedule.cut.total
    cycles = stages.cost(schedule.inner, here)
    if schedule.parallel_blocks and total < 32:  # with two threads, one waits if the number is odd
        total = 2 * -(-total // 2)
    prices = here.profile["planes"]
    moving, memory = counts(schedule.problem, schedule.cut, schedule.wide, schedule.stream, here)
    return cycles * total + prices.cycles(moving) + prices.cycles(memory)  # moving a block overlaps with no other work


def counts(problem, cut, wide, stream, here):
    """Return two dicts of counts: moving the blocks of a problem, and the memory traffic of the moves."""
    block, blocks, near = cut.problem, cut.total, here.l2
    vl = here.info(block.dtype).vl
    *ins, last_in = block.in_shape
    *outs, last_out = block.out_shape
    # Planes are transposed 16 bytes of channels at a time. NXC pixels are moved as one row.
    step = 16 // ITEMSIZE[block.dtype] if problem.planar else 1
    vectors_in, vectors_out = -(-last_in // step) * step / vl, -(-last_out // step) * step / vl
    found = {
        "turn" if problem.planar else "move": blocks * (math.prod(ins) * vectors_in + math.prod(outs) * vectors_out),
        "task": blocks,
    }
    if wide:
        bytes = ITEMSIZE[block.dtype] * (math.prod(block.in_shape) + math.prod(block.out_shape))
        found["out_byte_l3"] = blocks * max(0, bytes - near)
    memory = common.plane_counts(problem, stream, here)
    if problem.planar and stream:
        memory["out_byte_non_temporal"] *= _SHORT_RUNS
    return found, memory


def least(stages, problem, here, unit="vectors"):
    """Return a lower bound of the cycles: those of the algorithm alone, and for NCX of moving each element once."""
    info = here.info(problem.dtype)
    if info.s_size < info.t_size:  # the problem may be computed in float32 blocks
        wide = stages.least(problem._replace(dtype="float32", planar=False), here, unit)
        return min(wide, stages.least(problem._replace(planar=False), here, unit))
    if not problem.planar or stages.planar:
        return stages.least(problem, here, unit)
    part, vl = here.profile["planes"], here.info(problem.dtype).vl
    moving = part["turn"] * (math.prod(problem.in_shape) + math.prod(problem.out_shape))
    return stages.least(problem._replace(planar=False), here, unit) + moving / vl
