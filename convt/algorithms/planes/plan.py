"""Channels as planes (NCX), or any whose stride is not one.

`by_blocks` makes of the functions of an algorithm, which know channels that are contiguous, those that take any strides: block
by block, as a problem in NXC order. (The GEMM turned round, turned.py, and `rows` compute on planes as they are.)
"""

import math
from functools import partial

from ..._problem import ITEMSIZE
from .. import common, execution, machine
from ..direct import plan as direct
from .cutting import blocks
from .loops import PlanesPlan


def by_blocks(cost, make, preparing):
    """``(cost, make, preparing)`` of an algorithm for channels of any stride."""
    return partial(_cost, cost), partial(make_by_blocks, make), partial(_preparing, preparing)


def _cost(cost, problem):
    if not problem.planar:
        return cost(problem)
    cut = blocks(problem, machine.current())
    cycles = cost(cut.problem)
    if math.isinf(cycles):
        return cycles
    return cycles * cut.total + machine.current().profile["planes"].cycles(_counts(problem, cut))


def _preparing(preparing, problem):
    return preparing(blocks(problem, machine.current()).problem if problem.planar else problem)


def _counts(problem, cut):
    """What transposing the blocks of a problem takes."""
    vl = machine.current().info(cut.problem.dtype)["vl"]
    vectors = lambda shape: math.prod(shape[:-1]) * -(-shape[-1] // vl)  # noqa: E731
    non_temporal = execution.outgrows(problem, machine.current().limits.non_temporal)
    memory = common.memory_counts(problem, non_temporal)
    del memory["in_line"], memory["out_line"]  # groups are apart in memory
    return memory | {
        "plane_in_vector": cut.total * vectors(cut.problem.in_shape),
        "plane_out_vector": cut.total * vectors(cut.problem.out_shape),
        "plane_block": cut.total,
    }


def make_by_blocks(make, problem, recipe, packed, in_strides, out_strides, threads):
    item, here = ITEMSIZE[problem.dtype], machine.current()
    alone = problem._replace(planar=False)
    # The stride of a single channel says nothing.
    in_strides = (*in_strides[:-1], item if problem.groups * problem.ci == 1 else in_strides[-1])
    out_strides = (*out_strides[:-1], item if problem.groups * problem.co == 1 else out_strides[-1])
    if in_strides[-1] == out_strides[-1] == item or not math.prod(problem.in_shape) * math.prod(problem.out_shape):
        return make(alone, recipe, packed, in_strides, out_strides, threads)
    cut = blocks(alone, here)
    # Each thread its own blocks where these are many; else all threads one block after the other.
    apart = cut.total >= 2 * threads or (cut.total >= threads and cut.total % threads == 0)
    ins, outs = execution.contiguous_in_strides(cut.problem), execution.contiguous_strides(cut.problem)
    plan, key = make(cut.problem, recipe, packed, ins, outs, 1 if apart else threads)
    if cut.framed and not packed(key).finite:  # the zeros around the input must not meet NaN or infinity
        return direct.planned(alone, recipe, in_strides, out_strides, threads, finite=False)
    stream = execution.outgrows(problem, here.limits.non_temporal)
    return PlanesPlan(alone, plan, cut, in_strides, out_strides, apart and threads > 1, stream), key
