"""Channels as planes (NCX), or any whose stride is not one, and elements of 16 bits.

`by_blocks` makes of the functions of an algorithm, which know contiguous channels of the accumulators' type, those that take
any strides and float16 and bfloat16: block by block, as a problem in NXC order and float32. (The GEMM turned round, turned.py,
and `rows` compute on planes as they are; kernels that multiply bfloat16 read 16-bit types themselves.)
"""

import functools
import math
from functools import partial

from ..._problem import ITEMSIZE
from .. import common, execution, machine
from ..direct import plan as direct
from .blocks import Schedule, blocks
from .loops import PlanesPlan, WideRecipe, empty_wide
from .schedule import space

WIDE = "float32"  # in a key, after the algorithm's name: weights are those of a filter widened to it


def always(problem, contiguous):
    return True


def never(problem, contiguous):
    return False


def direct_widens(problem, contiguous):
    """Whether `direct` takes less time for a problem of a 16-bit type if its blocks are widened: of few channels it reads
    float32 where it lies, but has to copy other types one by one. A part of a problem is computed as its order says."""
    if problem.order is not None:
        return False
    problem = problem._replace(planar=not contiguous)
    return _cost_as(direct.cost, problem, True) < _cost_as(direct.cost, problem, False)


def by_blocks(cost, recipe, make, preparing, widens=always):
    """``(cost, recipe, make, preparing)`` of an algorithm for channels of any stride. ``widens`` says of a problem of a 16-bit
    type, with contiguous channels or not, whether it is widened to float32; if not, the algorithm knows the type itself."""
    return (
        partial(_cost, cost, widens), partial(_recipe, recipe), partial(make_by_blocks, cost, make, widens=widens),
        partial(_preparing, preparing, cost, widens),
    )  # fmt: skip


def _wide(problem, widens, contiguous):
    """Whether the blocks of a problem are widened to float32."""
    return ITEMSIZE[problem.dtype] == 2 and widens(problem, contiguous)


@functools.lru_cache(maxsize=256)
def cut_into_blocks(cost, problem, wide, here):
    """The `Blocks` of a problem. Widened ones fit in L2, or read the weights less often, whichever costs less."""
    alone = problem._replace(planar=False, dtype=WIDE if wide else problem.dtype)
    large = blocks(alone, here, here.limits.planes_block, wide)
    if not wide:
        return large
    small = blocks(alone, here, here.limits.wide_block, wide)
    return min(small, large, key=lambda cut: _cycles(cost, problem, cut, wide))


def _cycles(cost, problem, cut, wide):
    """What all blocks take, and moving them."""
    cycles = cost(cut.problem)
    if math.isinf(cycles):
        return cycles
    return cycles * cut.total + machine.current().profile["planes"].cycles(_counts(problem, cut, wide))


def _cost(cost, widens, problem):
    return _cost_as(cost, problem, _wide(problem, widens, not problem.planar))


def _cost_as(cost, problem, wide):
    if not problem.planar and not wide:
        return cost(problem)
    return _cycles(cost, problem, cut_into_blocks(cost, problem, wide, machine.current()), wide)


def _preparing(preparing, cost, widens, problem):
    wide = _wide(problem, widens, not problem.planar)
    if problem.planar or wide:
        problem = cut_into_blocks(cost, problem, wide, machine.current()).problem
    return preparing(problem)


def _recipe(recipe, attributes, filter, bias, key):
    if key[1:2] != (WIDE,):
        return recipe(attributes, filter, bias, key)
    inner = recipe(attributes._replace(dtype=WIDE), empty_wide(filter), empty_wide(bias), (key[0], *key[2:]))
    return WideRecipe(inner, attributes.dtype)


def _counts(problem, cut, wide):
    """What moving the blocks of a problem takes."""
    vl = machine.current().info(cut.problem.dtype)["vl"]
    # (Pixels of NXC are moved as one row.)
    vectors = lambda shape: math.prod(shape[:-1]) * (-(-shape[-1] // vl) if problem.planar else shape[-1] / vl)  # noqa: E731
    non_temporal = execution.outgrows(problem, machine.current().limits.non_temporal)
    counts = common.memory_counts(problem, non_temporal)
    del counts["in_line"], counts["out_line"]  # groups are apart in memory
    moved = "plane" if problem.planar else "wide"
    counts[f"{moved}_in_vector"] = cut.total * vectors(cut.problem.in_shape)
    counts[f"{moved}_out_vector"] = cut.total * vectors(cut.problem.out_shape)
    counts[f"{moved}_block"] = cut.total
    if wide:
        bytes = execution.data_bytes(cut.problem) + execution.output_bytes(cut.problem)
        counts["wide_byte_l3"] = cut.total * common.far(bytes) * bytes
    return counts


def make_by_blocks(cost, make, problem, recipe, packed, in_strides, out_strides, threads, widens=always):
    item, here = ITEMSIZE[problem.dtype], machine.current()
    alone = problem._replace(planar=False)
    # The stride of a single channel says nothing.
    in_strides = (*in_strides[:-1], item if problem.groups * problem.ci == 1 else in_strides[-1])
    out_strides = (*out_strides[:-1], item if problem.groups * problem.co == 1 else out_strides[-1])
    contiguous = in_strides[-1] == out_strides[-1] == item
    wide = _wide(problem, widens, contiguous)
    empty = not math.prod(problem.in_shape) * math.prod(problem.out_shape)
    if wide and empty:  # there are no blocks to widen, and nothing is multiplied
        return direct.make(alone, recipe, packed, in_strides, out_strides, threads)
    if empty or (contiguous and not wide):
        return make(alone, recipe, packed, in_strides, out_strides, threads)
    cut = cut_into_blocks(cost, problem, wide, here)
    # Each thread its own blocks where these are many; else all threads one block after the other, if they are done first.
    apart = cut.total >= 2 * threads or (cut.total >= threads and cut.total % threads == 0)
    ins, outs = execution.contiguous_in_strides(cut.problem), execution.contiguous_strides(cut.problem)
    full = lambda key: (key[0], WIDE, *key[1:]) if wide else key  # noqa: E731
    of_block = (lambda key: recipe(full(key)).inner) if wide else recipe
    packed_block = lambda key: packed(full(key))  # noqa: E731
    planned = lambda threads: make(cut.problem, of_block, packed_block, ins, outs, threads)  # noqa: E731
    plan, key = planned(1 if apart else threads)
    if not apart and cut.total > 1 and -(-cut.total // threads) < cut.total * _share(plan, cost(cut.problem), threads):
        apart, (plan, key) = True, planned(1)
    if cut.framed and not packed_block(key).finite:  # the zeros around the input must not meet NaN or infinity
        return direct.planned(alone, recipe, in_strides, out_strides, threads, finite=False)
    stream = execution.outgrows(problem, here.limits.non_temporal)
    schedule = Schedule(alone, "", threads, (), cut, None, apart and threads > 1, stream, wide, space(cut))
    return PlanesPlan(schedule, plan, in_strides, out_strides), full(key)


def _share(plan, cycles, threads):
    """The share of the ``cycles`` of a plan after which the last of several threads is done."""
    threads = plan.threads(threads)
    if plan.works is None:  # tasks are all alike
        return -(-plan.tasks // threads) / max(plan.tasks, 1)
    return common.makespan(plan.works, threads) / max(cycles, 1)
