"""Channels as planes (NCX), or any whose stride is not one, and elements of 16 bits.

`by_blocks` makes of the functions of an algorithm, which know contiguous channels of the accumulators' type, those that take any
strides and float16 and bfloat16: block by block, as a problem in NXC order and float32. (The GEMM turned round, turned.py, and
`rows` compute on planes as they are; kernels that multiply bfloat16 read 16-bit types themselves.)
"""

import math
from functools import partial

from ..._problem import ITEMSIZE
from .. import common, execution, machine
from ..direct import plan as direct
from .cutting import blocks
from .loops import PlanesPlan, WideRecipe, empty_wide

WIDE = "float32"  # in a key, after the algorithm's name: weights are those of a filter widened to it


def by_blocks(cost, recipe, make, preparing, widens=True):
    """``(cost, recipe, make, preparing)`` of an algorithm for channels of any stride; if it ``widens``, for 16-bit types too."""
    return (
        partial(_cost, cost, widens), partial(_recipe, recipe), partial(make_by_blocks, make, widens=widens), partial(_preparing, preparing, widens)
    )  # fmt: skip


def _wide(problem, widens):
    """Whether the blocks of a problem are widened to float32."""
    return widens and ITEMSIZE[problem.dtype] == 2


def _cut(problem, wide):
    return blocks(problem._replace(planar=False, dtype=WIDE if wide else problem.dtype), machine.current(), wide)


def _cost(cost, widens, problem):
    wide = _wide(problem, widens)
    if not problem.planar and not wide:
        return cost(problem)
    cut = _cut(problem, wide)
    cycles = cost(cut.problem)
    if math.isinf(cycles):
        return cycles
    return cycles * cut.total + machine.current().profile["planes"].cycles(_counts(problem, cut, wide))


def _preparing(preparing, widens, problem):
    wide = _wide(problem, widens)
    return preparing(_cut(problem, wide).problem if problem.planar or wide else problem)


def _recipe(recipe, attributes, filter, bias, key):
    if key[1:2] != (WIDE,):
        return recipe(attributes, filter, bias, key)
    inner = recipe(attributes._replace(dtype=WIDE), empty_wide(filter), empty_wide(bias), (key[0], *key[2:]))
    return WideRecipe(inner, attributes.dtype)


def _counts(problem, cut, wide):
    """What moving the blocks of a problem takes."""
    vl = machine.current().info(cut.problem.dtype)["vl"]
    vectors = lambda shape: math.prod(shape[:-1]) * -(-shape[-1] // vl)  # noqa: E731
    non_temporal = execution.outgrows(problem, machine.current().limits.non_temporal)
    memory = common.memory_counts(problem, non_temporal)
    del memory["in_line"], memory["out_line"]  # groups are apart in memory
    moved = "plane" if problem.planar else "wide"
    return memory | {
        f"{moved}_in_vector": cut.total * vectors(cut.problem.in_shape),
        f"{moved}_out_vector": cut.total * vectors(cut.problem.out_shape),
        f"{moved}_block": cut.total,
    }


def make_by_blocks(make, problem, recipe, packed, in_strides, out_strides, threads, widens=True):
    item, here, wide = ITEMSIZE[problem.dtype], machine.current(), _wide(problem, widens)
    alone = problem._replace(planar=False)
    # The stride of a single channel says nothing.
    in_strides = (*in_strides[:-1], item if problem.groups * problem.ci == 1 else in_strides[-1])
    out_strides = (*out_strides[:-1], item if problem.groups * problem.co == 1 else out_strides[-1])
    contiguous = in_strides[-1] == out_strides[-1] == item
    empty = not math.prod(problem.in_shape) * math.prod(problem.out_shape)
    if wide and empty:  # there are no blocks to widen, and nothing is multiplied
        return direct.make(alone, recipe, packed, in_strides, out_strides, threads)
    if empty or (contiguous and not wide):
        return make(alone, recipe, packed, in_strides, out_strides, threads)
    cut = _cut(problem, wide)
    # Each thread its own blocks where these are many; else all threads one block after the other.
    apart = cut.total >= 2 * threads or (cut.total >= threads and cut.total % threads == 0)
    ins, outs = execution.contiguous_in_strides(cut.problem), execution.contiguous_strides(cut.problem)
    full = lambda key: (key[0], WIDE, *key[1:]) if wide else key  # noqa: E731
    of_block = (lambda key: recipe(full(key)).inner) if wide else recipe
    packed_block = lambda key: packed(full(key))  # noqa: E731
    plan, key = make(cut.problem, of_block, packed_block, ins, outs, 1 if apart else threads)
    if cut.framed and not packed_block(key).finite:  # the zeros around the input must not meet NaN or infinity
        return direct.planned(alone, recipe, in_strides, out_strides, threads, finite=False)
    stream = execution.outgrows(problem, here.limits.non_temporal)
    return PlanesPlan(alone, plan, cut, in_strides, out_strides, apart and threads > 1, stream), full(key)
